"""Compressed files as streams of what is in them: every member or frame of a file, to its very end."""

from __future__ import annotations

import bz2
import io
import lzma
import threading
from typing import Any

from datarax_ray.read.files import sniff
from datarax_ray.read.retry import is_transient

SUFFIXES = ("", ".gz", ".zst", ".bz2", ".xz")
CODECS = ("gzip", "zstd", "bzip2", "xz")  # of the kinds of files
_BUFFER_NBYTES = 4 * 2**20  # of a file on a server each read is a request
_SKIPPED_NBYTES = 8 * 2**20


class Unpacked(io.RawIOBase):
    """The bytes of a file, unpacked if it is compressed. Reads forwards; a jump back begins anew. For one thread, but
    for read_at.

    pyarrow (26.0) reads several members of gzip and several frames of zstd as one, and raises at a file that ends
    within one. So do Python's modules of bzip2 and xz. pyarrow has no xz, and its bzip2 fails between two members if a
    read ends there.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        with filesystem.open_input_file(path) as raw:
            self.kind = sniff.file_format(raw.read(8)) or ""
        self._size: int | None = None
        self._lock = threading.Lock()
        self._open()

    def read(self, size: int | None = -1) -> bytes:
        """The next `size` bytes, fewer at the end alone. Raises: ValueError for a file that was cut or is damaged."""
        import pyarrow as pa

        parts, left = [], -1 if size is None else size
        try:
            while left and (part := self._file.read(left)):
                parts.append(part)
                left = max(-1, left - len(part))
        except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
            if is_transient(error) or getattr(error, "errno", None) is not None:
                raise
            raise ValueError(
                f"{self._path} is not a whole {self.kind} file: {error}. It was cut short or damaged behind "
                f"{self._at + sum(map(len, parts)):,} bytes of text; copy it again"
            ) from error
        found = parts[0] if len(parts) == 1 else b"".join(parts)
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset of the unpacked bytes, or to their end."""
        if whence == io.SEEK_SET and offset < self._at:
            self._file.close()
            self._open()
        while left := -1 if whence == io.SEEK_END else offset - self._at:
            if not self.read(_SKIPPED_NBYTES if left < 0 else min(left, _SKIPPED_NBYTES)):
                break
        return self._at

    def size(self) -> int:
        """The number of unpacked bytes; unpacks all of them once."""
        with self._lock:
            self._size = self.seek(0, io.SEEK_END) if self._size is None else self._size
            return self._size

    def read_at(self, nbytes: int, offset: int) -> bytes:
        with self._lock:
            self.seek(offset)
            return self.read(nbytes)

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def _open(self) -> None:
        import pyarrow as pa

        opened = {
            "gzip": pa.CompressedInputStream,
            "zstd": pa.CompressedInputStream,
            "bzip2": lambda raw, _: bz2.BZ2File(raw),
            "xz": lambda raw, _: lzma.LZMAFile(raw),  # noqa: SIM115
        }
        raw = self._filesystem.open_input_stream(self._path, None, _BUFFER_NBYTES)
        self._file: Any = opened[self.kind](raw, self.kind) if self.kind in opened else raw
        self._at = 0


class UnpackedFiles:
    """A filesystem whose files are unpacked where they are opened, so that any of their bytes can be asked for.

    To read in another order than forwards is to unpack again.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self.handler = getattr(filesystem, "handler", None)  # for stamps

    def open_input_file(self, path: str) -> Unpacked:
        return Unpacked(self._filesystem, path)

    def get_file_info(self, path: str) -> Any:
        return self._filesystem.get_file_info(path)
