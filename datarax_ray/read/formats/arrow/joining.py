"""One type for a column of two types, which holds every value of both exactly. Pure: nothing here reads a row."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from datarax_ray.read.formats.arrow.types import is_list, is_tensor, is_varying_list, plain_type, without_extension

# Bits of an integer that a float keeps: its significand.
_SIGNIFICANDS = {16: 11, 32: 24, 64: 53}
_UNITS = ("s", "ms", "us", "ns")
_DECIMAL_DIGITS = (38, 76)  # of decimal128 and decimal256


def joined(one: Any, other: Any, *, small: Container[str] = (), strict: bool = False, path: str = "") -> Any:
    """The type that holds all values of both types, exactly; None where there is none.

    Integers and floats grow, time units become the finer one, a list of one length becomes a list, structs take the
    fields of both. A part of the type null takes the other type, since no row has a value there.
    path: of the column. small: paths ("a.b" inside structs) whose integers are all within 2**53, so that float64 holds
    them.
    strict: types that become the same arrays (plain_type), or null in one of them, and no others.

    >>> import pyarrow as pa
    >>> joined(pa.int32(), pa.int64()), joined(pa.int64(), pa.float64()), joined(pa.int8(), pa.float16())
    (DataType(int64), None, DataType(halffloat))
    >>> joined(pa.int64(), pa.float64(), small={"x"}, path="x")
    DataType(double)
    >>> joined(pa.null(), pa.list_(pa.int64())), joined(pa.string(), pa.list_(pa.null()))
    (ListType(list<item: int64>), None)
    >>> joined(pa.struct([("a", pa.null())]), pa.struct([("a", pa.string()), ("b", pa.int8())]))
    StructType(struct<a: string, b: int8>)
    """
    import pyarrow as pa

    t = pa.types
    if plain_type(one) == plain_type(other):
        return one
    if t.is_null(one) or t.is_null(other):
        return other if t.is_null(one) else one
    one, other = _of_values(one), _of_values(other)
    if t.is_struct(one) and t.is_struct(other):
        names = [*dict.fromkeys(field.name for kind in (one, other) for field in kind)]
        if strict and not len(names) == one.num_fields == other.num_fields:
            return None
        found = []
        for name in names:
            kinds = [kind.field(name).type if kind.get_field_index(name) >= 0 else pa.null() for kind in (one, other)]
            found.append(joined(*kinds, small=small, strict=strict, path=f"{path}.{name}"))
        return None if None in found else pa.struct(list(zip(names, found, strict=True)))
    if _is_any_list(one) and _is_any_list(other):
        sizes = {kind.list_size for kind in (one, other) if t.is_fixed_size_list(kind)}
        if len(sizes) > 1 or (strict and sizes):
            return None
        inner = joined(one.value_type, other.value_type, small=small, strict=strict, path=f"{path}[]")
        both_fixed = t.is_fixed_size_list(one) and t.is_fixed_size_list(other)
        return None if inner is None else pa.list_(inner, *(sizes if both_fixed else ()))
    return None if strict else _widened(one, other, path in small)


def _widened(one: Any, other: Any, is_small: bool) -> Any:
    import pyarrow as pa

    t = pa.types
    if all(t.is_integer(kind) or t.is_floating(kind) for kind in (one, other)):
        return _number(one, other, is_small)
    if all(t.is_date32(kind) or (t.is_timestamp(kind) and kind.tz is None) for kind in (one, other)):
        return pa.timestamp(_finer(one, other))
    if t.is_timestamp(one) and t.is_timestamp(other) and one.tz and other.tz:  # the same instants in any zone
        return pa.timestamp(_finer(one, other), "UTC")
    if t.is_duration(one) and t.is_duration(other):
        return pa.duration(_finer(one, other))
    if t.is_time(one) and t.is_time(other):
        unit = _finer(one, other)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if t.is_decimal(one) and t.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        made = pa.decimal128 if digits <= _DECIMAL_DIGITS[0] else pa.decimal256
        return made(digits, scale) if digits <= _DECIMAL_DIGITS[1] else None
    return None


def _number(one: Any, other: Any, is_small: bool) -> Any:
    """The smallest type of numbers that holds both."""
    import pyarrow as pa

    t, kinds = pa.types, (one, other)
    # bits of the integers, without their sign
    bits = max((k.bit_width - t.is_signed_integer(k) for k in kinds if t.is_integer(k)), default=0)
    if all(map(t.is_integer, kinds)):
        is_signed = any(map(t.is_signed_integer, kinds))
        width = next((width for width in (8, 16, 32, 64) if width >= bits + is_signed), None)
        return None if width is None else pa.type_for_alias(f"{'' if is_signed else 'u'}int{width}")
    least = max(kind.bit_width for kind in kinds if t.is_floating(kind))
    bits = min(bits, _SIGNIFICANDS[64]) if is_small else bits
    width = next((width for width, kept in _SIGNIFICANDS.items() if width >= least and kept >= bits), None)
    return None if width is None else pa.type_for_alias(f"float{width}")


def _finer(one: Any, other: Any) -> str:
    """The finer unit of two times; a date has days."""
    return _UNITS[max(_UNITS.index(getattr(kind, "unit", "s")) for kind in (one, other))]


def _of_values(kind: Any) -> Any:
    """The type of the values: without a dictionary, and without an extension but Arrow's own tensors."""
    import pyarrow as pa

    kind = without_extension(kind)
    return _of_values(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _is_any_list(kind: Any) -> bool:
    return not is_tensor(kind) and (is_list(kind) or is_varying_list(kind))
