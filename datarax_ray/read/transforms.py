"""Transforms: what a user gives as one, and applying them to the elements of a block with every failure located.

A transform is a plain callable element -> element, or an object with exactly one of `map(element)`,
`random_map(element, rng)`, `map_with_index(position, element)`, `filter(element)`, `flat_map(element) -> elements`
(Grain's transform classes fit as they are), or one of two that work on all of a block at once: `decode(records) ->
columns`, and `map_columns(columns) -> columns`, which gives a row for each row, in their order, and makes each of its
own row alone. After a flat_map several elements share a position; an ordinal, from 0 at each, tells them apart.
"""

from __future__ import annotations

import bisect
import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from datarax_ray.plan.position import ordinals
from datarax_ray.read.errors import RecordError, Skipped, StorageError

# The callable is asked, where the record is read, whether to leave it out.
OnError = Literal["raise", "skip"] | Callable[[RecordError], bool]
_METHODS = ("map", "random_map", "map_with_index", "filter", "flat_map", "decode", "map_columns")


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
    kinds = [method for method in _METHODS if callable(getattr(transform, method, None))]
    if len(kinds) > 1:
        raise TypeError(f"transform {_name(transform)} has {' and '.join(kinds)}; it must have exactly one of them")
    if kinds == ["flat_map"]:
        return Step("flat_map", functools.partial(_flat_map, transform), _name(transform), index)
    if kinds:
        return Step(kinds[0], getattr(transform, kinds[0]), _name(transform), index)
    if callable(transform):
        return Step("map", transform, _name(transform), index)
    raise TypeError(
        f"{transform!r} is no transform: it is neither callable nor has one of {', '.join(_METHODS)} as a method"
    )


def _flat_map(transform: Any, element: Any) -> list[Any]:
    found = transform.flat_map(element)
    if isinstance(found, Mapping | str | bytes):
        raise TypeError(f"flat_map returned a {type(found).__name__}; it returns an iterable of elements, a list say")
    results = list(found)
    limit = getattr(transform, "max_fan_out", None)
    if limit is not None and len(results) > limit:
        raise ValueError(f"flat_map returned {len(results)} elements, and its max_fan_out is {limit}; set it higher")
    return results


def _name(transform: Any) -> str:
    return getattr(transform, "__qualname__", None) or type(transform).__qualname__


class Progress:
    """The elements of one block on their way through the transforms; keeps their positions and records beside them.

    ordinals: the place of each among the results of its position, as the last flat_map gave them; 0 before any.

    A failure either leaves its element out (on_error "skip", or a callable that says so), or cuts the block before its
    position: then `failure` is to be raised when the stream comes to it, and everything before it is still good.
    Nothing here reads files: `locate` gives the name of a record for errors.
    """

    def __init__(
        self,
        elements: Iterable[Any],
        positions: Sequence[int] | np.ndarray,
        records: Sequence[int] | np.ndarray,
        *,
        on_error: OnError,
        locate: Callable[[int], str],
    ) -> None:
        self.elements = list(elements)
        self.positions: Any = positions
        self.records: Any = records
        self.ordinals: list[int] = []
        self.skipped: list[Skipped] = []
        self.failure: RecordError | None = None
        self._on_error = on_error
        self._locate = locate

    def apply(self, step: Step, seed: int) -> None:
        """Put every element through one step; what it filters out leaves the block, what it makes of one joins it."""
        self.run(_bind(step, seed), f"transform {step.name}", step.kind)

    def run(
        self,
        call: Callable[[Any, int, int], Any],
        what: str,
        kind: str = "map",
        *,
        catch: type[Exception] = Exception,
    ) -> None:
        """Replace each element by `call(element, position, ordinal)`; keep it by its truth where kind is "filter";
        put all of a list in its place where kind is "flat_map". what: the call, in errors.
        """
        self._list()
        kept: list[int] = []
        out: list[Any] = []
        index = 0
        while index < len(self.elements):
            try:
                for index in range(index, len(self.elements)):  # noqa: B020  where it stopped is the culprit
                    element = self.elements[index]
                    result = call(element, self.positions[index], self.ordinals[index])
                    if kind == "flat_map":
                        out += result
                        kept += [index] * len(result)
                    elif kind != "filter" or result:
                        out.append(element if kind == "filter" else result)
                        kept.append(index)
            except StorageError:  # no fault of this element: asked again later, it comes
                raise
            except catch as error:
                if not self._skip(index, what, error):
                    break
            index += 1
        self.elements = out
        if kind == "flat_map" or len(kept) < len(self.positions):
            self.positions = [self.positions[index] for index in kept]
            self.records = [self.records[index] for index in kept]
            self.ordinals = [self.ordinals[index] for index in kept]
        if kind == "flat_map":
            self.ordinals = ordinals(np.array(self.positions, np.int64)).tolist()
        self._end_before_failure()

    def _skip(self, index: int, what: str, error: Exception) -> bool:
        """Leave this element out, or make the error the block's failure, as on_error says. Returns whether left out."""
        where, position = self._locate(self.records[index]), self.positions[index]
        reason = f"{what} raised {type(error).__name__}: {error}"
        failure = RecordError(f"{where} (position {position}): {reason}", position)
        failure.__cause__ = error
        if self._on_error == "skip" or (callable(self._on_error) and self._on_error(failure)):
            self.skipped.append(Skipped(where, position, reason))
            return True
        self.failure = failure
        # The cause does not survive the way from an actor to the driver, so its traceback travels as a note.
        self.failure.add_note("".join(traceback.format_exception(error)).rstrip())
        return False

    def cut(self, index: int, reason: str) -> None:
        """End the block before the position of this element, unlike the first, or no element itself; never skipped."""
        self._list()
        where, position = self._locate(self.records[index]), self.positions[index]
        first = f" differs from {self._locate(self.records[0])} (position {self.positions[0]})" if index else ""
        self.failure = RecordError(f"{where} (position {position}){first}: {reason}", position)
        self._end_before_failure()

    def _list(self) -> None:
        """Lists in place of arrays, once single elements are looked at; whole columns pass at no price for each row."""
        if isinstance(self.positions, np.ndarray):
            self.positions, self.records = self.positions.tolist(), np.asarray(self.records).tolist()
        if len(self.ordinals) < len(self.positions):  # none yet: no flat_map has come
            self.ordinals = [0] * len(self.positions)

    def _end_before_failure(self) -> None:
        """What else its position gave goes too: batches end at whole positions there, whatever their size."""
        if self.failure is not None:
            self._keep(bisect.bisect_left(self.positions, self.failure.position))

    def _keep(self, count: int) -> None:
        del self.elements[count:], self.positions[count:], self.records[count:], self.ordinals[count:]


def _bind(step: Step, seed: int) -> Callable[[Any, int, int], Any]:
    """The step as a function of (element, position, ordinal)."""
    if step.kind == "random_map":
        rng_at = element_rng(seed, step.index)
        return lambda element, position, ordinal: step.call(element, rng_at(position, ordinal))
    if step.kind == "map_with_index":
        return lambda element, position, _: step.call(position, element)
    return lambda element, *_: step.call(element)


def element_rng(seed: int, transform_index: int) -> Callable[..., np.random.Generator]:
    """The random numbers of one transform: (position, ordinal = 0) -> a Generator that depends on nothing else.

    Philox with (seed, transform) as its key, position and ordinal in the high words of its counter, so no two elements,
    transforms or seeds share a stream. The same Generator is set anew for each position (half the cost of making one):
    a transform must not keep it.
    """
    bits = np.random.Philox(key=np.array([seed, transform_index], np.uint64))
    fresh = bits.state
    rng = np.random.Generator(bits)

    def rng_at(position: int, ordinal: int = 0) -> np.random.Generator:
        fresh["state"]["counter"] = np.array([0, 0, position, ordinal], np.uint64)
        bits.state = fresh
        return rng

    return rng_at
