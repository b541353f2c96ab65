"""The types that the columns of a whole Arrow table are read as, decided once, so that all its blocks agree.

Arrow's types alone do not say it: a list column may hold lists of one length (dense) or of many (ragged), and any
column may hold nulls. Both are properties of the data, so the whole column is asked, by its offsets and null counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from datarax_ray.plan.cipher import Indices
from datarax_ray.read.arrow import is_number, objects, table_columns
from datarax_ray.read.columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = ""  # in place of a path: the column that it is in
_STRIP = 2**16  # rows that are copied at a time, to look at them


@dataclass(frozen=True)
class ColumnTypes:
    """types: what columns are cast to before they are read: lists of one length as fixed_size_list. on_host: fields, by
    dotted path, that are Python objects because they hold nulls or ragged lists. whole: top-level columns of these.
    """

    types: Mapping[str, Any] = field(hash=False)
    on_host: tuple[str, ...]
    whole: tuple[str, ...]

    @classmethod
    def of(cls, table: pa.Table, rows: Indices | None = None, as_objects: Iterable[str] = ()) -> ColumnTypes:
        """The types by which every column is as dense as its data allow.

        rows: the rows that are used of the table, None for all. as_objects: columns to leave as objects.
        """
        types, on_host = {}, set(as_objects)
        for name, column in zip(table.column_names, table.columns, strict=True):
            if name in on_host:
                continue
            types[name], odd = _target(column.chunks, column.type, name)
            if odd and rows is not None:  # what is odd may be in the other rows
                types[name], odd = _target_of_rows(column, rows, name)
            on_host |= {name} if _WHOLE in odd else odd
        changed = {name: kind for name, kind in types.items() if kind != table.schema.field(name).type}
        return cls(changed, tuple(sorted(on_host)), tuple(sorted(on_host & set(table.column_names))))

    def columns(self, table: pa.Table) -> Columns:
        """The columns of a part of the table: dense arrays may be read-only views of it."""
        dense = [name for name in table.column_names if name not in self.whole]
        found: dict[str, Any] = {name: objects(table.column(name)) for name in self.whole}
        part = table.select(dense)
        for index, name in enumerate(dense):
            if name in self.types:
                part = part.set_column(index, name, _cast(part.column(name), self.types[name]))
        found.update(table_columns(part, dict.fromkeys(self.on_host)))
        return {name: found[name] for name in sorted(found)}


def _target(chunks: list[Any], kind: Any, path: str) -> tuple[Any, set[str]]:
    """The type to read a column as, and which fields of it, by path, are objects."""
    from pyarrow import types as t

    chunks = [chunk for chunk in chunks if len(chunk)]
    has_nulls = any(chunk.null_count for chunk in chunks)
    if t.is_temporal(kind) and not t.is_interval(kind):
        return kind, set()  # a null is NaT
    if any(is_kind(kind) for is_kind in (t.is_string, t.is_large_string, t.is_binary, t.is_large_binary)):
        return kind, set()  # objects as they are, and a null is None
    if has_nulls:  # a dict that is None is no dict of columns
        return kind, {_WHOLE if t.is_struct(kind) else path}
    if t.is_struct(kind) and kind.num_fields:
        return _struct_target(chunks, kind, path)
    if _is_shaped(kind):
        return _shaped(kind), set()
    if fixed := _fixed(chunks, kind):
        return fixed, set()
    return kind, set() if t.is_dictionary(kind) else {path}


def _struct_target(chunks: list[Any], kind: Any, path: str) -> tuple[Any, set[str]]:
    import pyarrow as pa

    fields, on_host = [], set()
    for index, part in enumerate(kind):
        target, odd = _target([chunk.field(index) for chunk in chunks], part.type, f"{path}.{part.name}")
        fields.append(pa.field(part.name, target))
        on_host |= odd
    return pa.struct(fields), on_host


def _target_of_rows(column: Any, rows: Indices, path: str) -> tuple[Any, set[str]]:
    """As _target, for some rows of the column; stops where they are found to be as odd as the rest."""
    found = None
    for start in range(0, len(rows), _STRIP):
        part = column.take(rows[start : start + _STRIP])
        target, odd = _target(part.chunks, part.type, path)
        if odd or (found is not None and target != found):
            return column.type, odd or {path}
        found = target
    return found, set()


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
    if not _is_list(kind):
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


def _cast(column: Any, kind: Any) -> Any:
    if hasattr(column.type, "storage_type"):
        import pyarrow as pa

        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column.cast(kind)


def _is_shaped(kind: Any) -> bool:
    """Whether this is one of the Array2D to Array5D of `datasets`, of one shape."""
    return hasattr(kind, "storage_dtype") and None not in kind.shape


def _shaped(kind: Any) -> Any:
    import pyarrow as pa

    inner = kind.storage_type
    for _ in kind.shape:
        inner = inner.value_type
    for size in reversed(kind.shape):
        inner = pa.list_(inner, size)
    return inner


def _is_list(kind: Any) -> bool:
    from pyarrow import types as t

    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))
