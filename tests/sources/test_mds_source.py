"""MDSSource: the samples that MosaicML's writer was given, and everything that is wrong with a shard. What all sources
promise: test_every_source.py.
"""

import json
import os
import pickle
import shutil
from decimal import Decimal
from pathlib import Path

import fsspec
import numpy as np
import pytest

from datarax_ray import DecodeImage, MDSSource, MDSSourceConfig, Pipeline, load
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.mds.reader import MDSReader
from tests import oracle
from tests.mds import PACK, write_mds

BY_MOSAIC = Path(__file__).parent / "mds"
COLUMNS = {"x": "int", "s": "str", "f": "float32", "a": "ndarray", "j": "json"}
SAMPLES = [
    {"x": 7 * i - 9, "s": "é" * (i % 4), "f": i / 4, "a": [i] * (1 + i % 3), "j": {"k": [i, None]}} for i in range(33)
]


def make(paths, **config):
    columns = config.pop("columns", None)
    return MDSSource(MDSSourceConfig(**{"num_epochs": 1} | config), paths, columns=columns)


def plain(samples):
    return [{name: np.asarray(v).tolist() if name in "xfa" else v for name, v in each.items()} for each in samples]


@pytest.mark.parametrize("compression", [None, *PACK, "gz:9"])
def test_the_samples_of_several_shards_come_in_order_and_shuffled(tmp_path, compression):
    folder = write_mds(tmp_path / "a", COLUMNS, SAMPLES, compression=compression)
    source = make(folder)
    assert plain(source) == SAMPLES
    assert len(source) == 33
    shuffled = make(folder, shuffle=True, seed=5, num_epochs=2, shuffle_block_size=1 if compression else None)
    assert plain(shuffled) == [SAMPLES[index] for epoch in range(2) for index in oracle.order(33, epoch, 5)]


def test_packed_shards_come_in_windows_and_each_is_unpacked_once_an_epoch(tmp_path):
    folder = write_mds(tmp_path / "a", {"x": "int"}, SAMPLES[:30], 5, compression="zstd")
    source = make(folder, shuffle=True, shuffle_window=2, num_epochs=3)
    reader = source.describe().reader
    found = list(source)
    for epoch in range(3):
        its = [int(each["x"] + 9) // 7 for each in found[30 * epoch : 30 * epoch + 30]]
        assert sorted(its) == list(range(30)) != its
        shards = [number // 5 for number in its]
        assert [len(set(shards[i : i + 10])) for i in (0, 10, 20)] == [2, 2, 2]  # windows of two shards
    assert reader._unpacked.counts()["num_decoded"] <= 3 * 6


def test_random_reads_give_each_sample_of_any_list(tmp_path):
    write_mds(tmp_path / "packed", COLUMNS, SAMPLES[:11], 4, compression="gz")
    write_mds(tmp_path / "raw", COLUMNS, SAMPLES[11:], 4)
    reader = MDSReader.of([tmp_path / "packed", tmp_path / "raw" / "index.json"])
    rng = np.random.default_rng(0)
    for _ in range(50):
        wanted = rng.integers(0, 33, rng.integers(1, 9))
        assert plain(reader.read(wanted)) == [SAMPLES[index] for index in wanted.tolist()]
    assert plain(pickle.loads(pickle.dumps(reader)).read(np.array([32, 0, 32]))) == [SAMPLES[i] for i in (32, 0, 32)]
    first, again = reader.read(np.array([20, 20]))
    first["a"][0] = -1  # each is its reader's own
    assert again["a"][0] == 20
    assert reader.locate(5) == f"{tmp_path}/packed/shard.00001.mds.gz[1]"


def test_columns_can_be_left_out(tmp_path):
    folder = write_mds(tmp_path / "a", COLUMNS, SAMPLES)
    assert list(make(folder, columns=["s"])) == [{"s": each["s"]} for each in SAMPLES]
    with pytest.raises(ValueError, match=r"columns names \['ss'\], .*Did you mean 's'\?"):
        make(folder, columns=["ss"])


def test_load_knows_a_folder_by_its_index_and_shards(tmp_path):
    for name, compression in (("a", None), ("b", "zstd")):
        folder = write_mds(tmp_path / name, COLUMNS, SAMPLES, compression=compression)
        assert plain(load(folder)) == plain(load(folder / "index.json")) == SAMPLES
    with pytest.raises(ValueError, match=r"shard\.00000\.mds is a shard, .* name its folder"):
        load(tmp_path / "a" / "shard.00000.mds")
    with pytest.raises(FileNotFoundError, match="of a folder of splits, name one: DIR/train"):
        load(tmp_path)
    assert len(load(tmp_path / "*" / "index.json")) == 66


def test_shards_behind_urls_are_read_alike(tmp_path, served):
    folder = write_mds(tmp_path / "a", COLUMNS, SAMPLES)
    for path in folder.iterdir():
        fsspec.filesystem("memory").pipe_file(f"/mds/{path.name}", path.read_bytes())
    for source in (load("memory://mds"), load(f"{served.url}/a/index.json"), make(f"{served.url}/a")):
        assert plain(source) == SAMPLES
        assert source.describe().settings() == make(folder).describe().settings()
        source.close()


@pytest.mark.parametrize("kind", ["raw", "zstd", "gz"])
def test_what_its_own_writer_wrote_is_read(kind):
    """By mosaicml-streaming 0.13; see mds/README.md for what it was given."""
    reader = MDSReader.of(BY_MOSAIC / kind, pickles_as_bytes=True)
    assert (reader.num_records, reader.traits.keeps_groups) == (5, kind != "raw")
    for i, found in enumerate(reader.read(np.arange(5))):
        pictures = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) + 10 * i
        expected = {
            "text": f"text {i} é", "bytes": bytes([i, 0, 255]), "int": -i, "uint8": np.uint8(200 + i),
            "int16": np.int16(-300 - i), "uint64": np.uint64(2**63 + i), "float16": np.float16(i / 2),
            "float32": np.float32(i / 3), "float64": np.float64(i / 7), "str_int": 10**30 + i, "str_float": i / 11,
            "str_decimal": Decimal(f"{i}.250"), "json": {"k": [i, None, "é"], "n": {"d": i / 2}},
            "nd_any": np.arange(i + 1, dtype=np.int16).reshape(1, i + 1), "nd_type": np.full((300, 2), i, np.float64),
            "nd_shape": np.full((2, 3), i, np.float16), "pil": pictures, "pil_1": pictures[:, :, 0] > 12 + 10 * i,
        }  # fmt: skip
        for name, value in expected.items():
            if isinstance(value, np.ndarray):
                assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
                assert found[name].flags.writeable
            assert np.asarray(found[name] == value).all(), name
        assert pickle.loads(found["pkl"]) == {"any": i}
        assert (DecodeImage(field="png").map(found)["png"] == pictures).all()
        assert [part[:2] for part in (found["jpeg"], *found["jpegs"], *found["list_jpeg"])] == [b"\xff\xd8"] * 5
        assert (DecodeImage(field="x").map({"x": found["list_png"][1]})["x"] == pictures).all()


def test_pickles_are_refused_unless_their_bytes_are_asked_for(tmp_path):
    folder = write_mds(tmp_path / "a", {"x": "int", "p": "pkl"}, [{"x": 1, "p": pickle.dumps([1])}])
    with pytest.raises(ValueError, match=r"column 'p' holds pickles.* columns=\['x'\] leaves it out; .*pickles_as_b"):
        make(folder)
    assert list(make(folder, columns=["x"])) == [{"x": 1}]
    assert pickle.loads(next(make(folder, pickles_as_bytes=True))["p"]) == [1]


def cut(folder):
    path = folder / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-3])


def other_count(folder):
    path = folder / "shard.00001.mds"
    path.write_bytes(b"\x09" + path.read_bytes()[1:])


def other_bounds(folder):
    path = folder / "shard.00001.mds"
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\xff\xff\xff\xff" + data[12:])


def told(**other):
    """The first shard told of otherwise."""

    def change(folder):
        index = json.loads((folder / "index.json").read_text())
        index["shards"][0] |= other
        (folder / "index.json").write_text(json.dumps(index))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"shard\.00001\.mds has [\d,]+ bytes, and its index\.json says [\d,]+: it was cut, .*Copy it again"),
        (other_count, r"shard\.00001\.mds: it has 9 samples, and its index\.json says 10"),
        (other_bounds, r"shard\.00001\.mds: its samples do not lie one behind the other"),
        (told(samples=11), r"shard\.00000\.mds: it has 10 samples, and its index\.json says 11"),
        (told(samples=-1), "a number of samples or bytes is none"),
        (told(format="jsonl"), "shards are 'jsonl' of version 2, no 'mds' of 2"),
        (told(version=3), "shards are 'mds' of version 3, no 'mds' of 2"),
        (told(column_names=["x"]), "not one name, one encoding and one size for each column"),
        (told(column_encodings=["int", "foo", "int", "int", "int"]), "'f' is stored as 'foo', which is not known here"),
        (told(column_names=list("ABCDE")), "a source reads shards of the same columns"),
        (told(raw_data={"basename": "../../etc/passwd", "bytes": 9}), "'../../etc/passwd', which is not below it"),
        (told(raw_data={"basename": "/etc/passwd", "bytes": 9}), "'/etc/passwd', which is not below it"),
        (told(zip_data={"basename": "x", "bytes": 9}, compression="xz"), "packed with 'xz'; those known are br, bz2"),
        (told(raw_data=None), r"index\.json is no index of MDS shards: TypeError"),
        (lambda folder: (folder / "index.json").write_text("[]"), r"index\.json is no index of MDS shards"),
        (lambda folder: (folder / "index.json").write_text('{"shards": []}'), "there are 0 samples in"),
        (lambda folder: (folder / "shard.00002.mds").unlink(), r"shard\.00002\.mds"),
    ],
)
def test_what_is_no_whole_dataset_is_refused_at_the_start(tmp_path, damage, message):
    folder = write_mds(tmp_path / "a", COLUMNS, SAMPLES)
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        make(folder)


def test_a_damaged_sample_is_an_error_that_names_it_and_can_be_left_out(tmp_path):
    columns = {"x": "int", "s": "str"}
    folder = write_mds(tmp_path / "a", columns, [{"x": i, "s": "text"} for i in range(4)])
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    at = data.rindex(b"text")
    path.write_bytes(data[:at] + b"te\xfft" + data[at + 4 :])
    with pytest.raises(RecordError, match=r"shard\.00000\.mds\[3\].*column 's', 4 bytes .* is no str: .*can't decode"):
        list(make(folder))
    assert [each["x"] for each in make(folder, on_error="skip")] == [0, 1, 2]
    data[at - 4] += 1  # the size of the text
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"shard\.00000\.mds\[3\].*has 16 bytes, and its columns 17: it is damaged"):
        list(make(folder))


@pytest.mark.parametrize("compression", list(PACK))
def test_a_packed_shard_that_does_not_unpack_loses_its_samples_alone(tmp_path, compression):
    folder = write_mds(tmp_path / "a", COLUMNS, SAMPLES, compression=compression)
    path = folder / f"shard.00001.mds.{compression}"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(RecordError, match=r"shard\.00001\.mds.*(does not unpack|unpacks to)"):
        list(make(folder))
    assert plain(make(folder, on_error="skip")) == SAMPLES[:10] + SAMPLES[20:]


def test_a_packed_shard_unpacks_to_what_its_index_says_at_most(tmp_path):
    folder = write_mds(tmp_path / "a", COLUMNS, SAMPLES, compression="gz")
    bomb = PACK["gz"](bytes(10**7))
    (folder / "shard.00000.mds.gz").write_bytes(bomb)
    told(zip_data={"basename": "shard.00000.mds.gz", "bytes": len(bomb)})(folder)
    with pytest.raises(RecordError, match=r"unpacks to [\d,]{3,5} bytes or more and its index\.json says"):
        list(make(folder))


def test_a_replaced_shard_is_refused_and_other_shards_are_another_stream(tmp_path):
    folder = write_mds(tmp_path / "a", {"x": "int"}, [{"x": i} for i in range(20)])
    with Pipeline(source=make(folder), batch_size=2) as pipeline:
        state = pipeline.get_state()
        write_mds(tmp_path / "b", {"x": "int"}, [{"x": -i} for i in range(20)])
        os.replace(tmp_path / "b" / "shard.00001.mds", folder / "shard.00001.mds")
        with pytest.raises(ValueError, match="was replaced|changed"):
            list(pipeline)
    shutil.copy(tmp_path / "b" / "shard.00000.mds", folder / "shard.00000.mds")
    with Pipeline(source=make(folder), batch_size=2) as pipeline, pytest.raises(DriftError, match="files"):
        pipeline.set_state(state)


def test_shuffle_window_counts_packed_shards(tmp_path):
    folder = write_mds(tmp_path / "a", COLUMNS, SAMPLES)
    with pytest.raises(ValueError, match="shuffle_window counts compressed shards, and none is"):
        make(folder, shuffle=True, shuffle_window=2)
    with pytest.raises(ValueError, match="shuffle_window counts shards, which shuffle_block_size leaves aside"):
        MDSSourceConfig(shuffle=True, shuffle_window=2, shuffle_block_size=4)
