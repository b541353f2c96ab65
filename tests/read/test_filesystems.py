"""Paths, globs, directories and URLs on any filesystem, against files laid out by hand."""

import os
import re
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from pyarrow import fs
from pyarrow import parquet as pq

from datarax_ray.read.files.filesystems import find_on
from datarax_ray.read.files.paths import find as find_array_record
from datarax_ray.sources import CSVSource, CSVSourceConfig, ParquetSource, ParquetSourceConfig

SUFFIXES = (".parquet", ".pq")


@pytest.fixture
def directory(tmp_path):
    for name in ("b.parquet", "a.parquet", "sub/c.pq", "sub/_tmp.parquet", "_logs/x.parquet", ".h.parquet", "note.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


@pytest.fixture
def memory():
    found = fsspec.filesystem("memory")
    for name in ("/bucket/b.parquet", "/bucket/a.parquet", "/bucket/sub/c.pq"):
        found.pipe(name, b"x")
    yield found
    found.rm("/bucket", recursive=True)


def names(found):
    return [Path(path).name for path in found[1]]


def test_a_directory_gives_its_data_files_sorted_also_below_it(directory):
    assert names(find_on(directory, None, SUFFIXES)) == ["a.parquet", "b.parquet", "c.pq"]


def test_a_glob_gives_every_file_that_it_matches_sorted(directory):
    assert names(find_on(f"{directory}/*.p*", None, SUFFIXES)) == ["a.parquet", "b.parquet"]
    assert names(find_on(f"{directory}/sub/*", None, SUFFIXES)) == ["_tmp.parquet", "c.pq"]


@pytest.mark.parametrize("filesystem", [None, fsspec.filesystem("file")])
def test_a_glob_goes_into_no_hidden_directory_that_it_does_not_name(directory, filesystem):
    (directory / ".cache").mkdir()
    (directory / ".cache/y.parquet").write_bytes(b"x")
    found = find_on(f"{directory}/**/*.parquet", filesystem, SUFFIXES)
    assert names(found) == ["x.parquet", "a.parquet", "b.parquet", "_tmp.parquet"]
    assert names(find_on(f"{directory}/.c*/*.parquet", filesystem, SUFFIXES)) == ["y.parquet"]
    assert names(find_on(f"{directory}/.*.parquet", filesystem, SUFFIXES)) == [".h.parquet"]


@pytest.mark.parametrize("find", [lambda paths: find_on(paths, None, SUFFIXES)[1], find_array_record])
@pytest.mark.parametrize("pattern", ["", "/**/*.pq*"])
def test_a_link_to_a_directory_above_it_is_refused_and_one_to_another_is_said(tmp_path, caplog, find, pattern):
    """pyarrow and Python's glob follow both, the first one forty times."""
    if find is find_array_record and not pattern:
        pytest.skip("it searches no directories below one")
    (tmp_path / "2020").mkdir()
    (tmp_path / "2020/a.pq.array_record").touch()
    (tmp_path / "2020/a.pq").touch()
    (tmp_path / "latest").symlink_to("2020")
    assert len(find(f"{tmp_path}{pattern}")) == (4 if pattern else 2)
    assert f"{tmp_path}/latest/a.pq is the same file as {tmp_path}/2020/a.pq" in caplog.text.replace(
        ".array_record", ""
    )
    (tmp_path / "latest").unlink()
    caplog.clear()
    find(f"{tmp_path}{pattern}")
    assert not caplog.text
    (tmp_path / "2020/above").symlink_to("..")
    with pytest.raises(ValueError, match=r"2020 is .*2020, by a link to a directory that it is in"):
        find(f"{tmp_path}{pattern}")


@pytest.mark.parametrize("pattern", ["", "/*.parquet", "/**/*.parquet", "/b.parquet"])
def test_a_link_to_what_is_not_there_is_an_error_with_both_names(tmp_path, pattern):
    """pyarrow, and so fsspec's glob on it, leaves them out."""
    (tmp_path / "a.parquet").write_bytes(b"x")
    (tmp_path / "b.parquet").symlink_to("c")
    (tmp_path / "c").symlink_to("/mnt/missing/b")
    with pytest.raises(FileNotFoundError, match=r"/b.parquet is a link to /mnt/missing/b, which is not there: a mount"):
        find_on(f"{tmp_path}{pattern}", None, SUFFIXES)


@pytest.mark.parametrize("find", [lambda paths: find_on(paths, None, [".array_record"])[1], find_array_record])
def test_one_file_twice_is_read_twice_and_said_once(tmp_path, caplog, find):
    for name in ("a.array_record", "b.array_record"):
        (tmp_path / name).write_text(name)
    (tmp_path / "c.array_record").symlink_to("a.array_record")
    (tmp_path / "d.array_record").hardlink_to(tmp_path / "a.array_record")
    one, two = tmp_path / "a.array_record", tmp_path / "b.array_record"
    for paths, said in (
        ([one, two], None),
        (tmp_path, f"{tmp_path}/c.array_record is the same file as {one}, .*: 2 of the 4 files are there already"),
        ([one, two, one], f"{one} is named twice, .*: 1 of the 3 files"),
        ([one, f"{tmp_path}/../{tmp_path.name}/a.array_record"], "1 of the 2 files"),
        ([two, f"{tmp_path}/*.array_record"], "3 of the 5 files"),
    ):
        caplog.clear()
        find(paths)
        assert len(caplog.records) == (said is not None)
        assert re.search(said or "", caplog.text)


def test_directories_that_a_glob_matches_are_said_to_be_left_out(directory, caplog):
    (directory / "z.parquet").mkdir()
    assert names(find_on(f"{directory}/*.parquet", None, SUFFIXES)) == ["a.parquet", "b.parquet"]
    assert f"skipped 1 directories, {directory}/z.parquet the first" in caplog.text
    caplog.clear()
    assert names(find_on(f"{directory}/**/c*", None, SUFFIXES)) == ["c.pq"]
    assert names(find_on(directory, None, SUFFIXES)) == ["a.parquet", "b.parquet", "c.pq"]
    assert caplog.text == ""


def test_paths_are_made_absolute_and_keep_their_order_and_repetitions(directory, memory, monkeypatch):
    monkeypatch.chdir(directory)
    found = find_on(["b.parquet", directory / "note.txt", directory / "b.parquet"], None, SUFFIXES)[1]
    assert found == tuple(f"{directory}/{name}" for name in ("b.parquet", "note.txt", "b.parquet"))
    inside = fs.SubTreeFileSystem(str(directory), fs.LocalFileSystem())
    assert find_on("sub", inside, SUFFIXES) == (inside, ("sub/c.pq",))
    assert names(find_on("/bucket/*.parquet", memory, SUFFIXES)) == ["a.parquet", "b.parquet"]


def test_urls_of_pyarrow_and_of_fsspec_name_their_filesystem(directory, memory):
    local, found = find_on(f"file://{directory}/*.parquet", None, SUFFIXES)
    assert isinstance(local, fs.LocalFileSystem)
    assert [Path(path).name for path in found] == ["a.parquet", "b.parquet"]
    for url in ("memory://bucket", "memory://bucket/"):
        assert names(find_on(url, None, SUFFIXES)) == ["a.parquet", "b.parquet", "c.pq"]
    assert names(find_on("memory://bucket/*.parquet", None, SUFFIXES)) == ["a.parquet", "b.parquet"]
    assert names(find_on(["memory://bucket/sub/c.pq"], None, SUFFIXES)) == ["c.pq"]


@pytest.mark.parametrize(
    ("paths", "error", "message"),
    [
        ([], ValueError, "paths is empty"),
        (3, TypeError, "a path is a str or os.PathLike, or an iterable of these, got 3"),
        (["a", 3], TypeError, "got 3"),
        ("nowhere.parquet", FileNotFoundError, "nowhere.parquet: no such file or directory on local"),
        ("*.nothing", FileNotFoundError, r"\*.nothing: no file matches this glob on local"),
        ("a.parquet[01]", FileNotFoundError, r"no file matches this glob on local"),
        ("memory://nowhere", FileNotFoundError, "nowhere: no such file or directory on memory$"),
        (["a.parquet", "memory://b"], ValueError, r"on 2 filesystems \(memory://b, this machine\)"),
    ],
)
def test_what_names_nothing_is_refused(directory, monkeypatch, paths, error, message):
    monkeypatch.chdir(directory)
    with pytest.raises(error, match=message):
        find_on(paths, None, SUFFIXES)


def test_a_directory_without_data_says_what_is_in_it(tmp_path):
    (tmp_path / "note.txt").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"none of the 1 files .* is named \*.parquet, \*.pq \(.*note.txt\)"):
        find_on(tmp_path, None, SUFFIXES)


def csv(path):
    path.write_text("x\n1\n2\n")
    return CSVSource(CSVSourceConfig(), path)


def parquet(path):
    pq.write_table(pa.table({"x": [1, 2]}), path)
    return ParquetSource(ParquetSourceConfig(), path)


@pytest.mark.parametrize("source_of", [csv, parquet])
@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path, source_of):
    source = source_of(tmp_path / "a")
    (tmp_path / "a").unlink()
    os.mkfifo(tmp_path / "a")
    said = r"a was a file when the source was made, and is none now \(a pipe, or a device"
    with pytest.raises(ValueError, match=said):
        source.get_batch(2)


@pytest.mark.parametrize(
    ("names", "given", "said"),
    [
        (["train/a", "train/b", "test/a"], "", r"1 of test, 2 of train\), and all are read as one.* say so: {}/test$"),
        (["train/a", "test/a"], "**/*", "1 of test, 1 of train.* say so: {}/test$"),
        (["x-train-0", "x-validation-0", "x-test-0"], "*", r"test, 1 of train, 1 of validation.* say so: {}/x-test\*$"),
        (["train-0", "test-0"], "t*", r"1 of test, 1 of train.* say so: {}/test\*$"),
        (["Train_0", "dev_0"], "", r"1 of train, 1 of validation.* say so: {}/Train\*$"),
        (["train/a", "train/test_b"], "", None),  # those of one split, of which one has two names
        (["train/a", "more/b"], "", None),
        (["latest/a", "trains/b", "contest/c"], "", None),
        (["train/a", "test/a"], "train/*", None),
        (["train/a", "test/a"], "train", None),
    ],
)
def test_several_splits_under_one_path_are_told(tmp_path, caplog, names, given, said):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.array_record").touch()
    glob_or_folder = tmp_path / given / "**/*" if given in ("", "train") else tmp_path / given
    for looks_up in (
        lambda: find_on(tmp_path / given, None, [".array_record"])[1],
        lambda: [each.path for each in find_array_record(glob_or_folder)],
    ):
        caplog.clear()
        assert looks_up()
        assert len(caplog.records) == (said is not None)
        assert said is None or re.search(said.format(re.escape(str(tmp_path))), caplog.messages[0])
    caplog.clear()
    find_on([tmp_path / f"{name}.array_record" for name in names], None, [".array_record"])  # each is meant
    assert not caplog.text
