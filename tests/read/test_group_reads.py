"""Block and file order over files whose records are stored in groups: how much is decoded, counted where it is asked.

Actors are copies of the stream here, each with a reader of its own, which answer the requests that a scheduler deals.
"""

import itertools
import pickle
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import assign
from datarax_ray.plan.requests import EVERYTHING, Wanted
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import TrainerPositions, rows_of_rank
from datarax_ray.read.decode import DecodeFields, DecodeJson, DecodeRaw
from datarax_ray.read.elements.columns import leaves
from datarax_ray.read.formats.array_record import open_files
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import record, write_file, write_files

GROUP = 16
COUNTS = (40 * GROUP, 48 * GROUP, 25 * GROUP + 5)
N = sum(COUNTS)
WINDOW = 8  # blocks


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("groups"), COUNTS, GROUP)


@pytest.fixture(scope="module")
def wide_paths(tmp_path_factory):
    """The same records, each with zeros behind it."""
    directory, starts = tmp_path_factory.mktemp("wide"), np.cumsum([0, *COUNTS]).tolist()
    for part, (start, stop) in enumerate(itertools.pairwise(starts)):
        wide = (record(index).ljust(5000, b"\0") for index in range(start, stop))
        write_file(directory / f"{part}.array_record", wide, GROUP)
    return sorted(directory.iterdir())


class Counting:
    """array_record's reader, which decodes whole groups: it counts their records."""

    num_decoded = 0

    def __init__(self, reader):
        self._reader = reader

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def read(self, first, stop=None):
        size = int(re.search(r"group_size:(\d+)", self._reader.writer_options_string())[1])
        groups = {index // size for index in (first if stop is None else range(first, stop))}
        Counting.num_decoded += sum(min(size, self._reader.num_records() - group * size) for group in groups)
        return self._reader.read(first) if stop is None else self._reader.read(first, stop)


@pytest.fixture
def decoded(monkeypatch):
    """How many records were decoded since it was last asked."""
    opened = open_files.open_file
    monkeypatch.setattr(open_files, "open_file", lambda path: Counting(opened(path)))
    Counting.num_decoded = 0

    def since():
        found, Counting.num_decoded = Counting.num_decoded, 0
        return found

    return since


def groups_of(paths, num_epochs=1):
    """The order whose blocks are the groups."""
    reader = ArrayRecordReader.of(paths)
    order = order_of(reader.num_records, 7, "block", groups=reader.groups, window_blocks=WINDOW)
    return IndexedStream(reader.with_room_for(2 * WINDOW * GROUP), order, num_epochs)


def stream_of(paths, num_epochs=1, block_size=GROUP, transforms=()):
    reader = ArrayRecordReader.of(paths)
    order = order_of(N, 7, "block", block_size=block_size, window_blocks=WINDOW)
    return IndexedStream(reader.with_room_for(2 * WINDOW * block_size), order, num_epochs, transforms)


def run(stream, num_actors, chunk_size, start=0, moves=None):
    """(the elements at all positions from the start on, the actors) read by so many actors in chunks of this size.

    moves: {number of a chunk: actors}, to whom partitions go before it.
    """
    scheduler = stream.scheduler(StreamState(start), stream.stop, EVERYTHING)
    owners = assign(scheduler.partitioning, range(num_actors))
    actors, found, number = {}, {}, 0
    while not scheduler.is_exhausted:
        if moves and number in moves:
            owners = assign(scheduler.partitioning, moves[number], owners)
        for actor, request in scheduler.next_chunk(chunk_size, owners).requests:
            if actor not in actors:
                actors[actor] = pickle.loads(pickle.dumps(stream))
            positions, elements = actors[actor].elements_at(*request.select(stream.order))
            found.update(zip(positions, elements, strict=True))
        number += 1
    assert sorted(found) == list(range(start, stream.stop))
    return [found[position] for position in range(start, stream.stop)], list(actors.values())


@pytest.mark.parametrize("num_actors", [1, 3])
@pytest.mark.parametrize("chunk_size", [7, 1000])
@pytest.mark.parametrize(("shuffle", "window"), [("block", {"window_blocks": WINDOW}), ("none", {})])
def test_an_epoch_of_parquet_decodes_each_row_group_once(
    tmp_path, num_actors, chunk_size, shuffle, window, monkeypatch
):
    """With room for two windows of row groups, as its source gives it."""
    rows = [*[16] * 50, 3, *[16] * 33, 1]
    for part, cut in enumerate([slice(0, 51), slice(51, None)]):
        table = pa.table({"index": np.arange(sum(rows[: cut.start]), sum(rows[: cut.stop]))})
        with pq.ParquetWriter(tmp_path / f"{part}.parquet", table.schema) as writer:
            for start in range(0, len(table), 16):
                writer.write_table(table.slice(start, 16))
    num_rows = sum(rows)
    reader = ParquetReader.of(tmp_path)
    decoded = []
    decode = ParquetReader._decode
    monkeypatch.setattr(ParquetReader, "_decode", lambda self, group: decoded.append(group) or decode(self, group))
    largest = 8 * int(np.diff(reader.groups.starts).max())
    order = order_of(num_rows, 7, shuffle, groups=reader.groups, **window)
    stream = IndexedStream(ParquetReader(**reader._given | {"max_nbytes": 2 * WINDOW * largest}), order, 2)
    found, _ = run(stream, num_actors, chunk_size)
    assert [element["index"] for element in found] == order.records(np.arange(2 * num_rows)).tolist()
    assert len(decoded) <= 2 * len(rows)


LARGE_GROUP = 256
LARGE_COUNTS = (5 * LARGE_GROUP + 20, 100, 7 * LARGE_GROUP)


def large(index):
    """A record of which 177 are the run that one actor would be given: it fits no group."""
    return np.random.default_rng(index).bytes(1480)


@pytest.fixture(scope="module")
def large_paths(tmp_path_factory):
    directory, starts = tmp_path_factory.mktemp("large"), np.cumsum([0, *LARGE_COUNTS]).tolist()
    return [
        write_file(directory / f"{part}.array_record", map(large, range(start, stop)), LARGE_GROUP)
        for part, (start, stop) in enumerate(itertools.pairwise(starts))
    ]


def in_file_order(paths, **options):
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**options), paths).describe()


@pytest.mark.parametrize("num_actors", [1, 4])
@pytest.mark.parametrize("chunk_size", [7, 1000])
def test_an_epoch_in_file_order_decodes_each_group_once(large_paths, decoded, num_actors, chunk_size):
    stream = in_file_order(large_paths, num_epochs=2)
    found, _ = run(stream, num_actors, chunk_size)
    assert found == [large(index) for index in range(sum(LARGE_COUNTS))] * 2
    assert decoded() == 2 * sum(LARGE_COUNTS)


def expected(stream, start=0):
    return [record(i) for i in stream.order.records(np.arange(start, stream.stop)).tolist()]


@pytest.mark.parametrize("num_actors", [1, 3])
@pytest.mark.parametrize("chunk_size", [7, 48, WINDOW * GROUP, 1000])
@pytest.mark.parametrize("nbytes", [20, 5000])  # groups of 320 bytes, which are gathered together, and of 80 KB, not
def test_an_epoch_decodes_each_group_once(paths, wide_paths, decoded, num_actors, chunk_size, nbytes):
    stream = stream_of(paths if nbytes == 20 else wide_paths, num_epochs=2)
    found, _ = run(stream, num_actors, chunk_size)
    assert {len(element) for element in found} == {nbytes}
    assert [element[:20] for element in found] == expected(stream)
    assert decoded() <= 1.05 * 2 * N


@pytest.mark.parametrize("num_actors", [1, 3])
@pytest.mark.parametrize("chunk_size", [7, 1000])
def test_blocks_that_are_the_groups_fit_files_of_any_sizes(tmp_path, decoded, num_actors, chunk_size):
    counts = [3 * GROUP + 1, 1, 50 * GROUP + 7, 0, 30 * GROUP - 1]
    stream = groups_of(write_files(tmp_path, counts, GROUP), num_epochs=2)
    found, _ = run(stream, num_actors, chunk_size)
    assert found == expected(stream)
    assert decoded() <= 2 * sum(counts)


@pytest.mark.parametrize("start", [1, WINDOW * GROUP // 2, N - 3, N + WINDOW * GROUP + 5])
def test_a_stream_that_goes_on_within_a_window_decodes_what_is_left_of_it_once(paths, decoded, start):
    stream = stream_of(paths, num_epochs=2)
    found, _ = run(stream, 2, 50, start)
    assert found == expected(stream, start)
    assert decoded() <= 1.05 * (2 * N - start) + WINDOW * GROUP


def test_partitions_that_move_cost_their_groups_of_the_open_window_again_and_nothing_else(paths, decoded):
    stream = stream_of(paths)
    moves = {5: [0, 1, 2], 17: [1, 2], 18: [2, 3]}
    found, _ = run(stream, 2, 50, moves=moves)
    assert found == expected(stream)
    assert decoded() <= N + len(moves) * WINDOW * GROUP


@pytest.mark.parametrize("start", [0, 77])
def test_two_windows_are_all_that_is_kept(paths, start):
    """Also where the rest of some groups is never asked for: blocks that groups do not fit, a stream that goes on."""
    stream = stream_of(paths, num_epochs=2, block_size=GROUP + 1)
    found, actors = run(stream, 2, 60, start)
    assert found == expected(stream, start)
    for actor in actors:
        kept = actor.reader._decoded
        assert sum(decoded.rows for decoded in kept._decoded.values()) == kept._rows <= 2 * WINDOW * (GROUP + 1)
        assert sum(decoded.nbytes for decoded in kept._decoded.values()) == kept._nbytes


DECODERS = [
    DecodeRaw("<i4", (5,)),
    DecodeRaw(">i2", (2, 5), field="x"),
    DecodeFields({"index": ("<i4", ()), "rest": (">u2", (2, 4))}),
    lambda stored: {"data": np.frombuffer(stored, np.int32).copy()},
    None,
]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("chunk_size", [1, 30, 700])
def test_blocks_are_those_of_records_that_are_read_one_by_one(paths, decoder, chunk_size):
    transforms = () if decoder is None else (decoder,)
    kept = stream_of(paths, transforms=transforms)
    plain = IndexedStream(ArrayRecordReader.of(paths), kept.order, 1, transforms)
    for start in (0, 500, N - chunk_size):
        positions = np.arange(start, start + chunk_size)
        records = kept.order.records(positions)
        one, other = kept.block_at(positions, records), plain.block_at(positions, records)
        for (path, column), (same, plainly) in zip(leaves(one.columns), leaves(other.columns), strict=True):
            assert (path, column.dtype, column.flags.writeable) == (same, plainly.dtype, True)
            assert np.array_equal(column, plainly)


@pytest.mark.parametrize("odd", [0, 5, 100])
def test_records_of_several_sizes_come_as_they_are_stored(tmp_path, odd):
    """Some decoders take one array of all records: only where they are of one size, also of the groups before."""
    texts = [b'{"x": %d}' % (index if index == odd else 10 + index % 90) for index in range(30 * GROUP)]
    path = write_file(tmp_path / "texts.array_record", texts, GROUP)
    reader = ArrayRecordReader.of(path).with_room_for(5 * GROUP)
    order = np.random.default_rng(0).permutation(len(texts))
    for chunk in np.array_split(order, 7):
        assert list(reader.read(chunk)) == [texts[index] for index in chunk]
    stream = IndexedStream(reader, order_of(len(texts)), 1, (DecodeJson(),))
    assert [element["x"] for element in stream.read_at(0, len(texts))] == [int(text[6:-1]) for text in texts]
    with pytest.raises(ValueError, match=r"not the 8 bytes of int64") as raised:
        IndexedStream(reader, order_of(len(texts)), 1, (DecodeRaw("<i8"),)).read_at(0, len(texts))
    assert f"{path}[{1 if odd == 0 else 0}] " in str(raised.value)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_group_that_is_broken_fails_as_it_does_alone(tmp_path, on_error):
    (path,) = write_files(tmp_path, [64 * GROUP], GROUP)
    with open(path, "r+b") as file:
        file.seek(10_000)
        file.write(bytes(16))
    order = order_of(64 * GROUP, 3, "block", block_size=GROUP, window_blocks=WINDOW)
    reader = ArrayRecordReader.of(path)
    plain = IndexedStream(reader, order, 1, (), on_error)
    kept = IndexedStream(reader.with_room_for(2 * WINDOW * GROUP), order, 1, (), on_error)
    num_broken = 0
    for start in range(0, 64 * GROUP, 200):
        positions = np.arange(start, min(start + 200, 64 * GROUP))
        one, other = (stream.block_at(positions, order.records(positions)) for stream in (plain, kept))
        assert np.array_equal(one.positions, other.positions)
        assert [s.where for s in one.skipped] == [s.where for s in other.skipped]
        assert one.failure_position == other.failure_position
        assert (one.failure is None) == (other.failure is None)
        num_broken += len(one.skipped) if on_error == "skip" else one.failure is not None
    assert num_broken


def test_file_order_decodes_nothing_twice_for_trainers_and_resumes_but_the_group_where_it_begins(large_paths, decoded):
    """Two trainers, of which one is far ahead of the other, ask the same two actors for their halves of batches."""
    stream, start = in_file_order(large_paths, num_epochs=1), 300
    actors = [pickle.loads(pickle.dumps(stream)) for _ in range(2)]
    found = {}
    for trainer in range(2):
        rows = TrainerPositions(start, stream.stop, rows_of_rank(64, trainer, 2))
        scheduler = stream.scheduler(StreamState(start), stream.stop, Wanted(positions=rows))
        owners = assign(scheduler.partitioning, range(2))
        while not scheduler.is_exhausted:
            for actor, request in scheduler.next_chunk(100, owners).requests:
                positions, elements = actors[actor].elements_at(*request.select(stream.order))
                found.update(zip(positions, elements, strict=True))
    assert [found[position] for position in range(start, stream.stop)] == [
        large(index) for index in range(start, stream.stop)
    ]
    assert decoded() <= sum(LARGE_COUNTS) - LARGE_GROUP
