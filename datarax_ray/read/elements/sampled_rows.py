"""Sampled rows and digests of arrays: the identity of data that has no name or checksum."""

from __future__ import annotations

import hashlib
import re

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.elements.columns import Columns, leaves

MAX_WHOLE = 20_000  # of so few small rows all are looked at, once: some tenths of a second
_PIECE = 64 * 1024  # elements that are looked at together
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the repr of an object, another one in every process


def evenly_spaced(num_records: int, count: int) -> Indices:
    """At most `count` indices of [0, num_records), at least 2 if there are so many: the ends and evenly between.

    >>> evenly_spaced(101, 5).tolist()
    [0, 25, 50, 75, 100]
    """
    count = max(2, min(num_records, count))
    found = np.linspace(0, num_records - 1, count).astype(np.int64)
    return found[np.diff(found, prepend=-1) > 0]  # np.unique of what is in order, in a twentieth of the time


def rows_digest(columns: Columns) -> str:
    """A digest of the names, dtypes, shapes and values of these rows."""
    parts = [[".".join(path), str(array.dtype), list(array.shape[1:]), _hash(array)] for path, array in leaves(columns)]
    return digest(parts)


def _hash(array: np.ndarray) -> str:
    if array.dtype == object:
        return hashlib.sha256(ADDRESS.sub("", repr(array.tolist())).encode()).hexdigest()
    return hash_array(array)


def hash_array(array: np.ndarray | np.generic) -> str:
    """SHA-256 of the elements in C order, as hex, whatever the layout, without a copy of them. Not of objects, whose
    bytes are addresses.
    """
    found = hashlib.sha256()
    if array.size and array.itemsize:
        options = ["external_loop", "buffered"]
        for piece in np.nditer(array, options, order="C", buffersize=_PIECE):  # type: ignore[call-overload]
            found.update(piece.tobytes())
    return found.hexdigest()
