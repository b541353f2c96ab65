"""The flow: the parts of a window's chunks, sent to a pool and received from it, a moment at a time."""

from __future__ import annotations

import contextlib
import logging
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from datarax_ray.feed.backups import Ask, Backups
from datarax_ray.feed.opinions import Opinions
from datarax_ray.feed.stall import Stall
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.window import Part, Window
from datarax_ray.plan.homes import may_read
from datarax_ray.read.block import Block, digested, timed
from datarax_ray.read.forked import lock_of
from datarax_ray.read.stream import Stream

logger = logging.getLogger("datarax_ray")

# Between two looks at all that is in flight, for each 64 actors begun: a look at these takes a millisecond.
LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Arrived:
    """A part's block is here. node: where it was read, "" where all is read in one place."""

    part: Part
    block: Block
    node: str = ""


@dataclass(frozen=True)
class Lost:
    """A part will not come from where it was asked; reason says why. was_read: whether its actor was at it."""

    part: Part
    reason: str
    was_read: bool = True


class Pool:
    """Who reads: actors that are sent parts and answer with blocks. All but `receive` is for those of several."""

    def actors(self) -> tuple[int, ...]:
        """Ids of those that read now. Waits a moment where there is none, and gives () where there still is none."""
        return (0,)

    def nodes(self) -> Mapping[int, str]:
        """The node of each actor that may be asked: all that run, the most promising first."""
        return {}

    def blame(self, node: str, reason: str) -> None:
        """This node failed at what another one could read."""

    def allowance(self) -> float:
        """What a window may use of its bound in bytes now: 1.0 for all, less where other drivers read with the actors
        too, more where there are more actors than when it began.
        """
        return 1.0

    def weights(self) -> Mapping[int, float]:
        """Of an even share, how much each actor should own; those that should own just that are left out."""
        return {}

    def send(self, part: Part) -> Any:
        """Ask part.actor for the part. Does not wait; returns what to receive it by."""

    def receive(self, sent: Mapping[Part, Any]) -> Arrived | Lost | None:
        """Wait a moment until one of these parts is here or lost; None where none is. sent: what `send` returned."""
        raise NotImplementedError

    def lost(self, sent: Mapping[Part, Any]) -> Sequence[Lost]:
        """The parts that are known to be lost by now. Does not wait."""
        return ()

    def ended(self, sent: Mapping[Part, Any]) -> Sequence[Part]:
        """The parts that are known to be read by now, each told once. Does not wait."""
        return ()

    def used(self, block: Block) -> None:
        """The stream takes this block, and no other for the same part."""

    def discard(self, sent: Mapping[Part, Any]) -> None:
        """Forget these parts, sent and not received."""

    def stalled(self, said: str) -> None:
        """The stream has waited long for these: tell."""
        logger.warning(said)


@contextlib.contextmanager
def reading(description: Stream) -> Iterator[None]:
    """What to hold while this value reads in this process: its transforms may write to arrays that they hold, and who
    reads it beside a stream (another stream, or who asks for single elements), or another one with one of its
    transforms (one list of them for training and evaluation), does so in another thread.
    """
    found = {id(part): part for part in _parts(description)}
    with contextlib.ExitStack() as stack:
        for key in sorted(found):  # in one order for all, or two would wait for each other
            stack.enter_context(lock_of(found[key]))
        yield


def _parts(description: Any) -> Iterator[Any]:
    """The objects that read a stream, and those of a user's that make its elements; of a mixture, of all components."""
    for each in getattr(description, "components", ()):
        yield from _parts(each)
    yield getattr(description, "reader", description)
    for transform in getattr(description, "transforms", ()):  # a method is another object each time that it is named
        yield transform.__self__ if isinstance(transform, types.MethodType) else transform


class LocalPool(Pool):
    """Reads in this process, and only when a part is waited for."""

    def __init__(self, description: Stream) -> None:
        self._description = description
        self._is_elsewhere = getattr(description, "homes", None) is not None
        self._reads_ahead = getattr(description, "reads_ahead", False)
        self._expected: list[Any] = []  # requests

    def actors(self) -> tuple[int, ...]:
        if self._is_elsewhere:
            raise ValueError(
                "the files lie on some nodes alone (files_on_nodes), and only actors there can read them: give the "
                "source to a RaySource, RaySource(source, num_actors=...)"
            )
        return super().actors()

    def send(self, part: Part) -> None:
        if self._reads_ahead:
            self._expected.append(part.request)

    def receive(self, sent: Mapping[Part, Any]) -> Arrived:
        part = next(iter(sent))
        expected, self._expected = self._expected, []
        for request in expected:
            self._description.expect(request)  # type: ignore[attr-defined]  # see Stream
        with reading(self._description):
            return Arrived(part, timed(self.read, part.request))

    def read(self, request: Any) -> Block:
        return digested(self._description.read, request)


@dataclass
class _Place:
    """A part of a chunk that has not come. asked: as the window has asked for it. parts: as it was sent, to one actor
    or to a second one too (see feed.backups).
    """

    asked: Part
    parts: list[Part] = field(default_factory=list)


class Flow:
    """One window over a pool, turned by hand: `poll`, then take what is ready, or `receive` where nothing is.

    timings: what it counts for. clock: what time it is, in seconds.
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
        self._homes = window.scheduler.limits.homes
        self._is_owned = False  # whether there is somebody to ask, whatever it is
        self._places: defaultdict[int, dict[int, _Place]] = defaultdict(dict)  # of each chunk, by the index of the part
        self._sent: defaultdict[int, dict[Part, Any]] = defaultdict(dict)  # of each chunk, with what to receive it by
        self._read: defaultdict[int, list[Part]] = defaultdict(list)  # of each chunk, those that were seen to be read
        self._backups = Backups()
        self._left: dict[Part, Any] = {}  # what actors may be at for nobody
        self._arrived: list[tuple[Part, Block]] = []  # of the first chunk: only its parts are received
        self._opinions = Opinions()
        self._look_at = 0.0

    def readers(self) -> tuple[tuple[int, ...], Mapping[int, float]]:
        """Who runs, and how much each reads; waits a moment where nobody does."""
        with self._timings.making.lap("waiting"):
            return self._pool.actors(), self._pool.weights()

    def poll(self, actors: tuple[int, ...], weights: Mapping[int, float]) -> bool:
        """Ask these actors for what may be asked for. Does not wait.

        Returns whether something is lost, so that it is to be seen who can be asked now.
        """
        nodes = self._pool.nodes() if self._homes else None
        if actors and (actors, weights, nodes) != self._asked_of:
            self._asked_of = actors, weights, nodes
            self._is_owned = self.window.reassign(actors, weights, nodes)
            for part, again in self.window.displaced() if self._is_owned else ():
                if self._backups.is_in_line(part):
                    self._ask_another(Ask(part, again, is_begun=False))
        self.window.allowed = self._pool.allowance()
        if actors and self._is_owned:  # or parts would be asked of those who cannot answer
            for part in self.window.asks():
                self._send(part)
        now = self._clock()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S * (1 + len(actors) // 64)
        self._timings.filled(self.window.fill)
        sent = self._all_sent()
        ended = self._pool.ended(sent)
        for part in ended:
            self._backups.read(part, now)
            if part in self._left:
                self._hear_out(part)
            elif part in self._sent[part.chunk]:
                self._read[part.chunk].append(part)
                self._drop_others(part)  # of two that are read at once, one is dropped
        if self._lose_others(self._all_sent() if ended else sent):
            return True
        if self.window.scheduler.limits.is_anywhere:
            for ask in self._backups.asks(actors, now):
                self._ask_another(ask)
        return False

    def receive(self, other: Flow | None = None) -> None:
        """Wait a moment for a part of the first chunk; or of the other's first chunk, which has another number."""
        others = {} if other is None else other._going()
        going = self._seen_first() or (other and other._seen_first())
        if not going:
            going = self._going() | others if others else self._going()
        with self._timings.making.lap("waiting"):
            event = self._pool.receive(going) if going else None
        if event is None:
            if message := self._stall.waited(self._clock(), self.window.head):
                self._pool.stalled(message)
            return
        flow = self if other is None or event.part not in others else other
        if isinstance(event, Lost):
            flow._lose(event)
            flow._lose_others(flow._all_sent())
        else:
            flow._arrive(event)

    def first(self) -> tuple[int, int, list[Part], list[Block]]:
        """(start, stop, parts, blocks) of the first chunk, which is ready. The blocks are no longer held here."""
        arrived, self._arrived = sorted(self._arrived, key=lambda each: each[0].index), []
        return *self.window.head_range, [part for part, _ in arrived], [block for _, block in arrived]

    def release(self) -> None:
        """The first chunk is done with."""
        for of_chunks in (self._places, self._sent, self._read):
            of_chunks.pop(self.window.head_number, None)
        self.window.release()

    def close(self) -> None:
        """Forget what is in flight."""
        self._pool.discard(self._all_sent())

    def _send(self, part: Part) -> None:
        place = self._places[part.chunk].setdefault(part.index, _Place(part))
        # an actor that is at the very same for nobody is at it for somebody again
        self._sent[part.chunk][part] = self._left.pop(part, None) or self._pool.send(part)
        place.parts.append(part)
        # a part in doubt is for the node that was named, and no other
        self._backups.sent(part, self._clock(), is_fixed=part in self._opinions)

    def _ask_another(self, ask: Ask) -> None:
        part, copy, place = ask.part, ask.copy, self._places[ask.part.chunk][ask.part.index]
        if not ask.is_begun:
            self._pool.discard({part: self._take(part)})
            self._backups.dropped(part)
            if place.asked == part:
                self.window.moved(part, copy)
                place.asked = copy
        self._send(copy)

    def _all_sent(self) -> dict[Part, Any]:
        found: dict[Part, Any] = {}
        for sent in (*self._sent.values(), self._left):
            found.update(sent)  # which takes their hashes as they are: of thousands of parts in flight, half of a look
        return found

    def _going(self) -> dict[Part, Any]:
        """The parts of the first chunk that are on their way. There may be thousands: nothing is made of them here."""
        return self._sent[self.window.head_number] if self.window.num_open else {}

    def _seen_first(self) -> dict[Part, Any]:
        """One of these that was seen to be read, if there is one: the others need not be asked of."""
        going = self._going()
        seen = self._read[self.window.head_number] if going else []
        while seen:
            if (part := seen.pop()) in going:
                return {part: going[part]}
        return {}

    def _take(self, part: Part) -> Any:
        """What to receive it by, which is on its way no more."""
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
            return  # another one is at it
        asked = self._settle(part)
        whole = self._opinions.lost(part)
        self.window.lost(asked, was_read=loss.was_read, whole=whole)

    def _lose_others(self, sent: Mapping[Part, Any]) -> bool:
        """Whether something is known to be lost: all that an actor had at once, as it is asked for again in order."""
        losses = self._pool.lost(sent)
        for loss in losses:
            self._lose(loss)
        return bool(losses)

    def _settle(self, part: Part) -> Part:
        """The part as the window has asked for it, which is over. Whoever is asked for it is so no more."""
        self._drop_others(part)
        self._backups.over(part)
        return self._places[part.chunk].pop(part.index).asked

    def _hear_out(self, part: Part) -> None:
        """What was read for nobody says how fast its actor is."""
        sent = {part: self._left.pop(part)}
        with contextlib.suppress(Exception):  # nobody waits for it, and what another one read is here
            self._pool.receive(sent)
        self._pool.discard(sent)

    def _drop_others(self, part: Part) -> None:
        """Whoever is asked for it, but this one, is so no more."""
        for each in [each for each in self._places[part.chunk][part.index].parts if each != part]:
            handle = self._take(each)
            if self._backups.dropped(each):
                self._left[each] = handle  # it cannot be ended, and until it is read its actor has no time
            else:
                self._pool.discard({each: handle})

    def _arrive(self, event: Arrived) -> None:
        self._take(event.part)
        self._backups.read(event.part, self._clock())
        sharing = event.part.request.wanted.sharing
        self._timings.arrived(event.part.actor, event.block, 1 if sharing is None else sharing.num_trainers)
        asked = self._settle(event.part)
        self._stall.over()
        found = self._opinions.heard(event.part, event.block, event.node, self._others(event.part))
        if isinstance(found, Part):
            self.window.doubted(asked, found)
            return
        for node, said in found.blamed.items():
            self._pool.blame(node, said)
        part, block = found.part, found.block
        self._pool.used(block)
        self.window.arrived(asked, block.whole_nbytes or block.nbytes, block.read_s)
        self.window.scheduler.arrived(part.request, block.learned)
        self._arrived.append((part, block))
        if part.is_trial and block.failure is not None:
            self._end_behind(part.chunk, block)

    def _others(self, part: Part) -> Mapping[int, str]:
        """Where those are who may be asked for the part."""
        nodes = self._pool.nodes()
        if not self._homes:
            return nodes
        return {actor: node for actor, node in nodes.items() if may_read(part.request, self._homes, node)}

    def _end_behind(self, chunk: int, failed: Block) -> None:
        """Ask for nothing of the chunk that is behind what ends its process: of a shard, which is read forwards, all
        that is behind it would end others as well.
        """
        for part in self.window.failed(chunk, failed.failure_position):
            if part.index in self._places[chunk]:  # or it waits to be asked again
                for each in list(self._places[chunk][part.index].parts):
                    self._backups.lost(each)
                    self._pool.discard({each: self._take(each)})
                del self._places[chunk][part.index]
                self._backups.over(part)
            self._opinions.lost(part)
            self._arrived.append((part, replace(failed, positions=failed.positions[:0], columns=None, skipped=())))
