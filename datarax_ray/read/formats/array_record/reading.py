"""How records of one ArrayRecord file are read: the cheapest calls for what is wanted, and the way to rows.

Source: google/array_record, python/array_record_reader.cc. `read(list)` builds a table over the whole file each time,
`read(start, stop)` does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from datarax_ray.plan.orders.cipher import Indices

# Measured, on one core with zstd. `read(start, stop)` decodes each group that it touches: 4 us for one record in a
# group of its own, 14 to 18 us a record for 2 to 64 such groups at once, and the cheapest from about 1,024 on.
_LONG_RUN_GROUPS = 1024
# `read(list)` builds a table over the whole file and pays some 20 us for each of its first 100 groups, then decodes
# each group once; below these it is dearer than a range for each group, whatever is dropped from them.
_LIST_MIN_GROUPS = 64
_LIST_MIN_RECORDS_PER_GROUP = 3
# Of records that are read before they are copied to their places: so many are in the core's cache still. Measured,
# beside reading all of a block first: 64 B 2.4 us a record to 2.2, 4 KB 10.7 to 10.2, 150 KB 63 to 58.
CACHED_NBYTES = 64 * 2**10


class UnevenError(Exception):
    """Records of one size so far, and here is another."""


def reading(wanted: Indices, group_size: int) -> Literal["range", "list", "groups"]:
    """The cheapest way to read these records of one file: one range, one list, or a range for each of their groups.

    wanted: int64 (k,), ascending, distinct unless group_size is 1, k >= 1.

    >>> reading(np.arange(0, 400_000, 100), group_size=1)
    'groups'
    >>> reading(np.arange(0, 62_500, 32), group_size=256)
    'list'
    >>> reading(np.arange(5_000, 9_000), group_size=1)
    'range'
    """
    if len(wanted) < _LIST_MIN_GROUPS * _LIST_MIN_RECORDS_PER_GROUP:
        return "groups"  # at once: of many small files, a read takes one or two records of each
    if len(wanted) >= _LONG_RUN_GROUPS * group_size and bool((np.diff(wanted) == 1).all()):
        return "range"
    num_groups = 1 + np.count_nonzero(np.diff(wanted // group_size))
    if group_size > 1 and num_groups >= _LIST_MIN_GROUPS and len(wanted) >= _LIST_MIN_RECORDS_PER_GROUP * num_groups:
        return "list"
    return "groups"


def read_groups(read: Callable[[int, int], list[bytes]], wanted: Indices, group_size: int) -> list[bytes]:
    """One range for each group, from the first to the last record wanted of it."""
    indices = wanted.tolist()
    if group_size == 1 or len(indices) == 1:
        return [read(index, index + 1)[0] for index in indices]
    cuts = (np.flatnonzero(np.diff(wanted // group_size)) + 1).tolist()
    found: list[bytes] = []
    for lo, hi in itertools.pairwise([0, *cuts, len(indices)]):
        start = indices[lo]
        records = read(start, indices[hi - 1] + 1)
        found += records if len(records) == hi - lo else [records[index - start] for index in indices[lo:hi]]
    return found


def put(rows: np.ndarray, places: Indices, found: Sequence[bytes]) -> None:
    """Write records to rows of their own. places: int64 (k,), the row of each. Raises: UnevenError."""
    if not {rows.shape[1]}.issuperset(map(len, found)):
        raise UnevenError
    rows[places] = np.ndarray((len(found), rows.shape[1]), np.uint8, b"".join(found))
