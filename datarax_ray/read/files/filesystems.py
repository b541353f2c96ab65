"""From what a user names (paths, globs, directories, URLs) to one pyarrow filesystem and the files in it, in order."""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from datarax_ray.plan.arguments import ordered
from datarax_ray.plan.plain_values import shown
from datarax_ray.read.errors import ChangedError
from datarax_ray.read.files.listing import Wanted
from datarax_ray.read.files.listing import named as files_named
from datarax_ray.read.files.paths import FileSlice, absolute, for_people, is_one_file, warn_of_repeats
from datarax_ray.read.formats.remote.clients import filesystem_of, redacted, scheme_of
from datarax_ray.read.retry import retried

logger = logging.getLogger("datarax_ray")

_SCHEME = re.compile(r"(?P<root>[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*)")


def find_on(
    paths: Any, filesystem: Any, suffixes: Sequence[str], *, unseen: bool = False, named: Any = None
) -> tuple[Any, tuple[str, ...]]:
    """The filesystem, and the files that `paths` names on it, once for each time that a file is named. Retried if
    the storage fails.

    paths: a path (str or os.PathLike), glob, directory or URL (s3://, gs://, hf://, memory://, ...), or an iterable of
        these. The files of a glob or a directory come in sorted order; a list keeps its own. A directory gives the
        files in it and below it with these suffixes ("*" in one is any text), but no name that begins with "." or "_".
    filesystem: a pyarrow or fsspec filesystem that the paths are on; None for that of the URLs, or of this machine.
    unseen: whether URLs of http(s) that are no glob and do not end in "/" are files without asking their server.
    named: the user's own paths, for errors; None for `paths`.

    Raises: FileNotFoundError where nothing is found, and for a broken link on this machine, which pyarrow does not
    list; ValueError for paths on several filesystems, and for names that are not UTF-8; TypeError for another type
    than paths, and for a set of paths.
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
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileSystem

    if filesystem is None:
        filesystem, texts = _from_urls(texts)
    elif not isinstance(filesystem, FileSystem):
        filesystem, texts = _wrap(filesystem, texts)
    wanted, found = Wanted(tuple(suffixes)), list[str]()
    client = None if filesystem.type_name == "local" else ArrowFSWrapper(filesystem)
    for text in texts:
        is_one = unseen and text.startswith(("http://", "https://")) and is_one_file(text)
        found += [text] if is_one else files_named(client, text, wanted, filesystem.open_input_file)
    if not wanted.is_quiet:
        warn_of_repeats([*map(FileSlice, found)], are_local=filesystem.type_name == "local")
    return filesystem, tuple(found)


def client_by_ranges(paths: Any) -> Any:
    """The client of fsspec for URLs of one storage whose answers name the version of a file. None for other paths, and,
    with a warning, where the client is not installed. paths: as in find_on, but no iterator.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    texts = [os.fspath(path) for path in named if isinstance(path, str | os.PathLike)]
    roots = {match["root"] if (match := _SCHEME.match(text)) else "" for text in texts}
    if len(roots) != 1 or not scheme_of(min(roots)).names_versions:
        return None
    try:
        return filesystem_of(texts[0])
    except ImportError as error:
        logger.warning("%s. Until then pyarrow reads there: nothing is read ahead, and nothing kept on a disk", error)
        return None


def stamp_of(filesystem: Any, path: str) -> tuple[int | None, str]:
    """The size of a file, and its time of change or ETag; "" where there is neither.

    Raises: ValueError for a pipe, a socket or a device, where a read could wait for ever.
    """
    from pyarrow.fs import FileType

    if (stamp := getattr(getattr(filesystem, "handler", None), "stamp", None)) is not None:
        return stamp(path)
    info = filesystem.get_file_info(path)
    if info.type is FileType.Unknown:
        raise ValueError(
            f"{path} was a file when the source was made, and is none now (a pipe, or a device); put it back"
        )
    return info.size, "" if info.mtime_ns is None else f"changed at {info.mtime_ns} ns"


def changed(path: str, how: str) -> ChangedError:
    """The error for a file whose stamp differs from the one when it was opened. how: the difference."""
    return ChangedError(
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
        return fs.LocalFileSystem(), [absolute(text) for text in texts]
    try:
        filesystem, base = fs.FileSystem.from_uri(roots[0] + "/")
    except ValueError:  # a scheme that pyarrow does not know (ArrowInvalid)
        from fsspec.core import url_to_fs

        foreign, _ = url_to_fs(texts[0])
        return _wrap(foreign, [foreign._strip_protocol(text) for text in texts])
    base = base.rstrip("/")
    return filesystem, [base + text[len(roots[0]) :] for text in texts]


def _wrap(filesystem: Any, texts: list[str]) -> tuple[Any, list[str]]:
    """A pyarrow filesystem for one of fsspec, and the names of these paths on it: URLs without their secrets.

    Names of several URLs that differ in their queries alone get numbers.
    """
    from pyarrow.fs import PyFileSystem

    from datarax_ray.read.formats.fsspec_files import FsspecFiles

    filesystem.invalidate_cache()  # clients are kept for the process, and most of them keep listings without an end
    secret: dict[str, str] = {}  # the URL of each name
    names: dict[str, str] = {}  # the name of each path
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(2))
    for text in dict.fromkeys(texts):
        plain = name = redacted(text) if text.startswith(("http://", "https://")) else text
        while name in secret:
            name = f"{plain} ({next(numbers[plain])})"
        secret[name], names[text] = text, name
    roots = {match["root"] for text in texts if (match := _SCHEME.match(text))}
    secret |= {redacted(root): root for root in roots}
    secret = {name: url for name, url in secret.items() if name != url}
    return PyFileSystem(FsspecFiles(filesystem, secret)), [names[text] for text in texts]
