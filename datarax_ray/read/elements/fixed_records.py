"""Records of one size, held in one array in place of an object for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt


class FixedRecords(Sequence[bytes]):
    """Records that all have `size` bytes. rows: uint8 (k, size), contiguous. As a sequence, bytes that are made then.

    A decoder that says `takes_fixed_records = True` is given these in place of a list of bytes, and gives arrays that
    nobody else holds, of new memory or of the writable rows: they are not copied, as those of others are.
    """

    def __init__(self, rows: npt.NDArray[np.uint8]) -> None:
        self.rows = rows

    @property
    def size(self) -> int:
        return self.rows.shape[1]

    def writable(self) -> npt.NDArray[np.uint8]:
        """The rows, as a copy where others read them too."""
        return self.rows if self.rows.flags.writeable else self.rows.copy()

    def tolist(self) -> list[bytes]:
        if not self.size:
            return [b""] * len(self)
        found: list[bytes] = self.rows.view(f"V{self.size}").ravel().tolist()
        return found

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return FixedRecords(self.rows[index]).tolist()
        return self.rows[index].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tolist())
