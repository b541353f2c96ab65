"""The ledger by value, and under sources and pipelines: exact positions, nothing listed twice, a cap that holds."""

import functools
import json
import os
import signal
from pathlib import Path

import datasets
import fsspec
import pytest

from datarax_ray import Pipeline, RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.errors import RecordError, Skipped, SkippedError
from datarax_ray.read.lines import UrlLines
from datarax_ray.read.skipped_records import SkipOptions, SkippedRecords
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule, HFStreamingConfig, HFStreamingSource
from tests.data import FailAt, decode
from tests.resume import comparable

BAD = [FailAt(13), FailAt(50), FailAt(51)]
OF_A_GROUP = Skipped("a/b.parquet[17] (row group 3)", 7, "broken")
TWO = (Skipped("a/b[0].array_record[17]", 5, "broken"), Skipped("Squares(9)", 6, "odd"))


def listed(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_entry_names_file_record_position_and_reason(tmp_path):
    path = tmp_path / "new" / "skipped.jsonl"
    ledger = SkippedRecords(SkipOptions(None, str(path)))
    ledger.enter(())
    assert not path.exists()
    ledger.enter(TWO)
    assert listed(path) == [
        {"position": 5, "file": "a/b[0].array_record", "record": 17, "reason": "broken"},
        {"position": 6, "file": "Squares(9)", "record": None, "reason": "odd"},
    ]
    ledger.enter((OF_A_GROUP,))
    assert listed(path)[2] == {"position": 7, "file": "a/b.parquet", "record": 17, "reason": "broken"}


def test_going_back_strikes_out_what_comes_again_and_what_was_cut_off(tmp_path):
    path = tmp_path / "skipped.jsonl"
    SkippedRecords(SkipOptions(None, str(path))).enter(TWO)
    with path.open("a") as file:
        file.write('{"position": 2, "fi')  # its writer was killed
    SkippedRecords(SkipOptions(None, str(path))).rewind(6)
    assert [entry["position"] for entry in listed(path)] == [5]
    SkippedRecords(SkipOptions(None, str(path))).rewind(0)
    assert path.read_text() == ""


OF_ANOTHER = ('{"x": 1}\n{"x": 2}\n', "a,b\n1,2\n", '{"position": 7, "mine": true}\n', "[1, 2]", "\n", "\x00\n")


@pytest.mark.parametrize("text", OF_ANOTHER)
def test_a_file_that_is_no_list_of_ours_is_refused_and_stays(tmp_path, text):
    path = tmp_path / "train.jsonl"
    ledger = SkippedRecords(SkipOptions(None, str(path)))
    late = SkippedRecords(SkipOptions(None, str(path)))
    path.write_text(text)
    refused = functools.partial(
        pytest.raises, ValueError, match=r"train.jsonl' has a file that is no list .* name another file"
    )
    with refused():
        SkipOptions(None, str(path))
    with refused():  # it came after the source was made
        ledger.rewind(0)
    with refused():
        late.enter(TWO)
    assert (path.read_text(), late.skipped) == (text, [])


def test_nor_is_one_behind_a_url():
    url, files = "memory://corpus/train", fsspec.filesystem("memory")
    files.pipe_file("/corpus/train/part-00000.jsonl", b'{"text": "a"}\n')
    try:
        with pytest.raises(ValueError, match="no list of skipped records"):
            SkippedRecords(SkipOptions(None, url)).rewind(0)
        assert UrlLines(url).read() == ['{"text": "a"}\n']
    finally:
        files.rm("/corpus", recursive=True)


def test_an_empty_file_and_one_whose_first_line_was_cut_off_are_ours(tmp_path):
    path = tmp_path / "skipped.jsonl"
    for text in ("", "{", '{"position": 2, "fi'):
        path.write_text(text)
        ledger = SkippedRecords(SkipOptions(None, str(path)))
        ledger.rewind(0)
        ledger.enter(TWO)
        assert [entry["position"] for entry in listed(path)] == [5, 6]


def of_files(files, transforms=(decode, *BAD), **config):
    options = {"num_epochs": 2, "on_error": "skip", "shuffle_files": config.pop("shuffle", True)} | config
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**options), files, transforms=transforms)


def of_stream(files, transforms=BAD, **config):
    options = {"num_epochs": 2, "on_error": "skip", "shuffle": True, "shuffle_buffer_size": 10} | config
    dataset = datasets.Dataset.from_dict({"index": list(range(120))}).to_iterable_dataset(num_shards=4)
    return HFStreamingSource(HFStreamingConfig(**options), dataset=dataset, transforms=transforms)


WHERE = {
    of_files: {("part-00002.array_record", 1), ("part-00003.array_record", 30), ("part-00003.array_record", 31)},
    of_stream: {("dataset, shard 0", 13), ("dataset, shard 1", 20), ("dataset, shard 1", 21)},
}


@pytest.fixture(params=WHERE, ids=["files", "stream"])
def make(request, files):
    """A source with three broken records, one kind after the other."""
    return functools.partial(request.param, files)


def positions_of(make, **config):
    """Where the broken ones stand, found in the stream with nothing that breaks on them."""
    whole = make([decode] if make.func is of_files else (), **config)
    batches = [(batch.positions[0], batch.columns["index"][0]) for batch in whole.batches(0, StreamOptions(1))]
    assert len(batches) == 240
    return [int(position) for position, index in batches if index in (13, 50, 51)]


def pipeline(source, **options):
    return Pipeline(source=source, batch_size=8, **options)


def test_after_every_resume_the_file_lists_each_record_once_a_pass(make, tmp_path):
    path = tmp_path / "skipped.jsonl"
    with pipeline(make(skipped_path=str(path))) as running:
        states = [running.get_state() for _ in running]
        assert running.num_skipped == 6
    want = listed(path)
    assert [entry["position"] for entry in want] == positions_of(make)
    assert {(Path(entry["file"]).name, entry["record"]) for entry in want} == WHERE[make.func]
    assert all("FailAt raised ZeroDivisionError: cannot divide element" in entry["reason"] for entry in want)
    for state in states[::5]:
        with pipeline(make(skipped_path=str(path))) as resumed:
            resumed.set_state(state)
            for _ in resumed:
                pass
            assert resumed.num_skipped == 6
        assert listed(path) == want
    with pipeline(make(skipped_path=str(path))) as anew:
        anew.step()
        assert listed(path) == [entry for entry in want if entry["position"] < anew.position]


def test_below_a_url_they_are_listed_alike(make, tmp_path):
    path, url = tmp_path / "skipped.jsonl", "memory://skipped/list.jsonl"
    with pipeline(make(skipped_path=str(path))) as near:
        run(near, [])
    try:
        with pipeline(make(skipped_path=url)) as far:
            states = [far.get_state() for _ in far]
        for state in (None, states[5], states[20], states[-1]):
            if state is not None:
                with pipeline(make(skipped_path=url)) as resumed:
                    resumed.set_state(state)
                    run(resumed, [])
            assert "".join(UrlLines(url).read()) == path.read_text()
    finally:
        fsspec.filesystem("memory").rm("/skipped", recursive=True)


@pytest.mark.usefixtures("ray_local")
def test_killed_actors_other_numbers_of_them_and_trainers_list_the_same(make, tmp_path):
    path = tmp_path / "skipped.jsonl"
    with pipeline(make(skipped_path=str(path))) as alone:
        run(alone, [])
    want = listed(path)
    path.unlink()
    source = make(skipped_path=str(path))
    with RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=8, max_nbytes=1) as distributed:
        trainers = [pipeline(distributed, process_index=index, process_count=2) for index in range(2)]
        for step in range(12):
            for trainer in trainers:
                trainer.step()
            if step == 5:
                os.kill(distributed.stats()[0]["pid"], signal.SIGKILL)
        states = [trainer.get_state() for trainer in trainers]
    assert comparable(states[0]) == comparable(states[1])  # the evidence is of rows of each
    with RaySource(source, num_actors=1, num_cpus=0.5) as distributed:
        for index in range(2):
            trainer = pipeline(distributed, process_index=index, process_count=2)
            trainer.set_state(states[0])
            run(trainer, [])
            assert trainer.num_skipped == 6
            assert listed(path) == want
    with pipeline(source) as resumed:
        resumed.set_state(states[0])
        run(resumed, [])
        assert resumed.num_skipped == 6
    assert listed(path) == want


def run(running, states):
    for _ in running:
        states.append(running.get_state())


def test_the_cap_stops_the_pipeline_before_the_batch_and_stays(make):
    with pipeline(make(max_skipped=2)) as capped:
        states = []
        for _ in range(2):
            with pytest.raises(SkippedError, match="more than max_skipped=2 allows"):
                run(capped, states)
            last = capped.get_state()
            assert last == states[-1]
        assert capped.num_skipped <= 2
    with pipeline(make(max_skipped=5)) as counting:
        counting.set_state(last)  # the count goes on where the state was taken
        with pytest.raises(SkippedError, match="6 records .* more than max_skipped=5 allows"):
            run(counting, [])
    with pipeline(make(max_skipped=6)) as enough:
        enough.set_state(last)  # the cap is no part of what the stream is
        run(enough, [])
        assert enough.num_skipped == 6


def of_large(error):
    return "cannot divide element 5" in str(error) and isinstance(error.__cause__, ZeroDivisionError)


def of_small(error):
    return error.position < 20


def test_a_function_decides_which_failures_are_skipped(files):
    source = of_files(files, on_error=of_large, shuffle=False)
    assert [e["index"] for e in source.get_batch_at(45, 8)] == [45, 46, 47, 48, 49, 52]
    two = [decode, FailAt(50), FailAt(13), FailAt(51), FailAt(5)]  # what is skipped after a failure ends nothing
    mixed = ArrayRecordSourceModule(ArrayRecordSourceConfig(on_error=of_small), files, transforms=two)
    block = mixed.describe().read(ReadRequest(0, 100))
    assert block.positions.tolist() == [p for p in range(50) if p not in (5, 13)]
    assert [skip.position for skip in block.skipped] == [5, 13]
    assert block.failure_position == 50
    with pytest.raises(RecordError, match=r"part-00002.array_record\[1\] \(position 13\): transform FailAt"):
        source.get_batch_at(10, 8)
    with pipeline(source) as stops, pytest.raises(RecordError, match="position 13"):
        list(stops)


def in_the_way(path):
    """As where a disk is full or was made read-only: the file cannot be written."""
    path.unlink(missing_ok=True)
    path.mkdir()


def test_where_it_cannot_be_written_a_pipelines_batch_comes_again(files, tmp_path):
    path = tmp_path / "skipped.jsonl"
    want = [batch["index"].tolist() for batch in Pipeline(source=of_files(files, shuffle=False), batch_size=10)]
    pipeline = Pipeline(source=of_files(files, shuffle=False, skipped_path=str(path)), batch_size=10)
    got = []
    for indices in want:
        before, skipped = pipeline.get_state(), list(pipeline.skipped)
        if not {13, 50, 51}.isdisjoint(range(indices[0], indices[-1])):  # something is missing from it
            in_the_way(path)
            for _ in range(2):
                with pytest.raises(IsADirectoryError) as caught:
                    pipeline.step()
                assert "cannot be written, so no batch is handed out" in caught.value.__notes__[0]
                assert (pipeline.get_state(), pipeline.skipped) == (before, skipped)
            path.rmdir()
        got.append(pipeline.step()["index"].tolist())
    assert (got, pipeline.num_skipped) == (want, 6)


@pytest.mark.parametrize("kind", ["a directory", "below a file", "a server that only gives"])
def test_a_path_that_can_never_be_written_is_refused_when_the_source_is_made(files, tmp_path, kind):
    (tmp_path / "file").touch()
    path, message = {
        "a directory": (tmp_path, "skipped_path=.* is a directory; name a file in it"),
        "a server that only gives": ("https://host/skipped.jsonl", "cannot be written: http servers are only read"),
        "below a file": (tmp_path / "file" / "a" / "b", r"skipped_path=.*: .*file is no directory"),
    }[kind]
    with pytest.raises(ValueError, match=message):
        of_files(files, skipped_path=str(path))


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_what_is_missing_from_the_tail_is_counted_once_however_often_the_end_is_looked_at(
    make, tmp_path, drop_remainder
):
    path = tmp_path / "skipped.jsonl"
    bad = [FailAt(13), FailAt(118), FailAt(119)]
    transforms = [decode, *bad] if make.func is of_files else bad
    config = {"transforms": transforms, "num_epochs": 1, "shuffle": False, "max_skipped": 3}

    def to_the_end(pipeline):
        rows = [len(batch["index"]) for batch in pipeline]
        assert (pipeline.num_skipped, len(listed(path))) == (3, 3)
        return rows

    def pipeline():
        source = make(**config, skipped_path=str(path))
        return Pipeline(source=source, batch_size=50, drop_remainder=drop_remainder)

    with pipeline() as running:
        assert to_the_end(running) == ([50, 50] if drop_remainder else [50, 50, 17])
        for _ in range(3):
            assert to_the_end(running) == []
            with pytest.raises(ValueError, match="too few|there are"):
                running.scan(lambda batch: batch["index"], length=1)
            assert running.num_skipped == len(running.skipped) == len(listed(path))
            state = running.get_state()
            with pipeline() as resumed:
                resumed.set_state(state)
                assert to_the_end(resumed) == []
                assert to_the_end(resumed) == []
        running.seek(0)
        assert running.num_skipped == 0
        assert sum(to_the_end(running)) == (100 if drop_remainder else 117)
