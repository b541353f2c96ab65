"""JSON in text files: an object on each line, or one array of objects. Source: pyarrow.json, which parses both."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json import decoder
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats.arrow.types import retyped
from datarax_ray.read.formats.text.syntax import BOM, LONG_DIGITS, Syntax, lines_in, with_its_bom

_INFERRED = {"beside": "inferred"}  # of a schema: of the columns that it has not
_SPACES = np.frombuffer(b" \t\r", np.uint8)
_SPACE = re.compile(r"[ \t\n\r]*")
_OPENING = re.compile(r"[ \t\n\r]*\[?[ \t\n\r]*,?[ \t\n\r]*")  # of an array, or of a part of one
_BETWEEN = re.compile(r"[ \t\n\r]*,?[ \t\n\r]*")
_ON_ONE_LINE = bytes.maketrans(b"\n\r", b"  ")
_DECODER = json.JSONDecoder()
# Each escape in turn, so that the second character of one never begins another: pairs of surrogates, and lone ones.
_ESCAPES = re.compile(rb"\\(u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


@dataclass(frozen=True)
class JSONLines(Syntax):
    """A JSON object on each line."""

    name = "JSON lines"
    suffixes = (".jsonl", ".ndjson", ".json")

    def fitting(self, head: bytes) -> Syntax:
        is_array = head.removeprefix(BOM).lstrip(b" \t\r\n").startswith(b"[")
        return JSONArray(errors=self.errors, as_json=self.as_json) if is_array else self

    def prepared(self, data: bytes) -> bytes:
        data = super().prepared(data)
        if self.errors == "replace" and (b"\\ud" in data or b"\\uD" in data):
            data = _ESCAPES.sub(lambda found: rb"\ufffd" if found[2] else found[0], data)
        if self.as_json:
            data = b"\n".join(_with_texts(line, self.as_json) for line in data.split(b"\n"))
        return data

    def rows(self, data: bytes, is_last: bool) -> Indices:
        found = lines_in(data)[: None if is_last else -1]
        found = found[found[:, 0] < found[:, 1]]
        is_row = ~np.isin(np.frombuffer(data, np.uint8)[found[:, 0]], _SPACES)
        for index in np.flatnonzero(~is_row).tolist():
            is_row[index] = bool(data[slice(*found[index])].strip(b" \t\r"))
        return found[is_row]

    def names(self, header: bytes) -> tuple[str, ...]:
        return ()

    def beside(self, given: Mapping[str, Any]) -> Any:
        import pyarrow as pa

        return pa.schema(given.items(), _INFERRED) if given else None

    def parse(self, data: bytes, names: Sequence[str], schema: Any) -> Any:
        import pyarrow as pa

        if not _are_objects(data):
            raise pa.ArrowInvalid("JSON parse error: a line is one object, from { to }")
        infers = _infers(schema)
        try:
            table = _table_of_json(data, schema)
            if infers and (dated := _without_times(table.schema)) != table.schema:
                return _table_of_json(data, dated)
            if schema is not None and not data.isascii():
                table.validate(full=True)  # text that is no UTF-8, which it takes for text
            return table
        except pa.ArrowInvalid as error:
            if infers or "unexpected field" not in str(error):
                raise
            more = list(_fields_beside(schema, self.parse(data, names, None).schema))
            if not more:  # in a type that is given, and that is never inferred
                raise
        raise pa.ArrowInvalid(
            f"it has fields that the first rows have not: {', '.join(map(repr, more))}. Name the whole type of each "
            "column in column_types ('int64', or pa.list_(pa.struct({'name': pa.string()})) for [{'name': 'a'}]) to "
            "read them; where they are missing they are None, or what on_null says"
        )

    def long_integers(self, data: bytes, names: Sequence[str], schema: Any) -> Iterator[tuple[str, int]]:
        import pyarrow as pa

        if not LONG_DIGITS.search(data):
            return
        kind = pa.struct(schema)
        for start, stop in self.rows(data, True).tolist():
            if LONG_DIGITS.search(data, start, stop):
                try:
                    value = json.loads(data[start:stop])
                except (ValueError, RecursionError):  # no object alone, which reading says, or one of great depth
                    continue
                yield from _long_integers_in(value, kind, "")


@dataclass(frozen=True)
class JSONArray(JSONLines):
    """One array of objects, which may be on several lines each."""

    name = "JSON array"
    closing = b"]"

    def rows(self, data: bytes, is_last: bool) -> Indices:
        text, found = data.decode("latin-1"), []  # a character is a byte, and JSON's own are ASCII
        at = _end_of(_OPENING, text, 0)
        while at < len(text) and text[at] != "]":
            if text[at] != "{":
                raise ValueError(f"what begins with {text[at : at + 20]!r} is no object of one array of objects")
            try:
                _, end = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if is_last:
                    raise ValueError(f"an object of the array does not parse, or is cut: {error}") from error
                break
            found.append((at, end))
            at = _end_of(_BETWEEN, text, end)
        if text[at : at + 1] == "]" and (rest := text[at + 1 :].strip()):
            raise ValueError(f"{rest[:20]!r} follows the array")
        return np.array(found, np.int64).reshape(-1, 2)

    def prepared(self, data: bytes) -> bytes:
        spans = self.rows(data, True).tolist()
        # a newline inside of JSON is a space
        lines = (data[start:stop].translate(_ON_ONE_LINE) for start, stop in spans)
        return super().prepared(b"\n".join(lines))


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where what the pattern matches at this place ends; it may be nothing."""
    found = pattern.match(text, at)
    assert found is not None
    return found.end()


def _with_texts(line: bytes, names: Collection[str]) -> bytes:
    """The object on a line with the values of these fields as texts: {"a": [1]} as {"a": "[1]"}.

    A line that is no object stays as it is.
    """
    text = line.decode("latin-1")  # a character is a byte, and JSON's own are ASCII
    parts, done = [], 0
    try:
        at = _end_of(_SPACE, text, 0) + 1
        while text[(at := _end_of(_SPACE, text, at))] != "}":
            key, at = decoder.scanstring(text, at + 1)  # type: ignore[attr-defined]
            start = _end_of(_SPACE, text, _end_of(_SPACE, text, at) + 1)
            at = _DECODER.raw_decode(text, start)[1]
            if key.encode("latin-1", "replace").decode(errors="replace") in names:
                parts += [text[done:start], json.dumps(text[start:at], ensure_ascii=False)]
                done = at
            at = _end_of(_SPACE, text, at)
            at += text[at] == ","
    except (ValueError, IndexError, RecursionError):  # the parser says what is wrong with it
        return line
    return "".join([*parts, text[done:]]).encode("latin-1")


def _without_times(kind: Any) -> Any:
    """The schema, or type, with texts in place of the times that pyarrow takes them for."""
    import pyarrow as pa

    t = pa.types
    if isinstance(kind, pa.Schema):
        return pa.schema([part.with_type(_without_times(part.type)) for part in kind])
    if t.is_struct(kind):
        return pa.struct([part.with_type(_without_times(part.type)) for part in kind])
    if t.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return pa.string() if t.is_timestamp(kind) else kind


def _infers(schema: Any) -> bool:
    """Whether types are inferred of columns that the schema has not."""
    return schema is None or bool(schema.metadata)


def _table_of_json(data: bytes, schema: Any) -> Any:
    """The table of objects, as pyarrow reads them, with all of their nulls.

    Its parser (26.0) counts the first null of a list one too few until it knows what the lists hold: what follows moves
    up, and the array is too short. Told the types, it does so in lists that hold nothing else.
    """
    import pyarrow as pa
    from pyarrow import json

    table = json.read_json(
        pa.BufferReader(with_its_bom(data)),
        read_options=json.ReadOptions(use_threads=False, block_size=len(data) + 2),
        parse_options=json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if _infers(schema) else "error",
        ),
    )
    try:
        table.validate()
        return table
    except pa.ArrowInvalid:
        if _infers(schema):
            return _table_of_json(data, table.schema)
    return pa.table([retyped(column, column.type, repair=True) for column in table.columns], schema=table.schema)


def _are_objects(data: bytes) -> bool:
    """Whether these may be lines of one object each.

    pyarrow does not check: it takes an object on two lines beside two on one for as many rows, and of a first line
    `null` its process dies (26.0).
    """
    held = np.frombuffer(data, np.uint8)
    starts, ends = lines_in(data).T
    ends = ends - (held[np.maximum(ends - 1, 0)] == ord("\r")) if data else ends
    lines = starts < ends
    starts, ends = starts[lines], ends[lines]
    unsure = np.flatnonzero((held[starts] != ord("{")) | (held[ends - 1] != ord("}")))
    for start, stop in zip(starts[unsure].tolist(), ends[unsure].tolist(), strict=True):
        line = data[start:stop].strip(b" \t\r")
        if line and not (line.startswith(b"{") and line.endswith(b"}")):
            return False
    return True


def _fields_beside(schema: Any, other: Any) -> Iterator[str]:
    """The dotted names of fields of another schema, or type of a struct, that are not in this one."""
    import pyarrow as pa

    for field in other:
        index = schema.get_field_index(field.name)
        if index < 0:
            yield field.name
            continue
        mine, its = schema.field(index).type, field.type
        while pa.types.is_list(its) and hasattr(mine, "value_type"):
            mine, its = mine.value_type, its.value_type
        if pa.types.is_struct(mine) and pa.types.is_struct(its):
            yield from (f"{field.name}.{name}" for name in _fields_beside(mine, its))


def _long_integers_in(value: Any, kind: Any, path: str) -> Iterator[tuple[str, int]]:
    """value: as Python's json reads it; kind: the type of Arrow that it is read as."""
    from pyarrow import types as t

    if isinstance(value, dict) and t.is_struct(kind):
        for name, part in value.items():
            index = kind.get_field_index(name)
            if index >= 0:
                yield from _long_integers_in(part, kind.field(index).type, f"{path}.{name}")
    elif isinstance(value, list) and t.is_list(kind):
        for part in value:
            yield from _long_integers_in(part, kind.value_type, path)
    elif isinstance(value, int) and t.is_floating(kind) and abs(value) >= 10**15:
        yield path.removeprefix("."), value
