"""How many actors a pool has, and how much each of them reads. Pure: values in, decisions out; time is an argument.

Each driver that reads with a pool keeps an entry at the head of the cluster; the pool has one wish there, which all its
drivers follow. A person makes the wish (`datarax-ray pool resize`), or one of the drivers, where its program gives a
range, as `Scaler` decides.

More actors help where the stream waits and its actors read all the time. In these cases no actor is added, and the log
gives the reason: the stream does not wait, so the trainer is slow; the actors idle while it waits, so the driver, the
network or max_nbytes is slow; more actors have read no more, so the storage they share is slow.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, TypeAlias
from urllib.parse import quote, unquote

# (namespace, name, identity); see Entry.
PoolId: TypeAlias = tuple[str, str, str]
IDENTITY_LEN = 8  # of a digest: sources of one name are told apart by it
PREFIX = "pool/"
_WISH = "wish"
# A driver that has not written its entry for so long is gone: it writes every 5 s, but a head may restart for a minute.
GONE_S = 90.0

# Shares of the time. A stream that waits longer has too few actors; one that waits less for NUM_CALM periods may have
# too many (to see that a part is there takes 0.2 ms, which counts as waiting).
WAITS, NEVER_WAITS, NUM_CALM = 0.05, 0.02, 3
# Shares of the actors' time. The stream waits for actors that read more; after a shrink the rest read LEFT_AT_WORK.
AT_WORK, LEFT_AT_WORK = 0.5, 0.75
GROWTH = 1.5
NUM_SETTLING = 2  # periods
# A growth must bring at least this share of the gain that the number of actors promised.
MIN_GAIN = 0.25
# A number that was too small is enough once the stream takes less than this share of its rate then.
MOST_OF_RATE = 0.8
# How long a growth that brought nothing is remembered.
MEMORY_S = 900.0


@dataclass(frozen=True)
class Wish:
    """num_actors: of the pool, None for the number that its program asks for. token: tells this wish from others."""

    num_actors: int | None
    by: Literal["person", "driver"]
    token: str
    reason: str = ""


@dataclass(frozen=True)
class Entry:
    """One driver of a pool.

    namespace, name: of the pool; the program gives the name, or it is made of the Ray job.
    identity: of the source; sources of one name have separate pools.
    user: the driver's id; actors know the driver by it.
    program: the number of actors in the program, in words.
    num_actors: wanted. hosts: number of running actors by host.
    wish: the token of the wish that the driver follows, "" for none.
    max_nbytes: bound on its blocks in flight.
    counts: its recoveries by kind.
    at: when the entry was written, in seconds since 1970.
    scales: whether its program gives a range.
    waited_s, read_s, num_used: since the driver began, seconds that its streams waited for actors, seconds that actors
        read for it, and elements that it took.
    """

    namespace: str
    name: str
    identity: str
    user: str
    job_id: str
    host: str
    pid: int
    program: str
    num_actors: int = 0
    hosts: Mapping[str, int] = field(default_factory=dict)
    wish: str = ""
    max_nbytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    at: float = 0.0
    scales: bool = False
    waited_s: float = 0.0
    read_s: float = 0.0
    num_used: int = 0

    @property
    def num_running(self) -> int:
        return sum(self.hosts.values())

    @property
    def pool(self) -> PoolId:
        return self.namespace, self.name, self.identity

    @property
    def key(self) -> str:
        return under(self.pool) + self.user


@dataclass(frozen=True)
class PoolSeen:
    """A pool as the head knows it: the entries of the drivers that read with it, and the last wish."""

    entries: tuple[Entry, ...] = ()
    wish: Wish | None = None

    @property
    def is_asked(self) -> bool:
        """Whether a person has set the number of actors."""
        return self.wish is not None and self.wish.by == "person" and self.wish.num_actors is not None

    @classmethod
    def of(
        cls,
        kept: Mapping[str, str],
        now: float,
        ended_jobs: Collection[str] = (),
    ) -> dict[PoolId, Self]:
        """Every pool that has drivers.

        kept: the head's keys under PREFIX and their values; a value that is no entry is skipped.
        ended_jobs: Ray jobs that have ended; their drivers are gone, however recent their entries.
        """
        entries: dict[PoolId, list[Entry]] = {}
        wishes: dict[PoolId, Wish] = {}
        for key, value in sorted(kept.items()):
            try:
                _, namespace, name, identity, user = key.split("/")
                pool = unquote(namespace), unquote(name), unquote(identity)
                if user == _WISH:
                    wishes[pool] = Wish(**json.loads(value))
                elif now - (entry := Entry(**json.loads(value))).at < GONE_S and entry.job_id not in ended_jobs:
                    entries.setdefault(pool, []).append(entry)
            except (ValueError, TypeError):
                continue
        return {pool: cls(tuple(found), wishes.get(pool)) for pool, found in sorted(entries.items())}


def under(pool: Sequence[str]) -> str:
    """The beginning of the head's keys of a pool, or of all pools of one (namespace, name)."""
    return PREFIX + "".join(quote(part, safe="") + "/" for part in pool)


def wish_key(pool: PoolId) -> str:
    return under(pool) + _WISH


def to_json(value: Wish | Entry) -> str:
    return json.dumps(asdict(value))


@dataclass(frozen=True)
class Decision:
    """How many actors to have from now on, perhaps as many as before, and why."""

    num_actors: int
    reason: str


class Scaler:
    """Decides, once in a period, how many actors in [least, most] a pool has, for all drivers that share it.

    The decision rests on the counts that every driver writes into its entry. Of the drivers whose program gives a
    range, the one with the first id decides; another takes over once it has gone. The actors are too few while one
    driver waits for them. Each driver counts the reading of shared blocks, so shared actors are ended late.

    period_s: between two decisions. A part takes a second, so 10 s have several parts of each actor. After a change of
    actors or drivers the first two periods are not judged: up to 16 parts in flight were asked for before the change.
    """

    def __init__(self, least: int, most: int, period_s: float = 10.0) -> None:
        self.least, self.most, self._period_s = least, most, period_s
        self._known: dict[str, Entry] = {}  # the last entry of each driver
        self._since: float | None = None  # when this period began, None while no actor runs
        self._num_actors = 0
        self._to_settle = 0  # periods
        self._waited_s = self._read_s = 0.0
        self._num_used = 0
        self._num_calm = 0
        self._before: tuple[int, float] | None = None  # actors and elements a second before the last growth
        self._too_few = (0, 0.0)  # the last number that was too small, and its elements a second
        self._too_many = (0, -math.inf)  # the last number that read no more than fewer, and when that was seen
        self._logged = ""

    def tick(self, now: float, entry: Entry, seen: PoolSeen) -> Decision | None:
        """Event: it is now (seconds, of any clock), and these drivers read. entry: of the driver that asks.

        Returns a decision where one is due and differs from the last. A period in which nobody reads is not judged: the
        stream has not begun, or the trainer does something else.
        """
        entries = {each.user: each for each in (*seen.entries, entry)}
        before, self._known = self._known, entries
        if entries.keys() != before.keys() or seen.is_asked:  # measured for other drivers, or under a person's number
            self._before, self._too_few = None, (0, 0.0)
            self._settle(now, entry.num_running)
            return None
        if entry.user != min(each.user for each in entries.values() if each.scales):
            return None
        pairs = [(before[user], each) for user, each in entries.items()]
        self._waited_s += max(each.waited_s - last.waited_s for last, each in pairs)
        self._read_s += sum(each.read_s - last.read_s for last, each in pairs)
        self._num_used += sum(each.num_used - last.num_used for last, each in pairs)
        num_running, num_wanted = entry.num_running, entry.num_actors
        if self._since is None or num_running != self._num_actors:
            self._settle(now, num_running)
            return None
        period_s = now - self._since
        if period_s < self._period_s:
            return None
        if self._to_settle or not (self._num_used or self._waited_s):
            self._begin(now, num_running)
            self._to_settle = max(0, self._to_settle - 1)
            return None
        waits = min(1.0, self._waited_s / period_s)
        at_work = min(1.0, self._read_s / (period_s * num_running))
        decision = self._decide(now, num_running, num_wanted, waits, at_work, self._num_used / period_s)
        self._begin(now, num_running)
        if decision.num_actors == num_wanted and decision.reason == self._logged:
            return None
        self._logged = decision.reason
        measured = f"the stream waits {waits:.0%} of the time, the actors read {at_work:.0%} of theirs"
        return Decision(decision.num_actors, f"{decision.reason} ({measured})") if decision.reason else None

    def _settle(self, now: float, num_running: int) -> None:
        self._begin(now if num_running else None, num_running)
        self._to_settle = NUM_SETTLING

    def _begin(self, now: float | None, num_actors: int) -> None:
        self._since, self._num_actors = now, num_actors
        self._waited_s, self._read_s, self._num_used = 0.0, 0.0, 0

    def _decide(self, now: float, num: int, wanted: int, waits: float, at_work: float, rate: float) -> Decision:
        """num: actors that run. wanted: actors that are meant to run. rate: elements a second."""
        before, self._before = self._before, None
        if not self.least <= wanted <= self.most:  # a person's number, which holds no more
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
            return Decision(num, "more actors would not help: the driver, the network or max_nbytes is slow")
        if num >= self.most:
            return Decision(num, f"the stream waits for its actors, and num_actors allows {self.most} at most")
        grown = min(self.most, math.ceil(num * GROWTH))
        most, seen = self._too_many
        if now - seen < MEMORY_S and grown >= most:
            return Decision(num, f"{most} actors read no more a while ago: what they share is slow")
        self._before = self._too_few = num, rate
        return Decision(grown, "the stream waits for its actors")

    def _shrunk(self, num: int, wanted: int, at_work: float, rate: float) -> Decision:
        """Fewer actors, once NUM_CALM periods in a row did with fewer."""
        needed = max(self.least, math.ceil(num * at_work / LEFT_AT_WORK))
        few, its_rate = self._too_few
        if needed <= few and rate > MOST_OF_RATE * its_rate:
            needed = few + 1  # the stream waited for `few` at this rate
        if self._num_calm < NUM_CALM or needed >= wanted:
            return Decision(wanted, "")
        self._num_calm = 0
        return Decision(needed, "the trainer is slower than its actors, so fewer are enough")


# The share of a new reading in the average: one 30 readings old counts 4 %. A reading may be ten times the usual.
_NEW = 0.1
# Shorter reads are added up: they depend on fixed costs more than on the actor.
MIN_READ_S = 0.02
# Readings before an actor is compared, and that must agree in a row before its weight changes.
NUM_AGREEING = 8
# A weight stays as long as it is within this factor of what was measured.
TOLERANCE = 1.5
# The median of a thousand actors takes 0.3 ms, a third of the cost of a request, so it is taken again after one reading
# for each 64 actors.
LOOK_AFTER = 64
# An actor with less would be measured no more; more would be too much where most other actors are slow for a while.
MIN_WEIGHT, MAX_WEIGHT = 1 / 16, 2.0


class LoadBalance:
    """Measures actors against the median of those that read now."""

    def __init__(self) -> None:
        self._short: dict[int, tuple[int, float]] = {}  # records and seconds that are no reading yet
        self._seconds: dict[int, float] = {}  # for a record, on average
        self._num_readings: dict[int, int] = {}
        self._off: dict[int, int] = {}  # readings in a row that ask for another weight
        # of every actor with another weight than 1.0; a new mapping at each change, as every block asks for it
        self.weights: Mapping[int, float] = {}
        self._median = 0.0  # seconds for a record, of actors with enough readings; 0 for fewer than two actors
        self._num_since = 0  # readings since the median was taken

    def read(self, actor: int, num_read: int, read_s: float, actors: Collection[int]) -> None:
        """Event: an actor read so many records in so many seconds. actors: all that read now."""
        records, seconds = self._short.pop(actor, (0, 0.0))
        records, seconds = records + num_read, seconds + read_s
        if seconds < MIN_READ_S or not records:
            self._short[actor] = records, seconds
            return
        seconds /= records
        self._seconds[actor] = seconds + (1 - _NEW) * (self._seconds.get(actor, seconds) - seconds)
        self._num_readings[actor] = self._num_readings.get(actor, 0) + 1
        self._num_since += 1
        if self._num_since > len(actors) // LOOK_AFTER:
            self._num_since, self._median = 0, self._median_of(actors)
        if not self._median or self._num_readings[actor] < NUM_AGREEING:
            return
        measured = self._measured(actor)
        weight = self.weights.get(actor, 1.0)
        is_off = not weight / TOLERANCE <= measured <= weight * TOLERANCE
        self._off[actor] = self._off.get(actor, 0) + 1 if is_off else 0
        if self._off[actor] >= NUM_AGREEING:
            self._set(actor, measured)

    def forget(self, actor: int) -> None:
        """Event: another process reads under this id, or none."""
        known: tuple[dict[int, Any], ...] = (self._short, self._seconds, self._num_readings, self._off)
        for of_actor in known:
            of_actor.pop(actor, None)
        self._weigh(actor, 1.0)

    def settle(self, actors: Collection[int]) -> None:
        """Give every actor its measured weight at once."""
        self._median = self._median_of(actors)
        for actor in actors:
            if self._median and self._num_readings.get(actor, 0) >= NUM_AGREEING:
                self._set(actor, self._measured(actor))

    def _median_of(self, actors: Collection[int]) -> float:
        known = [self._seconds[a] for a in actors if self._num_readings.get(a, 0) >= NUM_AGREEING]
        return statistics.median_low(known) if len(known) >= 2 else 0.0

    def _measured(self, actor: int) -> float:
        return min(MAX_WEIGHT, max(MIN_WEIGHT, self._median / self._seconds[actor]))

    def _set(self, actor: int, measured: float) -> None:
        self._off[actor] = 0
        self._weigh(actor, 1.0 if 1 / TOLERANCE <= measured <= TOLERANCE else round(measured, 4))

    def _weigh(self, actor: int, weight: float) -> None:
        if self.weights.get(actor, 1.0) != weight:
            others = {other: its for other, its in self.weights.items() if other != actor}
            self.weights = others if weight == 1.0 else {**others, actor: weight}
