"""Reading ahead: what is expected is there before it is read, within the room, and changes nothing but the wait."""

import threading

import numpy as np
import pytest

from datarax_ray.feed.stream import StreamOptions, batches
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.state import StreamState
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.cache import CachedReader
from datarax_ray.read.formats.remote.ranges import ChangedError, Remote
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.read.streams.mixture import MixtureStream
from tests.data import decode, noise, record, write_file, write_files

ONCE = Remote(waits_s=())


@pytest.fixture
def far(tmp_path, served):
    """A reader of 1,000 records of 4 KB, each in a group of its own, which has opened its file."""
    write_file(tmp_path / "a.array_record", map(noise, range(1000)))
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=ONCE)
    reader.read(np.arange(1))
    yield reader
    reader.close()


def wait_for(reader, number):
    """Until what is asked for before so many reads has come."""
    aheads = [ahead for read in list(reader._ahead.expected)[:number] for ahead in read.parts]
    assert len(aheads) == number
    for run in [run for ahead in aheads for run in ahead.runs]:
        reader._mirrors.ahead._asked[run][0]._future.result(timeout=60)


def all_of(records):
    return list(map(noise, records.tolist()))


def test_what_is_expected_is_read_without_a_request(far, served):
    rng = np.random.default_rng(0)
    reads = [rng.integers(0, 1000, 40) for _ in range(3)]
    for records in reads:
        far.expect(records)
    wait_for(far, 3)
    served.what = lambda number: "503"
    for records in reads:
        assert far.read(records) == all_of(records)
    assert not served.num_broken
    served.what = lambda number: ""


def test_what_is_read_first_comes_first(tmp_path, served):
    write_file(tmp_path / "a.array_record", map(noise, range(4000)))
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=Remote(waits_s=(), most_requests=2))
    reader.read(np.arange(1))
    served.count()
    # the server begins with some later than with others behind them; fairly shared, the first 24 come by some 65
    served.what = lambda number: "stall" if number > 48 else ""
    reads = np.random.default_rng(3).permutation(4000)[:96].reshape(4, 24)
    for records in reads:
        reader.expect(records)
    wait_for(reader, 1)
    assert reader.read(reads[0]) == all_of(reads[0])
    served.what = lambda number: ""
    reader.close()


@pytest.mark.parametrize("room", [0, 512])
def test_groups_are_asked_for_once_though_several_reads_that_come_want_some_of_each(tmp_path, served, room):
    group, num_groups = 64, 16
    path = write_file(tmp_path / "a.array_record", map(noise, range(group * num_groups)), group)
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record").with_room_for(room)
    rng = np.random.default_rng(2)
    reads = []
    for window in range(0, group * num_groups, 4 * group):
        reads += np.split(window + rng.permutation(4 * group), 8)
    served.count()
    for number, records in enumerate(reads):
        for later in reads[number + 3 : number + 4] if number else reads[:4]:
            reader.expect(later)
        assert list(reader.read(records)) == all_of(records)
    requests, nbytes = served.count()
    assert requests <= num_groups + 4
    assert nbytes <= 1.05 * path.stat().st_size
    reader.close()


def test_reads_that_never_come_and_others_that_do_leave_the_way_free(far, served):
    rng = np.random.default_rng(4)
    for turn in range(30):
        told = [rng.permutation(1000)[:20] for _ in range(4)]
        for records in told:
            far.expect(records)
        for records in (told[2], rng.permutation(1000)[:20], told[0], told[3])[: 1 + turn % 4]:
            assert far.read(records) == all_of(records)
    assert len(far._ahead.expected) <= 8
    for number in range(200):
        far.expect(rng.permutation(1000)[: 1 + number])
    assert len(far._ahead.expected) == 64
    far.read(far._ahead.expected[-1].records)
    assert not far._ahead.expected
    assert not far._mirrors.ahead.pages


@pytest.mark.parametrize("what", ["503", "404", "cut", "bend"])
def test_what_failed_ahead_is_asked_for_again_when_it_is_read(far, served, what):
    served.what = lambda number: what
    records = np.arange(500, 540)
    far.expect(records)
    (read,) = far._ahead.expected
    errors = [far._mirrors.ahead._asked[run][0]._future.exception(timeout=60) for run in read.parts[0].runs]
    assert (errors == [None]) == (what == "bend")
    served.what = lambda number: ""
    assert far.read(records) == all_of(records)
    assert served.num_broken


def test_a_file_that_is_replaced_is_told_also_ahead(tmp_path, far, served):
    write_file(tmp_path / "a.array_record", (noise(5000 + i) for i in range(1000)))
    far.expect(np.arange(500, 540))
    with pytest.raises(ChangedError, match="changed while it was read"):
        far.read(np.arange(500, 540))


def test_closing_drops_what_is_on_its_way_and_reading_goes_on(far, served):
    release = threading.Event()
    served.what = lambda number: release.wait(60) and ""
    far.expect(np.arange(500, 540))
    far.close()
    release.set()
    served.what = lambda number: ""
    assert not far._mirrors.ahead.pages
    assert far._mirrors.nbytes == 0
    assert far.read(np.arange(500, 540)) == all_of(np.arange(500, 540))


def test_threads_expect_read_and_close_one_reader(tmp_path, served):
    paths = write_files(tmp_path, [300, 300, 300], group_size=8)
    reader = ArrayRecordReader.of([f"{served.url}/{path.name}" for path in paths], remote=Remote(nbytes=400_000))
    failed = []

    def read(seed):
        rng = np.random.default_rng(seed)
        try:
            for turn in range(15):
                reads = [rng.integers(0, 900, 40) for _ in range(3)]
                for records in reads:
                    reader.expect(records)
                for records in reads[turn % 2 :]:
                    assert reader.read(records) == [record(i) for i in records.tolist()]
                if seed == 0 and turn % 3 == 0:
                    reader.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    reader.close()
    assert not reader._mirrors.num_open


@pytest.mark.parametrize("kind", ["global", "block", "none", "mixture", "cached"])
def test_a_stream_in_one_process_reads_ahead_and_is_that_of_the_local_files(tmp_path, served, kind, monkeypatch):
    paths = write_files(tmp_path, [300, 5, 120, 200], group_size=8)
    urls = [f"{served.url}/{path.name}" for path in paths]

    def stream(where):
        reader = ArrayRecordReader.of(where)
        if kind == "block":
            options = {"block_size": 8, "window_blocks": 4}
            return IndexedStream(reader.with_room_for(64), order_of(625, 7, "block", **options), 2, (decode,))
        if kind == "mixture":
            parts = [IndexedStream(reader, order_of(625, seed), -1, (decode,)) for seed in (1, 2)]
            return MixtureStream(tuple(parts), (3, 1), length=1200)
        order = order_of(625, 7, "none" if kind == "none" else "global")
        return IndexedStream(CachedReader(reader) if kind == "cached" else reader, order, 2, (decode,))

    def rows(description, start=0):
        found = batches(description, None, StreamState(start), StreamOptions(50, chunk_size=40))
        return [[batch.positions.tolist(), batch.columns["values"].tobytes()] for batch in found]

    local, remote = stream(paths), stream(urls)
    num_ready, read_at = 0, ArrayRecordReader.read

    def read(reader, records):
        nonlocal num_ready
        expected = reader._ahead.expected if reader._ahead else ()
        num_ready += any(ahead.is_complete for each in expected for ahead in each.parts or [])
        return read_at(reader, records)

    monkeypatch.setattr(ArrayRecordReader, "read", read)
    assert rows(remote) == rows(local)
    assert num_ready
    assert rows(remote, 300) == rows(local, 300)
    local.close()
    remote.close()


@pytest.mark.parametrize("nbytes", [2**20, 0])
def test_nobody_else_is_asked_for_what_is_on_its_way(tmp_path, served, nbytes):
    write_file(tmp_path / "a.array_record", map(noise, range(100)))
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=Remote(nbytes=nbytes))
    stream = IndexedStream(reader, order_of(100, 1, "global"), 1)
    assert stream.scheduler(StreamState(), None, Wanted()).limits.is_anywhere == (not nbytes)


def test_it_takes_half_of_the_room_at_most_and_all_of_it_stays_below_the_limit(tmp_path, served):
    write_file(tmp_path / "a.array_record", map(noise, range(1000)))
    limit = 800_000
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=Remote(nbytes=limit, gap_nbytes=0))
    reads = np.split(np.random.default_rng(3).permutation(1000), 25)
    for records in reads:
        reader.expect(records)
    most = 0
    for records in reads:
        ahead = reader._mirrors.ahead.nbytes
        assert ahead <= limit // 2
        assert reader._mirrors.nbytes <= limit
        most = max(most, ahead)
        assert reader.read(records) == all_of(records)
    assert most > limit // 4
    assert not reader._mirrors.ahead.pages
    reader.close()


def test_the_first_read_of_a_file_asks_for_those_behind_it_and_each_group_is_looked_at_for_one_read(
    tmp_path, served, monkeypatch
):
    write_file(tmp_path / "a.array_record", map(noise, range(256)), 64)
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record").with_room_for(256)
    reads, seen = (np.array([3, 70]), np.array([71, 130])), []
    for records in reads:
        reader.expect(records)
    fetch, expected = reader._mirrors.fetch, reader._ahead.expected
    monkeypatch.setattr(reader._mirrors, "fetch", lambda wanted: (seen.append(list(expected)), fetch(wanted)))
    assert [*reader.read(reads[0])] == all_of(reads[0])
    ((behind,), *_) = seen
    (part,) = behind.parts
    assert part.is_complete
    assert part.wanted[0].tolist() == [*range(128, 192)]
    assert [*reader.read(reads[1])] == all_of(reads[1])
    reader.close()
