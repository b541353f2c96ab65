"""Behaviour of the libraries below or beside this package that nobody would guess, and the behaviour here.

A test that fails here says that a library has changed: then the pages that name the behaviour change, too. Seen with
datasets 5.2, grain 0.2.18, array_record 0.8.6, jax 0.10.2, pyarrow 26 and Orbax 0.12.8.
"""

import json
from collections import Counter

import datasets
import grain.python as grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pyarrow as pa
import pytest
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from pyarrow import parquet

import datarax_ray.grain.python as our_grain
from datarax_ray import (
    HFEagerConfig,
    HFEagerSource,
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    Pipeline,
    PipelineRestore,
    PipelineSave,
    load,
)
from tests.data import in_memory

BEYOND_FLOAT32 = 2**24 + 1


def eager(data):
    return HFEagerSource(HFEagerConfig(num_epochs=1), dataset=data)


def streamed(data):
    return HFStreamingSource(HFStreamingConfig(streaming=True, num_epochs=1), dataset=data)


def shards(num_records=240):
    return datasets.Dataset.from_dict({"x": list(range(num_records))}).to_iterable_dataset(num_shards=3)


class TestDatasets:
    def test_a_batch_of_integers_with_a_null_is_float32_there_and_exact_here(self):
        data = datasets.Dataset.from_dict({"x": [BEYOND_FLOAT32, None, 3]})
        with_format = data.with_format("numpy")
        batch = with_format[:]["x"]
        assert (batch.dtype, int(batch[0])) == (np.float32, BEYOND_FLOAT32 - 1)
        assert with_format[0]["x"] == BEYOND_FLOAT32  # alone it is exact
        for source in (eager(data), eager(with_format), streamed(data.to_iterable_dataset())):
            assert source.get_batch(3)["x"].tolist() == [BEYOND_FLOAT32, None, 3]
        mixed = MixtureSource([eager(data), eager(with_format)], [1, 1], seed=0)
        assert Counter(mixed.get_batch(6)["x"].tolist()) == {BEYOND_FLOAT32: 2, None: 2, 3: 2}

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_a_shuffled_stream_resumes_without_its_buffer_and_is_refused_here(self):
        shuffled = shards().shuffle(seed=1, buffer_size=50)
        reading = iter(shuffled)
        seen = [next(reading)["x"] for _ in range(60)]
        resumed = shards().shuffle(seed=1, buffer_size=50)
        resumed.load_state_dict(shuffled.state_dict())
        counts = Counter(seen + [each["x"] for each in resumed])
        assert 240 - len(counts) > 0  # lost
        assert max(counts.values()) > 1  # twice
        with pytest.raises(ValueError, match="shuffled by its own shuffle"):
            streamed(shuffled)

    def test_a_shuffle_takes_turns_over_shards_whatever_its_buffer_is(self):
        turns = [each["x"] for each in shards().shuffle(seed=1, buffer_size=1)]
        assert turns[:6] == [0, 80, 160, 1, 81, 161]

    def test_take_is_of_the_stream_there_and_keeps_all_shards(self, caplog):
        taken = shards().take(5)
        assert taken.num_shards == 3
        assert [each["x"] for each in taken] == [0, 1, 2, 3, 4]
        assert len(streamed(taken).get_batch(100)["x"]) == 5
        assert "does take(5) for each of the 3 shards apart" in caplog.text

    def test_repeat_behind_a_shuffle_repeats_its_order(self):
        rows = [each["x"] for each in shards().shuffle(seed=1, buffer_size=50).repeat(2)]
        assert rows[:240] == rows[240:]
        config = HFStreamingConfig(streaming=True, shuffle=True, seed=1, num_epochs=2)
        ours = HFStreamingSource(config, dataset=shards()).get_batch(480)["x"]
        assert sorted(ours[:240]) == sorted(ours[240:]) == list(range(240))
        assert ours[:240].tolist() != ours[240:].tolist()


class TestGrain:
    @pytest.mark.parametrize("drops", [False, True])
    def test_a_shard_loses_the_remainder_though_it_is_told_to_keep_it(self, drops, caplog):
        """Record 3 of 10 is in none of 3 shards."""

        def shard_of(index):
            options = grain.ShardOptions(index, 3, drop_remainder=drops)
            sampler = grain.IndexSampler(10, options, shuffle=False, num_epochs=1)
            source = grain.RangeDataSource(0, 10, 1)
            with our_grain.DataLoader(data_source=source, sampler=sampler, worker_count=0) as ours:
                return list(grain.DataLoader(data_source=source, sampler=sampler)), list(map(int, ours))

        wanted = [[0, 1, 2], [3, 4, 5], [6, 7, 8]] if drops else [[0, 1, 2], [4, 5, 6], [7, 8, 9]]
        assert [shard_of(index) for index in range(3)] == [(rows, rows) for rows in wanted]
        assert ("1 of 10 records are in no shard" in caplog.text) is not drops

    def test_nullable_integers_of_parquet_are_floats_there_and_exact_here(self, tmp_path):
        large = 2**53 + 1
        path = tmp_path / "a.parquet"
        parquet.write_table(pa.table({"x": pa.array([1, None, large], pa.int64())}), path)
        found = [each["x"] for each in grain.experimental.ParquetIterDataset(str(path))]
        assert [type(value) for value in found] == [np.float64] * 3
        assert int(found[2]) == large - 1
        assert load(path).get_batch(3)["x"].tolist() == [1, None, large]


class TestArrayRecord:
    def test_what_reads_nothing_raises_another_error_each_way(self, tmp_path):
        def written(name, records):
            writer = ArrayRecordWriter(str(tmp_path / name), "group_size:1")
            for record in records:
                writer.write(record)
            writer.close()
            return str(tmp_path / name)

        ten = ArrayRecordReader(written("ten", [bytes([k]) for k in range(10)]))
        assert ten.read(-3, -1) == [b"\x07", b"\x08"]
        for call, error in (
            (lambda: ten.read([-1]), TypeError),
            (lambda: ten.read([10]), RuntimeError),
            (lambda: ten.read(0, 11), IndexError),
            (lambda: ten.read(5, 5), IndexError),
            (lambda: ArrayRecordReader(written("none", [])).read(), IndexError),
        ):
            with pytest.raises(error):
                call()
        ours = load(tmp_path / "ten")
        assert ours.get_batch_at(10, 3) == []
        with pytest.raises(ValueError, match="must not be negative"):
            ours.get_batch_at(-1, 1)
        with pytest.raises(ValueError, match="no records|without records|at least one"):
            load(tmp_path / "none")

    def test_a_file_whose_writer_lives_has_no_bytes_and_is_refused_here(self, tmp_path):
        writer = ArrayRecordWriter(str(tmp_path / "a.array_record"), "group_size:1")
        writer.write(b"a")
        assert (tmp_path / "a.array_record").stat().st_size == 0
        with pytest.raises(ValueError, match="a.array_record"):
            load(str(tmp_path / "a.array_record"))
        writer.close()


def test_jax_shares_an_aligned_array_on_a_cpu_and_copies_another():
    """So memory that a batch had must not be written to while its jax.Array lives (tests/pipeline/test_reused_memory).

    Aligned is to 64 bytes, as NumPy's large arrays are by chance.
    """

    def is_shared(offset):
        memory = np.zeros(2**16 + 128, np.uint8)
        array = memory[-memory.ctypes.data % 64 + offset :][: 2**16]
        placed = jax.device_put(array)
        placed.block_until_ready()
        array[:] = 2
        return bool((np.asarray(placed) == 2).any())

    assert [is_shared(offset) for offset in (0, 1, 16, 32)] == [True, False, False, False]


def test_orbax_saves_a_step_once_and_says_so_by_its_result_alone(tmp_path):
    source = in_memory(range(100), num_epochs=-1)
    with ocp.CheckpointManager(tmp_path) as manager, Pipeline(source=source, batch_size=2, on_host=True) as pipeline:

        def save(step):
            saved = manager.save(step, args=ocp.args.Composite(data=PipelineSave(pipeline)))
            manager.wait_until_finished()
            return saved

        first = pipeline.step().tolist()
        assert save(5)
        second = pipeline.step().tolist()
        assert not save(5)  # the state of the first batch stays
        assert not save(4)
        assert manager.all_steps() == [5]
        manager.restore(5, args=ocp.args.Composite(data=PipelineRestore(pipeline)))
        assert (first, pipeline.step().tolist()) == ([0, 1], second)


def test_an_object_in_a_second_file_of_nulls_ends_a_stream_of_datasets(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": None}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"x": {"y": 1}}) + "\n")
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(TypeError, match="Couldn't cast array of type"):
        list(datasets.load_dataset("json", data_files=files, split="train", streaming=True))
