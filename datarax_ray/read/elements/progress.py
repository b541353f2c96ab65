"""The elements of a block on their way through the transforms, with every failure located."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import or_
from typing import Any

import numpy as np

from datarax_ray.read.elements.columns import ALIKE, LEAVE_NONE_OUT, Path, dense_dtype, given_note, is_series
from datarax_ray.read.elements.owning import UnfitError, own
from datarax_ray.read.elements.rows import FixedRecords
from datarax_ray.read.elements.transforms import BOOLS, OnError, Step, skips
from datarax_ray.read.errors import RecordError, Skipped, is_of_data, message_of

# A field that is a column of objects, before the transform of columns with this index; None: in a batch.
ObjectsAt = tuple[int | None, Path]

# Columns that a transform took: its name and index, the position of the first element, and their spec.
Taken = tuple[str, int, Any]

# Of so many elements one is timed, where several functions take turns: to read the clock before and behind each
# function of every element would cost as much as cheap functions do.
_TIMED = 128


@dataclass(frozen=True)
class Call:
    """A function to apply to each element.

    call: (element, position, ordinal) -> the new element; if kind is "filter", whether the element stays; if kind
        is "flat_map", a list of our own of the elements in its place.
    what: its name in errors.
    catch: the Exceptions that it may raise about its element.
    uses_position: whether its result depends on the position or on random numbers.
    """

    call: Callable[[Any, int, int], Any]
    what: str
    kind: str = "map"
    catch: type[Exception] = Exception
    uses_position: bool = False


class Progress:
    """The elements of one block on their way through the transforms, with their positions and records.

    elements: a given list is used and emptied; FixedRecords become a list once single elements are needed.
    ordinals: the place of each element among the results of its position, from the last flat_map; 0 before any.
    may_come: see Block.
    gave_several: whether a flat_map has run, so that a failure names the element of its record.
    locate: gives the name of a record for errors. Nothing here reads files.
    alike: see ReaderTraits.
    as_objects: see ElementStream.
    taken: see Block.

    A failure either skips its element (on_error "skip", or a callable that returns True), or cuts the block before its
    position. The stream raises `failure` when it reaches that position; the elements before it are good.
    """

    def __init__(
        self,
        elements: Any,
        positions: Sequence[int] | np.ndarray,
        records: Sequence[int] | np.ndarray,
        *,
        on_error: OnError,
        locate: Callable[[int], str],
        alike: str = ALIKE,
    ) -> None:
        self.elements: Any = elements
        self.positions: Any = positions
        self.records: Any = records
        self.ordinals: list[int] = []
        self.skipped: list[Skipped] = []
        self.failure: RecordError | None = None
        self.may_come = self.gave_several = False
        self._uses_position = False  # whether any call so far was; see Call
        self._on_error = on_error
        self.locate = locate
        self.alike = alike
        self.as_objects: Iterable[ObjectsAt] = ()
        self.taken: list[Taken] = []

    def apply(self, todo: Sequence[Step], seed: int, seconds: list[float] | None = None) -> None:
        """Put every element through these steps. seconds: see run."""
        given = self.elements[0] if isinstance(self.elements, list) and self.elements else None
        self.run([_bind(step, seed) for step in todo], seconds)
        if self.elements and (reason := _no_element(self.elements[0], given)):
            last = next((step for step in reversed(todo) if step.kind != "filter"), todo[-1])
            self.cut(0, f"transform {last.name} returned {reason}")

    def run(self, calls: Sequence[Call], seconds: list[float] | None = None) -> None:
        """Put each element through all calls before the next element begins.

        Each result is owned before the next call, so later writes of a transform do not change it.
        seconds: of each call, to which those of one element in _TIMED are added; None for no measurement.
        """
        self._list()
        given, self.elements = self.elements, []
        given.reverse()
        kept: list[int] = []
        found: list[int] = []
        untimed = [(call.kind, call.call) for call in calls]
        timed = [(call.kind, _timed(call.call, seconds, at)) for at, call in enumerate(calls)] if seconds else untimed
        first = min(_TIMED, len(given)) // 2  # the first element of a block finds cold caches
        turns = itertools.cycle([*[untimed] * first, timed, *[untimed] * (_TIMED - 1 - first)])
        depending = list(
            itertools.accumulate((call.uses_position for call in calls), or_, initial=self._uses_position)
        )[1:]
        self._uses_position = depending[-1] if depending else self._uses_position
        position, counts = -1, [0] * len(calls)  # of results at this position, by each flat_map
        for index, todo in zip(range(len(given)), turns, strict=False):  # to the last, or to one that fails
            if self.positions[index] != position:
                position, counts = self.positions[index], [0] * len(calls)
            waiting: list[tuple[Any, int, int]] = []  # what flat_maps gave, the next one at the end
            element, ordinal, number = given.pop(), self.ordinals[index], -1
            while True:
                try:
                    for kind, call in todo[number + 1 :]:
                        number += 1
                        if kind == "map":
                            was_none = element is None
                            element = call(element, position, ordinal)
                            if element is None and not was_none:
                                raise UnfitError("None", "; does it end without `return`?")
                        elif kind == "filter":
                            if not call(element, position, ordinal):
                                self.may_come |= depending[number]
                                break
                        else:
                            parts = call(element, position, ordinal)
                            self.may_come |= depending[number] and not parts
                            first, counts[number] = counts[number], counts[number] + len(parts)
                            while parts:
                                part = parts.pop()
                                waiting.append((part, first + len(parts), number))
                            part = None
                            break
                    else:
                        self.elements.append(element)
                        element = None
                        own(self.elements, -1)
                        kept.append(index)
                        found.append(ordinal)
                except BaseException as error:
                    del self.elements[len(kept) :]
                    self.may_come |= depending[number]
                    failed = calls[number]
                    if self.gave_several or any(kind == "flat_map" for kind, _ in untimed[:number]):
                        failed = dataclasses.replace(failed, what=f"element {ordinal} of the record: {failed.what}")
                    if not self.fail_or_skip(index, failed, element, error):
                        given.clear()
                        break
                if not waiting:
                    break
                element, ordinal, number = waiting.pop()
            if not given:
                break
        self.keep(kept)
        self.ordinals = found
        self.gave_several |= any(kind == "flat_map" for kind, _ in untimed)
        self.end_before_failure()

    def keep(self, kept: Sequence[int]) -> None:
        """Keep only the positions, records and ordinals of these indexes, one for each element."""
        self._list()
        if kept != list(range(len(self.positions))):
            self.positions = [self.positions[index] for index in kept]
            self.records = [self.records[index] for index in kept]
            self.ordinals = [self.ordinals[index] for index in kept]

    def fail_or_skip(self, index: int, call: Call, element: Any, error: BaseException) -> bool:
        """Skip this element, or make the error the block's failure, as on_error decides. Returns whether it is skipped.

        element: the argument of the call, or its result if the result does not fit.

        Raises: the error, if it is not about the element.
        """
        self._list()
        where, position = self.locate(self.records[index]), self.positions[index]
        if not is_of_data(error, call.catch):
            error.add_note(f"in {where} (position {position}): {call.what}")
            raise error
        if isinstance(element, Mapping):
            error.add_note(given_note(element, error))
        if element is None and not isinstance(error, UnfitError):  # else a transform made it
            error.add_note(f"the element: {LEAVE_NONE_OUT}")
        verb = "returned" if isinstance(error, UnfitError) else f"raised {type(error).__name__}:"
        return self.record_failure(index, where, f"{call.what} {verb} {message_of(error)}", error)

    def record_failure(self, index: int, where: str, reason: str, error: BaseException) -> bool:
        """As fail_or_skip, for an error about the element, with its reason."""
        position = self.positions[index]
        failure = RecordError(f"{where} (position {position}): {reason}", position)
        failure.__cause__ = error
        if isinstance(error, Exception):  # any other exception asks for more than to skip an element
            try:
                is_skipped = skips(self._on_error, failure)
            except BaseException as second:
                if not is_of_data(second):
                    raise
                reason += f"; and on_error raised {type(second).__name__}: {message_of(second)}"
                is_skipped, error = False, second
            if is_skipped:
                self.skipped.append(Skipped(where, position, reason))
                self.may_come |= callable(self._on_error)  # a function sees the position
                return True
        if isinstance(error, UnfitError):  # the reason says all, and the traceback is this package's
            self.failure = RecordError(f"{where} (position {position}): {reason}", position)
        else:
            self.failure = RecordError.of(where, position, reason, error)
        return False

    def cut(self, index: int, reason: str, error: BaseException | None = None) -> None:
        """End the block before this element, which is unlike the first or no element; it is never skipped."""
        self._list()
        where, position = self.locate(self.records[index]), self.positions[index]
        if error is not None:
            self.failure = RecordError.of(where, position, reason, error)
        else:
            first = f" differs from {self.locate(self.records[0])} (position {self.positions[0]})" if index else ""
            self.failure = RecordError(f"{where} (position {position}){first}: {reason}", position)
        self.end_before_failure()

    def _list(self) -> None:
        """Turn arrays into lists, once single elements are needed. Whole columns pass without it."""
        if isinstance(self.elements, FixedRecords):
            self.elements = self.elements.tolist()
        if isinstance(self.positions, np.ndarray):
            self.positions, self.records = self.positions.tolist(), np.asarray(self.records).tolist()
        if len(self.ordinals) < len(self.positions):  # none yet: no flat_map has come
            self.ordinals = [0] * len(self.positions)

    def end_before_failure(self) -> None:
        """Drop all elements from the failure's position on, so that the block ends at a whole position."""
        if self.failure is not None:
            count = bisect.bisect_left(self.positions, self.failure.position)
            del self.elements[count:], self.positions[count:], self.records[count:], self.ordinals[count:]


def _timed(call: Callable[..., Any], seconds: list[float], number: int) -> Callable[..., Any]:
    """The call, which adds its time to seconds[number]."""

    def timed(element: Any, position: int, ordinal: int) -> Any:
        begin = time.perf_counter()
        try:
            return call(element, position, ordinal)
        finally:
            seconds[number] += time.perf_counter() - begin

    return timed


def _no_element(made: Any, given: Any) -> str | None:
    """The reason why the result of transforms is no element, with the remedy; None if it is an element.

    A number or an array may take the place of any element; other values only of an element that is no dict.
    """
    kind, by_name = type(made).__name__, "and a batch has its fields by name"
    if type(made) in BOOLS and type(given) not in BOOLS:
        return (
            f"{made}, which would take the element's place; to leave elements out, give an object with filter(element) "
            "-> bool; for a field, return {'name': value}"
        )
    if isinstance(made, list) and made and isinstance(made[0], Mapping):
        return (
            f"a list of {len(made)} dict{'s' * (len(made) > 1)}, {by_name}; return the dict itself, or, for several "
            "elements in place of one, give an object with flat_map(element) -> list"
        )
    if isinstance(made, Mapping):
        return None
    has_names = is_series(made) or hasattr(type(made), "columns") or dataclasses.is_dataclass(made)
    may_be_bare = isinstance(made, tuple | np.ndarray) or dense_dtype(made) is not None
    if has_names or (isinstance(given, Mapping) and not may_be_bare):
        return f"a {kind} in place of a dict, {by_name}; return a dict of them, or {{'name': value}}"
    return None


def _bind(step: Step, seed: int) -> Call:
    what = f"transform {step.name}"
    if step.kind == "random_map":
        rng_at = element_rng(seed, step.index)
        return Call(
            lambda element, position, ordinal: step.call(element, rng_at(position, ordinal)), what, uses_position=True
        )
    if step.kind == "map_with_index":
        return Call(lambda element, position, _: step.call(position, element), what, uses_position=True)
    return Call(lambda element, *_: step.call(element), what, step.kind)


def element_rng(seed: int, transform_index: int) -> Callable[..., np.random.Generator]:
    """The random numbers of one transform: (position, ordinal = 0) -> a Generator that depends on nothing else.

    Philox has (seed, transform) as its key, and position and ordinal in the high words of its counter, so no two
    elements, transforms or seeds share a stream. The same Generator is reset for each position, at half the cost of a
    new one, so a transform must not keep it.
    """
    bits = np.random.Philox(key=np.array([seed, transform_index], np.uint64))
    fresh = bits.state
    rng = np.random.Generator(bits)

    def rng_at(position: int, ordinal: int = 0) -> np.random.Generator:
        fresh["state"]["counter"] = np.array([0, 0, position, ordinal], np.uint64)
        bits.state = fresh
        return rng

    return rng_at
