"""Statistics of elements by field, taken piece by piece and added up.

A sum of the same pieces in the same order is the same to the last bit, whoever took the pieces.

Source: T. Chan, G. Golub, R. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances"
(1979), which loses nothing where numbers are large and close together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Self

import numpy as np

_PIECE = 2**16  # numbers at a time: as float64 they stay in the caches
_MAX_DISTINCT = 64  # values that are counted one by one, such as classes
_MAX_TEXT = 40  # characters of one such value
_NO_NAME = "element"  # the field of an element that is no dict


@dataclass
class Moments:
    """The moments of finite numbers.

    mean: 0.0 of none.
    squares: the sum of squared distances from the mean.
    least, most: exact.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    least: int | float | None = None
    most: int | float | None = None

    @classmethod
    def of(cls, numbers: np.ndarray) -> Self:
        """numbers: (n,), of any real dtype, all finite."""
        found = cls()
        for start in range(0, len(numbers), _PIECE):
            piece = numbers[start : start + _PIECE]
            real = piece.astype(np.float64)
            mean = float(real.mean())
            exact = piece if piece.dtype.kind in "iu" else real
            found += cls(len(piece), mean, float(np.square(real - mean).sum()), exact.min().item(), exact.max().item())
        return found

    def __add__(self, other: Self) -> Self:
        count = self.count + other.count
        if not self.count or not other.count:
            return other if not self.count else self
        apart = other.mean - self.mean
        return type(self)(
            count,
            self.mean + apart * (other.count / count),
            self.squares + other.squares + apart * apart * (self.count * (other.count / count)),
            min(self.least, other.least),  # type: ignore[type-var]
            max(self.most, other.most),  # type: ignore[type-var]
        )

    @property
    def std(self) -> float:
        """The standard deviation as np.std has it; 0.0 of none."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


@dataclass
class FieldStatistics:
    """The statistics of one field.

    count: elements that have the field.
    num_null: elements whose field is None.
    kinds: how many have each dtype, or type of a value that is no array.
    shape_least, shape_most: of arrays, along each axis; None where the number of axes differs.
    numbers: all finite numbers in the field.
    num_nan, num_infinite: numbers that are not finite.
    lengths: of text, bytes and lists, and of arrays along the first axis.
    by_value: how often each value comes, by its text; None for more than 64 of them, for long text, and for values that
        are no whole numbers or text.
    """

    count: int = 0
    num_null: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    shape_least: list[int] | None = None
    shape_most: list[int] | None = None
    numbers: Moments = field(default_factory=Moments)
    num_nan: int = 0
    num_infinite: int = 0
    lengths: Moments = field(default_factory=Moments)
    by_value: dict[str, int] | None = field(default_factory=dict)

    @classmethod
    def of(cls, values: Any) -> Self:
        """values: a column, or the field's values in several elements."""
        if isinstance(values, np.ndarray) and values.dtype != object:
            return cls._of_column(values)
        found = cls()
        alike: dict[Any, list[Any]] = {}
        kinds = set(map(type, values))
        if len(kinds) == 1:
            alike[kinds.pop()] = list(values)
        for value in values if kinds else ():
            alike.setdefault(type(value), []).append(value)
        arrays: dict[Any, list[np.ndarray]] = {}
        for kind, same in alike.items():
            if kind is int and not all(-(2**63) <= value < 2**63 for value in same):
                found += cls(len(same), kinds={"int": len(same)}, by_value=None)
            elif issubclass(kind, np.ndarray | np.generic | bool | int | float):
                for array in map(np.asarray, same):
                    arrays.setdefault((array.dtype, array.ndim), []).append(array)
            else:
                found += cls._of_objects(kind, same)
        for same in arrays.values():
            found += cls._of_arrays(same)
        return found

    @classmethod
    def _of_column(cls, column: np.ndarray) -> Self:
        found = cls(len(column), kinds={str(column.dtype): len(column)}, by_value=None)
        if column.ndim > 1:
            found.shape_least = found.shape_most = list(column.shape[1:])
            found.lengths = Moments.of(np.full(len(column), column.shape[1]))
        elif column.dtype.kind in "biuU":
            found._count(*np.unique(column, return_counts=True))
        found._add_numbers(column.reshape(-1))
        return found

    @classmethod
    def _of_arrays(cls, arrays: list[np.ndarray]) -> Self:
        """arrays: of one dtype, and of as many axes."""
        shapes = np.array([array.shape for array in arrays])
        if (shapes == shapes[0]).all():
            return cls._of_column(np.stack(arrays))
        found = cls(len(arrays), kinds={str(arrays[0].dtype): len(arrays)}, by_value=None)
        found.shape_least, found.shape_most = shapes.min(0).tolist(), shapes.max(0).tolist()
        found.lengths = Moments.of(shapes[:, 0])
        found._add_numbers(np.concatenate([array.reshape(-1) for array in arrays]))
        return found

    @classmethod
    def _of_objects(cls, kind: type, values: list[Any]) -> Self:
        """values: of this type, which is none of numbers."""
        count, is_null = len(values), kind is type(None)
        found = cls(count, count * is_null, {kind.__name__: count}, by_value={} if is_null else None)
        if issubclass(kind, str | bytes | list | tuple):
            found.lengths = Moments.of(np.fromiter(map(len, values), np.int64, count))
        if issubclass(kind, str) and found.lengths.most <= _MAX_TEXT:  # type: ignore[operator]
            counts = Counter(values)
            found._count(list(counts), list(counts.values()))
        if issubclass(kind, list):
            numbers = [value for value in values if value and {bool, int, float}.issuperset(map(type, value))]
            inner = cls.of(list(chain.from_iterable(numbers)))
            found.numbers, found.num_nan, found.num_infinite = inner.numbers, inner.num_nan, inner.num_infinite
        return found

    def _add_numbers(self, numbers: np.ndarray) -> None:
        """numbers: (n,), of any dtype; text and its like are none."""
        if numbers.dtype.kind == "b":
            numbers = numbers.astype(np.uint8)
        if numbers.dtype.kind == "V" and numbers.dtype.isbuiltin == 2:  # bfloat16 and its like
            numbers = numbers.astype(np.float64)
        if numbers.dtype.kind == "f":
            self.num_nan, self.num_infinite = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
            numbers = numbers[np.isfinite(numbers)]
        if numbers.dtype.kind in "iuf":
            self.numbers = Moments.of(numbers)

    def _count(self, values: Any, counts: Any) -> None:
        if len(values) <= _MAX_DISTINCT:
            self.by_value = {str(value): int(count) for value, count in zip(values, counts, strict=True)}

    def __add__(self, other: Self) -> Self:
        if not self.count or not other.count:
            return other if not self.count else self
        by_value = None
        if self.by_value is not None and other.by_value is not None:
            by_value = _added(self.by_value, other.by_value)
        return type(self)(
            self.count + other.count,
            self.num_null + other.num_null,
            _added(self.kinds, other.kinds),
            _by_axis(min, self.shape_least, other.shape_least),
            _by_axis(max, self.shape_most, other.shape_most),
            self.numbers + other.numbers,
            self.num_nan + other.num_nan,
            self.num_infinite + other.num_infinite,
            self.lengths + other.lengths,
            None if by_value is None or len(by_value) > _MAX_DISTINCT else by_value,
        )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in sorted({*one, *other})}


def _by_axis(choose: Any, one: list[int] | None, other: list[int] | None) -> list[int] | None:
    if one is None or other is None or len(one) != len(other):
        return None
    return list(map(choose, one, other))


@dataclass
class Statistics:
    """The statistics of all elements that some records gave.

    num_records: of the source.
    num_left_out: records that gave no element.
    num_failed: failures that on_error skipped.
    fields: by name; "a.b" of b inside a.
    """

    num_records: int = 0
    num_elements: int = 0
    num_left_out: int = 0
    num_failed: int = 0
    fields: dict[str, FieldStatistics] = field(default_factory=dict)

    @classmethod
    def of(cls, num_records: int, progress: Any, columns: Any) -> Self:
        """Of as many records, read to this Progress. columns: of its elements; None where these do not stack."""
        fields = fields_of_elements(progress.elements) if columns is None else fields_of_columns(columns)
        positions = np.asarray(progress.positions)
        num_empty = num_records - len(np.unique(positions))
        return cls(num_records, len(positions), num_empty, len(progress.skipped), fields)

    def __str__(self) -> str:
        """How many elements the records gave, in a line.

        >>> str(Statistics(num_records=10, num_elements=7, num_left_out=3))
        '10 records gave 7 elements; 3 records (30 %) gave none'
        """
        text = f"{self.num_records:,} records gave {self.num_elements:,} elements"
        if self.num_left_out:
            part = self.num_left_out / self.num_records
            text += f"; {self.num_left_out:,} records ({100 * part:.3g} %) gave none"
        return text + (f"; {self.num_failed:,} failed and were skipped" if self.num_failed else "")

    def __add__(self, other: Self) -> Self:
        none = FieldStatistics()
        return type(self)(
            self.num_records + other.num_records,
            self.num_elements + other.num_elements,
            self.num_left_out + other.num_left_out,
            self.num_failed + other.num_failed,
            {
                name: self.fields.get(name, none) + other.fields.get(name, none)
                for name in dict.fromkeys([*self.fields, *other.fields])
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, with a std beside the moments. from_json takes them back."""
        plain = asdict(self)
        for name, of in self.fields.items():
            plain["fields"][name]["numbers"]["std"] = of.numbers.std
            plain["fields"][name]["lengths"]["std"] = of.lengths.std
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:

        def moments(of: Mapping[str, Any]) -> Moments:
            return Moments(**{key: value for key, value in of.items() if key != "std"})

        fields = {
            name: FieldStatistics(**{**of, "numbers": moments(of["numbers"]), "lengths": moments(of["lengths"])})
            for name, of in plain["fields"].items()
        }
        return cls(**{**plain, "fields": fields})


def fields_of_columns(columns: Any) -> dict[str, FieldStatistics]:
    return {name: FieldStatistics.of(column) for name, column in _leaves(columns)}


def fields_of_elements(elements: Sequence[Any]) -> dict[str, FieldStatistics]:
    values: dict[str, list[Any]] = {}
    for element in elements:
        for name, value in _leaves(element):
            values.setdefault(name, []).append(value)
    return {name: FieldStatistics.of(found) for name, found in values.items()}


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The fields by name. An empty dict, and one with keys that are no text, is a value."""
    if not (isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value)):
        yield name or _NO_NAME, value
        return
    for key, part in value.items():
        yield from _leaves(part, f"{name}.{key}" if name else key)
