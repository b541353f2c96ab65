"""CSV and JSON lines against pyarrow's readers of whole files, and Python's csv and json."""

import csv
import io
import json
import os
import pickle
import time
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from datarax_ray.read.elements.columns import unstack
from datarax_ray.read.formats.decoded_groups import BrokenRowGroupError
from datarax_ray.read.formats.text.blocks import TextReader
from datarax_ray.read.formats.text.json_syntax import JSONLines
from datarax_ray.read.formats.text.syntax import BOM, CSV


def write(directory, text, name="a.csv"):
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def values(columns):
    return {name: column.tolist() for name, column in columns.items()}


def everything(reader):
    return values(reader.read(np.arange(reader.num_records)))


VALUES = st.text(st.sampled_from('ab",;\n\r \t1é\ufeff'), max_size=6)
TABLES = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[VALUES] * width), min_size=1, max_size=60))


@given(
    rows=TABLES,
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    delimiter=st.sampled_from(",;\t"),
    bom=st.booleans(),
    in_quotes=st.booleans(),
)
def test_any_values_that_python_writes_are_read_as_pyarrow_reads_the_whole_file(
    tmp_path_factory, rows, newline, delimiter, bom, in_quotes
):
    """Above 4 KiB the file has several blocks; what is in front of the rows moves where they are cut."""
    text = io.StringIO()
    names = [f"c{i}" for i in range(len(rows[0]))]
    if not in_quotes:  # else Python leaves a \r or \n bare where lines end with the other
        rows = [tuple(value.translate({10: "n", 13: "r"}) for value in row) for row in rows]
    quoting = csv.QUOTE_ALL if in_quotes else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline, quoting=quoting)
    writer.writerow(names)
    number = 0
    while text.tell() < 12_000:
        writer.writerows([(f"{number}a", *row[1:]) for row in rows])
        number += 1
    data = (BOM if bom else b"") + text.getvalue().encode()
    path = write(tmp_path_factory.mktemp("text"), data)
    reader = TextReader.of(path, CSV(delimiter))
    want = arrow_csv.read_csv(
        path, parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    ).to_pydict()
    assert len(reader.groups) > 1
    assert everything(reader) == want
    parsed = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter))
    if all(column and isinstance(column[0], str) for column in want.values()):
        assert [list(row) for row in zip(*want.values(), strict=True)] == [row for row in parsed[1:] if row != []]


@given(
    rows=st.lists(st.lists(st.text(st.sampled_from('ab",\r\n'), max_size=8), min_size=1, max_size=3), max_size=30),
    cut=st.integers(1, 60),
)
def test_rows_are_the_same_wherever_the_text_is_cut(rows, cut):
    """Of raw text, quotes inside values among it; a quote that is never closed is refused."""
    data = "\n".join(",".join(row) for row in rows).encode()

    def found(step):
        rows, at, held = [], 0, b""
        while at < len(data):
            held += data[at : at + step]
            at += step
            spans = syntax.rows(held, at >= len(data))
            rows += [held[start:stop] for start, stop in spans.tolist()]
            held = held[int(spans[-1, 1]) :] if len(spans) else held
        return rows

    syntax = CSV()
    try:
        want = found(len(data) or 1)
    except ValueError:
        with pytest.raises(ValueError, match="is never closed"):
            found(cut)
        return
    assert found(cut) == want


OBJECTS = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.5),
        "t": st.text(max_size=9).map(lambda text: "t" + text.encode("utf-8", "replace").decode()),
        "l": st.lists(st.integers(0, 9), min_size=2, max_size=2),
        "s": st.fixed_dictionaries({"b": st.booleans()}),
    }
)


@given(objects=st.lists(OBJECTS, min_size=1, max_size=20), newline=st.sampled_from(["\n", "\r\n", "\n\n \n"]))
def test_any_objects_that_python_writes_are_read_as_python_reads_them(tmp_path_factory, objects, newline):
    objects *= 1 + 9000 // len(json.dumps(objects))
    path = write(tmp_path_factory.mktemp("text"), newline.join(map(json.dumps, objects)), "a.jsonl")
    reader = TextReader.of(path, JSONLines())
    columns = reader.read(np.arange(reader.num_records))
    assert len(reader.groups) > 1 or len(objects) == 1
    assert columns["l"].shape == (len(objects), 2)
    got = [row | {"l": row["l"].tolist()} for row in unstack(columns, len(objects))]
    assert got == objects
    table = arrow_json.read_json(path)
    assert {name: table[name].to_pylist() for name in "ift"} == {name: columns[name].tolist() for name in "ift"}


@pytest.mark.parametrize(
    "rows",
    [
        [[], [None], [None, None]],
        [[None, 5]],
        [None, [None, "a"], [None]],
        [[[None], None], [[None, None]]],
        [[{"a": [None]}], [None, {"a": [None, None]}, {"a": None}]],
        [[{"a": [None, None], "b": {}}], [{"a": [], "b": {}}, {"a": [None], "b": {}}]],
    ],
    ids=str,
)
def test_lists_have_the_nulls_that_are_written(tmp_path, rows):
    """pyarrow (26.0) loses the first one where nothing else was in the lists before it."""
    path = write(tmp_path, "".join(json.dumps({"x": row}) + "\n" for row in rows), "a.jsonl")
    assert TextReader.of(path, JSONLines()).read(np.arange(len(rows)))["x"].tolist() == rows


def test_rows_of_many_files_are_read_in_any_order_and_after_a_pickle(tmp_path):
    for number in range(3):
        lines = "".join(f"{i},{'x' * 50}{i}\n" for i in range(number * 1000, number * 1000 + 1000))
        write(tmp_path, "index,text\n" + lines, f"{number}.csv")
    reader = pickle.loads(pickle.dumps(TextReader.of(tmp_path, CSV())))
    order = np.random.default_rng(7).integers(0, 3000, 500)
    assert reader.read(order)["index"].tolist() == order.tolist()
    assert reader.read(order)["text"].tolist() == [f"{'x' * 50}{i}" for i in order]
    assert reader.locate(2017) == f"{tmp_path}/2.csv[17]"
    reader.close()
    assert reader.read(np.array([2017]))["index"].tolist() == [2017]


def test_columns_in_another_order_are_the_same_columns(tmp_path):
    write(tmp_path, "a,b\n1,x\n", "1.csv")
    write(tmp_path, "b,a\ny,2\n", "2.csv")
    assert everything(TextReader.of(tmp_path, CSV())) == {"a": [1, 2], "b": ["x", "y"]}


def test_a_file_without_a_header_has_the_names_that_are_given(tmp_path):
    path = write(tmp_path, BOM + b"1\t2.5\n\n3\t4\n", "a.tsv")
    reader = TextReader.of(path, CSV("\t", ("a", "b")))
    assert everything(reader) == {"a": [1, 3], "b": [2.5, 4.0]}


LATER = "1\n" * (5 * 2**20 // 2)  # more than by which types are decided
LATER_JSON = f'{{"x":1{" " * 92}}}\n' * 50_000


@pytest.mark.parametrize(
    ("syntax", "text", "bad", "message"),
    [
        (
            *(CSV(), "x\n" + LATER, "1.5\n"),
            "column 'x': CSV conversion error to int64: invalid value '1.5'.*unless column_types names others",
        ),
        (CSV(), "x\n" + LATER, "red\n", "column 'x': .*invalid value 'red'"),
        (CSV(), "x\n" + LATER, "1,2\n", "Expected 1 columns, got 2"),
        (JSONLines(), LATER_JSON, '{"x":"a"}\n', "changed from number to string"),
        (JSONLines(), LATER_JSON, '{"x":1,"y":2}\n', "not: 'y'"),
        (JSONLines(), LATER_JSON, '{"x":1}{"x":2}\n', "gives 2 rows, and has 1 lines"),
        (JSONLines(), LATER_JSON, '{"x":\n', "does not parse"),
    ],
    ids=["other type", "no number", "ragged", "other kind", "other field", "two on a line", "cut"],
)
def test_a_row_that_does_not_fit_the_first_ones_is_broken_alone(tmp_path, syntax, text, bad, message):
    path = write(tmp_path, text + bad + text[-400:], "a.jsonl")
    reader = TextReader.of(path, syntax)
    at = text.count("\n") - syntax.has_header
    with pytest.raises(BrokenRowGroupError):
        reader.read(np.arange(at - 3, at + 3))
    with pytest.raises(BrokenRowGroupError, match=rf"a\.jsonl\[{at}\].*{message}"):
        reader.read(np.array([at]))
    for good in (at - 1, at + 1):
        assert values(reader.read(np.array([good]))) == {"x": [1]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"y": 2}, r"first rows have not: 'y'\. Name the whole type of each column in column_types"),
        ({"y": 0.5, "z": "a"}, "not: 'y', 'z'"),
        ({"s": {"b": 2}}, "not: 's.b'"),
        ({"l": [{"b": 2}]}, "not: 'l.b'"),
        ({"x": "a", "y": 2}, "changed from number to string"),
    ],
)
def test_a_field_that_the_first_rows_lack_is_named_with_what_reads_it(tmp_path, bad, message):
    row = {"x": 1, "s": {"a": 1}, "l": [{"a": 1}]}
    write(tmp_path, json.dumps(row) + "\n", "1.jsonl")
    write(tmp_path, (json.dumps(row) + "\n") * 3000 + json.dumps(row | bad) + "\n", "2.jsonl")
    with pytest.raises(BrokenRowGroupError, match=rf"2\.jsonl\[3000\].*{message}"):
        TextReader.of(tmp_path, JSONLines()).read(np.array([3001]))


@pytest.mark.parametrize(
    ("syntax", "text", "bad", "types"),
    [
        (CSV(), "x\n" + "1\n" * 900, "1,2\n", {}),
        (CSV(), "x\n" + "1\n" * 900, "abc\n", {"x": "int64"}),
        (JSONLines(), '{"x":1}\n' * 900, '{"x":\n', {}),
        (JSONLines(), '{"x":1}\n' * 900, "[1]\n", {}),
    ],
)
def test_a_row_among_the_first_that_does_not_parse_is_broken_alone_too(tmp_path, syntax, text, bad, types):
    lines = text.splitlines(keepends=True)
    for at in (3, 400):
        lines.insert(at + syntax.has_header, bad)
    reader = TextReader.of(write(tmp_path, "".join(lines), "a.jsonl"), syntax, column_types=types)
    assert reader.num_records == 902
    for at in (3, 400):
        with pytest.raises(BrokenRowGroupError, match=rf"a\.jsonl\[{at}\]"):
            reader.read(np.array([at]))
        for good in (at - 1, at + 1):
            assert values(reader.read(np.array([good]))) == {"x": [1]}


def test_types_that_are_named_hold_for_all_rows(tmp_path):
    path = write(tmp_path, "zip,x\n01234,1\n" + "1,2\n" * 5000 + "a,2.5\n")
    reader = TextReader.of(path, CSV(), column_types={"zip": "string", "x": pa.float32()})
    columns = reader.read(np.array([0, 5001]))
    assert columns["zip"].tolist() == ["01234", "a"]
    assert (columns["x"].dtype, columns["x"].tolist()) == (np.float32, [1.0, 2.5])
    path = write(tmp_path, '{"x":1}\n' * 9, "a.jsonl")
    reader = TextReader.of(path, JSONLines(), column_types={"x": "float32", "y": "string"})
    assert values(reader.read(np.arange(2))) == {"x": [1.0, 1.0], "y": [None, None]}


def test_what_reads_as_a_number_or_a_time_is_taken_for_one_unless_its_column_is_named_a_string(tmp_path):
    rows = [("01234", "0x10", "nan", "2020-01-01T00:00:00+02:00"), ("7", "11", "NA", "2020-01-01T00:00:00Z")]
    rows += [("2", "3", "1", "2020-01-01T00:00:00Z")]
    path = write(tmp_path, "zip,hex,gap,when\n" + "".join(",".join(row) + "\n" for row in rows))
    found = everything(TextReader.of(path, CSV()))
    assert (found["zip"], found["hex"], found["gap"]) == ([1234, 7, 2], [16, 11, 3], [None, None, 1])
    assert [when.isoformat() for when in found["when"]] == ["2019-12-31T22:00:00", *["2020-01-01T00:00:00"] * 2]
    named = everything(TextReader.of(path, CSV(), column_types=dict.fromkeys(found, "string")))
    assert list(zip(*(named[name] for name in ("zip", "hex", "gap", "when")), strict=True)) == rows


@pytest.mark.parametrize(
    ("syntax", "texts", "message"),
    [
        (CSV(), [""], "a0.csv cannot be read as CSV: it is empty, without a row that names its columns"),
        (CSV(), ["a,b\n"], "there are 0 rows in"),
        (JSONLines(), ["\n \n"], "there are 0 rows in"),
        (CSV(), ["a,b\n1,2\n", "a,c\n1,2\n"], r"the columns are ['a', 'b'] in"),
        (CSV(), ["a,a\n1,2\n"], "['a'] more than once"),
        (CSV(), ["a,b\n1\n2\n"], "its first 2 rows do not parse as CSV, so the types of their columns are unknown"),
        (CSV(), ['a\n1\n"2\n3\n'], "a quote at or behind byte"),
        (JSONLines(), ["a,b\n1,2\n"], "do not parse as JSON lines"),
        (JSONLines(), ["[1]\n"], "It looks like a JSON file"),
        (JSONLines(), ["{}\n{}\n"], "its first 2 objects have no field, so there is nothing to read"),
        (CSV(), ["7,0,0\n1,2,3\n"], "the columns are ['7', '0', '0'] in"),
        (CSV(), ["7,0,0\n1,2,3\n"], "['0'] more than once; rename them, or, where the first row is none of names"),
    ],
)
def test_what_is_no_such_text_is_refused(tmp_path, syntax, texts, message):
    paths = [write(tmp_path, text, f"a{number}.csv") for number, text in enumerate(texts)]
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        TextReader.of(paths, syntax)
    assert message in str(raised.value)
    assert "a0.csv" in str(raised.value) or "a1.csv" in str(raised.value)


def test_bytes_that_are_said_to_be_some_are_read_so(tmp_path):
    path = write(tmp_path, b"x,y\n1,\xe9\n")
    assert everything(TextReader.of(path, CSV(), column_types={"y": "binary"})) == {"x": [1], "y": [b"\xe9"]}


HUGE = [2**53 + 1, 2**63 + 1, 2**64 - 1, -(2**63) - 1, 10**29 + 1]


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize(
    ("syntax", "form", "field"),
    [
        (CSV(), "a,b\n1,1.5\n2,{}\n", "b"),
        (CSV("\t"), 'a\tb\n1\t1.5\n2\t"{}"\n', "b"),
        (JSONLines(), '{{"a": 1, "b": 1.5}}\n{{"a": 2, "b": {}}}\n', "b"),
        (JSONLines(), '{{"a": 1, "b": {{"c": [1.5, {}]}}}}\n', "b.c"),
    ],
)
def test_an_integer_that_no_inferred_type_holds_is_refused_and_never_another_number(
    tmp_path, syntax, form, field, huge
):
    path = write(tmp_path, form.format(huge))
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        TextReader.of(path, syntax)
    message = f"field {field!r} has the integer {huge:,}, and as float64 it would be {int(float(huge)):,}"
    assert f"{path}: " in str(raised.value)
    assert message in str(raised.value)
    assert "column_types={'b': 'uint64'}" in str(raised.value)


@pytest.mark.parametrize(
    ("syntax", "head", "row", "field"),
    [
        (CSV(), "a,b\n", "1,{}\n", "b"),
        (JSONLines(), "", '{{"a": 1, "b": {}}}\n', "b"),
        (JSONLines(), "", '{{"a": 1, "b": {{"c": [{}]}}}}\n', "b.c"),
    ],
)
def test_an_integer_behind_the_rows_that_decide_is_an_error_and_never_another_number(
    tmp_path, syntax, head, row, field
):
    """Types are inferred of the first 4 MiB."""
    few = [*[row.format(1.5)] * (2**22 // len(row.format(1.5)) + 2**16), row.format(2**53 + 1), row.format(2**60)]
    path = write(tmp_path, head + "".join(few))
    for column_types in ({}, {"a": "int64"}):
        reader = TextReader.of(path, syntax, column_types=column_types)
        last = len(few) - 1
        assert reader.read(np.array([last]))  # a float
        assert reader.read(np.array([last - 2]))
        message = f"field {field!r} has the integer {2**53 + 1:,}, and as float64 it would be {2**53:,}.* 'float64'"
        with pytest.raises(BrokenRowGroupError, match=message):
            reader.read(np.array([last - 1]))
    if field == "b":
        near = TextReader.of(path, syntax, column_types={"b": "float64"})
        assert near.read(np.array([last - 1]))["b"].tolist() == [2.0**53]


def test_a_first_row_of_numbers_that_is_taken_for_names_is_said(tmp_path, caplog):
    path = write(tmp_path, "5.1,3.5\n4.9,3.0\n")
    assert TextReader.of(path, CSV()).num_records == 1
    (said,) = caplog.messages
    assert f"{path}: its first row, ['5.1', '3.5'], is taken for the names of its columns" in said
    caplog.clear()
    assert TextReader.of(path, CSV(column_names=("a", "b"))).num_records == 2
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("text", "types", "message"),
    [
        ("a\n1\n", {"b": "string"}, r"column_types names \['b'\], and the columns are \['a'\]"),
        ('{"s": {"a": 1}}\n', {"s.b": "int64"}, r"column_types names \['s\.b'\].* types of whole columns, pa\.struct"),
        ("a\n1\n", {"a": str}, r"column_types gives <class 'str'> for 'a', which is no type of Arrow"),
        ("a\n1\n", {"a": "strng"}, r"column_types gives 'strng' for 'a', which is no type of Arrow.*string"),
    ],
)
def test_a_type_of_no_column_and_what_is_no_type_are_refused(tmp_path, text, types, message):
    with pytest.raises(ValueError, match=message):
        TextReader.of(write(tmp_path, text), JSONLines() if text.startswith("{") else CSV(), column_types=types)


@pytest.mark.parametrize("delimiter", ["", ",,", "é", '"', "\n", None])
def test_a_delimiter_is_one_character(delimiter):
    with pytest.raises(ValueError, match="delimiter is one ASCII character"):
        CSV(delimiter)


def test_a_file_that_changes_is_an_error_and_never_other_data(tmp_path):
    path = write(tmp_path, "a\n1\n2\n")
    os.utime(path, ns=(time.time_ns() - 10**9,) * 2)
    reader = TextReader.of(path, CSV())
    path.write_text("a\n1\n3\n")
    with pytest.raises(ValueError, match=rf"{path} had 6 bytes when the source was made"):
        reader.read(np.arange(2))


def test_settings_that_change_values_are_in_the_fingerprint(tmp_path):
    path = write(tmp_path, "a,b\n1,x\n,y\n")
    options = [{}, {"column_types": {"a": "float64"}}, {"on_null": {"a": 0}}, {"on_null": {"a": 1}}]
    prints = [json.dumps(TextReader.of(path, CSV(), **option).fingerprint()) for option in options]
    prints += [json.dumps(TextReader.of(path, CSV(column_names=("a", "b"))).fingerprint())]
    assert len(set(prints)) == 5


@pytest.mark.parametrize("text", ["é".encode("latin-1"), b"\xff\xfe", "é".encode("utf-16")], ids=repr)
@pytest.mark.parametrize("form", [b"x,%b\n1,2\n", b"x,y\n1,%b\n", b"x,y\n1,a\n" + b"1,%b\n" * 5000], ids=len)
def test_text_that_is_no_utf_8_is_refused_and_never_bytes_of_itself(tmp_path, form, text):
    path = write(tmp_path, form.replace(b"%b", text))
    with pytest.raises(ValueError, match=rf"(?s){path}.*not UTF-8.*iconv"):
        TextReader.of(path, CSV())


@pytest.mark.parametrize("syntax", [CSV(), JSONLines()])
def test_large_numbers_that_are_what_they_say_are_read(tmp_path, syntax):
    """JavaScript writes floats up to 1e21 without an exponent, in their shortest digits."""

    def text(*values):
        if syntax.has_header:
            return "a\n" + "".join(f"{value}\n" for value in values)
        return "".join(f'{{"a": {value}, "b": "{2**64 - 1}"}}\n' for value in values)

    path = write(tmp_path, text(1.5, 2**53, 123456789012345670000, "1.8446744073709551615e19", 10**21))
    found = everything(TextReader.of(path, syntax))["a"]
    assert found == [1.5, 2.0**53, 1.2345678901234567e20, 1.8446744073709551615e19, 1e21]
    path = write(tmp_path, text(1.5, *range(9)) + "9" * 400 + "\n") if syntax.has_header else path
    with pytest.raises(ValueError, match="as float64 it would be inf") if syntax.has_header else nullcontext():
        TextReader.of(path, syntax)
    path = write(tmp_path, text(2**64 - 1, 1))
    assert everything(TextReader.of(path, syntax, column_types={"a": "uint64"}))["a"] == [2**64 - 1, 1]
    near = TextReader.of(path, syntax, column_types={"a": "float64"})
    assert everything(near)["a"] == [2.0**64, 1.0]


def test_a_type_that_does_not_fit_is_told_with_its_column_and_the_argument(tmp_path):
    path = write(tmp_path, "x,on\n1,yes\n2,no\n")
    with pytest.raises(ValueError, match=r"a\.csv: column_types=\{'on': 'bool'\} do not fit: column 'on': .*'yes'"):
        TextReader.of(path, CSV(), column_types={"on": "bool"})
    path = write(tmp_path, '{"x": 1, "on": "yes"}\n', "a.jsonl")
    with pytest.raises(ValueError, match=r"column_types=\{'on': 'int64'\} do not fit: .*/on.*\. Name another type"):
        TextReader.of(path, JSONLines(), column_types={"on": "int64"})
