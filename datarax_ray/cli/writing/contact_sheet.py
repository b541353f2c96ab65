"""Pictures side by side, made small, as one PNG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_MAX_SIDE = 2048  # of the sheet, in pixels
_THUMB = 128  # likewise of a picture


def is_picture(value: Any) -> bool:
    """Whether it is an array of pixels, uint8 (height, width, 1 or 3)."""
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] in (1, 3)


def line_of(pictures: Iterable[np.ndarray]) -> np.ndarray:
    """Some pictures, RGB or grey, beside one another: as many as have room, uint8 (height, width, 3)."""
    import cv2

    line: list[np.ndarray] = []
    for picture in pictures:
        height, width = picture.shape[:2]
        scale = min(1.0, _THUMB / max(height, width))
        size = max(1, round(width * scale)), max(1, round(height * scale))
        small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA).reshape(size[1], size[0], -1)
        if sum(each.shape[1] for each in line) + size[0] > _MAX_SIDE:
            break
        line.append(np.broadcast_to(small, (*small.shape[:2], 3)))
    highest = max(map(len, line))
    return np.hstack([np.pad(each, ((0, highest - len(each)), (0, 0), (0, 0))) for each in line])


def png_of(lines: Sequence[np.ndarray]) -> bytes:
    """A PNG of lines, one below the other."""
    import cv2

    widest = max(line.shape[1] for line in lines)
    sheet = np.vstack([np.pad(line, ((0, 0), (0, widest - line.shape[1]), (0, 0))) for line in lines])
    return bytes(cv2.imencode(".png", sheet[:, :, ::-1])[1])
