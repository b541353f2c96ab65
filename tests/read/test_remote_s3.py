"""A real S3 server (moto's) and s3fs, where both are installed: pip install s3fs "moto[server]"."""

import numpy as np
import pytest

from datarax_ray import loading
from datarax_ray.loading import load
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.remote import ranges
from datarax_ray.read.formats.remote.ranges import ChangedError, Remote
from tests.data import record, write_files


@pytest.fixture
def bucket(monkeypatch):
    """A bucket's filesystem."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    files = s3fs.S3FileSystem(endpoint_url=url)
    monkeypatch.setattr(ranges, "filesystem_of", lambda _: files)
    monkeypatch.setattr("datarax_ray.read.files.paths.filesystem_of", lambda _: files)
    monkeypatch.setattr("datarax_ray.read.files.filesystems.filesystem_of", lambda _: files)
    files.makedirs("bucket", exist_ok=True)  # moto keeps it for its process
    yield files
    server.stop()


def test_a_bucket_gives_the_records_of_the_local_files_until_one_is_replaced(tmp_path, bucket):
    paths = write_files(tmp_path, [300, 40, 700], group_size=8)
    for path in paths:
        bucket.put(str(path), f"bucket/data/{path.name}")
    local = ArrayRecordReader.of(paths)
    for url in ("s3://bucket/data", "s3://bucket/data/", "s3://bucket/data/*.array_record"):
        far = ArrayRecordReader.of(url)
        assert far.fingerprint() == local.fingerprint()
    wanted = np.random.default_rng(0).integers(0, 1040, 500)
    assert far.read(wanted) == [record(i) for i in wanted.tolist()]
    far.close()
    bucket.put(str(paths[2]), f"bucket/data/{paths[0].name}")
    with pytest.raises(ChangedError, match="changed while it was read"):
        far.read(np.arange(5))
    far.close()


def test_what_is_not_there_is_told(bucket):
    bucket.pipe("bucket/empty.array_record", b"")
    with pytest.raises(ValueError, match=r"empty\.array_record is not a complete file: it is empty"):
        ArrayRecordReader.of("s3://bucket/empty.array_record")
    for url in ("s3://bucket/a.array_record", "s3://other/a.array_record", "s3://other/*", "s3://other/data/"):
        with pytest.raises(FileNotFoundError, match="no such file|no file matches"):
            ArrayRecordReader.of(url)


def test_load_looks_at_files_by_the_client_that_reads_them(tmp_path, bucket, monkeypatch):
    monkeypatch.setattr(loading, "filesystem_of", lambda _: bucket)
    for path in write_files(tmp_path, [3, 4]):
        bucket.put(str(path), f"bucket/mine/{path.name}")
    (tmp_path / "a.csv").write_text("x\n1\n2\n3\n")
    bucket.put(str(tmp_path / "a.csv"), "bucket/table/a.csv")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # of pyarrow's client, where nobody listens
    for url in ("s3://bucket/mine/", "s3://bucket/mine", "s3://bucket/mine/*"):
        assert list(load(url).get_batch(7)) == [record(i) for i in range(7)]
    with pytest.raises(OSError, match="NETWORK_CONNECTION") as raised:
        load("s3://bucket/table")
    assert "finds CSV: where credentials or endpoint of pyarrow's differ" in raised.value.__notes__[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint_url)
    assert load("s3://bucket/table").get_batch(3)["x"].tolist() == [1, 2, 3]
    monkeypatch.setattr(bucket, "info", lambda path, **_: 1 / 0)
    assert load("s3://bucket/table").get_batch(3)["x"].tolist() == [1, 2, 3]


def test_a_body_that_sticks_is_asked_again_after_so_long_without_a_byte(tmp_path, served, monkeypatch):
    s3fs = pytest.importorskip("s3fs")
    (tmp_path / "bucket").mkdir()
    content = np.random.default_rng(0).bytes(300_000)
    (tmp_path / "bucket" / "a").write_bytes(content)
    files = s3fs.S3FileSystem(endpoint_url=served.url, key="key", secret="secret")
    monkeypatch.setattr(ranges, "filesystem_of", lambda _: files)
    remote = Remote(timeout_s=3.0, least_rate=1, waits_s=(0.0,) * 5)  # of all of it: days
    tail = ranges.read_tail("s3://bucket/a", 100_000, Remote())
    assert (tail.data, tail.nbytes) == (content[-100_000:], 300_000)
    served.what = lambda number: {2: "stick", 3: "stall"}.get(number, "")
    assert ranges.read_ranges([("s3://bucket/a", tail.version, 0, 300_000)], remote) == [content]
    assert served.num_broken == 2
