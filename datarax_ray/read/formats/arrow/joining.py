"""One type for a column of several types, which holds every value of all exactly. Pure: nothing here reads a row."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.plan.arguments import nearest
from datarax_ray.read.formats.arrow.types import (
    is_list,
    is_list_view,
    named_type,
    plain_type,
    retyped,
    without_extension,
)

logger = logging.getLogger("datarax_ray")

# Bits of an integer that a float keeps: its significand.
_SIGNIFICANDS = {16: 11, 32: 24, 64: 53}
_UNITS = ("s", "ms", "us", "ns")
_DECIMAL_DIGITS = (38, 76)  # of decimal128 and decimal256


@dataclass(frozen=True)
class Joins:
    """How the fields of files become one schema.

    widens: fields of several types have a type that holds all (joined), and a field that some files lack is null there;
        else these are errors.
    chosen: types that somebody chose, by field.
    """

    widens: bool = True
    chosen: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, schema: str, column_types: Mapping[str, Any] | None) -> Joins:
        """The settings of a source. Raises: ValueError for another word, and for what is no type."""
        if schema not in ("widen", "strict"):
            raise ValueError(f"schema is 'widen' or 'strict', got {schema!r}")
        return cls(schema == "widen", {name: named_type(name, kind) for name, kind in (column_types or {}).items()})

    def schema(self, files: Sequence[tuple[str, Any]], small: Container[str] = ()) -> Any:
        """One schema for files, its fields by name. files: the path and the schema of each kind of file.
        small: see joined.

        Raises: ValueError for fields that are not to be joined, with two files and the remedy.
        """
        import pyarrow as pa

        names = sorted({name for _, its in files for name in its.names})
        if unknown := sorted(self.chosen.keys() - set(names)):
            raise ValueError(
                f"column_types names {unknown}, and the fields are {names}; it gives the types of whole fields, "
                f"pa.struct([...]) for structs.{nearest(unknown, names)}"
            )
        found, first = [], files[0]
        for name in names:  # the first that differs is the error
            for path, its in files if not self.widens else ():
                if (name in its.names) != (name in first[1].names):
                    raise _lacking(name, first, (path, its))
            found.append((name, self._type(name, files, small)))
        with_fields = [each for each in files if each[1].names]  # a file may have none of those that somebody named
        for each in with_fields[1:]:
            if not set(with_fields[0][1].names) & set(each[1].names):
                raise _lacking(with_fields[0][1].names[0], with_fields[0], each)
        return pa.schema(found)

    def _type(self, name: str, files: Sequence[tuple[str, Any]], small: Container[str]) -> Any:
        found = [(path, its.field(name).type) for path, its in files if name in its.names]
        if lacking := [path for path, its in files if name not in its.names]:
            logger.warning(
                "field %r is in %s and not in %s: there it is null. columns= or exclude_columns= leave it out, "
                'schema="strict" makes this an error',
                name,
                found[0][0],
                lacking[0],
            )
        if name in self.chosen:
            for path, kind in found:
                _check_cast(name, path, kind, self.chosen[name])
            return self.chosen[name]
        # by name, so that the order of the files has no say: numbers with a fraction come first
        ordered = sorted(found, key=lambda each: plain_type(each[1]))
        whole = ordered[0][1]
        for index, (path, kind) in enumerate(ordered):
            wider = joined(whole, kind, small=small, strict=not self.widens, path=name)
            if wider is None:
                odd = next((each for each in ordered[:index] if joined(each[1], kind, path=name) is None), ordered[0])
                one, other = sorted([odd, (path, kind)], key=found.index)
                raise ValueError(_unlike(name, one, other))
            whole = wider
        kinds = {plain_type(kind): path for path, kind in reversed(found)}
        if len(kinds) > 1:
            each = ", ".join(f"{kind} in {path}" for kind, path in kinds.items())
            logger.info("field %r is read as %s: it is %s", name, plain_type(whole), each)
        return found[0][1] if plain_type(whole) == plain_type(found[0][1]) else whole


JOINS = Joins()


def _lacking(name: str, one: tuple[str, Any], other: tuple[str, Any]) -> ValueError:
    types = [plain_type(its.field(name).type) if name in its.names else "missing" for _, its in (one, other)]
    without = "leave the field out (exclude_columns)" if types[0] != "missing" else "name those to read (columns=[...])"
    return ValueError(
        f"field {name!r} is {types[0]} in {one[0]} and {types[1]} in {other[0]}; every element has the same fields. "
        f"Rewrite one of them, {without}, or make two sources."
    )


def _unlike(name: str, one: tuple[str, Any], other: tuple[str, Any]) -> str:
    import pyarrow as pa

    t, kinds = pa.types, [_of_values(kind) for _, kind in (one, other)]
    as_both: Any = None  # a type that both can be cast to, with a loss that the user knows
    if (as_one := joined(one[1], other[1])) is not None:
        why, remedy = f"they are not widened to {plain_type(as_one)} where schema='strict'", "leave that out"
    else:
        if all(t.is_integer(kind) or t.is_floating(kind) for kind in kinds):
            as_both = "float64"
        elif all(map(t.is_timestamp, kinds)):
            as_both = f"timestamp[{_finer(*kinds)}]"
        elif not any(t.is_nested(kind) or t.is_binary(kind) for kind in kinds):
            as_both = "string"
        why = "no one type holds all values of both"
        remedy = f"set column_types={{{name!r}: {as_both!r}}}, which reads both" if as_both else "rewrite one of them"
    return (
        f"field {name!r} is {plain_type(one[1])} in {one[0]} and {plain_type(other[1])} in {other[0]}; {why}. To read "
        f"both, {remedy}; or leave the field out (exclude_columns), or make two sources."
    )


def _check_cast(name: str, path: str, kind: Any, chosen: Any) -> None:
    import pyarrow as pa

    try:
        retyped(pa.nulls(0, without_extension(kind)), chosen)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ValueError(
            f"column_types={{{name!r}: {str(chosen)!r}}} does not fit: the field is {plain_type(kind)} in {path}, "
            f"which cannot become that ({error}). Name another type"
        ) from error


def joined(one: Any, other: Any, *, small: Container[str] | None = (), strict: bool = False, path: str = "") -> Any:
    """The type that holds all values of both types, exactly; None where there is none.

    Integers and floats grow, time units become the finer one, a list of one length becomes a list, structs take the
    fields of both. A part of the type null takes the other type, since no row has a value there.
    path: of the column. small: paths ("a.b" inside structs) whose integers are all within 2**53, so that float64 holds
    them; None for all.
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
    if all(is_list(kind) or is_list_view(kind) for kind in (one, other)):
        sizes = {kind.list_size for kind in (one, other) if t.is_fixed_size_list(kind)}
        if len(sizes) > 1 or (strict and sizes):
            return None
        inner = joined(one.value_type, other.value_type, small=small, strict=strict, path=f"{path}[]")
        both_fixed = t.is_fixed_size_list(one) and t.is_fixed_size_list(other)
        return None if inner is None else pa.list_(inner, *(sizes if both_fixed else ()))
    return None if strict else _widened(one, other, small is None or path in small)


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
