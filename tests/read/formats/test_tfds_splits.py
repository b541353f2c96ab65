"""Splits mean the records that TensorFlow Datasets says they mean."""

import json
from pathlib import Path

import pytest

from datarax_ray.read.formats.tfds import shard_parts

SAID = json.loads((Path(__file__).parents[2] / "sources" / "tfds" / "expected.json").read_text())["splits"]
LENGTHS = {"train": (6, 5), "test": (2, 2)}


@pytest.mark.parametrize("split", SAID)
def test_a_split_is_what_tfds_says(split):
    want = SAID[split]
    if isinstance(want, str):  # the error that tfds raises
        with pytest.raises(ValueError, match="split"):
            shard_parts(split, LENGTHS)
        return
    got = [
        [f"small-{name}.array_record-{shard:05d}-of-00002", skip, take, LENGTHS[name][shard]]
        for name, shard, skip, take in shard_parts(split, LENGTHS)
    ]
    assert got == want


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("dev", r"there is no split 'dev', only \['train', 'test'\]"),
        ("train[:12]", r"split 'train\[:12\]' is records \[0, 12\), and train has 11"),
        ("train[:101%]", "percentages are from -100 to 100, got 0 and 101"),
        ("train[7]", r"one record is \[n:n\+1\]"),
        ("all[:3]", "'all' cannot be sliced; slice each split"),
        ("train[::2]", r"is none of 'train', 'train\[100:200\]'"),
        ("train[1.5:]", "split .*: invalid literal for int"),
        ("", "is none of 'train'"),
    ],
)
def test_what_is_no_split_says_what_is(split, message):
    with pytest.raises(ValueError, match=message):
        shard_parts(split, LENGTHS)
