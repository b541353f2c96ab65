"""Backups: parts that are late at one actor are asked of another. Nothing here waits.

An actor reads its parts in order: it is at the first one, and the others stand in line. Another actor is asked

    for a part in line          instead: an idle actor, or any actor where the first part takes long
    for the first part, if      too: an idle actor. The first answer counts, and the second is dropped
    that takes long

Long is measured by the average time of requests. A request is a pure function, so the stream is the same in any case.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from datarax_ray.feed.window import Part

# A request takes long at this multiple of the usual time (with noise of sigma 0.3 one in a hundred does), and at least
# this many seconds: a look at what is read may be 0.02 s old.
LATE, MIN_LATE_S = 2.0, 0.2
# Another actor must be this much sooner, or asking it (1 ms, and files that it may have to open) is not worth it.
MIN_GAIN_S = 0.1
# Parts of one actor that are looked at at a time: thousands of actors have 16 each.
MAX_SEEN = 4
# The average time of requests is over about this many readings.
NUM_READINGS = 64


@dataclass(frozen=True)
class Ask:
    """Ask another actor for a part. is_begun: whether its actor may be reading it, and goes on meanwhile."""

    part: Part
    copy: Part
    is_begun: bool


class Backups:
    """The parts that each actor was sent, since when, and which to ask of another actor. now: of any clock.

    left: the parts that are read for nobody. in_doubt: the parts that no other actor may be asked for.
    """

    def __init__(self, left: Container[Part], in_doubt: Container[Part]) -> None:
        self._left, self._in_doubt = left, in_doubt
        self._queues: dict[int, dict[Part, float]] = {}  # of each actor, when each unread part was sent
        self._free_at: dict[int, float] = {}  # when an actor was seen to have read something
        self._copied: set[tuple[int, int]] = set()
        self._num_readings = 0
        self._takes_s = 0.0  # for each position of a chunk, on average; 0 until something is read

    def sent(self, part: Part, now: float) -> None:
        """Event: an actor was sent the part."""
        self._queues.setdefault(part.actor, {})[part] = now

    def read(self, part: Part, now: float) -> None:
        """Event: the part was seen to be read, now or before."""
        sent_at = self._queues.get(part.actor, {}).get(part)
        if sent_at is None:
            return
        self._free_at[part.actor], since = now, self._since(part.actor, sent_at)
        self.lost(part)
        if part in self._in_doubt:  # a check is of a few of its positions
            return
        seconds = (now - since) / (part.request.stop - part.request.start)
        self._num_readings = min(NUM_READINGS, self._num_readings + 1)
        self._takes_s += (seconds - self._takes_s) / self._num_readings

    def lost(self, part: Part) -> None:
        """Event: the actor will not answer for the part."""
        self._queues.get(part.actor, {}).pop(part, None)

    def is_begun(self, part: Part) -> bool:
        """Whether its actor may be reading the part."""
        return next(iter(self._queues.get(part.actor, ())), None) == part

    def over(self, part: Part) -> None:
        """Event: the part is over."""
        self._copied.discard((part.chunk, part.index))

    def asks(self, actors: Sequence[int], now: float) -> list[Ask]:
        late = {actor: wait_s for actor in self._queues if (wait_s := self._late_s(actor, now))}
        free = [(len(self._queues.get(actor, ())), actor) for actor in actors if actor not in late]
        heapq.heapify(free)
        if not self._num_readings or not free or not (late or free[0][0] == 0):
            return []
        asks = []
        for part, num_before in sorted(self._waiting(late), key=lambda each: (each[0].chunk, each[0].index)):
            (num_asked, actor), takes_s = free[0], self._usual_s(part)
            # who is late for long will be so for long: for as long again, say
            sooner_s = (num_before - num_asked) * takes_s + late.get(part.actor, 0.0)
            if (num_asked and (part.actor not in late or not num_before)) or sooner_s < MIN_GAIN_S:
                continue
            asks.append(Ask(part, replace(part, actor=actor), is_begun=not num_before))
            if not num_before:
                self._copied.add((part.chunk, part.index))
            heapq.heapreplace(free, (num_asked + 1, actor))
        return asks

    def _late_s(self, actor: int, now: float) -> float:
        """How long the actor has been at its first part, where that is long; else 0."""
        part, sent_at = next(iter(self._queues[actor].items()), (None, 0.0))
        if part is None:
            return 0.0
        at_it_s = now - self._since(actor, sent_at)
        return at_it_s if at_it_s > max(MIN_LATE_S, LATE * self._usual_s(part)) else 0.0

    def _waiting(self, late: Mapping[int, float]) -> Iterator[tuple[Part, int]]:
        """(part, number of parts before it in line) of parts that another actor may read sooner."""
        for actor, queue in self._queues.items():
            for num_before, part in enumerate(itertools.islice(queue, MAX_SEEN)):
                if part.attempt or part in self._left or part in self._in_doubt:
                    continue  # what was lost before may be what ends an actor
                if num_before or (actor in late and (part.chunk, part.index) not in self._copied):
                    yield part, num_before

    def _usual_s(self, part: Part) -> float:
        """The usual time of a request for as many positions."""
        return self._takes_s * (part.request.stop - part.request.start)

    def _since(self, actor: int, sent_at: float) -> float:
        """Since when the actor may be reading a part that it was sent then."""
        return max(sent_at, self._free_at.get(actor, sent_at))
