"""From what a user names (paths, globs, directories, slices) to the list of files and the records taken of each."""

from __future__ import annotations

import glob
import inspect
import io
import logging
import math
import operator
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from datarax_ray.plan.arguments import ordered
from datarax_ray.read.files.listing import NoFilesError, Wanted, named, not_utf_8
from datarax_ray.read.files.shards import ShardsError, shards_at
from datarax_ray.read.formats.remote.clients import filesystem_of, is_url, redacted
from datarax_ray.read.formats.remote.ranges import REMOTE, Remote, by_client, cause, refusal

logger = logging.getLogger("datarax_ray")

# What ArrayRecord writers call their files (TFDS: name.array_record-00000-of-00008; datarax: name.riegeli).
_SURE_NAME = re.compile(r"\.(array_?record|riegeli)[^/]*$", re.IGNORECASE)
_SLICE = re.compile(r"(?P<path>.+)\[(?P<start>\d*):(?P<stop>\d*)\]")
_FILES = Wanted(("array_record*", "arrayrecord*", ".riegeli*"), hidden=(".",), is_deep=False)
OF_GENERATORS = (
    "of a function that yields elements from_hf(datasets.IterableDataset.from_generator(function)) makes a source, and "
    "of an object with __len__ and __getitem__, as list(elements), "
    "RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), data)"
)


@dataclass(frozen=True)
class FileSlice:
    """Records [skip, skip + take) of one file; take None is all that follow.

    expected: the number of records that the file should hold (Grain's examples_in_shard), None where it is not given.
    """

    path: str
    skip: int = 0
    take: int | None = None
    expected: int | None = None

    def __post_init__(self) -> None:
        if self.skip < 0 or (self.take is not None and self.take < 0):
            raise ValueError(
                f"{redacted(self.path)}: skip and take must not be negative, got {self.skip} and {self.take}"
            )


def find(paths: Any) -> tuple[FileSlice, ...]:
    """The files that `paths` names, in order, each once for each time that it is named. Paths are absolute, since an
    actor may have another working directory.

    paths: a path (str or os.PathLike) or URL, a glob or directory of either, "path@6" (the shards path-*-of-00006),
    "path[start:stop]", an object with filename, skip, take and examples_in_shard (Grain's FileInstruction), or an
    iterable of these. Globs and directories give their files in sorted order; a list keeps its own. In a directory, the
    files with names like those of ArrayRecord files are taken.

    Raises: FileNotFoundError where nothing is found; ImportError for a URL whose client is not installed; TypeError for
    what is no path, and for a set of paths; ValueError for missing shards, and for names that are not UTF-8.
    """
    files = tuple(_each(paths))
    if not files:
        raise ValueError("paths is empty; give at least one ArrayRecord file, glob or directory")
    warn_of_repeats(files, are_local=True)
    return files


def kept(paths: Any) -> Any:
    """The paths to read now and to show later: one path as it is, several as a tuple.

    Raises: TypeError for a set, and at the first item that is no path, as an iterator may be endless; ValueError for an
    empty path.
    """
    ordered("paths", paths)
    if isinstance(paths, str | os.PathLike):
        if not os.fspath(paths):
            raise ValueError(f"{paths!r} is no path; '.' is the directory that this program runs in")
        return paths
    if isinstance(paths, bytes | bytearray | io.IOBase) or inspect.isclass(paths) or hasattr(paths, "get_state"):
        raise TypeError(
            f"a {type(paths).__name__} is no path; give the str or pathlib.Path of a file, and use a source or "
            "Pipeline as it is"
        )
    if isinstance(paths, list | tuple) or not isinstance(paths, Iterable):
        return tuple(paths) if isinstance(paths, list) else paths
    return tuple(map(_path, paths))


def _path(given: Any) -> Any:
    if not _is_path(given):
        raise TypeError(f"paths gives a {type(given).__name__}, which is no path; {OF_GENERATORS}")
    return given


def _is_path(given: Any) -> bool:
    if isinstance(given, list | tuple):
        return all(map(_is_path, given))
    return isinstance(given, str | os.PathLike | FileSlice) or hasattr(given, "filename")


def for_people(paths: Any) -> Any:
    """The paths to show, of a sequence or a FileInstruction too: without the parts of URLs that may be secret."""
    if isinstance(paths, tuple | list):
        return type(paths)(map(for_people, paths))
    name = getattr(paths, "filename", paths)
    return redacted(name) if isinstance(name, str) and "://" in name else paths


def absolute(path: str) -> str:
    """The path on this machine, as another process finds it. Links stay as they are. Raises: ValueError."""
    try:
        path.encode()
    except UnicodeError as error:
        raise not_utf_8(path) from error
    return os.path.join(os.getcwd(), os.path.expanduser(path.removeprefix("file://")).removeprefix("./"))


def warn_of_repeats(files: Sequence[FileSlice], *, are_local: bool) -> None:
    """Warn once where records of a file are read again: it is named twice, or is a link to another named file.

    are_local: files of this machine, which are known by their inodes; else by their names, as URLs always are.
    """
    stops: dict[Any, tuple[str, float]] = {}  # of each file, its first name, and where what is read of it ends
    repeats = []
    identified = [(_identity(each.path) if are_local and not is_url(each.path) else each.path, each) for each in files]
    for identity, each in sorted(identified, key=lambda pair: pair[1].skip):
        stop = math.inf if each.take is None else each.skip + each.take
        first, before = stops.get(identity, (each.path, 0))
        if identity in stops and each.skip < min(before, stop):
            repeats.append((first, each.path))
        stops[identity] = first, max(before, stop)
    if repeats:
        first, path = map(redacted, repeats[0])
        logger.warning(
            "%s is %s, and records of it are read again each time: %d of the %d files are there already. Name each "
            "once, and remove links, unless that is meant.",
            path,
            "named twice" if path == first else f"the same file as {first}",
            len(repeats),
            len(files),
        )


def _identity(path: str) -> Any:
    """The same value for all names of one local file; the path of a file that cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:  # an error when it is opened
        return path
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if found.st_ino else path


def are_told(paths: Any) -> bool:
    """Whether names alone tell that these are ArrayRecord files: URLs or slices, all with such names."""
    named = paths if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    texts = [os.fspath(path) if isinstance(path, str | os.PathLike) else "" for path in named]
    is_asked = any(is_url(text) or (_SLICE.fullmatch(text) and not os.path.exists(text)) for text in texts)
    return is_asked and all(_SURE_NAME.search(text) for text in texts)


def _each(paths: Any) -> Iterator[FileSlice]:
    ordered("paths", paths)
    if isinstance(paths, str | os.PathLike):
        yield from _from_path(os.fspath(paths))
    elif isinstance(paths, FileSlice):
        yield paths if is_url(paths.path) else replace(paths, path=absolute(paths.path))
    elif hasattr(paths, "filename"):
        take, path = _integer(getattr(paths, "take", None)), os.fspath(paths.filename)
        yield FileSlice(
            path if is_url(path) else absolute(path),
            _integer(getattr(paths, "skip", 0)) or 0,
            None if take == -1 else take,  # TFDS writes -1 for all that follow
            _integer(getattr(paths, "examples_in_shard", None)),
        )
    elif isinstance(paths, Iterable) and not isinstance(paths, bytes):
        for path in paths:
            yield from _each(path)
    else:
        raise TypeError(f"a path is a str, os.PathLike or FileInstruction, got {type(paths).__name__}: {paths!r}")


def _integer(value: Any) -> int | None:
    return None if value is None else operator.index(value)  # a plain one: NumPy's are not JSON


def _from_path(path: str) -> Iterator[FileSlice]:
    if not is_url(path):
        path = absolute(path)
    sliced = None if os.path.exists(path) else _SLICE.fullmatch(path)
    if sliced:
        yield _cut(**sliced.groupdict())
    elif is_url(path):
        yield from behind_url(path)
    else:
        yield from map(FileSlice, named(None, path, _FILES, partial(open, mode="rb")))


def _cut(path: str, start: str, stop: str) -> FileSlice:
    skip = int(start or 0)
    if stop and int(stop) < skip:
        raise ValueError(f"{redacted(path)}[{start}:{stop}]: the slice ends before it starts")
    if not is_url(path) and not os.path.isfile(path):
        raise FileNotFoundError(f"{path}[{start}:{stop}]: no such file as {path}")
    return FileSlice(path, skip, int(stop) - skip if stop else None)


def is_one_file(url: str) -> bool:
    """Whether a URL names one file: as ArrayRecord files are named, or on http(s) without a slash at its end."""
    is_http = url.startswith(("http://", "https://"))
    plain = url.partition("?")[0] if is_http else url
    is_one = not (glob.has_magic(plain) or shards_at(plain) or plain.endswith("/"))
    return is_one and (is_http or _FILES.has(plain.rpartition("/")[2]))


def behind_url(url: str, remote: Remote = REMOTE) -> Iterator[FileSlice]:
    """The files that a URL names.

    A URL with the name of an ArrayRecord file is a file without a request; so is one of http that does not end in "/".
    """
    client = filesystem_of(url)
    path = client._strip_protocol(url)
    if is_one_file(url):
        yield FileSlice(url)
        return

    def ask() -> Any:
        client.invalidate_cache()  # clients are kept for the process, and most of them keep listings without an end
        try:
            return named(client, path, _FILES, url=url)
        except (NoFilesError, ShardsError) as error:
            return error

    try:
        found = by_client(url, "listing it", ask, remote)
    except ValueError as error:  # the client's own
        raise refusal(url, f"{redacted(url)}: listing it", error) from cause(url, error)
    if isinstance(found, Exception):
        raise found
    for name in found:
        yield FileSlice(client.unstrip_protocol(name))
