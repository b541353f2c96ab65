"""Second reads: a part that is in doubt, or late, is read by another actor too. Nothing here waits.

In doubt: a part that fails on one node is read on another before the failure is believed. A broken record is broken
everywhere. A missing mount, a missing module or a full disk concerns one host, and must neither end the stream nor make
on_error skip records.

    bad block -> asked for on another node: the whole part where it fails, the skipped positions where it does not
              -> believed where the other node agrees, or no other node can be asked
              -> else the better block is believed, and the node of the worse block is blamed

Late: an actor reads its parts in order. It reads the first part, and the others stand in line. Another actor is asked

    for a part in line          instead: an idle actor, or any actor where the first part takes long
    for a first part that       too: an idle actor. The first answer counts, and the second is dropped
    takes long

"Long" compares with the average time of requests. A request is a pure function, so the stream is the same in any case.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from datarax_ray.feed.window import Part
from datarax_ray.read.block import Block
from datarax_ray.read.errors import RecordError

# Nodes that are asked for one part: two nodes decide about a record; a third may have files that two lack.
MAX_NODES = 3


@dataclass(frozen=True)
class Believed:
    """The part and block to keep. blamed: the error by node, of nodes that failed where others did not."""

    part: Part
    block: Block
    blamed: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Case:
    """A part in doubt: the best block so far, with the part that it answers and its node.

    tried: the nodes that were asked.
    is_checking: whether only the positions that the block skips are asked for.
    is_refuted: whether another node has read some of these positions.
    """

    part: Part
    block: Block
    node: str
    tried: set[str]
    blamed: dict[str, str] = field(default_factory=dict)
    is_checking: bool = False
    is_refuted: bool = False


class Opinions:
    """The parts in flight that are in doubt."""

    def __init__(self) -> None:
        self._cases: dict[tuple[int, int], _Case] = {}

    def __contains__(self, part: object) -> bool:
        return isinstance(part, Part) and (part.chunk, part.index) in self._cases

    def heard(self, part: Part, block: Block, node: str, nodes: Mapping[int, str]) -> Believed | Part:
        """Event: a node's block for a part is here. Returns the block to believe, or the next part to ask for.

        nodes: the node of each actor that may be asked, the most promising first.
        """
        case = self._cases.pop((part.chunk, part.index), None)
        if case is None:
            if block.failure is None and not block.skipped:
                return Believed(part, block)
            return self._ask(_Case(part, block, node, {node}), nodes)
        if node in case.tried:  # the actor that was asked had gone, and the part came to this node again
            if not case.is_checking and block.failure is None and not block.skipped:
                return Believed(part, block, case.blamed)
            return self._ask(case, nodes)
        if case.is_checking:
            return self._checked(case, part, block, node, nodes)
        case.tried.add(node)
        if case.is_refuted or _badness(case.block) > _badness(block):
            case.blamed[case.node] = case.blamed.get(case.node) or _said(case.block)
            case.part, case.block, case.node, case.is_refuted = part, block, node, False
        elif _badness(block) > _badness(case.block):
            case.blamed[node] = _said(block)
        elif isinstance(block.failure, RecordError):  # both say the same
            return Believed(case.part, case.block, case.blamed)
        return self._ask(case, nodes)

    def lost(self, part: Part) -> None:
        """Event: the part was lost, so the case begins anew, with the whole part."""
        self._cases.pop((part.chunk, part.index), None)

    def _checked(self, case: _Case, part: Part, block: Block, node: str, nodes: Mapping[int, str]) -> Believed | Part:
        """Another node was asked for the positions that the block skips."""
        if block.failure is not None:  # this node can read nothing, so it has no say
            case.tried.add(node)
            case.blamed[node] = _said(block)
            return self._ask(case, nodes)
        broken = {skip.position for skip in block.skipped}
        refuted = [skip for skip in case.block.skipped if skip.position not in broken]
        if not refuted:
            return Believed(case.part, case.block, case.blamed)
        case.blamed[case.node] = refuted[0].reason
        case.is_checking, case.is_refuted = False, True
        self._cases[part.chunk, part.index] = case
        return replace(case.part, actor=part.actor)

    def _ask(self, case: _Case, nodes: Mapping[int, str]) -> Believed | Part:
        block = case.block
        request = case.part.request
        others = [actor for actor, node in nodes.items() if node not in case.tried]
        if block.failure is None:
            request = request.narrowed(tuple(skip.position for skip in block.skipped))
            if not block.skipped or request is None:
                others = []
        if not others or len(case.tried) >= MAX_NODES:
            return Believed(case.part, block, case.blamed)
        case.is_checking = block.failure is None
        self._cases[case.part.chunk, case.part.index] = case
        return replace(case.part, actor=others[0], request=request)


def _badness(block: Block) -> tuple[bool, int, bool, int]:
    """Larger for a block with fewer elements: whether and how early it fails, whether as a whole, how much it skips."""
    is_failing = block.failure is not None
    is_whole = is_failing and not isinstance(block.failure, RecordError)
    return is_failing, -block.failure_position, is_whole, len(block.skipped)


def _said(block: Block) -> str:
    if block.failure is not None:
        return f"{type(block.failure).__name__}: {block.failure}"
    return block.skipped[0].reason


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
    """The parts sent to each actor, with their times; decides which to ask of another actor. now: of any clock.

    left: parts that nobody waits for any more. in_doubt: parts that must not be asked of another actor.
    """

    def __init__(self, left: Container[Part], in_doubt: Container[Part]) -> None:
        self._left, self._in_doubt = left, in_doubt
        self._queues: dict[int, dict[Part, float]] = {}  # of each actor, when each unread part was sent
        self._free_at: dict[int, float] = {}  # when an actor was seen to have read something
        self._copied: set[tuple[int, int]] = set()
        self._num_readings = 0
        self._takes_s = 0.0  # for each position of a chunk, on average; 0 until something is read

    def sent(self, part: Part, now: float) -> None:
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
        return next(iter(self._queues.get(part.actor, ())), None) == part

    def over(self, part: Part) -> None:
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
            # an actor is expected to stay late for as long again as it was late
            sooner_s = (num_before - num_asked) * takes_s + late.get(part.actor, 0.0)
            if (num_asked and (part.actor not in late or not num_before)) or sooner_s < MIN_GAIN_S:
                continue
            asks.append(Ask(part, replace(part, actor=actor), is_begun=not num_before))
            if not num_before:
                self._copied.add((part.chunk, part.index))
            heapq.heapreplace(free, (num_asked + 1, actor))
        return asks

    def _late_s(self, actor: int, now: float) -> float:
        """The time that the actor has read its first part, if the time is long; else 0."""
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
                    continue  # a part that was lost before may end an actor
                if num_before or (actor in late and (part.chunk, part.index) not in self._copied):
                    yield part, num_before

    def _usual_s(self, part: Part) -> float:
        """The usual time of a request for as many positions."""
        return self._takes_s * (part.request.stop - part.request.start)

    def _since(self, actor: int, sent_at: float) -> float:
        """The earliest time at which the actor may have begun a part that was sent at sent_at."""
        return max(sent_at, self._free_at.get(actor, sent_at))
