"""Elements that come one by one, as dicts of Python values: columns of the same policy as tables.

Arrow cuts values in silence where they are unlike its type: as int64, pa.array makes 0 of 0.5; as date32 it drops the
time; of dicts it takes the keys that it knows. It infers types that do not hold the values: of [1, np.float16(1.5)],
int64. So where the classes of the values do not tell that the type holds them, each value is looked at, and becomes one
that equals it, or is an error. One thing passes for speed: a bool among lists of ints becomes the int that it equals.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax_ray.plan.plain_values import shown
from datarax_ray.read.elements.columns import ColumnError, Columns, stack, unstack_to_stack
from datarax_ray.read.formats.arrow.columns import ColumnTypes, UnlikeError
from datarax_ray.read.formats.arrow.types import OnNull, is_list, is_number

if TYPE_CHECKING:
    import pyarrow as pa

_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
_INTS = {int, *(np.dtype(code).type for code in "bhilqBHILQ")}
_NUMBERS = (_INTS | {float, np.float16, np.float32, np.float64}) - {np.uint64}  # as a double, 2**64 - 1 is -1.0
# By Arrow's name of a type: the classes of which it holds every value, or refuses it.
_HELD: dict[str, set[type]] = {
    "null": set(),
    "bool": {bool, np.bool_},
    **{f"{sign}int{bits}": _INTS for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "halffloat": _NUMBERS,  # and see _keeps
    "float": _NUMBERS,
    "double": _NUMBERS,
    "string": {str},
    "large_string": {str},
    "binary": {bytes},
    "large_binary": {bytes},
    "date32[day]": {dt.date},
    "timestamp[us]": {dt.datetime},
    "timestamp[ns]": {dt.datetime},
    "duration[us]": {dt.timedelta},
    "duration[ns]": {dt.timedelta},
    "time64[us]": {dt.time},
    "time64[ns]": {dt.time},
}


@dataclass(frozen=True)
class ElementTypes:
    """How the fields of elements are read; ColumnTypes for fields that Arrow holds.

    kinds: the Arrow types of the fields that become arrays, or are None somewhere.
    loose: fields of arrays, images and objects of one's own, which stack, or do not, as they are. The others are
        objects on the host.
    declared: the fields of kinds whose type somebody chose, so that a float is rounded to it; an inferred type takes
        exact values only.
    """

    fields: tuple[str, ...]
    kinds: Mapping[str, Any] = field(hash=False)
    types: ColumnTypes = field(hash=False)
    loose: tuple[str, ...]
    declared: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        elements: Sequence[Any],
        kinds: Mapping[str, Any],
        loose: Iterable[str],
        as_objects: Iterable[str],
        on_null: Any = None,
    ) -> ElementTypes | None:
        """The types by these first elements; None where they have not all the same fields, and are no table.

        kinds: the Arrow types of fields where they are known.
        loose: fields that are known to be loose.
        as_objects: fields that are not to be looked at.
        on_null: see OnNull.
        """
        import pyarrow as pa

        nulls = OnNull.of(on_null)

        fields = tuple(sorted(elements[0])) if elements else ()
        if not fields or any(tuple(sorted(element)) != fields for element in elements):
            return None
        found: dict[str, Any] = {}
        apart = set(loose)
        for name in fields:
            if name in apart or name in as_objects:
                continue
            values = [element[name] for element in elements]
            if any(map(_is_arrays, values)):
                apart.add(name)
                continue
            try:
                kind = pa.array(values, kinds[name]).type if name in kinds else inferred(values)
                if _is_more_than_objects(kind) or name in nulls.fills([(name, kind)]):
                    found[name] = Exactly(rounds=name in kinds).array(values, kind, name)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                apart.add(name)
        declared = tuple(sorted(found.keys() & kinds.keys()))
        types = ColumnTypes.of(pa.table(found), on_null=on_null)
        return cls(fields, {name: each.type for name, each in found.items()}, types, tuple(sorted(apart)), declared)

    def described(self) -> list[Any]:
        """The path and the type of each array, and the loose fields, in plain text, for a fingerprint."""
        return [self.types.described(), *self.loose]

    def columns(self, elements: Sequence[Any]) -> dict[str, Any]:
        """The columns of elements, with the loose fields as objects.

        Raises: ValueError for elements that are not like those by which the types were decided.
        """
        import pyarrow as pa

        odd = next((element for element in elements if tuple(sorted(element)) != self.fields), None)
        if odd is not None:
            raise ValueError(f"fields {list(self.fields)} in one element, {sorted(odd)} in another")
        arrays, found = {}, {}
        for name in self.fields:
            values = [element[name] for element in elements]
            if name in self.kinds:
                try:
                    arrays[name] = Exactly(rounds=name in self.declared).array(values, self.kinds[name], name)
                except (pa.ArrowException, TypeError, OverflowError) as error:
                    raise UnlikeError(name, f"field {name!r} was {self.kinds[name]}: {error}") from error
            else:
                values = list(map(without_pil, values)) if name in self.loose else values
                found[name] = np.fromiter(values, object, len(elements))
        return found | (self.types.columns(pa.table(arrays)) if arrays else {})

    def first_odd(self, elements: Sequence[Any]) -> tuple[int, ValueError] | None:
        """The first of the elements that has no place in the columns by itself, and why; None where each has one."""
        for index, element in enumerate(elements):
            try:
                self.columns([element])
            except ValueError as error:
                return index, error
        return None


def with_loose(columns: Columns, loose: Mapping[str, list[Any]]) -> Columns | list[Any]:
    """The columns with the loose values among them, where these stack; else the elements, for a transform to do it.

    >>> with_loose({"x": np.arange(2)}, {"image": [np.zeros((1, 1), np.uint8)] * 2})["image"].shape
    (2, 1, 1)
    """
    count = len(next(iter(loose.values())))
    try:
        found = {**columns, **{name: stack(values, (name,)) for name, values in loose.items()}}
        return {name: found[name] for name in sorted(found)}
    except ColumnError:
        rows = unstack_to_stack(columns, count) if columns else [{} for _ in range(count)]
        return [{**row, **{name: values[i] for name, values in loose.items()}} for i, row in enumerate(rows)]


def without_pil(value: Any) -> Any:
    """A value with arrays, uint8 (height, width[, channels]), in place of Pillow's images."""
    if isinstance(value, dict):
        return {key: without_pil(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_pil(item) for item in value]
    is_image = any(kind.__module__.startswith("PIL.") for kind in type(value).__mro__)
    return np.asarray(value) if is_image else value


@dataclass(frozen=True)
class Exactly:
    """Arrays that equal Python's values, by Python's own `==`.

    rounds: a float may lose digits, and a time be with a zone or without, as Arrow does it: for a type that somebody
        chose.
    fills: dicts may lack keys, which are None then.
    """

    rounds: bool = False
    fills: bool = False

    def array(self, values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
        """The array of this type that equals these values. path: of the field, dotted.

        Raises: UnlikeError for a value that has no place in the type; ArrowException, TypeError, OverflowError where
        Arrow finds none.
        """
        import pyarrow as pa

        if pa.types.is_struct(kind) and kind.num_fields:
            return self._structs(values, kind, path)
        if is_list(kind):
            return self._lists(values, kind, path)
        if not self._classes_tell(values, kind):
            values = [None if value is None else self._leaf(value, kind, path) for value in values]
        return pa.array(values, kind)

    def _structs(self, values: Sequence[Any], kind: Any, path: str) -> pa.Array:
        import pyarrow as pa

        names = {part.name for part in kind}
        for value in values:
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise _no_place(value, kind, path)
            if value.keys() - names or (names - value.keys() and not self.fills):
                keys = sorted(value, key=str)
                raise UnlikeError(path, f"field {path!r} is a dict with the keys {keys}, and they were {sorted(names)}")
        parts = [
            self.array(
                [None if value is None else value.get(part.name) for value in values], part.type, f"{path}.{part.name}"
            )
            for part in kind
        ]
        is_null = pa.array([value is None for value in values], pa.bool_())  # also of none
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=is_null)

    def _lists(self, values: Sequence[Any], kind: Any, path: str) -> pa.Array:
        import pyarrow as pa

        classes = set(map(type, values))
        for value in values if not classes <= {list, tuple} else ():
            is_scalar = not isinstance(value, list | tuple | np.ndarray) or (
                type(value) is np.ndarray and not value.ndim
            )
            if value is not None and is_scalar:
                raise _no_place(value, kind, path)
        is_fixed, inner = pa.types.is_fixed_size_list(kind), kind.value_type
        rows = values
        if type(None) in classes:
            rows = [([None] * kind.list_size if is_fixed else []) if value is None else value for value in values]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        if is_fixed and (lengths != kind.list_size).any():
            odd = rows[int(np.flatnonzero(lengths != kind.list_size)[0])]
            raise _no_place(odd, kind, path, f"has {len(odd)} items, and they had {kind.list_size}")
        if classes == {np.ndarray} and is_number(inner) and {(1, _dtype(inner))} == {(v.ndim, v.dtype) for v in values}:
            items = pa.array(np.concatenate(values), inner)
        else:
            items = self._items(list(itertools.chain.from_iterable(rows)), inner, path)
        is_null = pa.array([value is None for value in values], pa.bool_()) if rows is not values else None
        if is_fixed:
            return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=is_null)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        if pa.types.is_large_list(kind):
            return pa.LargeListArray.from_arrays(pa.array(starts, pa.int64()), items, type=kind, mask=is_null)
        return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), items, type=kind, mask=is_null)

    def _items(self, values: list[Any], kind: Any, path: str) -> pa.Array:
        """The values inside lists. Of ints, as tokens are, Python's own array takes half of the time."""
        import pyarrow as pa

        with contextlib.suppress(TypeError, OverflowError):  # a float, None, or an int that takes more
            if kind == pa.int64():
                return pa.array(np.frombuffer(array("q", values), np.int64))
        return self.array(values, kind, path)

    def _classes_tell(self, values: Sequence[Any], kind: Any) -> bool:
        from pyarrow import types as t

        classes = set(map(type, values)) - {type(None)}
        if t.is_timestamp(kind) or t.is_time(kind):
            is_naive = getattr(kind, "tz", None) is None
            name = f"timestamp[{kind.unit}]" if t.is_timestamp(kind) else str(kind)
            return classes <= _HELD.get(name, set()) and all(
                value is None or (value.tzinfo is None) == is_naive for value in values
            )
        if (held := _HELD.get(str(kind))) is None:
            return not _is_known(kind)
        return classes <= held and (self.rounds or not t.is_floating(kind) or _keeps(kind, values))

    def _leaf(self, value: Any, kind: Any, path: str) -> Any:
        """A value of which Arrow makes, as this type, one that equals this value."""
        from pyarrow import types as t

        try:
            if is_number(kind):
                return self._number(value, kind)
            if t.is_temporal(kind) and _is_known(kind):
                return self._ticks(value, kind)
            classes = {Decimal, int} if t.is_decimal(kind) else _HELD.get(str(kind), {object})
            if not isinstance(value, tuple(classes)):
                raise TypeError
            return value
        except _CutError as error:
            raise _no_place(value, kind, path, f"as {_name(kind)} would be {error}") from None
        except (TypeError, ValueError, OverflowError):
            raise _no_place(value, kind, path) from None

    def _number(self, value: Any, kind: Any) -> Any:
        """A number as Python has it. Raises: _CutError, TypeError, ValueError, OverflowError."""
        from pyarrow import types as t

        is_bool = isinstance(value, bool | np.bool_)
        is_other = isinstance(value, str | bytes | np.datetime64 | np.timedelta64)
        if is_other or (t.is_boolean(kind) != is_bool and not t.is_floating(kind)):
            raise TypeError
        if isinstance(value, np.generic | np.ndarray):
            value = value.item()  # or NumPy would round it to compare it
        with np.errstate(over="ignore"):  # it is inf
            made = _dtype(kind).type(value).item()
        if made == value or (made != made and value != value):
            return made
        if self.rounds and t.is_floating(kind) and isinstance(value, Number):
            return made
        raise _CutError(made)

    def _ticks(self, value: Any, kind: Any) -> int | None:
        """A time as Arrow counts it: since 1970, since midnight, or its length. Raises: as _number."""
        from pyarrow import types as t

        if isinstance(value, np.datetime64 | np.timedelta64 | dt.datetime) and value != value:
            return None  # NaT
        has_zone = getattr(value, "tzinfo", None) is not None
        if has_zone != (getattr(kind, "tz", None) is not None) and not self.rounds:
            raise TypeError
        unit = "D" if t.is_date32(kind) else kind.unit
        given: np.datetime64 | np.timedelta64
        if t.is_duration(kind) and isinstance(value, dt.timedelta | np.timedelta64):
            given = np.timedelta64(getattr(value, "asm8", value))  # what pandas counts in ns
        elif t.is_time(kind) and isinstance(value, dt.time):
            since = dt.timedelta(0, value.second, value.microsecond, 0, value.minute, value.hour)
            given = np.timedelta64(since)
        elif (t.is_date(kind) or t.is_timestamp(kind)) and isinstance(value, dt.date | np.datetime64):
            if isinstance(value, dt.datetime) and has_zone:
                value = value.astimezone(dt.UTC).replace(tzinfo=None)
            given = np.datetime64(getattr(value, "asm8", value))
        else:
            raise TypeError
        made = given.astype(f"{given.dtype.kind}8[{unit}]")
        if made.astype(given.dtype) != given:
            raise _CutError(made)
        return int(made.astype(np.int64))


class _CutError(ValueError):
    """What would be made of a value, which is not the same."""


def inferred(values: Sequence[Any]) -> pa.DataType:
    """The type that Arrow infers of them, which need not hold them all.

    Raises: ArrowException, TypeError, OverflowError where it infers none.
    """
    import pyarrow as pa

    if _are_times_and_others(values):
        raise TypeError("np.datetime64 and others")  # pyarrow 26 ends the process: [np.datetime64(1, "s"), np.int8(1)]
    return pa.array(values).type


def _are_times_and_others(values: Sequence[Any]) -> bool:
    """Whether a np.datetime64 stands where another value is of another class, at any depth."""
    values = [value for value in values if value is not None]
    classes = set(map(type, values))
    if classes <= {list, tuple}:
        return bool(values) and _are_times_and_others(list(itertools.chain.from_iterable(values)))
    if classes == {dict}:
        names = set().union(*values)
        return any(_are_times_and_others([value[name] for value in values if name in value]) for name in names)
    return np.datetime64 in classes and len(classes) > 1


def _is_arrays(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_arrays, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_arrays, value[:1]))
    return hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0


def _is_more_than_objects(kind: Any) -> bool:
    """Whether a column of this type is more than objects, which Python's own values are as they come."""
    from pyarrow import types as t

    if t.is_struct(kind):
        return kind.num_fields > 0
    inner = kind
    while is_list(inner):
        inner = inner.value_type
    return is_number(inner) or (t.is_temporal(kind) and not t.is_interval(kind))


def _is_known(kind: Any) -> bool:
    """Whether values are looked at for a type that holds no others; the rest is as Arrow has it."""
    from pyarrow import types as t

    is_time = t.is_temporal(kind) and not t.is_interval(kind) and not t.is_date64(kind)
    return is_time or t.is_decimal(kind) or str(kind) in _HELD


def _keeps(kind: Any, numbers: Sequence[Any]) -> bool:
    """Whether a type of floats holds these numbers. Always of double: Arrow refuses what it does not hold."""
    if str(kind) == "double":
        return True
    given = np.array(numbers, np.float64)  # None is nan
    with np.errstate(over="ignore"):
        return bool(((given.astype(_dtype(kind)) == given) | np.isnan(given)).all())


def _dtype(kind: Any) -> np.dtype:
    return np.dtype(_name(kind))


def _name(kind: Any) -> str:
    """A type's name; of numbers as NumPy has it."""
    return _FLOATS.get(str(kind), str(kind))


def _no_place(value: Any, kind: Any, path: str, why: str = "") -> UnlikeError:
    named = f"field {path!r} is {shown(value)} ({type(value).__name__})"
    return UnlikeError(path, f"{named}, which {why or f'is no {_name(kind)}'}")
