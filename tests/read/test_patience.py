"""Storage that fails now and then: it is asked again, and nothing is ever taken for broken data for it."""

import errno
import itertools
import logging
import os
import re
import socket
import time
from typing import Any

import aiohttp
import datasets
import numpy as np
import PIL.Image
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.errors import RecordError, StorageError
from datarax_ray.read.formats.array_record.open_files import OpenFiles
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.hugging_face.dataset import DatasetReader, UndecodableError
from datarax_ray.read.formats.image_folder import ImageFolder
from datarax_ray.read.formats.mds.reader import MDSReader
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.formats.random_access import RandomAccessReader
from datarax_ray.read.formats.text.blocks import TextReader
from datarax_ray.read.formats.text.syntax import CSV
from datarax_ray.read.formats.tfrecord import TFRecordReader
from datarax_ray.read.formats.webdataset.reader import WebDatasetReader
from datarax_ray.read.retry import is_transient, retried
from datarax_ray.read.streams.indexed import IndexedStream
from tests.data import record, write_files
from tests.mds import write_mds
from tests.tables import write_tables
from tests.tars import write_tars
from tests.tfrecords import write_tfrecord


@pytest.fixture(autouse=True)
def waited(monkeypatch):
    """For how long each wait would have been; nothing waits."""
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


class StatusError(Exception):
    def __init__(self, status):
        self.status = status


class ClientError(Exception):
    """As botocore's."""

    def __init__(self, status):
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


PASSING = (errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ECONNRESET, errno.ENETUNREACH)
AWS = "When reading information for key 'a' in bucket 'b': AWS Error {} during GetObject operation: ..."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((OSError(number, "x"), True) for number in PASSING),
        *((OSError(number, "x"), False) for number in (errno.ENOENT, errno.EACCES, errno.EISDIR, errno.EMFILE)),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (TimeoutError(), True),
        (aiohttp.ClientPayloadError("not enough data"), True),
        (StatusError(429), True),
        (StatusError(403), False),
        (ClientError(503), True),
        (ClientError(404), False),
        (OSError(AWS.format("SLOW_DOWN")), True),
        (OSError(AWS.format("NETWORK_CONNECTION")), True),
        (OSError(AWS.format("UNKNOWN (HTTP status 503)")), True),
        (OSError(AWS.format("ACCESS_DENIED")), False),
        (OSError("google::cloud::Status(UNAVAILABLE: try again)"), True),
        (OSError("google::cloud::Status(NOT_FOUND: no such object)"), False),
        (OSError("could not verify page integrity, CRC checksum verification failed"), False),
        (OSError("Corrupt snappy compressed data."), False),
        (RuntimeError("data hash mismatch"), False),
        (StorageError("asked six times"), False),
    ],
    ids=repr,
)
def test_only_what_the_storage_or_network_says_of_itself_is_waited_for(error, expected):
    assert is_transient(error) is expected


def test_what_an_error_came_from_counts_unless_it_was_cut_off():
    def raised(cause):
        try:
            try:
                raise ConnectionResetError
            except ConnectionResetError:
                raise KeyError("x") from cause
        except KeyError as error:
            return error

    assert is_transient(raised(ConnectionResetError()))
    assert not is_transient(raised(None))
    refused = FileNotFoundError("http://host/a.parquet")
    assert not is_transient(refused)
    refused.__cause__ = StatusError(503)  # as fsspec's HTTP filesystem raises it
    assert is_transient(refused)
    refused.__cause__ = StatusError(404)
    assert not is_transient(refused)


def failing(times):
    count = itertools.count()

    def read():
        if next(count) < times:
            raise OSError(errno.EIO, "Input/output error", "/data/a")
        return "read"

    return read


def test_it_is_asked_again_later_and_later_and_logged_once(caplog, waited):
    with caplog.at_level(logging.WARNING, "datarax_ray"):
        assert retried(failing(5), "/data/a") == "read"
    (line,) = caplog.messages
    assert re.match(r"/data/a: reading failed 1 times in 0 s, trying up to 5 more times: OSError: \[Errno 5\]", line)
    assert all(wait <= so_long < 1.5 * wait for wait, so_long in zip((1, 2, 4, 8, 16), waited, strict=True))


def test_storage_that_stays_away_is_an_error_with_the_number_of_tries_and_the_remedy():
    said = (
        r"/data/a: reading failed 6 times in .*, at last with OSError: \[Errno 5\].* so nothing is skipped for it. Look"
    )
    with pytest.raises(StorageError, match=said):
        retried(failing(6), "/data/a")


# Parquet, over HTTP and on a filesystem that fails


class FlakyFileSystem(LocalFileSystem):
    """Its reads fail every nth time, with an error that a test sets."""

    protocol = "flaky"
    cachable = False
    every = 0
    error: type[BaseException] = OSError
    arguments: tuple[Any, ...] = (errno.EIO, "Input/output error")

    def __init__(self, **options):
        super().__init__(**options)
        self.count, self.num_failed = 0, 0

    def open(self, path, *args, **options):
        file = super().open(path, *args, **options)
        flaky = self

        class Flaky:
            def __getattr__(self, name):
                return getattr(file, name)

            def read(self, *sizes):
                flaky.count += 1
                if flaky.every and flaky.count % flaky.every == 0:
                    flaky.num_failed += 1
                    raise flaky.error(*flaky.arguments)
                return file.read(*sizes)

        return Flaky()


def of(reader, on_error="skip"):
    return IndexedStream(reader, order_of(reader.num_records, groups=getattr(reader, "groups", None)), 1, (), on_error)


@pytest.mark.parametrize("refused", [1, 2, 4, 8])
def test_whichever_request_for_a_file_is_refused_it_is_asked_again_and_no_missing_file(tmp_path, served, refused):
    (path,) = write_tables(tmp_path, (24,))
    served.has_etags, served.what = False, lambda number: "503" if number == refused else ""
    reader = ParquetReader.of(f"{served.url}/{path.name}", columns=["index"])
    assert reader.read(np.arange(24))["index"].tolist() == list(range(24))
    assert served.num_broken == 1
    reader.close()


@pytest.mark.parametrize(
    ("error", "arguments", "every"),
    [
        (OSError, (errno.EIO, "Input/output error"), 7),
        (OSError, (errno.EIO, "Input/output error"), 8),
        (TimeoutError, (), 9),
        (aiohttp.ClientPayloadError, ("cut off",), 11),
    ],
)
def test_no_row_group_is_broken_for_a_failing_filesystem(tmp_path, every, error, arguments):
    paths = write_tables(tmp_path, (40, 60))
    flaky = FlakyFileSystem()
    reader = ParquetReader.of([str(path) for path in paths], columns=["index"], filesystem=flaky)
    flaky.every, flaky.error, flaky.arguments = every, error, arguments
    block = of(reader).read(ReadRequest(0, 100))
    assert block.columns["index"].tolist() == list(range(100))
    assert block.skipped == ()
    assert flaky.num_failed
    reader.close()


@pytest.mark.parametrize("every", [1, 2, 5])
def test_what_nothing_tells_of_passing_is_an_error_and_no_broken_row_group_either(tmp_path, every):
    (path,) = write_tables(tmp_path, (40,))
    flaky = FlakyFileSystem()
    reader = ParquetReader.of(str(path), columns=["index"], filesystem=flaky)
    flaky.every, flaky.arguments = every, ("said by no number what it is",)
    try:
        block = of(reader).read(ReadRequest(0, 40))
    except OSError as error:
        assert not isinstance(error, StorageError)  # noqa: PT017  it may also be read by chance
    else:
        assert block.columns["index"].tolist() == list(range(40))
    assert flaky.num_failed
    flaky.every = 0
    again = of(reader).read(ReadRequest(0, 40))  # and nothing of it is remembered
    assert again.columns["index"].tolist() == list(range(40))
    reader.close()


def test_a_filesystem_that_stays_away_is_an_error_of_reading_and_skips_nothing(tmp_path):
    (path,) = write_tables(tmp_path, (8,))
    flaky = FlakyFileSystem()
    reader = ParquetReader.of(str(path), columns=["index"], filesystem=flaky)
    flaky.every = 1
    with pytest.raises(StorageError, match=r"part-00000\.parquet: reading failed 6 times"):
        of(reader).read(ReadRequest(0, 8))
    with pytest.raises(StorageError, match=r"part-00000\.parquet while it was opened: reading failed 6 times"):
        ParquetReader.of(str(path), filesystem=flaky)


# ArrayRecord


def break_descriptors_of(path):
    """Put a file whose reads fail with EIO, as the operating system gives it, in place of this one where it is open."""
    count = 0
    memory = os.open("/proc/self/mem", os.O_RDONLY)  # nothing is mapped where the records of a small file would be
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == str(path):
                os.dup2(memory, int(name))
                count += 1
        except FileNotFoundError:  # of the listing itself
            continue
    os.close(memory)
    return count


def test_an_array_record_file_that_cannot_be_read_for_once_is_opened_again(tmp_path):
    (path,) = write_files(tmp_path, [300])
    reader = ArrayRecordReader.of(path)
    for records in (np.arange(300), np.array([3, 250]), np.arange(0, 300, 2)):
        reader.read(np.array([0]))
        assert break_descriptors_of(path) == 1
        block = of(reader).read(ReadRequest(0, 300))
        assert block.skipped == ()
        assert block.columns.tolist() == [record(i) for i in range(300)]
        assert break_descriptors_of(path) == 1
        assert reader.read(records) == [record(i) for i in records.tolist()]


def test_an_array_record_file_that_cannot_be_read_for_long_is_an_error_of_reading(tmp_path, monkeypatch):
    (path,) = write_files(tmp_path, [30])
    reader = ArrayRecordReader.of(path)
    reader.read(np.array([0]))
    opened = OpenFiles.reader_of

    def broken(self, index):
        found = opened(self, index)
        break_descriptors_of(path)
        return found

    monkeypatch.setattr(OpenFiles, "reader_of", broken)
    with pytest.raises(StorageError, match=r"part-00000\.array_record: reading failed 6 times.*records 0 to 29"):
        of(reader).read(ReadRequest(0, 30))


# Data sources of one's own


class Remote:
    """A data source whose storage fails every nth time, and whose element 7 is broken."""

    def __init__(self, every):
        self.every, self.count = every, 0

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.count += 1
        if self.count % self.every == 0:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if index == 7:
            raise KeyError("no element 7")
        return {"index": index}


def test_a_data_source_over_a_failing_network_is_asked_again_and_its_broken_elements_stay_broken():
    block = of(RandomAccessReader(Remote(23))).read(ReadRequest(0, 20))
    assert block.columns["index"].tolist() == [i for i in range(20) if i != 7]
    assert [skip.position for skip in block.skipped] == [7]
    with pytest.raises(StorageError, match="elements of a Remote: reading failed 6 times"):
        of(RandomAccessReader(Remote(1))).read(ReadRequest(0, 20))
    failed = of(RandomAccessReader(Remote(10**6)), "raise").read(ReadRequest(0, 20)).failure
    assert isinstance(failed, RecordError)


def test_a_storage_error_of_a_transform_skips_no_element():
    def fetch(element):
        return retried(failing(100), "http://image")

    description = IndexedStream(RandomAccessReader([1, 2, 3]), order_of(3), 1, (fetch,), "skip")
    with pytest.raises(StorageError, match="http://image: reading failed 6 times"):
        description.read(ReadRequest(0, 3))


def reader_of(kind, folder, root):
    """A reader of 50 records, of a file in the folder, which `root` names too."""
    match kind:
        case "tfrecord":
            path = write_tfrecord(folder / "a.tfrecord", (record(i) for i in range(50)))
            return TFRecordReader.of(f"{root}/{path.name}")
        case "mds":
            write_mds(folder, {"x": "int"}, [{"x": i} for i in range(50)], 50)
            return MDSReader.of(root)
        case "tar":
            return WebDatasetReader.of(f"{root}/{write_tars(folder, [50])[0].name}")
        case _:
            (folder / "a.csv").write_text("index\n" + "".join(f"{i}\n" for i in range(50)))
            return TextReader.of(f"{root}/a.csv", CSV())


def as_lists(found):
    if isinstance(found, dict):
        return {name: as_lists(part) for name, part in found.items()}
    return found.tolist() if isinstance(found, np.ndarray) else found


@pytest.mark.parametrize("kind", ["tfrecord", "tar", "mds", "csv"])  # Parquet: test_remote_parquet.py
def test_a_server_that_gives_less_than_was_asked_for_is_asked_again(kind, tmp_path, served, waited):
    """As RFC 9110 allows it to, and as proxies do; fsspec hands on what came."""
    want = as_lists(reader_of(kind, tmp_path, str(tmp_path)).read(np.arange(50)))
    reader = reader_of(kind, tmp_path, served.url)
    served.count()
    served.what = lambda number: "short" if number <= 5 else ""  # to tell its size, it is asked twice before
    assert str(as_lists(reader.read(np.arange(50)))) == str(want)
    assert [wait >= 1 for wait in waited if wait] == [True]
    reader.close()


def test_bytes_that_a_server_did_not_announce_are_no_answer(tmp_path, served):
    want = as_lists(reader_of("csv", tmp_path, str(tmp_path)).read(np.arange(50)))
    reader = reader_of("csv", tmp_path, served.url)
    served.count()
    served.what = lambda number: "stray" if number <= 6 else ""
    assert str(as_lists(reader.read(np.arange(50)))) == str(want)
    reader.close()


@pytest.mark.parametrize("kind", ["tfrecord", "tar", "mds", "csv"])
@pytest.mark.parametrize(
    ("what", "error", "said"),
    [("400", StorageError, "400, .*Look at the URL"), ("403", PermissionError, "403, .*Give credentials")],
)
def test_a_file_that_a_server_refuses_is_not_missing(kind, tmp_path, served, waited, what, error, said):
    reader = reader_of(kind, tmp_path, served.url)
    served.what = lambda number: what
    with pytest.raises(error, match=rf"^{served.url}/\S+: .*{said}"):
        reader.read(np.arange(50))
    reader.close()
    with pytest.raises((error, ValueError), match=rf"(?s){served.url}/\S+: .*{said}"):
        reader_of(kind, tmp_path, served.url)
    assert not any(waited)


@pytest.mark.parametrize("kind", ["tfrecord", "tar", "mds", "csv"])  # Parquet: test_remote_parquet.py
def test_a_file_behind_a_url_that_is_replaced_by_one_of_its_size_is_told(kind, tmp_path, served):
    reader = reader_of(kind, tmp_path, served.url)
    reader.read(np.array([3]))
    path = next(path for path in tmp_path.iterdir() if path.name != "index.json")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if kind == "csv":  # all of it is in memory, as one group
        assert len(as_lists(reader.read(np.array([4])))["index"]) == 1
        reader.clear()
    with pytest.raises(ValueError, match=r"changed while it was read: it had .*\(\d+, '[0-9a-f]{16}'\), and has"):
        reader.read(np.arange(50))
    reader.close()


class ByTurns(MemoryFileSystem):
    """Tells of a file by a listing that it keeps, and by asking, as clients of object stores do."""

    cachable = False
    asked = itertools.count()

    def info(self, path, **options):
        found = super().info(path, **options)
        now = {"ETag": '"1f"', "LastModified": "00:00:01.5"} if next(self.asked) % 2 else {"ETag": "1f"}
        return found | {"LastModified": "00:00:01"} | now


def test_a_file_of_which_a_listing_and_an_answer_tell_in_other_words_is_the_same(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", (record(i) for i in range(50)))
    files = ByTurns()
    files.pipe("/by_turns/a.tfrecord", path.read_bytes())
    try:
        reader = TFRecordReader.of("/by_turns/a.tfrecord", filesystem=files)
        assert [reader.read(np.array([i]))[0] for i in range(50)] == [record(i) for i in range(50)]
    finally:
        files.rm("/by_turns", recursive=True)


def test_an_image_whose_server_is_busy_is_not_broken(tmp_path, served):
    PIL.Image.new("RGB", (4, 3), (1, 2, 3)).save(tmp_path / "a.png")
    dataset = datasets.Dataset.from_dict({"image": [f"{served.url}/a.png"]}).cast_column("image", datasets.Image())
    reader = DatasetReader(dataset, "pictures")
    served.what = lambda number: "503"
    with pytest.raises(StorageError, match="column 'image' of pictures: reading failed 6 times"):
        reader.read(np.array([0]))
    busy = iter([True] * 3)
    served.what = lambda number: "503" if next(busy, False) else ""
    assert reader.read(np.array([0]))["image"][0, 0, 0].tolist() == [1, 2, 3]
    served.what = lambda number: "404"
    with pytest.raises(UndecodableError):
        reader.read(np.array([0]))


def test_a_folder_of_images_that_is_not_mounted_breaks_no_image(tmp_path):
    for name in ("cat/a.png", "cat/b.png", "dog/c.png"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("RGB", (4, 3), (1, 2, 3)).save(tmp_path / "data" / name)
    reader = RandomAccessReader(ImageFolder(tmp_path / "data"))
    stream = IndexedStream(reader, order_of(3, 0, "none"), 1, on_error="skip")
    (tmp_path / "data/cat/b.png").unlink()
    block = stream.read(ReadRequest(0, 3))
    assert (block.positions.tolist(), [skip.position for skip in block.skipped]) == ([0, 2], [1])
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    for mount_point in (False, True):
        with pytest.raises(StorageError, match=r"a\.png: its folder was there .* a mount is missing"):
            stream.read(ReadRequest(0, 3))
        if not mount_point:
            (tmp_path / "data").mkdir()


def test_an_image_whose_url_is_none_is_broken_and_nobody_waits_for_it(waited):
    dataset = datasets.Dataset.from_dict({"image": ["http://"]}).cast_column("image", datasets.Image())
    with pytest.raises(UndecodableError):
        DatasetReader(dataset, "pictures").read(np.array([0]))
    assert waited == []
