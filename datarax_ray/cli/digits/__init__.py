"""The packaged handwritten digits: where their files are, and how a record is read. SOURCE.md says whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DIRECTORY = Path(__file__).parent
TRAIN = str(DIRECTORY / "train-*.array_record")  # a glob: 1,497 records in 5 files of unequal sizes
TEST = str(DIRECTORY / "test-*.array_record")  # 300 records in 1 file
# The layout of a record, as DecodeFields takes it; brightness goes from 0 to 16.
FIELDS: dict[str, tuple[str, tuple[int, ...]]] = {"image": ("uint8", (8, 8)), "label": ("uint8", ())}


@dataclass(frozen=True)
class RandomShift:
    """Move each image by up to `pixels` in both directions; what enters is black.

    It stands here and not beside the model because it runs in the actors, which must not load JAX.
    """

    pixels: int = 1

    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """A new element with image: uint8 (height, width) moved."""
        image, margin = element["image"], self.pixels
        height, width = image.shape
        canvas = np.zeros((height + 2 * margin, width + 2 * margin), image.dtype)
        canvas[margin : margin + height, margin : margin + width] = image
        down, right = rng.integers(0, 2 * margin + 1, size=2)
        return element | {"image": canvas[down : down + height, right : right + width]}
