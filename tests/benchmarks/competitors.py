"""Everyone who delivers records in this benchmark, one function each: a Task in, the Batches of its stream out.

Each runs in a process of its own (see one.py), so imports and threads of one do not slow another. All give globally
shuffled, decoded, batched records in the process that trains, except `raw`, which only reads them where it is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.benchmarks.data import KINDS, Kind

SEED = 42
_CPU_SEEN: dict[int, float] = {}  # by process; Ray's workers come and go


@dataclass(frozen=True)
class Task:
    """What to deliver, and how. records: to deliver, whole epochs or a part of one. seconds: stop then, if earlier.

    workers: processes, actors or Grain workers. setting: of the competitor, what its grid varies. identify: collect
    the identity of every record, which costs time. warmup_s: after the first batch, that are not counted; seconds come
    behind them.
    """

    competitor: str
    kind: str
    paths: list[str]
    num_records: int
    records: int
    seconds: float
    workers: int = 0
    setting: dict[str, Any] = field(default_factory=dict)
    identify: bool = False
    warmup_s: float = 0.0


@dataclass(frozen=True)
class Delivery:
    """What came: records after the warm-up, the seconds that took, and those of CPU; seconds until the first batch.

    all_cpu_s: with those until the first batch, where they are counted. cpu_s: of this process and everything that it
    started (of Ray: all of it), the one figure that a busy machine leaves nearly alone.
    """

    records: int
    seconds: float
    first_batch_s: float
    cpu_s: float
    identities: list[int] = field(default_factory=list)
    all_cpu_s: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)


def deliver(task: Task) -> Delivery:
    from tests.benchmarks.table_readers import ray_data

    return {
        "raw": raw,
        "raw+decode": raw,
        "grain.DataLoader": grain_data_loader,
        "grain.MapDataset": grain_map_dataset,
        "in-process": in_process,
        "RaySource": ray_source,
        "RaySource memory": ray_memory,
        "Ray Data by hand": ray_data_by_hand,
        "Ray Data": ray_data,
        "ParquetSource": in_process,
        "ParquetSource, RaySource": ray_source,
    }[task.competitor](task)


class _Clock:
    """What is counted of a run: all after the last batch of its warm-up. cpu: seconds of CPU so far.

    A process pays once for pages, threads and the right size of its reads; a training job runs for days after that.
    """

    def __init__(self, task: Task, wanted: int, cpu: Callable[[], float]) -> None:
        self._task = task
        self._cpu = cpu
        self._first_cpu, self._begin_cpu = cpu(), 0.0
        self.num_left = wanted
        self.num_counted = 0
        self.first = self.begin = self.end = 0.0

    def tick(self, num_records: int) -> None:
        """A batch is here."""
        self.end = time.monotonic()
        self.first = self.first or self.end
        self.num_left -= num_records
        self.num_counted += num_records
        if self.end - self.first <= self._task.warmup_s:
            self.begin, self._begin_cpu, self.num_counted = self.end, self._cpu(), 0

    @property
    def cpu_s(self) -> float:
        return self._cpu() - self._begin_cpu

    @property
    def all_cpu_s(self) -> float:
        return self._cpu() - self._first_cpu

    @property
    def is_over(self) -> bool:
        return self.num_left <= 0 or (
            self.first > 0 and self.end - self.first >= self._task.warmup_s + self._task.seconds
        )


def raw(task: Task) -> Delivery:
    """ArrayRecordReader alone, in `workers` processes that own whole files: what the disk format can give.

    setting: call "list" (one read(list) for a batch), "single" (read(i, i + 1) for each) or "groups" (read(i, j) of
    each whole group, in a random order of these), batch: records in one.
    Raw reads sort what they ask for within a batch, as it is faster. With "+decode", batches are decoded and dropped.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(task.workers, _set_barrier, (context.Barrier(task.workers),)) as pool:
        parts = pool.starmap(_read_raw, [(task, index) for index in range(task.workers)], chunksize=1)
    begin, end = min(part["first"] for part in parts), max(part["end"] for part in parts)
    identities = [identity for part in parts for identity in part["identities"]]
    return Delivery(
        sum(part["records"] for part in parts),
        end - begin,
        max(part["startup"] for part in parts),
        sum(part["cpu_s"] for part in parts),
        identities,
    )


def _set_barrier(barrier: Any) -> None:
    globals()["_barrier"] = barrier


def _read_raw(task: Task, worker: int) -> dict[str, Any]:
    kind, decode = KINDS[task.kind], task.competitor == "raw+decode"
    rng = np.random.default_rng(SEED + worker)
    globals()["_barrier"].wait()
    begin = time.monotonic()
    readers = _readers(task.paths[worker :: task.workers])
    identities: list[int] = []
    clock = _Clock(task, task.records // task.workers, time.process_time)
    while not clock.is_over:
        for records in _raw_batches(task, readers, rng, clock):
            if decode:
                _decode_block(kind, records)
            if task.identify:
                identities += kind.identify(np.stack([kind.decode_row(record) for record in records])).tolist()
            clock.tick(len(records))
            if clock.is_over:
                break
    return {
        "first": clock.begin,
        "end": clock.end,
        "records": clock.num_counted,
        "startup": clock.first - begin,
        "cpu_s": clock.cpu_s,
        "identities": identities,
    }


def _readers(paths: Sequence[str]) -> list[Any]:
    from array_record.python.array_record_module import ArrayRecordReader

    return [ArrayRecordReader(path, "readahead_buffer_size:0", file_reader_buffer_size=8 * 1024) for path in paths]


def _raw_batches(task: Task, readers: list[Any], rng: np.random.Generator, clock: _Clock) -> Iterator[list[bytes]]:
    """An epoch of these files; asks the clock how many records are wanted still."""
    counts, batch = [reader.num_records() for reader in readers], task.setting["batch"]
    if task.setting["call"] == "groups":
        groups = [
            (reader, start, min(start + batch, count))
            for reader, count in zip(readers, counts, strict=True)
            for start in range(0, count, batch)
        ]
        for index in rng.permutation(len(groups)).tolist():
            reader, start, stop = groups[index]
            yield reader.read(start, stop)[: clock.num_left]
        return
    starts = np.cumsum([0, *counts])
    order = rng.permutation(int(starts[-1]))
    for start in range(0, len(order), batch):
        chosen = np.sort(order[start : start + min(batch, clock.num_left)])
        yield _read_chosen(readers, starts, chosen, task.setting["call"])


def _read_chosen(readers: list[Any], starts: np.ndarray, chosen: np.ndarray, call: str) -> list[bytes]:
    records: list[bytes] = []
    bounds = np.searchsorted(chosen, starts)
    for reader, start, lo, hi in zip(readers, starts, bounds, bounds[1:], strict=False):
        indices = (chosen[lo:hi] - start).tolist()
        if call == "list" and indices:
            records += reader.read(indices)
        elif call == "single":
            for index in indices:
                records += reader.read(index, index + 1)
    return records


def _decode_block(kind: Kind, records: list[bytes]) -> Any:
    decoder = kind.decoder()
    if hasattr(decoder, "decode"):
        return decoder.decode(records)
    return np.stack([kind.decode_row(record) for record in records])


def grain_data_loader(task: Task) -> Delivery:
    """Grain's DataLoader. setting: threads that read in each process, 0 for none but the caller's."""
    grain = _import_grain()
    kind = KINDS[task.kind]

    class Decode(grain.transforms.Map):
        def map(self, record: bytes) -> np.ndarray:
            return kind.decode_row(record)

    begin = time.monotonic()
    source = grain.sources.ArrayRecordDataSource(task.paths)
    loader = grain.DataLoader(
        data_source=source,
        sampler=grain.samplers.IndexSampler(
            len(source),
            shard_options=grain.sharding.NoSharding(),
            shuffle=True,
            num_epochs=num_epochs(task),
            seed=SEED,
        ),
        operations=[Decode(), grain.transforms.Batch(kind.batch_size)],
        worker_count=task.workers,
        read_options=_read_options(grain, task),
    )
    return consume(task, loader, begin)


def grain_map_dataset(task: Task) -> Delivery:
    """Grain's MapDataset with mp_prefetch.

    setting: threads as above; batch "map" (a thread makes a whole batch) or "iter" (threads read records).
    """
    grain = _import_grain()
    kind = KINDS[task.kind]
    begin = time.monotonic()
    dataset = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(task.paths)).shuffle(seed=SEED)
    dataset = dataset.repeat(num_epochs(task)).map(kind.decode_row)
    if task.setting["batch"] == "map":
        dataset = dataset.batch(kind.batch_size)
    stream = dataset.to_iter_dataset(_read_options(grain, task))
    if task.setting["batch"] == "iter":
        stream = stream.batch(kind.batch_size)
    if task.workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=task.workers))
    return consume(task, stream, begin)


def _import_grain() -> Any:
    from absl import flags

    # Grain's worker processes read absl's flags, which a script without absl.app.run never parses (grain #1355).
    flags.FLAGS.mark_as_parsed()
    import grain

    return grain


def _read_options(grain: Any, task: Task) -> Any:
    threads = task.setting["threads"]
    ahead = 500  # Grain's default: in records, or batches where a thread makes a whole batch; that many would be GBs
    if task.setting.get("batch") == "map":
        ahead = max(2, 2 * threads)
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead if threads else 0)


def ray_data_by_hand(task: Task) -> Delivery:
    """What a user of Ray Data, which reads no ArrayRecord, writes for the same stream: positions in, records out.

    `workers` actors look up what stands at the positions of a block in a permutation of each epoch, read that in the
    order of the file, and put it back. setting: batch, positions in a block.
    """
    import ray

    notes = start_ray(task)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    begin = time.monotonic()
    size = task.setting["batch"]
    num_blocks = min(-(-task.records // size), _MOST_BLOCKS)
    found = ray.data.range(min(task.records, num_blocks * size), override_num_blocks=num_blocks).map_batches(
        _ByHand,
        fn_constructor_args=(task,),
        batch_size=None,  # a block, as it is
        concurrency=task.workers,
        num_cpus=0.1,
    )
    batches = found.iter_batches(batch_size=KINDS[task.kind].batch_size, prefetch_batches=4)
    return replace(consume(task, (batch["data"] for batch in batches), begin), notes=notes)


_MOST_BLOCKS = 4000  # of Ray Data, which plans all of them before the first


class _ByHand:
    """Reads the records that stand at a block's positions."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._readers = _readers(task.paths)
        self._starts = np.cumsum([0, *(reader.num_records() for reader in self._readers)])
        self._epoch = -1

    def __call__(self, block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        kind, positions = KINDS[self._task.kind], block["id"]
        indices = np.concatenate([self._records(int(epoch), positions) for epoch in np.unique(positions // self._n)])
        order = np.argsort(indices)
        records = _read_chosen(self._readers, self._starts, indices[order], "single")
        decoded = _decode_block(kind, records)
        rows: np.ndarray = decoded[kind.field] if isinstance(decoded, dict) else decoded
        placed = np.empty_like(rows)
        placed[order] = rows
        return {"data": placed}

    @property
    def _n(self) -> int:
        return self._task.num_records

    def _records(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng((SEED, epoch)).permutation(self._n)
        return self._order[positions[positions // self._n == epoch] % self._n]


def in_process(task: Task) -> Delivery:
    """This project's source without Ray: it reads when it is asked, in the process that consumes."""
    from datarax_ray.feed.stream import StreamOptions

    _import_sources()
    begin = time.monotonic()
    source = _source(task)
    delivery = consume(task, source.batches(0, StreamOptions(_kind(task).batch_size)), begin)
    source.close()
    return delivery


def ray_source(task: Task) -> Delivery:
    """This project's RaySource with `workers` actors, on a Ray of its own."""
    from datarax_ray.actors.source import RaySource
    from datarax_ray.feed.stream import StreamOptions

    notes = start_ray(task)
    begin = time.monotonic()
    with RaySource(_source(task), num_actors=task.workers, num_cpus=0.1) as source:
        notes["actor_max_rss_nbytes"] = max((each["max_rss_nbytes"] for each in source.stats().values()), default=0)
        delivery = consume(task, source.batches(0, StreamOptions(_kind(task).batch_size)), begin)
        notes["num_blocks"] = sum(actor["num_blocks"] for actor in source.stats().values())
    return replace(delivery, notes=notes)


def ray_memory(task: Task) -> Delivery:
    """The largest use of the object store: a consumer that stops now and then, so that the window fills up.

    Asks the node's object store itself (`object_store_bytes_used` of the raylet's statistics) at the end of each stop:
    Ray gives back in batches, once a second, what nobody holds any more, so that during a run there is up to a second's
    stream more in the store, which no one here can bound. The rate of this run means nothing.
    """
    import ray
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    from datarax_ray.actors.source import RaySource
    from datarax_ray.feed.stream import DEFAULT_MAX_NBYTES, StreamOptions

    notes = start_ray(task)
    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    used: list[int] = []

    def sample() -> None:
        time.sleep(1.5)  # until actors have read all that was asked for, and Ray has given back what was released
        used.append(get_memory_info_reply(state).store_stats.object_store_bytes_used)

    def sampled(stream: Iterator[Any]) -> Iterator[Any]:
        pause_at = time.monotonic() + 0.2
        for batch in stream:
            yield batch
            if time.monotonic() > pause_at:
                sample()
                pause_at = time.monotonic() + 0.5

    begin = time.monotonic()
    with RaySource(_source(task), num_actors=task.workers, num_cpus=0.1) as source:
        delivery = consume(task, sampled(source.batches(0, StreamOptions(_kind(task).batch_size))), begin)
    notes |= {"object_store_max_nbytes": max(used, default=0), "window_max_nbytes": DEFAULT_MAX_NBYTES}
    return replace(delivery, notes=notes)


def start_ray(task: Task) -> dict[str, Any]:
    import ray

    _import_sources()
    begin = time.monotonic()
    # "local": never somebody else's cluster on this host.
    ray.init(address="local", num_cpus=max(2, task.workers + 1), include_dashboard=False, log_to_driver=False)
    return {"ray_init_s": time.monotonic() - begin}


def _import_sources() -> None:
    """Before the clock starts: imports are the same for everyone's script (jax, mostly)."""
    import datarax_ray.sources  # noqa: F401


def _kind(task: Task) -> Any:
    """What its records are: a Kind, or a Table."""
    from tests.benchmarks.tables import TABLES

    is_table = task.competitor in ("Ray Data", "ParquetSource", "ParquetSource, RaySource")
    return TABLES[task.kind] if is_table else KINDS[task.kind]


def _source(task: Task) -> Any:
    if task.competitor.startswith("ParquetSource"):
        from tests.benchmarks.table_readers import parquet_source

        return parquet_source(task)
    from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule

    config = ArrayRecordSourceConfig(
        seed=SEED,
        shuffle_files=True,
        num_epochs=num_epochs(task),
        shuffle_block_size="auto" if KINDS[task.kind].group_size > 1 else None,
    )
    return ArrayRecordSourceModule(config, task.paths, transforms=[KINDS[task.kind].decoder()])


def num_epochs(task: Task) -> int:
    return -(-task.records // task.num_records)


def consume(task: Task, batches: Iterable[Any], begin: float) -> Delivery:
    """Take batches until the records or the seconds are reached."""
    kind = _kind(task)
    identities: list[int] = []
    clock = _Clock(task, task.records, cpu_s)
    for batch in batches:
        rows = kind.rows(batch)
        clock.tick(len(rows))
        if task.identify:
            identities += kind.identify(rows).tolist()
        if clock.is_over:
            break
    times = clock.end - clock.begin, clock.first - begin, clock.cpu_s
    return Delivery(clock.num_counted, *times, identities, clock.all_cpu_s)


def cpu_s() -> float:
    """CPU seconds so far of this process and those below it; of those that ended, what they had when last seen."""
    import psutil

    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile
            times = process.cpu_times()
            _CPU_SEEN[process.pid] = times.user + times.system
    return sum(_CPU_SEEN.values())
