"""One suite for every source: a plain loop's stream, in one process and with actors, through kills and resumes."""

import functools
import gzip
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import datasets
import grain.python as grain
import jax.numpy as jnp
import numpy as np
import pytest
import ray
from flax import nnx

from datarax_ray import Pipeline, RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.orders.kinds import BlockShuffle
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    CSVSource,
    CSVSourceConfig,
    HFEagerConfig,
    HFEagerSource,
    HFStreamingConfig,
    HFStreamingSource,
    JSONLinesSource,
    JSONLinesSourceConfig,
    MDSSource,
    MDSSourceConfig,
    MixtureSource,
    ParquetSource,
    ParquetSourceConfig,
    RandomAccessSource,
    RandomAccessSourceConfig,
    TextStreamSource,
    TextStreamSourceConfig,
    TFRecordSource,
    TFRecordSourceConfig,
    WebDatasetSource,
    WebDatasetSourceConfig,
)
from datarax_ray.sources.base.stream import StreamSourceModule
from tests import oracle
from tests.data import Squares, decode, in_memory, stored_index, write_files
from tests.mds import write_mds
from tests.resume import assert_equal, assert_resumes, joined, on_host, run_saving
from tests.tables import write_tables
from tests.tars import indexed_square, write_tars
from tests.tfrecords import write_tfrecord

pytestmark = pytest.mark.usefixtures("ray_local")

N = 53


def array_records(directory, shuffle, block_size=None, **config):
    paths = write_files(directory, (20, 33)) if not list(directory.glob("*.array_record")) else directory
    config |= {"shuffle": shuffle, "shuffle_block_size": block_size if shuffle else None}
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**config), paths, transforms=[decode, stored_index])


def random_access(data, *transforms):
    return lambda _, **config: RandomAccessSource(RandomAccessSourceConfig(**config), data(), transforms=transforms)


def parquet(write, **options):
    def make(directory, **config):
        if not list(directory.glob("*.parquet")):
            write(directory)
        extra = options if config["shuffle"] else {}
        return ParquetSource(ParquetSourceConfig(**config, **extra), directory, columns=["index", "square"])

    return make


def hf_eager(data, *transforms, **options):
    def make(directory, **config):
        return HFEagerSource(HFEagerConfig(**config | options), dataset=data(directory), transforms=transforms)

    return make


def hf_stream(directory, **config):
    """Three shards, of unequal lengths."""
    stream = squares().to_iterable_dataset(num_shards=3)
    config |= {"turn_size": 4, "shuffle_buffer_size": 5}
    return HFStreamingSource(HFStreamingConfig(**config), dataset=stream)


def webdataset(directory, shuffle, block_size=None, **config):
    if not list(directory.glob("*.tar")):
        write_tars(directory, (20, 33))
    config |= {"shuffle": shuffle, "shuffle_block_size": block_size if shuffle else None}
    pattern = f"{directory}/shard-{{000..001}}.tar"
    return WebDatasetSource(WebDatasetSourceConfig(**config), pattern, transforms=[indexed_square])


def tfrecord(directory, **config):
    for name, (start, stop) in {"a": (0, 20), "b": (20, N)}.items():
        if not (path := directory / f"{name}.tfrecord").exists():
            write_tfrecord(path, (str(index).encode() for index in range(start, stop)))
    return TFRecordSource(TFRecordSourceConfig(**config), directory, transforms=[numbers])


def mds(compression):
    def make(directory, **config):
        if not (directory / "index.json").exists():
            samples = [{"index": i, "square": i * i} for i in range(N)]
            write_mds(directory, {"index": "int", "square": "int"}, samples, 8, compression)
        return MDSSource(MDSSourceConfig(**config), directory)

    return make


def csv_files(directory, **config):
    for start, stop in ((0, 20), (20, N)):
        lines = [f'{i * i},{i},"{"wide" * 100}"\n' for i in range(start, stop)]
        (directory / f"{start:02d}.csv").write_text("square,index,text\n" + "".join(lines))
    extra = {"shuffle_window": 2} if config["shuffle"] else {}
    return CSVSource(CSVSourceConfig(**config, **extra), directory, transforms=[stored_index])


def write_lines(directory, suffix, packed=bytes):
    for start, stop in ((0, 20), (20, N)):
        lines = "\n".join(json.dumps({"index": i, "square": i * i}) for i in range(start, stop))
        if not (path := directory / f"{start:02d}{suffix}").exists():
            path.write_bytes(packed(lines.encode()))


def json_lines(directory, **config):
    write_lines(directory, ".jsonl")
    extra = {"shuffle_block_size": 1} if config["shuffle"] else {}
    return JSONLinesSource(JSONLinesSourceConfig(**config, **extra), directory)


def compressed(directory, **config):
    write_lines(directory, ".jsonl.gz", gzip.compress)
    return TextStreamSource(TextStreamSourceConfig(turn_size=4, shuffle_buffer_size=5, **config), directory)


def by_datasets(directory):
    squares().to_parquet(directory / "data.parquet", batch_size=6)


def squares(start=0, stop=N):
    rows = range(start, stop)
    return datasets.Dataset.from_dict({"index": list(rows), "square": [i * i for i in rows]})


def mapped_squares(directory):
    """Three memory-mapped files, and an order of its own that undoes another."""
    if not (directory / "saved").exists():
        squares().select(range(N - 1, -1, -1)).save_to_disk(directory / "saved", num_shards=3)
    return datasets.load_from_disk(directory / "saved").select(range(N - 1, -1, -1))


def joined_squares(directory):
    return datasets.concatenate_datasets([squares(0, 20), mapped_squares(directory).select(range(20, N))])


def numbers(element):
    return {"index": int(element), "square": int(element) ** 2}


def mixture_of_one(directory, **config):
    return MixtureSource([random_access(lambda: Squares(N))(directory, **config)])


SOURCES = {
    "mixture of one": mixture_of_one,
    "array_record": array_records,
    "array_record in blocks": functools.partial(array_records, block_size=4),
    "parquet": parquet(lambda directory: write_tables(directory, (20, 33)), shuffle_window=3),
    "parquet, every row by itself": parquet(lambda directory: write_tables(directory, (20, 33)), shuffle_block_size=1),
    "parquet by datasets": parquet(by_datasets),
    "tfrecord": tfrecord,
    "mds": mds(None),
    "mds, packed": mds("zstd"),
    "webdataset": webdataset,
    "webdataset in blocks": functools.partial(webdataset, block_size=4),
    "csv": csv_files,
    "json lines, every row by itself": json_lines,
    "compressed json lines": compressed,
    "grain range": random_access(lambda: grain.RangeDataSource(0, N, 1), numbers),
    "own class": random_access(lambda: Squares(N)),
    "hugging face": random_access(squares),
    "hf eager in memory": hf_eager(lambda _: squares()),
    "hf eager mapped": hf_eager(mapped_squares),
    "hf eager joined": hf_eager(joined_squares, stored_index),
    "hf stream": hf_stream,
    "numpy arrays": random_access(lambda: {"index": np.arange(N), "square": np.arange(N) ** 2}),
    "jax arrays": random_access(lambda: {"index": jnp.arange(N), "square": jnp.arange(N) ** 2}),
}
# Those whose actors are killed, and shared, in every run; the rest in long runs alone, and these are read together.
KILLED = {"array_record", "parquet", "hf stream"}
SHARED = {"hf stream", "mixture of one"}


@pytest.fixture(params=list(SOURCES))
def make(request, tmp_path):
    def make(**config):
        return SOURCES[request.param](tmp_path, **({"shuffle": True, "num_epochs": 3} | config))

    return make


def pipeline(source, batch_size=10, **options):
    return Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize("shuffle", [False, True])
def test_in_one_process_it_is_the_plain_loop(make, shuffle):
    source = make(shuffle=shuffle)
    got = [int(i) for batch in pipeline(source) for i in batch["index"]]
    # these have oracles of their own, in tests/plan and tests/shards_oracle.py
    has_other_order = isinstance(source, StreamSourceModule) or isinstance(source.describe().order, BlockShuffle)
    if has_other_order:
        assert [sorted(got[e * N : (e + 1) * N]) for e in range(3)] == [list(range(N))] * 3
    else:
        assert got == [i for epoch in range(3) for i in oracle.order(N, epoch, 42 if shuffle else None)]


@pytest.mark.parametrize(
    "make", [pytest.param(name, marks=[pytest.mark.slow] * (name not in KILLED)) for name in SOURCES], indirect=True
)
def test_every_batch_is_the_same_with_actors_resumed_and_killed(make):
    source = make()
    batches, states = run_saving(pipeline(source))
    assert [b["square"].tolist() for b in batches] == [(b["index"] ** 2).tolist() for b in batches]
    assert all(len(state.encode()) < 4096 for state in states)
    # a chunk in flight at a time, so that most is read after the kill
    with RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=8, max_nbytes=1) as distributed:
        assert_equal([on_host(b) for b in pipeline(distributed)], batches)
        resumed = pipeline(distributed)
        resumed.set_state(json.loads(states[3]))
        left = iter(resumed)
        rest = [on_host(next(left)), on_host(next(left))]
        os.kill(distributed.stats()[0]["pid"], signal.SIGKILL)
        assert_equal(rest + [on_host(b) for b in left], batches[3:])
    assert_resumes(lambda _: pipeline(make()), batches, states, every=5)


@pytest.mark.parametrize(
    "make", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SHARED)) for name in SOURCES], indirect=True
)
def test_trainers_that_share_actors_have_their_rows_where_some_may_be_missing(make, request):
    source = make(on_error="skip")  # so that nobody knows beforehand which elements there are
    want = [on_host(batch) for batch in pipeline(source)]
    name = request.node.name
    options = {"num_actors": 2, "num_cpus": 0.5, "chunk_size": 8, "max_nbytes": 2000, "name": name}
    with RaySource(source, **options) as first, RaySource(source, **options) as second:
        trainers = [
            pipeline(shared, process_index=rank, process_count=2) for rank, shared in enumerate((first, second))
        ]
        got = []
        for parts in zip(*trainers, strict=True):
            got.append(parts)
            if len(got) == 3:
                os.kill(first.stats()[0]["pid"], signal.SIGKILL)
    assert_equal(joined(list(zip(*got, strict=True))), want)


def test_the_rest_together_are_the_same_with_actors(tmp_path):
    """A mixture of those that have no actors in the two tests above but in long runs."""
    names = [
        name for name in SOURCES if name not in KILLED | SHARED and "every row" not in name and "hf eager" not in name
    ]
    for number in range(len(names)):
        (tmp_path / str(number)).mkdir()
    sources = [SOURCES[name](tmp_path / str(number), shuffle=True) for number, name in enumerate(names)]
    mixed = MixtureSource(sources, length=2 * len(names))
    want = [element["index"] for element in mixed]
    mixed.set_state(mixed.copy().get_state())
    # one: each that reads them all imports what they need
    with RaySource(mixed, num_actors=1, num_cpus=0.5, chunk_size=7) as distributed:
        assert [element["index"] for element in distributed] == want


def test_a_loop_that_begins_at_the_end_says_why_it_gets_nothing(make, caplog):
    source = make(num_epochs=1)
    state = source.get_state()
    assert len(list(source)) == N
    assert "at its end" not in caplog.text
    assert list(source) == []
    assert "at its end" in caplog.text
    caplog.clear()
    source.set_state(state)
    assert len(list(source)) == N
    assert "at its end" not in caplog.text


def test_drift_is_refused(make):
    state = pipeline(make()).get_state()
    pipeline(make()).set_state(state)
    with pytest.raises(DriftError, match="order.seed"):
        pipeline(make(seed=1)).set_state(state)


def test_arrays_reach_all_actors_as_one_copy():
    rows = np.zeros((20_000, 256), np.float32)  # 20 MB
    source = in_memory({"x": rows})

    def in_use():
        return ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"]

    with RaySource(source, num_actors=2, num_cpus=0.5, max_nbytes=2**20) as distributed:
        peak = 0.0
        for _ in distributed.batches(0, StreamOptions(500)):
            peak = max(peak, in_use())
    assert rows.nbytes <= peak < rows.nbytes + 8 * 2**20


def test_a_data_source_that_fails_names_the_element():
    class Broken(Squares):
        def __getitem__(self, index):
            if index == 7:
                raise KeyError("no such square")
            return super().__getitem__(index)

    data = Broken(9)
    said = r"Squares\(9\)\[7\] \(position 7\): reading raised KeyError: 'no such square'"
    with pytest.raises(RecordError, match=said):
        list(in_memory(data))
    skipping = in_memory(data, on_error="skip")
    assert [element["index"] for element in skipping] == [0, 1, 2, 3, 4, 5, 6, 8]


def test_a_context_manager_is_entered_before_reading_and_left_at_close():
    events = []

    class Managed(Squares):
        def __enter__(self):
            events.append("enter")
            return self

        def __exit__(self, *_):
            events.append("exit")

    with in_memory(Managed(5)) as source:
        assert len(list(source)) == 5
    assert events == ["enter", "exit"]


def test_many_elements_are_asked_for_at_once_where_that_is_offered():
    asked = []

    class Batched(Squares):
        def __getitems__(self, indices):
            asked.append(len(indices))
            return [self[i] for i in indices]

    source = in_memory(Batched(40))
    assert [e["index"] for e in source.get_batch_at(0, 40)] == list(range(40))
    assert max(asked) == 40


@pytest.mark.parametrize("given", [{"index": np.arange(1)}, None, "a"], ids=["columns", "None", "text"])
def test_what_is_no_list_of_elements_is_refused(given):
    class Batched(Squares):
        def __getitems__(self, indices):
            return given

    source = in_memory(Batched(5))
    with pytest.raises(RecordError, match=f"gave {type(given).__name__} for a list of indices; __getitems__ returns"):
        source.get_batch(2)


OTHERS = [("x", np.arange(8)), ("x", np.arange(9) + 1), ("y", np.arange(9)), ("x", np.arange(9.0))]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([{"x": 0}, {"x": 1}], [{"x": 0}, {"x": 2}]),
        (((0, "a"), (1, "b")), ((0, "a"), (1, "c"))),
        (np.arange(5), np.arange(1, 6)),
        *(({"x": np.arange(9)}, {name: rows}) for name, rows in OTHERS),
    ],
)
def test_a_state_of_other_data_in_memory_is_refused(before, after):
    def source(data):
        return in_memory(data)

    state = json.loads(json.dumps(source(before).get_state()))
    source(before).set_state(state)
    with pytest.raises(DriftError, match=r"files\.(num_records|digest|content): the checkpoint was written with"):
        source(after).set_state(state)


def test_lists_among_arrays_keep_their_values():
    data = {"any": [1, "a", None], "text": [b"a\0", b"", b"b"], "x": [2**63, 2**63, 2**63], "y": [[1.5], [2.5], [3.5]]}
    batch = in_memory(data, num_epochs=-1).get_batch(3)
    assert {name: column.tolist() for name, column in batch.items()} == data
    assert [column.dtype for column in batch.values()] == [object, object, np.uint64, np.float64]


@pytest.mark.parametrize("values", [[1, 2**63], [2**53 + 1, 0.5], [True, 2]])
def test_lists_of_numbers_that_an_array_would_change_are_refused(values):
    with pytest.raises(ValueError, match="the list 'a.x' holds .*; give a NumPy array of the dtype that you want"):
        in_memory({"a": {"x": values}}, num_epochs=-1)


def test_numbers_wider_than_any_devices_are_refused_with_their_field():
    data = {"a": {"x": np.arange(4, dtype=np.longdouble)}}
    with pytest.raises(TypeError, match=r"field \['a'\]\['x'\] is .*, which no device has; make it float64"):
        next(iter(pipeline(in_memory(data, num_epochs=-1), 4)))


def test_what_does_not_travel_says_so():
    lock = threading.Lock()
    transforms = [lambda e: e, lambda e: (lock, e)[1]]
    transforms[1].__qualname__ = "locked"
    source = in_memory(Squares(3), transforms=transforms, num_epochs=-1)
    with pytest.raises(TypeError) as info:
        RaySource(source, num_actors=1, num_cpus=0.5)
    assert "travel to the actors by pickle" in (said := "\n".join(info.value.__notes__))
    assert said.endswith(" It is in transform locked, or in a value of it.")


@pytest.mark.usefixtures("switching")
def test_no_thread_leaves_a_context_that_another_one_reads_in():
    class Managed(Squares):
        is_open = False

        def __enter__(self):
            self.is_open = True
            return self

        def __exit__(self, *_):
            self.is_open = False

        def __getitem__(self, index):
            if not self.is_open:
                outside.append(index)  # an error would be met by reading it once more
            return super().__getitem__(index)

    outside = []
    source = in_memory(Managed(400))
    want = [Squares(400)[index] for index in range(400)]

    def read_and_close():
        for _ in range(20):
            assert source.get_batch_at(0, 400) == want
            source.close()

    with ThreadPoolExecutor(2) as threads:
        for reading in [threads.submit(read_and_close) for _ in range(2)]:
            reading.result()
    assert not outside


def test_arrays_of_another_byte_order_become_those_of_this_machine():
    data = {"x": np.arange(4, dtype=">i4"), "y": np.arange(4, dtype=">f8")}
    (batch,) = pipeline(in_memory(data), 4)
    assert {name: column.tolist() for name, column in batch.items()} == {name: [0, 1, 2, 3] for name in "xy"}
