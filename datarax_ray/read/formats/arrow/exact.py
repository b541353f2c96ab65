"""Python's values, so that Arrow makes exactly these of them: where they are unlike its type, it cuts them in silence.

As int64, pa.array makes 0 of 0.5; as date32 it leaves out the time; of dicts it takes the keys that it knows. It infers
types that do not hold what they were inferred from: of [1, np.float16(1.5)], int64. So where the classes of the values
do not tell that the type holds them, each is looked at, and becomes what equals it, or is an error.

The classes cost a look at each value; of a list of numbers the sum tells as much, for a third of that, but for a bool
among ints: it becomes the int that it equals, where one that stands alone is an error. To find it in attention masks
and the like, which hold nothing but 0 and 1, takes longer than to copy them.
"""

from __future__ import annotations

import datetime as dt
import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax_ray.plan.fingerprint import shown
from datarax_ray.read.formats.arrow.columns import UnlikeError, is_number

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
class Exactly:
    """rounds: a float may lose digits, and a time be with a zone or without, as Arrow does it: for a type that somebody
    chose. fills: dicts may lack keys, which are None then.
    """

    rounds: bool = False
    fills: bool = False

    def array(self, values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
        """The array of this type that equals these values.

        path: of the field, dotted. Raises: UnlikeError for a value that has no place in the type; ArrowException,
        TypeError, OverflowError where Arrow finds none.
        """
        import pyarrow as pa

        found = _lists_of_ints(values, kind)
        return pa.array(self.values(values, kind, path), kind) if found is None else found

    def values(self, values: Sequence[Any], kind: pa.DataType, path: str) -> Sequence[Any]:
        """Values of which Arrow makes, as this type, what equals the given: these themselves, or others.

        path: of the field, dotted. Raises: UnlikeError for a value that has no place in the type.
        """
        return values if self._are_held(values, kind) else [self._held(value, kind, path) for value in values]

    def _are_held(self, values: Sequence[Any], kind: Any) -> bool:
        """Whether the classes of the values tell that the type holds them all."""
        from pyarrow import types as t

        classes = set(map(type, values))
        if type(None) in classes:
            classes.remove(type(None))
            values = [value for value in values if value is not None]
        if t.is_struct(kind):
            names = {part.name for part in kind}
            return all(isinstance(value, Mapping) and value.keys() == names for value in values) and all(
                self._are_held([value[part.name] for value in values], part.type) for part in kind
            )
        if is_list(kind):
            inner = kind.value_type
            if classes == {np.ndarray}:
                return is_number(inner) and {(1, _dtype(inner))}.issuperset((each.ndim, each.dtype) for each in values)
            if not classes <= {list, tuple}:
                return False
            return self._sum_tells(values, inner) or self._are_held(list(itertools.chain.from_iterable(values)), inner)
        if t.is_timestamp(kind) or t.is_time(kind):
            is_naive = getattr(kind, "tz", None) is None
            name = f"timestamp[{kind.unit}]" if t.is_timestamp(kind) else str(kind)
            return classes <= _HELD.get(name, set()) and all((value.tzinfo is None) == is_naive for value in values)
        if (held := _HELD.get(str(kind))) is None:
            return not _is_known(kind)
        return classes <= held and (self.rounds or not t.is_floating(kind) or _keeps(kind, values))

    def _sum_tells(self, lists: Sequence[Any], kind: Any) -> bool:
        """Whether the sum of all in these lists tells that the type holds them: it is an int where all are ints."""
        from pyarrow import types as t

        if not (t.is_integer(kind) or t.is_float64(kind) or (self.rounds and t.is_floating(kind))):
            return False
        try:
            with np.errstate(all="ignore"):  # of NumPy's numbers, whose sum tells nothing
                summed = type(sum(itertools.chain.from_iterable(lists)))
            return summed is int or (summed is float and not t.is_integer(kind))
        except (TypeError, ValueError, OverflowError):
            return False  # None is among them, or text, or an int that no float holds

    def _held(self, value: Any, kind: Any, path: str) -> Any:
        """A value of which Arrow makes what equals this one."""
        from pyarrow import types as t

        if value is None:
            return None
        if t.is_struct(kind):
            names = {part.name for part in kind}
            if not isinstance(value, Mapping):
                raise _no_place(value, kind, path)
            if value.keys() - names or (names - value.keys() and not self.fills):
                keys = sorted(value, key=str)
                raise UnlikeError(path, f"field {path!r} is a dict with the keys {keys}, and they were {sorted(names)}")
            return {part.name: self._held(value.get(part.name), part.type, f"{path}.{part.name}") for part in kind}
        if is_list(kind):
            if not isinstance(value, list | tuple | np.ndarray) or not np.ndim(value):
                raise _no_place(value, kind, path)
            return [self._held(item, kind.value_type, path) for item in value]
        try:
            return self._leaf(value, kind)
        except _CutError as error:
            raise _no_place(value, kind, path, f"as {_name(kind)} would be {error}") from None
        except (TypeError, ValueError, OverflowError):
            raise _no_place(value, kind, path) from None

    def _leaf(self, value: Any, kind: Any) -> Any:
        """As _held. Raises: _CutError, TypeError, ValueError, OverflowError."""
        from pyarrow import types as t

        if is_number(kind):
            return self._number(value, kind)
        if t.is_temporal(kind) and _is_known(kind):
            return self._ticks(value, kind)
        classes = {Decimal, int} if t.is_decimal(kind) else _HELD.get(str(kind), {object})
        if not isinstance(value, tuple(classes)):
            raise TypeError
        return value

    def _number(self, value: Any, kind: Any) -> Any:
        """A number as Python has it."""
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
        """A time as Arrow counts it: since 1970, since midnight, or how long it is."""
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


def _lists_of_ints(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Lists of ints, as tokens are, which are looked at as they are copied; Arrow takes longer. None for all others."""
    import pyarrow as pa

    if not is_list(kind) or not pa.types.is_int64(kind.value_type) or not set(map(type, values)) <= {list, tuple}:
        return None
    try:
        items = pa.array(np.frombuffer(b"".join([array("q", value) for value in values]), np.int64))
    except (TypeError, OverflowError):  # a float, None, or an int that takes more
        return None
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(items, type=kind) if (lengths == kind.list_size).all() else None
    made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return made.from_arrays(pa.array(starts, pa.int64() if made is pa.LargeListArray else pa.int32()), items, type=kind)


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


class _CutError(ValueError):
    """What would be made of a value, which is not the same."""


def is_list(kind: Any) -> bool:
    """Whether this is a list of any layout but a view."""
    from pyarrow import types as t

    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _is_known(kind: Any) -> bool:
    """Whether values are looked at for a type that holds no others; the rest is as Arrow has it."""
    from pyarrow import types as t

    is_time = t.is_temporal(kind) and not t.is_interval(kind) and not t.is_date64(kind)
    return is_time or t.is_decimal(kind) or str(kind) in _HELD


def _keeps(kind: Any, numbers: Sequence[Any]) -> bool:
    """Whether a type of floats holds these numbers; but for those of which Arrow refuses what does not fit."""
    if str(kind) == "double":
        return True
    given = np.array(numbers, np.float64)
    with np.errstate(over="ignore"):
        return bool(((given.astype(_dtype(kind)) == given) | np.isnan(given)).all())


def _dtype(kind: Any) -> np.dtype:
    return np.dtype(_name(kind))


def _name(kind: Any) -> str:
    """A type's name; of numbers as NumPy has it."""
    return _FLOATS.get(str(kind), str(kind))


def _no_place(value: Any, kind: Any, path: str, why: str = "") -> UnlikeError:
    said = f"field {path!r} is {shown(value)} ({type(value).__name__}), which {why or f'is no {_name(kind)}'}"
    return UnlikeError(path, said)
