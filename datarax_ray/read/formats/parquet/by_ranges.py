"""Row groups of Parquet files behind URLs, by the byte ranges of the columns that are read (formats.remote).

What pyarrow reads beyond those, as of some old writers' files, is fetched then: no byte is taken that is not there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats.decoded_groups import BrokenRowGroupError
from datarax_ray.read.formats.parquet.footers import Footers
from datarax_ray.read.formats.parquet.spans import BytesFile, RowGroupSpans, first_rows, is_of_decoding, present
from datarax_ray.read.formats.remote.mirrors import Mirrors
from datarax_ray.read.formats.remote.pages import RemoteFile
from datarax_ray.read.formats.remote.ranges import Remote

MAX_FETCHED_FILES = 128  # at once: two descriptors each
_MAX_OPEN_FILES = 256  # of 1,024 descriptors that a process often has


class RowGroupRanges:
    """The row groups of all files of a source. For one thread at a time.

    mirrors: of these files; what it is asked for are row groups.
    """

    def __init__(self, footers: Footers, remote: Remote) -> None:
        self._footers = footers
        files = [RemoteFile(file.url, file.nbytes, file.version, file.footer) for file in footers.files]
        self.mirrors = Mirrors(files, remote, partial(RowGroupSpans.of_footer, footers.names), is_whole=False)
        self._open: OrderedDict[int, Any] = OrderedDict()

    def fetch(self, wanted: Mapping[int, Indices]) -> None:
        """Have these row groups of these files in memory. Raises: as ranges.read_ranges."""
        for file in self._open.keys() & wanted:
            self._open.move_to_end(file)
        new = [file for file in wanted if file not in self._open]
        while self._open and len(self._open) + len(new) > _MAX_OPEN_FILES:
            self._shut(next(iter(self._open)))
        self.mirrors.open(new)  # their ends at once
        for file in new:
            self._open[file] = self._opened(file)
        self.mirrors.fetch(wanted)

    def table(self, file: int, index: int) -> Any:
        """The table of a row group. Raises: BrokenRowGroupError; as fetch."""
        import pyarrow as pa

        group = {file: np.array([index])}
        self.fetch(group)
        for is_again in (False, True):
            try:
                opened = self._open[file]
                return opened.read_row_group(index, columns=present(opened, self._footers.names))
            except (pa.ArrowException, OSError) as error:
                if not is_of_decoding(error):
                    raise  # of the storage, in what pyarrow read beyond what was fetched
                if is_again:
                    path = self._footers.files[file].path
                    raise BrokenRowGroupError(f"{path}, row group {index} does not decode: {error}") from error
            self.mirrors.forget(file, group[file])  # bytes that were bent on their way are no broken row group
            self.fetch(group)
        raise AssertionError("the second try returns or raises")

    def first_rows(self, file: int, index: int, count: int) -> Any:
        """As table, of its first rows alone."""
        self.fetch({file: np.array([index])})
        return first_rows(self._open[file], index, count, self._footers.names)

    def close(self) -> None:
        """Close what is open. Reading opens it again."""
        while self._open:
            self._shut(next(iter(self._open)))
        self.mirrors.close()

    def _opened(self, file: int) -> Any:
        """The ParquetFile."""
        import pyarrow as pa
        from pyarrow import parquet

        layout = self.mirrors.open([file])[file]
        assert isinstance(layout, RowGroupSpans)
        with self.mirrors.opening(file):  # its metadata is what its end was for
            raw = pa.PythonFile(BytesFile(partial(self.mirrors.read, file), self._footers.files[file].nbytes), mode="r")
            return parquet.ParquetFile(raw, metadata=layout.metadata, page_checksum_verification=True)

    def _shut(self, file: int) -> None:
        self._open.pop(file).close(force=True)
        self.mirrors.shut(file)
