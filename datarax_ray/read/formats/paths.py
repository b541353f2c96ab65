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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from datarax_ray.plan.arguments import ordered
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.remote.listing import listed
from datarax_ray.read.formats.remote.urls import is_url, redacted

logger = logging.getLogger("datarax_ray")

# What ArrayRecord writers call their files (TFDS: name.array_record-00000-of-00008; datarax: name.riegeli).
_NAME = re.compile(r"array_?record|\.riegeli", re.IGNORECASE)
_SURE_NAME = re.compile(r"\.(array_?record|riegeli)[^/]*$", re.IGNORECASE)
_SLICE = re.compile(r"(?P<path>.+)\[(?P<start>\d*):(?P<stop>\d*)\]")
# What people call splits, of folders and of parts of a file's name, as Hugging Face's datasets takes them.
SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
SPLITS |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
_SPLIT = re.compile(rf"(?<![a-z])({'|'.join(SPLITS)})(?![a-z])", re.IGNORECASE)
OF_GENERATORS = (
    "of a function that yields elements from_hf(datasets.IterableDataset.from_generator(function)) makes a source, and "
    "of an object with __len__ and __getitem__, as list(elements), "
    "RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), data)"
)


@dataclass(frozen=True)
class FileSlice:
    """Records [skip, skip + take) of one file; take None is all that follow.

    expected: how many records the file is said to hold (Grain's examples_in_shard), None if nobody said. version: of a
    file behind a URL, as its listing told it; "" where it did not, or was not asked.
    """

    path: str
    skip: int = 0
    take: int | None = None
    expected: int | None = None
    version: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.skip < 0 or (self.take is not None and self.take < 0):
            raise ValueError(
                f"{redacted(self.path)}: skip and take must not be negative, got {self.skip} and {self.take}"
            )


def find(paths: Any) -> tuple[FileSlice, ...]:
    """The files that `paths` names, in order, each once for each time that it is named; those of this host in full, for
    an actor may have another working directory.

    paths: a path (str or os.PathLike) or URL, a glob or directory of either, "path[start:stop]", an object with
    filename, skip, take and examples_in_shard (Grain's FileInstruction), or an iterable of these. What a glob or a
    directory holds comes in sorted order; a list keeps its own. In a directory, the files that are named like
    ArrayRecord files are taken.

    Raises: FileNotFoundError where nothing is found; ImportError for a URL whose client is not installed; TypeError for
    what is no path, and for a set of paths; ValueError for names that are not UTF-8.
    """
    files = tuple(
        each
        if os.path.isabs(each.path) or is_url(each.path)
        else replace(each, path=os.path.join(os.getcwd(), each.path.removeprefix("./")))
        for each in _each(paths)
    )
    for file in files:
        _check_name(file.path)
    if not files:
        raise ValueError("paths is empty; give at least one ArrayRecord file, glob or directory")
    tell_repeats(files, are_local=True)
    return files


def kept(paths: Any) -> Any:
    """The paths to read now and to show later: one path as it is, of several a tuple, as an iterator gives them once.

    Raises: TypeError for a set, for what is no path and as soon as what is iterated, which may have no end, gives one
    that is none; ValueError for an empty one.
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
        raise TypeError(f"what is given for paths gives a {type(given).__name__}, which is none; {OF_GENERATORS}")
    return given


def _is_path(given: Any) -> bool:
    if isinstance(given, list | tuple):
        return all(map(_is_path, given))
    return isinstance(given, str | os.PathLike | FileSlice) or hasattr(given, "filename")


def for_people(paths: Any) -> Any:
    """The paths to show: without what may be a secret in a URL, also in those of a sequence or a FileInstruction."""
    if isinstance(paths, tuple | list):
        return type(paths)(map(for_people, paths))
    name = getattr(paths, "filename", paths)
    return redacted(name) if isinstance(name, str) and "://" in name else paths


def not_utf_8(name: Any) -> ValueError:
    """The error for the name of a file or directory that is not UTF-8."""
    return ValueError(
        f"{name!a}: a name that is not UTF-8, as those of files and directories that are read here have to be; "
        "rename it, as by `convmv -f latin1 -t utf-8 --notest`"
    )


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeError as error:
        raise not_utf_8(path) from error


def check_links(files: Iterable[str]) -> None:
    """Raise ValueError for a link to a directory that it is in, among those of these files, found on this machine: they
    would come dozens of times.
    """
    ways: dict[str, str] = {}
    for folder in dict.fromkeys(map(os.path.dirname, files)):
        other = ways.setdefault(os.path.realpath(folder), folder)
        if other != folder and os.path.commonpath([folder, other]) in (folder, other):
            raise ValueError(
                f"{max(folder, other, key=len)} is {min(folder, other, key=len)}, by a link to a directory that it is "
                "in, so its files would come again and again; remove the link, or give a list of directories"
            )


def check_there(paths: Iterable[str]) -> None:
    """Raise FileNotFoundError for a link, among these paths of this machine, to what is not there."""
    ends = ((path, os.path.realpath(path)) for path in paths if os.path.islink(path))
    broken = sorted((path, end) for path, end in ends if not os.path.exists(end))
    if broken:
        path, end = broken[0]
        more = f" There are {len(broken) - 1} more such links." if len(broken) > 1 else ""
        raise FileNotFoundError(
            f"{path} is a link to {end}, which is not there: a mount is missing, or it was deleted; bring it back, or "
            f"remove the link to go without.{more}"
        )


def tell_repeats(files: Sequence[FileSlice], *, are_local: bool) -> None:
    """Warn once where records of a file are read again: it is named twice, or is a link to another that is named.

    are_local: files of this machine, which are known by their inodes; else by their names, as URLs always are.
    """
    stops: dict[Any, tuple[str, float]] = {}  # of each file, its first name, and where what is read of it ends
    repeats = []
    told = [(_identity(each.path) if are_local and not is_url(each.path) else each.path, each) for each in files]
    for identity, each in sorted(told, key=lambda pair: pair[1].skip):
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


def tell_splits(given: str, files: Sequence[str]) -> None:
    """Warn where a directory or glob holds files of several splits, by their names below it, as all are read."""
    common = os.path.commonprefix(files).rpartition("/")[0]  # noqa: RUF071 - cut at a slash; commonpath breaks "s3://"
    folder, *pattern = re.split(r"[*?\[]", given, maxsplit=1)
    root = max(folder.rpartition("/")[0] if pattern else folder, common, key=len)
    found = [(name, match) for file in files if (match := _SPLIT.search(name := file.removeprefix(root)))]
    counts = Counter(SPLITS[match[1].lower()] for _, match in found)
    if len(counts) < 2:
        return
    name, match = found[0]
    one = root + name[: match.end()]
    logger.warning(
        "%s holds files of several splits, by their names (%s), and all are read as one. Where you want one of them, "
        "say so: %s",
        redacted(given),
        ", ".join(f"{count} of {split}" for split, count in sorted(counts.items())),
        redacted(one if name[match.end() :].startswith("/") else f"{one}*"),
    )


def _identity(path: str) -> Any:
    """What two names of one local file have in common; the path where nothing tells."""
    try:
        found = os.stat(path)
    except OSError:  # told when it is opened
        return path
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if found.st_ino else path


def are_told(paths: Any) -> bool:
    """Whether nothing is to be looked at to tell that these are ArrayRecord: a URL or a slice, all of such a name."""
    named = paths if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    texts = [os.fspath(path) if isinstance(path, str | os.PathLike) else "" for path in named]
    is_asked = any(is_url(text) or (_SLICE.fullmatch(text) and not os.path.exists(text)) for text in texts)
    return is_asked and all(_SURE_NAME.search(text) for text in texts)


def _each(paths: Any) -> Iterator[FileSlice]:
    ordered("paths", paths)
    if isinstance(paths, str | os.PathLike):
        yield from _from_path(os.fspath(paths))
    elif isinstance(paths, FileSlice):
        yield paths
    elif hasattr(paths, "filename"):
        take = _integer(getattr(paths, "take", None))
        yield FileSlice(
            os.fspath(paths.filename).removeprefix("file://"),
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
    _check_name(path)  # else there would be no such file
    sliced = _SLICE.fullmatch(path)
    if is_url(path):
        if sliced:
            yield _cut(**sliced.groupdict())
        else:
            files = listed(path, _NAME)
            tell_splits(path, [*files])
            yield from (FileSlice(file, version=version) for file, version in files.items())
    elif path.startswith("file://"):
        yield from _from_path(path.removeprefix("file://"))
    elif os.path.isdir(path):
        yield from _from_directory(path)
    elif os.path.exists(path):
        yield FileSlice(path)
    elif sliced:
        if not os.path.isfile(sliced["path"]):
            raise FileNotFoundError(f"{path}: no such file as {sliced['path']} (seen from {os.getcwd()})")
        yield _cut(**sliced.groupdict())
    elif glob.has_magic(path):
        # what is no directory, and not what is a file: a broken link is an error when it is opened
        matching = glob.glob(path, recursive=True)
        found = sorted(p for p in matching if not os.path.isdir(p))
        if not found:
            raise FileNotFoundError(f"{path}: no file matches this glob (seen from {os.getcwd()})")
        if "**" not in path:  # which goes into them
            _tell_folders(path, filter(os.path.isdir, matching))
        check_links(found)
        tell_splits(path, found)
        yield from map(FileSlice, found)
    else:
        raise FileNotFoundError(f"{path}: no such file or directory (seen from {os.getcwd()})")


def _cut(path: str, start: str, stop: str) -> FileSlice:
    skip = int(start or 0)
    if stop and int(stop) < skip:
        raise ValueError(f"{redacted(path)}[{start}:{stop}]: the slice ends before it starts")
    return FileSlice(path, skip, int(stop) - skip if stop else None)


def _from_directory(path: str) -> Iterator[FileSlice]:
    entries = sorted(e.name for e in os.scandir(path) if not e.is_dir() and not e.name.startswith("."))
    found = [name for name in entries if _NAME.search(name)]
    if not found:
        raise FileNotFoundError(
            f"{path}: none of the {len(entries)} files in this directory is named *.array_record*, *.arrayrecord* or "
            f"*.riegeli*{_instead(path, entries)}"
        )
    others = [os.path.join(path, name) for name in entries if not _NAME.search(name)]
    count, first = sniff.alike(partial(open, mode="rb"), os.path.join(path, found[0]), others)
    if count:
        logger.warning(
            "%s: left out %d files that are not named as ArrayRecord files are, though %s looks like one; give a glob "
            "or a list of files to have them read as well.",
            path,
            count,
            first,
        )
    _tell_folders(path, (entry.path for entry in os.scandir(path) if entry.is_dir()))
    files = [os.path.join(path, name) for name in found]
    tell_splits(path, files)
    yield from map(FileSlice, files)


def _tell_folders(path: str, folders: Iterable[str]) -> None:
    """Warn of those that are not searched, and hold ArrayRecord files."""
    found = sorted(filter(_holds_named, folders))
    if found:
        logger.warning(
            "%s: left out %d directories with ArrayRecord files in them, %s the first; give a glob or a list of them "
            "to have those read as well.",
            path,
            len(found),
            found[0],
        )


def _holds_named(folder: str) -> bool:
    try:
        return not os.path.basename(folder).startswith(".") and any(map(_NAME.search, os.listdir(folder)))
    except OSError:  # nothing of it is wanted
        return False


def _instead(path: str, entries: list[str]) -> str:
    """What stands there instead of ArrayRecord files, and what to do about it."""
    if entries:
        advice = sniff.advice_at(os.path.join(path, entries[0])) or " Give a glob to take files of other names."
        return f" ({', '.join(entries[:3])}).{advice}"
    folders = sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        return " (it is empty)."
    below = os.path.join(path, "*", "*")
    said = f"; it holds {len(folders)} directories ({', '.join(folders[:3])}), which are not searched. "
    inside = next((name for name in sorted(glob.iglob(below)) if os.path.isfile(name)), None)
    return said + f"Give one of them, or a glob: {below}" + (sniff.advice_at(inside, "ArrayRecord") if inside else "")
