"""From columns of Arrow to columns of NumPy: one policy for Parquet, text, Hugging Face datasets and streams.

    in Arrow, or in Python                        as a column of k rows
    numbers, bool                                 dense (k,), of that dtype
    lists of numbers, all of one length           dense (k, n, ...), nested ones too; fixed-size lists and tensors
    lists of numbers, of many lengths             on the host: an array for each row; nested ones: a Python list
    timestamp, date                               datetime64 (k,), on the host; UTC where there is a time zone
    duration, time                                timedelta64 (k,), on the host; a time is counted from midnight
    string, binary, decimal, map, other lists     on the host: objects as Python has them
    struct                                        a dict of columns; on the host, as dicts, where it has no fields
    dictionary, extension                         as the values they stand for
    image                                         dense uint8 (k, height, width[, channels]), where all are of one size
    null in a string, list, map or decimal        None; of CSV, which has none, a text of no characters
    null in a time                                NaT
    null in a number, or in a list of them        the column is on the host, with None; a struct is a dict or None

Arrow's types leave two things open: whether lists are of one length, and whether there are nulls. The data decide. A
dataset that is there as a whole decides as a whole, by offsets and null counts. Of files and streams the first rows
decide (FIRST_ROWS), and a later row that does not fit is an error that says how to decide otherwise.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import Columns, concatenate, leaves
from datarax_ray.read.formats.arrow.types import (
    ERROR,
    HOST,
    OnNull,
    is_list,
    is_number,
    is_varying_list,
    plain_type,
    retyped,
    stored,
    without_extension,
)

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_ROWS = 256
MAX_JOINED_NBYTES = 2**31 - 1  # of text and lists: Arrow counts what is in one array in 32 bits
Fill = Mapping[str, Any]  # field, dotted -> what stands for a null of it; None makes it an object column with None
_STRIP = 2**16  # rows that are copied at a time, to look at them


class UnlikeError(ValueError):
    """A value of a field has no place in the array that the field is read as.

    is_of_nulls: the values are nulls, in place of which a value would do. chosen: a type by which it would be read.
    """

    def __init__(self, field: str, message: str, *, is_of_nulls: bool = False, chosen: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.is_of_nulls = is_of_nulls
        self.chosen = chosen

    @property
    def remedy(self) -> str:
        """What to set in the config of a source of tables."""
        if self.chosen:
            return f"give the source's config column_types={{{self.field!r}: {self.chosen!r}}}, or another type"
        value = f"{{{self.field!r}: value}} to put a value in place of nulls, or " if self.is_of_nulls else ""
        return (
            f"give the source's config on_null={value}{{{self.field!r}: 'host'}} to have the field on the host as "
            "Python has it"
        )


@dataclass(frozen=True)
class Field:
    """How one field is read.

    path: the name, dotted inside structs.
    type: Arrow's, lists of numbers as fixed_size_list where they are dense.
    is_objects: the values stay as Python has them.
    parts: the fields of a struct that becomes a dict of columns.
    fill: (value,), which stands for a null; () where a null has no place but None or NaT.
    """

    path: str
    type: Any
    is_objects: bool = False
    parts: tuple[Field, ...] = ()
    fill: tuple[Any, ...] = ()

    @classmethod
    def of_type(cls, path: str, kind: Any, fill: Fill) -> Field:
        """The field as its type alone decides."""
        from pyarrow import types as t

        kind = without_extension(kind)
        parts = [cls.of_type(f"{path}.{part.name}", part.type, fill) for part in kind] if t.is_struct(kind) else []
        value = (fill[path],) if path in fill else ()
        return cls(path, kind, value == (None,), tuple(parts), value)

    @property
    def leaves(self) -> Iterator[Field]:
        """The fields that become one array."""
        if self.is_objects or not self.parts:
            yield self
        else:
            yield from (leaf for part in self.parts for leaf in part.leaves)

    @property
    def types(self) -> list[tuple[str, Any]]:
        return [(self.path, self.type), *(each for part in self.parts for each in part.types)]

    @property
    def fills(self) -> list[Any]:
        """The values that stand for nulls of the fields inside this field."""
        return [value for part in self.parts for value in (*part.fill, *part.fills)]

    def read(self, column: pa.ChunkedArray) -> Columns:
        """The column, or the dict of columns. Raises: UnlikeError; ValueError for a fill that is no such value."""
        if self.is_objects:
            return objects(column)
        if column.num_chunks == 1:
            return self._converted(column.chunk(0))
        if column.nbytes <= MAX_JOINED_NBYTES:
            return self._converted(column.combine_chunks())  # a copy
        return concatenate([self._converted(array) for array in column.chunks])  # as of one row group of much text

    def _converted(self, array: pa.Array) -> Columns:
        import pyarrow as pa

        array = getattr(array, "storage", array)
        if self.is_objects:
            return objects(array)
        t, kind = pa.types, array.type
        if t.is_dictionary(kind):
            if array.null_count or t.is_nested(kind.value_type):
                return self._converted(array.dictionary_decode())
            return self._converted(array.dictionary)[array.indices.to_numpy()]
        if self.fill:
            array = _filled(array, self.path, *self.fill)
        if self.parts:
            if array.null_count and not self.fill and not self.fills:
                nulls = _count_of_nulls(array)
                message = f"field {self.path!r} (struct) {nulls}, and a dict of columns has no place for that"
                raise UnlikeError(self.path, message)
            # flatten() hands a null of the struct down to its fields, for which there are fills
            inner = {part.name: each for part, each in zip(kind, array.flatten(), strict=True)}
            names = [part.path.removeprefix(f"{self.path}.") for part in self.parts]
            return {name: part._converted(inner[name]) for name, part in zip(names, self.parts, strict=True)}
        if array.type != self.type and any(map(t.is_fixed_size_list, (array.type, self.type))):
            try:
                array = retyped(array, self.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UnlikeError(
                    self.path,
                    f"field {self.path!r} is read as {self.type}, since its first lists have one length; a list here "
                    "has another length",
                ) from error
        return _array(array, self.path)


@dataclass(frozen=True)
class Known:
    """What is known of rows that are not in a table, by field, dotted inside structs.

    nulls: how many nulls a field has, 0 where there are some.
    unsure: fields in which the nulls may be those of a struct around them.
    ragged: fields whose lists differ in length.
    inside: fields whose lists have nulls among their values.
    num_rows: of which the nulls are.
    others: how many nulls a field has that is neither a number nor a list, as text.
    """

    nulls: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unsure: Container[str] = ()
    ragged: Container[str] = ()
    inside: Container[str] = ()
    num_rows: int = 0
    others: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def told(self, path: str) -> str:
        """What is known of the nulls of a field, for people."""
        count = self.nulls.get(path, 0) or self.others.get(path, 0)
        return f"{count:,} nulls in {self.num_rows:,} rows" if count else ""


@dataclass(frozen=True)
class ColumnTypes:
    """How the columns of tables are read.

    fields: one for each column, by name.
    fill: values for nulls, by path.
    on_null: the setting from which these come.
    nulls: fields of numbers and structs that nulls keep on the host; with what is known of these nulls, for people.
    missing: the same of fields of any kind that are null somewhere themselves, and so None; times are NaT.
    """

    fields: tuple[Field, ...]
    fill: Fill = dataclasses.field(default_factory=dict, hash=False)
    on_null: OnNull = dataclasses.field(default_factory=OnNull)
    nulls: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        table: pa.Table,
        rows: Indices | None = None,
        as_objects: Iterable[str] = (),
        on_null: Any = None,
        known: Known | None = None,
    ) -> ColumnTypes:
        """The types by which every column is as dense as its data allow.

        rows: the rows that are used of the table, None for all.
        as_objects: columns to leave as objects.
        on_null: see OnNull.
        known: of rows that are not here.

        Raises: ValueError for fields in on_null that are not there, and for nulls where on_null is "error".
        """
        from pyarrow.types import is_temporal

        table, on_null, known = stored(table), OnNull.of(on_null), known or Known()
        by_type = [Field.of_type(part.name, part.type, {}) for part in table.schema]
        types = [each for field in by_type for each in field.types]
        paths = [path for path, _ in types]
        if unknown := sorted(on_null.by_field.keys() - set(paths)):
            raise ValueError(
                f"on_null names {unknown}, and the fields that are read are {sorted(paths)}; their nulls would stay "
                f"as they are.{nearest(unknown, paths)}"
            )
        fill, names, found = on_null.fills(types), set(as_objects), []
        if kept := sorted(name for name in names if fill.get(name) is not None and name in on_null.by_field):
            raise ValueError(
                f"on_null gives a value for {kept}, which are objects on the host (images, host_keys), so their nulls "
                "would stay. Leave them out of on_null, or fill them in a transform"
            )
        for part, column in zip(table.schema, table.columns, strict=True):
            field = Field.of_type(part.name, part.type, fill)
            found.append(_as_objects(field) if field.path in names else _decided_by_rows(field, column, rows, known))
        fields = tuple(sorted(found, key=lambda field: field.path))
        nulls = {
            leaf.path: known.told(leaf.path)
            for field, column in ((field, table.column(field.path)) for field in fields if field.path not in names)
            for leaf in field.leaves
            if leaf.path not in fill and _has_moved(leaf, known, field.path, column)
        }
        if errors := [path for path in nulls if on_null.says(path, ERROR)]:
            each = ", ".join(f"{path!r} ({nulls[path]})" if nulls[path] else repr(path) for path in errors)
            raise ValueError(
                f"there are nulls, and on_null has 'error' for them: {each}. on_null={{{errors[0]!r}: value}} puts a "
                f"value in their place, {{{errors[0]!r}: 'host'}} has the field on the host, with None"
            )
        missing = {
            leaf.path: known.told(leaf.path)
            for field in fields
            for leaf in field.leaves
            if leaf.path not in fill and not is_temporal(leaf.type)
            if (leaf.path == field.path and table.column(field.path).null_count) or known.told(leaf.path)
        }
        return cls(fields, fill, on_null, nulls, missing)

    @property
    def moved(self) -> dict[str, str]:
        """Those of nulls that no setting has on the host."""
        return {path: told for path, told in self.nulls.items() if not self.on_null.says(path, HOST)}

    def described(self) -> list[list[str]]:
        """The path and the type of each array, in plain text, for a fingerprint."""
        return [
            [leaf.path, "objects" if leaf.is_objects else plain_type(leaf.type)]
            for each in self.fields
            for leaf in each.leaves
        ]

    def columns(self, table: pa.Table) -> Columns:
        """The columns of a part of the table, read-only: dense arrays may be views of it.

        Raises: UnlikeError for rows that are not like those by which the types were decided; ValueError for a fill
        that is no such value.
        """
        table = stored(table)
        names = [field.path for field in self.fields]
        if sorted(table.column_names) != names:
            raise ValueError(f"fields {names} in the first rows, {sorted(table.column_names)} in later rows")
        found = {field.path: field.read(table.column(field.path)) for field in self.fields}
        for _, array in leaves(found):
            array.setflags(write=False)
        return found

    def first_odd(self, table: pa.Table) -> tuple[int, ValueError] | None:
        """The first row of the table that has no place in the columns by itself, and why; None where each has one."""

        def why_not(start: int, stop: int) -> ValueError | None:
            try:
                self.columns(table.slice(start, stop - start))
            except ValueError as error:
                return error
            return None

        index = bisect.bisect_left(range(table.num_rows), True, key=lambda row: why_not(0, row + 1) is not None)
        why = why_not(index, index + 1)
        return None if why is None else (index, why)


def _decided_by_rows(field: Field, column: Any, rows: Indices | None, known: Known) -> Field:
    """The field as the used rows of the column decide; where they are as odd as the whole, as the whole does."""
    whole = _decided(field, column.chunks, known) or _as_objects(field)
    if rows is None or not any(leaf.is_objects or _is_ragged(leaf.type) for leaf in whole.leaves):
        return whole
    found: Field | None = None
    for start in range(0, len(rows), _STRIP):
        part = _decided(field, column.take(rows[start : start + _STRIP]).chunks, known)
        if part is None or any(leaf.is_objects for leaf in part.leaves) or found not in (None, part):
            return whole
        found = part
    return found or whole


def _decided(field: Field, chunks: list[Any], known: Known) -> Field | None:
    """The field as these values decide. None where a struct in it is null: then the whole column is objects."""
    import pyarrow as pa

    t, kind = pa.types, field.type
    chunks = [getattr(chunk, "storage", chunk) for chunk in chunks if len(chunk)]
    is_known = field.path in known.nulls
    if field.fill or not (chunks or is_known):
        return field
    is_text = any(is_kind(kind) for is_kind in (t.is_string, t.is_large_string, t.is_binary, t.is_large_binary))
    if is_text or (t.is_temporal(kind) and not t.is_interval(kind)):
        return field  # a null is None, or NaT
    has_nulls = is_known or any(chunk.null_count for chunk in chunks)
    if field.parts:
        return None if has_nulls and not field.fills else _decided_struct(field, chunks, known)
    is_uneven = field.path in known.ragged
    if not is_uneven and not has_nulls and (fixed := _fixed(chunks, kind)):
        return None if field.path in known.unsure else Field(field.path, fixed)
    is_numbers = is_list(kind) and is_number(kind.value_type) and field.path not in known.inside
    if is_numbers and not any(chunk.flatten().null_count for chunk in chunks):
        return Field(field.path, pa.list_(kind.value_type))
    is_as_stored = not has_nulls and not is_uneven and t.is_dictionary(kind)
    return field if is_as_stored else _as_objects(field)


def _decided_struct(field: Field, chunks: list[Any], known: Known) -> Field | None:
    has_value = any(value is not None for value in field.fills)
    parts = []
    for index, part in enumerate(field.parts):
        found = _decided(part, [chunk.field(index) for chunk in chunks], known)
        if found is None and not has_value:
            return None
        parts.append(found or _as_objects(part))  # alone: the value has its place in a dict of columns
    return dataclasses.replace(field, parts=tuple(parts))


def _has_moved(field: Field, known: Known, path: str, column: Any) -> bool:
    """Whether nulls keep this field of numbers, or this struct, on the host. path, column: of the field around it."""
    inner = field.type
    while is_list(inner):
        inner = inner.value_type
    if is_number(inner) and inner != field.type:
        return field.path in known.nulls or (field.path == path and column.null_count > 0)
    return field.is_objects and (is_number(field.type) or bool(field.parts))


def _as_objects(field: Field) -> Field:
    return dataclasses.replace(field, is_objects=True)


def _is_ragged(kind: Any) -> bool:
    """Whether this is a list of numbers whose length varies."""
    return is_varying_list(kind) and is_number(kind.value_type)


def _fixed(chunks: Iterable[Any], kind: Any) -> Any:
    """The nested fixed_size_list that these lists are, or None: they differ in length, or hold more than numbers.

    Reads offsets only, and stops at the first chunk that differs.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [chunk for chunk in chunks if len(chunk)]
    if any(chunk.null_count for chunk in chunks):
        return None
    if is_number(kind):
        return kind
    if not is_list(kind):
        return None
    size: int | None = None
    for chunk in chunks:
        lengths = pc.min_max(pc.list_value_length(chunk))
        lo, hi = lengths["min"].as_py(), lengths["max"].as_py()
        if lo != hi or size not in (None, lo):
            return None
        size = lo
    inner = _fixed([chunk.flatten() for chunk in chunks], kind.value_type)
    return None if inner is None else pa.list_(inner, size or 0)


def _array(array: pa.Array, path: str) -> np.ndarray:
    """The values of an array that is no dict of columns, as its type says."""
    import pyarrow as pa

    t, kind = pa.types, array.type
    if t.is_fixed_size_list(kind):
        _refuse_nulls(array, path)
        _refuse_nulls_inside(array, path)
        inner = array.flatten()
        if not (is_number(inner.type) or t.is_fixed_size_list(inner.type) or t.is_temporal(inner.type)):
            return objects(array)
        dense = _array(inner, path)
        return objects(array) if dense.dtype == object else dense.reshape(len(array), kind.list_size, *dense.shape[1:])
    if is_varying_list(kind):
        return _lists(array, path)
    if t.is_map(kind) or t.is_struct(kind):  # a struct without fields: a dict of no columns would have no rows
        return objects(array)
    if t.is_time(kind):
        width = array.cast(pa.int32()).cast(pa.int64()) if t.is_time32(kind) else array.cast(pa.int64())
        array = width.view(pa.duration(kind.unit))
    elif is_number(kind):
        _refuse_nulls(array, path)
    if t.is_integer(kind) or t.is_floating(kind):
        return np.from_dlpack(array)  # to_numpy gives the same view, and imports pandas: 0.5 s and 40 MB in every actor
    return array.to_numpy(zero_copy_only=False)


def _lists(array: Any, path: str) -> np.ndarray:
    inner = array.type.value_type
    if not is_number(inner):
        return objects(array)
    _refuse_nulls_inside(array, path)
    if not array.values.null_count or not len(array):
        return array.to_numpy(zero_copy_only=False)
    import pyarrow.compute as pc  # nulls that lie below rows that are null: to_numpy would make floats of all

    stops = np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy())
    parts = np.split(_array(array.flatten(), path), stops[:-1])
    is_valid = array.is_valid().to_pylist()
    return np.fromiter(
        (part if valid else None for part, valid in zip(parts, is_valid, strict=True)), object, len(parts)
    )


def _filled(array: Any, path: str, value: Any) -> Any:
    import pyarrow as pa

    try:
        if pa.types.is_null(array.type):  # nothing tells what it would be, but the value
            array = array.cast(pa.scalar(value).type)
        scalar = pa.scalar(value, array.type)
        if isinstance(value, Number) and pa.types.is_integer(array.type) and scalar.as_py() != value:
            raise pa.ArrowInvalid(f"it would be {scalar}")  # Arrow cuts 0.5 to 0 and says nothing
        return array.fill_null(scalar)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise ValueError(
            f"on_null gives {value!r} for field {path!r} of {array.type}, which cannot be: {error}; give a value of "
            "that type, or 'host' to get objects with None"
        ) from error


def _refuse_nulls(array: Any, path: str) -> None:
    if array.null_count:
        raise UnlikeError(
            path,
            f"field {path!r} ({array.type}) {_count_of_nulls(array)}, and a dense array has no place for that",
            is_of_nulls=True,
        )


def _refuse_nulls_inside(array: Any, path: str) -> None:
    import pyarrow as pa

    inner = array.flatten()
    if inner.null_count and (is_number(inner.type) or pa.types.is_fixed_size_list(inner.type)):
        raise UnlikeError(
            path, f"field {path!r} has nulls inside its lists, and an array of {inner.type} has no place for them"
        )


def _count_of_nulls(array: Any) -> str:
    return f"has {array.null_count} nulls in {len(array)} rows" if len(array) > 1 else "is null"


def objects(array: Any) -> np.ndarray:
    """The values of an array or a column as Python has them."""
    return np.fromiter(array.to_pylist(), object, len(array))


def rows_of(table: pa.Table, rows: Indices) -> pa.Table:
    """These rows of the table, int64 (k,); not by Table.take, which has not all types, nor joins more than 2 GiB."""
    import pyarrow as pa

    bounds = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    runs = [table.slice(int(rows[first]), stop - first) for first, stop in itertools.pairwise(bounds)]
    return runs[0] if len(runs) == 1 else pa.concat_tables(runs).combine_chunks()


def rows_of_table(table: Any) -> list[dict[str, Any]]:
    return stored(table).to_pylist()
