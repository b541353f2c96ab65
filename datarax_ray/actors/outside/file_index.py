"""What many files behind URLs hold, looked up by actors, so that a source over them starts at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from datarax_ray.actors.connecting import connect
from datarax_ray.actors.connection import RAY_LOCK, check_can_connect
from datarax_ray.plan.arguments import named_arguments, whole
from datarax_ray.read.formats.array_record import RecordFile, counted_parts, known_of
from datarax_ray.read.formats.parquet import footers
from datarax_ray.read.formats.paths import FileSlice, find, for_people, kept
from datarax_ray.read.formats.remote.index import Index, cache_directory
from datarax_ray.read.formats.remote.ranges import is_url, shown


@named_arguments
def index_files(
    paths: Any,
    *,
    columns: Iterable[str] | None = None,
    exclude_columns: Iterable[str] = (),
    num_actors: int = 4,
    num_cpus: float = 1.0,
    timeout_s: float = 3600.0,
) -> int:
    """Look up ArrayRecord or Parquet files behind URLs by Ray tasks: a source over them made here later opens none.

    What was found is kept on this machine, by version (see DATARAX_RAY_CACHE). Here the files are listed, and no more;
    of ArrayRecord, those that are known in that version already are left out. Files on disks are opened by the source
    itself.

    paths: as ArrayRecordSourceModule takes them; names that end as those of Parquet do (.parquet, .parq, .pq), globs
    too, are taken as by ParquetSource, with the columns and exclude_columns that it will be given. num_actors: tasks
    that look, each at a share of the files, 32 at a time, with so many num_cpus. timeout_s: for all of them. Returns
    how many files were looked up.

    Raises: ValueError where what was found could be kept nowhere, for what is no whole file of its format, and for
    files of both; TimeoutError where they take longer; what listing raises.
    """
    count = whole("num_actors", num_actors)
    if count < 1:
        raise ValueError(f"num_actors must be at least 1, got {count}")
    if cache_directory() is None:
        raise ValueError(
            "DATARAX_RAY_CACHE is empty, so what is found would be kept nowhere; name a folder in it, or leave it out"
        )
    paths, index = kept(paths), Index()
    columns, exclude = None if columns is None else tuple(columns), tuple(exclude_columns)
    parts: Sequence[Any]
    if _is_parquet(paths):
        parts = list(dict.fromkeys(footers.urls_of(paths)))
        for found in _asked(partial(_look_at_footers, columns, exclude), parts, paths, count, num_cpus, timeout_s):
            footers.keep(found, columns, exclude, index)
    else:
        if columns is not None or exclude:
            raise ValueError(f"columns and exclude_columns are of Parquet, and {for_people(paths)} is not named so")
        unknown = {part.path: part for part in find(paths) if is_url(part.path) and not _is_known(part, index)}
        parts = list(unknown.values())
        for files in _asked(_look, parts, paths, count, num_cpus, timeout_s):
            for file in files:
                index.add(file.path, known_of(file))
    index.save()
    return len(parts)


def _asked(
    look: Callable[[Any], Any], parts: Sequence[Any], paths: Any, count: int, num_cpus: float, timeout_s: float
) -> list[Any]:
    """What tasks find of each share of these."""
    if not parts:
        return []
    check_can_connect()
    with RAY_LOCK:
        _, each_cpus = connect(count, num_cpus)
        task = ray.remote(num_cpus=each_cpus)(lambda share: look(share))
        asked = [task.remote(parts[number::count]) for number in range(min(count, len(parts)))]
    try:
        found: list[Any] = ray.get(asked, timeout=timeout_s)
    except GetTimeoutError:
        for ref in asked:
            ray.cancel(ref, force=True)
        raise TimeoutError(
            f"{len(parts)} files of {for_people(paths)} were not looked up within {timeout_s:g} s by {len(asked)} "
            "tasks; give more actors, or a longer timeout_s"
        ) from None
    return found


def _is_parquet(paths: Any) -> bool:
    """Whether these are named as Parquet files are. Raises: ValueError where some are, and others are not."""
    named = [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    texts = [shown(os.fspath(path)) if isinstance(path, str | os.PathLike) else "" for path in named]
    are = [text.lower().endswith(footers.SUFFIXES) for text in texts]
    if any(are) and not all(are):
        raise ValueError(
            f"{texts[are.index(True)]} is named as Parquet is, and {texts[are.index(False)]} is not; call index_files "
            "for each format"
        )
    return any(are)


def _is_known(part: FileSlice, index: Index) -> bool:
    """Whether a listing told that it is the version that is known."""
    known = index.find(part.path)
    return known is not None and bool(part.version) and known["version"] == part.version


def _look(parts: list[FileSlice]) -> list[RecordFile]:
    """In a task: what is known of each file, as a whole."""
    return counted_parts([FileSlice(part.path, version=part.version) for part in parts])


def _look_at_footers(columns: tuple[str, ...] | None, exclude: tuple[str, ...], urls: list[str]) -> footers.Footers:
    """In a task: what is known of each file, for these columns."""
    return replace(footers.look_up(urls, columns, exclude, None), filesystem=None)  # which is the task's own
