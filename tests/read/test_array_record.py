"""Batched reads against plain sequential ones, and every broken file found before or when it matters."""

import contextlib
import gc
import os
import pickle
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from array_record.python import array_record_module
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read import file_contents as contents
from datarax_ray.read import reused_memory
from datarax_ray.read.decode.raw import DecodeRaw
from datarax_ray.read.elements.rows import FixedRecords
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.array_record import open_files
from datarax_ray.read.formats.array_record.reader import CACHED_NBYTES, ArrayRecordReader, reading
from datarax_ray.read.reused_memory import lender
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests import oracle
from tests.data import record, write_file, write_files
from tests.programs import python

FileInstruction = namedtuple("FileInstruction", "filename skip take examples_in_shard")
COUNTS = (7, 0, 1, 300, 50)


@pytest.fixture(scope="module", params=[1, 4, 256])
def grouped(request, tmp_path_factory):
    return write_files(tmp_path_factory.mktemp(f"g{request.param}"), COUNTS, request.param)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """One file of several 64 KiB blocks of incompressible records."""
    bytes_of = np.random.default_rng(0).bytes
    return write_file(tmp_path_factory.mktemp("large") / "large.array_record", (bytes_of(1000) for _ in range(400)), 1)


# Reading


def test_all_records_are_those_of_plain_sequential_reads(grouped):
    reader = ArrayRecordReader.of(grouped)
    assert reader.num_records == len(reader_records := oracle.stored(grouped)) == sum(COUNTS)
    assert reader.read(np.arange(reader.num_records)) == reader_records == [record(i) for i in range(sum(COUNTS))]


@given(st.lists(st.integers(0, sum(COUNTS) - 1), max_size=60), st.integers(0, 3))
def test_any_records_in_any_order_with_repetitions(grouped, records, stride):
    if stride:  # runs and gaps, which decide between the ways to read
        records = records[:2] + list(range(0, sum(COUNTS), stride))[:120]
    reader = ArrayRecordReader.of(grouped)
    assert reader.read(np.array(records, np.int64)) == [record(i) for i in records]
    reader.close()


@pytest.mark.parametrize(
    ("way", "group_size", "wanted"),
    [
        ("range", 1, np.arange(70, 1200)),
        ("range", 2, np.arange(3, 2100)),
        ("list", 4, np.delete(np.arange(2, 2150), [0, 1, 5, 600])),
        ("list", 16, np.arange(1, 2150, 3)),
        ("groups", 1, np.arange(0, 2150, 3)),
        ("groups", 16, np.array([0, 1, 15, 16, 18, 700, 2149])),
    ],
)
def test_every_way_to_read_gives_the_records(tmp_path, way, group_size, wanted):
    assert reading(wanted, group_size) == way
    (path,) = write_files(tmp_path, [2150], group_size)
    assert ArrayRecordReader.of(path).read(wanted) == [record(i) for i in wanted.tolist()]


def test_records_of_slices_are_counted_from_the_slice(grouped):
    path = grouped[3]
    reader = ArrayRecordReader.of([f"{path}[10:13]", FileInstruction(path, 298, 2, 300), grouped[2], f"{path}[299:]"])
    first = COUNTS[0] + COUNTS[1] + COUNTS[2]
    wanted = [first + 10, first + 11, first + 12, first + 298, first + 299, 7, first + 299]
    assert reader.read(np.arange(7)) == [record(i) for i in wanted]
    assert reader.locate(0) == f"{path}[10]"
    assert reader.locate(4) == f"{path}[299]"
    assert reader.locate(5) == f"{grouped[2]}[0]"


def test_a_pickled_reader_reads_the_same_without_counting_again(tmp_path):
    paths = write_files(tmp_path, COUNTS)
    reader = ArrayRecordReader.of(paths)
    reader.read(np.array([3]))
    away = tmp_path.with_suffix(".away")
    tmp_path.rename(away)  # so no file can be counted
    again = pickle.loads(pickle.dumps(reader))
    assert again.num_records == reader.num_records
    away.rename(tmp_path)
    assert again.read(np.array([300, 2])) == [record(300), record(2)]
    assert again.fingerprint() == reader.fingerprint()


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_closing_gives_descriptors_back_and_reading_opens_again(tmp_path):
    paths = write_files(tmp_path, [3] * 20)
    gc.collect()  # what earlier tests left open may be closed at any time
    before = num_descriptors()
    reader = ArrayRecordReader.of(paths)
    assert num_descriptors() == before
    for _ in range(3):
        assert reader.read(np.arange(60)) == [record(i) for i in range(60)]
        assert num_descriptors() == before + 20
        reader.close()
        assert num_descriptors() == before


def test_open_files_are_bounded_over_all_readers_of_a_process(tmp_path, monkeypatch):
    gc.collect()  # readers of earlier tests
    monkeypatch.setattr(open_files, "max_open_files", lambda: 4)
    paths = write_files(tmp_path, [3] * 20)
    readers = ArrayRecordReader.of(paths), pickle.loads(pickle.dumps(ArrayRecordReader.of(paths)))
    before = num_descriptors()
    shuffled = np.random.default_rng(0).permutation(60)
    for part in np.split(shuffled, 6):
        for reader in readers:
            assert reader.read(part) == [record(i) for i in part.tolist()]
            assert num_descriptors() <= before + 5  # one is open in any case


def test_indices_in_memory_are_bounded_where_many_files_are_open(tmp_path, monkeypatch):
    files = ArrayRecordReader.of(write_files(tmp_path, [30] * 20, group_size=1)).files
    monkeypatch.setattr(open_files, "_ALWAYS_OPEN", 3)
    monkeypatch.setattr(open_files, "_INDEX_NBYTES", 5 * files[0].index_nbytes)
    reader = ArrayRecordReader(files)
    before = num_descriptors()
    assert reader.read(np.arange(600)) == [record(i) for i in range(600)]
    assert num_descriptors() == before + 5


def test_a_fingerprint_changes_with_every_change_of_the_files_but_not_with_their_directory(tmp_path):
    def fingerprint(*counts, directory="a", change=lambda paths: paths):
        (tmp_path / directory).mkdir(exist_ok=True)
        return ArrayRecordReader.of(change(write_files(tmp_path / directory, counts))).fingerprint()

    base = fingerprint(3, 5)
    assert fingerprint(3, 5, directory="b") == base
    others = [
        fingerprint(3, 6),
        fingerprint(5, 3),
        fingerprint(3, 5, 1),
        fingerprint(3, 5, change=lambda paths: paths[::-1]),
        fingerprint(3, 5, change=lambda paths: [f"{paths[0]}[1:]", paths[1]]),
        fingerprint(3, 5, change=lambda paths: [paths[0].rename(tmp_path / "z.array_record"), paths[1]]),
    ]
    digests = [other["digest"] for other in others]
    assert len({base["digest"], *digests}) == 7


# Broken files


def refused(path, message, error=ValueError):
    with pytest.raises(error, match=message) as caught:
        ArrayRecordReader.of(path)
    assert str(path).split("[")[0] in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("content", [b"", b"x", b"hello world\n" * 10_000, b"\0" * 65536, b"\0" * 200_000])
def test_what_is_no_array_record_file_is_refused_with_path_reason_and_remedy(tmp_path, content):
    path = tmp_path / "bad.array_record"
    path.write_bytes(content)
    text = refused(path, "is not a complete ArrayRecord file: .*(write or copy it again|like a text file)")
    assert ("it is empty (0 bytes)" in text) == (content == b"")


def test_a_truncated_file_is_refused_wherever_it_was_cut(tmp_path, large):
    content, path = large.read_bytes(), tmp_path / "cut.array_record"
    assert len(content) > 5 * 65536
    for size in {1, 100, 65535, 65537, len(content) // 2, len(content) - 1, *range(65536, len(content), 65536)}:
        path.write_bytes(content[:size])
        refused(path, "is not a complete ArrayRecord file: .*cut short")


@pytest.mark.parametrize(
    ("read", "group_size", "size"), [("read", 2, 20), ("read_rows", 1, 20), ("read_rows", 1, 3000)]
)
def test_no_flipped_byte_gives_other_records(tmp_path, read, group_size, size):
    # Anything but the records that were written is an error, when the file is opened or when it is read.
    good = [bytes([i]) * size for i in range(1, 7)]
    path = write_file(tmp_path / "small.array_record", good, group_size, "zstd" if size < 1000 else "uncompressed")
    content, flipped = path.read_bytes(), tmp_path / "flipped.array_record"
    outcomes = set()
    used = [i for i in range(0, len(content), 1) if content[i]]
    for at in used[:: max(1, len(used) // 150)]:
        broken = bytearray(content)
        broken[at] ^= 0x55
        flipped.write_bytes(broken)
        try:
            reader = ArrayRecordReader.of(flipped)
            got = list(getattr(reader, read)(np.arange(reader.num_records)))
            reader.close()
        except (ValueError, RuntimeError) as error:
            outcomes.add(type(error))
            continue
        assert got == good
    assert outcomes == {ValueError, RuntimeError}


def test_no_record_in_all_files_is_an_error_and_an_empty_one_among_others_is_not(tmp_path):
    empty, other, full = write_files(tmp_path, (0, 0, 3))
    refused(empty, "there are 0 records in .*Check that the writer wrote records and was closed")
    with pytest.raises(ValueError, match=r"there are 0 records in .* and 1 more files"):
        ArrayRecordReader.of([empty, other])
    with pytest.raises(ValueError, match="there are 0 records"):
        ArrayRecordReader.of(f"{full}[1:1]")
    assert ArrayRecordReader.of([empty, full, other]).read(np.arange(3)) == [record(i) for i in range(3)]


def test_slices_outside_their_file_and_wrong_counts_are_refused(grouped):
    path = grouped[0]
    for text, message in [
        ("[0:8]", r"records \[0, 8\) were asked for, the file holds 7"),
        ("[8:]", r"records \[8, 8\) were asked for, the file holds 7"),
        ("[7:9]", r"records \[7, 9\) were asked for"),
    ]:
        refused(f"{path}{text}", message)
    with pytest.raises(ValueError, match=r"should hold 9 records \(examples_in_shard\), and holds 7"):
        ArrayRecordReader.of(FileInstruction(path, 0, 7, 9))
    assert ArrayRecordReader.of([f"{path}[7:]", path]).num_records == 7


@pytest.mark.parametrize("what", ["another count", "another size", "other records", "another format"])
def test_a_file_that_was_replaced_after_counting_is_refused(tmp_path, what):
    (path,) = write_files(tmp_path, [3])
    reader = ArrayRecordReader.of(path)
    if what == "another count":
        write_file(path, map(record, range(4)))
    elif what == "another size":
        write_file(path, [os.urandom(100_000) for _ in range(3)])
    elif what == "other records":
        nbytes = path.stat().st_size
        write_file(path, map(record, range(7, 10)), group_size=4)
        assert path.stat().st_size == nbytes
    else:
        path.write_bytes(b"text")
    with pytest.raises(ValueError, match=r"part-00000\.array_record (held|is not)"):
        reader.read(np.array([0]))


# One broken record


@pytest.fixture(params=[1, 4])
def corrupt(request, tmp_path):
    """Twelve records, of which number 6 has flipped bytes; and the records that are lost with it."""
    group = request.param
    good = [bytes([65 + i]) * 500 + os.urandom(20) for i in range(12)]
    path = write_file(tmp_path / "corrupt.array_record", good, group)
    reference = ArrayRecordReader.of(path)
    content = bytearray(path.read_bytes())
    at = content.find(good[6][-20:])
    assert at > 0, "the random bytes are stored as they are"
    content[at + 3] ^= 0xFF
    path.write_bytes(content)
    reference.close()
    return path, good, [6] if group == 1 else [4, 5, 6, 7]


def description_of(path, on_error):
    reader = ArrayRecordReader.of(path)
    return IndexedStream(reader, order_of(reader.num_records), 1, (), on_error)


def test_a_corrupt_record_is_named_or_skipped_with_its_group_each_in_the_list(corrupt):
    path, good, lost = corrupt
    block = description_of(path, "skip").read(ReadRequest(0, 12))
    assert block.columns.tolist() == [good[i] for i in range(12) if i not in lost]
    assert [(skip.where, skip.position) for skip in block.skipped] == [(f"{path}[{i}]", i) for i in lost]
    assert all("reading raised RuntimeError" in skip.reason for skip in block.skipped)
    block = description_of(path, "raise").read(ReadRequest(0, 12))
    assert str(block.failure).startswith(f"{path}[{lost[0]}] (position {lost[0]}): reading raised RuntimeError")
    assert block.columns.tolist() == good[: lost[0]]


@pytest.mark.parametrize("more", [{}, {"shuffle": True}, {"shuffle": True, "shuffle_block_size": "auto"}])
@pytest.mark.parametrize(("count", "group", "at"), [(2000, 100, 1025), (60, 10, 33)])
def test_a_broken_group_takes_none_of_its_neighbours_in_any_order(tmp_path, count, group, at, more):
    """In file order several groups are decoded at once; what array_record cannot read alone is all that is left out."""
    path = write_file(tmp_path / "a.array_record", [b"%06d marker" % i for i in range(count)], group, "uncompressed")
    content = bytearray(path.read_bytes())
    content[content.index(b"%06d marker" % at) + 2] ^= 0x40
    path.write_bytes(content)
    alone = array_record_module.ArrayRecordReader(str(path), "readahead_buffer_size:0")
    want = []
    for index in range(count):
        with contextlib.suppress(RuntimeError):
            want += alone.read([index])
    alone.close()
    assert len(want) == count - group
    config = ArrayRecordSourceConfig(num_epochs=1, on_error="skip", **more)
    with ArrayRecordSourceModule(config, path) as source:
        assert sorted(source.get_batch(count).tolist()) == want
    with ArrayRecordSourceModule(replace(config, on_error="raise"), path) as source:
        if not more:
            assert source.get_batch(at // group * group).tolist() == want[: at // group * group]
            assert source[at // group * group + group] == want[at // group * group]
            with pytest.raises(RecordError, match=rf"a\.array_record\[{at // group * group}\] \(position"):
                source.get_batch(1)


# A file that changes while it is open


def random_file(path, seed=0, count=400, **options):
    """Records of random bytes, so that files of other seeds have the same size and layout; written long ago."""
    rng = np.random.default_rng(seed)
    write_file(path, (rng.bytes(1000) for _ in range(count)), **options)
    os.utime(path, ns=(0, 10**18))  # the clock of a file system ticks some times in a millisecond only
    return path


def overwrite(path, content):
    """As `cp` and `rsync --inplace` do it: the file is the same, its bytes are others."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


CHANGES = {
    "cut in the middle": lambda path, other: os.truncate(path, path.stat().st_size // 2),
    "cut to its first records": lambda path, other: os.truncate(path, 70_000),
    "cut to nothing": lambda path, other: os.truncate(path, 0),
    "overwritten by one of its size": lambda path, other: overwrite(path, other.read_bytes()),
    "overwritten by a longer one": lambda path, other: overwrite(path, other.read_bytes() + bytes(65536)),
    "overwritten by text": lambda path, other: overwrite(path, b"text"),
    "replaced by one of its size": lambda path, other: other.rename(path),
    "gone": lambda path, other: path.unlink(),
}


@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("records", [[397, 399], range(400), range(0, 400, 3)], ids=["some", "all", "many"])
def test_a_file_that_changes_while_it_is_open_gives_no_record_and_skips_none(tmp_path, group_size, change, records):
    path = random_file(tmp_path / "a.array_record", group_size=group_size)
    other = random_file(tmp_path / "b.array_record", seed=1, group_size=group_size)
    description = description_of(path, "skip")
    description.reader.read(np.array([0, 3]))
    CHANGES[change](path, other)
    with pytest.raises((ValueError, FileNotFoundError), match=r"a\.array_record") as caught:
        description.block_at(np.array(records), np.array(records))
    if change != "gone":
        assert "changed while it was read: its " in str(caught.value)
        assert "go on from the last state, or make a new source" in str(caught.value)


def test_a_file_that_was_changed_in_place_since_it_was_counted_is_refused(tmp_path, monkeypatch):
    later = SimpleNamespace(time=lambda: time.time() + 60)  # what was written just now has settled
    monkeypatch.setattr(contents, "time", later)
    path = write_file(tmp_path / "a.array_record", [record(i) for i in range(3)])
    reader = ArrayRecordReader.of(path)
    assert reader.files[0].stamp
    before = path.stat()
    overwrite(path, write_file(tmp_path / "other", [record(900 + i) for i in range(3)]).read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with pytest.raises(ValueError, match="held 3 records in .* and holds 3 others in"):
        reader.read(np.arange(3))


def test_empty_records_are_records(tmp_path):
    path = write_file(tmp_path / "empty.array_record", [b"", b"a", b"", b"", b"b"], 2)
    block = description_of(path, "raise").read(ReadRequest(0, 5))
    assert block.columns.tolist() == [b"", b"a", b"", b"", b"b"]


@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("at", [0.2, 0.5, 0.8])
def test_a_file_of_the_same_size_and_head_is_known_by_what_it_holds(tmp_path, group_size, at):
    first = [bytes([i % 256]) * 1000 for i in range(2000)]
    options = {"group_size": group_size, "compression": "uncompressed"}
    path = write_file(tmp_path / "a.array_record", first, **options)
    reader = ArrayRecordReader.of(path)
    before, nbytes = reader.fingerprint(), path.stat().st_size
    later = first[: int(2000 * at)] + [bytes([7]) * 1000 for _ in range(2000 - int(2000 * at))]
    write_file(path, later, **options)
    assert path.stat().st_size == nbytes
    after = ArrayRecordReader.of(path).fingerprint()
    assert {key for key in before if before[key] != after[key]} == {"content"}
    with pytest.raises(ValueError, match=r"a\.array_record held 2000 records in .* and holds 2000 others in"):
        reader.read(np.array([0]))


# Threads


@pytest.mark.parametrize("most_open", [100, 2])
def test_threads_read_what_others_read_and_close(grouped, most_open, monkeypatch):
    monkeypatch.setattr(open_files, "max_open_files", lambda: most_open)
    reader = ArrayRecordReader.of(grouped)
    records = np.arange(0, sum(COUNTS), 3)
    want = [record(i) for i in records]

    def read_and_close():
        for _ in range(20):
            assert reader.read(records) == want
            reader.close()

    with ThreadPoolExecutor(2) as threads:
        for reading in [threads.submit(read_and_close) for _ in range(2)]:
            reading.result()


SIDE = 40_000


def of_side(count, seed, odd=(), side=SIDE):
    """Records of SIDE bytes, but those at `odd`."""
    bytes_of = np.random.default_rng(seed).bytes
    return [bytes_of(side - (index in odd)) for index in range(count)]


@pytest.mark.parametrize("side", [8, CACHED_NBYTES // 3, SIDE])
@pytest.mark.parametrize("odd", [(), (0,), (9,)])
def test_records_of_one_size_come_in_one_array_as_they_are(tmp_path, odd, side):
    parts = [of_side(5, 0, odd, side), of_side(7, 1, [index - 5 for index in odd if index >= 5], side)]
    parts += [of_side(0, 2), of_side(4, 3, (), side)]
    want = [each for part in parts for each in part]
    paths = [write_file(tmp_path / f"{index}.array_record", part) for index, part in enumerate(parts)]
    reader = ArrayRecordReader.of(paths)
    rng = np.random.default_rng(4)
    kinds = set()
    for _ in range(5):
        asked = rng.integers(0, len(want), 20)  # in any order, some twice
        found = reader.read_rows(asked)
        kinds.add(type(found))
        assert list(found) == [want[index] for index in asked.tolist()]
    if not odd:
        assert kinds == {FixedRecords}
        assert found.rows.flags.writeable
    reader.close()


def test_a_first_record_of_many_times_the_others_size_needs_no_room_for_as_many_of_its_size(tmp_path):
    want = [bytes(2**26), b"small"]  # as many of 64 MiB as are asked for are 64 TiB
    reader = ArrayRecordReader.of(write_file(tmp_path / "a.array_record", want))
    asked = np.ones(2**20, np.int64)
    asked[0] = 0
    found = reader.read_rows(asked)
    assert (found[0], set(found[1:])) == (want[0], {b"small"})
    reader.close()


def test_a_file_is_looked_at_once_for_all_rows_that_are_read_of_it(tmp_path, monkeypatch):
    paths = [write_file(tmp_path / f"{index}.array_record", of_side(6, index)) for index in range(2)]
    reader = ArrayRecordReader.of(paths)
    reader.read_rows(np.arange(12))
    looks = []
    monkeypatch.setattr(open_files, "stamp", lambda path: looks.append(path) or contents.stamp(path))
    reader.read_rows(np.arange(12))
    assert looks == list(map(str, paths))
    reader.close()


def test_memory_of_rows_is_taken_again_once_nobody_has_a_block(tmp_path, monkeypatch):
    description = IndexedStream(
        ArrayRecordReader.of(write_file(tmp_path / "a.array_record", of_side(60, 0))),
        order_of(60),
        transforms=(DecodeRaw("uint8", (SIDE,)),),
    )

    def address(start, stop):
        block = description.read(ReadRequest(start, stop))
        assert lender(block.columns["data"])
        return block.columns["data"].ctypes.data

    monkeypatch.setattr(reused_memory, "gc", SimpleNamespace(collect=int))
    gc.collect()
    gc.disable()  # nothing that was read may wait for it
    try:
        assert len({address(0, 40), address(20, 60), address(0, 41)}) == 1
    finally:
        gc.enable()


def test_as_many_files_stay_open_as_the_process_may_open():
    code = (
        "import resource; from datarax_ray.read.formats.array_record.open_files import max_open_files as most\n"
        "for limits in ((1024, 8192), (512, 1024), (256, 256)):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "    most.cache_clear()\n    print(most(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    assert python("-c", code).stdout.splitlines() == ["7168 8192", "768 1024", "192 256"]
