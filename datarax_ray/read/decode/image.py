"""The row decoder for encoded images, by OpenCV."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from datarax_ray.plan.arguments import NamedArguments, whole
from datarax_ray.read.decode.encoded import encoded_in, needed, unreadable
from datarax_ray.read.files.sniff import how_to_decode

# 11,585 by 11,585, or 400 MB decoded: more than cameras make, near Pillow's limit for a decompression bomb.
_MAX_PIXELS = 2**27
# Markers of a JPEG. Source: ITU-T T.81, B.1.1.3.
_MARKER = re.compile(rb"\xff([\x02-\xcf\xda-\xfe])")  # of a segment, whose length follows
_START_OF_SCAN = b"\xda"  # behind its headers, the picture
_END_OF_IMAGE = b"\xff\xd9"


@final
@dataclass(frozen=True)
class DecodeImage(NamedArguments):
    """Decode a JPEG, PNG, WebP or other image that OpenCV reads, in RGB order.

    It takes a record that is the image's file, or an element that holds one in `field`, so it stands after another
    decoder as well. Colours are 8 bits deep whatever the file's depth, transparency is dropped, a grey image has three
    equal channels unless one is asked for, and the orientation in EXIF is applied. One of more than 2**27 pixels is
    refused, unless the environment says OPENCV_IO_MAX_IMAGE_PIXELS.

    shape: (height, width, channels) of every result, channels 3 (RGB) or 1 (grey). The image is resized to height and
        width; both None keep its own size. None is (None, None, 3).
    field: the name of the image in the element, encoded before and decoded after; a dict with the file as "bytes"
        counts as one, as Hugging Face stores it in Parquet.

    Raises: ValueError for another shape.
    Source: cv2.imdecode and cv2.resize (area averaging where no side grows, bilinear where one does).
    """

    shape: tuple[int | None, int | None, int] | None = None
    field: str = "image"

    def __post_init__(self) -> None:
        if self.shape is None:
            return
        shape: Any = tuple(self.shape) if isinstance(self.shape, Iterable) else self.shape
        is_size = isinstance(shape, tuple) and (
            shape[:2] == (None, None) or all(isinstance(side, int) and side > 0 for side in shape[:2])
        )
        if not is_size or shape[2:] not in ((1,), (3,)):
            raise ValueError(
                f"shape {self.shape!r} is not (height, width, channels): height and width are both positive ints or "
                "both None, channels are 3 (RGB) or 1 (grey)"
            )
        object.__setattr__(self, "shape", shape)

    def map(self, record_or_element: bytes | Mapping[str, Any]) -> dict[str, Any]:
        """A new element with the image decoded: uint8 (height, width, channels).

        Raises: ValueError when the element lacks the field or the bytes are not a whole image; ImportError when OpenCV
        is not installed.
        """
        element, encoded = encoded_in(record_or_element, self.field, self, "image")
        cv2 = opencv("DecodeImage")
        height, width, num_channels = self.shape or (None, None, 3)
        image = _decoded(cv2, encoded, cv2.IMREAD_COLOR_RGB if num_channels == 3 else cv2.IMREAD_GRAYSCALE)
        if height is not None and width is not None:
            image = resized(cv2, image, height, width)
        return {**element, self.field: image if num_channels == 3 else image[:, :, np.newaxis]}


def opencv(user: str) -> Any:
    """The module cv2. user: the class that needs it. Raises: ImportError where it is not installed."""
    # OpenCV's own limit is 2**30, 3 GB of pixels from a file of 100 KB; it reads this when it is first loaded.
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(_MAX_PIXELS))
    return needed("cv2", user, "images")


def size_of(size: Any) -> tuple[int, int]:
    """(height, width) of a size that is such a pair, or one int for both. Raises: ValueError or TypeError."""
    sides = tuple(size) if isinstance(size, Iterable) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"size is one int, or (height, width), got {size!r}")
    return whole("size", sides[0], least=1), whole("size", sides[1], least=1)


def resized(
    cv2: Any, image: npt.NDArray[np.uint8], height: int, width: int, *, averages: bool = True
) -> npt.NDArray[np.uint8]:
    """The image in another size, bilinear; by area averaging where no side grows, if `averages`."""
    if image.shape[:2] == (height, width):
        return image
    grows = height > image.shape[0] or width > image.shape[1]
    made = cv2.resize(
        image, (width, height), interpolation=cv2.INTER_AREA if averages and not grows else cv2.INTER_LINEAR
    )
    return made.reshape(height, width, *image.shape[2:])  # OpenCV drops an axis of one channel


def _decoded(cv2: Any, encoded: bytes, flags: int) -> Any:
    if not encoded:
        raise _unreadable(encoded, "no image: the record or file is empty")
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error as error:  # more pixels than OpenCV allows
        raise _unreadable(encoded, f"refused by OpenCV: {error}") from error
    if image is None:
        raise _unreadable(encoded, "not an image that OpenCV can read, or a damaged one")
    # OpenCV decodes zeros behind the part of a file that a copy reached: the missing part of the picture is grey.
    if encoded.startswith(b"\xff\xd8") and not _has_end(encoded):
        raise _unreadable(encoded, "a JPEG without its end")
    return image


def _has_end(jpeg: bytes) -> bool:
    """Whether the end marker follows the headers: in them stands a thumbnail, a JPEG with an end of its own."""
    at = 0
    while (found := _MARKER.search(jpeg, at)) and found[1] != _START_OF_SCAN:
        at = found.end() + int.from_bytes(jpeg[found.end() : found.end() + 2], "big")
    return found is not None and jpeg.rfind(_END_OF_IMAGE, found.end()) >= 0  # from the end, where it stands


def _unreadable(encoded: bytes, cause: str) -> ValueError:
    is_image = encoded.startswith((b"\xff\xd8\xff", b"\x89PNG"))
    advice = "" if is_image else how_to_decode(encoded)
    return unreadable(encoded, f"{cause}{advice and '.' + advice}")
