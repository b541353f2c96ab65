"""What was found of files is kept: later starts ask for less, of the same version alone."""

import json
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest

from datarax_ray.read import file_contents as contents
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.remote import clients, ranges
from datarax_ray.read.formats.remote.index import cache_directory
from datarax_ray.read.formats.remote.ranges import Remote
from tests.data import record, write_file, write_files
from tests.http_files import HttpFiles


@pytest.fixture
def served(tmp_path):
    (tmp_path / "data").mkdir()
    found = HttpFiles(tmp_path / "data")
    yield found
    found.close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DATARAX_RAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def large(seed):
    """Records of a file that takes a dozen requests to be counted."""
    return (np.random.default_rng((seed, i)).bytes(2000) for i in range(400))


def test_a_later_start_asks_each_file_once_for_its_version(tmp_path, served, cache):
    urls = []
    for number in range(3):
        path = write_file(tmp_path / "data" / f"{number}.array_record", large(number))
        urls.append(f"{served.url}/{path.name}")
    first = ArrayRecordReader.of(urls)
    requests, _ = served.count()
    assert requests > 9
    second = ArrayRecordReader.of(urls)
    assert served.count() == (3, 3)
    assert second.files == first.files
    assert second.fingerprint() == first.fingerprint()
    wanted = np.arange(0, 1200, 7)
    assert second.read(wanted) == first.read(wanted)
    for reader in (first, second):
        reader.close()


def test_with_a_cache_on_disk_the_first_batch_of_a_later_start_takes_two_round_trips(tmp_path, served, cache):
    urls = []
    for number in range(30):
        path = write_file(tmp_path / "data" / f"{number:02}.array_record", large(number))
        urls.append(f"{served.url}/{path.name}")
    remote = Remote(nbytes=0, cache_dir=str(tmp_path / "disk"), cache_nbytes=2**30)
    first = ArrayRecordReader.of(urls, remote=remote)
    first.read(np.arange(0, 12000, 400))  # of a few records the data are kept, and of all files where these lie
    first.close()
    served.count()
    second = ArrayRecordReader.of(urls, remote=remote)
    assert served.count() == (30, 30)  # at once, each for its version
    wanted = np.arange(200, 12000, 400)
    found = second.read(wanted)
    assert served.count()[0] == 30  # at once, each for its data
    assert found == ArrayRecordReader.of(sorted((tmp_path / "data").iterdir())).read(wanted)
    second.close()


def test_a_file_that_was_replaced_is_counted_anew(tmp_path, served, cache):
    paths = write_files(tmp_path / "data", [50, 60], group_size=4)
    urls = [f"{served.url}/{path.name}" for path in paths]
    ArrayRecordReader.of(urls)
    write_file(paths[0], map(record, range(1000, 1070)))
    served.count()
    for requests in (3, 2):
        reader = ArrayRecordReader.of(urls)
        assert served.count()[0] == requests
        assert [file.num_records for file in reader.files] == [70, 60]
        assert reader.fingerprint() == ArrayRecordReader.of(paths).fingerprint()
        assert reader.read(np.array([0, 69, 70])) == [record(1000), record(1069), record(50)]
        served.count()
        reader.close()


def test_no_secret_is_kept_and_one_object_by_several_urls_is_known_once(tmp_path, served, cache):
    (path,) = write_files(tmp_path / "data", [50])
    for signature in ("secret", "later-secret"):
        ArrayRecordReader.of(f"{served.url}/{path.name}?X-Amz-Signature={signature}")
    (kept,) = (cache / "index").iterdir()
    assert "secret" not in kept.read_text()
    assert list(json.loads(kept.read_text())["files"]) == [path.name]
    assert served.count() == (2, path.stat().st_size + 1)
    assert (cache / "index").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"num_records": 50', '"num_records": 51'),
        lambda text: json.dumps({"format": 0, "files": {}}),
        lambda text: "[]",
    ],
)
def test_what_is_damaged_is_as_nothing(tmp_path, served, cache, damage):
    (path,) = write_files(tmp_path / "data", [50])
    url = f"{served.url}/{path.name}"
    ArrayRecordReader.of(url)
    (kept,) = (cache / "index").iterdir()
    well = kept.read_text()
    assert damage(well) != well
    kept.write_text(damage(well))
    assert ArrayRecordReader.of(url).num_records == 50
    assert kept.read_text() == well


def test_the_place_is_the_users_cache_unless_another_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("DATARAX_RAY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "datarax_ray"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert str(cache_directory()) == "/home/me/.cache/datarax_ray"


def test_versions_that_may_be_of_two_files_are_not_kept(tmp_path, cache):
    bucket = fsspec.filesystem("memory")  # tells when a file was made
    (path,) = write_files(tmp_path, [50])
    bucket.pipe(f"/kept/{path.name}", path.read_bytes())
    try:
        assert ArrayRecordReader.of("memory://kept/").num_records == 50
    finally:
        bucket.rm("/kept", recursive=True)
    assert not (cache / "index").exists()


def test_a_later_start_from_a_bucket_asks_for_its_listing_alone(tmp_path, cache, monkeypatch):
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    files = s3fs.S3FileSystem(endpoint_url=url, key="key", secret="secret")
    monkeypatch.setattr(ranges, "filesystem_of", lambda _: files)
    monkeypatch.setattr("datarax_ray.read.files.paths.filesystem_of", lambda _: files)
    asked, s3 = [], clients.scheme_of("s3://")

    def counted(*args):
        asked.append(args)
        return s3.get(*args)

    monkeypatch.setitem(clients._SCHEMES, "s3", replace(s3, get=counted))
    try:
        files.makedirs("kept", exist_ok=True)
        paths = write_files(tmp_path, [300, 40, 70], group_size=8)
        for path in paths:
            files.put(str(path), f"kept/data/{path.name}")
        first = ArrayRecordReader.of("s3://kept/data/")
        assert len(asked) >= 3
        for where in ("s3://kept/data/", "s3://kept/data/*.array_record"):
            asked.clear()
            second = ArrayRecordReader.of(where)
            assert not asked
            assert second.files == first.files
        files.put(str(paths[2]), f"kept/data/{paths[0].name}")
        asked.clear()
        third = ArrayRecordReader.of("s3://kept/data/")
        assert third.num_records == 180
        assert {args[1] for args in asked} == {f"s3://kept/data/{paths[0].name}"}
    finally:
        server.stop()


@pytest.fixture
def later(monkeypatch):
    """The clock of a minute on: what was written just now has settled."""
    monkeypatch.setattr(contents, "time", SimpleNamespace(time=lambda: time.time() + 60))


def rewritten(path):
    """Other records of the same sizes in place, and the time of change put back."""
    before = path.stat()
    other = write_file(path.with_suffix(".other"), [record(900 + i) for i in range(3)])
    with open(path, "r+b") as file:
        file.write(other.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.unlink()
    assert path.stat().st_size == before.st_size


def test_a_file_that_was_changed_in_place_since_it_was_counted_is_refused(tmp_path, later):
    path = write_file(tmp_path / "a.array_record", [record(i) for i in range(3)])
    reader = ArrayRecordReader.of(path)
    assert reader.files[0].stamp
    rewritten(path)
    with pytest.raises(ValueError, match="held 3 records in .* and holds 3 others in"):
        reader.read(np.arange(3))
