"""What many files behind URLs hold, looked up by actors, so that a source over them starts at once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from datarax_ray.actors.outside.tasks import on_hosts
from datarax_ray.plan.arguments import named_arguments, whole
from datarax_ray.read.formats.array_record.files import RecordFile, counted_parts, known_of
from datarax_ray.read.formats.parquet import footers
from datarax_ray.read.formats.paths import FileSlice, find, for_people, kept
from datarax_ray.read.formats.remote.index import Index, cache_directory
from datarax_ray.read.formats.remote.urls import is_url, redacted

_SHARE_FILES = 256  # what is lost with a host is looked up again


@dataclass(frozen=True)
class _Share:
    """Some of the files, as a look at them takes them."""

    files: list[Any]

    def __str__(self) -> str:
        first = self.files[0]
        return f"{len(self.files)} files, {redacted(getattr(first, 'path', first))} the first"


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
        too, are taken as by ParquetSource, with the columns and exclude_columns that it will be given.
    num_actors: tasks that look, each at a share of the files, 32 at a time, with so many num_cpus.
    timeout_s: for all of them. Returns how many files were looked up.

    Raises: ValueError where what was found could be kept nowhere, for what is no whole file of its format, and for
    files of both; TimeoutError where they take longer; what listing raises. What was found by then is kept.
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
    is_parquet = _is_parquet(paths)
    if not is_parquet and (columns is not None or exclude):
        raise ValueError(f"columns and exclude_columns are of Parquet, and {for_people(paths)} is not named so")
    files: Sequence[Any]
    if is_parquet:
        look: Callable[..., Any] = partial(_look_at_footers, columns, exclude)
        files = list(dict.fromkeys(footers.urls_of(paths)))
    else:
        look, unknown = _look, [part for part in find(paths) if is_url(part.path) and not _is_known(part, index)]
        files = list({part.path: part for part in unknown}.values())
    try:
        for found in _asked(look, files, paths, count, num_cpus, timeout_s):
            if is_parquet:
                footers.keep(found, columns, exclude, index)
            else:
                for file in found:
                    index.add(file.path, known_of(file))
    finally:
        index.save()
    return len(files)


def _asked(
    look: Callable[..., Any], files: Sequence[Any], paths: Any, count: int, num_cpus: float, timeout_s: float
) -> Iterator[Any]:
    """What tasks find of each share of these, as it comes."""
    if not files:
        return
    num_shares = max(min(count, len(files)), -(-len(files) // _SHARE_FILES))
    shares = [_Share(list(files[number::num_shares])) for number in range(num_shares)]
    end_at = time.monotonic() + timeout_s

    def look_at_clock(_: Mapping[int, int]) -> None:
        if time.monotonic() > end_at:
            raise TimeoutError(
                f"{len(files)} files of {for_people(paths)} were not looked up within {timeout_s:g} s by {count} "
                "tasks; give more actors, or a longer timeout_s"
            )

    with contextlib.closing(on_hosts(look, shares, count, look_at_clock, num_cpus)) as found:
        for _, each in found:
            yield each


def _is_parquet(paths: Any) -> bool:
    """Whether these are named as Parquet files are. Raises: ValueError where some are, and others are not."""
    named = paths if isinstance(paths, tuple) else [paths]
    texts = [redacted(os.fspath(path)) if isinstance(path, str | os.PathLike) else "" for path in named]
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


def _look(share: _Share, _: Any) -> list[RecordFile]:
    """In a task: what is known of each file, as a whole."""
    return counted_parts([FileSlice(part.path, version=part.version) for part in share.files])


def _look_at_footers(
    columns: tuple[str, ...] | None, exclude: tuple[str, ...], share: _Share, _: Any
) -> footers.Footers:
    """In a task: what is known of each file, for these columns."""
    return replace(footers.look_up(share.files, columns, exclude, None), filesystem=None)  # which is the task's own
