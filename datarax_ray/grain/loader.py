"""DataLoader, its iterator and load, with Grain's signatures. Source: grain._src.python.data_loader, load."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Self

import grain

from datarax_ray.actors.source import RaySource
from datarax_ray.feed.consumer import Consumed, Consumer, Delivery, LazySession
from datarax_ray.feed.source import Source
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.grain import translation
from datarax_ray.grain.engine.outputs import Addresses, depth, outputs
from datarax_ray.grain.engine.stream import SampledStream
from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.plan.state import StreamState
from datarax_ray.read.closing import Closing, closed
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.random_access import RandomAccessReader

# Iterators in several threads share a loader's source, which the first makes. Not the loader's own: loaders are copied.
_OPENING = ThreadLock()


class DataLoader(NamedArguments, Closing):
    """Gives the outputs of `grain.DataLoader(..., worker_count=0)` for the same arguments, by any number of actors.

    data_source, sampler, operations, shard_options: as Grain takes them.
    worker_count: Ray actors; 0 to read in this process, where operations run on demand; None for one actor per CPU of
        the cluster, minus one.
    read_options: num_threads read single elements in parallel, in this process and in each actor, if the source has no
        batched read (`__getitems__` or `_getitems`). With worker_count=0, prefetch_buffer_size elements are read at a
        time; actors read ahead up to a bound in bytes.
    worker_buffer_size, enable_profiling: accepted without effect, as Grain has them; see ray_options and `stats`.
    ray_options: further arguments of RaySource (num_cpus, resources, label_selector, memory, runtime_env, name,
        chunk_size, max_nbytes, start_timeout_s).

    Every iterator begins at the start and has its own state. Iterators share the actors, which start with the first
    iterator and end with `close`, with the loader, or with the program.

    MapWithIndex, which Grain's own DataLoader accepts and cannot run, gets the sampler's index.

    Raises: ValueError, TypeError at construction for arguments out of range, and for objects that are no operations.
    """

    def __init__(
        self,
        *,
        data_source: Any,
        sampler: Any,
        operations: Sequence[Any] = (),
        worker_count: int | None = 0,
        worker_buffer_size: int = 1,
        shard_options: grain.sharding.ShardOptions | None = None,
        read_options: grain.ReadOptions | None = None,
        enable_profiling: bool = False,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        if worker_count is not None and worker_count < 0:
            raise ValueError(f"worker_count must be at least 0, or None for one per CPU, got {worker_count}")
        if worker_buffer_size < 0:
            raise ValueError(f"worker_buffer_size must be at least 0, got {worker_buffer_size}")
        self._data_source = data_source
        self._sampler = sampler
        self._shard = translation.shard_options_of(sampler, shard_options)
        self._operations = translation.operations_of(operations)
        self._worker_count = None if worker_count is None else int(worker_count)
        self._read_options = read_options or grain.ReadOptions()
        self._ray_options = dict(ray_options or {})
        self._description = self._describe()
        self._addresses = Addresses(depth(self._operations.stages) - 1)
        self._source: Source | None = None
        self._is_closed = False

    def describe(self) -> SampledStream:
        """The picklable description of the stream that actors get."""
        return self._description

    def __repr__(self) -> str:
        return f"DataLoader({self._description}, worker_count={self._worker_count})"

    def __iter__(self) -> DataLoaderIterator:
        return DataLoaderIterator(self)

    def begin(self, consumed: Consumed) -> Generator[Delivery, None, None]:
        """The remaining outputs. Starts the actors."""
        address = self._addresses.address(consumed.state)
        # in this process; RaySource has a size of its own
        chunk_size = self._read_options.prefetch_buffer_size or next(iter(self._operations.sizes), 1)
        chunks = self._reading().chunks(address[0], StreamOptions(1, chunk_size=chunk_size))
        first = self._operations.first if self._worker_count == 0 else None
        quiet_after = self._description.reader.num_records + math.prod(self._operations.sizes)
        made = outputs(chunks, first, self._operations.stages, address, quiet_after=quiet_after)

        def deliveries(consumed: Consumed) -> Generator[Delivery, None, None]:
            with contextlib.closing(chunks):
                for item, after in made:
                    consumed = consumed.then(self._addresses.state(after))
                    yield item.data, consumed
                yield None, consumed.then(consumed.state, is_end=True)

        return deliveries(consumed)

    def to_json(self, state: StreamState) -> dict[str, Any]:
        """The saved state of this loader at a state: under 4 KB, in plain values."""
        return state.to_json(self._description.settings())

    def from_json(self, state: Any, allow_drift: tuple[str, ...] = ()) -> StreamState:
        """Read a state of this loader.

        Raises: DriftError for another stream's state; ValueError or TypeError for anything else, also for a state that
        grain.DataLoader wrote.
        """
        if isinstance(state, Mapping) and state.keys() & {"last_seen_indices", "next_index", "parent"}:
            raise ValueError(
                "the state was written by grain.DataLoader, and is not read here; start a new epoch or run"
            )
        return StreamState.from_json(state, self._addresses, self._description.settings(), allow_drift=allow_drift)

    def stats(self) -> dict[int, dict[str, Any]]:
        """Process, node, memory and work of each running actor, by id; {} without actors, and once closed."""
        return self._source.stats() if isinstance(self._source, RaySource) and not self._is_closed else {}

    def check_open(self) -> None:
        """Raise RuntimeError where the loader is closed."""
        if self._is_closed:
            raise closed("DataLoader")

    def close(self) -> None:
        """Stop reading, end the actors and close the data source. Open iterators end too; states can still be taken."""
        with _OPENING:
            self._is_closed = True
        if self._source is not None:
            self._source.close()
        self._description.close()

    def _describe(self) -> SampledStream:
        options, operations = self._read_options, self._operations
        is_local = self._worker_count == 0
        size = translation.size_of(self._sampler)
        length = size // self._shard.shard_count
        reader = RandomAccessReader(self._data_source, options.num_threads if options.prefetch_buffer_size else 0)
        settings = {
            "files": reader.fingerprint(),
            "order": translation.sampler_settings(self._sampler, self._shard, length),
            **operations.settings,
        }
        return SampledStream(
            reader,
            translation.sampling_of(self._sampler, size),
            length,
            self._shard.shard_index,
            self._shard.shard_count,
            () if is_local else operations.first,
            operations.needs_rng,
            is_local or operations.carries,
            settings,
        )

    def _reading(self) -> Source:
        with _OPENING:
            self.check_open()
            if self._source is None:
                if self._worker_count == 0:
                    self._source = Source(self._description)
                else:
                    self._source = RaySource(self, num_actors=self._worker_count, **self._ray_options)
            return self._source


class DataLoaderIterator(grain.DataLoaderIterator):
    """Iterates over elements or batches, with a state.

    A subclass only for isinstance, Grain's CheckpointHandler and Orbax; no code of Grain's iterator runs.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._consumer = Consumer()  # operations' errors are raised: none is left out

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next output. After an error the next call tries again. Threads may share the iterator.

        Raises: RecordError, naming operation and record; RuntimeError where the loader is closed.
        """
        return self._consumer.alone(self._take)

    def get_state(self) -> bytes:
        """The state as JSON: under 4 KB, for any number of actors."""
        return json.dumps(self._loader.to_json(self._consumer.consumed.state), indent=4).encode()

    def set_state(self, state: bytes, allow_drift: tuple[str, ...] = ()) -> None:
        """Continue from a state of this loader.

        allow_drift: settings that may differ on purpose, such as "batch_size".

        Raises: DriftError for another stream's state; ValueError or TypeError for anything else.
        """
        try:
            found = json.loads(state.decode())
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"the state is no JSON ({error}); restore an earlier checkpoint") from error
        self._consumer.go_to(Consumed(self._loader.from_json(found, allow_drift)))

    def start_prefetch(self) -> None:
        """Start the actors, if they do not run yet.

        Raises: RuntimeError where the loader is closed; errors of starting actors.
        """
        self._loader.check_open()
        self._consumer.alone(lambda: self._consumer.opened("outputs", self._begin))

    def close(self) -> None:
        """Stop reading. The state stays, and the next output is read again."""
        self._consumer.end()

    def __str__(self) -> str:
        return f"DataLoaderIterator(state={self.get_state().decode()})"

    def _take(self) -> Any:
        if not self._consumer.consumed.is_end:  # what was seen to end has, whoever closes
            self._loader.check_open()
        return self._consumer.take("outputs", self._begin)

    def _begin(self, consumed: Consumed) -> LazySession:
        return LazySession(self._loader.begin(consumed))


def load(
    source: Any,
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: grain.sharding.ShardOptions | None = None,
    transformations: Sequence[Any] = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: grain.ReadOptions | None = None,
    ray_options: Mapping[str, Any] | None = None,
) -> DataLoader:
    """A DataLoader with an IndexSampler over the source, and a last Batch if batch_size is given. As grain.load."""
    shard_options = shard_options or grain.sharding.NoSharding()
    sampler = grain.samplers.IndexSampler(
        num_records=len(source), shuffle=shuffle, seed=seed, num_epochs=num_epochs, shard_options=shard_options
    )
    operations = list(transformations)
    if batch_size is not None:
        operations.append(grain.transforms.Batch(batch_size, drop_remainder=drop_remainder))
    return DataLoader(
        data_source=source,
        sampler=sampler,
        operations=operations,
        worker_count=worker_count,
        read_options=read_options,
        ray_options=ray_options,
    )
