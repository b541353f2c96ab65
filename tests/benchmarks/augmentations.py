"""CPU time of an augmentation for each picture, beside Albumentations and tf.image, where these are installed.

    python -m tests.benchmarks.augmentations [--pictures 200] [--repeats 9] [--json FILE]

One picture after another in one thread, as an actor makes them: uint8 500 x 375, a decoded photograph. The libraries
take turns; a figure is the median over the repeats, with the least and the largest. Random numbers count as well: ours
are set for each position, Albumentations draws from its own generator, tf.image has a seed for each picture, in a
tf.function. What each does: COLUMNS.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.options import parsed, spread

SIDE = 224
JITTER = (0.4, 0.4, 0.4, 0.1)
OURS = ("RandomCrop", "RandomFlip", "RandomResizedCrop", "RandomResizedCrop(antialias=False)", "ColorJitter")
Run = Callable[[int, np.ndarray], Any]


def ours() -> dict[str, Run]:
    from datarax_ray.read.augment import ColorJitter, RandomCrop, RandomFlip, RandomResizedCrop
    from datarax_ray.read.elements.progress import element_rng

    rng_at = element_rng(0, 1)

    def run(transform: Any) -> Run:
        return lambda number, image: transform.random_map({"image": image}, rng_at(number))["image"]

    sampled = RandomResizedCrop(SIDE, antialias=False)  # as the others do by default
    made = (RandomCrop(SIDE), RandomFlip(), RandomResizedCrop(SIDE), sampled, ColorJitter(*JITTER))
    return dict(zip(OURS, map(run, made), strict=True))


def albumentations() -> dict[str, Run]:
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    import albumentations as A  # noqa: N812
    import cv2

    def run(transform: Any) -> Run:
        pipeline = A.Compose([transform])
        return lambda _, image: pipeline(image=image)["image"]

    made = (
        A.RandomCrop(SIDE, SIDE),
        A.HorizontalFlip(p=0.5),
        A.RandomResizedCrop((SIDE, SIDE), interpolation=cv2.INTER_AREA),
        A.RandomResizedCrop((SIDE, SIDE)),
        A.ColorJitter(*JITTER, p=1.0),
    )
    return dict(zip(OURS, map(run, made), strict=True))


def tf_image() -> dict[str, Run]:
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def part(image: Any, seed: Any, antialias: bool) -> Any:
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.shape(image), tf.zeros((1, 0, 4)), seed, area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True
        )
        cut = tf.slice(image, begin, size)
        return tf.cast(tf.image.resize(cut, (SIDE, SIDE), antialias=antialias), tf.uint8)

    def jitter(image: Any, seed: Any) -> Any:
        image = tf.image.stateless_random_brightness(image, 0.4, seed)
        image = tf.image.stateless_random_contrast(image, 0.6, 1.4, seed + 1)
        image = tf.image.stateless_random_saturation(image, 0.6, 1.4, seed + 2)
        return tf.image.stateless_random_hue(image, 0.1, seed + 3)

    def run(function: Any) -> Run:
        compiled = tf.function(function)
        return lambda number, image: compiled(image, tf.constant([0, number])).numpy()

    made = (
        lambda image, seed: tf.image.stateless_random_crop(image, (SIDE, SIDE, 3), seed),
        tf.image.stateless_random_flip_left_right,
        lambda image, seed: part(image, seed, True),
        lambda image, seed: part(image, seed, False),
        jitter,
    )
    return dict(zip(OURS, map(run, made), strict=True))


LIBRARIES: dict[str, tuple[str, Callable[[], dict[str, Run]]]] = {  # the module, and what makes its augmentations
    "datarax_ray": ("cv2", ours),
    "Albumentations": ("albumentations", albumentations),
    "tf.image": ("tensorflow", tf_image),
}


def photograph() -> np.ndarray:
    """Of 500 x 375 pixels, as many as ImageNet's have, with smooth and noisy parts."""
    rng = np.random.default_rng(0)
    waves = np.sin(np.arange(375)[:, None, None] / [9, 13, 17]) + np.cos(np.arange(500)[:, None] / [11, 7, 23])
    return (128 + 40 * waves + rng.normal(0, 12, (375, 500, 3))).clip(0, 255).astype(np.uint8)


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, list[float]]]:
    options = parsed(__doc__, arguments, pictures=200, repeats=9, json=Path)
    import cv2

    cv2.setNumThreads(1)
    image = photograph()
    runs = {name: make() for name, (module, make) in LIBRARIES.items() if importlib.util.find_spec(module)}
    times: dict[str, dict[str, list[float]]] = {augmentation: {name: [] for name in runs} for augmentation in OURS}
    for repeat in range(options.repeats + 1):  # the first one warms up
        for augmentation, of in times.items():
            for name, made in runs.items():
                began = time.process_time()
                for number in range(options.pictures):
                    made[augmentation](number, image)
                spent = (time.process_time() - began) / options.pictures * 1e6
                of[name] += [spent] if repeat else []
    print("| CPU time a picture, µs |", " | ".join(runs), "|\n|---|" + "---|" * len(runs))
    for augmentation, of in times.items():
        print("|", " | ".join([f"`{augmentation}`", *map(spread, of.values())]), "|")
    if options.json:
        options.json.write_text(json.dumps(times))
    return times


if __name__ == "__main__":
    main()
