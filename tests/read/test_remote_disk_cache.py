"""What is kept on disk of files behind URLs: each byte asked for once, never more than the limit, never other data."""

import functools
import itertools
import logging
import os
import signal
import threading

import numpy as np
import pytest

from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.remote import disk_cache
from datarax_ray.read.formats.remote.ranges import Remote
from tests import data
from tests.data import write_file
from tests.http_files import HttpFiles
from tests.programs import python

# Of the file system, where the pages of a sparse file lie: it makes them when it writes these, seconds later.
MAPS_NBYTES = 4 * 4096
PLENTY = 2**30


noise = functools.partial(data.noise, size=20_000)


@pytest.fixture
def served(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(2):
        write_file(tmp_path / "data" / f"{number}.array_record", (noise(100 * number + i) for i in range(100)))
    found = HttpFiles(tmp_path / "data")
    yield found
    found.close()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def urls_of(served, numbers=range(2)):
    return [f"{served.url}/{number}.array_record" for number in numbers]


def reader_of(served, cache, limit=PLENTY, numbers=range(2)):
    remote = Remote(nbytes=0, gap_nbytes=0, cache_dir=str(cache), cache_nbytes=limit)
    return ArrayRecordReader.of(urls_of(served, numbers), remote=remote)


def epoch(reader, seed=0):
    """Every record, by reads of 20, checked."""
    for records in np.split(np.random.default_rng(seed).permutation(200), 20):
        assert reader.read(records) == [noise(i) for i in records.tolist()]


def on_disk(cache):
    return sum(path.stat().st_blocks * 512 for path in cache.iterdir())


def kept_in(cache):
    return disk_cache._by_age(cache)


def in_use(cache):
    return [held for held in kept_in(cache) if disk_cache._is_in_use(held)]


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_what_stays_comes_with_what_lies_around_it_and_each_byte_once(tmp_path, served, cache, where):
    size = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    remote = Remote(nbytes=2 * size)
    if where == "disk":
        remote = Remote(nbytes=2**20, cache_dir=str(cache), cache_nbytes=PLENTY)
    reader = ArrayRecordReader.of(urls_of(served), remote=remote)
    served.count()
    for record in np.random.default_rng(0).permutation(200).tolist():
        assert reader.read(np.array([record])) == [noise(record)]
    requests, nbytes = served.count()
    assert requests <= size / remote.gap_nbytes + 4
    assert nbytes <= 1.1 * size  # with the ends of the files
    reader.close()


def test_each_byte_is_asked_for_once_by_all_epochs_and_starts(tmp_path, served, cache):
    size = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    first = reader_of(served, cache)
    served.count()
    epoch(first)
    assert served.count()[1] <= 1.2 * size
    epoch(first, 1)
    assert served.count() == (0, 0)
    first.close()
    second = reader_of(served, cache)
    served.count()
    epoch(second, 2)
    assert served.count() == (0, 0)  # also of where the records are in each file
    second.close()
    assert len(kept_in(cache)) == 2


def test_processes_read_for_one_another(served, cache):
    one, other = reader_of(served, cache), reader_of(served, cache)
    one.read(np.arange(0, 200, 2))
    other.read(np.array([0, 199]))  # has its files open
    served.count()
    assert other.read(np.arange(0, 200, 2)) == [noise(i) for i in range(0, 200, 2)]
    assert served.count() == (0, 0)
    one.close()
    other.close()


@pytest.mark.parametrize("limit", [2_000_000, 0])
def test_the_disk_never_holds_more_than_the_limit(served, cache, limit):
    reader, other = reader_of(served, cache, limit), reader_of(served, cache, limit)
    most, ended = [0], threading.Event()

    def look():
        while not ended.wait(0.001):
            most[0] = max(most[0], sum(map(disk_cache._on_disk, cache.glob("*.*"))))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for seed in range(2):
            epoch(reader, seed)
            epoch(other, seed)
    finally:
        ended.set()
        looking.join()
    assert most[0] <= limit
    if limit == 2_000_000:
        assert most[0] > 0.9 * limit
    reader.close()
    other.close()


def test_with_room_for_half_no_choice_asks_for_fewer_bytes(tmp_path, cache):
    num_records, size, num_epochs = 100, 40_000, 3
    (tmp_path / "data").mkdir()
    write_file(tmp_path / "data" / "0.array_record", (noise(i, size=size) for i in range(num_records)))
    served = HttpFiles(tmp_path / "data")
    epochs = [np.random.default_rng(seed).permutation(num_records).tolist() for seed in range(num_epochs)]
    limit = num_records * size // 2 + 80_000  # and the end of the file
    reader = reader_of(served, cache, limit, [0])
    served.count()
    for record in itertools.chain(*epochs):
        assert reader.read(np.array([record])) == [noise(record, size=size)]
    nbytes = served.count()[1]
    reader.close()
    served.close()
    # Belady's optimum, https://doi.org/10.1147/sj.52.0078: each later epoch finds what the disk holds when it begins
    optimum = size * num_records * (1 + (num_epochs - 1) / 2)
    assert optimum <= nbytes <= 1.1 * optimum


def test_what_others_left_gives_way_and_what_is_read_does_not(tmp_path, served, cache):
    left = reader_of(served, cache)
    epoch(left)
    used = on_disk(cache)
    write_file(tmp_path / "data" / "2.array_record", (noise(2000 + i) for i in range(100)))
    remote = Remote(nbytes=0, cache_dir=str(cache), cache_nbytes=used + 100_000)
    reader = ArrayRecordReader.of(f"{served.url}/2.array_record", remote=remote)
    reader.read(np.arange(100))
    assert len(kept_in(cache)) == len(in_use(cache)) == 3
    left.close()
    disk = reader._mirrors._disk
    disk._full_until = 0.0
    reader.close()
    assert reader.read(np.arange(100)) == [noise(2000 + i) for i in range(100)]
    assert on_disk(cache) <= used + 100_000
    (mine,) = in_use(cache)
    assert b"/2.array_record" in mine.read_bytes()
    assert disk_cache._on_disk(mine.with_suffix(".pages")) > 1_900_000
    reader.close()


def assert_read_anew_once_replaced(tmp_path, served, cache):
    reader = reader_of(served, cache)
    epoch(reader)
    reader.close()
    write_file(tmp_path / "data" / "0.array_record", (noise(7000 + i) for i in range(100)))
    again = reader_of(served, cache)
    assert again.read(np.arange(0, 200, 9)) == [noise(7000 + i if i < 100 else i) for i in range(0, 200, 9)]
    again.close()


def test_another_version_is_another_file(tmp_path, served, cache):
    assert_read_anew_once_replaced(tmp_path, served, cache)
    assert len(kept_in(cache)) == 3


@pytest.mark.parametrize("etag", ['W/"1"', '""'])
def test_what_an_etag_does_not_tell_for_sure_is_not_kept(tmp_path, served, cache, etag):
    served.what = lambda number: etag
    assert_read_anew_once_replaced(tmp_path, served, cache)
    assert not cache.exists() or list(cache.iterdir()) == []


DAMAGED = [
    "pages",
    "header",
    "marks",
    *(pytest.param(w, marks=pytest.mark.slow) for w in ("held", "cut pages", "no pages", "lock")),
]


@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_damaged_on_disk_is_asked_for_anew(served, cache, what):
    reader = reader_of(served, cache)
    epoch(reader)
    reader.close()
    rng = np.random.default_rng(5)
    whole = {path: path.stat().st_size for path in cache.glob("*.pages")}
    for path in list(cache.iterdir()):
        content = bytearray(path.read_bytes())
        if what == "pages" and path.suffix == ".pages":
            for place in rng.integers(0, len(content), 200).tolist():
                content[place] ^= 255
        elif what == "cut pages" and path.suffix == ".pages":
            content = content[: len(content) // 3]
        elif what == "held" and path.suffix == ".held":
            content = content[:5000]
        elif what == "header" and path.suffix == ".held":
            content[:50] = b"\0" * 50
        elif what == "marks" and path.suffix == ".held":
            content[4096:] = b"\1" * len(content[4096:])
            nbytes = path.with_suffix(".pages").stat().st_size
            path.with_suffix(".pages").write_bytes(b"")
            os.truncate(path.with_suffix(".pages"), nbytes)
        elif what == "lock" and path.suffix == ".lock":
            content = bytearray(b"\xff" * 8)
        elif what == "no pages" and path.suffix == ".pages":
            path.unlink()
            continue
        else:
            continue
        path.write_bytes(content)
    again = reader_of(served, cache)
    for seed in (1, 2):
        epoch(again, seed)
    again.close()
    assert disk_cache._on_disk(cache / disk_cache._LOCK) == 0
    assert {path: path.stat().st_size for path in whole} == whole, "what was cut is whole again"
    if what == "header":
        assert len(kept_in(cache)) == 2


def test_a_process_that_is_killed_in_the_middle_leaves_a_cache_that_is_right(served, cache):
    script = (
        "import sys, os, signal\n"
        "import numpy as np\n"
        "from datarax_ray.read.formats.array_record.reader import ArrayRecordReader\n"
        "from datarax_ray.read.formats.remote import disk_cache\n"
        "from datarax_ray.read.formats.remote.ranges import Remote\n"
        "write, left = disk_cache.write_at, [int(sys.argv[3])]\n"
        "def killed(fd, data, start):\n"
        "    left[0] -= 1\n"
        "    if not left[0]:\n"
        "        write(fd, data[: len(data) // 2], start)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    write(fd, data, start)\n"
        "disk_cache.write_at = killed\n"
        "remote = Remote(nbytes=0, gap_nbytes=0, cache_dir=sys.argv[2], cache_nbytes=1_500_000)\n"
        "ArrayRecordReader.of(sys.argv[1], remote=remote).read(np.arange(0, 100, 2))\n"
    )
    for number in (1, 2, 2):
        done = python("-c", script, f"{served.url}/0.array_record", cache, number)
        assert done.returncode == -signal.SIGKILL
        assert on_disk(cache) <= 1_500_000 + MAPS_NBYTES
    reader = reader_of(served, cache, 1_500_000)
    for seed in range(2):
        epoch(reader, seed)
        assert on_disk(cache) <= 1_500_000 + MAPS_NBYTES
    reader.close()


def test_a_disk_that_is_full_or_cannot_be_written_is_told_once_and_nothing_else_changes(
    served, tmp_path, cache, caplog, monkeypatch
):
    caplog.set_level(logging.WARNING)
    reader = reader_of(served, "/proc/nowhere")
    epoch(reader)
    reader.close()
    assert [line for line in caplog.messages if "keeps nothing more of remote files" in line] == caplog.messages
    assert len(caplog.messages) == 1
    write, left = disk_cache.write_at, [30]

    def full(fd, data, start):
        left[0] -= 1
        if left[0] < 0:
            write(fd, data[: len(data) // 2], start)
            raise OSError(28, "No space left on device")
        write(fd, data, start)

    monkeypatch.setattr(disk_cache, "write_at", full)
    reader = reader_of(served, cache)
    epoch(reader)
    epoch(reader, 1)
    reader.close()
    assert len(caplog.messages) == 2
    assert "No space left on device" in caplog.messages[1]
    monkeypatch.undo()
    reader = reader_of(served, cache)
    epoch(reader)
    reader.close()


def test_threads_and_readers_share_a_cache_that_is_too_small(served, cache):
    readers = [reader_of(served, cache, 1_000_000) for _ in range(2)]
    failed = []

    def read(seed):
        rng = np.random.default_rng(seed)
        try:
            for turn in range(10):
                reader = readers[(seed + turn) % 2]
                records = rng.integers(0, 200, 16)
                assert reader.read(records) == [noise(i) for i in records.tolist()]
                if turn % 5 == seed:
                    reader.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for reader in readers:
        reader.close()


def test_a_smaller_limit_than_before_holds_from_the_first_read_on(served, cache):
    before = reader_of(served, cache)
    epoch(before)
    limit = on_disk(cache) - 1_000_000
    before.close()
    reader = reader_of(served, cache, limit)
    reader.read(np.arange(10))
    assert on_disk(cache) <= limit + MAPS_NBYTES
    epoch(reader)
    assert 0.8 * limit < on_disk(cache) <= limit + MAPS_NBYTES
    reader.close()
