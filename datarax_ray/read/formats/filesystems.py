"""From what a user names (paths, globs, directories, URLs) to one pyarrow filesystem and the files in it, in order."""

from __future__ import annotations

import glob
import itertools
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Any

from datarax_ray.plan.arguments import ordered
from datarax_ray.plan.fingerprint import shown
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.paths import (
    FileSlice,
    check_links,
    check_there,
    for_people,
    not_utf_8,
    tell_repeats,
    tell_splits,
)
from datarax_ray.read.formats.remote.clients import filesystem_of, scheme_of
from datarax_ray.read.formats.remote.listing import is_hidden
from datarax_ray.read.formats.remote.urls import redacted
from datarax_ray.read.retry import retried

logger = logging.getLogger("datarax_ray")

_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_SCHEME = re.compile(r"(?P<root>[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*)")


def find_on(
    paths: Any, filesystem: Any, suffixes: Sequence[str], *, unseen: bool = False, named: Any = None
) -> tuple[Any, tuple[str, ...]]:
    """The filesystem, and the files that `paths` names on it, each once for each time that it is named; asked again
    where the storage fails for a while.

    paths: a path (str or os.PathLike), glob, directory or URL (s3://, gs://, hf://, memory://, ...), or an iterable of
        these. What a glob or a directory holds comes in sorted order; a list keeps its own. Of a directory and those
        below it, the files with these suffixes ("*" in one is any text) are taken, but nothing whose name begins with
        "." or "_".
    filesystem: a pyarrow or fsspec filesystem that paths are on; None for what the URLs name, else this machine's.
    unseen: URLs of http(s) that are no glob and do not end in "/" are files, for which no server is asked.
    named: what people said, where paths were made of that; None for paths.

    Raises: FileNotFoundError where nothing is found, and for a link on this machine to what is not there, which pyarrow
    leaves out of what it lists; ValueError for paths on several filesystems; TypeError for what is no path, and for a
    set of paths; ValueError for names that are not UTF-8.
    """
    ordered("paths", paths)
    each = [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    for path in each:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"a path is a str or os.PathLike, or an iterable of these, got {shown(path)}")
    if not each:
        raise ValueError("paths is empty; give at least one file, glob or directory")
    texts, said = [os.fspath(path) for path in each], for_people(paths if named is None else named)
    return retried(lambda: _found(texts, filesystem, suffixes, unseen), f"{said} while it was looked up")


def _found(texts: list[str], filesystem: Any, suffixes: Sequence[str], unseen: bool) -> tuple[Any, tuple[str, ...]]:
    from pyarrow.fs import FileSystem

    if filesystem is None:
        filesystem, texts = _from_urls(texts)
    elif not isinstance(filesystem, FileSystem):
        filesystem, texts = _wrap(filesystem, texts)
    try:
        found = tuple(
            file
            for text in texts
            for file in ([text] if unseen and _is_one_file(text) else _expand(filesystem, text, suffixes))
        )
        if "" not in suffixes:  # else who asks only looks
            tell_repeats([*map(FileSlice, found)], are_local=filesystem.type_name == "local")
    except UnicodeError as error:  # pyarrow names files in UTF-8 alone, Python by the locale
        raise not_utf_8(getattr(error, "object", "")) from error
    return filesystem, found


def client_by_ranges(paths: Any) -> Any:
    """The client of fsspec for URLs of one storage whose answers tell of which version of a file they are; None for all
    else, and where it is not installed, which is logged. paths: as find_on takes them; no iterator.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    texts = [os.fspath(path) for path in named if isinstance(path, str | os.PathLike)]
    roots = {match["root"] if (match := _SCHEME.match(text)) else "" for text in texts}
    if len(roots) != 1 or scheme_of(min(roots)).listed_as is None:
        return None
    try:
        return filesystem_of(texts[0])
    except ImportError as error:
        logger.warning("%s. Until then pyarrow reads there: nothing is read ahead, and nothing kept on a disk", error)
        return None


def stamp_of(filesystem: Any, path: str) -> tuple[int | None, str]:
    """The size of a file, and what tells this state of it from others, a time of change or an ETag; "" for nothing.

    Raises: ValueError for a pipe, a socket or a device, which would be waited for without an end.
    """
    from pyarrow.fs import FileType

    if (stamp := getattr(getattr(filesystem, "handler", None), "stamp", None)) is not None:
        found: tuple[int, str] = stamp(path)
        return found
    info = filesystem.get_file_info(path)
    if info.type is FileType.Unknown:
        raise ValueError(
            f"{path} was a file when the source was made, and is none now (a pipe, or a device); put it back"
        )
    return info.size, "" if info.mtime_ns is None else f"changed at {info.mtime_ns} ns"


def changed(path: str, how: str) -> ValueError:
    """The error for a file whose stamp is another one now than when it was opened."""
    return ValueError(
        f"{path} changed while it was read: {how}. What it gives now may be cut, or of two files, so nothing of this "
        "read is taken. Put the original back (by renaming, never in place) and go on from the last state, or make a "
        "new source."
    )


def read_whole(raw: Any, start: int, stop: int) -> bytes:
    """The bytes [start, stop) of a file that pyarrow opened.

    Raises: ConnectionError where fewer come, as a server, or a proxy, may give less than it was asked for.
    """
    found: bytes = raw.read_at(stop - start, start)
    if len(found) < stop - start:
        raise ConnectionError(f"{len(found):,} bytes came of {stop - start:,} from byte {start:,} on")
    return found


def _from_urls(texts: list[str]) -> tuple[Any, list[str]]:
    """The filesystem of the URLs, and their paths on it; the local one for paths."""
    from pyarrow import fs

    texts = [text.removeprefix("file://") if text.startswith("file:///") else text for text in texts]
    roots = sorted({match["root"] if (match := _SCHEME.match(text)) else "this machine" for text in texts})
    if len(roots) > 1:
        said = ", ".join(map(redacted, roots))
        raise ValueError(f"the paths are on {len(roots)} filesystems ({said}); a source reads one of them")
    if roots == ["this machine"]:
        return fs.LocalFileSystem(), [os.path.abspath(os.path.expanduser(text)) for text in texts]
    try:
        filesystem, base = fs.FileSystem.from_uri(roots[0] + "/")
    except ValueError:  # a scheme that pyarrow does not know (ArrowInvalid)
        from fsspec.core import url_to_fs

        foreign, _ = url_to_fs(texts[0])
        return _wrap(foreign, [foreign._strip_protocol(text) for text in texts])
    base = base.rstrip("/")
    return filesystem, [base + text[len(roots[0]) :] for text in texts]


def _wrap(filesystem: Any, texts: list[str]) -> tuple[Any, list[str]]:
    """It as pyarrow's, and the names of these paths on it: of URLs without what may be a secret in them.

    Where that leaves one name for several, they have numbers.
    """
    from pyarrow.fs import PyFileSystem

    from datarax_ray.read.formats.fsspec_files import FsspecFiles

    filesystem.invalidate_cache()  # clients are kept for the process, and most of them keep listings without an end
    paths: dict[str, str] = {}  # by name
    names: dict[str, str] = {}  # by path
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(2))
    for text in dict.fromkeys(texts):
        plain = redacted(text) if text.startswith(("http://", "https://")) else text
        name = plain
        while name in paths:
            name = f"{plain} ({next(numbers[plain])})"
        paths[name], names[text] = text, name
    roots = {match["root"] for text in texts if (match := _SCHEME.match(text))}
    secret = {
        name: path for name, path in (*paths.items(), *((redacted(root), root) for root in roots)) if name != path
    }
    return PyFileSystem(FsspecFiles(filesystem, secret)), [names[text] for text in texts]


def _expand(filesystem: Any, path: str, suffixes: Sequence[str]) -> Iterator[str]:
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem

    info = filesystem.get_file_info(path)
    if info.type == FileType.File:
        found = [path]
    elif info.type == FileType.Directory:
        entries = filesystem.get_file_info(FileSelector(path, recursive=True))
        names = [entry.path for entry in entries if entry.type == FileType.File]
        found = sorted(name for name in names if _is_data(name[len(path) :], suffixes))
        if isinstance(filesystem, LocalFileSystem) and ("" not in suffixes or not found):  # else who asks only looks
            check_there(link for link in _unlisted_links(path, entries) if _may_be_data(link[len(path) :], suffixes))
        if not found:
            first = min(names, default=None, key=lambda name: (not _is_data(name[len(path) :], ("",)), name))
            raise FileNotFoundError(
                f"{redacted(path)}: none of the {len(names)} files in this directory is named "
                f"{', '.join('*' + suffix for suffix in suffixes)} ({', '.join(sorted(names)[:3]) or 'it is empty'})."
                + ((first and _advice(filesystem, first)) or "")
                + (" Give a glob to take files of other names." if names else "")
            )
        packed = [name for name in names if _is_data(os.path.splitext(name)[0], suffixes) and name not in found]
        packed = sorted(name for name in packed if name.lower().endswith(_PACKED))
        if packed:
            logger.warning(
                "%s: left out %d compressed files, %s the first; unpack them to have them read as well.",
                path,
                len(packed),
                packed[0],
            )
        others = {name for name in names if _is_data(name[len(path) :], ("",))}.difference(found, packed)
        count, first = sniff.alike(filesystem.open_input_file, found[0], others)
        if count:
            logger.warning(
                "%s: left out %d files that are not named %s, though %s looks like one of these; give a glob or a list "
                "of files to have them read as well.",
                path,
                count,
                ", ".join("*" + suffix for suffix in suffixes),
                first,
            )
    elif glob.has_magic(path):
        found = _glob(filesystem, path)
        if isinstance(filesystem, LocalFileSystem):
            check_there(set(glob.iglob(path, recursive=True)).difference(found))
        part = re.fullmatch(r"(.+)\[(-?\d*:-?\d*(?::-?\d*)?)\]", path)
        if not found and part and filesystem.get_file_info(part[1]).type == FileType.File:
            if part[1].endswith(".array_record"):
                raise FileNotFoundError(
                    f"{redacted(path)}: [start:stop] takes the records from start on and before stop, both 0 or more, "
                    "and no step; datarax-ray inspect says how many there are"
                )
            raise FileNotFoundError(
                f"{redacted(path)}: [start:stop] takes a part of an ArrayRecord file alone, and names no file here. "
                f"Read {redacted(part[1])}: itertools.islice(source, 10) gives its first 10 elements, and "
                f"from_hf(NAME, 'train[{part[2]}]', data_files=...) these, with NAME 'parquet', 'csv' or 'json'"
            )
        if not found:
            raise FileNotFoundError(f"{redacted(path)}: no file matches this glob on {_storage(filesystem)}")
    else:
        if isinstance(filesystem, LocalFileSystem):
            check_there([path])
        status = getattr(getattr(filesystem, "handler", None), "missing", {}).get(path)
        said = f"; its server answered {status} {HTTPStatus(status).phrase}" if status else ""
        raise FileNotFoundError(f"{redacted(path)}: no such file or directory on {_storage(filesystem)}{said}")
    if isinstance(filesystem, LocalFileSystem):
        check_links(found)
    if "" not in suffixes:  # else who asks only looks
        tell_splits(path, found)
    yield from found


def _unlisted_links(path: str, entries: Sequence[Any]) -> Iterator[str]:
    """The links in a directory of this machine, and in those below it, that pyarrow left out of what it listed."""
    from pyarrow.fs import FileType

    listed = {entry.path for entry in entries}
    for folder in (path, *(entry.path for entry in entries if entry.type == FileType.Directory)):
        with os.scandir(folder) as each:
            yield from (entry.path for entry in each if entry.is_symlink() and entry.path not in listed)


def _storage(filesystem: Any) -> str:
    """What people call it: "local", "s3", "http". pyarrow says "py::fsspec+('http', 'https')" of clients of fsspec."""
    protocol = getattr(getattr(getattr(filesystem, "handler", None), "fs", None), "protocol", filesystem.type_name)
    return str(protocol if isinstance(protocol, str) else next(iter(protocol)))


def _advice(filesystem: Any, path: str) -> str:
    with filesystem.open_input_file(path) as file:
        return sniff.advice(file, path)


def _is_one_file(url: str) -> bool:
    """Of http(s), whose servers list files behind a slash alone. Another query is another file."""
    return url.startswith(("http://", "https://")) and not url.endswith("/") and not glob.has_magic(url)


def _is_data(path: str, suffixes: Sequence[str]) -> bool:
    parts = path.strip("/").split("/")
    is_named = any(fnmatchcase(path.lower(), f"*{suffix}") for suffix in suffixes)
    return is_named and not any(part.startswith((".", "_")) for part in parts)


def _may_be_data(path: str, suffixes: Sequence[str]) -> bool:
    """Whether what a link that leads nowhere would have led to is data, or a directory, as one without a suffix."""
    return _is_data(path, suffixes) or (_is_data(path, ("",)) and not os.path.splitext(path)[1])


def _glob(filesystem: Any, path: str) -> list[str]:
    from fsspec.implementations.arrow import ArrowFSWrapper

    found = ArrowFSWrapper(filesystem).glob(path, detail=True)
    found = {name: info for name, info in found.items() if not is_hidden(name, path)}
    folders = sorted(name for name, info in found.items() if info["type"] == "directory")
    if folders and "**" not in path:  # which goes into them
        logger.warning(
            "%s: left out %d directories that match too, %s the first; name them as such to have what is in them.",
            path,
            len(folders),
            folders[0],
        )
    return sorted(name for name, info in found.items() if info["type"] == "file")
