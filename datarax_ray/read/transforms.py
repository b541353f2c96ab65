"""Transforms: what a user gives as one, and applying them to the elements of a block with every failure located.

A transform is a plain callable element -> element, or an object with exactly one of `map(element)`,
`random_map(element, rng)`, `map_with_index(position, element)`, `filter(element)` (Grain's transform classes fit as
they are), or `decode(records) -> columns`, which works on all records of a block at once.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from datarax_ray.read.errors import RecordError, Skipped

OnError = Literal["raise", "skip"]
_METHODS = ("map", "random_map", "map_with_index", "filter", "decode")


@dataclass(frozen=True)
class Step:
    """One transform, told apart. kind: the method it has; "map" for a plain callable. index: its place in the list."""

    kind: str
    call: Callable[..., Any]
    name: str
    index: int


def steps(transforms: Iterable[Any]) -> tuple[Step, ...]:
    """The transforms, each checked to be one.

    Raises: TypeError for what is no transform, or is several; ValueError for `decode` after another transform.
    """
    if callable(transforms) or isinstance(transforms, str | bytes):
        raise TypeError(f"transforms is a list of transforms, got {transforms!r}; write [{_name(transforms)}]")
    found = tuple(_step(transform, index) for index, transform in enumerate(transforms))
    for step in found[1:]:
        if step.kind == "decode":
            raise ValueError(
                f"transform {step.name} decodes records, so it must be the first; it is number {step.index}"
            )
    return found


def _step(transform: Any, index: int) -> Step:
    if inspect.isclass(transform):
        raise TypeError(f"transform {transform.__name__} is a class; pass an instance of it")
    if callable(getattr(transform, "flat_map", None)):
        raise TypeError(f"transform {_name(transform)} has flat_map, which is not supported yet")
    kinds = [method for method in _METHODS if callable(getattr(transform, method, None))]
    if len(kinds) > 1:
        raise TypeError(f"transform {_name(transform)} has {' and '.join(kinds)}; it must have exactly one of them")
    if kinds:
        return Step(kinds[0], getattr(transform, kinds[0]), _name(transform), index)
    if callable(transform):
        return Step("map", transform, _name(transform), index)
    raise TypeError(
        f"{transform!r} is no transform: it is neither callable nor has one of {', '.join(_METHODS)} as a method"
    )


def _name(transform: Any) -> str:
    return getattr(transform, "__qualname__", None) or type(transform).__qualname__


class Progress:
    """The elements of one block on their way through the transforms; keeps their positions and records beside them.

    Nothing here reads files: `locate` gives the name of a record for errors.
    """

    def __init__(
        self,
        elements: list[Any],
        positions: Sequence[int],
        records: Sequence[int],
        *,
        on_error: OnError,
        locate: Callable[[int], str],
    ) -> None:
        self.elements = elements
        self.positions = list(positions)
        self.records = list(records)
        self.skipped: list[Skipped] = []
        self._on_error = on_error
        self._locate = locate

    def apply(self, step: Step, seed: int) -> None:
        """Put every element through one step. Elements that it drops or that fail and are skipped leave the block."""
        call = _bind(step, seed)
        kept: list[int] = []
        out: list[Any] = []
        start = 0
        while start < len(self.elements):
            try:
                for start in range(start, len(self.elements)):  # noqa: B020  where it stopped is the culprit
                    result = call(self.elements[start], self.positions[start])
                    if step.kind != "filter":
                        out.append(result)
                        kept.append(start)
                    elif result:
                        out.append(self.elements[start])
                        kept.append(start)
            except Exception as error:
                self.fail(start, f"transform {step.name}", error)
            start += 1
        self._keep(out, kept)

    def fail(self, index: int, what: str, error: Exception) -> None:
        """Raise the failure of one element as a RecordError, or note it where errors are to be skipped."""
        where, position = self._locate(self.records[index]), self.positions[index]
        reason = f"{what} raised {type(error).__name__}: {error}"
        if self._on_error == "skip":
            self.skipped.append(Skipped(where, position, reason))
            return
        raised = RecordError(f"{where} (position {position}): {reason}")
        # The cause does not survive the way from an actor to the driver, so its traceback travels as a note.
        raised.add_note("".join(traceback.format_exception(error)).rstrip())
        raise raised from error

    def drop(self, indices: Iterable[int]) -> None:
        """Take elements out of the block by their index."""
        gone = set(indices)
        kept = [index for index in range(len(self.elements)) if index not in gone]
        self._keep([self.elements[index] for index in kept], kept)

    def _keep(self, elements: list[Any], kept: list[int]) -> None:
        self.elements = elements
        if len(kept) < len(self.positions):
            self.positions = [self.positions[index] for index in kept]
            self.records = [self.records[index] for index in kept]


def _bind(step: Step, seed: int) -> Callable[[Any, int], Any]:
    """The step as a function of (element, position)."""
    if step.kind == "random_map":
        rng_at = element_rng(seed, step.index)
        return lambda element, position: step.call(element, rng_at(position))
    if step.kind == "map_with_index":
        return lambda element, position: step.call(position, element)
    return lambda element, _: step.call(element)


def element_rng(seed: int, transform_index: int) -> Callable[[int], np.random.Generator]:
    """The random numbers of one transform: position -> a Generator that depends on nothing else.

    Philox with (seed, transform) as its key and the position in the high words of its counter, so no two positions,
    transforms or seeds share a stream. The same Generator is set anew for each position (half the cost of making one):
    a transform must not keep it.
    """
    bits = np.random.Philox(key=np.array([seed, transform_index], np.uint64))
    fresh = bits.state
    rng = np.random.Generator(bits)

    def rng_at(position: int) -> np.random.Generator:
        fresh["state"]["counter"] = np.array([0, 0, position, 0], np.uint64)
        bits.state = fresh
        return rng

    return rng_at
