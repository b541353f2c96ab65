"""Text whose types show late, and text of any kind: known before the first batch, or broken alone with what reads it.

Reported of datasets (the first block decides: a column of nulls, then text; integers, then a float; a key that only
later files have; chat content that is text in one row and a list of parts in another) and of web text (half a
surrogate pair, bytes that are not UTF-8).
"""

import json
import logging

import pytest

from datarax_ray import (
    CSVSource,
    CSVSourceConfig,
    JSONLinesSource,
    JSONLinesSourceConfig,
    TextLinesSource,
    TextLinesSourceConfig,
    TextStreamSource,
    TextStreamSourceConfig,
    load,
)
from datarax_ray.read.errors import RecordError
from tests.data_as_it_is.streams import assert_gives, pipeline, rows


def written(folder, *files):
    paths = [folder / f"{number}.jsonl" for number in range(len(files))]
    for path, objects in zip(paths, files, strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in objects))
    return paths


def both(paths, **config):
    """JSON lines by their numbers, and as a stream, whose files take turns of all of their rows."""
    return [
        JSONLinesSource(JSONLinesSourceConfig(num_epochs=1, **config), paths),
        TextStreamSource(TextStreamSourceConfig(num_epochs=1, turn_size=100, format="jsonl", **config), paths),
    ]


# The rows of each file; what is missing is None.
LATE = {
    "nulls, then text": ([{"x": None}] * 9, [{"x": "a"}, {"x": "b"}]),
    "empty lists, then objects": ([{"x": []}] * 9, [{"x": [{"name": "a"}]}, {"x": []}]),
    "nulls, then objects": ([{"x": None}] * 9, [{"x": {"a": 1}}, {"x": {"a": 2}}]),
    "another key": ([{"x": 1}] * 9, [{"x": 1, "y": "a"}]),
    "another key inside": ([{"x": {"a": 1}}] * 9, [{"x": {"a": 1, "b": "c"}}]),
    "integers, then a float": ([{"x": 1}] * 9, [{"x": 2.5}]),
    "numbers, then a null": ([{"x": 1}] * 9, [{"x": None}]),
    "lists of one length, then others": ([{"x": [1, 2]}] * 9, [{"x": [1]}]),
    "a file without rows": ([], [{"x": 1}], []),
}


@pytest.mark.parametrize("kind", LATE)
def test_types_that_show_in_later_files_are_known_at_the_start(tmp_path, kind):
    paths = written(tmp_path, *LATE[kind])
    found = [row for objects in LATE[kind] for row in objects]
    names = {name for row in found for name in row}
    inside = {name for row in found if isinstance(row["x"], dict) for name in row["x"]}
    want = [
        {n: {i: row[n].get(i) for i in inside} if isinstance(row.get(n), dict) else row.get(n) for n in names}
        for row in found
    ]
    for source in both(paths):
        assert_gives(source.copy, want)


def test_a_float_five_megabytes_behind_the_first_rows_is_known(tmp_path):
    numbers = [*range(10**6), *(i + 0.5 for i in range(10**5))]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"x":{x}}}\n' for x in numbers))
    (tmp_path / "a.csv").write_text("x\n" + "".join(f"{x}\n" for x in numbers))
    for name in ("a.jsonl", "a.csv"):
        source = load(tmp_path / name)
        assert source.get_batch_at(10**6 - 1, 2)[1]["x"] == 0.5
        assert source.element_spec()["x"].dtype == float


def test_a_field_of_one_late_row_is_known_where_all_rows_decide(tmp_path):
    objects = [{"x": i, "t": "t" * 99} for i in range(90_000)]
    objects[-2]["y"] = 1
    (path,) = written(tmp_path, objects)
    with pytest.raises(RecordError, match=r"0.jsonl\[89998\].*fields that the first rows have not: 'y'"):
        rows(pipeline(load(path), 5000))
    whole = rows(pipeline(JSONLinesSource(JSONLinesSourceConfig(num_epochs=1, schema_rows=-1), path), 5000))
    assert [row["y"] for row in whole[-3:]] == [None, 1, None]
    few = JSONLinesSource(JSONLinesSourceConfig(num_epochs=1, schema_rows=5), path)
    assert sorted(few.element_spec()) == ["t", "x"]
    with pytest.raises(ValueError, match="schema_rows=0 leaves no row"):
        JSONLinesSourceConfig(schema_rows=0)


def test_files_of_other_types_are_told_of_at_the_start(tmp_path, caplog):
    first, second = written(tmp_path, [{"x": 1}] * 9, [{"x": "a"}] * 9)
    for number in range(2):
        source = both([first, second], on_error="skip")[number]
        told, _ = [line for line in caplog.messages if "do not fit" in line]
        assert told.startswith(f"{second}: field 'x' is string there, and int64 in {first}, so rows of")
        assert "column_types={'x': 'json'} reads both" in told
        assert rows(pipeline(source)) == [{"x": 1}] * 9
        caplog.clear()
    for source in both([first, second], column_types={"x": "json"}):
        assert rows(pipeline(source)) == [{"x": 1}] * 9 + [{"x": "a"}] * 9
    assert not [line for line in caplog.messages if "do not fit" in line]


def test_fields_of_later_files_are_said(tmp_path, caplog):
    caplog.set_level(logging.INFO, "datarax_ray")
    _, second = paths = written(tmp_path, [{"x": 1}], [{"x": 1, "y": 2}])
    load(paths)
    assert f"{second}: the rows before it lack the field 'y', and have None there." in caplog.messages


def test_times_in_json_are_text_unless_they_are_named(tmp_path):
    times = [f"2019-04-25T12:57:{i:02d}Z" for i in range(9)]
    paths = written(tmp_path, [{"at": at, "in": {"at": at}, "all": [at]} for at in times])
    for source in both(paths):
        assert rows(pipeline(source)) == [{"at": at, "in": {"at": at}, "all": [at]} for at in times]
    for source in both(paths, column_types={"at": "timestamp[s]"}):
        assert [str(at) for batch in pipeline(source) for at in batch["at"]] == [at[:-1] for at in times]


BAD = {
    "half a pair": (b'{"id": 1, "t": "a\\ud800b"}', "a\ufffdb"),
    "the other half": (b'{"id": 1, "t": "\\udc00\\\\ud800"}', "\ufffd\\ud800"),
    "no UTF-8": (b'{"id": 1, "t": "a\xffb"}', "a\ufffdb"),
}


@pytest.mark.parametrize("kind", BAD)
def test_text_that_is_none_breaks_its_row_and_is_replaced_where_asked(tmp_path, kind):
    bad, want = BAD[kind]
    pair = b'{"id": 2, "t": "\\ud83d\\ude00"}'
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([b'{"id": 0, "t": ""}', bad, pair]))
    for source in both(path):
        with pytest.raises(RecordError, match=r"a.jsonl\[1\]"):
            rows(pipeline(source))
    for source in both(path, on_error="skip"):
        assert rows(pipeline(source)) == [{"id": 0, "t": ""}, {"id": 2, "t": "\U0001f600"}]
    for source in both(path, errors="replace"):
        assert [row["t"] for row in rows(pipeline(source))] == ["", want, "\U0001f600"]
    with pytest.raises(ValueError, match="errors is 'strict' or 'replace', got 'ignore'"):
        JSONLinesSourceConfig(errors="ignore")


def test_a_row_of_csv_or_text_that_is_no_utf_8_is_broken_alone(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"t,u\na,1\nb\xff,2\nc,3\n")
    (tmp_path / "a.txt").write_bytes(b"a\nb\xff\nc\n")
    for config, name in ((CSVSourceConfig, "a.csv"), (TextLinesSourceConfig, "a.txt")):
        kind = CSVSource if name == "a.csv" else TextLinesSource
        field = "t" if name == "a.csv" else "text"
        kept = kind(config(num_epochs=1, on_error="skip"), tmp_path / name)
        assert [row[field] for row in rows(pipeline(kept))] == ["a", "c"]
        replaced = kind(config(num_epochs=1, errors="replace"), tmp_path / name)
        assert [row[field] for row in rows(pipeline(replaced))] == ["a", "b\ufffd", "c"]


CONTENT = ["hello", [{"type": "text", "text": 'é"\\'}], {"a": [1, {"b": None}]}, 1, 2.5, True, None, [], [1, 2], 10**30]


def test_values_of_any_kind_are_kept_as_python_has_them(tmp_path):
    objects = [{"id": i, "content": each, "role": "user"} for i, each in enumerate(CONTENT)]
    (path,) = written(tmp_path, objects)
    with pytest.raises(ValueError, match=r"column_types=\{'content': 'json'\} keeps values of any kind"):
        load(path)
    del objects[-1]["content"]
    written(tmp_path, objects)
    for source in both(path, column_types={"content": "json"}):
        got = rows(pipeline(source))
        assert [row["content"] for row in got] == [*CONTENT[:-1], None]
        assert [type(row["content"]) for row in got[3:6]] == [int, float, bool]
        assert [row["id"] for row in got] == [*range(10)]
        assert_gives(source.copy, got)
    (tmp_path / "a.csv").write_text('c,n\n"[1, ""a""]",1\n,2\nnull,3\n{],4\n')
    config = CSVSourceConfig(num_epochs=1, column_types={"c": "json"}, on_error="skip")
    got = rows(pipeline(CSVSource(config, tmp_path / "a.csv")))
    assert got == [{"c": [1, "a"], "n": 1}, {"c": None, "n": 2}, {"c": None, "n": 3}]


@pytest.mark.usefixtures("ray_local")
def test_late_types_and_any_values_are_the_same_over_actors(tmp_path):
    paths = written(tmp_path, [{"x": None, "y": "a"}] * 5, [{"x": [1], "y": {"z": 1}, "k": i} for i in range(6)])
    want = [{"x": None, "y": "a", "k": None}] * 5 + [{"x": [1], "y": {"z": 1}, "k": i} for i in range(6)]
    for source in both(paths, column_types={"y": "json"}):
        assert_gives(source.copy, want, num_actors=2)


def test_a_line_of_text_is_an_element(tmp_path):
    text = "\ufefffirst\r\n\r\n third \n\nlast"
    (tmp_path / "a.txt").write_text(text, newline="")
    (tmp_path / "b.txt").write_text("", newline="")
    want = [{"text": line} for line in ("first", "", " third ", "", "last")]
    assert_gives(lambda: load(tmp_path), want)
    shuffled = rows(pipeline(load(tmp_path, shuffle=True)))
    assert sorted(map(str, shuffled)) == sorted(map(str, want))
