"""Augmentations that are exact: random crops, flips and colours, the same for any number of actors and after a resume.

Their random numbers depend on seed, position and place in the list of transforms alone. Names, arguments and
distributions are torchvision's; the arithmetic on pixels is OpenCV's. An image is uint8 (height, width) or (height,
width, 1 to 4 channels), and stays so; the given image is never written to.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from datarax_ray.plan.arguments import NamedArguments, flag, whole
from datarax_ray.read.decode.dense import missing_field
from datarax_ray.read.decode.image import opencv, resized, size_of

Image = npt.NDArray[np.uint8]

_MODES = ("constant", "edge", "reflect", "symmetric")  # of padding, in torchvision and NumPy
_TRIES = 10  # of a box that lies in the image, as in torchvision
_LUMA = np.array([0.299, 0.587, 0.114])  # of RGB. Source: ITU-R BT.601, as OpenCV and Pillow have it
_NO_FACTOR, _NO_SHIFT = (1.0, 1.0), (0.0, 0.0)


class _Augmentation(NamedArguments, ABC):
    """A transform that changes the image in `field` by random numbers."""

    field: str

    def random_map(self, element: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """A new element with the image changed: uint8, with as many axes as before.

        Raises: ValueError when `field` holds no image, or too small a one; ImportError when OpenCV is not installed.
        """
        name = type(self).__name__
        if not isinstance(element, Mapping) or self.field not in element:
            raise missing_field(self.field, element if isinstance(element, Mapping) else ())
        image: Any = element[self.field]
        shape = image.shape if isinstance(image, np.ndarray) and image.dtype == np.uint8 else ()
        if len(shape) not in (2, 3) or 0 in shape or shape[2:] > (4,):
            found = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else f"a {type(image).__name__}"
            raise ValueError(
                f"field {self.field!r} is {found}, and {name} takes a decoded image, uint8 (height, width) or (height, "
                f"width, 1 to 4 channels); put it behind DecodeImage(field={self.field!r}), before what makes floats"
            )
        return {**element, self.field: self._changed(opencv(name), image, rng)}

    @abstractmethod
    def _changed(self, cv2: Any, image: Image, rng: np.random.Generator) -> Image: ...


@final
@dataclass(frozen=True)
class RandomCrop(_Augmentation):
    """Cut a part of the given size from each image; every place is equally likely.

    size: (height, width) of the result, or one int for both.
    padding: pixels added before the crop: an int for all sides, (left and right, top and bottom), or (left, top, right,
        bottom). None adds none.
    pad_if_needed: whether an image smaller than `size` gets the difference added on both sides; else it is an error.
    fill: the value of added pixels, 0 to 255.
    padding_mode: what is added: "constant" (fill), "edge" (the last pixels), "reflect" (a mirror image without the last
        pixel) or "symmetric" (with it).
    field: the name of the image in the element.

    Raises: ValueError or TypeError for other arguments.
    Source: torchvision.transforms.v2.RandomCrop, numpy.pad.
    """

    size: int | tuple[int, int]
    padding: int | tuple[int, ...] | None = None
    pad_if_needed: bool = False
    fill: int = 0
    padding_mode: str = "constant"
    field: str = "image"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_of(self.size))
        sides = tuple(self.padding) if isinstance(self.padding, Iterable) else (self.padding or 0,)
        if len(sides) not in (1, 2, 4):
            raise ValueError(f"padding has 1, 2 or 4 values, (left, top, right, bottom) say, got {self.padding!r}")
        object.__setattr__(self, "padding", tuple(whole("padding", side, least=0) for side in (sides * 4)[:4]))
        flag("pad_if_needed", self.pad_if_needed)
        if not 0 <= whole("fill", self.fill) <= 255 or self.padding_mode not in _MODES:
            given = f"{self.fill!r} and {self.padding_mode!r}"
            raise ValueError(f"fill is 0 to 255, and padding_mode one of {', '.join(_MODES)}, got {given}")

    def _changed(self, cv2: Any, image: Image, rng: np.random.Generator) -> Image:
        height, width = self.size  # type: ignore[misc]
        left, top, right, bottom = self.padding  # type: ignore[misc]
        if self.pad_if_needed:
            rows = max(0, height - image.shape[0] - top - bottom)
            columns = max(0, width - image.shape[1] - left - right)
            left, top, right, bottom = left + columns, top + rows, right + columns, bottom + rows
        if left or top or right or bottom:
            fill: Any = {"constant_values": self.fill} if self.padding_mode == "constant" else {}
            sides = ((top, bottom), (left, right), (0, 0))[: image.ndim]
            image = np.pad(image, sides, self.padding_mode, **fill)  # type: ignore[call-overload]
        if image.shape[0] < height or image.shape[1] < width:
            raise ValueError(
                f"the image is {image.shape[0]} × {image.shape[1]} pixels (height × width), with its padding, smaller "
                f"than the crop of {height} × {width}. Set pad_if_needed=True, or resize it before"
            )
        y, x = int(rng.integers(image.shape[0] - height + 1)), int(rng.integers(image.shape[1] - width + 1))
        return image[y : y + height, x : x + width]


@final
@dataclass(frozen=True)
class RandomFlip(_Augmentation):
    """Mirror images with probability `p`, left to right or upside down.

    p: from 0 to 1.
    vertical: whether top and bottom change places, in place of left and right. For both, use two of them.
    field: the name of the image in the element.

    Raises: ValueError or TypeError for other arguments.
    Source: torchvision.transforms.v2.RandomHorizontalFlip and RandomVerticalFlip, cv2.flip.
    """

    p: float = 0.5
    vertical: bool = False
    field: str = "image"

    def __post_init__(self) -> None:
        if isinstance(self.p, bool) or not isinstance(self.p, int | float) or not 0 <= self.p <= 1:
            raise ValueError(f"p is a probability from 0 to 1, got {self.p!r}")
        flag("vertical", self.vertical)

    def _changed(self, cv2: Any, image: Image, rng: np.random.Generator) -> Image:
        return image if rng.random() >= self.p else cv2.flip(image, 0 if self.vertical else 1).reshape(image.shape)


@final
@dataclass(frozen=True)
class RandomResizedCrop(_Augmentation):
    """Cut a part of random area and aspect ratio from each image, and resize it to the given size.

    A part that does not fit into the image is drawn anew, ten times; then it is the middle, in the nearest ratio.

    size: (height, width) of the result, or one int for both.
    scale: the least and the largest area of the part, as a share of the image's; uniform.
    ratio: the least and the largest width / height of the part; its logarithm is uniform.
    antialias: whether a part that shrinks is averaged; else it is sampled, which takes a quarter of the time.
    field: the name of the image in the element.

    Raises: ValueError or TypeError for other arguments.
    Source: torchvision.transforms.v2.RandomResizedCrop; cv2.resize as in DecodeImage.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    antialias: bool = True
    field: str = "image"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_of(self.size))
        object.__setattr__(self, "scale", _interval("scale", self.scale, 1e-6, 1))
        object.__setattr__(self, "ratio", _interval("ratio", self.ratio, 1e-3, 1e3))
        flag("antialias", self.antialias)

    def _changed(self, cv2: Any, image: Image, rng: np.random.Generator) -> Image:
        y, x, height, width = self._box(image.shape[0], image.shape[1], rng)
        part = image[y : y + height, x : x + width]
        return resized(cv2, part, *self.size, averages=self.antialias)  # type: ignore[misc]

    def _box(self, rows: int, columns: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """(top, left, height, width) of the part."""
        least, most = self.ratio
        for _ in range(_TRIES):
            area = rows * columns * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(math.log(least), math.log(most)))
            height, width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < height <= rows and 0 < width <= columns:
                return int(rng.integers(rows - height + 1)), int(rng.integers(columns - width + 1)), height, width
        height = max(1, min(rows, round(columns / least)))
        width = max(1, min(columns, round(rows * most)))
        return (rows - height) // 2, (columns - width) // 2, height, width


@final
@dataclass(frozen=True)
class ColorJitter(_Augmentation):
    """Change brightness, contrast, saturation and hue of each image by random factors, in random order.

    Grey images keep saturation and hue. Results are rounded after each change.

    brightness: the image is multiplied by a factor: uniform in [max(0, 1 - brightness), 1 + brightness], or in the
        given (least, most). 0 changes nothing.
    contrast: the distance to the mean of the grey image is multiplied; as brightness.
    saturation: the distance of each pixel to its grey is multiplied; as brightness.
    hue: what is added to the hue, as a part of the circle of colours: uniform in [-hue, hue] with hue at most 0.5, or
        in the given (least, most) within [-0.5, 0.5]. It has 256 steps.
    field: the name of the image, RGB or grey, in the element.

    Raises: ValueError for other arguments.
    Source: torchvision.transforms.v2.ColorJitter, cv2.addWeighted, cv2.cvtColor.
    """

    brightness: float | tuple[float, float] = 0
    contrast: float | tuple[float, float] = 0
    saturation: float | tuple[float, float] = 0
    hue: float | tuple[float, float] = 0
    field: str = "image"

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, _interval(name, getattr(self, name), 0, math.inf, middle=1))
        object.__setattr__(self, "hue", _interval("hue", self.hue, -0.5, 0.5, middle=0))

    def _changed(self, cv2: Any, image: Image, rng: np.random.Generator) -> Image:
        shape, is_rgb = image.shape, image.shape[2:] == (3,)
        if shape[2:] not in ((), (1,), (3,)):
            raise ValueError(f"field {self.field!r} has {shape[2]} channels; ColorJitter takes 3 (RGB) or 1 (grey)")
        intervals: Any = (self.brightness, self.contrast, self.saturation, self.hue)
        brightness, contrast, saturation, hue = (rng.uniform(*each) for each in intervals)
        for number in rng.permutation(4).tolist():
            if intervals[number] == (_NO_SHIFT if number == 3 else _NO_FACTOR) or (number > 1 and not is_rgb):
                continue
            if number == 0:  # a table of 256 values (cv2.LUT) would take twice the time
                image = cv2.addWeighted(image, brightness, image, 0, 0)
            elif number == 1:
                means = np.array(cv2.mean(image)[:3])
                mean = float(_LUMA @ means if is_rgb else means[0])
                image = cv2.addWeighted(image, contrast, image, 0, mean * (1 - contrast))
            elif number == 2:
                grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
                image = cv2.addWeighted(image, saturation, grey, 1 - saturation, 0)
            else:
                hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
                hsv[..., 0] += np.uint8(round(hue * 256) % 256)  # it wraps
                image = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)
        return image.reshape(shape)


def _interval(name: str, given: Any, low: float, high: float, middle: float | None = None) -> tuple[float, float]:
    """(least, most), in order and within low and high; a number is the distance to the middle. Raises: ValueError."""
    pair = tuple(given) if isinstance(given, tuple | list) else ()
    if middle is not None and isinstance(given, int | float) and given >= 0:
        pair = (max(low, middle - given), middle + given)
    is_pair = len(pair) == 2 and all(isinstance(each, int | float) for each in pair)
    if not is_pair or not low <= pair[0] <= pair[1] <= high:
        a_number = "" if middle is None else "a number of at least 0, or "
        raise ValueError(f"{name} is {a_number}(least, most), in order and from {low} to {high}, got {given!r}")
    return float(pair[0]), float(pair[1])
