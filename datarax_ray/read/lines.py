"""Files that are written whole, and lines of text that one process appends and strikes out: in a file or behind a URL.

A storage of objects cannot append. Lines behind a URL are in parts, URL/part-00000.jsonl and so on, of some 256 KiB.
Each addition writes the last part anew, as a whole, so all lines that were added are complete.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from datarax_ray.read.formats.remote.clients import filesystem_of, is_url, redacted
from datarax_ray.read.formats.remote.ranges import by_client

_PART_NBYTES = 256 * 2**10  # a line is some 200 bytes, and each addition writes the last part
_MAX_FIRST_NBYTES = 2**20  # of a first line, which may be a whole file of another kind


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A new path to write to; the file replaces `path` at the end of the `with` block, or is removed on an error."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        os.replace(part, path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:  # a full disk names no path
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


def lines_at(path: str) -> Lines:
    """The lines in a file, or behind a URL. Lines of a former run stay."""
    return UrlLines(path) if is_url(path) else FileLines(Path(path.removeprefix("file://")))


def check_writable(url: str) -> None:
    """Raise ValueError for a URL whose client cannot write, ImportError where the client is not installed."""
    if url.startswith(("http://", "https://")):
        raise ValueError(f"{redacted(url)} cannot be written: http servers are only read; give a bucket or a file")
    filesystem_of(url)


class FileLines:
    """Lines in a file of this machine, or of a mount. Each method raises OSError where it cannot be done."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def first(self) -> str:
        """The first line, at most 1 MiB of it; "" where there is none."""
        if not self._is_readable():
            return ""
        with self._path.open("rb") as file:
            return file.readline(_MAX_FIRST_NBYTES).decode(errors="replace")

    def append(self, lines: Sequence[str]) -> None:
        """Add these lines, each with its newline. An OSError may leave some of them written."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.writelines(lines)

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Strike out all other lines."""
        if not self._is_readable():
            return
        lines = self._path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if is_kept(line)]
        if len(kept) < len(lines):
            with written_whole(self._path) as part:
                part.write_text("".join(kept))

    def _is_readable(self) -> bool:
        """Whether there is a file, and no device or pipe, which is never read."""
        return self._path.exists() and not (self._path.is_char_device() or self._path.is_fifo())


class UrlLines:
    """As FileLines, in parts below a URL. For one writing process: two would remove lines of one another."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._last: tuple[int, str] | None = None  # the number and text of the last part, once it was looked up

    def first(self) -> str:
        return next((line for url in self._parts()[:1] for line in self._read(url).splitlines(keepends=True)), "")

    def append(self, lines: Sequence[str]) -> None:
        if self._last is None:
            parts = self._parts()
            self._last = (len(parts) - 1, self._read(parts[-1])) if parts else (0, "")
        number, text = self._last
        if len(text) >= _PART_NBYTES:
            number, text = number + 1, ""
        text += "".join(lines)
        self._write(self._part(number), text.encode())
        self._last = number, text

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        self._last = None
        for url in self._parts():
            lines = self._read(url).splitlines(keepends=True)
            kept = [line for line in lines if is_kept(line)]
            if len(kept) < len(lines):
                self._write(url, "".join(kept).encode())

    def read(self) -> list[str]:
        return [line for url in self._parts() for line in self._read(url).splitlines(keepends=True)]

    def _part(self, number: int) -> str:
        return f"{self._url}/part-{number:05d}.jsonl"

    def _parts(self) -> list[str]:
        """The URLs of the parts, in order. There are no gaps, as no part is ever removed."""

        def found(client: Any, path: str) -> list[str]:
            client.invalidate_cache()  # clients are kept for the process, and most of them keep listings without an end
            return [name for name in client.find(path) if name.endswith(".jsonl")]

        return [self._part(number) for number in range(len(self._do("listing it", found, self._url)))]

    def _write(self, url: str, text: bytes) -> None:
        self._do("writing it", lambda client, path: client.pipe_file(path, text), url)

    def _read(self, url: str) -> str:
        found: bytes = self._do("reading it", lambda client, path: client.cat_file(path), url)
        return found.decode()

    def _do(self, doing: str, call: Callable[[Any, str], Any], url: str) -> Any:
        """The result of call(client, path); called again where that may help."""
        client = filesystem_of(url)
        return by_client(url, doing, lambda: call(client, client._strip_protocol(url)))


Lines: TypeAlias = FileLines | UrlLines
