"""The handler through which pyarrow reads files of fsspec; imports pyarrow.fs, so it is imported where it is needed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyarrow import PythonFile
from pyarrow.fs import FileInfo, FileSelector, FileType, FSSpecHandler

from datarax_ray.read.formats.remote.clients import VERSION_FIELDS, NoRangesError
from datarax_ray.read.formats.remote.ranges import refusal
from datarax_ray.read.formats.remote.urls import redacted
from datarax_ray.read.retry import is_transient, status_of, words_of

_ROOT = re.compile(r"https?://[^/]*")
_URL = re.compile(r"https?://[^\s'\"<>]+")
_NO_RANGES = re.compile("support range requests|seek streaming HTTP file")
_MISSING = (None, 404, 410)


class FsspecFiles(FSSpecHandler):
    """As pyarrow's, but a file is missing only where its storage says so, and no secret of a URL is in what is said.

    pyarrow's takes every FileNotFoundError for that, which fsspec raises for a busy HTTP server too, and asks isfile()
    before it opens a file, for which fsspec gives False whatever failed.

    secret: the URLs, and their roots, by the names that stand for them here: without a query or a password. It is known
    here alone, so whatever others make of a name (an error, a log, a state) has none; nor have the errors of clients.
    """

    def __init__(self, fs: Any, secret: Mapping[str, str] | None = None) -> None:
        super().__init__(fs)
        self._secret = secret or {}
        self.missing: dict[str, int] = {}  # what a server answered of files that it has not, a status of HTTP

    def get_file_info(self, paths: Sequence[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        base = self._full(selector.base_dir)
        full = FileSelector(base, recursive=selector.recursive, allow_not_found=selector.allow_not_found)
        with self._hiding():
            found = super().get_file_info_selector(full)
        if base == selector.base_dir:
            return found
        return [FileInfo(redacted(each.path), each.type, size=each.size, mtime=each.mtime) for each in found]

    def open_input_file(self, path: str) -> Any:
        with self._hiding():
            file = self.fs.open(self._full(path), mode="rb")
        is_http = path.startswith(("http://", "https://"))
        return PythonFile(_Http(file, path, self._hiding) if is_http else file, mode="r")

    def url_of(self, path: str) -> str:
        """What clients of byte ranges are asked for; with what may be a secret in it."""
        url: str = self.fs.unstrip_protocol(self._full(path))
        return url

    def stamp(self, path: str) -> tuple[int, str]:
        """See filesystems.stamp_of: pyarrow asks fsspec for no ETag.

        One thing that tells states apart: clients say the others now by a listing that they keep, now by asking, and
        do not write times, nor quotes of ETags, alike in both.
        """
        with self._hiding():
            info = self.fs.info(self._full(path))
        version = next((info[name] for name in VERSION_FIELDS if info.get(name) is not None), "")
        return info["size"], str(version).strip('"')

    def _info(self, path: str) -> Any:
        with self._hiding():
            # a server gives the page of a listing, which is taken for a file
            if path.endswith("/") and _ROOT.match(path) and self.fs.isdir(self._full(path)):
                return FileInfo(path, FileType.Directory)
            try:
                return self._create_file_info(path, self.fs.info(self._full(path)))
            except FileNotFoundError as error:
                status = status_of(error.__cause__ or error)
                if is_transient(error) or status not in _MISSING:
                    raise
                if status:
                    self.missing[path] = status
                return FileInfo(path, FileType.NotFound)

    def _full(self, path: str) -> str:
        """What the client is asked for."""
        root = match[0] if (match := _ROOT.match(path)) else ""
        return self._secret.get(path) or self._secret.get(root, root) + path[len(root) :]

    def _hiding(self) -> contextlib.AbstractContextManager[None]:
        return hiding() if self._secret else _refusing()


class _Http:
    """A file whose errors name it, and no secret. name: without one. hiding: see FsspecFiles."""

    def __init__(self, file: Any, name: str, hiding: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._file, self._name, self._hiding = file, name, hiding

    def read(self, *args: Any) -> bytes:
        with self._hiding(), self._telling():
            found: bytes = self._file.read(*args)
            return found

    def seek(self, *args: Any) -> Any:
        with self._telling():
            return self._file.seek(*args)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """fsspec says "Cannot seek streaming HTTP file", or to open it with block_size=0, which nothing here takes."""
        try:
            yield
        except ValueError as error:
            if not _NO_RANGES.search(str(error)):
                raise
            raise NoRangesError(
                f"{self._name}: its server gives no byte ranges, or does not tell how long the file is, so it could "
                "only be read from its beginning. Copy the files, or serve them by a server that gives ranges"
            ) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def hiding() -> Iterator[None]:
    """Raise errors of a client without the URL's secret, and without what they came from, which has it as well."""
    try:
        yield
    except NoRangesError:
        raise
    except Exception as error:
        cause = error.__cause__ or error
        said = _URL.sub(lambda url: redacted(url[0]), words_of(cause))
        kind: type[OSError] = OSError
        if is_transient(error):
            kind = ConnectionError
        elif status_of(cause) in (401, 403):
            kind = PermissionError
        elif isinstance(error, FileNotFoundError) and status_of(cause) in _MISSING:
            kind = FileNotFoundError
        raise kind(said) from None


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raise what a server says of a file that it refuses: fsspec says of a 400, too, that the file is missing."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__
        if not isinstance(cause, Exception) or is_transient(error) or status_of(cause) is None:
            raise
        raise refusal(str(error), f"{error}: reading", cause) from cause
