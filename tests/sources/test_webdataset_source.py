"""WebDatasetSource: what only it promises. What all sources promise: test_every_source.py."""

import numpy as np
import pytest
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.decode import DecodeImage
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import WebDatasetSource, WebDatasetSourceConfig
from tests.tars import write_tar, write_tars

cv2 = pytest.importorskip("cv2")


def make(paths, *, transforms=(), **config):
    return WebDatasetSource(WebDatasetSourceConfig(**{"num_epochs": 1} | config), paths, transforms=transforms)


def batches(source, batch_size=4):
    return list(Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0)))


def picture(value):
    return bytes(cv2.imencode(".png", np.full((4, 5, 3), value, np.uint8))[1])


@pytest.fixture
def pictures(tmp_path):
    members = [
        (f"train/{i}.{name}", data)
        for i in range(6)
        for name, data in (("PNG", picture(i)), ("cls", b"%d" % i), ("json", b'{"size": [4, %d]}' % i))
    ]
    return write_tar(tmp_path / "a.tar", members)


def test_pictures_labels_and_json_become_a_batch(pictures):
    batch = batches(make(pictures, transforms=[DecodeImage(field="png")]), 6)[0]
    assert np.asarray(batch["png"]).shape == (6, 4, 5, 3)
    assert np.asarray(batch["png"])[:, 0, 0, 0].tolist() == list(range(6))
    assert batch["cls"].tolist() == list(range(6))
    assert batch["json"].tolist() == [{"size": [4, i]} for i in range(6)]
    chosen = batches(make(pictures, fields=("json.size",)), 6)[0]
    assert chosen["json"]["size"].tolist() == [[4, i] for i in range(6)]
    assert batch["__key__"].tolist() == [f"train/{i}" for i in range(6)]


def test_without_decoding_members_are_their_bytes(pictures):
    sample = next(make(pictures, decode=False))
    assert sample == {"__key__": "train/0", "png": picture(0), "cls": b"0", "json": b'{"size": [4, 0]}'}


def test_a_member_that_does_not_decode_names_file_sample_and_member_or_is_left_out(tmp_path):
    path = write_tar(tmp_path / "a.tar", [(f"k{i}.cls", b"x" if i == 2 else b"1") for i in range(4)])
    said = rf"{path}\[2\] \(position 2\): .*'k2\.cls', 1 bytes that begin b'x', is no cls"
    with pytest.raises(RecordError, match=said):
        batches(make(path))
    skipping = make(path, on_error="skip")
    assert [sample["__key__"] for sample in skipping] == ["k0", "k1", "k3"]
    assert [skip.where for skip in skipping.skipped] == [f"{path}[2]"]


def test_a_state_of_other_members_is_refused(tmp_path):
    write_tars(tmp_path, (5, 5))
    state = make(tmp_path).get_state()
    make(tmp_path).set_state(state)
    (tmp_path / "shard-001.tar").rename(tmp_path / "shard-002.tar")
    with pytest.raises(DriftError, match="files.digest: the checkpoint was written with"):
        make(tmp_path).set_state(state)
