"""Folders that convert and materialize wrote, read by the sources of their formats: all of them, or an error."""

import json
import shutil

import pytest

from datarax_ray import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    MaterializedSource,
    ParquetSource,
    ParquetSourceConfig,
    load,
    materialize,
)
from datarax_ray.write.manifest import FINISHED, UNFINISHED
from tests.data import in_memory
from tests.write.test_conversion import convert

KINDS = {
    "array_record": lambda paths: ArrayRecordSourceModule(ArrayRecordSourceConfig(num_epochs=1), paths),
    "parquet": lambda paths: ParquetSource(ParquetSourceConfig(num_epochs=1), paths),
}


@pytest.fixture(params=KINDS)
def written(request, tmp_path):
    """A folder of four files of one size, and what reads it."""
    rows = [{"x": f"{number:05}"} for number in range(4000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert(str(tmp_path / "a.jsonl"), tmp_path / "to", to=request.param, num_shards=4)
    return tmp_path / "to", KINDS[request.param]


def shards(folder):
    return sorted(folder.glob("data-*"))


def named(folder):
    """How the files may be named."""
    return [folder, f"{folder}/data-*", [*map(str, shards(folder))]]


def refused(folder, read, said):
    for paths in named(folder):
        for make in (read, load):
            with pytest.raises(ValueError, match=said):
                make(paths)


def test_a_file_of_another_run_in_the_place_of_another_or_that_is_gone_is_named(written):
    folder, read = written
    first, second, *_ = shards(folder)
    shutil.copy(first, more := first.with_stem("data-00004-of-00005"))
    refused(folder, read, r"data-00004-of-00005\.\w+ is none of the 4 files that were written there; take it away")
    more.unlink()
    shutil.copy(first, second)
    refused(folder, read, r"data-00001-of-00004\.\w+ is not the file that was written: it has .* bytes, and .* were")
    second.unlink()
    said = f"1 of the 4 files that were written there are gone, data-00001-of-00004.*, .*remove {FINISHED}"
    refused(folder, read, said)
    (folder / FINISHED).unlink()
    assert len(read(shards(folder))) == 3000


def test_so_it_is_behind_a_url(written, served):
    folder, read = written
    urls = [f"{served.url}/to/{path.name}" for path in shards(folder)]
    assert [len(read(each)) for each in (urls, urls[1:3])] == [4000, 2000]
    first = shards(folder)[0]
    shutil.copy(first, more := first.with_stem("data-00004-of-00005"))
    with pytest.raises(ValueError, match=r"data-00004-of-00005\.\w+ is none of the 4 files"):
        read([*urls, f"{served.url}/to/{more.name}"])
    more.unlink()
    if first.suffix == ".array_record":  # of Parquet behind URLs sizes alone are compared
        shutil.copy(shards(folder)[1], first)
        with pytest.raises(ValueError, match=r"data-00000-of-00004\.\w+ is not the file that was written"):
            read(urls)
    first.unlink()
    with pytest.raises(ValueError, match=r"1 of the 4 files that were written there are gone, data-00000-of-00004"):
        read(urls[1:])
    (folder / FINISHED).rename(folder / UNFINISHED)
    with pytest.raises(ValueError, match="was not written to its end"):
        read(urls[1:])


def test_some_of_the_files_and_others_beside_them_are_read(written):
    folder, read = written
    assert [len(read(paths)) for paths in (folder, f"{folder}/data-0000[12]*", shards(folder)[3])] == [4000, 2000, 1000]
    shutil.copy(shards(folder)[0], (more := shards(folder)[0].with_stem("more")))
    assert len(read([shards(folder)[0], more])) == 2000


def test_notes_of_others_are_no_matter(written):
    folder, read = written
    for text in ("", "[]", '{"shards": 3}', '{"shards": [{"name": "a"}]}', '{"shards": ["a"]}', "\xff"):
        (folder / FINISHED).write_text(text, "latin1")
        assert len(read(folder)) == 4000


@pytest.mark.parametrize("to", KINDS)
def test_a_folder_that_was_not_written_to_its_end_is_refused(to, tmp_path):
    rows = ['{"x": 1}'] * 300 + ["{"] + ['{"x": 1}'] * 99
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    with pytest.raises(ValueError, match=r"a\.jsonl\[300\]"):
        convert(str(tmp_path / "a.jsonl"), tmp_path / "to", to=to, num_shards=4)
    assert (tmp_path / "to" / UNFINISHED).exists()
    refused(tmp_path / "to", KINDS[to], f"to was not written to its end: run the same command, .*remove {UNFINISHED}")
    convert(str(tmp_path / "a.jsonl"), tmp_path / "to", to=to, num_shards=4, on_error="skip", overwrite=True)
    assert len(KINDS[to](tmp_path / "to")) == 399


def double(element):
    return {"x": element["x"] * 2}


def test_a_materialized_folder_is_read_whole_or_not_by_whatever_reads_it(tmp_path):
    source = in_memory([{"x": i} for i in range(100)], transforms=[double])
    materialize(source, tmp_path, num_shards=4)
    assert [int(element["x"]) for element in load(tmp_path)] == list(range(0, 200, 2))
    said = (tmp_path / FINISHED).read_text()
    (tmp_path / FINISHED).rename(tmp_path / UNFINISHED)
    with pytest.raises(ValueError, match="was not written to its end"):
        load(tmp_path)
    (tmp_path / UNFINISHED).unlink()
    (tmp_path / FINISHED).write_text(said)
    shards(tmp_path)[2].unlink()
    with pytest.raises(ValueError, match="1 of the 4 files that were written there are gone"):
        load(tmp_path)
    told = json.loads(said)
    (tmp_path / FINISHED).write_text(json.dumps(told | {"shards": told["shards"][:2]}))
    with pytest.raises(ValueError, match=f"{FINISHED} is damaged"):
        MaterializedSource(source, tmp_path)
