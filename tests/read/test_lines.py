"""Lines behind a URL: appended, struck out, and complete after each call, in few parts."""

from functools import partial

import fsspec
import pytest

from datarax_ray.read import lines
from datarax_ray.read.errors import StorageError
from datarax_ray.read.formats.remote.ranges import Remote
from datarax_ray.read.lines import FileLines, UrlLines, lines_at, written_whole

URL = "memory://bucket/run/skipped.jsonl"


@pytest.fixture
def bucket():
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def numbered(first, stop):
    return [f"{number}\n" for number in range(first, stop)]


def test_what_is_added_is_there_for_others_and_stays_through_a_restart(bucket):
    one = UrlLines(URL)
    assert one.read() == []
    one.append(numbered(0, 3))
    assert UrlLines(URL).read() == numbered(0, 3)
    UrlLines(URL).append(numbered(3, 5))  # of a later process
    assert UrlLines(URL).read() == numbered(0, 5)
    assert bucket.find("/bucket") == ["/bucket/run/skipped.jsonl/part-00000.jsonl"]


def test_parts_are_not_written_again_once_they_are_long(bucket, monkeypatch):
    monkeypatch.setattr(lines, "_PART_NBYTES", 40)
    log = UrlLines(URL)
    for number in range(100):
        log.append([f"{number}\n"])
    assert log.read() == numbered(0, 100)
    parts = [bucket.cat_file(path) for path in bucket.find("/bucket")]
    assert len(parts) > 5
    assert max(map(len, parts)) < 50
    log.append(["\u00e9\n"])
    assert UrlLines(URL).read()[-1] == "\u00e9\n"


@pytest.mark.parametrize("part_nbytes", [10, 2**18])
def test_what_is_struck_out_is_gone_and_what_is_added_then_comes_last(bucket, monkeypatch, tmp_path, part_nbytes):
    monkeypatch.setattr(lines, "_PART_NBYTES", part_nbytes)
    far, near = UrlLines(URL), FileLines(tmp_path / "a" / "b.jsonl")
    for first in range(0, 60, 4):
        for log in (far, near):
            log.append(numbered(first, first + 4))
            log.keep(lambda line: int(line) % 3 > 0 or int(line) > 40)
        assert far.read() == (tmp_path / "a" / "b.jsonl").read_text().splitlines(keepends=True)
    far.keep(lambda line: False)
    far.append(["x\n"])
    assert UrlLines(URL).read() == ["x\n"]


def test_a_storage_that_fails_is_asked_again_and_at_last_an_error_that_adds_nothing(bucket, monkeypatch):
    monkeypatch.setattr(lines, "by_client", partial(lines.by_client, remote=Remote(waits_s=(0.0,) * 3)))
    log = UrlLines(URL)
    log.append(numbered(0, 2))
    pipe, left = type(bucket).pipe_file, [2]

    def failing(files, path, value, **options):
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionError("reset")
        return pipe(files, path, value, **options)

    monkeypatch.setattr(type(bucket), "pipe_file", failing)
    log.append(numbered(2, 3))
    assert log.read() == numbered(0, 3)
    left[0] = 99
    with pytest.raises(StorageError, match=r"memory://bucket/run/skipped.jsonl/part-00000.jsonl: writing it failed 4"):
        log.append(numbered(3, 4))
    left[0] = 0
    log.append(numbered(4, 5))
    assert UrlLines(URL).read() == [*numbered(0, 3), *numbered(4, 5)]


def test_a_path_is_a_file_and_a_url_of_this_machine_too(tmp_path):
    for path in (str(tmp_path / "a"), f"file://{tmp_path}/b"):
        lines_at(path).append(["x\n"])
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == "x\n"


def test_a_file_is_written_whole_or_is_as_it_was(tmp_path):
    path = tmp_path / "told.json"
    for text in ("1", "2"):
        with written_whole(path) as part:
            part.write_text(text)
            assert not path.exists() or path.read_text() == "1"
        assert path.read_text() == text
    with pytest.raises(UnicodeEncodeError), written_whole(path) as part:
        part.write_text("3\ud800", encoding="utf-8")
    assert path.read_text() == "2"
    assert list(tmp_path.iterdir()) == [path]
