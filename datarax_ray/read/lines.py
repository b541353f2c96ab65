"""Lines of text that one process appends, and strikes out again: in a file, or behind a URL.

A storage of objects has no appending. There the lines are in parts, URL/part-00000.jsonl and so on, of some 256 KiB,
and the last one is written anew, as a whole, each time that something is added: what was added is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from datarax_ray.read.formats.remote.clients import filesystem_of
from datarax_ray.read.formats.remote.ranges import by_client
from datarax_ray.read.formats.remote.urls import is_url, redacted
from datarax_ray.read.written_whole import written_whole

_PART_NBYTES = 256 * 2**10  # a line is some 200 bytes, and each addition writes the last part
_MAX_FIRST_NBYTES = 2**20  # of a first line, which may be a whole file that is another's


class Lines(Protocol):
    """Text lines, each with its newline."""

    def first(self) -> str:
        """The first of them, "" where there is none; at most 1 MiB of it. Raises: OSError where that cannot be read."""
        ...

    def append(self, lines: Sequence[str]) -> None:
        """Add these. Raises: OSError where that cannot be; then they are not there, or some of them are."""
        ...

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Strike out all others. Raises: OSError where that cannot be."""
        ...


def lines_at(path: str) -> Lines:
    """The lines in a file, or behind a URL; those that are there already are kept."""
    return UrlLines(path) if is_url(path) else FileLines(Path(path.removeprefix("file://")))


def check_writable(url: str) -> None:
    """Raise ValueError for a URL whose client cannot write, ImportError where that is not installed."""
    if url.startswith(("http://", "https://")):
        raise ValueError(f"{redacted(url)} cannot be written: http servers are only read; give a bucket or a file")
    filesystem_of(url)


class FileLines:
    """Lines in a file of this machine, or one that it mounts."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def first(self) -> str:
        """See Lines."""
        if not self._is_readable():
            return ""
        with self._path.open("rb") as file:
            return file.readline(_MAX_FIRST_NBYTES).decode(errors="replace")

    def append(self, lines: Sequence[str]) -> None:
        """See Lines."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.writelines(lines)

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """See Lines."""
        if not self._is_readable():
            return
        lines = self._path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if is_kept(line)]
        if len(kept) < len(lines):
            with written_whole(self._path) as part:
                part.write_text("".join(kept))

    def _is_readable(self) -> bool:
        """Whether there is something, and no device or pipe, which is never read."""
        return self._path.exists() and not (self._path.is_char_device() or self._path.is_fifo())


class UrlLines:
    """Lines behind a URL, in parts below it. For one process: two that write there would take each other's away."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._last: tuple[int, str] | None = None  # the number of the last part and its text, once they were looked up

    def first(self) -> str:
        """See Lines."""
        return next((line for url in self._parts()[:1] for line in self._read(url).splitlines(keepends=True)), "")

    def append(self, lines: Sequence[str]) -> None:
        """See Lines."""
        number, text = self._last if self._last is not None else self._looked_up()
        if len(text) >= _PART_NBYTES:
            number, text = number + 1, ""
        text += "".join(lines)
        self._write(self._part(number), text.encode())
        self._last = number, text

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """See Lines."""
        self._last = None
        for url in self._parts():
            lines = self._read(url).splitlines(keepends=True)
            text = "".join(line for line in lines if is_kept(line)).encode()
            if len(text) < sum(len(line.encode()) for line in lines):
                self._write(url, text)

    def read(self) -> list[str]:
        """All of them."""
        return [line for url in self._parts() for line in self._read(url).splitlines(keepends=True)]

    def _looked_up(self) -> tuple[int, str]:
        parts = self._parts()
        return (len(parts) - 1, self._read(parts[-1])) if parts else (0, "")

    def _part(self, number: int) -> str:
        return f"{self._url}/part-{number:05d}.jsonl"

    def _parts(self) -> list[str]:
        """The URLs of the parts, in order. There are no gaps, as none is ever removed."""

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
        """What call(client, path) gives; called again where that may help."""
        client = filesystem_of(url)
        return by_client(url, doing, lambda: call(client, client._strip_protocol(url)))
