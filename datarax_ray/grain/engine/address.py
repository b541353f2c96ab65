"""Where a loader's stream goes on, as its outputs are counted and as it is saved.

Legend: an address is (position, offset, offset, ...). The first offset counts the outputs of that position which were
given; each other one those of one batch, for every group of operations on batches that has a flat_map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias, cast

from datarax_ray.plan.amendments import Amendments
from datarax_ray.plan.fingerprint import shown
from datarax_ray.plan.position import ONE_TO_ONE, Yields, is_count
from datarax_ray.plan.state import StreamState, refuse_rest

Address: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Offsets:
    """Those of an address, in a StreamState; not all of them 0."""

    offsets: tuple[int, ...]

    def plain(self) -> dict[str, Any]:
        return {"offsets": list(self.offsets)}

    def at(self, position: int) -> None:
        """None: nothing is given yet of what another position gives."""

    @property
    def whole(self) -> None:
        """None: it is of one position."""


@dataclass(frozen=True)
class Addresses:
    """The addresses of one loader as states, and what a saved one is checked by. num_offsets: in each address."""

    num_offsets: int

    may_differ: ClassVar[tuple[str, ...]] = ()
    yields: ClassVar[Yields] = ONE_TO_ONE  # the first of the offsets counts what a position gives

    @property
    def order(self) -> Self:
        return self

    def state(self, address: Address) -> StreamState:
        """The state at an address."""
        offsets = address[1:]
        return StreamState(address[0], 0, "elements", Offsets(offsets) if any(offsets) else None)

    def address(self, state: StreamState) -> Address:
        """The address at a state."""
        if state.extra is None:
            return (state.position, *[0] * self.num_offsets)
        return (state.position, *cast(Offsets, state.extra).offsets)

    def check(self, amendments: Amendments) -> None:
        """Raise ValueError for any: a loader's outputs are Grain's."""
        if amendments:
            raise ValueError(f"a loader takes no amendments, and the state has {'; '.join(map(str, amendments))}")

    def extra_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> Offsets | None:
        """The offsets in a saved state. Raises: ValueError for others than this loader's."""
        refuse_rest({key: value for key, value in rest.items() if key != "offsets"})
        offsets = rest.get("offsets", [0] * self.num_offsets)
        if not isinstance(offsets, list) or not all(map(is_count, offsets)):
            raise ValueError(f"the state's offsets must be integers of at least 0, got {shown(offsets)}")
        if len(offsets) != self.num_offsets:
            raise ValueError(
                f"the state has {len(offsets)} offsets in its position, these operations have {self.num_offsets}, so "
                "other FlatMaps; restore the old operations, or start a new run."
            )
        return Offsets(tuple(offsets)) if any(offsets) else None
