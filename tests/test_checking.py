"""check: everything that a run over the data meets is in its result, beside what a plain loop finds."""

import json

import cv2
import datasets
import jax
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from datarax_ray import (
    DecodeJson,
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    Pipeline,
    RandomAccessSource,
    RandomAccessSourceConfig,
    check,
    load,
    materialize,
)
from datarax_ray.cli.check import check as check_command
from tests.cli.screens import answer, screen
from tests.data import in_memory, write_file
from tests.tars import write_tar


def only(source, **options):
    (found,) = check(source, **options).components
    return found


def told(of):
    return [(problem.is_fatal, str(problem)) for problem in of.problems]


def png(height, width):
    return bytes(cv2.imencode(".png", np.full((height, width, 3), 7, np.uint8))[1])


@pytest.fixture
def table(tmp_path):
    rows = 20_000
    columns = {
        "i": np.arange(rows),
        "text": [f"row {k}" * (k % 3) for k in range(rows)],
        "maybe": [None if k == 5 else k for k in range(rows)],
        "list": pa.array([list(range(k % 5)) for k in range(rows)], pa.list_(pa.int32())),
    }
    for name in ("a", "b"):
        parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=3_000)
    return tmp_path


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_table_has_its_counts_nulls_lengths_and_batch(table, num_threads):
    found = only(load(table), num_threads=num_threads)
    statistics = found.seen.statistics
    assert (statistics.num_records, statistics.num_elements, statistics.num_failed) == (40_000, 40_000, 0)
    fields = statistics.fields
    assert (fields["i"].numbers.least, fields["i"].numbers.most) == (0, 19_999)
    assert {name: of.num_null for name, of in fields.items()} == {"i": 0, "text": 0, "maybe": 2, "list": 0}
    assert (fields["list"].shape_least, fields["list"].shape_most) == ([0], [4])
    assert (fields["text"].lengths.least, fields["text"].lengths.most) == (0, 18)
    host = "objects on the host"
    assert found.batch == {"i": "int64 ()", "list": host, "maybe": host, "text": host}
    assert found.device_nbytes == 8
    assert [is_fatal for is_fatal, _ in told(found)] == [False, False]


def test_broken_records_are_counted_by_kind_and_named(tmp_path):
    broken = {3, 7, 8, 250}
    records = [b"{no json" if k in broken else json.dumps({"x": k}).encode() for k in range(300)]
    path = write_file(tmp_path / "a.array_record", records)
    found = only(load(str(path), transforms=DecodeJson()))
    ((is_fatal, text),) = told(found)
    assert is_fatal
    assert text.startswith(f"4 broken records ({path}[3], {path}[7], {path}[8], ...): transform DecodeJson raised ")
    assert found.seen.statistics.num_elements == 296


def test_elements_that_do_not_stack_name_the_first_that_differs():
    found = only(in_memory([{"x": np.zeros(3)}] * 5 + [{"x": np.zeros(4)}]))
    assert [is_fatal for is_fatal, _ in told(found)] == [True, False]
    assert "[5]" in told(found)[0][1]
    assert "has shape (3,) in one element, (4,) in another" in told(found)[0][1]


@pytest.mark.parametrize(
    ("dtype", "odd", "short"),
    [
        ("int64", 2**31, "int32"),
        ("int64", -(2**31) - 1, "int32"),
        ("uint64", 2**32, "uint32"),
        ("float64", 1e39, "float32"),
    ],
)
def test_values_that_the_device_does_not_hold_end_a_run_and_the_run_names_the_record(dtype, odd, short):
    values = np.array([1, 2, 3, odd, 5], dtype)
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), {"x": values})
    with Pipeline(source=source, batch_size=2) as batches:
        (problem,) = told(only(batches))
        with pytest.raises(OverflowError, match=f"row 1: a value of {dtype} does not fit {short}") as raised:
            list(batches)
    assert problem[0]
    assert f"field 'x' has the value {odd:,}, and on the device {short}, which does not hold it" in problem[1]
    assert raised.value.__notes__ == ["row 1 is of arrays[3] (position 3)"]
    with jax.enable_x64(True):
        assert check(source).is_fit
    assert check(Pipeline(source=source, batch_size=2, on_host=True)).is_fit
    held = {"x": np.array([np.iinfo(np.int32).min, np.iinfo(np.int32).max])}
    assert check(RandomAccessSource(RandomAccessSourceConfig(), held)).is_fit


def test_fields_that_change_between_blocks_are_a_problem_though_each_block_stacks():
    many = 3_000
    found = only(in_memory([{"x": 1, "y": 2}] * many + [{"x": 1.0}] * many))
    assert not check(in_memory([{"x": 1}] * many + [{"x": 1.0}])).is_fit
    texts = [text for is_fatal, text in told(found) if is_fatal]
    assert any("field 'y' is missing in 3,000 of 6,000 elements" in text for text in texts)
    assert any("field 'x' is int64 ()" in text and "float64 ()" in text for text in texts)


def test_pictures_are_decoded_and_told_by_their_size(tmp_path):
    members = [(f"{k}.png", png(4 + k, 6)) for k in range(3)] + [("3.png", png(4, 6)[:40])]
    found = only(load(str(write_tar(tmp_path / "a.tar", members))))
    assert str(found.seen.pictures["png"]) == "3 of 4–6 × 6 pixels"
    fatal, note = told(found)
    assert fatal[0]
    assert "field 'png': 40 bytes" in fatal[1]
    assert note == (
        False,
        "field 'png' has pictures of several sizes, 3 of 4–6 × 6 pixels; DecodeImage((height, width, 3), field='png') "
        "gives pictures of one size",
    )


def test_a_mixture_is_checked_by_component_and_a_skipping_source_goes_on(tmp_path):
    class Fails:
        def map(self, element):
            return {"x": 1 // int(element["x"])}

    config = RandomAccessSourceConfig(num_epochs=1, on_error="skip")
    broken = RandomAccessSource(config, {"x": np.arange(10)}, transforms=[Fails()])
    fit = in_memory({"x": np.arange(10)})
    found = check(MixtureSource([fit, broken], [1, 1], seed=0))
    assert [each.name for each in found.components] == ["component 0", "component 1"]
    assert [each.seen.statistics.num_elements for each in found.components] == [10, 9]
    assert found.is_fit
    assert [is_fatal for is_fatal, _ in told(found.components[1])] == [False]


def test_a_stream_of_shards_is_read_to_its_end():
    data = datasets.Dataset.from_dict({"x": list(range(700))}).to_iterable_dataset(num_shards=3)
    found = only(HFStreamingSource(HFStreamingConfig(streaming=True, num_epochs=1), dataset=data))
    assert found.seen.statistics.num_elements == 700
    assert found.seen.statistics.fields["x"].numbers.most == 699
    assert found.batch == {"x": "int64 ()"}


def test_what_materialize_wrote_is_what_the_live_source_gives(tmp_path):
    path = write_file(tmp_path / "a.array_record", [json.dumps({"x": k}).encode() for k in range(50)])
    live = load(str(path), transforms=DecodeJson())
    materialize(live, tmp_path / "out")
    assert only(load(tmp_path / "out")).seen.statistics.fields == only(live).seen.statistics.fields


def test_a_source_without_elements_is_not_fit():
    class Nothing:
        def filter(self, element):
            return False

    found = check(in_memory([1, 2], transforms=[Nothing()]))
    assert not found.is_fit
    assert told(found.components[0]) == [(True, "2 records give no element")]


def test_the_command_says_it_in_words_and_as_json_and_by_its_status(tmp_path):
    records = [json.dumps({"x": k}).encode() for k in range(20)]
    good = write_file(tmp_path / "good.array_record", records)
    bad = write_file(tmp_path / "bad.array_record", [*records, b"{"])
    shown = screen(width=200)
    assert check_command([str(good)], shown) == 0
    assert "20 records gave 20 elements" in answer(shown)
    assert "a run gets through all of the data" in answer(shown)
    shown = screen(as_json=True)
    assert check_command([str(bad)], shown) == 1
    plain = json.loads(answer(shown))
    assert not plain["is_fit"]
    assert plain["components"][0]["faults"][0]["count"] == 1
    assert plain["components"][0]["batch"] == {"x": "int64 ()"}


def test_the_command_takes_a_folder_of_images_and_a_source_by_name(tmp_path, monkeypatch):
    """imagefolder:photos has the form of module:NAME."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    cv2.imwrite("photos/cats/a.png", np.zeros((4, 4, 3), np.uint8))
    (tmp_path / "own.py").write_text(
        "from datarax_ray import RandomAccessSource, RandomAccessSourceConfig\n"
        "make = lambda: RandomAccessSource(RandomAccessSourceConfig(), [b'{}'])\n"
    )
    for name in ("imagefolder:photos", "own.py:make"):
        shown = screen(width=200)
        assert check_command([name], shown) == 0
        assert "1 records gave 1 elements" in answer(shown)
    with pytest.raises(ValueError, match="leave out --decoder and --split"):
        check_command(["own.py:make"], shown, split="train")
    with pytest.raises(ValueError, match="names no source; write train.py:make_source"):
        check_command(["own.py"], shown)


def test_over_ray_tasks_the_result_is_the_same(table, ray_local):
    assert check(load(table), num_actors=2) == check(load(table))
