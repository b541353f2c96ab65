"""Operations on one element at a time, which share its index and its random numbers: Grain's transforms.

An element goes through all operations before the next element begins, so iterators, actors with chunks and drivers with
batches call the same functions in the same order. Results are owned before the next call (read.elements.owning), so an
operation may reuse its buffers.

Source: grain._src.python.data_loader (_apply_transform_to_dataset), grain._src.core.transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from datarax_ray.read.elements.owning import UnfitError, own, own_items
from datarax_ray.read.errors import is_of_data, message_of

Kind = Literal["map", "random_map", "map_with_index", "filter", "flat_map"]


@dataclass(frozen=True)
class Operation:
    """One transform.

    call: its method.
    name, number: for people; number is the index in the loader's list.
    fan_out: of a flat_map, the factor between the indices of inputs and outputs.
    """

    kind: Kind
    call: Callable[..., Any]
    name: str
    number: int
    fan_out: int = 1

    def __str__(self) -> str:
        return f"operation {self.number} ({self.name})"


@dataclass(slots=True)
class Item:
    """An element or batch on its way. index: the sampler's. rng: one generator for all operations, or None."""

    index: int
    rng: np.random.Generator | None
    data: Any


class OperationError(Exception):
    """An operation raised; its cause is what it raised."""

    def __init__(self, operation: Operation, error: BaseException) -> None:
        super().__init__(operation, error)
        self.error = error
        self.reason = f"{operation} raised {type(error).__name__}: {message_of(error)}"


def expand(operations: Sequence[Operation], item: Item) -> tuple[list[Item], OperationError | None]:
    """The items that the operations make of one item, and the error of the first operation that failed.

    >>> double = Operation("flat_map", lambda x: [x, x], "Double", 0, fan_out=2)
    >>> [(out.index, out.data) for out in expand([double], Item(3, None, "a"))[0]]
    [(6, 'a'), (7, 'a')]
    """
    outputs: list[Item] = []
    try:
        _apply(operations, item, outputs)
    except OperationError as error:
        return outputs, error
    return outputs, None


def _apply(operations: Sequence[Operation], item: Item, outputs: list[Item]) -> None:
    for number, operation in enumerate(operations):
        try:
            result = _call(operation, item)
        except BaseException as error:
            if not is_of_data(error):
                raise
            raise OperationError(operation, error) from error
        match operation.kind:
            case "filter":
                if not result:
                    return
            case "flat_map":
                first = item.index * operation.fan_out
                result.reverse()
                for offset in range(len(result)):
                    _apply(operations[number + 1 :], Item(first + offset, None, result.pop()), outputs)
                return
            case _:
                item.data = result
        del result
    held, item.data = [item.data], None
    try:  # noqa: SIM105 - suppress() costs as much as all else here
        own(held, 0)
    except UnfitError:
        pass  # as it is, then: Grain lets an element be anything
    item.data = held[0]
    outputs.append(item)


def _call(operation: Operation, item: Item) -> Any:
    match operation.kind:
        case "random_map":
            return operation.call(item.data, item.rng)
        case "map_with_index":
            return operation.call(item.index, item.data)
        case "filter":
            return bool(operation.call(item.data))
        case "flat_map":
            return own_items([operation.call(item.data)])
        case _:
            return operation.call(item.data)
