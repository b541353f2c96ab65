"""Whether a transform of columns makes each row of its own row: looked at now and then, for it cannot be proved."""

from __future__ import annotations

import math
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

    Objects are compared that are arrays, numbers, text, or lists and dicts of them; others by their type alone.
    """
    of_many = many[row : row + 1]
    is_text = many.dtype.kind == one.dtype.kind and many.dtype.kind in "US"  # of any length
    if (many.dtype != one.dtype and not is_text) or of_many.shape != one.shape:
        return False
    if many.dtype.kind in "fcV" and not many.dtype.names:  # V: bfloat16 and its like
        return _are_close(one, of_many, many)
    return _is_same(of_many.tolist(), one.tolist())


def _are_close(left: np.ndarray, right: np.ndarray, all_of_it: np.ndarray) -> bool:
    wide = np.complex128 if left.dtype.kind == "c" else np.float64
    rtol = 1e-2 if left.dtype.kind == "V" else _TOLERANCES.get(left.dtype.char, 1e-8)
    sizes = np.abs(all_of_it.astype(wide))
    largest = sizes[np.isfinite(sizes)].max(initial=0.0)
    return bool(np.allclose(left.astype(wide), right.astype(wide), rtol=rtol, atol=rtol * largest, equal_nan=True))


def _is_same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_is_same(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray):
        return are_alike(left[None], 0, right[None])
    if isinstance(left, np.generic):
        return _is_same(left.item(), right.item())
    if isinstance(left, float):
        return left == right or left != left or math.isclose(left, right, rel_tol=1e-4, abs_tol=1e-6)
    return left == right if isinstance(left, bool | int | str | bytes) else True
