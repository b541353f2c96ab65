"""The flow: sends the parts of a window's chunks to a pool of actors and receives their blocks, a moment at a time."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from datarax_ray.feed.second_reads import Backups, Opinions
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.window import Part, Window
from datarax_ray.read.block import Block
from datarax_ray.read.stream import Stream

logger = logging.getLogger("datarax_ray")

# Between two looks at all parts in flight, for each 64 actors begun: a look at 64 actors takes a millisecond.
LOOK_EVERY_S = 0.02
# Each report of a stall comes after so many times the wait of the last one: 12 reports a day, not 3,000.
BACKOFF = 2.0
_MAX_NAMED = 4  # actors and what they are asked for: a line is for people


@dataclass(frozen=True)
class Arrived:
    """The block of a part is here. node: where it was read, "" where all blocks are read in one place."""

    part: Part
    block: Block
    node: str = ""


@dataclass(frozen=True)
class Lost:
    """The asked actor will not answer for a part. was_read: whether the actor was reading the part."""

    part: Part
    reason: str
    was_read: bool = True


class Pool:
    """Actors that are sent parts and answer with blocks."""

    def actors(self) -> tuple[int, ...]:
        """Ids of the actors that read now. Waits a moment where there is none; () where there still is none."""
        raise NotImplementedError

    def nodes(self) -> Mapping[int, str]:
        """The nodes of running actors, the most promising first."""
        return {}

    def blame(self, node: str, reason: str) -> None:
        """This node failed at a part that another node could read."""

    def allowance(self) -> float:
        """The share of its bound in bytes that a window may use now; over 1.0 where actors were added."""
        return 1.0

    def weights(self) -> Mapping[int, float]:
        """The share that each actor should own, 1.0 for an even share; shares of 1.0 are omitted."""
        return {}

    def send(self, part: Part) -> Any:
        """Ask part.actor for the part. Does not wait; returns a handle for `receive`."""

    def receive(self, sent: Mapping[Part, Any]) -> Arrived | Lost | None:
        """Wait a moment until one of these parts is here or lost; None where none is. sent: the handle of each part."""
        raise NotImplementedError

    def lost(self, sent: Mapping[Part, Any]) -> Sequence[Lost]:
        """The parts that are known to be lost. Does not wait."""
        return ()

    def ended(self, sent: Mapping[Part, Any]) -> Sequence[Part]:
        """The parts that are known to be read, each reported once. Does not wait."""
        return ()

    def used(self, block: Block) -> None:
        """The stream takes this block, and no other block for the same part."""

    def discard(self, sent: Mapping[Part, Any]) -> None:
        """Forget these parts, sent and not received."""

    def stalled(self, message: str) -> None:
        logger.warning(message)


class Stall:
    """Decides when a wait is worth a log line, and what the line says.

    after_s: the wait before the first line. The next line comes when the wait has lasted twice as long, and so on.
    """

    def __init__(self, description: Stream, after_s: float) -> None:
        self._description = description
        self._after_s = after_s
        self.over()

    def over(self) -> None:
        """Event: something came."""
        self._began: float | None = None
        self._due_s = self._after_s

    def waited(self, now: float, parts: Iterable[Part]) -> str | None:
        """Event: at this time, in seconds of any clock, these parts are still waited for. Returns the log line."""
        if self._began is None:
            self._began = now
        if (waited_s := now - self._began) < self._due_s:
            return None
        self._due_s = waited_s * BACKOFF
        named: defaultdict[str, dict[str, None]] = defaultdict(dict)  # an actor may read several parts of a chunk
        for part in parts:
            asked = f"actor {part.actor}: positions [{part.request.start}, {part.request.stop})"
            named[asked] |= dict.fromkeys(self._description.names(part.request))
        lines = [f"{asked} of {', '.join(files)}" if files else asked for asked, files in named.items()]
        more = f" and {len(lines) - _MAX_NAMED} more" if len(lines) > _MAX_NAMED else ""
        return (
            f"the stream has waited {waited_s:.0f} s for {'; '.join(lines[:_MAX_NAMED]) or 'an actor that runs'}{more}"
        )


@dataclass
class _Place:
    """A part that has not come. asked: the window's part. parts: the sent parts, perhaps to another or two actors."""

    asked: Part
    parts: list[Part] = field(default_factory=list)


class Flow:
    """One window over a pool, turned by hand: `poll`, then take the `first` chunk where it is ready, else `receive`.

    timings: counts losses, waits and blocks. clock: gives the time, in seconds.
    """

    def __init__(
        self,
        window: Window,
        pool: Pool,
        stall: Stall,
        timings: Timings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.window = window
        self._timings = timings or Timings()
        self._pool = pool
        self._stall = stall
        self._clock = clock
        self._asked_of: Any = None
        self._places: defaultdict[int, dict[int, _Place]] = defaultdict(dict)  # of each chunk, by the index of the part
        self._sent: defaultdict[int, dict[Part, Any]] = defaultdict(dict)  # of each chunk, with the handle
        self._read: defaultdict[int, list[Part]] = defaultdict(list)  # of each chunk, the parts known to be read
        self._left: dict[Part, Any] = {}  # parts that actors may be reading for nobody
        self._arrived: list[tuple[Part, Block]] = []  # of the first chunk: only its parts are received
        self._opinions = Opinions()
        self._backups = Backups(self._left, self._opinions)  # a part in doubt is for the node that was named
        self._look_at = 0.0

    def readers(self) -> tuple[tuple[int, ...], Mapping[int, float]]:
        """The actors that run, and their weights. Waits a moment where no actor runs."""
        with self._timings.making.lap("waiting"):
            return self._pool.actors(), self._pool.weights()

    def poll(self, actors: tuple[int, ...], weights: Mapping[int, float]) -> bool:
        """Send the parts that the window asks for; do not wait. Returns whether one was lost: then look who runs."""
        if actors and (actors, weights) != self._asked_of:
            self._asked_of = actors, weights
            self.window.reassign(actors, weights)
        self.window.allowed = self._pool.allowance()
        if actors:  # or parts would be sent to actors that cannot answer
            for part in self.window.asks():
                self._send(part)
        now = self._clock()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S * (1 + len(actors) // 64)
        self._timings.looked(self.window.fill, actors)
        sent = self._all_sent()
        ended = self._pool.ended(sent)
        for part in ended:
            self._backups.read(part, now)
            if part in self._left:
                self._receive_unused(part)
            elif part in self._sent[part.chunk]:
                self._read[part.chunk].append(part)
                self._drop_others(part)  # of two that are read at once, one is dropped
        if self._lose_known(self._all_sent() if ended else sent):
            return True
        if self.window.scheduler.limits.is_anywhere:
            for ask in self._backups.asks(actors, now):
                if not ask.is_begun:
                    self._drop(ask.part)
                self._send(ask.copy)
        return False

    def receive(self, other: Flow | None = None) -> None:
        """Wait a moment for a part of the first chunk, or of the first chunk of another flow."""
        others = {} if other is None else other._going()
        going = self._seen_first() or (other and other._seen_first())
        if not going:
            going = self._going() | others if others else self._going()
        with self._timings.making.lap("waiting"):
            event = self._pool.receive(going) if going else None
        if event is None:
            if message := self._stall.waited(self._clock(), self._going()):
                self._pool.stalled(message)
            return
        flow = self if other is None or event.part not in others else other
        if isinstance(event, Lost):
            flow._lose(event)
            flow._lose_known(flow._all_sent())
        else:
            flow._arrive(event)

    def first(self) -> tuple[int, int, list[Part], list[Block]]:
        """(start, stop, parts, blocks) of the first chunk, which is ready. The flow lets go of the blocks."""
        arrived, self._arrived = sorted(self._arrived, key=lambda each: each[0].index), []
        return *self.window.head_range, [part for part, _ in arrived], [block for _, block in arrived]

    def release(self) -> None:
        """The first chunk is done with."""
        for of_chunks in (self._places, self._sent, self._read):
            of_chunks.pop(self.window.head_number, None)
        self.window.release()

    def close(self) -> None:
        self._pool.discard(self._all_sent())

    def _send(self, part: Part) -> None:
        place = self._places[part.chunk].setdefault(part.index, _Place(part))
        # an actor may still read the same part, which nobody waited for until now
        self._sent[part.chunk][part] = self._left.pop(part, None) or self._pool.send(part)
        place.parts.append(part)
        self._backups.sent(part, self._clock())

    def _all_sent(self) -> dict[Part, Any]:
        found: dict[Part, Any] = {}
        for sent in (*self._sent.values(), self._left):
            found.update(sent)  # takes the hashes as they are: with thousands of parts, half the cost of a look
        return found

    def _going(self) -> dict[Part, Any]:
        """The parts of the first chunk that are on their way: maybe thousands, so nothing is made of them here."""
        return self._sent[self.window.head_number] if self.window.num_open else {}

    def _seen_first(self) -> dict[Part, Any]:
        """A part of the first chunk known to be read, if any: then the pool need not look at the others."""
        going = self._going()
        seen = self._read[self.window.head_number] if going else []
        while seen:
            if (part := seen.pop()) in going:
                return {part: going[part]}
        return {}

    def _take(self, part: Part) -> Any:
        self._places[part.chunk][part.index].parts.remove(part)
        return self._sent[part.chunk].pop(part)

    def _lose(self, loss: Lost) -> None:
        part = loss.part
        self._timings.lost(part.actor)
        if part in self._left:
            del self._left[part]
            self._backups.lost(part)
            return
        self._take(part)
        self._backups.lost(part)
        if self._places[part.chunk][part.index].parts:
            return  # another actor reads it
        self._opinions.lost(part)
        self.window.lost(self._settle(part), was_read=loss.was_read)

    def _lose_known(self, sent: Mapping[Part, Any]) -> bool:
        """Whether parts are known to be lost: all parts of an actor at once, since they are asked again in order."""
        losses = self._pool.lost(sent)
        for loss in losses:
            self._lose(loss)
        return bool(losses)

    def _settle(self, part: Part) -> Part:
        """End the part: no actor is asked for it any more. Returns the window's part."""
        self._drop_others(part)
        self._backups.over(part)
        return self._places[part.chunk].pop(part.index).asked

    def _receive_unused(self, part: Part) -> None:
        """Receive a part nobody waits for: the block shows the speed of its actor."""
        sent = {part: self._left.pop(part)}
        with contextlib.suppress(Exception):  # nobody waits for it, and another actor's block is here
            self._pool.receive(sent)
        self._pool.discard(sent)

    def _drop_others(self, part: Part) -> None:
        for each in [each for each in self._places[part.chunk][part.index].parts if each != part]:
            if self._backups.is_begun(each):
                self._left[each] = self._take(each)  # it cannot be ended, and its actor is busy until it is read
            else:
                self._drop(each)

    def _drop(self, part: Part) -> None:
        self._backups.lost(part)
        self._pool.discard({part: self._take(part)})

    def _arrive(self, event: Arrived) -> None:
        self._take(event.part)
        self._backups.read(event.part, self._clock())
        sharing = event.part.request.wanted.sharing
        self._timings.arrived(event.part.actor, event.block, 1 if sharing is None else sharing.num_trainers)
        asked = self._settle(event.part)
        self._stall.over()
        found = self._opinions.heard(event.part, event.block, event.node, self._pool.nodes())
        if isinstance(found, Part):  # another node decides
            self._places[found.chunk][found.index] = _Place(asked)
            self._send(found)
            return
        for node, reason in found.blamed.items():
            self._pool.blame(node, reason)
        part, block = found.part, found.block
        self._pool.used(block)
        self.window.arrived(asked, block.memory_nbytes, block.read_s)
        self.window.scheduler.arrived(part.request, block.learned)
        self._arrived.append((part, block))
        if part.is_trial and block.failure is not None:
            self._end_behind(part.chunk, block)

    def _end_behind(self, chunk: int, failed: Block) -> None:
        """Drop the parts behind an element that ends its process: read forwards, they would end other processes."""
        for part in self.window.failed(chunk, failed.failure_position):
            if part.index in self._places[chunk]:  # or it waits to be asked again
                for each in list(self._places[chunk][part.index].parts):
                    self._drop(each)
                del self._places[chunk][part.index]
                self._backups.over(part)
            self._opinions.lost(part)
            self._arrived.append((part, replace(failed, positions=failed.positions[:0], columns=None, skipped=())))
