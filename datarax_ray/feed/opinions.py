"""Second opinions: a part that fails on one node is read on another before the failure is believed. Nothing waits here.

A broken record is broken everywhere. A missing mount, a missing module or a full disk concerns one host, and must
neither end the stream nor make on_error skip records.

    bad block -> asked for on another node: the whole part where it fails, the skipped positions where it does not
              -> believed where the other node agrees, or no other node can be asked
              -> else the better block is believed, and the node of the worse block is blamed
"""

from __future__ import annotations

from collections.abc import Mapping
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
        """Event: a node's block for a part is here. Returns what to believe, or the part to ask for instead.

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
    """Larger for a block that gives less: whether it fails, how early, whether as a whole (a node that reads up to a
    broken record has read more), and how many records it skips.
    """
    is_failing = block.failure is not None
    is_whole = is_failing and not isinstance(block.failure, RecordError)
    return is_failing, -block.failure_position, is_whole, len(block.skipped)


def _said(block: Block) -> str:
    if block.failure is not None:
        return f"{type(block.failure).__name__}: {block.failure}"
    return block.skipped[0].reason
