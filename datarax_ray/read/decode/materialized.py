"""The decoder for what `materialize` wrote, where it is read as a dataset of its own."""

from dataclasses import dataclass
from typing import Any, final

from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.read.formats.materialized.encoding import parts_of, value_of


@final
@dataclass(frozen=True)
class DecodeMaterialized(NamedArguments):
    """Give the elements of a record that materialize wrote: none where a filter left it out, several of a flat_map.

    The stream is one of its own, over the written files, in any order: states of the live source fit a
    MaterializedSource, not this. `load(DIR)` puts it before the transforms by itself.

    Raises: ValueError for a record that failed when it was materialised, and for one that materialize did not write.
    """

    def flat_map(self, record: bytes) -> list[Any]:
        """The elements of a record."""
        parts = parts_of(record)
        for ordinal, *told in parts:
            if ordinal is None:
                raise ValueError(f"it failed when it was materialised: {': '.join(told)}")
        return [value_of(data) for _, data in parts]
