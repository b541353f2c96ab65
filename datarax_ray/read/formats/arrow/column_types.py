"""What a column becomes: one policy for Parquet files, Hugging Face datasets and Hugging Face streams.

    in Arrow, or in Python                        as a column of k rows
    numbers, bool                                 dense (k,), of that dtype
    lists of numbers, all of one length           dense (k, n, ...), nested ones too; fixed-size lists and tensors
    lists of numbers, of many lengths             on the host: an array for each row; nested ones: a Python list
    timestamp, date                               datetime64 (k,), on the host; UTC where there is a time zone
    duration, time                                timedelta64 (k,), on the host; a time is counted from midnight
    string, binary, decimal, map, other lists     on the host: objects as Python has them
    struct                                        a dict of columns; on the host, as dicts, where it has no fields
    dictionary, extension                         as what they stand for
    image                                         dense uint8 (k, height, width[, channels]), where all are of one size
    null in a string, list, map or decimal        None; of CSV, which has none, a text of no characters
    null in a time                                NaT
    null in a number, or in a list of them        the column is on the host, with None; a struct is a dict or None

Arrow's types alone do not say it: whether lists are of one length, and whether there are nulls, are properties of the
data. A dataset that is there as a whole is asked as a whole, by offsets and null counts; of Parquet files and streams
the first rows decide (FIRST_ROWS), and a row that does not fit then is an error that says how to decide otherwise.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import ColumnError, Columns, spec, stack, unstack_to_stack
from datarax_ray.read.formats.arrow.columns import (
    Fill,
    UnlikeError,
    is_number,
    objects,
    refuse_null_structs,
    retyped,
    table_columns,
)
from datarax_ray.read.formats.arrow.exact import Exactly, inferred, is_list

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_ROWS = 256
_WHOLE = ""  # in place of a path: the column that it is in
_STRIP = 2**16  # rows that are copied at a time, to look at them


@dataclass(frozen=True)
class ColumnTypes:
    """types: what columns are cast to before they are read: lists of one length as fixed_size_list.
    on_host: fields, by dotted path, that are Python objects because they hold nulls or ragged lists, or are structs
        that `fill` names with None, or that are null beside a field that it fills in.
    whole: top-level columns of these.
    fill: what stands for a null, by dotted path; None for a field that is to be objects, whatever it holds.
    """

    types: Mapping[str, Any] = field(hash=False)
    on_host: tuple[str, ...]
    whole: tuple[str, ...]
    fill: Fill = field(default_factory=dict, hash=False)

    @classmethod
    def of(
        cls,
        table: pa.Table,
        rows: Indices | None = None,
        as_objects: Iterable[str] = (),
        fill: Fill | None = None,
        ragged: Iterable[str] = (),
    ) -> ColumnTypes:
        """The types by which every column is as dense as its data allow.

        rows: the rows that are used of the table, None for all.
        as_objects: columns to leave as objects.
        fill: as above.
        ragged: leaves, by dotted path, whose lists are known to differ in length in rows that are not here.
        """
        said = _Said(fill or {}, tuple(ragged))
        known = [path for part in table.schema for path in _paths(part.name, part.type)]
        if unknown := sorted(said.fill.keys() - set(known)):
            raise ValueError(
                f"fill_nulls names {unknown}, and the fields that are read are {sorted(known)}; their nulls would stay "
                f"as they are.{nearest(unknown, known)}"
            )
        types, on_host = {}, set(as_objects)
        for name, column in zip(table.column_names, table.columns, strict=True):
            if name in on_host:
                continue
            types[name], odd = _target(column.chunks, column.type, name, said)
            if rows is not None and (odd or _is_ragged(types[name])):  # what is odd may be in the other rows
                types[name], odd = _target_of_rows(column, rows, name, said, (types[name], odd))
            on_host |= {name} if _WHOLE in odd else odd
        changed = {name: kind for name, kind in types.items() if kind != table.schema.field(name).type}
        return cls(changed, tuple(sorted(on_host)), tuple(sorted(on_host & set(table.column_names))), said.fill)

    def columns(self, table: pa.Table) -> Columns:
        """The columns of a part of the table: dense arrays may be read-only views of it.

        Raises: UnlikeError for rows that are not like those by which the types were decided.
        """
        dense = [name for name in table.column_names if name not in self.whole]
        found: dict[str, Any] = {name: objects(table.column(name)) for name in self.whole if name in table.column_names}
        part = table.select(dense)
        for index, name in enumerate(dense):
            refuse_null_structs(part.column(name), name, self.fill, self.on_host)
            if name in self.types:
                part = part.set_column(index, name, _cast(part.column(name), self.types[name], name))
        found.update(table_columns(part, {**self.fill, **dict.fromkeys(self.on_host)}))
        return {name: found[name] for name in sorted(found)}

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


@dataclass(frozen=True)
class ElementTypes:
    """The types of elements that come one by one, as dicts of Python values; ColumnTypes for those that Arrow holds.

    kinds: the Arrow types of the fields that become arrays, or are None somewhere.
    loose: fields of arrays, images and objects of one's own, which stack, or do not, as they are. The others are
        objects on the host.
    declared: those of kinds whose type somebody chose, so that a float is rounded to it; one that is inferred takes
        what it holds exactly.
    """

    fields: tuple[str, ...]
    kinds: Mapping[str, Any] = field(hash=False)
    types: ColumnTypes = field(hash=False)
    loose: tuple[str, ...]
    declared: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, elements: Sequence[Any], kinds: Mapping[str, Any], loose: Iterable[str], as_objects: Iterable[str]
    ) -> ElementTypes | None:
        """The types by these first elements; None where they have not all the same fields, and are no table.

        kinds: the Arrow types of fields where they are known.
        loose: fields that are.
        as_objects: fields that are not to be looked at.
        """
        import pyarrow as pa

        fields = tuple(sorted(elements[0])) if elements else ()
        if not fields or any(tuple(sorted(element)) != fields for element in elements):
            return None
        found: dict[str, Any] = {}
        apart = set(loose)
        for name in fields:
            if name in apart or name in as_objects:
                continue
            values = [element[name] for element in elements]
            if any(_is_arrays(value) for value in values):
                apart.add(name)
                continue
            try:
                kind = pa.array(values, kinds[name]).type if name in kinds else inferred(values)
                if _is_more_than_objects(kind):
                    found[name] = Exactly(rounds=name in kinds).array(values, kind, name)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                apart.add(name)
        types = ColumnTypes.of(pa.table(found)) if found else ColumnTypes({}, (), ())
        declared = tuple(sorted(found.keys() & kinds.keys()))
        return cls(fields, {name: array.type for name, array in found.items()}, types, tuple(sorted(apart)), declared)

    def columns(self, elements: Sequence[Any]) -> dict[str, Any]:
        """The columns of elements, with the loose fields as objects.

        Raises: ValueError for elements that are not like those by which the types were decided.
        """
        import pyarrow as pa

        odd = next((element for element in elements if tuple(sorted(element)) != self.fields), None)
        if odd is not None:
            raise ValueError(f"fields {list(self.fields)} in one element, {sorted(odd)} in another")
        values = {name: [element[name] for element in elements] for name in self.fields}
        for name in self.loose:
            values[name] = list(map(without_pil, values[name]))
        arrays = {}
        for name, kind in self.kinds.items():
            try:
                arrays[name] = Exactly(rounds=name in self.declared).array(values[name], kind, name)
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise UnlikeError(name, f"field {name!r} was {kind}: {error}") from error
        found = self.types.columns(pa.table(arrays)) if arrays else {}
        for name in self.fields:
            if name not in arrays:
                found[name] = np.fromiter(values[name], object, len(elements))
        return found

    def first_odd(self, elements: Sequence[Any]) -> tuple[int, ValueError] | None:
        """The first of the elements that has no place in the columns by itself, and why; None where each has one."""
        for index, element in enumerate(elements):
            try:
                self.columns([element])
            except ValueError as error:
                return index, error
        return None

    def differences(self, elements: Sequence[Any]) -> list[list[str]]:
        """The fields of which these elements make other columns than stack() would, with their types."""
        found = []
        for name, kind in sorted(self.kinds.items()):
            try:
                stacked = spec(stack([element[name] for element in elements]))
            except ColumnError:
                continue  # no stream of such elements has been
            if stacked != spec(self.columns(elements)[name]):
                found.append([name, str(kind)])
        return found


def settle(columns: Columns, loose: Mapping[str, list[Any]]) -> Columns | list[Any]:
    """The columns with those of loose values among them, where they stack; else the elements, for a transform to do it.

    >>> settle({"x": np.arange(2)}, {"image": [np.zeros((1, 1), np.uint8)] * 2})["image"].shape
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


def _is_arrays(value: Any) -> bool:
    """Whether this is an array of more than one axis, or holds arrays: Arrow would make lists of some of them."""
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


@dataclass(frozen=True)
class _Said:
    """What is known beforehand; see ColumnTypes.of."""

    fill: Fill
    ragged: tuple[str, ...]

    def fills_in(self, path: str) -> bool:
        return any(name.startswith(f"{path}.") for name in self.fill)

    def has_value_in(self, path: str) -> bool:
        return any(name.startswith(f"{path}.") and value is not None for name, value in self.fill.items())

    def is_ragged(self, path: str) -> bool:
        return any(leaf.startswith(f"{path}.") for leaf in self.ragged)


def _target(chunks: list[Any], kind: Any, path: str, said: _Said) -> tuple[Any, set[str]]:
    """The type to read a column as, and which fields of it, by path, are objects."""
    import pyarrow as pa
    from pyarrow import types as t

    if path in said.fill:
        return kind, {path} if t.is_struct(kind) and said.fill[path] is None else set()
    chunks = [chunk for chunk in chunks if len(chunk)]
    has_nulls = any(chunk.null_count for chunk in chunks)
    if t.is_temporal(kind) and not t.is_interval(kind):
        return kind, set()  # a null is NaT
    if any(is_kind(kind) for is_kind in (t.is_string, t.is_large_string, t.is_binary, t.is_large_binary)):
        return kind, set()  # objects as they are, and a null is None
    if t.is_struct(kind) and kind.num_fields and (not has_nulls or said.fills_in(path)):
        return _struct_target(chunks, kind, path, said)
    if is_list(kind) and is_number(kind.value_type) and not any(chunk.flatten().null_count for chunk in chunks):
        fixed = None if has_nulls or said.is_ragged(path) else _fixed(chunks, kind)
        return fixed or (pa.list_(kind.value_type) if t.is_fixed_size_list(kind) else kind), set()
    if has_nulls:  # a dict that is None is no dict of columns
        return kind, {_WHOLE if t.is_struct(kind) else path}
    if hasattr(kind, "storage_dtype") and None not in kind.shape:  # one of the Array2D to Array5D of `datasets`
        return _shaped(kind), set()
    if not said.is_ragged(path) and (fixed := _fixed(chunks, kind)):
        return fixed, set()
    return kind, set() if t.is_dictionary(kind) or isinstance(kind, pa.FixedShapeTensorType) else {path}


def _struct_target(chunks: list[Any], kind: Any, path: str, said: _Said) -> tuple[Any, set[str]]:
    import pyarrow as pa

    fields, on_host = [], set()
    for index, part in enumerate(kind):
        inner = [chunk.field(index) for chunk in chunks]
        target, odd = _target(inner, part.type, f"{path}.{part.name}", said)
        if _WHOLE in odd and said.has_value_in(path):  # which has its place in a dict of columns alone
            target, odd = part.type, {f"{path}.{part.name}"}
        fields.append(pa.field(part.name, target))
        on_host |= odd
    return pa.struct(fields), on_host


def _paths(path: str, kind: Any) -> list[str]:
    """The dotted paths of a field and of all that are inside it, where it is a struct."""
    from pyarrow import types as t

    kind = getattr(kind, "storage_type", kind)
    inner = [found for part in kind for found in _paths(f"{path}.{part.name}", part.type)] if t.is_struct(kind) else []
    return [path, *inner]


def _target_of_rows(
    column: Any, rows: Indices, path: str, said: _Said, whole: tuple[Any, set[str]]
) -> tuple[Any, set[str]]:
    """As _target, for some rows of the column; stops where they are found to be as odd as the whole."""
    found = None
    for start in range(0, len(rows), _STRIP):
        part = column.take(rows[start : start + _STRIP])
        target, odd = _target(part.chunks, part.type, path, said)
        if odd or (found is not None and target != found):
            return whole
        found = target
    return found, set()


def _is_ragged(kind: Any) -> bool:
    """Whether there are lists of numbers of many lengths in this, which some of the rows need not have."""
    from pyarrow import types as t

    if t.is_struct(kind):
        return any(_is_ragged(part.type) for part in kind)
    return (t.is_list(kind) or t.is_large_list(kind)) and is_number(kind.value_type)


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


def in_storage(table: pa.Table) -> pa.Table:
    """The table without extension types but Arrow's own tensors: others exist only in processes that registered them
    (`datasets` does), and what a column becomes must not depend on that.
    """
    import pyarrow as pa

    for index, column in enumerate(table.columns):
        if isinstance(column.type, pa.BaseExtensionType) and not isinstance(column.type, pa.FixedShapeTensorType):
            stored = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
            table = table.set_column(index, table.column_names[index], stored)
    return table


def _cast(column: Any, kind: Any, name: str) -> Any:
    import pyarrow as pa

    try:
        return retyped(column, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UnlikeError(
            name, f"field {name!r} is read as {kind}, as its first lists are of one length, and here is one of another"
        ) from error


def _shaped(kind: Any) -> Any:
    import pyarrow as pa

    inner = kind.storage_type
    for _ in kind.shape:
        inner = inner.value_type
    for size in reversed(kind.shape):
        inner = pa.list_(inner, size)
    return inner
