"""Augmentations that are exact: random crops, flips and colours, the same for any number of actors and after a resume.

Their random numbers depend on seed, position and place in the list of transforms alone. Names, arguments and
distributions are those of torchvision; the arithmetic on pixels is OpenCV's. An image is uint8 (height, width) or
(height, width, channels) with 1 to 4 channels, and stays so; the image that is given is never written to.
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
from datarax_ray.read.decode.image import opencv, resized

Image = npt.NDArray[np.uint8]

_BORDERS = {  # torchvision's names, and OpenCV's
    "constant": "BORDER_CONSTANT",
    "edge": "BORDER_REPLICATE",
    "reflect": "BORDER_REFLECT_101",
    "symmetric": "BORDER_REFLECT",
}
_TRIES = 10  # of a box that lies in the image, as in torchvision
_LEVELS = np.arange(256.0)
_NO_FACTOR, _NO_SHIFT = (1.0, 1.0), (0.0, 0.0)  # of brightness, contrast and saturation, and of hue
_LUMA = np.array([0.299, 0.587, 0.114])  # of RGB. Source: ITU-R BT.601, as OpenCV and Pillow have it


class _Augmentation(NamedArguments, ABC):
    """A transform that changes the image in `field` by random numbers."""

    field: str

    def random_map(self, element: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """A new element with the image changed: uint8, with as many axes as before.

        Raises: ValueError when the element has no image in `field`, or one that is too small; ImportError when OpenCV
        is not installed.
        """
        name = type(self).__name__
        if not isinstance(element, Mapping) or self.field not in element:
            raise missing_field(self.field, element if isinstance(element, Mapping) else ())
        image = element[self.field]
        if isinstance(image, bytes):
            raise ValueError(
                f"field {self.field!r} is {len(image)} bytes, and {name} takes a decoded image; put "
                f"DecodeImage(field={self.field!r}) before it"
            )
        shape, dtype = getattr(image, "shape", ()), getattr(image, "dtype", None)
        is_image = dtype == np.uint8 and len(shape) in (2, 3) and shape[2:] <= (4,) and 0 not in shape
        if not isinstance(image, np.ndarray) or not is_image:
            found = f"{dtype} {shape}" if isinstance(image, np.ndarray) else f"a {type(image).__name__}"
            raise ValueError(
                f"field {self.field!r} is {found}, and {name} takes an image, uint8 (height, width) or (height, width, "
                "1 to 4 channels); put it before what makes floats or batches of images"
            )
        return {**element, self.field: self._changed(opencv(name), image, rng)}

    @abstractmethod
    def _changed(self, cv2: Any, image: Image, rng: np.random.Generator) -> Image: ...


@final
@dataclass(frozen=True)
class RandomCrop(_Augmentation):
    """Cut a part of the given size from each image; every place is equally likely.

    size: (height, width) of the result, or one int for both.
    padding: pixels that are added before the crop: one int for all sides, (left and right, top and bottom), or (left,
        top, right, bottom). None adds none.
    pad_if_needed: whether an image smaller than `size` is padded by the difference on both sides; otherwise it is an
        error.
    fill: the value of added pixels, or one value for each channel.
    padding_mode: what is added: "constant" (fill), "edge" (the last pixels), "reflect" (mirrored without the last
        pixel) or "symmetric" (mirrored with it).
    field: the name of the image in the element.

    Raises: ValueError or TypeError for other arguments.
    Source: torchvision.transforms.v2.RandomCrop, cv2.copyMakeBorder.
    """

    size: int | tuple[int, int]
    padding: int | tuple[int, ...] | None = None
    pad_if_needed: bool = False
    fill: int | tuple[int, ...] = 0
    padding_mode: str = "constant"
    field: str = "image"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _size(self.size))
        sides = self.padding if isinstance(self.padding, Iterable) else (self.padding or 0,)
        sides = tuple(whole("padding", side, least=0) for side in sides)
        if len(sides) not in (1, 2, 4):
            raise ValueError(f"padding has 1, 2 or 4 values, (left, top, right, bottom) say, got {self.padding!r}")
        object.__setattr__(self, "padding", (sides * 4)[:4])
        flag("pad_if_needed", self.pad_if_needed)
        levels = self.fill if isinstance(self.fill, Iterable) else (self.fill,)
        levels = tuple(whole("fill", level, least=0) for level in levels)
        if not 1 <= len(levels) <= 4 or max(levels) > 255:
            raise ValueError(f"fill is a value from 0 to 255, or one for each channel, got {self.fill!r}")
        object.__setattr__(self, "fill", levels if len(levels) > 1 else levels[0])
        if self.padding_mode not in _BORDERS:
            raise ValueError(f"padding_mode is one of {', '.join(_BORDERS)}, got {self.padding_mode!r}")

    def _changed(self, cv2: Any, image: Image, rng: np.random.Generator) -> Image:
        height, width = self.size  # type: ignore[misc]
        left, top, right, bottom = self.padding  # type: ignore[misc]
        if self.pad_if_needed:
            more_rows = max(0, height - (image.shape[0] + top + bottom))
            more_columns = max(0, width - (image.shape[1] + left + right))
            top, bottom, left, right = top + more_rows, bottom + more_rows, left + more_columns, right + more_columns
        if left or top or right or bottom:
            image = self._padded(cv2, image, top, bottom, left, right)
        if image.shape[0] < height or image.shape[1] < width:
            raise ValueError(
                f"the image is {image.shape[0]} × {image.shape[1]} pixels (height × width), with its padding, smaller "
                f"than the crop of {height} × {width}. Set pad_if_needed=True, or resize it before: "
                "DecodeImage((height, width, 3)) or RandomResizedCrop"
            )
        y = int(rng.integers(image.shape[0] - height + 1))
        x = int(rng.integers(image.shape[1] - width + 1))
        return image[y : y + height, x : x + width]

    def _padded(self, cv2: Any, image: Image, *sides: int) -> Image:
        num_channels = image.shape[2] if image.ndim == 3 else 1
        levels = self.fill if isinstance(self.fill, tuple) else (self.fill,) * num_channels
        if len(levels) != num_channels:
            raise ValueError(f"fill has {len(levels)} values, and the image {num_channels} channels; give as many")
        made = cv2.copyMakeBorder(image, *sides, getattr(cv2, _BORDERS[self.padding_mode]), value=levels)
        return made.reshape(*made.shape[:2], *image.shape[2:])


@final
@dataclass(frozen=True)
class RandomFlip(_Augmentation):
    """Mirror images with probability `p`, left to right or upside down.

    p: the probability, from 0 to 1.
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
        if rng.random() >= self.p:
            return image
        return cv2.flip(image, 0 if self.vertical else 1).reshape(image.shape)


@final
@dataclass(frozen=True)
class RandomResizedCrop(_Augmentation):
    """Cut a part of random area and aspect ratio from each image, and resize it to the given size.

    A part whose sides do not lie in the image is drawn anew, ten times. Then it is the middle of the image, in the
    nearest allowed ratio.

    size: (height, width) of the result, or one int for both.
    scale: the least and the largest area of the part, as a share of the image's; uniform.
    ratio: the least and the largest width / height of the part; its logarithm is uniform.
    field: the name of the image in the element.

    Raises: ValueError or TypeError for other arguments.
    Source: torchvision.transforms.v2.RandomResizedCrop; cv2.resize (area averaging where no side grows, bilinear where
    one does).
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    field: str = "image"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _size(self.size))
        object.__setattr__(self, "scale", _interval("scale", self.scale, 0, 1))
        object.__setattr__(self, "ratio", _interval("ratio", self.ratio, 0, math.inf))
        if not (self.scale[0] > 0 and self.ratio[0] > 0 and self.ratio[1] < math.inf):
            raise ValueError(f"scale and ratio begin above 0 and end, got {self.scale} and {self.ratio}")

    def _changed(self, cv2: Any, image: Image, rng: np.random.Generator) -> Image:
        y, x, height, width = self._box(image.shape[0], image.shape[1], rng)
        return resized(cv2, image[y : y + height, x : x + width], *self.size)  # type: ignore[misc]

    def _box(self, rows: int, columns: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """(top, left, height, width) of the part."""
        least, most = self.ratio
        for _ in range(_TRIES):
            area = rows * columns * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(math.log(least), math.log(most)))
            height, width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < height <= rows and 0 < width <= columns:
                return int(rng.integers(rows - height + 1)), int(rng.integers(columns - width + 1)), height, width
        height, width = rows, columns
        if columns / rows < least:
            height = max(1, round(columns / least))
        elif columns / rows > most:
            width = max(1, round(rows * most))
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
    Source: torchvision.transforms.v2.ColorJitter, cv2.cvtColor.
    """

    brightness: float | tuple[float, float] = 0
    contrast: float | tuple[float, float] = 0
    saturation: float | tuple[float, float] = 0
    hue: float | tuple[float, float] = 0
    field: str = "image"

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            given = getattr(self, name)
            interval = given if isinstance(given, Iterable) else (max(0, 1 - _number(name, given)), 1 + given)
            object.__setattr__(self, name, _interval(name, interval, 0, math.inf))
        hue = self.hue if isinstance(self.hue, Iterable) else (-_number("hue", self.hue), self.hue)
        object.__setattr__(self, "hue", _interval("hue", hue, -0.5, 0.5))

    def _changed(self, cv2: Any, image: Image, rng: np.random.Generator) -> Image:
        if image.shape[2:] not in ((), (1,), (3,)):
            raise ValueError(
                f"field {self.field!r} has {image.shape[2]} channels, and ColorJitter takes 3 (RGB) or 1 (grey)"
            )
        changes = (_brightness, _contrast, _saturation, _hue)
        intervals = (self.brightness, self.contrast, self.saturation, self.hue)
        amounts = [rng.uniform(*interval) for interval in intervals]  # type: ignore[misc]
        for number in rng.permutation(4).tolist():
            if intervals[number] != (_NO_SHIFT if number == 3 else _NO_FACTOR):
                image = changes[number](cv2, image, amounts[number])
        return image


def _brightness(cv2: Any, image: Image, factor: float) -> Image:
    return _mapped(cv2, image, _LEVELS * factor)


def _contrast(cv2: Any, image: Image, factor: float) -> Image:
    means = np.array(cv2.mean(image)[:3])
    mean = float(_LUMA @ means) if image.shape[2:] == (3,) else float(means[0])
    return _mapped(cv2, image, _LEVELS * factor + mean * (1 - factor))


def _saturation(cv2: Any, image: Image, factor: float) -> Image:
    if image.shape[2:] != (3,):
        return image
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(image, factor, grey, 1 - factor, 0)


def _hue(cv2: Any, image: Image, part: float) -> Image:
    if image.shape[2:] != (3,):
        return image
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    hsv[..., 0] += np.uint8(round(part * 256) % 256)  # it wraps
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


def _mapped(cv2: Any, image: Image, levels: npt.NDArray[np.float64]) -> Image:
    """The image with each value replaced by the level at its place, rounded and within 0 to 255."""
    return cv2.LUT(image, np.clip(levels + 0.5, 0, 255).astype(np.uint8)).reshape(image.shape)


def _size(size: Any) -> tuple[int, int]:
    sides = tuple(size) if isinstance(size, Iterable) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"size is one int, or (height, width), got {size!r}")
    return whole("size", sides[0], least=1), whole("size", sides[1], least=1)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{name} is a number of at least 0, or (least, most), got {value!r}")
    return value


def _interval(name: str, given: Any, least: float, most: float) -> tuple[float, float]:
    """The pair as floats. Raises: ValueError unless least <= its first <= its second <= most."""
    pair = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
    is_pair = len(pair) == 2 and all(isinstance(each, int | float) for each in pair)
    if not is_pair or not least <= pair[0] <= pair[1] <= most:
        raise ValueError(f"{name} is (least, most) in order and from {least} to {most}, got {given!r}")
    return float(pair[0]), float(pair[1])
