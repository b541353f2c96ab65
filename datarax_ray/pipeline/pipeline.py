"""The Pipeline: a source's batches on the device, through stages, with the position of what was consumed."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.source import position_in
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.pipeline.graph import StageGraph
from datarax_ray.pipeline.stages import Stages, words
from datarax_ray.pipeline.transfer import check_sharding, merge_host, split_host, to_device
from datarax_ray.plan.fingerprint import VERSION
from datarax_ray.read.description import Description
from datarax_ray.read.errors import Skipped

logger = logging.getLogger("datarax_ray")

_MAX_SKIPPED_LISTED = 1000  # the count goes on; the list is for people


class Source(Protocol):
    """What a Pipeline needs of a source: what it is, and its batches from any position on."""

    def describe(self) -> Description: ...

    def batches(self, start: int, options: StreamOptions) -> Generator[HostBatch, None, Any]: ...


@dataclass(frozen=True)
class _Ready:
    """A batch on the device, and the state of the stream once it is consumed; no batch but the state at its end."""

    batch: Any
    stop: int
    skipped: tuple[Skipped, ...]


class Pipeline(nnx.Module, pytree=False):  # type: ignore[call-arg]
    """Batches of a source, ahead of use on the device, through stages; the same for every source and topology.

    source: of datarax_ray.sources, or a RaySource over one. stages: NNX modules or functions, batch -> batch, applied
    in order under one jit; see datarax_ray.pipeline.stages for random ones. batch_size: rows of the global batch.
    rngs: what random stages start from. drop_remainder: leave out a short last batch; by default it is yielded short.
    prefetch: batches made ahead, 0 for none. sharding: where batches go, over one process's devices or the global mesh;
    None for the default device. process_index, process_count: which trainer of how many this is; None to ask JAX.

    A batch is a dict of jax.Arrays (rows, ...); fields that no device holds (strings, bytes, lists) pass by the stages
    as NumPy object arrays. Iterating goes on from the position, which counts what was yielded: after `set_state`, or
    after a `break`, the next `for` gives the next batch. It ends after the source's num_epochs; `seek(0)` starts again.

    Raises: ValueError at construction for a batch_size below 1 or one that the trainers or the sharding do not divide.
    """

    def __init__(
        self,
        *,
        source: Source,
        stages: Sequence[Any] | None = None,
        batch_size: int,
        rngs: nnx.Rngs | None = None,
        drop_remainder: bool = False,
        prefetch: int = 2,
        sharding: NamedSharding | None = None,
        process_index: int | None = None,
        process_count: int | None = None,
        nodes: Mapping[str, Any] | None = None,
        edges: Mapping[str, Sequence[str]] | None = None,
        sink: str | None = None,
    ) -> None:
        if stages is not None and (nodes is not None or edges is not None or sink is not None):
            raise ValueError("give stages, or nodes, edges and sink, not both")
        if not callable(getattr(source, "describe", None)) or not callable(getattr(source, "batches", None)):
            raise TypeError(f"source must be of datarax_ray.sources or a RaySource, got {type(source).__name__}")
        if prefetch < 0:
            raise ValueError(f"prefetch must be at least 0, got {prefetch}")
        if nodes is None:
            graph = StageGraph.linear(list(stages or ()))
        elif sink is None:
            raise ValueError("a graph of stages needs sink, the name of the node whose output is the batch")
        else:
            graph = StageGraph.dag(nodes, edges or {}, sink)
        self.source = source
        self.batch_size = batch_size
        self.rngs = rngs
        self.drop_remainder = drop_remainder
        self.sharding = sharding
        self._prefetch = prefetch
        self._options = StreamOptions(
            batch_size,
            drop_remainder,
            jax.process_index() if process_index is None else process_index,
            jax.process_count() if process_count is None else process_count,
        )
        self._check_sharding()
        self._stages = Stages(graph, jax.random.key(0) if rngs is None else rngs())
        self._position = 0
        self._session: _Session | None = None
        self.num_skipped = 0
        self.skipped: list[Skipped] = []

    @classmethod
    def from_dag(
        cls,
        *,
        source: Source,
        nodes: Mapping[str, Any],
        edges: Mapping[str, Sequence[str]],
        sink: str,
        batch_size: int,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> Self:
        """A pipeline whose stages form a graph; options as in the constructor.

        nodes: stage by name. edges: for each node the names whose outputs it takes as arguments; none for the source's
        batch. sink: the node whose output is the batch.
        """
        return cls(source=source, nodes=nodes, edges=edges, sink=sink, batch_size=batch_size, rngs=rngs, **options)

    @property
    def stages(self) -> list[Any]:
        """The stages in the order in which they run."""
        return list(self._stages.graph.nodes.values())

    @property
    def position(self) -> int:
        """Where the stream goes on: the position after the last record of the batches that were yielded."""
        return self._position

    def __call__(self, batch: Any) -> Any:
        """The stages applied to a batch of one's own, as if it stood at the position."""
        rows = jax.tree.leaves(batch)[0].shape[0]
        return self._stages(batch, self._position, words(np.arange(self._position, self._position + rows)))

    def __iter__(self) -> Iterator[Any]:
        if self._is_at_end:
            logger.warning(
                "the stream is at its end (position %d), so this loop gets no batch; "
                "call seek(0) to begin again, or set num_epochs on the source",
                self._position,
            )
        while True:
            try:
                batch = self.step()
            except StopIteration:
                return
            yield batch

    def step(self) -> Any:
        """The next batch; the position moves behind it. Raises: StopIteration after the last epoch."""
        if self._session is None:
            self._session = _Session(self._make(), self._prefetch)
        try:
            ready = self._session.next()
        except BaseException as error:
            # Ctrl-C must not wait for a batch that may never come; close() ends what is left running.
            self._end_session(wait=not isinstance(error, KeyboardInterrupt))
            raise
        self._position = ready.stop
        self._note(ready.skipped)
        if ready.batch is None:
            self._end_session()
            raise StopIteration
        return ready.batch

    def _note(self, skipped: tuple[Skipped, ...]) -> None:
        self.num_skipped += len(skipped)
        self.skipped += skipped[: _MAX_SKIPPED_LISTED - len(self.skipped)]
        for skip in skipped:
            logger.warning("skipped %s (position %d): %s", skip.where, skip.position, skip.reason)

    def get_state(self) -> dict[str, Any]:
        """Everything needed to resume, in plain values: under 4 KB, valid for any number of actors and trainers.

        It is the state of what was yielded; batches made ahead are not in it.
        """
        return {
            "version": VERSION,
            "position": self._position,
            "settings": self._settings(),
            "statistics": {"num_skipped": self.num_skipped},
        }

    def set_state(self, state: Mapping[str, Any], *, allow_drift: Sequence[str] = ()) -> None:
        """Go on from a state, whatever the number of actors and trainers that wrote it.

        allow_drift: settings, by name as the refusal gives them, that may differ on purpose.

        Raises: DriftError where the state belongs to another stream; ValueError or TypeError where it is none.
        """
        position = position_in(state, self._settings(), tuple(allow_drift))
        statistics = state.get("statistics", {})
        self.seek(position)
        self.num_skipped = int(statistics.get("num_skipped", 0))
        self.skipped = []

    def seek(self, position: int) -> None:
        """Go on from a position; 0 is the beginning. Costs nothing."""
        if position < 0:
            raise ValueError(f"position must not be negative, got {position}")
        self._end_session()
        self._position = position

    def close(self) -> None:
        """Stop reading ahead and close the source. The state can still be taken."""
        close = getattr(self.source, "close", None)
        if close is not None:
            close()  # first, so that nobody waits for actors any more
        self._end_session()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _is_at_end(self) -> bool:
        stop = self.source.describe().stop
        return stop is not None and self._position >= stop

    def _settings(self) -> dict[str, Any]:
        return self.source.describe().settings() | {
            "batch_size": self.batch_size,
            "drop_remainder": self.drop_remainder,
            "stages": self._stages.settings,
        }

    def _check_sharding(self) -> None:
        check_sharding(self.sharding, self.batch_size, "a batch")
        description = self.source.describe()
        if description.stop is not None and not description.may_drop and not self.drop_remainder:
            remainder = description.stop % self.batch_size
            if remainder:
                check_sharding(self.sharding, remainder, "the last batch")

    def _make(self) -> Iterator[_Ready]:
        """Batches on the device from the position on, and after the last one what is left to say."""
        position = self._position
        with contextlib.closing(self.source.batches(position, self._options)) as stream:
            while True:
                try:
                    host_batch = next(stream)
                except StopIteration as end:
                    stop = self.source.describe().stop
                    if not self.drop_remainder and stop is not None:
                        position = max(position, stop)
                    yield _Ready(None, position, end.value or ())
                    return
                position = host_batch.stop
                yield _Ready(self._transfer(host_batch), position, host_batch.skipped)

    def _transfer(self, host_batch: HostBatch) -> Any:
        on_device, on_host = split_host(host_batch.columns)
        if on_device is not None:
            row_words = words(host_batch.positions)
            on_device, row_words = to_device((on_device, row_words), self.sharding, host_batch.global_rows)
            on_device = self._stages(on_device, host_batch.start, row_words)
        return merge_host(on_device, on_host)

    def _end_session(self, *, wait: bool = True) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(wait)


class _Session:
    """One run through the stream, a few batches ahead in a thread of its own.

    One worker takes one item after the other, so what it returns is in order, and an error comes in its place.
    """

    def __init__(self, items: Iterator[_Ready], ahead: int) -> None:
        self._items = items
        self._ahead = ahead
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="datarax_ray-prefetch")
        self._pending: deque[Future[_Ready | None]] = deque()

    def next(self) -> _Ready:
        while len(self._pending) <= self._ahead:
            self._pending.append(self._worker.submit(next, self._items, None))
        ready = self._pending.popleft().result()
        if ready is None:
            raise RuntimeError("the stream has ended before")
        if self._ahead:  # begin the next before the caller is busy with this one
            self._pending.append(self._worker.submit(next, self._items, None))
        return ready

    def close(self, wait: bool) -> None:
        """Drop what was made ahead, let the batch that is being made end, and close the stream in its thread."""
        for future in self._pending:
            future.cancel()
        self._worker.submit(self._items.close)  # type: ignore[attr-defined]
        self._worker.shutdown(wait)
