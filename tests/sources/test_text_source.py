"""CSVSource and JSONLinesSource: what only they promise. What all sources promise: test_every_source.py."""

import gzip
import json

import pytest
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import (
    CSVSource,
    CSVSourceConfig,
    JSONLinesSource,
    JSONLinesSourceConfig,
    TextStreamSource,
    TextStreamSourceConfig,
)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x;y\n" + "".join(f'{i};"a\n{i}"\n' for i in range(3000)))
    return path


def test_a_delimiter_that_was_left_out_is_named(table, tmp_path, caplog):
    CSVSource(CSVSourceConfig(), table)
    assert f"{table}: its one column is named 'x;y'. Is it split by ';'? Say delimiter=';'." in caplog.messages
    (tmp_path / "c.csv").write_text("x,y\n1,2\n")
    CSVSource(CSVSourceConfig(delimiter=";"), tmp_path / "c.csv")
    assert caplog.messages[-1].endswith("its one column is named 'x,y'. Is it split by ','? Say delimiter=','.")
    (tmp_path / "b.csv").write_text("x;y\n1;2,5\n")
    with pytest.raises(ValueError, match=r"Expected 1 columns, got 2: 1;2,5\. Is it split by ';'\? Say delimiter=';'"):
        CSVSource(CSVSourceConfig(), tmp_path / "b.csv")


def test_numbers_that_are_objects_for_their_nulls_are_told_once_unless_that_is_said(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("x,y,text\n1,2,\n,3,a\n")
    given = CSVSource(CSVSourceConfig(num_epochs=1), tmp_path / "a.csv", transforms=lambda row: row)
    assert "<lambda>: x. on_null={'x': 0} in" in caplog.text
    assert [row["x"] for row in given] == [1, None]
    caplog.clear()
    made, _ = (CSVSource(CSVSourceConfig(num_epochs=1), tmp_path / "a.csv") for _ in range(2))
    (told,) = caplog.messages
    assert told.startswith("fields with nulls stay on the host, as objects with None: x. on_null={'x': 0} in")
    assert made.get_batch(2)["x"].tolist() == [1, None]
    caplog.clear()
    for value in (0, "host"):
        CSVSource(CSVSourceConfig(num_epochs=1, on_null={"x": value}), tmp_path / "a.csv")
    assert not caplog.messages


def test_names_in_digits_that_are_read_as_numbers_are_told_once(tmp_path, caplog):
    lines = "zip,phone,x,y,day\n1,12,-0.5,1e+05,2024-01-02\n01234,+4930123456,0,0.25,2024-01-03\n"
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(lines)
    given = CSVSource(CSVSourceConfig(), tmp_path)
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "column 'zip' is read as int64, so 01234 is 1234. column_types={'zip': 'string'} keeps it as it is written, "
        "and {'zip': 'int64'} ends this warning",
        "column 'phone' is read as float64, so +4930123456 is 4930123456.0. column_types={'phone': 'string'} keeps it "
        "as it is written, and {'phone': 'float64'} ends this warning",
    ]
    assert given.get_batch(2)["zip"].tolist() == [1, 1234]
    caplog.clear()
    said = CSVSource(CSVSourceConfig(column_types={"zip": "string", "phone": "float64"}), tmp_path)
    assert not caplog.messages
    assert said.get_batch(2)["zip"].tolist() == ["1", "01234"]


def test_a_row_of_another_type_is_broken_alone_where_the_type_is_given(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"v": "7" if i == 7 else i, "at": "2024-01-02"}) + "\n" for i in range(300)))
    with pytest.raises(
        ValueError, match=r"\{'v': 'json'\} keeps values .*, and a type in place of 'json' makes broken"
    ):
        JSONLinesSource(JSONLinesSourceConfig(), path)
    for errors in ("raise", "skip"):
        config = JSONLinesSourceConfig(num_epochs=1, column_types={"v": "int64"}, on_error=errors)
        given = iter(JSONLinesSource(config, path))
        assert [next(given)["v"] for _ in range(7)] == list(range(7))
        if errors == "raise":
            with pytest.raises(RecordError, match=r"a\.jsonl\[7\]"):
                next(given)
        else:
            assert [row["v"] for row in given] == list(range(8, 300))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", "['5.1', '3.5', 'setosa'], is taken for the names"),
        ("# sensor 7, 2024\nid,x\n1,2\n", "['# sensor 7', ' 2024'], is taken for the names"),
        ("country,2019,2020\nFR,1,2\n", ""),
    ],
)
def test_a_first_row_that_looks_like_no_names_is_told(text, told, tmp_path, caplog):
    (tmp_path / "a.csv").write_text(text)
    CSVSource(CSVSourceConfig(), tmp_path / "a.csv")
    assert told in caplog.text
    assert bool(told) == bool(caplog.messages)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("names", [None, ("id", "x")])
@pytest.mark.parametrize("num_rows", [2, 40_000])
def test_rows_before_the_header_are_left_out_of_each_file(is_packed, names, num_rows, tmp_path, caplog):
    for start in range(2):
        rows = "".join(f"{i},{i / 2}\n" for i in range(start * num_rows, (start + 1) * num_rows))
        text = "# sensor 7, of 2024\n\n# no quotes\n" + ("" if names else "id,x\n") + rows
        path = tmp_path / f"{start}.csv{'.gz' * is_packed}"
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if is_packed else text.encode())
    config, source = (TextStreamSourceConfig, TextStreamSource) if is_packed else (CSVSourceConfig, CSVSource)
    more = {"turn_size": num_rows} if is_packed else {}

    def given():
        return source(config(num_epochs=1, skip_rows=2, column_names=names, **more), str(tmp_path))

    want = [{"id": i, "x": i / 2} for i in range(2 * num_rows)]
    batches = iter(pipeline := Pipeline(source=given(), batch_size=num_rows // 2, on_host=True))
    first, state = next(batches), pipeline.get_state()
    resumed = Pipeline(source=given(), batch_size=num_rows // 2, on_host=True)
    resumed.set_state(state)
    assert [row for batch in (first, *resumed) for row in zip(batch["id"], batch["x"], strict=True)] == [
        (row["id"], row["x"]) for row in want
    ]
    assert not caplog.messages
    with pytest.raises(ValueError, match="skip_rows must be at least 0"):
        config(skip_rows=-1)


@pytest.mark.parametrize("num_rows", [20, 20_000, 200_000])
def test_a_column_of_numbers_that_is_text_for_a_few_says_what_reads_the_numbers(num_rows, tmp_path, caplog):
    lines = [f"{i},{'ERROR' if i == 2 else i / 2}\n" for i in range(num_rows)]
    (tmp_path / "a.csv").write_text("id,x\n" + "".join(lines))
    CSVSource(CSVSourceConfig(), tmp_path / "a.csv")
    said = "column 'x' is read as text, since 'ERROR' is no number, as nearly all values are. column_types="
    assert said in caplog.text
    config = CSVSourceConfig(column_types={"x": "float64"}, on_error="skip", num_epochs=1)
    assert [row["x"] for row in CSVSource(config, tmp_path / "a.csv")] == [i / 2 for i in range(num_rows) if i != 2]


def test_a_row_that_does_not_parse_is_named_or_left_out_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"x": i, "text": "t" * 500}) for i in range(9000)]
    path.write_text("\n".join([*lines, '{"x": "many", "text": ""}', *lines[:9]]))
    reading = JSONLinesSource(JSONLinesSourceConfig(num_epochs=1), path)
    with pytest.raises(RecordError, match=rf"{path}\[9000\] \(position 9000\): .*column_types names others"):
        for _ in Pipeline(source=reading, batch_size=100, rngs=nnx.Rngs(0)):
            pass
    skipping = JSONLinesSource(JSONLinesSourceConfig(num_epochs=1, on_error="skip"), path)
    batches = Pipeline(source=skipping, batch_size=100, rngs=nnx.Rngs(0))
    assert [int(x) for batch in batches for x in batch["x"]] == [*range(9000), *range(9)]
    assert batches.num_skipped == 1


def test_a_state_under_other_types_is_refused(table):
    def source(**config):
        return CSVSource(CSVSourceConfig(delimiter=";", **config), table)

    state = source().get_state()
    source().copy().set_state(state)
    with pytest.raises(DriftError, match="files.schema: the checkpoint was written with"):
        source(column_types={"x": "float32"}).set_state(state)
