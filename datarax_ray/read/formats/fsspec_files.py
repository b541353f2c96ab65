"""The handler by which pyarrow reads files of fsspec. It imports pyarrow.fs: import it where it is needed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyarrow import PythonFile
from pyarrow.fs import FileInfo, FileSelector, FileType, FSSpecHandler

from datarax_ray.read.formats.remote.clients import VERSION_FIELDS, NoRangesError, redacted
from datarax_ray.read.formats.remote.ranges import refusal
from datarax_ray.read.retry import is_transient, status_of, words_of

_ROOT = re.compile(r"https?://[^/]*")
_URL = re.compile(r"https?://[^\s'\"<>]+")
_NO_RANGES = re.compile("support range requests|seek streaming HTTP file")


class FsspecFiles(FSSpecHandler):
    """As pyarrow's handler, but a file is missing only where its storage says so, and errors hold no secret of a URL.

    pyarrow's takes every FileNotFoundError for a missing file. fsspec raises one for a busy HTTP server too.

    secret: the URLs, and their roots, by the names that stand for them here: without a query or a password. All that
        others make of a name (an error, a log, a state) has no secret, as only this object knows the URLs.
    """

    def __init__(self, fs: Any, secret: Mapping[str, str] | None = None) -> None:
        super().__init__(fs)
        self._secret = secret or {}

    def get_file_info(self, paths: Sequence[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        base = self._full(selector.base_dir)
        full = FileSelector(base, recursive=selector.recursive, allow_not_found=selector.allow_not_found)
        with self.plain_errors(selector.base_dir):
            found = super().get_file_info_selector(full)
        if base == selector.base_dir:
            return found
        return [FileInfo(redacted(each.path), each.type, size=each.size, mtime=each.mtime) for each in found]

    def open_input_file(self, path: str) -> Any:
        with self.plain_errors(path):
            file = self.fs.open(self._full(path), mode="rb")
        return PythonFile(_Http(file, path, self) if _ROOT.match(path) else file, mode="r")

    def url_of(self, path: str) -> str:
        """The URL for clients of byte ranges; with its secret."""
        return self.fs.unstrip_protocol(self._full(path))

    def stamp(self, path: str) -> tuple[int, str]:
        """See filesystems.stamp_of: pyarrow asks fsspec for no ETag.

        It is the first version field alone: clients give the others now by a listing that they keep, now by asking,
        and write times, and quotes of ETags, differently in both.
        """
        with self.plain_errors(path):
            info = self.fs.info(self._full(path))
        version = next((info[name] for name in VERSION_FIELDS if info.get(name) is not None), "")
        return info["size"], str(version).strip('"')

    def _info(self, path: str) -> Any:
        with self.plain_errors(path):
            # a server gives the page of a listing, which would pass for a file
            if path.endswith("/") and _ROOT.match(path) and self.fs.isdir(self._full(path)):
                return FileInfo(path, FileType.Directory)
            try:
                return self._create_file_info(path, self.fs.info(self._full(path)))
            except FileNotFoundError as error:
                if is_transient(error) or status_of(error.__cause__ or error) not in (None, 404, 410):
                    raise
                return FileInfo(path, FileType.NotFound)

    def _full(self, path: str) -> str:
        root = match[0] if (match := _ROOT.match(path)) else ""
        return self._secret.get(path) or self._secret.get(root, root) + path[len(root) :]

    @contextlib.contextmanager
    def plain_errors(self, path: str) -> Iterator[None]:
        """Raise a server's answer for a refused file: fsspec says of a 400, too, that the file is missing.

        Where URLs have secrets, raise every error without them, and without its cause, which has them as well.
        """
        try:
            yield
        except NoRangesError:
            raise
        except Exception as error:
            answer = error.__cause__ if isinstance(error.__cause__, Exception) else error
            passes = is_transient(error)
            is_refused = isinstance(error, FileNotFoundError) and status_of(answer) is not None and not passes
            if not (self._secret or is_refused):
                raise
            url = self.fs.unstrip_protocol(path)
            plain = ConnectionError(words_of(answer)) if passes else refusal(url, f"{redacted(url)}: reading", answer)
            said = _URL.sub(lambda found: redacted(found[0]), str(plain))
            raise type(plain)(said) from (None if self._secret else answer)


class _Http:
    """A file whose errors name it, and hold no secret."""

    def __init__(self, file: Any, name: str, files: FsspecFiles) -> None:
        self._file, self._name, self._files = file, name, files

    def read(self, *args: Any) -> bytes:
        with self._files.plain_errors(self._name), self._named():
            return self._file.read(*args)

    def seek(self, *args: Any) -> Any:
        with self._named():
            return self._file.seek(*args)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
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
