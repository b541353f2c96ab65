"""How were the packaged digits made? By this script, from scikit-learn's copy, with the same bytes every time.

pip install scikit-learn && python examples/make_digits.py [directory]
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from datarax_ray.cli import digits

TRAIN_SHARDS = (500, 400, 300, 200, 97)  # unequal on purpose: real files are
TEST_EVERY = 6
# Records compressed together: whole epochs read fast, and a file this small is 128 KiB whatever is in it.
OPTIONS = "group_size:64"


def records() -> tuple[list[bytes], list[bytes]]:
    """All records, (train, test): 64 bytes of image and one of label each."""
    from sklearn.datasets import load_digits  # in here: the tests ask for shards without it

    loaded: Any = load_digits()
    images, labels = loaded.images.astype(np.uint8), loaded.target.astype(np.uint8)
    assert (images == loaded.images).all(), "brightness is whole numbers from 0 to 16"
    whole = [image.tobytes() + label.tobytes() for image, label in zip(images, labels, strict=True)]
    return [r for i, r in enumerate(whole) if i % TEST_EVERY], whole[::TEST_EVERY]


def shards(train: list[bytes], test: list[bytes]) -> dict[str, list[bytes]]:
    """Records by file name."""
    bounds = np.cumsum([0, *TRAIN_SHARDS])
    assert bounds[-1] == len(train), f"{len(train)} records do not fill shards of {TRAIN_SHARDS}"
    named = {
        f"train-{i:05d}-of-{len(TRAIN_SHARDS):05d}.array_record": train[lo:hi]
        for i, (lo, hi) in enumerate(itertools.pairwise(bounds))
    }
    return named | {"test-00000-of-00001.array_record": test}


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else digits.DIRECTORY
    for name, contents in shards(*records()).items():
        writer = ArrayRecordWriter(str(directory / name), OPTIONS)
        for record in contents:
            writer.write(record)
        writer.close()  # without it the file has no end and cannot be read
        print(f"{directory / name}: {len(contents)} records")
