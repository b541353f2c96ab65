"""What many files behind URLs hold, looked up by actors, so that a source over them starts at once."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from datarax_ray.actors.connecting import connect
from datarax_ray.actors.connection import RAY_LOCK, check_can_connect
from datarax_ray.plan.arguments import named_arguments, whole
from datarax_ray.read.formats.array_record import RecordFile, counted_parts, known_of
from datarax_ray.read.formats.paths import FileSlice, find, for_people
from datarax_ray.read.formats.remote.index import Index, cache_directory
from datarax_ray.read.formats.remote.ranges import is_url


@named_arguments
def index_files(paths: Any, *, num_actors: int = 4, num_cpus: float = 1.0, timeout_s: float = 3600.0) -> int:
    """Look up ArrayRecord files behind URLs by Ray tasks: a source over them that is made here later opens none.

    What was found is kept on this machine, by version (see DATARAX_RAY_CACHE). Here the files are listed, and no more;
    those that are known in that version already are left out. Files on disks are opened by the source itself.

    paths: as ArrayRecordSourceModule takes them. num_actors: tasks that look, each at a share of the files, 32 at a
    time, with so many num_cpus. timeout_s: for all of them. Returns how many files were looked up.

    Raises: ValueError where what was found could be kept nowhere, and for what is no whole ArrayRecord file;
    TimeoutError where they take longer; what listing raises.
    """
    count = whole("num_actors", num_actors)
    if count < 1:
        raise ValueError(f"num_actors must be at least 1, got {count}")
    if cache_directory() is None:
        raise ValueError(
            "DATARAX_RAY_CACHE is empty, so what is found would be kept nowhere; name a folder in it, or leave it out"
        )
    index = Index()
    parts = list({part.path: part for part in find(paths) if is_url(part.path) and not _is_known(part, index)}.values())
    if not parts:
        return 0
    check_can_connect()
    with RAY_LOCK:
        _, each_cpus = connect(count, num_cpus)
        look = ray.remote(num_cpus=each_cpus)(_look)
        asked = [look.remote(parts[number::count]) for number in range(min(count, len(parts)))]
    try:
        for files in ray.get(asked, timeout=timeout_s):
            for file in files:
                index.add(file.path, known_of(file))
    except GetTimeoutError:
        for ref in asked:
            ray.cancel(ref, force=True)
        raise TimeoutError(
            f"{len(parts)} files of {for_people(paths)} were not looked up within {timeout_s:g} s by {len(asked)} "
            "tasks; give more actors, or a longer timeout_s"
        ) from None
    index.save()
    return len(parts)


def _is_known(part: FileSlice, index: Index) -> bool:
    """Whether a listing told that it is the version that is known."""
    known = index.find(part.path)
    return known is not None and bool(part.version) and known["version"] == part.version


def _look(parts: list[FileSlice]) -> list[RecordFile]:
    """In a task: what is known of each file, as a whole."""
    return counted_parts([FileSlice(part.path, version=part.version) for part in parts])
