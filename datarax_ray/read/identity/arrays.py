"""Digests of arrays, without a copy of them."""

from __future__ import annotations

import hashlib

import numpy as np

_PIECE = 64 * 1024  # elements that are looked at together


def hash_array(array: np.ndarray | np.generic) -> str:
    """SHA-256 of the elements in C order, as hex, whatever the layout. Not of objects, whose bytes are addresses."""
    found = hashlib.sha256()
    if array.size and array.itemsize:
        options = ["external_loop", "buffered"]
        for piece in np.nditer(array, options, order="C", buffersize=_PIECE):  # type: ignore[call-overload]
            found.update(piece.tobytes())
    return found.hexdigest()
