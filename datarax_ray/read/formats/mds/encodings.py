"""What the bytes of an MDS column are, by the name of its encoding."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from datarax_ray.read.decode.rows import json_value

Decode = Callable[[bytes], Any]

# Of an ndarray whose dtype is not in the name of its encoding, by the number before it.
_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
# dtype and channels of Pillow's modes, as np.asarray(image) has them; 0 for no axis of them. A palette is not stored.
_MODES = {
    "L": ("u1", 0), "P": ("u1", 0), "LA": ("u1", 2), "RGB": ("u1", 3), "YCbCr": ("u1", 3), "LAB": ("u1", 3),
    "HSV": ("u1", 3), "RGBA": ("u1", 4), "RGBX": ("u1", 4), "CMYK": ("u1", 4), "I;16": ("<u2", 0), "I": ("<i4", 0),
    "F": ("<f4", 0),
}  # fmt: skip
_PICKLE = "pkl"


def is_pickle(encoding: str) -> bool:
    """Whether it holds pickles, which run code when they are loaded."""
    return encoding.partition(":")[0] == _PICKLE


def decoder_of(encoding: str) -> Decode | None:
    """What makes a value of a column's bytes; None for an encoding that is not known. It raises ValueError.

    Scalars are NumPy's, of that dtype, but Python's for int and str_*; arrays are writable; a pil is what
    np.asarray(image) gives. Files of pictures (jpeg, png) stay bytes, for DecodeImage, as do pickles.

    >>> decoder_of("int")((7).to_bytes(8, "little")), decoder_of("ndarray:uint8:2,2")(b"abcd").tolist()
    (7, [[97, 98], [99, 100]])
    """
    name, _, rest = encoding.partition(":")
    if name == "ndarray":
        dtype, _, shape = rest.partition(":")
        if dtype and dtype not in _DTYPES.values():
            return None
        return functools.partial(_array, dtype, tuple(map(int, shape.split(","))) if shape else None)
    if name in _DTYPES.values():
        return functools.partial(_scalar, np.dtype(name).newbyteorder("<"))
    return _DECODERS.get(name)


def _same(data: bytes) -> bytes:
    return data


def _scalar(dtype: np.dtype[Any], data: bytes) -> Any:
    if len(data) != dtype.itemsize:
        raise ValueError(f"it has {len(data)} bytes, and a {dtype.name} has {dtype.itemsize}")
    return np.frombuffer(data, dtype)[0]


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("utf-8"))
    except InvalidOperation:
        raise ValueError("it is no number") from None


def _array(dtype: str, shape: tuple[int, ...] | None, data: bytes) -> np.ndarray:
    """[dtype: 1] [ndim << 2 | log2 of a length's bytes: 1] [lengths] values; in [] what the encoding does not say."""
    at = 0
    if not dtype:
        dtype, at = _DTYPES.get(data[0] if data else -1, ""), 1
        if not dtype:
            raise ValueError("it begins with no number of a dtype")
    if shape is None:
        num_axes, size = (data[at] >> 2, 1 << (data[at] & 3)) if at < len(data) else (0, 1)
        end = at + 1 + num_axes * size
        shape = tuple(np.frombuffer(data[at + 1 : end], f"<u{size}").tolist())
        if len(shape) != num_axes or not num_axes:
            raise ValueError("it ends within its shape")
        at = end
    return _whole(data[at:], np.dtype(dtype).newbyteorder("<"), shape)


def _whole(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    if len(data) != (nbytes := math.prod(shape) * dtype.itemsize):
        raise ValueError(f"there are {len(data):,} bytes of values, and {dtype.name} {shape} has {nbytes:,}")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))  # a copy, to write to


def _pil(data: bytes) -> np.ndarray:
    """Width, height, and the length of the mode's name, uint32 each; the mode; the pixels, row by row."""
    if len(data) < 12:
        raise ValueError("it ends within its size")
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode, pixels = data[12 : 12 + length].decode("utf-8"), data[12 + length :]
    if mode == "1":  # eight pixels a byte, rows filled up to whole ones
        rows = _whole(pixels, np.dtype("u1"), (height, -(-width // 8)))
        return np.unpackbits(rows, axis=1, count=width).astype(bool)
    if mode not in _MODES:
        raise ValueError(f"{mode!r} is no mode of a picture that is known here")
    dtype, channels = _MODES[mode]
    return _whole(pixels, np.dtype(dtype), (height, width, *([channels] if channels else [])))


def _several(decode: Decode, begin: int, data: bytes) -> list[Any]:
    """From byte `begin` on: uint32 how many, uint32 the size of each, then all of them."""
    count = int.from_bytes(data[begin : begin + 4], "little")
    at = begin + 4 + 4 * count
    if len(data) < at:
        raise ValueError("it ends within the sizes of its pictures")
    ends = at + np.cumsum(np.frombuffer(data, "<u4", count, begin + 4), dtype=np.int64)
    if len(data) != (int(ends[-1]) if count else at):
        raise ValueError("it ends elsewhere than the last of its pictures")
    return [decode(data[first:last]) for first, last in zip([at, *ends.tolist()], ends.tolist(), strict=False)]


_DECODERS: dict[str, Decode] = {
    **dict.fromkeys(("bytes", "jpeg", "png", _PICKLE), _same),
    "str": lambda data: data.decode("utf-8"),
    "int": lambda data: int(_scalar(np.dtype("<i8"), data)),
    "str_int": lambda data: int(data.decode("utf-8")),
    "str_float": lambda data: float(data.decode("utf-8")),
    "str_decimal": _decimal,
    "json": json_value,
    "pil": _pil,
    **dict.fromkeys(("jpeg_array", "jpegarray"), functools.partial(_several, _same, 0)),
    # behind four bytes that mean nothing
    **dict.fromkeys(("list[jpeg]", "list[png]"), functools.partial(_several, _same, 4)),
    "list[pil]": functools.partial(_several, _pil, 4),
}
