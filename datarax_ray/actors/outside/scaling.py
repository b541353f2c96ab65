"""How many actors there should be, by how long the stream waits and the actors read. Pure; time is an argument.

More actors help where the stream waits and the actors it has are at work all the time. Where the stream does not wait,
the trainer is what is slow; where the actors idle although it waits, it is the driver, the network or a bound in
bytes; where more of them read no more, it is what they share. None of these is grown at, and each is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from datarax_ray.actors.outside.sizing import Entry, PoolSeen
from datarax_ray.plan.arguments import whole

# Of the time: a stream that waits longer has too few actors; one that waits less for NUM_CALM periods may have too many
# (to see that a part is there costs 0.2 ms, which counts as well).
WAITS, NEVER_WAITS, NUM_CALM = 0.05, 0.02, 3
# Of their time: actors that read more are what is waited for. Those that are left after some have ended read so much.
AT_WORK, LEFT_AT_WORK = 0.5, 0.75
GROWTH = 1.5
NUM_SETTLING = 2  # periods
# Of what the actors should have read more, at least this; or it was not actors that were missing.
MIN_GAIN = 0.25
# So many actors read less than this of what they read when they were too few: then they are enough.
MOST_OF_RATE = 0.8
# How long it is remembered that more actors read no more.
MEMORY_S = 900.0


@dataclass(frozen=True)
class Decision:
    """How many actors there should be from now on, which may be as many as there are, and why."""

    num_actors: int
    reason: str


def limits(num_actors: Any, of_none: str = "one per CPU") -> tuple[int, int]:
    """(least, most) of what a user gave as a number of actors, or as such a pair. of_none: what None is for there.

    >>> limits(4), limits((2, 16))
    ((4, 4), (2, 16))
    """
    if isinstance(num_actors, tuple | list):
        if len(num_actors) != 2:
            raise ValueError(f"num_actors must be a number, or (least, most), got {num_actors!r}")
        least, most = (whole("num_actors", number) for number in num_actors)
    else:
        least = most = whole("num_actors", num_actors, f", (least, most) for as many as help, or None for {of_none}")
    if least < 1 or most < least:
        raise ValueError(
            f"num_actors must be at least 1, or (least, most) with 1 <= least <= most, got {num_actors!r}; "
            f"None is for {of_none}"
        )
    return least, most


class Scaler:
    """Decides, once in a period, on a number in [least, most].

    period_s: between two decisions. A part takes a second, so 10 s have several of each actor. Where actors have come
    or gone two periods pass unjudged first: up to 16 parts are on their way then, asked of those who were there before.
    """

    def __init__(self, least: int, most: int, period_s: float = 10.0) -> None:
        self.least, self.most, self._period_s = least, most, period_s
        self._since: float | None = None  # when this period began, None while none runs
        self._num_actors = 0
        self._to_settle = 0  # periods
        self._waited_s = self._read_s = 0.0
        self._num_read = 0
        self._num_calm = 0
        self._before: tuple[int, float] | None = None  # actors and elements a second before the last growth
        self._too_few = (0, 0.0)  # the last that were, and elements a second that they read
        self._too_many = (0, -math.inf)  # the last that read no more than fewer, and when that was
        self._told = ""

    def waited(self, seconds: float) -> None:
        """Event: the stream waited so long for an actor."""
        self._waited_s += seconds

    def read(self, seconds: float) -> None:
        """Event: an actor was at something for so many seconds, be it for nobody."""
        self._read_s += seconds

    def used(self, num_elements: int) -> None:
        """Event: the stream has so many more elements. What two actors read counts once, or late ones would be more."""
        self._num_read += num_elements

    def disturbed(self) -> None:
        """Event: others read with the actors than before, so that what was measured is of no use."""
        self._since = self._before = None
        self._too_few = (0, 0.0)

    def tick(self, now: float, num_running: int, num_wanted: int) -> Decision | None:
        """Event: it is now (seconds, of any clock). A decision where one is due, and differs from the last.

        A period in which nobody read tells nothing: the stream has not begun, or the trainer does something else.
        """
        if self._since is None or num_running != self._num_actors:
            self._begin(now if num_running else None, num_running)
            self._to_settle = NUM_SETTLING
            return None
        period_s = now - self._since
        if period_s < self._period_s:
            return None
        if self._to_settle or not (self._num_read or self._waited_s):
            self._begin(now, num_running)
            self._to_settle = max(0, self._to_settle - 1)
            return None
        waits = min(1.0, self._waited_s / period_s)
        at_work = min(1.0, self._read_s / (period_s * num_running))
        decision = self._decide(now, num_running, num_wanted, waits, at_work, self._num_read / period_s)
        self._begin(now, num_running)
        if decision.num_actors == num_wanted and decision.reason == self._told:
            return None
        self._told = decision.reason
        measured = f"it waits {waits:.0%} of the time, and they read {at_work:.0%} of theirs"
        return Decision(decision.num_actors, f"{decision.reason} ({measured})") if decision.reason else None

    def _begin(self, now: float | None, num_actors: int) -> None:
        self._since, self._num_actors = now, num_actors
        self._waited_s, self._read_s, self._num_read = 0.0, 0.0, 0

    def _decide(self, now: float, num: int, wanted: int, waits: float, at_work: float, rate: float) -> Decision:
        """num: actors that run. wanted: these and those that do not, for whatever reason."""
        before, self._before = self._before, None
        if not self.least <= wanted <= self.most:  # a person asked for so many, and does so no more
            allowed = min(max(wanted, self.least), self.most)
            return Decision(allowed, f"num_actors allows {self.least} to {self.most}")
        if waits < WAITS:
            self._num_calm = self._num_calm + 1 if waits <= NEVER_WAITS else 0
            return self._shrunk(num, wanted, at_work, rate)
        self._num_calm = 0
        if num < wanted:
            return Decision(wanted, f"{wanted - num} of {wanted} do not run yet, or the cluster has no room for them")
        if before is not None and num > before[0] and rate < before[1] * (1 + MIN_GAIN * (num / before[0] - 1)):
            self._too_many = num, now
            return Decision(before[0], f"{num} actors read no more than {before[0]}: what they share is slow")
        if at_work < AT_WORK:
            return Decision(num, "more actors would not help: the driver, the network or max_nbytes is slow, not they")
        if num >= self.most:
            return Decision(num, f"the stream waits for its actors, and num_actors allows {self.most} at most")
        grown = min(self.most, math.ceil(num * GROWTH))
        most, seen = self._too_many
        if now - seen < MEMORY_S and grown >= most:
            return Decision(num, f"{most} actors read no more a while ago: what they share is slow")
        self._before = self._too_few = num, rate
        return Decision(grown, "the stream waits for its actors")

    def _shrunk(self, num: int, wanted: int, at_work: float, rate: float) -> Decision:
        """As many as are needed, once it is sure that fewer are."""
        needed = max(self.least, math.ceil(num * at_work / LEFT_AT_WORK))
        few, its_rate = self._too_few
        if needed <= few and rate > MOST_OF_RATE * its_rate:
            needed = few + 1  # those were waited for when they read as much
        if self._num_calm < NUM_CALM or needed >= wanted:
            return Decision(wanted, "")
        self._num_calm = 0
        return Decision(needed, "the trainer is slower than its actors, so fewer are enough")


class PoolScaler:
    """Decides for all drivers of a pool, by what they say that they have measured (see Entry).

    One of them decides: of those whose program gives a range, the one with the first name, which is another one once it
    has gone. As long as one waits for actors they are too few. What several have of one reading counts for each, so
    that actors that are shared are at most ended later than others.
    """

    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler
        self._known: dict[str, Entry] = {}  # of each driver, what it said last

    def tick(self, now: float, entry: Entry, seen: PoolSeen) -> Decision | None:
        """Event: it is now, and these drivers are there. entry: of the driver that asks. See Scaler.tick."""
        entries = {each.user: each for each in (*seen.entries, entry)}
        if entries.keys() != self._known.keys():
            self._scaler.disturbed()
        pairs = [(self._known.get(user, each), each) for user, each in entries.items()]
        self._known = entries
        self._scaler.waited(max(each.waited_s - last.waited_s for last, each in pairs))
        self._scaler.read(sum(each.read_s - last.read_s for last, each in pairs))
        self._scaler.used(sum(each.num_used - last.num_used for last, each in pairs))
        if seen.is_asked:  # or what was measured meanwhile would be one long period behind it
            self._scaler.disturbed()
            return None
        if entry.user != min(each.user for each in entries.values() if each.scales):
            return None
        return self._scaler.tick(now, entry.num_running, entry.num_actors)
