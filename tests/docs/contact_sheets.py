"""The contact sheets of docs/how-to/images.md: python -m tests.docs.contact_sheets [FOLDER]

The photograph is scikit-learn's china.jpg, by dany13, CC BY 2.0.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from datarax_ray import (
    ColorJitter,
    Mixup,
    Pipeline,
    RandomAccessSource,
    RandomAccessSourceConfig,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
)
from datarax_ray.cli.inspect import line_of

STATIC = Path(__file__).parents[2] / "docs" / "_static"
NUM_PICTURES, SIDE = 8, 112
SHEETS: dict[str, tuple[Any, ...]] = {  # transforms, and stages behind them
    "random-crop": (RandomCrop(SIDE),),
    "random-flip": (RandomFlip(),),
    "random-resized-crop": (RandomResizedCrop(SIDE),),
    "color-jitter": (ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),),
    "mixup": (Mixup(num_classes=2, alpha=1.0),),
}


def pictures(steps: tuple[Any, ...]) -> np.ndarray:
    """The first batch that these make of the photograph, and for Mixup of its halves: uint8 (8, side, side, 3)."""
    from sklearn.datasets import load_sample_image  # in here: pytest imports this module, four times for each run

    photo = cv2.resize(load_sample_image("china.jpg"), None, fx=0.4, fy=0.4, interpolation=cv2.INTER_AREA)
    corners = (70, 128) if isinstance(steps[0], Mixup) else (70, 70)
    images = np.stack([photo[40 : 40 + SIDE + 16, x : x + SIDE + 16] for x in corners * (NUM_PICTURES // 2)])
    stages = [step for step in steps if isinstance(step, Mixup)]
    data = {"image": images, "label": np.arange(NUM_PICTURES) % 2}
    transforms = [step for step in steps if step not in stages]
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), data, transforms=transforms)
    with Pipeline(source=source, stages=stages, batch_size=NUM_PICTURES) as pipeline:
        return np.asarray(pipeline.step()["image"]).round().astype(np.uint8)


def main(folder: Path) -> None:
    for name, steps in SHEETS.items():
        line = line_of(pictures(steps), itertools.repeat(""))
        cv2.imwrite(str(folder / f"{name}.jpg"), line[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 80])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else STATIC)
