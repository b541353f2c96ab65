"""Memory of large arrays that is taken again when nobody holds them any more.

malloc gives memory of some MiB back to the kernel at once, or soon, and takes it anew, in pages that the kernel fills
with zeros when they are first written to. That costs as much as the copy of a batch into them, for every batch.
"""

from __future__ import annotations

import ctypes
import gc
import math
import weakref
from typing import Any

import numpy as np

_MIN_NBYTES = 2**20  # of less, a copy costs no more than to keep count of the memory
# As JAX wants it: an array on a CPU device then shows this memory, and holds what it is of.
_ALIGNMENT = 64
# Of a piece of memory, at least so much is used by who takes it again.
_MIN_SHARE = 0.5
_ROOM = 8  # A new piece has up to an eighth more, for arrays that are nearly alike.
_LENT: set[int] = set()  # the ids of all buffers that are lent


class ReusedMemory:
    """Makes arrays, one like the other. The memory of one comes back when the last array, view or buffer that shows it
    is gone.

    One thread makes them; any may let go of them. max_free: pieces of memory that are kept with nobody using them; what
    comes back beyond that is freed. min_nbytes: of arrays that are smaller the memory is left to malloc.
    """

    def __init__(self, max_free: int, min_nbytes: int = _MIN_NBYTES) -> None:
        self._max_free = max_free
        self._min_nbytes = min_nbytes
        self._free: list[np.ndarray] = []  # the latest last

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        nbytes = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or nbytes < self._min_nbytes:
            return np.empty(shape, dtype)
        memory = self._take(nbytes)
        # Whatever shows the memory holds this, be it through a chain of arrays and buffers: NumPy takes an array's base
        # in place of the array only where that is an array as well.
        lent: Any = (ctypes.c_char * nbytes).from_buffer(memory.data)
        weakref.finalize(lent, _give_back, weakref.ref(self), memory, id(lent)).atexit = False
        _LENT.add(id(lent))
        return np.frombuffer(lent, np.uint8).view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> np.ndarray:
        memory = self._fitting(nbytes)
        if memory is None:
            gc.collect(0)  # JAX lets go of memory that it showed only when Python collects; the youngest take 20 us
            memory = self._fitting(nbytes)
        if memory is not None:
            return memory
        self._free.clear()  # of another size, they would stay for ever in the place of those that fit
        step = 1 << max(0, nbytes.bit_length() - _ROOM.bit_length())
        size = -(-nbytes // step) * step
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        first = -memory.ctypes.data % _ALIGNMENT
        return memory[first : first + size]

    def _fitting(self, nbytes: int) -> np.ndarray | None:
        for index in range(len(self._free) - 1, -1, -1):  # other threads only append
            if nbytes <= len(self._free[index]) <= nbytes / _MIN_SHARE:
                return self._free.pop(index)
        return None


def lender(array: np.ndarray) -> Any:
    """The buffer, of a ReusedMemory's array, whose memory an array shows; None where it shows other memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if id(base) in _LENT else None


def _give_back(to: weakref.ref[ReusedMemory], memory: np.ndarray, lent: int) -> None:
    """Runs wherever the last reference goes, in the middle of anything: takes no lock."""
    _LENT.discard(lent)
    owner = to()
    if owner is not None and len(owner._free) < owner._max_free:  # several threads at once may keep some more
        owner._free.append(memory)
