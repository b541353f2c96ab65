"""Arrays that map a file travel as the file's name and their place in it, and are mapped again where they arrive."""

from __future__ import annotations

import logging
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.read.file_contents import head_and_content

logger = logging.getLogger("datarax_ray")

_SMALL_NBYTES = 64 * 1024  # what travels as quickly as the name of a file


@dataclass(frozen=True)
class MappedArray:
    """The place of an array in a file. offset: of its first element, from `start`, where the bytes begin that it spans.

    nbytes: from start on. file_nbytes, content: of the whole file; see read.file_contents.
    """

    path: str
    file_nbytes: int
    content: str
    start: int
    nbytes: int
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_memmap: bool

    @classmethod
    def of(cls, array: Any) -> MappedArray | None:
        """The place of a large array that maps a file, or is a view of one that does; None for any other array.

        A copy-on-write map (mode "c") may hold what the file does not: it has no place, with a warning.
        """
        if type(array) not in (np.ndarray, np.memmap) or array.nbytes < _SMALL_NBYTES:
            return None
        owner = array
        while isinstance(owner, np.ndarray) and not isinstance(owner.base, mmap.mmap):
            owner = owner.base
        if not isinstance(owner, np.memmap):
            return None
        path = os.path.abspath(owner.filename) if owner.filename is not None else ""
        if owner.mode == "c" or not os.path.isfile(path):
            why = 'it is mapped copy-on-write (mode="c")' if owner.mode == "c" else "its file has no name"
            logger.warning(
                "an array of %.1f MB that maps %s is read and copied to the actors, because %s; map a file that all "
                'nodes have, with mode="r"',
                *(array.nbytes / 1e6, path or "a file", why),
            )
            return None
        if owner.mode != "r":
            owner.flush()
        low, high = np.lib.array_utils.byte_bounds(array)
        start = owner.offset + low - owner.ctypes.data
        return cls(
            path,
            os.path.getsize(path),
            head_and_content(path)[1],
            start,
            high - low,
            array.ctypes.data - low,
            array.dtype,
            array.shape,
            array.strides,
            type(array) is np.memmap,
        )

    def mapped(self) -> np.ndarray:
        """The array, which nobody can write to. Raises: OSError where the file is not there; ValueError for another."""
        remedy = (
            f"The program maps {self.path} ({self.file_nbytes / 1e6:,.1f} MB), and every node with actors needs this "
            "file under this path: put it on a shared filesystem, or give an array in memory (np.array(mapped)), which "
            "is copied to each node"
        )
        try:
            nbytes, content = os.path.getsize(self.path), head_and_content(self.path)[1]
        except OSError as error:
            error.add_note(remedy)
            raise
        if (nbytes, content) != (self.file_nbytes, self.content):
            raise ValueError(
                f"{self.path} has {nbytes:,} bytes here, and others than the {self.file_nbytes:,} that the program "
                f"maps. {remedy}"
            )
        held = np.memmap(self.path, np.uint8, "r", self.start, (self.nbytes,))
        array = np.ndarray(self.shape, self.dtype, held, self.offset, self.strides)
        return array.view(np.memmap) if self.is_memmap else array
