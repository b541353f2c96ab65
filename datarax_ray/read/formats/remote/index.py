"""An index of what is known of remote files, kept on this machine, so that a later start sends fewer requests.

The cache directory has one small JSON file for each directory of data. An entry is of one version of a file, as its
storage names it (an ETag, a generation). An index that cannot be written, or is damaged, costs requests and nothing
else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datarax_ray.plan.plain_values import digest
from datarax_ray.read.formats.remote.urls import redacted
from datarax_ray.read.lines import written_whole

logger = logging.getLogger("datarax_ray")

_FORMAT = 1


def cache_directory() -> Path | None:
    """The folder of the index: $DATARAX_RAY_CACHE, None where that is empty; by default datarax_ray in $XDG_CACHE_HOME,
    or in ~/.cache.
    """
    named = os.environ.get("DATARAX_RAY_CACHE")
    if named is None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return Path(home) / "datarax_ray" if os.path.isabs(home) else None
    return Path(named).absolute() if named else None


def is_lasting(version: str) -> bool:
    """Whether two states of a file never share a version: a time of change counts seconds, and files of different bytes
    may share a weak ETag (RFC 9110, 8.8.1).

    >>> [is_lasting(version) for version in ('"6c8e"', "1762", "etag 0x8D", 'W/"6c8e"', "Wed, 21 Oct 2026", "mtime 5")]
    [True, True, True, False, False, False]
    """
    return version.startswith(('"', "etag ", "ETag ", "generation ", "version ")) or version.isdigit()


class Index:
    """The entries of files, by directory, each read when it is first needed."""

    def __init__(self) -> None:
        self._root = cache_directory()
        self._known: dict[str, dict[str, Any]] = {}  # of each directory, by name
        self._added: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()  # or all threads that look at files would read it at first

    def find(self, url: str, what: str = "") -> Mapping[str, Any] | None:
        """The last entry of a URL, with the "version" that it is of. what: names one of several entries of a URL."""
        parent, name = _place(url, what)
        with self._lock:
            if parent not in self._known:
                self._known[parent] = self._read(parent)
        found = self._known[parent].get(name)
        return found if isinstance(found, Mapping) else None

    def add(self, url: str, fields: Mapping[str, Any], what: str = "") -> None:
        """Add an entry of plain values, "version" among them."""
        if is_lasting(fields["version"]):
            parent, name = _place(url, what)
            self._added.setdefault(parent, {})[name] = dict(fields)

    def save(self) -> None:
        """Keep the added entries for later starts, beside those that others have added meanwhile."""
        for parent, files in self._added.items() if self._root is not None else ():
            path = self._path(parent)
            files = self._read(parent) | files
            content = {"format": _FORMAT, "files": files, "digest": digest(files)}
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with written_whole(path) as part:
                    part.write_text(json.dumps(content))
            except OSError as error:  # a disk that is full, or not to be written
                logger.info("what was found in %s is not kept for later starts: %s", parent, error)
        self._added.clear()

    def _read(self, parent: str) -> dict[str, Any]:
        if self._root is None:
            return {}
        try:
            content = json.loads(self._path(parent).read_bytes())
            files = content["files"]
            if content["format"] != _FORMAT or not isinstance(files, dict) or content["digest"] != digest(files):
                return {}
        except (OSError, ValueError, LookupError, TypeError):  # none yet, or damaged
            return {}
        return files

    def _path(self, parent: str) -> Path:
        assert self._root is not None
        return self._root / "index" / f"{hashlib.sha256(parent.encode()).hexdigest()[:24]}.json"


def _place(url: str, what: str) -> tuple[str, str]:
    """The directory and the name, without what may be a secret."""
    parent, _, name = redacted(url).rpartition("/")
    return parent, f"{name} {what}" if what else name
