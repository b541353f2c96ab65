"""ArrayRecord files behind URLs: the records of the local files, by few requests, of one version, through faults."""

import os
import pickle
import re
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.read.errors import RecordError, StorageError
from datarax_ray.read.file_contents import TAIL_NBYTES
from datarax_ray.read.files.filesystems import find_on
from datarax_ray.read.files.paths import FileSlice, behind_url, find
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.remote import ranges
from datarax_ray.read.formats.remote.chunks import NoArrayRecordError, chunks, footer_offset
from datarax_ray.read.formats.remote.ranges import ChangedError, Remote
from datarax_ray.read.streams.indexed import IndexedStream
from tests.data import noise, record, write_file, write_files

HASTY = Remote(waits_s=(0.0, 0.0, 0.0, 0.0), timeout_s=60)


@pytest.fixture
def bucket():
    """A folder of fsspec's memory filesystem, emptied."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def copy_into(bucket, paths, folder="/bucket"):
    for path in paths:
        bucket.pipe(f"{folder}/{Path(path).name}", Path(path).read_bytes())
    return f"memory:/{folder}"


LAYOUTS = [
    *((group, how) for group in (1, 3, 256) for how in ("uncompressed", "zstd,transpose:true")),
    *((3, how) for how in ("zstd", "brotli", "snappy", "uncompressed,transpose:true")),
    (64, "zstd,pad_to_block_boundary:true"),
]


@pytest.mark.parametrize(("group_size", "how"), LAYOUTS)
def test_every_layout_gives_the_records_of_the_local_file(tmp_path, served, group_size, how):
    path = write_file(tmp_path / "a.array_record", (noise(i, 10 + i % 700) for i in range(1500)), group_size, how)
    local = ArrayRecordReader.of(path)
    far = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=Remote(nbytes=200_000))
    assert far.fingerprint() == local.fingerprint()
    rng = np.random.default_rng(0)
    for wanted in (
        *(np.arange(start, min(1500, start + 97)) for start in range(0, 1500, 97)),
        *(rng.integers(0, 1500, rng.integers(1, 200)) for _ in range(8)),
        np.arange(1500),
    ):
        assert far.read(wanted) == local.read(wanted)
    kept = far.with_room_for(400)
    for start in range(0, 1500, 100):
        wanted = np.arange(start, start + 100)
        assert list(kept.read(wanted)) == local.read(wanted)
    for reader in (local, far, kept):
        reader.close()


def test_many_files_are_one_index_and_slices_of_them_too(tmp_path, served):
    paths = write_files(tmp_path, [60, 1, 200, 7], group_size=16)
    urls = [f"{served.url}/{path.name}" for path in paths]
    mixed = [f"{urls[0]}[10:20]", paths[1], f"{urls[2]}[199:]", urls[3], f"file://{paths[0]}"]
    local = ArrayRecordReader.of([f"{paths[0]}[10:20]", paths[1], f"{paths[2]}[199:]", paths[3], paths[0]])
    far = ArrayRecordReader.of(mixed)
    assert far.fingerprint() == local.fingerprint()
    wanted = np.random.default_rng(1).integers(0, local.num_records, 300)
    assert far.read(wanted) == local.read(wanted)
    assert far.locate(3) == f"{urls[0]}[13]"
    copy = pickle.loads(pickle.dumps(far))
    assert copy.read(wanted) == local.read(wanted)
    for reader in (local, far, copy):
        reader.close()


def test_globs_and_directories_are_those_of_the_filesystem(tmp_path, bucket, caplog):
    url = copy_into(bucket, write_files(tmp_path, [3, 4, 5]))
    bucket.pipe("/bucket/README.md", b"x")
    bucket.pipe("/bucket/sub/other.array_record", b"x")
    names = [f"part-0000{i}.array_record" for i in range(3)]
    for paths in (url, f"{url}/", f"{url}/part-*", [f"{url}/{name}" for name in names]):
        caplog.clear()
        assert [Path(part.path).name for part in find(paths)] == names
        assert ("skipped 1 directories, /bucket/sub the first" in caplog.text) is (paths in (url, f"{url}/"))
    assert ArrayRecordReader.of(url).read(np.arange(12)) == [record(i) for i in range(12)]
    assert find(f"{url}/{names[0]}[2:]") == (FileSlice(f"{url}/{names[0]}", 2),)
    with pytest.raises(FileNotFoundError, match="no file matches this glob"):
        find(f"{url}/x*")
    bucket.pipe("/other/README.md", b"x")
    with pytest.raises(FileNotFoundError, match="none of the 1 files in this directory is named"):
        find("memory://other/")
    with pytest.raises(FileNotFoundError, match="no such file"):
        ArrayRecordReader.of("memory://nowhere/a.array_record")


class KeepsListings(MemoryFileSystem):
    """Keeps its listings as s3fs, gcsfs and adlfs do: without an end, in `dircache`."""

    protocol = "keeps"
    find = AbstractFileSystem.find  # by ls

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True)
        return self.dircache[path] if detail else [info["name"] for info in self.dircache[path]]

    def invalidate_cache(self, path=None):
        self.dircache.clear()

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("keeps://").strip("/")


def test_files_that_came_since_are_listed_though_the_client_keeps_listings(tmp_path, bucket):
    fsspec.register_implementation("keeps", KeepsListings, clobber=True)
    path = write_files(tmp_path, [3])[0]
    copy_into(bucket, [path], "/bucket/train")
    for paths in (["keeps://bucket/train"], ["keeps://bucket/train/*.array_record"]):
        for more in (0, 1, 2):
            bucket.pipe(f"/bucket/train/more-{len(bucket.store)}-{more}.array_record", path.read_bytes())
            num_files = len(bucket.ls("/bucket/train"))
            assert len(find_on(paths, None, [".array_record"])[1]) == len(find(paths)) == num_files


def test_a_file_is_opened_by_one_request_more(tmp_path, served):
    path = write_file(tmp_path / "a.array_record", (noise(i) for i in range(1000)))
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record")
    served.count()
    assert reader.read(np.array([17])) == [noise(17)]
    assert served.count()[0] == 2
    assert reader.read(np.array([17])) == [noise(17)]
    assert served.count()[0] == 0
    assert reader.read(np.arange(100, 200)) == [noise(i) for i in range(100, 200)]
    assert served.count()[0] == 1
    assert path.stat().st_size > 4 * TAIL_NBYTES
    reader.close()


def test_what_is_kept_stays_below_its_limit_and_costs_no_request_again(tmp_path, served):
    write_file(tmp_path / "a.array_record", (noise(i) for i in range(1000)))
    limit = 300_000
    small = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=Remote(nbytes=limit))
    large = ArrayRecordReader.of(f"{served.url}/a.array_record")
    served.count()
    for turn in range(2):
        for start in range(0, 1000, 50):
            wanted = np.arange(start, start + 50)
            assert small.read(wanted) == large.read(wanted)
            held = os.stat(small._mirrors._images[0].path).st_blocks * 512
            assert held == small._mirrors.nbytes <= limit
        requests, _ = served.count()
        assert (requests < 22) == (turn == 1)  # the larger one asks for nothing the second time
    small.close()
    large.close()


@pytest.mark.parametrize("what", ["503", "429", "cut", "shift", "stray", "star"])  # a star is well: RFC 9110, 14.4
def test_requests_that_fail_now_and_then_change_nothing(tmp_path, served, what):
    path = write_file(tmp_path / "a.array_record", (noise(i) for i in range(1000)), 8)
    served.what = lambda number: what if number % 3 == 0 else ""
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=HASTY)
    local = ArrayRecordReader.of(path)
    assert reader.fingerprint() == local.fingerprint()
    for start in range(0, 1000, 50):
        wanted = np.arange(start, start + 50)
        assert reader.read(wanted) == local.read(wanted)
    assert served.num_broken > 5
    reader.close()


def test_a_server_is_left_alone_for_as_long_as_it_asks(tmp_path, served):
    write_file(tmp_path / "a.array_record", (noise(i) for i in range(200)))
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=HASTY)
    ready_at = time.monotonic() + 0.9
    served.what = lambda number: "429 1" if time.monotonic() < ready_at else ""
    assert reader.read(np.arange(0, 200, 20)) == [noise(i) for i in range(0, 200, 20)]  # five tries at once would fail
    assert served.num_broken >= 1
    reader.close()


class Hangs(MemoryFileSystem):
    """A client without a timeout of its own: its requests end with the test."""

    protocol = "hangs"
    ended = threading.Event()
    num_asked = 0
    find = AbstractFileSystem.find  # by ls

    def cat_file(self, path, **options):
        self.hang()
        return super().cat_file(path, **options)

    def ls(self, path, detail=True, **options):
        self.hang()
        return super().ls(path, detail, **options)

    def hang(self):
        type(self).num_asked += 1
        self.ended.wait()

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("hangs://").strip("/")


@pytest.fixture
def hanging(monkeypatch):
    fsspec.register_implementation("hangs", Hangs, clobber=True)
    monkeypatch.setattr(Hangs, "ended", threading.Event())
    monkeypatch.setattr(Hangs, "num_asked", 0)
    monkeypatch.setattr(ranges, "_warned_at", {})
    yield Hangs
    Hangs.ended.set()


PATIENT_ONCE = Remote(timeout_s=0.1, listing_s=0.2, waits_s=(0.0,) * 10, patience_s=0.0)


@pytest.mark.parametrize("name", ["part-00000.array_record", "*.array_record", ""])
def test_a_client_that_hangs_is_told_asked_again_and_given_up(tmp_path, bucket, hanging, caplog, name):
    url = copy_into(bucket, write_files(tmp_path, [3])).replace("memory", "hangs") + f"/{name}"

    def ask():
        if name.startswith("part"):
            return ArrayRecordReader.of(url, remote=PATIENT_ONCE).num_records
        return 3 * len(list(behind_url(url, PATIENT_ONCE)))

    with pytest.raises(StorageError, match=r"/bucket/.*: (reading|listing it) failed 2 times in .*TimeoutError"):
        ask()
    assert hanging.num_asked == 2
    (line,) = caplog.messages
    assert re.match(rf"{re.escape(url)}.*: (reading|listing it) takes more than 0\.1 s, and is", line)
    hanging.ended.set()
    assert ask() == 3


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("503", "503"),
        ("cut", "payload|bytes came"),
        ("stall", "Timeout"),
        ("shift", r"asked for bytes=\d+-\d+, 'bytes \d+-.*' came.*proxy or cache.*copy them"),
    ],
)
def test_storage_that_keeps_failing_is_named_with_the_range_and_no_record_is_broken(tmp_path, served, what, said):
    write_file(tmp_path / "a.array_record", (noise(i) for i in range(200)))
    hasty = Remote(waits_s=(0.0, 0.0), timeout_s=0.2 if what == "stall" else 60)
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=hasty)
    stream = IndexedStream(reader, order_of(200), 1, on_error="skip")
    stream.read_at(0, 10)
    served.what = lambda number: what
    said = rf"a\.array_record, bytes \[\d[\d,]*, [\d,]+\): reading failed 3 times.*({said})"
    with pytest.raises(StorageError, match=said):
        stream.read_at(100, 110)
    served.what = lambda number: ""
    assert stream.read_at(100, 110) == [noise(i) for i in range(100, 110)]
    stream.close()


def test_a_file_that_is_replaced_is_told_before_a_byte_of_it_is_taken(tmp_path, served):
    path = write_file(tmp_path / "a.array_record", (noise(i) for i in range(200)), compression="uncompressed")
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record")
    stream = IndexedStream(reader, order_of(200), 1, on_error="skip")
    assert stream.read_at(0, 10) == [noise(i) for i in range(10)]
    write_file(path, (noise(1000 + i) for i in range(200)), compression="uncompressed")
    assert stream.read_at(5, 10) == [noise(i) for i in range(5, 10)]  # of the first, which are still there
    said = r"a\.array_record changed while it was read: its version was \S+ when.* is of"
    with pytest.raises(ChangedError, match=said):
        stream.read_at(100, 110)
    for count in (100, 20):  # shorter: less comes, or nothing
        write_file(path, (noise(1000 + i) for i in range(count)), compression="uncompressed")
        with pytest.raises(ChangedError, match=r"a\.array_record changed while it was read"):
            stream.read_at(190, 200)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.array_record: no such file"):
        stream.read_at(100, 110)
    stream.close()


def test_a_file_that_is_replaced_on_any_filesystem_is_told(tmp_path, bucket):
    paths = [write_file(tmp_path / "a.array_record", map(noise, range(200)))]
    url = copy_into(bucket, paths)
    reader = ArrayRecordReader.of(url)
    reader.read(np.arange(3))
    copy_into(bucket, paths)  # the same bytes, of another time
    with pytest.raises(ChangedError, match="changed while it was read: its version was created.*it is of created"):
        reader.read(np.arange(100, 200))
    reader.close()


def test_a_broken_record_is_the_same_one_as_on_disk(tmp_path, served):
    path = write_file(tmp_path / "a.array_record", (noise(i) for i in range(200)), compression="uncompressed")
    content = bytearray(path.read_bytes())
    content[content.index(noise(57)) + 100] ^= 1
    path.write_bytes(content)

    def run(where, on_error):
        reader = ArrayRecordReader.of(where)
        stream = IndexedStream(reader, order_of(200), 1, on_error=on_error)
        try:
            return stream.read_at(0, 200)
        finally:
            stream.close()

    url = f"{served.url}/a.array_record"
    assert run(url, "skip") == run(path, "skip") == [noise(i) for i in range(200) if i != 57]
    with pytest.raises(RecordError, match=r"/a\.array_record\[57\] \(position 57\): reading"):
        run(url, "raise")


@pytest.mark.parametrize(("bent", "what"), [(1, "other"), (2, "other"), (2, "bend")])  # its end, and its records
def test_bytes_that_are_bent_on_their_way_are_no_broken_record(tmp_path, served, bent, what):
    write_file(tmp_path / "a.array_record", (noise(i) for i in range(200)), 200, "uncompressed")
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record")
    served.count()
    served.what = lambda number: what if number == bent else ""
    assert reader.read(np.arange(200)) == [noise(i) for i in range(200)]
    assert (served.num_broken, served.count()[0]) == (1, 3)
    reader.close()


@pytest.mark.parametrize("what", ["whole", "mute", "bare", 'W/"1"', "416"])
def test_an_answer_that_one_server_of_many_may_give_counts_when_it_comes_twice(tmp_path, served, what):
    """No range, none that is there, or another version."""
    write_file(tmp_path / "a.array_record", (noise(i) for i in range(200)), 200, "uncompressed")
    reader, other = (ArrayRecordReader.of(f"{served.url}/a.array_record", remote=HASTY) for _ in range(2))
    first = served.num_requests + 1
    served.what = lambda number: what if number == first else ""
    assert reader.read(np.arange(200)) == [noise(i) for i in range(200)]
    assert served.num_broken == 1
    served.what = lambda number: what
    with pytest.raises(ValueError, match="no byte ranges|no Content-Range|neither an ETag|changed while it was read"):
        other.read(np.arange(200))
    assert served.num_broken == 1 + 2
    reader.close(), other.close()


def test_an_end_that_is_bent_again_is_an_error_that_names_its_url(tmp_path, served):
    write_file(tmp_path / "a.array_record", (noise(i) for i in range(200)))
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record")
    served.what = lambda number: "other"
    with pytest.raises(ValueError, match=r"http://127.*/a\.array_record: its footer does not parse.*twice"):
        reader.read(np.arange(200))
    reader.close()


@pytest.mark.parametrize(
    ("content", "what", "error", "said"),
    [
        (b"", "", ValueError, r"is not a complete file: it is empty \(0 bytes\)"),
        (b"PAR1" + bytes(100), "", ValueError, r"is not a complete ArrayRecord file: it is shorter than.*Parquet"),
        (b"PAR1" + bytes(2**19), "", ValueError, "its last 64 KiB say nothing of a footer.*Parquet"),
        (bytes(2**19), "whole", ValueError, "its server gives no byte ranges"),
        (bytes(2**19), "bare", ValueError, "tells neither an ETag nor a time of change"),
        (bytes(2**19), "mute", ValueError, "is answered with no Content-Range. A proxy or cache.*copy them"),
        (bytes(2**19), "400", StorageError, "400, message='Bad Request'.* not asked again. Look at the URL"),
        (bytes(2**19), "loop", StorageError, "TooManyRedirects.* not asked again"),
        (bytes(2**19), "403", PermissionError, "access is refused.*Give credentials"),
        (bytes(2**19), "404", FileNotFoundError, "no such file"),
    ],
)
def test_what_cannot_be_read_is_told_at_the_start(tmp_path, served, content, what, error, said):
    (tmp_path / "a.array_record").write_bytes(content)
    served.what = lambda number: what
    with pytest.raises(error, match=f"(?s)a.array_record.*{said}"):
        ArrayRecordReader.of(f"{served.url}/a.array_record", remote=HASTY)
    assert served.num_requests <= (10 if what == "loop" else 2)


@pytest.mark.parametrize("cut", [1, 70_000, 2**17])
def test_a_file_that_was_cut_is_told_at_the_start(tmp_path, served, cut):
    path = write_file(tmp_path / "a.array_record", (noise(i) for i in range(500)))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=r"a\.array_record is not a complete ArrayRecord file"):
        ArrayRecordReader.of(f"{served.url}/a.array_record")


@pytest.mark.parametrize("how", ["uncompressed", "zstd", "brotli", "snappy"])
def test_a_damaged_end_names_no_range_outside_of_its_file(tmp_path, how):
    content = write_file(tmp_path / "a.array_record", (noise(i, 30) for i in range(300)), 4, how).read_bytes()
    offset = footer_offset(content, len(content))
    rng = np.random.default_rng(0)
    num_refused = 0
    for _ in range(300):
        mutant = bytearray(content)
        for place in rng.integers(offset, offset + 700, 3).tolist():
            mutant[place] = int(rng.integers(256))
        try:
            found = chunks(bytes(mutant[offset:]), offset)
        except NoArrayRecordError:
            num_refused += 1
            continue
        spans = found.of(np.arange(found.records[-1]))
        assert (spans[:, 0] >= 0).all()
        assert (spans[:, 0] < spans[:, 1]).all()
        assert (spans[:, 1] <= offset).all()
    assert num_refused


def test_a_presigned_url_gives_no_secret_away(tmp_path, served):
    path = write_files(tmp_path, [50])[0]
    url = f"{served.url}/{path.name}?X-Amz-Signature=secret"
    reader = ArrayRecordReader.of(url, remote=HASTY)
    assert reader.fingerprint() == ArrayRecordReader.of(path).fingerprint()
    assert reader.read(np.arange(50)) == [record(i) for i in range(50)]
    assert reader.locate(3) == f"{served.url}/{path.name}[3]"
    reader.close()
    with pytest.raises(ValueError, match=rf"{path.name}\[3:1\]: the slice ends before it starts") as caught:
        find(f"{url}[3:1]")
    assert "secret" not in str(caught.value)
    for what in ("503", "404", "403"):
        served.what = lambda number, what=what: what
        with pytest.raises((OSError, ValueError)) as caught:
            ArrayRecordReader.of(url, remote=Remote(waits_s=()))
        error, said = caught.value, ""
        while error is not None:
            said, error = said + str(error), error.__cause__
        assert "secret" not in said
        assert path.name in said
