"""From one path, glob or directory to the files that it names on one storage, in sorted order.

The storage is this machine, or a filesystem of fsspec. Whatever could be missed, or read twice, is an error or a
warning: missing shards, broken links, links that lead upwards, directories that are not searched, files of the same
format with other names, and several splits under one path.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from datarax_ray.read.files import sniff
from datarax_ray.read.files.shards import ShardsError, check_shards, report_missing, shards_at
from datarax_ray.read.formats.inspecting import FINISHED, UNFINISHED
from datarax_ray.read.formats.remote.clients import redacted
from datarax_ray.read.retry import is_transient, status_of

logger = logging.getLogger("datarax_ray")

Entry: TypeAlias = Mapping[str, Any]  # what fsspec says of a file or directory: "name", "type" and more
Open: TypeAlias = Callable[[str], Any]

# What tools write beside data, and in archives of it: marks, notes, and leftovers of copies.
_NO_DATA = re.compile(
    r"(.*/)?((__MACOSX|\.ipynb_checkpoints)(/.*)?|\._[^/]*|\.DS_Store|_SUCCESS|_(common_)?metadata|Thumbs\.db|desktop\.ini"
    r"|(README|LICENSE)(\.(md|txt|rst))?|_origins-\d{5,}-of-\d{5,}|[^/]+\.(tmp|incomplete|crc))",
    re.IGNORECASE | re.DOTALL,
)
_MOST_SUFFIXES = 8  # that are looked at: of a name for each day or number there are thousands
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
# What people call splits, of folders and of parts of a file's name, as Hugging Face's datasets takes them.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
}
_SPLIT = re.compile(rf"(?<![a-z])({'|'.join(SPLITS)})(?![a-z])", re.IGNORECASE)


class NoFilesError(FileNotFoundError):
    """A path, glob or directory names no file."""


@dataclass(frozen=True)
class Wanted:
    """The files that are taken of a directory.

    suffixes: of their names, in lower case; "*" in one is any text. "" takes every file for a caller that only looks,
        and logs no warnings.
    hidden: how names begin that are skipped.
    is_deep: whether the directories below are searched.
    """

    suffixes: tuple[str, ...]
    hidden: tuple[str, ...] = (".", "_")
    is_deep: bool = True

    @property
    def is_quiet(self) -> bool:
        return "" in self.suffixes

    def has(self, path: str) -> bool:
        """Whether a file is taken. path: below the directory."""
        return self.is_visible(path) and any(fnmatchcase(path.lower(), f"*{suffix}") for suffix in self.suffixes)

    def is_visible(self, path: str) -> bool:
        return not any(part.startswith(self.hidden) for part in path.strip("/").split("/"))

    def __str__(self) -> str:
        return ", ".join(f"*{suffix}" for suffix in self.suffixes)


def named(client: Any, path: str, wanted: Wanted, look: Open | None = None, url: str = "") -> dict[str, Entry]:
    """The files that a path, glob, directory or "path@6" names, sorted, with what the storage says of each.

    client: a filesystem of fsspec; None for this machine, whose entries are empty.
    look: opens a file, to tell its format for a message; None where no file is to be opened.
    url: the URL of the path, for messages; "" without one.

    Raises: NoFilesError where nothing is found; ShardsError where shards are missing, or are of several sets;
    FileNotFoundError for a link on this machine to a missing file;
    ValueError for a link to a directory that it is in, and for names that are not UTF-8.
    """
    storage, said = "local" if client is None else _storage(client), redacted(url or path)
    try:
        kind, files, folders = _here(path, wanted) if client is None else _behind(client, path, wanted)
        for name in (*files, *folders):
            name.encode()
    except UnicodeError as error:  # pyarrow names files in UTF-8 alone, Python by the locale
        raise not_utf_8(getattr(error, "object", "")) from error
    loose: list[str] = []
    if kind == "directory":
        found, loose = _in_directory(path, said, files, folders, wanted, look, is_local=client is None)
    else:
        found = sorted(files)
        if kind == "glob" and (data := [name for name in found if not is_no_data(name)]):
            if len(data) < len(found) and not wanted.is_quiet:
                first = redacted(min(set(found).difference(data)))
                logger.info("%s: skipped %d files that are no data, %s the first", said, len(found) - len(data), first)
            found = data
        if kind == "glob" and "**" not in path and not wanted.is_quiet:  # which goes into directories
            _warn_of_folders(said, sorted(folders))
    if client is None:
        _check_links(found)
        others = {name for name in found if not os.path.isfile(name)}  # broken links, pipes and devices
        if not (kind == "directory" and wanted.is_quiet):
            _check_there({*others, *loose})
        found = [name for name in found if name not in others]
    if not found:
        what = "no file matches this glob" if kind == "glob" else "no such file or directory"
        raise NoFilesError(f"{said}: {what} on {storage}")
    if not wanted.is_quiet:
        if kind == "shards" and (missing := sorted(set(shards_at(path)).difference(found))):
            report_missing(f"{said}: {len(missing)} of these shards are missing on {storage}, {missing[0]} the first")
        if kind in ("glob", "directory"):
            try:
                check_shards(said, found, path if kind == "glob" else "")
            except ShardsError:
                folder, exists = found[0].rpartition("/")[0], os.path.exists if client is None else client.exists
                if not any(exists(f"{folder}/{name}") for name in (FINISHED, UNFINISHED)):  # they tell more: inspecting
                    raise
        _warn_of_splits(path, found)
    return {name: files[name] for name in found}


def is_no_data(name: str) -> bool:
    """Whether a file, or a member of an archive, is never data, by its name.

    >>> [is_no_data(name) for name in ("a/_SUCCESS", "__MACOSX/a/._1.jpg", "x.csv.tmp", "readme-7.jpg")]
    [True, True, True, False]
    """
    return _NO_DATA.fullmatch(name) is not None


def not_utf_8(name: Any) -> ValueError:
    """The error for the name of a file or directory that is not UTF-8."""
    return ValueError(f"{name!a}: a name that is not UTF-8; rename it, as by `convmv -f latin1 -t utf-8 --notest`")


def is_hidden(name: str, pattern: str) -> bool:
    """Whether a shell's glob skips a name: a part of it begins with ".", and no part of the pattern matches that part.

    >>> is_hidden("data/.cache/a", "data/**"), is_hidden("data/.cache/a", "data/.c*/a")
    (True, False)
    """
    named = [part for part in pattern.split("/") if part.startswith(".")]
    hidden = [part for part in name.split("/") if part.startswith(".")]
    return not all(any(fnmatchcase(part, each) for each in named) for part in hidden)


def _storage(client: Any) -> str:
    """Its name for people: "s3", "http". pyarrow calls clients of fsspec "py::fsspec+('http', 'https')"."""
    handler = getattr(getattr(client, "fs", None), "handler", None)
    protocol = getattr(getattr(handler, "fs", client), "protocol", "")
    return protocol if isinstance(protocol, str) else str(next(iter(protocol)))


def _here(path: str, wanted: Wanted) -> tuple[str, dict[str, Entry], list[str]]:
    """Whether a path of this machine is a file, directory, glob or "path@6" ("shards"), "" for none of these; its files
    and directories.
    """
    if os.path.isdir(path):
        files, folders = dict[str, Entry](), list[str]()
        for root, below, names in os.walk(path, onerror=_raised, followlinks=True):
            folders += [os.path.join(root, name) for name in below]
            below[:] = filter(wanted.is_visible, below) if wanted.is_deep else []
            files |= {os.path.join(root, name): {} for name in names}
        return "directory", files, folders
    if os.path.lexists(path):
        return "file", {path: {}}, []
    if shards := shards_at(path):
        return "shards", {name: {} for name in shards if os.path.lexists(name)}, []
    if not glob.has_magic(path):
        return "", {}, []
    matching = glob.glob(path, recursive=True)
    folders = list(filter(os.path.isdir, matching))
    return "glob", {name: {} for name in set(matching).difference(folders)}, folders


def _raised(error: OSError) -> None:
    raise error


def _behind(client: Any, path: str, wanted: Wanted) -> tuple[str, dict[str, Entry], list[str]]:
    """As _here, on another storage."""
    is_http = path.startswith(("http://", "https://"))
    info: Entry | None = {"type": "directory"}
    if not (is_http and path.endswith("/")):  # a server gives the page of a listing, which would pass for a file
        info = _info(client, path)
    if info is not None and info["type"] != "directory":
        return "file", {path: info} if info["type"] == "file" else {}, []
    if info is not None and wanted.is_deep:
        from pyarrow.fs import FileSelector  # by one request for all directories, where the storage can do that

        selected = client.fs.get_file_info(FileSelector(path, recursive=True))
        entries = {entry.path: client._make_entry(entry) for entry in selected}
    elif info is not None:
        entries = {entry["name"]: entry for entry in client.ls(path, detail=True)}
    elif shards := shards_at(path):
        all_of_them = re.sub(r"-00000(-of-\d+)$", r"-*\1", shards[0])
        known = {name: _info(client, name) for name in shards} if is_http else client.glob(all_of_them, detail=True)
        return "shards", {name: entry for name in shards if (entry := known.get(name)) is not None}, []
    elif glob.has_magic(path.partition("?")[0] if is_http else path):  # of http, "?" begins a query
        entries = {name: entry for name, entry in client.glob(path, detail=True).items() if not is_hidden(name, path)}
    else:
        return "", {}, []
    files = {name: entry for name, entry in entries.items() if entry["type"] == "file"}
    # a client may list a directory in itself
    folders = [n for n, entry in entries.items() if entry["type"] == "directory" and n.rstrip("/") != path.rstrip("/")]
    return "glob" if info is None else "directory", files, folders


def _info(client: Any, path: str) -> Entry | None:
    try:
        return client.info(path)
    except FileNotFoundError as error:
        # fsspec takes what a busy server says for a missing file
        if is_transient(error) or status_of(error.__cause__ or error) not in (None, 404, 410):
            raise
        return None


def _in_directory(
    path: str,
    said: str,
    files: Iterable[str],
    folders: Sequence[str],
    wanted: Wanted,
    look: Open | None,
    *,
    is_local: bool,
) -> tuple[list[str], list[str]]:
    """The wanted files of a directory, and its files that may be links to directories. Raises: as named."""

    def below(name: str) -> str:
        return name.removeprefix(path).strip("/")

    visible = sorted(name for name in files if wanted.is_visible(below(name)))
    found = [name for name in visible if wanted.has(below(name))]
    loose = [name for name in set(visible).difference(found) if wanted.is_deep and not _suffix(name)]
    if is_local and not found:
        _check_there(loose)
    skipped = sorted(name for name in folders if not wanted.is_deep and wanted.is_visible(below(name)))
    if not found:
        there = ", ".join(map(below, visible[:3])) or "it is empty"
        names = ", ".join(map(below, skipped[:3]))
        within = f" It holds directories ({names}): give one, or {path}/*/*." if skipped else ""
        advice = ""
        if look is not None and visible:
            with look(visible[0]) as file:
                advice = sniff.advice(file, visible[0])
        raise NoFilesError(
            f"{said}: none of the {len(visible)} files in this directory is named {wanted} ({there})."
            f"{advice} Give a glob to take files of other names.{within}"
        )
    if not wanted.is_quiet:
        _warn_of_skipped(said, wanted, found[0], sorted(set(visible).difference(found)), look)
        # elsewhere it would be a request for each
        _warn_of_folders(said, [each for each in skipped if not is_local or _holds_wanted(each, wanted)])
    return found, loose


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]


def _warn_of_skipped(said: str, wanted: Wanted, first: str, others: Sequence[str], look: Open | None) -> None:
    """Warn of files of a directory that look like data, and are not taken. first: of those that are."""
    packed = [name for name in others if name.lower().endswith(_PACKED) and wanted.has(name[: -len(_suffix(name))])]
    rest = [name for name in sorted(set(others).difference(packed)) if look is not None and not is_no_data(name)]
    for names, why in (
        (packed, "are compressed; TextStreamSource reads text that is, else unpack them"),
        (_alike(look, first, rest) if rest else [], f"are not named {wanted}; give a glob or a list of files"),
    ):
        if names:
            message = "%s: skipped %d files, %s the first, that %s to have them read as well."
            logger.warning(message, said, len(names), names[0], why)


def _alike(look: Any, path: str, others: Sequence[str]) -> list[str]:
    """The files that are likely of the format of the one at path, by the first file of each suffix."""

    def format_of(name: str) -> str | None:
        with contextlib.suppress(OSError), look(name) as file:  # whoever reads it tells
            return sniff.file_format(*sniff.ends(file))
        return None

    firsts = {_suffix(name).lower(): name for name in reversed(others)}
    wanted = format_of(path)
    if wanted in sniff.UNSURE:
        return []
    suffixes = {suffix for suffix in sorted(firsts)[:_MOST_SUFFIXES] if format_of(firsts[suffix]) == wanted}
    return [name for name in others if _suffix(name).lower() in suffixes]


def _warn_of_folders(said: str, folders: Sequence[str]) -> None:
    if folders:
        message = (
            "%s: skipped %d directories, %s the first; name them, or give a glob, to have their files read as well."
        )
        logger.warning(message, said, len(folders), redacted(folders[0]))


def _holds_wanted(folder: str, wanted: Wanted) -> bool:
    try:
        return any(map(wanted.has, os.listdir(folder)))
    except OSError:  # nothing of it is wanted
        return False


def _check_links(files: Iterable[str]) -> None:
    """Raise ValueError for a link to a directory that it is in: its files would come dozens of times."""
    ways: dict[str, str] = {}
    for folder in dict.fromkeys(map(os.path.dirname, files)):
        other = ways.setdefault(os.path.realpath(folder), folder)
        if other != folder and os.path.commonpath([folder, other]) in (folder, other):
            raise ValueError(
                f"{max(folder, other, key=len)} is {min(folder, other, key=len)}, by a link to a directory that it is "
                "in, so its files would come again and again; remove the link, or give a list of directories"
            )


def _check_there(paths: Iterable[str]) -> None:
    """Raise FileNotFoundError for a link, among these paths of this machine, to a missing file."""
    ends = ((path, os.path.realpath(path)) for path in paths if os.path.islink(path))
    broken = sorted((path, end) for path, end in ends if not os.path.exists(end))
    if broken:
        path, end = broken[0]
        more = f" There are {len(broken) - 1} more such links." if len(broken) > 1 else ""
        raise FileNotFoundError(
            f"{path} is a link to {end}, which is not there: a mount is missing, or it was deleted; bring it back, or "
            f"remove the link to go without.{more}"
        )


def _warn_of_splits(given: str, files: Sequence[str]) -> None:
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
