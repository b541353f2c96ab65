"""From a URL that names many files (a glob, a directory) to the URLs of the files."""

from __future__ import annotations

import glob
import logging
from fnmatch import fnmatchcase
from re import Pattern
from typing import Any

from datarax_ray.read.formats.remote.clients import filesystem_of, scheme_of
from datarax_ray.read.formats.remote.ranges import REMOTE, Remote, by_client, cause, refusal
from datarax_ray.read.formats.remote.urls import redacted

logger = logging.getLogger("datarax_ray")


def is_hidden(name: str, pattern: str) -> bool:
    """Whether a shell's glob skips a name: a part of it begins with ".", and no part of the pattern matches that part.

    >>> is_hidden("data/.cache/a", "data/**"), is_hidden("data/.cache/a", "data/.c*/a")
    (True, False)
    """
    named = [part for part in pattern.split("/") if part.startswith(".")]
    hidden = [part for part in name.split("/") if part.startswith(".")]
    return not all(any(fnmatchcase(part, each) for each in named) for part in hidden)


def listed(url: str, named: Pattern[str], remote: Remote = REMOTE) -> dict[str, str]:
    """The files that a URL names, sorted: all that match a glob, or those in a directory with such a name. Each has its
    version, as read_ranges takes it, or "" where the listing has none.

    A URL with such a name is a file itself, and nobody is asked; so is one of http that does not end in "/".

    Raises: FileNotFoundError where there are none; PermissionError; ImportError where the client is not installed;
    StorageError where they cannot be listed for long.
    """
    client = filesystem_of(url)
    path = client._strip_protocol(url)
    is_http = url.startswith(("http://", "https://"))
    plain = url.partition("?")[0] if is_http else url  # there it begins a query, elsewhere it is a glob's
    is_glob = glob.has_magic(plain)
    name = plain.rpartition("/")[2]

    def ask() -> Any:
        client.invalidate_cache()  # clients are kept for the process, and most of them keep listings without an end
        if is_glob:
            return list(client.glob(path, detail=True).values())
        return client.ls(path, detail=True) if not name or client.isdir(path) else None

    if not is_glob and name and (is_http or named.search(name)):
        return {url: ""}
    try:
        infos = by_client(url, "listing it", ask, remote)
    except ValueError as error:  # the client's own
        raise refusal(url, f"{redacted(url)}: listing it", error) from cause(url, error)
    if infos is None:
        return {url: ""}
    versions = {info["name"]: scheme_of(url).listed_version(info) for info in infos}
    names = sorted(info["name"] for info in infos if info["type"] == "file")
    names = [name for name in names if not is_hidden(name, path)]
    found = [name for name in names if is_glob or named.search(name.rpartition("/")[2])]
    if not found and is_glob:
        raise FileNotFoundError(f"{redacted(url)}: no file matches this glob")
    if not found:
        raise FileNotFoundError(
            f"{redacted(url)}: none of the {len(names)} files in this directory is named *.array_record*, "
            f"*.arrayrecord* or *.riegeli* ({', '.join(names[:3]) or 'it is empty'}). Give a glob to take "
            "files of other names, or one of the directories below it."
        )
    # a client may list a directory in itself
    folders = {info["name"].rstrip("/") for info in infos if info["type"] == "directory"} - {path.rstrip("/")}
    if folders and "**" not in plain:  # which goes into them
        logger.warning(
            "%s: skipped %d directories, %s the first; give a glob or a list of them to have their files read as well.",
            redacted(url),
            len(folders),
            redacted(min(folders)),
        )
    return {client.unstrip_protocol(name): versions[name] for name in found}
