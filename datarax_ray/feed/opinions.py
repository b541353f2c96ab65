"""Second opinions: what fails on one node is read on another before it is believed. Nothing here waits.

A record that is broken is so everywhere. A mount that is missing, a module that is not installed, a full disk are so on
one host, and must be neither the end of the stream nor records that on_error leaves out.

    bad block -> asked for elsewhere: the whole of it where it fails, what it leaves out where it does not
              -> believed where another node says the same, or nobody else can be asked
              -> else the better block is, and the node of the other one is told of
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from datarax_ray.feed.window import Part
from datarax_ray.read.block import Block
from datarax_ray.read.errors import RecordError

# One part is asked of so many: two say what a record is; where all of a request fails, a third may have what two lack.
MAX_NODES = 3


@dataclass(frozen=True)
class Believed:
    """The part and its block are to be kept. blamed: nodes that failed where others did not, each with what it said."""

    part: Part
    block: Block
    blamed: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Case:
    """A part in doubt: the best block of it so far, with the part that it answers and the node that it is from.

    tried: the nodes that were asked.
    is_checking: whether what the block leaves out is being asked for, not the whole.
    is_refuted: whether another node has read some of that.
    """

    part: Part
    block: Block
    node: str
    tried: set[str]
    blamed: dict[str, str] = field(default_factory=dict)
    is_checking: bool = False
    is_refuted: bool = False


class Opinions:
    """What nodes say of the parts in flight that are in doubt."""

    def __init__(self) -> None:
        self._cases: dict[tuple[int, int], _Case] = {}

    def __contains__(self, part: Part) -> bool:
        """Whether it is in doubt."""
        return (part.chunk, part.index) in self._cases

    def heard(self, part: Part, block: Block, node: str, nodes: Mapping[int, str]) -> Believed | Part:
        """Event: this node's block for a part is here. What to believe, or what to ask for in place of the part.

        nodes: of each actor that may be asked, where it is; the first ones rather than the last.
        """
        case = self._cases.pop((part.chunk, part.index), None)
        if case is None:
            if block.failure is None and not block.skipped:
                return Believed(part, block)
            return self._ask(_Case(part, block, node, {node}), nodes)
        if node in case.tried:  # whoever was asked had gone, and it came to this one again
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

    def lost(self, part: Part) -> Part | None:
        """Event: the part was lost. Who is asked for it begins anew: what for, where that is not this part itself."""
        case = self._cases.pop((part.chunk, part.index), None)
        return None if case is None else replace(part, request=case.part.request)

    def _checked(self, case: _Case, part: Part, block: Block, node: str, nodes: Mapping[int, str]) -> Believed | Part:
        """Another node was asked for what the block leaves out."""
        if block.failure is not None:  # it can read none of it, so it cannot say
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
        """The next to be asked, and what for; or the end of it."""
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
    """The larger, the less a block gives: whether it fails, how early, whether as a whole (a node that reads up to a
    broken record has read more), and how much it leaves out.
    """
    is_failing = block.failure is not None
    is_whole = is_failing and not isinstance(block.failure, RecordError)
    return is_failing, -block.failure_position, is_whole, len(block.skipped)


def _said(block: Block) -> str:
    if block.failure is not None:
        return f"{type(block.failure).__name__}: {block.failure}"
    return block.skipped[0].reason
