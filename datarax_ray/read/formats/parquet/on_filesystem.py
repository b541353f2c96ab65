"""Row groups of Parquet files on a filesystem of pyarrow's: first their bytes, then what these decode to.

To pyarrow a broken page, a lost connection and a file replaced are all an OSError. What fails while bytes are brought
is the storage's; what does not decode once they are in memory is broken.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np

from datarax_ray.read.formats.decoded_groups import BrokenRowGroupError
from datarax_ray.read.formats.filesystems import changed, read_whole, stamp_of
from datarax_ray.read.formats.parquet.footers import Footers, opened_in
from datarax_ray.read.formats.parquet.spans import BytesFile, RowGroupSpans, first_rows, is_of_decoding, present
from datarax_ray.read.formats.sniff import incomplete
from datarax_ray.read.laps import lap
from datarax_ray.read.retry import is_transient, retried

_MAX_OPEN_FILES = 64
_GAP_NBYTES = 64 * 2**10  # between columns: to read so much more costs less than to ask once more


class RowGroupFiles:
    """The row groups of all files of a source. For one thread at a time."""

    def __init__(self, footers: Footers) -> None:
        self._footers = footers
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()

    def table(self, file: int, index: int) -> Any:
        """The table of a row group. Raises: BrokenRowGroupError; OSError where the file is gone or its storage fails;
        ValueError where it is no longer the file whose footer was read.
        """
        return retried(lambda: self._table(file, index), f"{self._footers.files[file].path}, row group {index}")

    def first_rows(self, file: int, index: int, count: int) -> Any:
        """As table, of its first rows alone."""
        return first_rows(self._opened(file).parquet, index, count, self._footers.names)

    def close(self) -> None:
        """Close what is open. Reading opens it again."""
        while self._open:
            self._shut(next(iter(self._open)))

    def _table(self, file: int, index: int) -> Any:
        import pyarrow as pa

        path = self._footers.files[file].path
        broken: Exception | None = None
        for _ in range(2):  # in an instant the bytes may be others: of a file that is replaced, or bent on their way
            opened = self._opened(file)
            table = None
            try:
                with opened.holding(index):
                    table = opened.parquet.read_row_group(index, columns=present(opened.parquet, self._footers.names))
            except (pa.ArrowException, OSError) as error:
                self._shut(file)  # a connection that failed may fail for good
                broken = error
            with lap("storage"):
                now = stamp_of(self._footers.filesystem, path)
            if now != opened.seen:  # of a file that was cut, less comes for good
                raise changed(path, f"it had (bytes, version) {opened.seen}, and has {now}") from broken
            if table is not None:
                return table
            assert broken is not None
            if is_transient(broken) or not is_of_decoding(broken):
                raise broken
        raise BrokenRowGroupError(f"{path}, row group {index} does not decode: {broken}") from broken

    def _opened(self, file: int) -> _OpenFile:
        if file in self._open:
            self._open.move_to_end(file)
            return self._open[file]
        while len(self._open) >= _MAX_OPEN_FILES:
            self._shut(next(iter(self._open)))
        expected = self._footers.files[file]
        opened = _OpenFile(self._footers, expected.path)
        if opened.footer != expected:
            found = opened.footer
            opened.close()
            raise ValueError(
                f"{expected.path} held {expected.num_rows} rows in {len(expected.rows)} row groups and "
                f"{expected.nbytes:,} bytes when the source was made and holds {found.num_rows} in {len(found.rows)} "
                f"and {found.nbytes:,} now, or other data of that size; it was replaced, and reading on would mix two "
                "datasets. Make a new source."
            )
        self._open[file] = opened
        return opened

    def _shut(self, file: int) -> None:
        self._open.pop(file).close()


class _OpenFile:
    """A file that is read through the bytes of the row group that is held.

    parquet: the ParquetFile. footer: its FileFooter. seen: its stamp, from before it was opened.
    """

    def __init__(self, footers: Footers, path: str) -> None:
        import pyarrow as pa

        self._held: list[tuple[int, Any]] = []
        with lap("storage"):
            self.seen = stamp_of(footers.filesystem, path)
            self._raw = footers.filesystem.open_input_file(path)
        try:
            nbytes = self._raw.size()
            file = pa.PythonFile(BytesFile(self._read, nbytes), mode="r")
            self.parquet, self.footer = opened_in(file, path, lambda _: footers.leaves)
            try:
                self._spans = RowGroupSpans.of_metadata(self.parquet.metadata, footers.names, self.footer.footer)
            except OSError as error:
                raise incomplete(path, "Parquet", error, "") from error
        except BaseException:
            self._raw.close()
            raise

    @contextlib.contextmanager
    def holding(self, index: int) -> Iterator[None]:
        """With the bytes of a row group in memory, of the columns that are read: nothing is waited for then."""
        import pyarrow as pa

        spans = self._spans.of(np.array([index]))
        with lap("storage"):
            for run in np.split(spans, np.flatnonzero(spans[1:, 0] > spans[:-1, 1] + _GAP_NBYTES) + 1):
                if len(run):
                    start, stop = int(run[0, 0]), int(run[:, 1].max())
                    self._held.append((start, pa.py_buffer(read_whole(self._raw, start, stop))))
        try:
            yield
        finally:
            self._held = []

    def close(self) -> None:
        self.parquet.close(force=True)
        self._raw.close()

    def _read(self, start: int, stop: int) -> Any:
        for begin, held in self._held:
            if begin <= start and stop <= begin + held.size:
                return held.slice(start - begin, stop - start)
        with lap("storage"):
            return read_whole(self._raw, start, stop)
