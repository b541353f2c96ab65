"""Elements of any kind on their way to the driver, as the operations made them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import nbytes_of


class ObjectList:
    """A list of any Python objects. It pickles in one piece, so small arrays share a buffer and stay writable."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _unbox, (pickle.dumps(self.values, pickle.HIGHEST_PROTOCOL),)
        except Exception:  # a class of __main__, say: the pickler around this one may know how (cloudpickle does)
            return ObjectList, (self.values,)


def _unbox(data: bytes) -> ObjectList:
    return ObjectList(pickle.loads(data))


@dataclass(frozen=True)
class Elements:
    """The elements of a block. indices, rngs: of each element, where operations on batches need them."""

    values: ObjectList
    indices: Indices | None = None
    rngs: ObjectList | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(map(nbytes_of, self.values.values)))
