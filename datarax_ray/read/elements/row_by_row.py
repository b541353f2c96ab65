"""Whether a transform of columns makes each row of its own row: looked at now and then, for it cannot be proved."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

# How many blocks each transform has mapped in this process, by its id.
_BLOCKS: dict[int, tuple[weakref.ref[Any], int]] = {}
# Of the largest number of a column, or of what a number should be: a matrix product rounds by how many rows it has.
_TOLERANCES = {"e": 1e-2, "f": 1e-4, "F": 1e-4}


def look_due(transform: Any) -> int:
    """The number of this look, from 1 on, where the block that was mapped now is to be looked at; else 0.

    Blocks 1, 2, 4, 8 and so on are: the first rows of sorted data may be all alike, and each look costs a call.
    """
    key = id(transform)
    known, before = _BLOCKS.get(key, (lambda: None, 0))
    count = before + 1 if known() is transform else 1
    try:
        _BLOCKS[key] = weakref.ref(transform, lambda _: _BLOCKS.pop(key, None)), count
    except TypeError:  # of a class with slots: every block is its first
        return 1
    return 0 if count & (count - 1) else count.bit_length()


def are_alike(many: np.ndarray, row: int, one: np.ndarray) -> bool:
    """Whether a row of a column is the one row of another, but for how numbers are rounded in larger arrays.

    What objects hold beside numbers, text and lists of them is not compared.
    """
    of_many = many[row : row + 1]
    is_text = many.dtype.kind == one.dtype.kind and many.dtype.kind in "US"  # of any length
    if (many.dtype != one.dtype and not is_text) or of_many.shape != one.shape:
        return False
    if many.dtype.kind in "fcV" and not many.dtype.names:  # V: bfloat16 and its like
        wide = np.complex128 if many.dtype.kind == "c" else np.float64
        rtol = 1e-2 if many.dtype.kind == "V" else _TOLERANCES.get(many.dtype.char, 1e-8)
        got, want = one.astype(wide), of_many.astype(wide)
        largest = np.abs(want[np.isfinite(want)]).max(initial=0.0)
        return bool(np.allclose(got, want, rtol=rtol, atol=rtol * largest, equal_nan=True))
    return _is_same(of_many.tolist(), one.tolist())


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, bool | int | float | str | bytes) and isinstance(right, bool | int | float | str | bytes):
        return left == right or (left != left and right != right)
    return type(left) is type(right)
