"""Every way to name files, and every way to name them wrongly."""

import os
import shutil
from collections import namedtuple

import pytest

from datarax_ray.read.files.paths import FileSlice, find
from datarax_ray.sources import ParquetSource, ParquetSourceConfig
from tests.data import write_file

FileInstruction = namedtuple("FileInstruction", "filename skip take examples_in_shard")


@pytest.fixture
def folder(tmp_path):
    for name in (
        "b.array_record",
        "a.array_record-00000-of-00001",
        "c.arrayrecord",
        "d.riegeli",
        "readme.txt",
        "x[1].array_record",
    ):
        (tmp_path / name).touch()
    (tmp_path / "sub.array_record").mkdir()
    (tmp_path / ".hidden.array_record").touch()
    return tmp_path


def names(paths):
    return [os.path.basename(part.path) for part in find(paths)]


def test_a_path_names_its_file_as_text_or_as_a_path(folder):
    path = folder / "b.array_record"
    assert find(path) == find(str(path)) == (FileSlice(str(path)),)


def test_a_directory_holds_its_array_record_files_in_sorted_order(folder):
    assert names(folder) == [
        "a.array_record-00000-of-00001",
        "b.array_record",
        "c.arrayrecord",
        "d.riegeli",
        "x[1].array_record",
    ]


def test_a_glob_holds_every_file_it_matches_in_sorted_order(folder):
    assert names(f"{folder}/*.array_record*") == [
        "a.array_record-00000-of-00001",
        "b.array_record",
        "x[1].array_record",
    ]
    assert names(f"{folder}/[bc].*") == ["b.array_record", "c.arrayrecord"]
    assert names(folder / "read*") == ["readme.txt"]
    assert names(f"{folder}/**/b.*") == ["b.array_record"]


def test_a_list_keeps_its_order_and_its_repetitions(folder):
    paths = [folder / "d.riegeli", f"{folder}/[bc].*", folder / "b.array_record"]
    wanted = ["d.riegeli", "b.array_record", "c.arrayrecord", "b.array_record"]
    assert names(paths) == names(tuple(paths)) == names(iter(paths)) == names([paths]) == wanted


@pytest.mark.parametrize(
    ("text", "skip", "take"), [("[2:5]", 2, 3), ("[:5]", 0, 5), ("[2:]", 2, None), ("[:]", 0, None), ("[3:3]", 3, 0)]
)
def test_a_slice_takes_records_of_one_file(folder, text, skip, take):
    path = f"{folder}/b.array_record"
    assert find(path + text) == (FileSlice(path, skip, take),)
    bracketed = f"{folder}/x[1].array_record"
    assert find(bracketed + text) == (FileSlice(bracketed, skip, take),)


def test_a_file_whose_name_has_brackets_is_itself(folder):
    (folder / "b.array_record[0:1]").touch()
    for name in ("x[1].array_record", "b.array_record[0:1]"):
        assert find(folder / name) == (FileSlice(str(folder / name)),)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none-*.array_record", r"none-\*\.array_record: no file matches this glob on local"),
        ("none.array_record", r"none\.array_record: no such file or directory on local"),
        ("none.array_record[0:5]", r"none\.array_record\[0:5\]: no such file as .*none\.array_record"),
        ("*.array_record[0:5]", "no such file as"),
        ("sub*", "no file matches this glob"),
        ("sub.array_record", "none of the 0 files in this directory is named .*\\(it is empty\\)"),
        ("b.array_record[1:2:3]", "no file matches this glob"),
    ],
)
def test_what_names_no_file_is_an_error_with_the_path_and_a_remedy(folder, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        find(folder / name)


@pytest.mark.parametrize(
    "url", ["http://x/a.array_record", "https://x/y/part?X-Amz-Signature=1", "memory://x/a.riegeli"]
)
def test_a_url_of_a_file_is_taken_as_it_is_and_nobody_asked(url):
    assert find([url, f"{url}[2:3]"]) == (FileSlice(url), FileSlice(url, 2, 1))
    assert find(FileInstruction(url, 0, 1, 1)) == (FileSlice(url, 0, 1, 1),)


def test_a_file_url_is_a_path(folder):
    assert find(f"file://{folder}/*") == find(f"{folder}/*")
    assert find(f"file://{folder}") == find(folder)


@pytest.mark.parametrize("kind", [set, frozenset])
def test_paths_without_an_order_are_refused(folder, kind):
    paths = kind({str(folder / "b.array_record"), str(folder / "d.riegeli")})
    with pytest.raises(TypeError, match=f"paths is a {kind.__name__}, which has no order; give a list"):
        find(paths)
    with pytest.raises(TypeError, match=f"paths is a {kind.__name__}, which has no order"):
        ParquetSource(ParquetSourceConfig(), paths)


def test_impossible_slices_are_refused(folder):
    path = str(folder / "b.array_record")
    with pytest.raises(ValueError, match="the slice ends before it starts"):
        find(f"{path}[5:2]")
    for skip, take in ((-1, 3), (0, -2)):
        with pytest.raises(ValueError, match=f"must not be negative, got {skip} and {take}"):
            find(FileInstruction(path, skip, take, 10))


@pytest.mark.parametrize("named", ["{}", "*"])
def test_a_name_that_is_not_utf_8_is_an_error_that_shows_it(tmp_path, named):
    file = os.path.join(os.fsencode(tmp_path), b"\xe9.array_record")
    shutil.copy(write_file(tmp_path / "a.array_record", [b"a"]), file)
    with pytest.raises(ValueError, match=r"udce9.*a name that is not UTF-8; rename it"):
        find(named.format(os.fsdecode(file)) if named != "*" else f"{tmp_path}/*.array_record")


def test_a_broken_link_is_not_left_out_in_silence(folder):
    (folder / "e.array_record").symlink_to(folder / "gone")
    for path in (folder, f"{folder}/e*", folder / "e.array_record"):
        with pytest.raises(FileNotFoundError, match="e.array_record is a link to .*gone, which is not there"):
            find(path)
