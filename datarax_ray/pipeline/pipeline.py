"""The Pipeline: a source's batches on the device, through stages, with the position of what was consumed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from datarax_ray.feed.consumer import Begin, Consumed, Consumer, Delivery
from datarax_ray.feed.origins import rows_are_positions
from datarax_ray.feed.stats import PipelineStats, Timings
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.feed.timeline import page
from datarax_ray.pipeline.position import Positioned
from datarax_ray.pipeline.producing import VALID_MASK, BatchProducer, Prepare, Source
from datarax_ray.pipeline.scan import Feed, Scanner
from datarax_ray.pipeline.stages import StageGraph, Stages, words
from datarax_ray.pipeline.transfer import JaxSettings, spans_processes, trainer_of
from datarax_ray.plan.arguments import flag, named_arguments, whole
from datarax_ray.plan.packing import AnyPacking, LengthBatches, Packing
from datarax_ray.plan.position import CountedBatches
from datarax_ray.plan.runs import num_rows_of
from datarax_ray.plan.state import StreamState
from datarax_ray.read.background import BackgroundIterator, Cancelled
from datarax_ray.read.elements.columns import Batch
from datarax_ray.read.elements.documents import check_packed
from datarax_ray.read.errors import RecordError, users_traceback
from datarax_ray.read.forked import OneProcess
from datarax_ray.read.formats.random_access import remedy_for
from datarax_ray.read.lines import written_whole
from datarax_ray.read.skipped_records import COUNT_ALONE
from datarax_ray.read.stream import epoch_at

logger = logging.getLogger("datarax_ray")

_JAX = OneProcess("JAX")
# What a source in this process may take to end a read when the pipeline is closed; parts of chunks aim at 1 s.
_CLOSE_S = 4.0


class Pipeline(Positioned, pytree=False):  # type: ignore[call-arg]
    """Batches of a source, made ahead of use on the device, through stages. They are the same for every topology.

    source: of datarax_ray.sources, or a RaySource; `pipeline.source` has its stats() and recoveries.
    stages: NNX modules or functions, batch -> batch, in order, under one jit; or a single one. A module's values count
        when a batch is asked for. See datarax_ray.pipeline.stages for random stages.
    batch_size: rows of the global batch.
    rngs: the key of random stages.
    drop_remainder: skip a short last batch; by default it is yielded short.
    pad_remainder: fill a short last batch with zeros (None on the host, pad_id in packed fields). Every batch gets a
        field valid_mask, bool (rows,), True for rows of data. If stages drop the field, it is put back.
    packing: ConcatThenSplit or FirstFitPack, for rows of seq_len tokens; LengthBatches, for rows of about one length.
    prefetch: batches made ahead, 0 for none. Up to 16 small batches (256 KiB) of rows read together count as one.
    sharding: where batches go; None for the default device. On a mesh of several processes a batch is the global array,
        and the mesh decides the rows of each process.
    process_index, process_count: the rank among trainers that divide a batch without such a mesh; None to ask JAX.
        Processes that need the same rows (one data-parallel group) give the same index.
    on_host: yield NumPy arrays of this process's rows (see `rows`), without stages. Arrays inside object columns are
        read-only: through a RaySource they lie in shared memory.
    digest: keep a digest of everything yielded in the state: one number, the same for any actors and trainers. It tells
        later what a model saw (`datarax-ray diff`). A trainer digests its rows; PipelineSave adds the digests up.

    A batch is a dict of jax.Arrays (rows, ...). Fields without a device type (strings, bytes, lists) bypass the stages
    as NumPy object arrays, so stages keep the order and number of rows. Iteration continues from the position, the
    count of what was yielded: after set_state or a `break` the next `for` yields the next batch, and after an error
    `next` tries the same batch again. JAX's contexts (jax.enable_x64, jax.default_device) hold where a batch is asked
    for. The stream ends after the source's num_epochs; every epoch has its own shuffle and random numbers. `seek(0)`
    starts again, with the same order and random numbers.

    Raises: ValueError at construction for a batch_size below 1, a batch_size that the trainers or the sharding do not
    divide, or a rank outside the mesh.
    """

    instead = "Make another Pipeline over a source of its own, and give it the state: set_state(get_state())."

    def __init__(
        self,
        *,
        source: Source,
        stages: Sequence[Any] | Callable[[Any], Any] | None = None,
        batch_size: int,
        rngs: nnx.Rngs | None = None,
        drop_remainder: bool = False,
        pad_remainder: bool = False,
        packing: AnyPacking | None = None,
        prefetch: int = 2,
        sharding: NamedSharding | None = None,
        process_index: int | None = None,
        process_count: int | None = None,
        on_host: bool = False,
        digest: bool = False,
        nodes: Mapping[str, Any] | None = None,
        edges: Mapping[str, Sequence[str]] | None = None,
        sink: str | None = None,
    ) -> None:
        if isinstance(source, type):
            raise TypeError(f"source is the class {source.__name__}; give an instance of it")
        if not all(callable(getattr(source, name, None)) for name in ("describe", "batches")):
            is_path = isinstance(source, str | os.PathLike)
            raise TypeError(
                f"source must be of datarax_ray.sources or a RaySource, got {type(source).__name__}"
                f"{'; load(paths) makes one of files' if is_path else remedy_for(source)}"
            )
        graph = StageGraph.of(stages, nodes, edges, sink)
        if not (packing is None or isinstance(packing, Packing | LengthBatches)):
            raise TypeError(
                "packing is a ConcatThenSplit(seq_len, fields) or FirstFitPack(...), or a LengthBatches(fields, ...), "
                f"got {packing!r}"
            )
        if rngs is not None and not callable(rngs):
            raise TypeError(f"rngs is an nnx.Rngs, got {rngs!r}; write nnx.Rngs(0)")
        if drop_remainder and pad_remainder:
            raise ValueError("a short last batch is left out (drop_remainder) or filled up (pad_remainder), not both")
        prefetch = whole("prefetch", prefetch, ", of batches made ahead; 0 for none", least=0)
        if on_host and graph.nodes:
            raise ValueError("stages run on the device, and with on_host=True batches stay on the host; leave out one")
        if isinstance(packing, Packing):
            check_packed(source.describe(), packing.documents.fields)
        _JAX.check()
        self.source = source
        self.rngs = rngs
        self.packing = packing
        self.sharding = sharding
        self._prefetch = prefetch
        index, count, share = trainer_of(sharding, process_index, process_count)
        self._options = StreamOptions(
            batch_size,
            drop_remainder,
            index,
            count,
            pad_remainder=pad_remainder,
            packing=packing,
            share=share,
            digest=digest,
        )
        self._timings = Timings(part=self._options.rows.share.part)
        self.batch_size = self._options.batch_size
        self.drop_remainder, self.pad_remainder = self._options.drop_remainder, self._options.pad_remainder
        self._check_sharding(StreamState())
        base_key = rngs() if rngs is not None else jax.random.key(0) if graph.nodes else None  # JAX compiles each key
        has_all_rows = spans_processes(sharding) or num_rows_of(self._options.rows.full) == self.batch_size
        self._stages = Stages(graph, base_key, VALID_MASK if pad_remainder else None, has_all_rows=has_all_rows)
        self._maker = BatchProducer(source, self._options, self._stages, sharding, self._timings)
        self.on_host = flag("on_host", on_host)
        self._scanner = Scanner(self._stages, sharding, self._options.rows)
        # The first trainer logs skipped records for all. NNX takes the consumer for one value, and never copies it.
        self._consumer = Consumer(getattr(source, "skip_options", COUNT_ALONE), is_listing=index == 0)
        self._timings.skip_counts = self._consumer.skip_counts
        self._consumer.go_to(self._from(self._consumer.consumed))
        self._made_in = os.getpid()

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises: AttributeError for public attributes: batches are made by the arguments of the constructor."""
        is_made = "_made_in" in vars(self) and not name.startswith("_")
        if is_made and vars(self).get(name, self) is not value:  # NNX sets what is there, where it copies a module
            raise AttributeError(
                f"{name} of a Pipeline cannot be set. Close it, make another Pipeline, and give it the state: "
                "set_state(state), or set_state(state, allow_drift=(...)) for settings that change on purpose"
            )
        super().__setattr__(name, value)

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

        nodes: stage by name.
        edges: for each node the names whose outputs it takes as arguments; none for the source's batch.
        sink: the node whose output is the batch.
        """
        return cls(source=source, nodes=nodes, edges=edges, sink=sink, batch_size=batch_size, rngs=rngs, **options)

    @property
    def stages(self) -> list[Any]:
        """The stages in the order in which they run."""
        return list(self._stages.graph.nodes.values())

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """The rows [lo, hi) of a full global batch that this process holds, ascending; fields on the host are of these.

        They follow from the sharding, or from the rank. A short batch of n rows is divided in the same proportions.
        """
        return self._options.rows.full

    def __call__(self, batch: Any) -> Any:
        """The stages applied to a batch of one's own, as if it stood at the position."""
        if not (arrays := jax.tree.leaves(batch)):
            raise ValueError(f"a batch holds at least one array, (rows, ...), got {batch!r}")
        rows, position = arrays[0].shape[0], self.position
        return self._stages(batch, position, words(np.arange(position, position + rows)))

    def stats(self) -> PipelineStats:
        """Where the time went since this pipeline was made; print it. `verdict` names the bottleneck."""
        num_actors, num_running = (getattr(self.source, name, None) for name in ("num_actors", "num_running"))
        has_stages, epoch = bool(self._stages.graph.nodes), epoch_at(self.source.describe(), self.position)
        return self._timings.stats(num_actors, num_running=num_running, has_stages=has_stages, epoch=epoch)

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Write an HTML page with the times of everything since this pipeline was made.

        The page shows the trainer's waits, the fill of the window of requests, and when an actor read, decoded, was
        idle or lost, at up to 400 moments. The loop may run meanwhile.

        Example: `pipeline.timeline("run.html")`
        """
        drawn = self._timings.timeline.until(time.time())
        with written_whole(Path(path)) as part:
            part.write_text(page(drawn, self.stats(), repr(self)), encoding="utf-8")

    def __len__(self) -> int:
        return self.num_batches

    def __bool__(self) -> bool:
        return True  # `if pipeline:` asks whether there is one, and would take len for it

    def __repr__(self) -> str:
        return (
            f"Pipeline({self.source!r}, num_stages={len(self.stages)}, batch_size={self.batch_size}, "
            f"position={self.position})"
        )

    def __iter__(self) -> Iterator[Batch]:
        return _Batches(self)

    def step(self) -> Batch:
        """The next batch; the position moves behind it.

        Raises: StopIteration after the last epoch; RuntimeError if another thread moves the pipeline meanwhile, and in
        a signal's handler that interrupts another step.
        """
        self._check_usable()  # before the lock, which may stay locked in a forked process
        try:
            return self._consumer.alone(self._step)
        except StopIteration:
            self._timings.interrupted()
            raise
        except Exception as error:
            begin_at_users_line(error)
            raise

    def _step(self) -> Any:
        # All processes must start their common programs in one order, or collectives wait for each other for ever: no
        # thread may run stages ahead of the train step. Nor modules: they may be trained, or follow a schedule, and how
        # far a thread is ahead is chance.
        began = time.perf_counter()
        if self.on_host:
            batch = self._consumer.take(*self._ahead(self._maker.keep))
        elif spans_processes(self.sharding) or self._stages.has_modules:
            batch = self._consumer.take(*self._ahead(self._maker.place), self._maker.finish)
        else:
            batch = self._consumer.take(*self._ahead(self._maker.transfer))
        self._timings.taken(time.perf_counter() - began, self._consumer.consumed.num_rows)
        return batch

    @named_arguments
    def scan(
        self,
        step_fn: Callable[..., Any],
        *,
        length: int,
        modules: Sequence[Any] | nnx.Module = (),
        init_carry: Any = None,
    ) -> Any:
        """`length` train steps over the next batches in one compiled loop; the position moves behind them.

        On a mesh of several processes each step is one call of a compiled program, in every process.

        step_fn: (*modules, batch) -> out; with init_carry, (carry, *modules, batch) -> (carry, out).
        modules: NNX modules, optimizers and the like, or one alone; the steps update their variables.

        Returns the outs, stacked on a new first axis (length, ...); with init_carry, (carry, outs). Compiled once for
        each step_fn (the same object), length and shapes. Batches are those of iteration, without fields on the host.

        All or nothing: after any error, modules and position are as before, and the next scan or `for` begins at the
        same batch. Ctrl-C may be noticed only when the loop ends, and at its very end changes both.

        Raises: ValueError where fewer than `length` batches of full size are left (known before the first step, unless
        there are filters), no field is for the device, or a stage shares variables with the modules; the source's
        errors, as in iteration, with a note that names the batch.
        """
        self._check_usable()
        length = whole("length", length, least=1)
        if isinstance(modules, nnx.Module):
            modules = (modules,)
        if self.on_host:
            raise ValueError("scan runs on the device, and with on_host=True batches stay on the host; iterate")
        if isinstance(self.packing, LengthBatches):
            raise ValueError("scan takes batches of one shape, and those of LengthBatches are of several; iterate")
        description = self.source.describe()
        if rows_are_positions(description, self._options, self._consumer.consumed.state):
            full = CountedBatches(self.position, description.stop, self.batch_size, drops=not self.pad_remainder)
            if (left := full.num_batches) is not None and left < length:
                raise self._too_few(left, length)
        if shared := self._stages.shared_with(tuple(modules)):
            raise ValueError(
                f"modules share the variables {', '.join(shared)} with a stage, and a compiled loop reads stages only "
                "at its beginning. Remove that stage from the pipeline and call it in step_fn, or iterate"
            )
        try:
            result = self._consumer.alone(lambda: self._scan(step_fn, length, tuple(modules), init_carry))
        except Exception as error:
            begin_at_users_line(error)
            raise
        return result if init_carry is not None else result[1]

    def _scan(self, step_fn: Callable[..., Any], length: int, modules: tuple[Any, ...], init_carry: Any) -> Any:
        key, begin = self._ahead(self._maker.feed)
        feed = Feed(self._consumer, key, begin, length, self._timings.taken, partial(self._too_few, length=length))
        try:
            return self._scanner(feed, step_fn, modules, init_carry)
        except BaseException:
            feed.fail()
            raise

    def _ahead(self, prepare: Prepare) -> tuple[Any, Begin]:
        """The key and the begin of a session that makes batches ahead, under JAX's settings of this thread."""
        settings = JaxSettings.of_this_thread()

        def begin(consumed: Consumed) -> BackgroundIterator[Delivery]:
            cancelled = Cancelled()
            items = self._maker.batches(consumed, prepare, settings, cancelled)
            return BackgroundIterator(items, self._prefetch, cancelled)

        return (prepare, settings), begin

    def close(self) -> None:
        """Stop reading ahead and close the source, for good. The state can still be taken, and set. Takes at most 4 s.

        A source in this process that is at a longer read is closed after it.
        """
        self._consumer.is_closed = True
        # after what is being read: to close files under a read would crash
        self._consumer.end(_CLOSE_S, then=getattr(self.source, "close", None))

    def _too_few(self, left: int, length: int) -> ValueError:
        return ValueError(
            f"scan(length={length}) needs {length} batches of {self.batch_size} rows, and from position "
            f"{self.position} to the end of the stream there are {left}; use a length of at most that and iterate "
            "the rest, pad_remainder=True to count in a short last batch, or more epochs (num_epochs)"
        )


class _Batches:
    """A pipeline's batches, by `next`. Not a generator: an error would end it, and pass for the end of the data."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._is_first = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        pipeline, is_first, self._is_first = self._pipeline, self._is_first, False
        was_at_end = is_first and pipeline._is_at_end
        try:
            return pipeline.step()
        except StopIteration:
            if was_at_end:
                logger.warning(
                    "the stream is at its end (position %d), so this loop gets no batch; seek(0) begins again, with "
                    "the same order and random numbers; num_epochs=n on the source gives n epochs, each shuffled and "
                    "drawn anew",
                    pipeline.position,
                )
            elif is_first and pipeline.drop_remainder:
                logger.warning(
                    "this loop got no batch: fewer elements than batch_size=%d were left, and drop_remainder skips "
                    "them",
                    pipeline.batch_size,
                )
            raise


def begin_at_users_line(error: Exception) -> None:
    """Cut off the frames of this package and of JAX that lead to a user's frames, such as a stage's.

    For a RecordError, all are cut off: a note has the traceback of the transform. Without a line of the user's, no
    frame is cut off, nor with JAX_TRACEBACK_FILTERING=off, with which JAX keeps its own frames.
    """
    begin = users_traceback(error)
    is_cut = getattr(jax.config, "jax_traceback_filtering", None) != "off"
    if is_cut and (begin is not None or isinstance(error, RecordError)):
        error.__traceback__ = begin
