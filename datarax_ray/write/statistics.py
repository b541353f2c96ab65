"""Statistics of elements by field: taken piece by piece, and added up.

A sum of the same pieces in the same order is the same to the last bit, whoever took them. Means and deviations are
added by Chan's formula, which loses nothing where numbers are large and lie close together.

Source: T. Chan, G. Golub, R. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances"
(1979).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

_PIECE = 2**16  # numbers that are looked at in one go: as float64 they stay in the caches
_MAX_DISTINCT = 64  # values that are counted one by one: classes, say; of more there is no such count
_MAX_TEXT = 40  # characters of one
_NO_NAME = "element"  # an element that has no fields


@dataclass
class Moments:
    """Of finite numbers.

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
        """numbers: (n,), of any dtype of whole or real numbers, finite ones."""
        found = cls()
        for start in range(0, len(numbers), _PIECE):
            piece = numbers[start : start + _PIECE]
            real = piece.astype(np.float64)
            mean = float(real.mean())
            least, most = (each if piece.dtype.kind in "iu" else real[i] for i, each in _ends(piece))
            found += cls(len(piece), mean, float(np.square(real - mean).sum()), least.item(), most.item())
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
        """The standard deviation of the numbers themselves, as np.std has it; 0.0 of none."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def _ends(piece: np.ndarray) -> Iterator[tuple[int, Any]]:
    for index in (int(piece.argmin()), int(piece.argmax())):
        yield index, piece[index]


@dataclass
class FieldStatistics:
    """One field.

    count: elements that have it.
    num_null: of these, None.
    kinds: dtypes, or types of what is no array.

    shape_least, shape_most: of arrays, along each axis; None where they have not the same number of axes.
    numbers: all numbers in it.
    num_nan, num_infinite: beside these.
    lengths: of text, bytes and lists, and of arrays along the first axis.
    by_length: how many have a length from 2**k on and below 2**(k + 1), by k; -1 of length 0.
    by_value: how many have each value, of whole numbers and short text with few values; None of others.
    """

    count: int = 0
    num_null: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    shape_least: list[int] | None = None
    shape_most: list[int] | None = None
    numbers: Moments = field(default_factory=Moments)
    num_nan: int = 0
    num_infinite: int = 0
    lengths: Moments = field(default_factory=Moments)
    by_length: Counter[int] = field(default_factory=Counter)
    by_value: Counter[str] | None = field(default_factory=Counter)

    @classmethod
    def of(cls, values: Any) -> Self:
        """values: a column, or the field's values in several elements."""
        if isinstance(values, np.ndarray) and values.dtype != object:
            return cls()._with(values, len(values))
        found = cls()
        arrays: dict[tuple[Any, ...], list[Any]] = {}
        for value in values:
            if isinstance(value, np.ndarray | np.generic | bool | int | float) and not _is_large(value):
                array = np.asarray(value)
                arrays.setdefault((array.dtype, array.shape), []).append(array)
            else:
                found += cls()._with_object(value)
        for same in arrays.values():
            found += cls()._with(np.stack(same), len(same))
        return found

    def _with(self, column: np.ndarray, count: int) -> Self:
        """Of a dense column."""
        self.count = count
        self.kinds[str(column.dtype)] = count
        if column.ndim > 1:
            self.shape_least = self.shape_most = list(column.shape[1:])
            self._measure(np.full(count, column.shape[1]))
            self.by_value = None
        elif column.dtype.kind in "biuU":
            self._tell_apart(*np.unique(column, return_counts=True))
        else:
            self.by_value = None
        flat = column.reshape(-1)
        if flat.dtype.kind == "f" or (flat.dtype.kind == "V" and flat.dtype.isbuiltin == 2):  # bfloat16 and its like
            real = flat if flat.dtype.kind == "f" else flat.astype(np.float64)
            self.num_nan, self.num_infinite = int(np.isnan(real).sum()), int(np.isinf(real).sum())
            self.numbers = Moments.of(real[np.isfinite(real)] if self.num_nan or self.num_infinite else real)
        elif flat.dtype.kind in "biu":
            self.numbers = Moments.of(flat.astype(np.uint8) if flat.dtype.kind == "b" else flat)
        return self

    def _with_object(self, value: Any) -> Self:
        self.count, self.num_null = 1, int(value is None)
        self.kinds[type(value).__name__] = 1
        if isinstance(value, str | bytes | list | tuple):
            self._measure(np.array([len(value)]))
        if isinstance(value, str) and len(value) <= _MAX_TEXT:
            self._tell_apart([value], np.ones(1, int))
        elif value is not None:
            self.by_value = None
        if isinstance(value, list) and value and {bool, int, float}.issuperset(map(type, value)):
            inner = FieldStatistics.of(value)
            self.numbers, self.num_nan, self.num_infinite = inner.numbers, inner.num_nan, inner.num_infinite
        return self

    def _measure(self, lengths: np.ndarray) -> None:
        self.lengths = Moments.of(lengths)
        for length, count in zip(*np.unique(lengths, return_counts=True), strict=True):
            self.by_length[int(length).bit_length() - 1] += int(count)

    def _tell_apart(self, values: Any, counts: np.ndarray) -> None:
        few = len(values) <= _MAX_DISTINCT
        self.by_value = Counter({str(v): int(n) for v, n in zip(values, counts, strict=True)}) if few else None

    def __add__(self, other: Self) -> Self:
        if not self.count or not other.count:
            return other if not self.count else self
        apart = None
        if self.by_value is not None and other.by_value is not None:
            both = self.by_value + other.by_value
            apart = both if len(both) <= _MAX_DISTINCT else None
        return type(self)(
            self.count + other.count,
            self.num_null + other.num_null,
            self.kinds + other.kinds,
            _by_axis(min, self.shape_least, other.shape_least),
            _by_axis(max, self.shape_most, other.shape_most),
            self.numbers + other.numbers,
            self.num_nan + other.num_nan,
            self.num_infinite + other.num_infinite,
            self.lengths + other.lengths,
            self.by_length + other.by_length,
            apart,
        )


def _by_axis(choose: Any, one: list[int] | None, other: list[int] | None) -> list[int] | None:
    if one is None or other is None or len(one) != len(other):
        return None
    return [choose(pair) for pair in zip(one, other, strict=True)]


def _is_large(value: Any) -> bool:
    return type(value) is int and not -(2**63) <= value < 2**63


@dataclass
class Statistics:
    """Of all elements that some records gave. num_records: of the source. num_left_out: of these, that gave no element.

    num_failed: failures that on_error let pass. fields: by name, a.b of one inside another; "a.b", in quotes, of one
    whose own name has a dot.
    """

    num_records: int = 0
    num_elements: int = 0
    num_left_out: int = 0
    num_failed: int = 0
    fields: dict[str, FieldStatistics] = field(default_factory=dict)

    def __add__(self, other: Self) -> Self:
        names = [*self.fields, *(name for name in other.fields if name not in self.fields)]
        none = FieldStatistics()
        return type(self)(
            self.num_records + other.num_records,
            self.num_elements + other.num_elements,
            self.num_left_out + other.num_left_out,
            self.num_failed + other.num_failed,
            {name: self.fields.get(name, none) + other.fields.get(name, none) for name in names},
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values, with std where there are moments; from_json takes them back."""
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "fields"}
        return plain | {"fields": {name: _plain(of) for name, of in self.fields.items()}}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        return cls(**{**plain, "fields": {name: _field(of) for name, of in plain["fields"].items()}})


def fields_of_columns(columns: Any, prefix: str = "") -> dict[str, FieldStatistics]:
    """Of columns, by field."""
    if not isinstance(columns, Mapping):
        return {prefix or _NO_NAME: FieldStatistics.of(columns)}
    found: dict[str, FieldStatistics] = {}
    for key, column in columns.items():
        found |= fields_of_columns(column, _inside(prefix, key))
    return found


def fields_of_elements(elements: Sequence[Any]) -> dict[str, FieldStatistics]:
    """Of elements, by field; a field that some have not is told of those that have it."""
    values: dict[str, list[Any]] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
            for key, part in value.items():
                walk(part, _inside(name, key))
        else:
            values.setdefault(name or _NO_NAME, []).append(value)

    for element in elements:
        walk(element, "")
    return {name: FieldStatistics.of(found) for name, found in values.items()}


def _inside(name: str, key: str) -> str:
    """The name of a field inside another, "" for none; no two fields have one.

    >>> _inside("a", "b"), _inside("", "a.b")
    ('a.b', '"a.b"')
    """
    told = key if key and not {".", '"'} & set(key) else json.dumps(key, ensure_ascii=False)
    return f"{name}.{told}" if name else told


def _plain(of: FieldStatistics) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in fields(of):
        value = getattr(of, each.name)
        if isinstance(value, Moments):
            value = {part.name: getattr(value, part.name) for part in fields(value)} | {"std": value.std}
        elif isinstance(value, Counter):
            value = {str(key): value[key] for key in sorted(value)}
        found[each.name] = value
    return found


def _field(plain: Mapping[str, Any]) -> FieldStatistics:
    found = FieldStatistics(**plain)
    found.kinds = Counter(plain["kinds"])
    found.by_length = Counter({int(key): count for key, count in plain["by_length"].items()})
    found.by_value = None if plain["by_value"] is None else Counter(plain["by_value"])
    for name in ("numbers", "lengths"):
        setattr(found, name, Moments(**{key: value for key, value in plain[name].items() if key != "std"}))
    return found
