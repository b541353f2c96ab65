"""TFDSSource gives the elements that tfds itself gave for the same files (tests/sources/tfds), without TensorFlow."""

import json
import shutil
import zlib
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from datarax_ray import Pipeline
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.decode import PadTo
from datarax_ray.read.decode.tfds import DecodeTfds, Leaf, tfds_leaves
from datarax_ray.sources import TFDSSource, TFDSSourceConfig
from tests import oracle
from tests.http_files import HttpFiles
from tests.read.test_decode import example, int64_list

DATA = Path(__file__).parent / "tfds"
SAID = json.loads((DATA / "expected.json").read_text())

LISTS = ("tokens", "words", "points", "ragged", "unknown", "photos", "dynamic")  # of any length: on the host


def make(split="train", *transforms, **config):
    return TFDSSource(
        TFDSSourceConfig(**({"num_epochs": 1} | config)), "small", split, data_dir=DATA, transforms=transforms
    )


def values(said):
    """The values in what tfds said, without dtypes and shapes."""
    if isinstance(said, dict):
        return said["values"] if "values" in said else {key: values(item) for key, item in said.items()}
    return [values(item) for item in said] if isinstance(said, list) else said


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_element_is_what_tfds_gives(split):
    for got, said in zip(make(split), SAID["elements"][split], strict=True):
        assert plain(got) == values(said)
        for key, want in said.items():
            if isinstance(want, dict) and "dtype" in want and key not in LISTS:
                assert got[key].shape == tuple(want["shape"])
                # tfds gives a uint8 scalar as a Python int; here it has the dtype of its feature
                assert str(got[key].dtype) == ("uint8" if key == "small" else want["dtype"])


def test_a_part_of_a_split_is_its_records():
    everything = [plain(element)["id"] for element in make("train")]
    assert [int(e["id"]) for e in make("train[3:9]+test[:1]")] == [*everything[3:9], int(next(make("test"))["id"])]
    assert len(make("train[:80%]")) == 9
    with pytest.raises(ValueError, match=r"split 'train\[4:4\]' of .* has no records"):
        make("train[4:4]")


def test_it_shuffles_and_stacks_in_a_pipeline():
    keep = {"id", "image", "tokens"}
    only = [lambda element: {key: element[key] for key in keep}, PadTo({"tokens": 3}, dtype="int32")]
    source = make("train", *only, shuffle=True, num_epochs=2)
    ids = [plain(element)["id"] for element in make("train")]
    batches = list(Pipeline(source=source, batch_size=4))
    got = [int(i) for batch in batches for i in batch["id"]]
    assert got == [ids[i] for epoch in range(2) for i in oracle.order(11, epoch, 42)]
    assert batches[0]["image"].shape == (4, 4, 3, 3)
    assert batches[0]["tokens"].tolist() == [[*range(i % 4), *[0] * (3 - i % 4)] for i in got[:4]]


def test_images_can_stay_encoded():
    source = TFDSSource(TFDSSourceConfig(), "small", "test", data_dir=DATA, skip_decoding=["image", "photos"])
    assert next(source)["image"].startswith(b"\x89PNG")
    assert next(source.copy())["image"].startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"skip_decoding names \['id'\], and the images are \['image', 'photos'\]"):
        TFDSSource(TFDSSourceConfig(), "small", "test", data_dir=DATA, skip_decoding=["id"])


def test_a_name_a_directory_and_a_builder_are_the_same(monkeypatch):
    directory = DATA / "small" / "1.2.3"
    monkeypatch.setenv("TFDS_DATA_DIR", str(DATA))
    named = ["small", "small:1.2.3", "small:1.*.*", directory, str(directory), SimpleNamespace(data_dir=str(directory))]
    sources = [TFDSSource(TFDSSourceConfig(), name, "test") for name in named]
    assert {source.directory for source in sources} == {str(directory)}
    state = sources[0].get_state()
    for source in sources:
        source.set_state(state)
    with pytest.raises(DriftError, match="files.num_records: the checkpoint was written with 4, this pipeline has 11"):
        TFDSSource(TFDSSourceConfig(), "small", "train").set_state(state)


def test_a_dataset_behind_a_url_is_that_of_the_folder(tmp_path):
    served = HttpFiles(DATA)
    far = TFDSSource(TFDSSourceConfig(num_epochs=1), f"{served.url}/small/1.2.3", "train[2:]+test")
    here = make("train[2:]+test")
    state = here.get_state()
    assert [str(plain(element)) for element in far] == [str(plain(element)) for element in here]
    far.set_state(state)
    with pytest.raises(FileNotFoundError, match=r"/nowhere is no dataset that tfds prepared: it has no dataset_info"):
        TFDSSource(TFDSSourceConfig(), f"{served.url}/nowhere", "train")
    served.close()


@pytest.mark.parametrize("where", ["memory://prepared", ""])
def test_configurations_and_versions_are_found_in_a_bucket_and_a_folder(where, tmp_path):
    root = where or str(tmp_path)
    files, _ = fsspec.url_to_fs(root)
    for place in ("many/one/1.2.3", "many/one/1.10.0", "many/two/1.2.3"):
        files.put(str(DATA / "small" / "1.2.3"), f"{root}/{place}", recursive=True)

    def directory(name):
        return TFDSSource(TFDSSourceConfig(), name, "test", data_dir=root).directory

    assert directory("many/one") == f"{root}/many/one/1.10.0"
    assert directory("many/one:1.2.*") == f"{root}/many/one/1.2.3"
    with pytest.raises(FileNotFoundError, match=r"many has the configurations \['one', 'two'\]; name one"):
        directory("many")
    files.makedirs(f"{root}/many/.config", exist_ok=True)
    files.pipe(f"{root}/many/.config/metadata.json", b'{"defaultConfigName": "two"}')
    assert directory("many") == f"{root}/many/two/1.2.3"
    with pytest.raises(FileNotFoundError, match=rf"no dataset 'other' is prepared in {root}, only \['many'\]"):
        directory("other")
    files.rm(root, recursive=True)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("other", FileNotFoundError, r"no dataset 'other' is prepared in .*, only \[.*'small'\]"),
        ("small:2.0.0", FileNotFoundError, r"no version 2.0.0 is prepared here, only \['1.2.3'\]"),
        ("/nowhere/at/all", FileNotFoundError, "/nowhere/at/all is no dataset that tfds prepared"),
        (SimpleNamespace(data_dir="/nowhere"), FileNotFoundError, "/nowhere is no dataset that tfds prepared"),
        (7, TypeError, "a dataset is a name, a directory or a tfds builder, got int"),
    ],
)
def test_what_is_not_there_is_refused(name, error, message):
    with pytest.raises(error, match=message):
        TFDSSource(TFDSSourceConfig(), name, "train", data_dir=DATA)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{DATASET}-{SPLIT}", "../{SPLIT}", r"the shards of 'train' are named '\.\./train.*names no file in it"),
        ("{DATASET}-{SPLIT}", "{SPLIT.__class__}", "which names no file in it"),
        ('"splits"', "splits", "dataset_info.json is no JSON"),
        ('"array_record"', '"tfrecord"', "is prepared as tfrecord, .*file_format='array_record'"),
    ],
)
def test_a_description_that_cannot_be_read_is_refused(tmp_path, old, new, message):
    shutil.copytree(DATA / "small", tmp_path / "small")
    path = tmp_path / "small" / "1.2.3" / "dataset_info.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        TFDSSource(TFDSSourceConfig(), "small", "train", data_dir=tmp_path)


def test_a_feature_that_is_not_read_is_named():
    sound = {"audio": {"dtype": "int64"}, "pythonClassName": "tfds.Audio"}
    with pytest.raises(ValueError, match="feature 'a/sound' is a tfds.Audio, which is not decoded here"):
        tfds_leaves({"featuresDict": {"features": {"a": {"featuresDict": {"features": {"sound": sound}}}}}})
    deep = {"image": {"dtype": "uint16", "shape": {"dimensions": ["-1", "-1", "1"]}}}
    with pytest.raises(ValueError, match=r"feature 'depth' is an image of uint16 .* skip_decoding=\['depth'\]"):
        tfds_leaves({"featuresDict": {"features": {"depth": deep}}})


@pytest.mark.parametrize(
    ("shape", "kind", "stored", "want"),
    [
        ((2,), "raw", b"\1\0\2\0", [1, 2]),
        ((None, 2), "zlib", zlib.compress(b"\1\0\2\0\3\0\4\0"), [[1, 2], [3, 4]]),
        ((2,), "raw", b"\1\0", r"feature 'x': a tensor of uint16 \(2,\) has 4 bytes, not 2"),
        ((2,), "zlib", zlib.compress(bytes(10**7)), "has 4 bytes, not 5"),  # not all of it is unpacked
        ((2,), "zlib", b"no zlib", "feature 'x': Error -3 while decompressing"),
    ],
)
def test_a_packed_tensor_has_the_bytes_of_its_shape(shape, kind, stored, want):
    # Example{features{feature{"x": bytes_list{stored}}}}, by the wire format
    def field(number, content):
        size, length = b"", len(content)
        while length > 127:
            size, length = size + bytes([length % 128 + 128]), length // 128
        return bytes([number * 8 + 2]) + size + bytes([length]) + content

    record = field(1, field(1, field(1, b"x") + field(2, field(1, field(1, stored)))))
    decode = DecodeTfds((Leaf(("x",), kind, "uint16", shape),))
    if isinstance(want, str):
        with pytest.raises(ValueError, match=want):
            decode.map(record)
    else:
        assert plain(decode.map(record)["x"]) == want


@pytest.mark.parametrize(
    ("shape", "outer", "stored", "want"),
    [
        ((), (None,), {"x": [1, -1, -(2**63)]}, [1, 2**64 - 1, 2**63]),
        ((None, 2), (), {"x": [1, -1, 2, -(2**63)]}, [[1, 2**64 - 1], [2, 2**63]]),
        (
            (),
            (None, None),
            {"x/ragged_flat_values": [1, -1, -(2**63)], "x/ragged_row_lengths_0": [2, 0, 1]},
            [[1, 2**64 - 1], [], [2**63]],
        ),
        (
            (2,),
            (None, None),
            {"x/ragged_flat_values": [1, -1, 2, -(2**63)], "x/ragged_row_lengths_0": [0, 2]},
            [[], [[1, 2**64 - 1], [2, 2**63]]],
        ),
    ],
)
def test_a_uint64_of_any_size_is_the_int64_of_its_bits(shape, outer, stored, want):
    record = example(**{name: int64_list(*values) for name, values in stored.items()})
    decode = DecodeTfds((Leaf(("x",), "numbers", "uint64", shape, outer),))
    assert plain(decode.map(record)) == {"x": want}
