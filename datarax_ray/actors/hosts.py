"""The hosts of a cluster at work: one function called on them, files behind URLs and files of single nodes looked up.

A call that is lost with its host is repeated; a call whose host cannot read or write its part is tried on another host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as NodeAffinity

from datarax_ray.actors.connecting import connect
from datarax_ray.actors.connection import RAY_LOCK, Connection, check_can_connect
from datarax_ray.actors.readiness import has_labels
from datarax_ray.actors.recovery import first_line
from datarax_ray.plan.arguments import named_arguments, ordered, whole
from datarax_ray.read.errors import FULL, message_of
from datarax_ray.read.formats.array_record.files import NodeFiles, RecordFile, counted, counted_parts, known_of
from datarax_ray.read.formats.parquet import footers
from datarax_ray.read.formats.paths import FileSlice, find, for_people, kept
from datarax_ray.read.formats.remote.index import Index, cache_directory
from datarax_ray.read.formats.remote.urls import is_url, redacted

logger = logging.getLogger("datarax_ray")

_LOOK_S = 0.5  # between two reports of progress
_END_S = 5.0  # for cancelled calls to clean up
# Of one call. Spot hosts go often; a call that ends its own process does so each time.
_MAX_RETRIES = 5
_SHARE_FILES = 256  # the files of one task, which are looked up again where its host is lost


@dataclass(frozen=True)
class _Failed:
    """The error of a call, as a value: Ray's copy of an error has another class and no notes."""

    error: BaseException
    node_id: str
    host: str

    @property
    def is_of_host(self) -> bool:
        """Whether another host may succeed, as where a mount is missing here. A full disk is full for all."""
        return isinstance(self.error, OSError) and self.error.errno not in FULL


class _Counts:
    """The progress of each call, by its number: an actor."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def note(self, index: int, count: int) -> None:
        self._counts[index] = count

    def all(self) -> dict[int, int]:
        return self._counts


def on_hosts(
    function: Callable[[Any, Callable[[int], None]], Any],
    each: Sequence[Any],
    num_actors: int | None,
    report: Callable[[Mapping[int, int]], None],
    num_cpus: float = 1.0,
) -> Generator[tuple[int, Any], None, None]:
    """Call function(item, tell) for each item; yields its number and result as calls end.

    function: travels once, and runs again where its process or host is lost, so its result must not depend on that. It
        reports its progress by `tell(count)`.
    num_actors: calls at a time, None for one per CPU of the cluster but one.
    report: called some times a second with the last count of each call, by its number; {} where it is not known.
    num_cpus: of each call.

    Raises: the error of a call, an OSError once a second host has it too; what report raises, after the other calls
    have ended; RuntimeError for a call that is lost again and again.
    """
    check_can_connect()
    with RAY_LOCK:
        limit, num_cpus = connect(num_actors, num_cpus)
        connection = Connection()
        shared = ray.put(function)
        counts = ray.remote(num_cpus=0, max_restarts=-1)(_Counts).remote()
        options = {"num_cpus": num_cpus, "max_retries": _MAX_RETRIES, "scheduling_strategy": "SPREAD"}
        call = ray.remote(**options)(_called)
    left = deque(enumerate(each))
    pending: dict[Any, int] = {}
    elsewhere: dict[int, str] = {}  # the second node of a call, by its number
    try:
        while left or pending:
            with connection.held():
                most = limit or max(1, int(ray.cluster_resources().get("CPU", 1)) - 1)  # hosts join
                while left and len(pending) < most:
                    index, item = left.popleft()
                    node = elsewhere.get(index)
                    there = call if node is None else call.options(scheduling_strategy=NodeAffinity(node, soft=True))
                    pending[there.remote(shared, index, item, counts)] = index
            with connection.waiting():
                done, _ = ray.wait(list(pending), timeout=_LOOK_S)
                so_far: Mapping[int, int] = {}
                with contextlib.suppress(RayError, GetTimeoutError):  # its node went; it comes back
                    so_far = ray.get(counts.all.remote(), timeout=_LOOK_S)
            report(so_far)
            for ref in done:
                index = pending.pop(ref)
                try:
                    with connection.waiting():
                        found = ray.get(ref)
                except RayError as error:
                    raise RuntimeError(
                        f"{each[index]}: its process ended {_MAX_RETRIES + 1} times, at last by {first_line(error)}. "
                        "If the data ends it, running the same in this process alone shows how"
                    ) from None
                if isinstance(found, _Failed):
                    with connection.held():
                        others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and _has_room(node)]
                    others = [node for node in others if node != found.node_id]
                    if not found.is_of_host or index in elsewhere or not others:
                        raise found.error
                    logger.warning("%s failed, and another host is asked: %s", found.host, found.error)
                    elsewhere[index] = others[index % len(others)]
                    left.append((index, each[index]))
                    continue
                yield index, found
    finally:
        del shared  # or the traceback of an error would keep it in the object store
        with contextlib.suppress(Exception), connection.held():  # Ray may be shut down, and the calls with it
            for ref in pending:
                ray.cancel(ref)  # by an interrupt, after which they clean up
            # force=True may end this program, where a call ends at that moment ("task that was not pending")
            stuck = ray.wait(list(pending), num_returns=len(pending), timeout=_END_S)[1] if pending else ()
            for ref in stuck:
                ray.cancel(ref, force=True)
            ray.kill(counts)


def _has_room(node: Mapping[str, Any]) -> bool:
    """Whether a node takes tasks; the head of a cluster often has no CPUs for them."""
    return bool(node["Resources"].get("CPU"))


def _called(function: Any, index: int, item: Any, counts: Any) -> Any:
    """In a worker."""
    if "jax" not in sys.modules:  # what users import may load it, and it would take the accelerator's memory
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        return function(item, lambda count: counts.note.remote(index, count))
    except Exception as error:
        host = socket.gethostname()
        error.add_note(f"on {host}")
        try:
            ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {message_of(error)}")
        return _Failed(error, ray.get_runtime_context().get_node_id(), host)


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
    """Look up ArrayRecord or Parquet files behind URLs by Ray tasks, so that a source over them starts at once.

    The results are kept on this machine, by version of the file (see DATARAX_RAY_CACHE); a source made here later opens
    none of the files. This program only lists them, and skips ArrayRecord files whose version is known. The source
    itself opens files on disks.

    paths: as ArrayRecordSourceModule takes them, or as ParquetSource does where they end in .parquet, .parq or .pq.
    columns, exclude_columns: as the ParquetSource will be given them.
    num_actors: tasks at a time, each of which looks at a share of the files, 32 at once.
    num_cpus: of each task.
    timeout_s: for all files.

    Returns the number of files that were looked up.

    Raises: ValueError where DATARAX_RAY_CACHE is empty, for an incomplete file, and for files of both formats;
    TimeoutError after timeout_s; what listing raises. What was looked up before the error is kept.
    """
    count = whole("num_actors", num_actors, least=1)
    if cache_directory() is None:
        raise ValueError("DATARAX_RAY_CACHE is empty, so the index would be kept nowhere; name a folder, or unset it")
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
        look, unknown = (
            _look_at_records,
            [part for part in find(paths) if is_url(part.path) and not _is_known(part, index)],
        )
        files = list({part.path: part for part in unknown}.values())
    num_shares = max(min(count, len(files)), -(-len(files) // _SHARE_FILES))
    shares = [_Share(list(files[number::num_shares])) for number in range(num_shares)]
    end_at = time.monotonic() + timeout_s

    def look_at_clock(_: Mapping[int, int]) -> None:
        if time.monotonic() > end_at:
            raise TimeoutError(
                f"{len(files)} files of {for_people(paths)} were not looked up within {timeout_s:g} s by {count} "
                "tasks; give more actors, or a longer timeout_s"
            )

    if not files:
        return 0
    try:
        with contextlib.closing(on_hosts(look, shares, count, look_at_clock, num_cpus)) as found:
            for _, each in found:
                if is_parquet:
                    footers.keep(each, columns, exclude, index)
                else:
                    for file in each:
                        index.add(file.path, known_of(file))
    finally:
        index.save()
    return len(files)


@dataclass(frozen=True)
class _Share:
    """The files of one task."""

    files: list[Any]

    def __str__(self) -> str:
        first = self.files[0]
        return f"{len(self.files)} files, {redacted(getattr(first, 'path', first))} the first"


def _is_parquet(paths: Any) -> bool:
    """Whether the paths are named as Parquet files. Raises: ValueError where only some are."""
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
    """Whether the index has the version that the listing gave."""
    known = index.find(part.path)
    return known is not None and bool(part.version) and known["version"] == part.version


def _look_at_records(share: _Share, _: Any) -> list[RecordFile]:
    """In a task: each file as a whole."""
    return counted_parts([FileSlice(part.path, version=part.version) for part in share.files])


def _look_at_footers(
    columns: tuple[str, ...] | None, exclude: tuple[str, ...], share: _Share, _: Any
) -> footers.Footers:
    """In a task: the footers, without the task's own filesystem."""
    return replace(footers.look_up(share.files, columns, exclude, None), filesystem=None)


@named_arguments
def files_on_nodes(
    paths: Any,
    *,
    resources: Mapping[str, float] | None = None,
    label_selector: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> NodeFiles:
    """The ArrayRecord files that lie on some nodes alone, for an ArrayRecordSourceModule that a RaySource reads.

    Stream and state are those of all files in one directory, wherever each file lies. A file that several nodes have is
    one file, which any of them reads. Actors run where the files are, at least one on each such node.

    paths: as ArrayRecordSourceModule takes them, absolute: each node looks for them on its own disks.
    resources, label_selector: of the nodes to ask, as RaySource takes them; None for all nodes that have CPUs.
    timeout_s: for the answers; a node opens its files first.

    Raises: FileNotFoundError where no node has a file; ValueError for a broken file, and where files of one name differ
    in size, count or sampled bytes (begin, end and eight pages between); TimeoutError where a node does not answer.
    """
    ordered("paths", paths)
    is_one = isinstance(paths, str | os.PathLike) or hasattr(paths, "filename") or not isinstance(paths, Iterable)
    named = [paths] if is_one else list(paths)
    for each in named:
        path = os.fspath(getattr(each, "filename", each))
        if is_url(path):
            raise ValueError(f"{each} is the same on every node: give it to the source itself")
        if not os.path.isabs(path):
            raise ValueError(f"{each} is relative to nothing there; files of nodes are named by absolute paths")
    check_can_connect()
    with RAY_LOCK:
        connect(None, 1.0)
        wanted = {"CPU": 1e-9, **(resources or {})}
        nodes = [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"]
            and has_labels(node["Labels"], label_selector or {})
            and all(node["Resources"].get(name, 0.0) >= amount for name, amount in wanted.items())
        ]
        look = ray.remote(num_cpus=0)(_look_here)
        asked = {node: look.options(scheduling_strategy=NodeAffinity(node, soft=False)).remote(named) for node in nodes}
    if not asked:
        raise RuntimeError(f"no node of the cluster has {wanted} and the labels {dict(label_selector or {})}")
    try:
        found = dict(zip(asked, ray.get(list(asked.values()), timeout=timeout_s), strict=True))
    except GetTimeoutError:
        there = set(ray.wait(list(asked.values()), num_returns=len(asked), timeout=0)[0])
        silent = [node[:12] for node, ref in asked.items() if ref not in there]
        raise TimeoutError(
            f"{len(silent)} of {len(asked)} nodes did not answer within {timeout_s:g} s which files they have: "
            f"{silent}. Give a longer timeout_s, or take these nodes out of the cluster"
        ) from None
    return NodeFiles.union(found)


def _look_here(named: list[Any]) -> list[list[RecordFile]]:
    """On a node: its files of each path."""
    found: list[list[RecordFile]] = []
    for path in named:
        try:
            found.append(counted(path))
        except FileNotFoundError:  # another node has it
            found.append([])
        except Exception as error:
            error.add_note(f"on node {ray.get_runtime_context().get_node_id()[:12]}")
            raise
    return found
