"""Sharded files of which some are missing, or that are of two sets: known before the first batch, for each format.

Reported of Grain, tf.data and datasets: a copy that broke off left five of six shards, and training began over them.
"""

import json
import logging
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, load
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.files.shards import check_shards
from datarax_ray.sources import MDSSource, MDSSourceConfig, TFDSSource, TFDSSourceConfig, from_hf
from tests.data import write_file
from tests.data_as_it_is.streams import plain
from tests.http_files import HttpFiles
from tests.mds import write_mds
from tests.tars import write_tar

ROWS = 4  # in each shard
TFDS = Path(__file__).parents[1] / "sources/tfds"


def array_record(path, ids):
    write_file(path, (json.dumps({"id": i}).encode() for i in ids))


def parquet(path, ids):
    pq.write_table(pa.table({"id": ids}), path)


def csv(path, ids):
    path.write_text("id\n" + "".join(f"{i}\n" for i in ids))


def json_lines(path, ids):
    path.write_text("".join(f'{{"id": {i}}}\n' for i in ids))


def tar(path, ids):
    write_tar(path, [(f"{i:04d}.txt", b"x") for i in ids])


FORMATS = {
    "ArrayRecord": (array_record, "x.array_record-{:05d}-of-{:05d}"),
    "Parquet": (parquet, "x-{:05d}-of-{:05d}.parquet"),
    "Parquet of the hub": (parquet, "train-{:05d}-of-{:05d}-0123456789abcdef.parquet"),
    "CSV": (csv, "x_{:03d}_of_{:03d}.csv"),
    "JSON lines": (json_lines, "x-{:05d}-of-{:05d}.jsonl"),
    "tar": (tar, "x-{:06d}-of-{:06d}.tar"),
}


@pytest.fixture(params=FORMATS)
def shards(request, tmp_path):
    """Three shards of one format, of which the second is not there."""
    write, name = FORMATS[request.param]
    paths = [tmp_path / name.format(index, 3) for index in range(3)]
    for index, path in enumerate(paths):
        write(path, range(index * ROWS, (index + 1) * ROWS))
    paths[1].rename(tmp_path / "away")
    return paths


def num_rows(paths):
    return len(load(paths))


def test_a_missing_shard_is_named_before_the_first_batch(shards, caplog):
    first, missing, last = shards
    folder, suffix = first.parent, first.suffix if "-of-" not in first.suffix else ""
    for paths in (folder, f"{folder}/*_*" if "_" in first.name else f"{folder}/*-*{suffix}"):
        said = f"1 of the 3 shards is missing: {missing.name}. Bring back what is missing"
        with pytest.raises(ValueError, match=said):
            load(paths)
    assert num_rows([first, last]) == 2 * ROWS  # named one by one
    assert num_rows(str(first).replace("0-of", "[02]-of").replace("0_of", "[02]_of")) == 2 * ROWS  # some are meant
    read = type(load([first]))
    with caplog.at_level(logging.WARNING):
        without = read(read.config_type(num_epochs=1, missing_shards="warn"), folder)
    assert len(without) == 2 * ROWS
    (line,) = [line for line in caplog.messages if "missing_shards=" in line]
    assert (
        line == f"{folder}: 1 of the 3 shards is missing: {missing.name}. What is there is read (missing_shards='warn')"
    )
    (folder / "away").rename(missing)
    assert num_rows(folder) == 3 * ROWS
    with pytest.raises(DriftError, match="files"):  # that were not there when the state was taken
        load(folder).set_state(without.get_state())


def test_shards_that_an_index_names_and_that_are_missing(tmp_path, caplog):
    folder = write_mds(tmp_path / "mds", {"id": "int"}, [{"id": i} for i in range(12)], shard_size=4)
    (folder / "shard.00001.mds").unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00001\.mds") as raised:
        load(folder)
    assert "missing_shards='warn'" in raised.value.__notes__[0]
    config = MDSSourceConfig(num_epochs=1, missing_shards="warn")
    assert [each["id"] for each in MDSSource(config, folder)] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert "index.json names 3 shards, and 1 of them are missing. What is there is read" in caplog.text
    for path in folder.glob("*.mds"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="none of the shards that .* names is there"):
        MDSSource(config, folder)


def test_an_index_that_names_a_file_twice_is_refused(tmp_path):
    """Reported of MosaicML: indexes merged without the folders of their shards."""
    folder = write_mds(tmp_path / "mds", {"id": "int"}, [{"id": i} for i in range(8)], shard_size=4)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][1]["raw_data"]["basename"] = index["shards"][0]["raw_data"]["basename"]
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"it names shard\.00000\.mds more than once.*Give the folders as a list"):
        load(folder)


def test_a_split_of_tfds_goes_without_shards_where_that_is_wanted(tmp_path, caplog):
    root = tmp_path / "data"
    shutil.copytree(TFDS, root)
    served = HttpFiles(root)
    whole = TFDSSource(TFDSSourceConfig(num_epochs=1), "small", "train", data_dir=root)
    shards = sorted(Path(whole.directory).glob("*train*-of-*"))
    elements = plain(list(whole))
    config = TFDSSourceConfig(num_epochs=1, missing_shards="warn")
    gone = int(json.loads((Path(whole.directory) / "dataset_info.json").read_text())["splits"][0]["shardLengths"][0])
    shards[0].unlink()
    said = f"1 of the {len(shards)} shards are missing: {shards[0].name}"
    with pytest.raises(ValueError, match=f"{said}. Bring back what is missing; .*missing_shards='warn'"):
        TFDSSource(TFDSSourceConfig(num_epochs=1), "small", "train", data_dir=root)
    for directory in (whole.directory, f"{served.url}/{Path(whole.directory).relative_to(root)}"):
        assert plain(list(TFDSSource(config, directory, "train"))) == elements[gone:]
    served.close()
    assert said in caplog.text
    for path in shards[1:]:
        path.unlink()
    with pytest.raises(FileNotFoundError, match="none of the shards of this split"):
        TFDSSource(config, "small", "train", data_dir=root)


def test_shards_of_hugging_face_data_files_that_are_missing(tmp_path, caplog):
    folder, cache = tmp_path / "files", {"cache_dir": str(tmp_path / "cache")}
    folder.mkdir()
    for index in (0, 2):
        parquet(folder / f"train-{index:05d}-of-00003.parquet", range(index, index + 1))
    said = r"1 of the 3 shards is missing: train-00001-of-00003\.parquet"

    def ids(name, split=None, **settings):
        return [int(row["id"]) for row in from_hf(name, split, download_kwargs=cache, **settings)]

    for streaming in (True, False):
        for files in (f"{folder}/*.parquet", {"train": [f"{folder}/train-*-of-00003.parquet"]}):
            with pytest.raises(ValueError, match=f"{said}. Bring back what is missing; .* missing_shards='warn'"):
                ids("parquet", "train", data_files=files, streaming=streaming)
            assert ids("parquet", "train", data_files=files, streaming=streaming, missing_shards="warn") == [0, 2]
        with pytest.raises(ValueError, match=said):
            ids(str(folder), "train", streaming=streaming)
        for some in (sorted(map(str, folder.iterdir())), f"{folder}/train-0000[02]-*"):  # named one by one; some meant
            assert ids("parquet", "train", data_files=some, streaming=streaming) == [0, 2]
        assert ids(str(folder), "train", streaming=streaming, missing_shards="warn") == [0, 2]
    assert re.search(f"{said}. What is there is read", caplog.text)
    with pytest.raises(ValueError, match="missing_shards is 'error' or 'warn', got 'no'"):
        ids(str(folder), "train", missing_shards="no")


def test_shards_of_two_sets_are_not_read_as_one(tmp_path):
    for total in (2, 3):
        for index in range(total):
            parquet(tmp_path / f"x-{index:05d}-of-{total:05d}.parquet", range(ROWS))
    with pytest.raises(ValueError, match=r"sets of 2 and 3 shards .*Give a glob of one set, as \*-of-00003\.parquet"):
        load(tmp_path)
    assert num_rows(f"{tmp_path}/*-of-00003.parquet") == 3 * ROWS


def test_a_gap_in_numbers_without_a_total_is_a_warning(tmp_path, caplog):
    for index in (0, 1, 3):
        tar(tmp_path / f"{index:05d}.tar", range(ROWS))
    with caplog.at_level(logging.WARNING):
        assert num_rows(tmp_path) == 3 * ROWS
    (line,) = [line for line in caplog.messages if "numbered" in line]
    assert "numbered up to 00003.tar, and 1 of the numbers are missing, 00002.tar the first" in line


@pytest.mark.parametrize(
    "names",
    [
        ["20240101.csv", "20240103.csv"],  # dates
        ["part-00000-a1.parquet", "part-00002-b2.parquet"],  # of Spark, each with its own id
        ["model-00001-of-00002.bin", "model-00002-of-00002.bin"],  # counted from 1
        ["train-00000-of-00001.parquet", "test-00000-of-00002.parquet", "test-00001-of-00002.parquet"],
        ["00000.tar", "00001.tar", "00002.tar"],
    ],
)
def test_whole_sets_and_other_numbers_say_nothing(names, caplog):
    check_shards("a", [f"a/{name}" for name in names])
    assert not caplog.messages


@pytest.mark.parametrize("suffix", ["", ".array_record"])
def test_a_set_is_named_by_its_size(suffix, tmp_path, served):
    for index in range(3):
        array_record(tmp_path / f"x.array_record-{index:05d}-of-00003{suffix}", range(ROWS))
    for base in (str(tmp_path), served.url):
        config = ArrayRecordSourceConfig(num_epochs=1)
        assert len(ArrayRecordSourceModule(config, f"{base}/x.array_record@3{suffix}")) == 3 * ROWS
        assert num_rows(f"{base}/x.array_record@3{suffix}") == 3 * ROWS
    (tmp_path / f"x.array_record-00001-of-00003{suffix}").unlink()
    for base, where in ((str(tmp_path), "local"), (served.url, "http")):
        with pytest.raises(ValueError, match=f"1 of these shards are missing on {where}, .*00001-of-00003.* the first"):
            load(f"{base}/x.array_record@3{suffix}")
