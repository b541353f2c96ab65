"""Text files as shards that are read forwards, such as compressed ones, in which no row is found by its number.

Unpacked gives the text in a compressed file: all of its members or frames, one after another.
"""

from __future__ import annotations

import bz2
import functools
import io
import lzma
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.files import sniff
from datarax_ray.read.files.filesystems import changed, find_on, stamp_of
from datarax_ray.read.formats.arrow.columns import ColumnTypes
from datarax_ray.read.formats.decoded_groups import BrokenRowGroupError
from datarax_ray.read.formats.file_spans import content_of
from datarax_ray.read.formats.text.blocks import MAX_ROW_NBYTES, TOO_LONG, look_at, rows_of, unreadable
from datarax_ray.read.formats.text.deciding import Decided, Parser, Rows, Sample, Samples
from datarax_ray.read.formats.text.json_syntax import JSONLines
from datarax_ray.read.formats.text.syntax import BOM, CSV, Lines, Syntax
from datarax_ray.read.retry import is_transient, retried
from datarax_ray.read.streams.open_shards import Broken, RetriedRun, ShardReader, ShardRun
from datarax_ray.read.streams.open_shards import Rows as Elements

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


# Of the files that are read of a directory.
SUFFIXES_OF_TEXT = tuple(
    f"{suffix}{packed}" for kind in (CSV, JSONLines, Lines) for suffix in kind.suffixes for packed in SUFFIXES
)
_PORTION_NBYTES = 2**20  # of text that is parsed at a time: large enough to be worth the call
_LOOKED_AT_NBYTES = 256 * 2**10  # of each file, by which types are inferred


@dataclass(frozen=True)
class TextShard:
    """One file. begin: where its first row is, in bytes of text. names: of its columns. content: content_of."""

    path: str
    nbytes: int
    begin: int
    names: tuple[str, ...]
    content: str


class TextShards(ShardReader):
    """The rows of text files, a shard for each; see ShardReader. A cursor holds bytes of text, and rows."""

    def __init__(self, filesystem: Any, files: tuple[TextShard, ...], parser: Parser) -> None:
        self.filesystem, self.files, self.parser = filesystem, files, parser
        self.num_shards = len(files)

    @classmethod
    def of(
        cls,
        paths: Any,
        syntax: Syntax,
        *,
        filesystem: Any = None,
        column_types: Mapping[str, Any] | None = None,
        on_null: Any = None,
        schema_rows: int | None = None,
    ) -> TextShards:
        """Look at the first rows of every file that `paths` names (see filesystems.find_on).

        schema_rows: rows of each file that decide the types of columns: None for its first 256 KiB, -1 for all.
        Raises: as TextReader.of.
        """
        types = dict(column_types or {})
        filesystem, found = find_on(paths, filesystem, SUFFIXES_OF_TEXT)

        def inspect(path: str, syntax: Syntax, samples: Samples) -> tuple[TextShard, list[Sample]]:
            return _inspect(filesystem, path, syntax, samples, schema_rows)

        syntax, files, kept = look_at(found, syntax, types, functools.partial(Unpacked, filesystem), inspect)
        decided, table = Decided.of(kept, syntax, types, None)
        return cls(filesystem, files, Parser(decided, ColumnTypes.of(table, on_null=on_null)))

    @property
    def column_types(self) -> ColumnTypes:
        return self.parser.types

    def run(self, epoch: int, shard: int, state: Mapping[str, Any] | None) -> ShardRun:
        return RetriedRun(functools.partial(_TextRun, self, self.files[shard]), state)

    def locate(self, shard: int, index: int) -> str:
        return f"{self.files[shard].path}[{index}]"

    def fingerprint(self) -> dict[str, Any]:
        """Names without directories, sizes, some bytes of each file, columns and their types."""
        return {
            "num_files": len(self.files),
            "nbytes": sum(file.nbytes for file in self.files),
            "digest": digest([[os.path.basename(file.path), file.nbytes] for file in self.files]),
            "content": digest([file.content for file in self.files]),
            **self.parser.settings(),
        }


def head_of(filesystem: Any, paths: Sequence[str]) -> tuple[str | None, bytes]:
    """The format (see sniff) and the first bytes of the text in the first file that is not empty."""

    def head(path: str) -> bytes:
        with Unpacked(filesystem, path) as text:
            return text.read(sniff.HEAD_NBYTES)

    for path in paths:
        if found := retried(functools.partial(head, path), path):
            name = sniff.file_format(found)
            inside = path.lower().removesuffix(next((end for end in SUFFIXES[1:] if path.lower().endswith(end)), ""))
            # values with newlines, of one column
            return "CSV" if name == "text" and inside.endswith(CSV.suffixes) else name, found
    return None, b""


def _inspect(
    filesystem: Any, path: str, syntax: Syntax, samples: Samples, schema_rows: int | None
) -> tuple[TextShard, list[Sample]]:
    """The file, and samples of its rows: each of a kind that was not seen before."""
    import pyarrow as pa

    kept, num_rows, begin = [], 0, 0
    names = () if syntax.has_header else syntax.names(b"")
    num_skipped = syntax.num_skipped
    with Unpacked(filesystem, path) as text, filesystem.open_input_file(path) as raw:
        try:
            cut = Cut(text, syntax)
            while (found := cut.next()) is not None:
                at, data, rows = found
                if num_skipped:
                    begin = at + int(rows[:num_skipped][-1, 1])
                    num_skipped, rows = max(0, num_skipped - len(rows)), rows[num_skipped:]
                if syntax.has_header and not names and len(rows):
                    names, begin = syntax.names(data[rows[0, 0] : rows[0, 1]]), at + int(rows[0, 1])
                    rows = rows[1:]
                most = len(rows)
                if schema_rows is None:
                    most = max(1, int(np.searchsorted(rows[:, 1], _LOOKED_AT_NBYTES - at, side="right")))
                elif schema_rows >= 0:
                    most = min(most, schema_rows - num_rows)
                num_rows += most
                if len(rows) and most:
                    sample = Sample(path, names, data[rows[0, 0] : rows[most - 1, 1]])
                    kept += [sample] if samples.is_new(sample) else []
                if cut.at >= _LOOKED_AT_NBYTES if schema_rows is None else 0 <= schema_rows <= num_rows:
                    break
            if syntax.has_header and not names:
                raise ValueError("it is empty, without a row that names its columns")
        except (ValueError, pa.ArrowException) as error:
            raise unreadable(path, syntax, error) from error
        return TextShard(path, raw.size(), begin, names, content_of(raw, raw.size())), kept


class Cut:
    """Cuts text into portions of whole rows, the same from a place on however often it is begun there.

    at: where the next portion begins, in bytes of text.
    """

    def __init__(self, text: Unpacked, syntax: Syntax, at: int = 0) -> None:
        self._text, self._syntax = text, syntax
        self.at = text.seek(at)
        self._data = text.read(len(BOM)) if not at else b""
        if self._data == BOM:
            self.at, self._data = len(BOM), b""

    def next(self) -> tuple[int, bytes, Indices] | None:
        """Where a portion begins, its text, and where its rows are in that: int64 (k, 2), k >= 1. None at the end."""
        step = _PORTION_NBYTES
        while True:
            self._data += self._text.read(max(0, step + 1 - len(self._data)))  # one more, to know the end
            if not self._data:
                return None
            is_last = len(self._data) <= step
            part = self._data[:step]
            rows = rows_of(self._syntax, part, is_last)
            if len(rows):
                used = int(rows[-1, 1])
                used += part.startswith(b"\n", used)
                begin, self.at = self.at, self.at + used
                self._data = self._data[used:]
                return begin, part, rows
            if is_last:
                return None
            if step > MAX_ROW_NBYTES:
                raise ValueError(TOO_LONG.format(self.at, step))
            step *= 2


class _TextRun:
    """See ShardRun. A row that is broken is said to be when it is due."""

    def __init__(self, shards: TextShards, file: TextShard, state: Mapping[str, Any] | None) -> None:
        self._shards, self._file = shards, file
        self._stamp = stamp_of(shards.filesystem, file.path)
        with shards.filesystem.open_input_file(file.path) as raw:
            if content_of(raw, raw.size()) != file.content:
                raise changed(file.path, f"it has {raw.size():,} bytes, and had {file.nbytes:,} others at first")
        self._text = Unpacked(shards.filesystem, file.path)
        self._num_rows = 0 if state is None else int(state["rows"])
        self._cut = Cut(self._text, shards.parser.decided.syntax, file.begin if state is None else int(state["nbytes"]))

    def next(self) -> list[Elements] | None:
        found = self._cut.next()
        if (now := stamp_of(self._shards.filesystem, self._file.path)) != self._stamp:
            raise changed(self._file.path, f"it had (bytes, version) {self._stamp}, and has {now}")
        if found is None:
            return None
        _, data, rows = found
        begin, self._num_rows = self._num_rows, self._num_rows + len(rows)
        return self._parts(data, rows, begin)

    def state(self) -> Mapping[str, Any]:
        return {"nbytes": self._cut.at, "rows": self._num_rows}

    def close(self) -> None:
        self._text.close()

    def _parts(self, data: bytes, rows: Indices, begin: int) -> list[Elements]:
        """The columns of runs of rows that can be read, and the broken rows between them."""
        parts: list[Elements] = []
        waiting = [(0, len(rows))]
        while waiting:
            start, stop = waiting.pop()
            path, names = self._file.path, self._file.names
            where = f"{path}[{begin + start}]" if stop - start == 1 else f"{path}[{begin + start}:{begin + stop}]"
            try:
                some = data[rows[start, 0] : rows[stop - 1, 1]]
                parts.append(self._shards.parser.columns(Rows(some, path, names, stop - start, where)))
            except BrokenRowGroupError as error:
                if stop - start == 1:
                    parts.append(Broken(error))
                else:
                    middle = (start + stop) // 2
                    waiting += [(middle, stop), (start, middle)]
        return parts
