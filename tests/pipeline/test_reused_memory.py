"""What a device reads of a batch's memory, at once or later, is the batch; see tests/read/test_reused_memory.py."""

from __future__ import annotations

import gc
from collections import deque
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from datarax_ray import ConcatThenSplit, DecodeRaw, Pipeline, RaySource
from datarax_ray.feed import batches
from datarax_ray.pipeline import transfer
from datarax_ray.pipeline.transfer import Placer
from datarax_ray.read import background
from datarax_ray.read.formats.array_record import reader
from datarax_ray.read.reused_memory import ReusedMemory
from datarax_ray.sources import MixtureSource, ParquetSource, ParquetSourceConfig
from tests.data import DropThirds, array_records, decode, write_file
from tests.resume import on_host
from tests.tables import write_tables


@pytest.mark.parametrize("put", [jax.device_put, "a program"])
def test_a_device_array_stays_as_it_is_whatever_comes_after_it(put, monkeypatch):
    monkeypatch.setattr(transfer, "_COMPILED_AFTER", 1)
    placer = Placer()
    place = (lambda batch: next(placer([batch]))) if put == "a program" else put
    memory = ReusedMemory(max_free=2, min_nbytes=1)
    step = jax.jit(lambda x: x * 2)
    placed, results = [], []
    for number in range(40):
        batch = memory.empty((1024, 64), np.dtype("float32"))
        batch[:] = number
        array = place({"x": batch})["x"]
        del batch
        results.append(step(array))
        if number % 3 == 0:
            placed.append((number, array))
        del array
    for number, result in enumerate(results):
        assert (np.asarray(result) == 2 * number).all()
    for number, array in placed:
        assert (np.asarray(array) == number).all()


def test_memory_that_a_device_array_showed_comes_back_without_a_wait_for_the_collector():
    memory, addresses = ReusedMemory(max_free=2), set()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            batch = memory.empty((1024, 1024), np.dtype("float32"))
            addresses.add(batch.ctypes.data)
            jax.device_put(batch).block_until_ready()
            del batch
    finally:
        gc.enable()
    assert len(addresses) <= 2


def test_a_step_that_is_given_a_batch_to_write_to_writes_to_no_later_one():
    memory = ReusedMemory(max_free=2, min_nbytes=1)
    step = jax.jit(lambda x: x * 2, donate_argnums=0)
    results = []
    for number in range(40):
        batch = memory.empty((1024, 64), np.dtype("float32"))
        batch[:] = number
        array = jax.device_put(batch)
        results.append(step(array))
        assert (batch == number).all()
        del batch, array
    for number, result in enumerate(results):
        assert (np.asarray(result) == 2 * number).all()


class LateDevice:
    """Reads what it is given `late` transfers later, and holds it until then: of JAX an accelerator may do so.

    What comes of a transfer are copies: an array of a CPU device would show the memory itself, and hold it for longer.
    """

    def __init__(self, late):
        self._late = late
        self._put, self._make = jax.device_put, jax.make_array_from_callback
        self._unread: deque[tuple[np.ndarray, bytes]] = deque()
        self.addresses: list[int] = []

    def device_put(self, tree, *args, **options):
        return self._put(jax.tree.map(self._take, tree), *args, **options)

    def make_array_from_callback(self, shape, sharding, callback):
        return self._make(shape, sharding, lambda index: self._take(callback(index)))

    def read(self, left=0):
        while len(self._unread) > left:
            array, given = self._unread.popleft()
            assert array.tobytes() == given, "memory was written to before it was read"

    def _take(self, leaf):
        if not isinstance(leaf, np.ndarray):
            return leaf
        self.addresses.append(leaf.ctypes.data)
        self._unread.append((leaf, leaf.tobytes()))
        self.read(self._late)
        return leaf.copy()


@pytest.fixture(params=[1, 9], ids="read {} later".format)
def late_device(request, monkeypatch):
    """One, beside batches whose memory is used again however small they are."""
    device = LateDevice(request.param)
    monkeypatch.setattr(jax, "device_put", device.device_put)
    monkeypatch.setattr(jax, "make_array_from_callback", device.make_array_from_callback)
    for module in (batches, reader):
        monkeypatch.setattr(module, "ReusedMemory", partial(ReusedMemory, min_nbytes=1))
    monkeypatch.setattr(batches, "_MAX_SERIES", 1)  # no array of several batches is large enough to be used again
    return device


def array_record(files, *transforms):
    return array_records(files, decode, *transforms)


def rows(directory):
    path = write_file(directory / "rows.array_record", (np.arange(i, i + 16, dtype="i4").tobytes() for i in range(100)))
    return array_records(path, DecodeRaw("int32", (16,)))


def tokens(element):
    return {"tokens": np.full(1 + element["index"] % 5, element["index"], np.int32)}


def mixture(files, directory):
    paths = write_tables(directory, (40, 40), row_group=8)
    tables = ParquetSource(ParquetSourceConfig(shuffle=True), paths, columns=["index"])
    return MixtureSource([array_record(files, only_index), tables], weights=[2, 1], length=200)


def only_index(element):
    return {"index": np.int64(element["index"])}


def over_two():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    return NamedSharding(mesh, PartitionSpec("data"))


STREAMS = {
    "records": lambda files, _: (array_record(files), {}),
    "rows as they are read": lambda _, directory: (rows(directory), {}),
    "made when they are asked for": lambda files, _: (array_record(files), {"prefetch": 0}),
    "behind a filter": lambda files, _: (array_record(files, DropThirds()), {}),
    "a last one filled up": lambda files, _: (array_record(files), {"pad_remainder": True}),
    "packed": lambda files, _: (array_record(files, tokens), {"packing": ConcatThenSplit(8, "tokens")}),
    "over a mesh": lambda files, _: (array_record(files), {"sharding": over_two()}),
    "a mixture": lambda files, directory: (mixture(files, directory), {}),
}


@pytest.fixture(params=list(STREAMS))
def make(request, files, tmp_path):
    def make(**options):
        source, own = STREAMS[request.param](files, tmp_path)
        return Pipeline(source=source, batch_size=8, **{"prefetch": 3} | own | options)

    return make


def assert_same(got, want):
    for batch, expected in zip(got, want, strict=True):
        assert batch.keys() == expected.keys()
        assert all(np.array_equal(batch[name], expected[name]) for name in batch)


def test_a_device_that_reads_late_reads_each_batch(make, late_device):
    want = list(make(on_host=True))
    with make() as pipeline:
        assert_same([on_host(batch) for batch in pipeline], want)
    late_device.read()
    assert len(set(late_device.addresses)) < len(late_device.addresses), "some were in the memory of one before"


def test_so_it_does_when_the_pipeline_is_closed_before_and_another_goes_on(make, late_device):
    want = list(make(on_host=True))
    with make() as pipeline:
        got = [on_host(pipeline.step()) for _ in range(3)]
        state = pipeline.get_state()
    del pipeline
    gc.collect()
    with make() as pipeline:
        pipeline.set_state(state)
        assert_same(got + [on_host(batch) for batch in pipeline], want)
    late_device.read()


@pytest.mark.parametrize("most", [1, background._MAX_GROUP])  # batches that count as one where they come together
def test_a_device_holds_the_batches_made_ahead_and_no_more(make, most, monkeypatch):
    """Without the garbage collector, which may come late."""
    monkeypatch.setattr(background, "_MAX_GROUP", most)
    gc.collect()
    gc.disable()
    try:
        with make() as pipeline:
            before = nbytes(jax.live_arrays())
            found = [(nbytes(jax.live_arrays()) - before, nbytes(jax.tree.leaves(batch))) for batch in pipeline]
        left = nbytes(jax.live_arrays()) - before
    finally:
        gc.enable()
    held, sizes = zip(*found, strict=True)
    assert max(held) <= (1 + 3 + 1) * most * max(sizes)  # the one in use, those ahead, and one that is being made
    assert left <= 0  # less where another test's went meanwhile


def nbytes(arrays):
    return sum(array.nbytes for array in arrays if isinstance(array, jax.Array))


def test_so_it_does_of_what_actors_read(files, late_device, ray_local):
    want = list(Pipeline(source=array_record(files), batch_size=8, on_host=True))
    with (
        RaySource(array_record(files), num_actors=2, num_cpus=0.5) as source,
        Pipeline(source=source, batch_size=8, prefetch=3) as pipeline,
    ):
        assert_same([on_host(batch) for batch in pipeline], want)
    late_device.read()
