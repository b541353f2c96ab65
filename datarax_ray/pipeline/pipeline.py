"""The Pipeline: a source's batches on the device, through stages, with the position of what was consumed."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.consumer import Begin, Consumed, Consumer, Delivery
from datarax_ray.feed.origins import Origin, origins, replayed, rows_are_positions
from datarax_ray.feed.stats import PipelineStats, Timings
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.feed.timeline.page import page
from datarax_ray.pipeline.graph import StageGraph
from datarax_ray.pipeline.producing import VALID_MASK, BatchProducer, Source
from datarax_ray.pipeline.scan import Feed, Scanner
from datarax_ray.pipeline.stages import Stages, words
from datarax_ray.pipeline.transfer import JaxSettings, check_shape, check_sharding, spans_processes, trainer_of
from datarax_ray.plan.amendments import Amendment
from datarax_ray.plan.arguments import flag, lacks_arguments, named_arguments, whole
from datarax_ray.plan.packing import Packing
from datarax_ray.plan.position import CountedBatches
from datarax_ray.plan.rolling_digest import RollingDigest
from datarax_ray.plan.state import StreamState, Unit
from datarax_ray.plan.trainer_rows import WHOLE, num_rows_in
from datarax_ray.plan.weights import WeightSchedule
from datarax_ray.read.background import BackgroundIterator, Cancelled
from datarax_ray.read.closing import Closing, closed
from datarax_ray.read.errors import RecordError, Skipped, users_traceback
from datarax_ray.read.forked import OneProcess, check_not_forked
from datarax_ray.read.formats.random_access import remedy_for
from datarax_ray.read.lines import written_whole
from datarax_ray.read.skipped_records import COUNT_ALONE
from datarax_ray.read.stream import is_endless
from datarax_ray.read.streams.amending import amended_state
from datarax_ray.sources.base.tracing import HostModule, is_traced

logger = logging.getLogger("datarax_ray")

_JAX = OneProcess("JAX")
# What a source in this process may take to end a read when the pipeline is closed; parts of chunks aim at 1 s.
_CLOSE_S = 4.0


class Pipeline(HostModule, Closing, nnx.Module, pytree=False):  # type: ignore[call-arg]
    """Batches of a source, ahead of use on the device, through stages; the same for every source and topology.

    source: of datarax_ray.sources, or a RaySource over one; `pipeline.source` has its stats() and recoveries.
    stages: NNX modules or functions, batch -> batch, or one alone, applied in order under one jit, by what the modules
        hold when the batch is asked for; see datarax_ray.pipeline.stages for random ones.
    batch_size: rows of the global batch.
    rngs: what random stages start from.
    drop_remainder: leave out a short last batch; by default it is yielded short.
    pad_remainder: fill it up instead, with zeros (None on the host, pad_id in packed fields), and give every batch a
        field valid_mask, bool (rows,): True for its own rows; stages see it, and where they leave it out it is put
        back.
    packing: ConcatThenSplit or FirstFitPack: the rows of a batch are made of documents, each of seq_len tokens.
    prefetch: batches made ahead, 0 for none.
    sharding: where batches go; None for the default device. On a mesh of several processes a batch is the global array,
        and its devices say which rows each process reads.
    process_index, process_count: which of how many trainers that divide a batch by rank this is, without such a mesh;
        None to ask JAX. Processes that are to have the same rows (of one data-parallel group) give one index, of as
        many as there are.
    on_host: give batches as NumPy arrays of this process's rows (see `rows`), for loops that make their own arrays of
        them; there are no stages then. Arrays inside object columns are to be read: through a RaySource they are shared
        memory, which cannot be written to.
    digest: keep a digest of all that was yielded in the state: one number, the same for any actors and trainers, by
        which to tell later what a model saw (`datarax-ray diff`); several trainers each keep that of their rows, and
        PipelineSave adds them up.

    A batch is a dict of jax.Arrays (rows, ...); fields that no device holds (strings, bytes, lists) pass by the stages
    as NumPy object arrays, so stages keep rows in their order, and as many. Iterating goes on from the position, which
    counts what was yielded: after `set_state`, or after a `break`, the next `for` gives the next batch, and behind an
    error `next` asks for that one again. JAX's contexts (jax.enable_x64, jax.default_device) hold where a batch is
    asked for, though it is made elsewhere. It ends after the source's num_epochs, each shuffled and drawn anew;
    `seek(0)` starts again, with the same order and random numbers.

    Raises: ValueError at construction for a batch_size below 1 or one that the trainers or the sharding do not divide,
    or a rank that is none of the mesh's.
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
        packing: Packing | None = None,
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
        if not callable(getattr(source, "describe", None)) or not callable(getattr(source, "batches", None)):
            is_path = isinstance(source, str | os.PathLike)
            raise TypeError(
                f"source must be of datarax_ray.sources or a RaySource, got {type(source).__name__}"
                f"{'; load(paths) makes one of files' if is_path else remedy_for(source)}"
            )
        if isinstance(source, type):
            raise TypeError(f"source is the class {source.__name__}; give an instance of it")
        graph = StageGraph.of(stages, nodes, edges, sink)
        if packing is not None and not isinstance(packing, Packing):
            raise TypeError(f"packing is a ConcatThenSplit(seq_len, fields) or FirstFitPack(...), got {packing!r}")
        if rngs is not None and not callable(rngs):
            raise TypeError(f"rngs is an nnx.Rngs, got {rngs!r}; write nnx.Rngs(0)")
        if drop_remainder and pad_remainder:
            raise ValueError("a short last batch is left out (drop_remainder) or filled up (pad_remainder), not both")
        prefetch = whole("prefetch", prefetch, ", of batches made ahead; 0 for none", least=0)
        if on_host and graph.nodes:
            raise ValueError("stages run on the device, and with on_host=True batches stay on the host; leave out one")
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
        try:
            self._has_gaps = not source.describe().order.num_records
        except TypeError:  # of a stream of shards
            self._has_gaps = True
        self._check_sharding(StreamState())
        base_key = jax.random.key(0) if rngs is None else rngs()
        has_all_rows = spans_processes(sharding) or num_rows_in(self._options.rows.full) == self.batch_size
        self._stages = Stages(graph, base_key, VALID_MASK if pad_remainder else None, has_all_rows=has_all_rows)
        self._maker = BatchProducer(source, self._options, self._stages, sharding, self._timings)
        self._on_host = flag("on_host", on_host)
        self._scanner = Scanner(self._stages, sharding, self._options.rows)
        # Of the trainers, which all see the same, the first one lists. NNX takes the consumer for one value: it neither
        # copies it nor puts an old one back.
        self._consumer = Consumer(getattr(source, "skip_options", COUNT_ALONE), is_listing=index == 0)
        self._consumer.go_to(self._from(self._consumer.consumed))
        self._made_in = os.getpid()

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises: AttributeError for what it was made with: the batches would stay as they are."""
        if name in _ARGUMENTS and "_made_in" in vars(self) and getattr(self, name, _UNKNOWN) != value:
            raise AttributeError(
                f"{name} of a Pipeline cannot be set: batches are made by what it was given when it was made. Close "
                "it, make another Pipeline, and go on from the state of this one, by set_state(state); where that says "
                "what differs, by set_state(state, allow_drift=(...))"
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
    def position(self) -> int:
        """Where the stream goes on: the position after the last record of the batches that were yielded."""
        return self._consumer.consumed.state.position

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """The rows [lo, hi) of a full global batch that this process holds, ascending; fields on the host are of these.

        They follow from the sharding, or from the rank. A short batch of n rows is divided in the same proportions.
        """
        return self._options.rows.full

    @property
    def num_skipped(self) -> int:
        """Broken records that were left out of the batches yielded, since the beginning; at the end, of the stream.

        Behind a flat_map it is the elements that fail which are left out and counted.
        """
        return self._consumer.consumed.num_told

    @property
    def skipped(self) -> list[Skipped]:
        """The first 1000 of them since this pipeline was made, or went on from elsewhere."""
        return self._consumer.skipped

    def __call__(self, batch: Any) -> Any:
        """The stages applied to a batch of one's own, as if it stood at the position."""
        if not (arrays := jax.tree.leaves(batch)):
            raise ValueError(f"a batch holds at least one array, (rows, ...), got {batch!r}")
        rows, position = arrays[0].shape[0], self.position
        return self._stages(batch, position, words(np.arange(position, position + rows)))

    @property
    def num_batches(self) -> int:
        """Batches of the whole stream, through all its epochs: as many as a `for` from the beginning gives. Also `len`.

        They are global batches: each of several trainers gets its rows of all of them. With a source of num_epochs=1
        it is the batches of an epoch.

        Raises: TypeError where nobody knows: the stream is endless, or what is in a batch is found out by reading.
        """
        description = self.source.describe()
        found = CountedBatches(0, description.stop, self.batch_size, self.drop_remainder).num_batches
        if found is None and is_endless(description):
            raise TypeError("the stream is endless (num_epochs=-1), so it has no number of batches; say num_epochs")
        if found is None or not rows_are_positions(description, self._options, self._begin):
            raise TypeError(
                "how many batches there are is known once they were read: there are filters, flat_map, "
                "on_error='skip', packing, a stream or what an amendment skips. Count them as they come"
            )
        return found

    def locate(self, step: int, state: Mapping[str, Any] | None = None) -> list[Origin]:
        """Which file and record each row of a batch came from, by row of the global batch; the position does not move.

        step: the batch's number, counted from 0 at the beginning of the stream, or at `state`, one that get_state gave
        or a checkpoint holds. Packed rows have an Origin for each piece of a document. Where every position gives one
        row nothing is read; else (filters, flat_map, on_error="skip", packing, streams) this process reads from there.

        Raises: IndexError where the stream ends before that batch; ValueError for what a mixture gave by other weights,
        before they were changed; as set_state for a state of another stream.
        """
        self._check_usable()
        return origins(self.source.describe(), self._consumed_in(state).state, self._options, step)

    def replay(self, first: int, stop: int, state: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """The batches [first, stop) once more, as NumPy arrays of the whole global batch, as they were before stages.

        A last batch that pad_remainder fills has its own rows alone, and no mask. Numbered as in `locate`; fewer where
        the stream ends. The position does not move. A RaySource's actors read.

        Raises: as locate.
        """
        self._check_usable()
        start = self._consumed_in(state).state
        batches = replayed(self.source.describe(), self.source.batches, start, self._options, first, stop)

        def columns() -> Iterator[Any]:
            with contextlib.closing(batches):
                for batch in batches:
                    yield batch.columns

        return columns()

    def digests(self, state: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
        """The digest once more, from where that of `state` begins: what it is there, and behind each batch to the end.

        state: of this stream, with a digest of all rows. Gives (position, offset in its record, digest) of each state.
        The position does not move.

        Raises: ValueError where the state has no such digest; as set_state for one of another stream.
        """
        self._check_usable()
        consumed = self._consumed_in(state)
        digest = consumed.digest
        if digest is None or not digest.is_whole:
            raise ValueError("the state has no digest of all rows; it is kept by Pipeline(digest=True)")
        start = consumed.state.moved(digest.since[0])._replace(offset=digest.since[1], unit=consumed.state.unit)
        return self._digests(start, digest._replace(total=0))

    def _digests(self, start: StreamState, digest: RollingDigest) -> Iterator[tuple[int, int, str]]:
        options = replace(self._options, process_index=0, process_count=1, share=None, digest=True)
        with contextlib.closing(self.source.batches(start, options)) as batches:
            yield *digest.since, digest.to_json()["sum"]
            for batch in batches:
                start, digest = batch.state, digest.plus(batch.digest)
                yield start.position, start.offset, digest.to_json()["sum"]
        stop = self.source.describe().stop
        if not self.drop_remainder and stop is not None and start.position != stop:  # what is left gives nothing
            yield stop, 0, digest.to_json()["sum"]

    def stats(self) -> PipelineStats:
        """Where the time went since this pipeline was made, and what it is bound by: print it, or ask its `verdict`."""
        num_actors, num_running = (getattr(self.source, name, None) for name in ("num_actors", "num_running"))
        has_stages = bool(self._stages.graph.nodes)
        return self._timings.stats(num_actors, num_running=num_running, has_stages=has_stages)

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Write a page of what everybody did when, since this pipeline was made, to this file: HTML, for any browser.

        The trainer's waits, how full the window of what is in flight was, and of each actor when it read, decoded, was
        idle or lost. At any time, while the loop runs too; the page is of up to 400 moments, however long the run is.

        Example: `pipeline.timeline("run.html")`
        """
        drawn = self._timings.timeline.until(time.time())
        with written_whole(Path(path)) as part:
            try:
                part.write_text(page(drawn, self.stats(), repr(self)), encoding="utf-8")
            except OSError as error:  # a full disk tells no path
                raise OSError(error.errno, error.strerror, os.fspath(path)) from error

    def __len__(self) -> int:
        return self.num_batches

    def __bool__(self) -> bool:
        return True  # `if pipeline:` asks whether there is one, and would take len for it

    def __repr__(self) -> str:
        return (
            f"Pipeline({self.source!r}, num_stages={len(self.stages)}, batch_size={self.batch_size}, "
            f"position={self.position})"
        )

    def __iter__(self) -> Iterator[Any]:
        return _Batches(self)

    def step(self) -> Any:
        """The next batch; the position moves behind it.

        Raises: StopIteration after the last epoch; RuntimeError where another thread has it go on from elsewhere
        meanwhile, and in a signal's handler, where the program below it is waiting for a batch.
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
        began, before = time.perf_counter(), self._consumer.consumed
        batch = self._next()
        self._taken(time.perf_counter() - began, before, self._consumer.consumed)
        return batch

    def _taken(self, waited_s: float, before: Consumed, after: Consumed) -> None:
        """Count a batch by its rows; packed ones by the records that were passed, where positions leave no gaps."""
        is_passed = self.packing is not None and not self._has_gaps
        num_records = after.state.position - before.state.position if is_passed else after.num_rows
        self._timings.taken(waited_s, num_records)

    def _next(self) -> Any:
        # Programs that several processes run together must start in the same order in all of them, so stages are not
        # run ahead in a thread there: beside the train step's, their collectives would wait for each other for ever.
        # Nor are modules: what they hold may be trained, or follow a schedule, and how far a thread is ahead is chance.
        if self._on_host:
            return self._consumer.take(*self._ahead(self._maker.keep))
        self._stages.check()  # batches that were made ahead are by what was there before
        if spans_processes(self.sharding) or self._stages.has_modules:
            return self._consumer.take(*self._ahead(self._maker.place), self._maker.finish)
        return self._consumer.take(*self._ahead(self._maker.transfer))

    @named_arguments
    def read_rows(self, batch: int, start: int, stop: int) -> Any:
        """Rows [start, stop) of the global batch of this number, on the host, before the stages: a dict of arrays.

        batch: counted from position 0, through the epochs; it need not be this process's, or near the position, which
        stays. Read by the actors where the source is a RaySource. For loops that ask for what each device is to hold.

        Raises: ValueError for rows that no such batch has, or where nobody knows which records they are: behind
        filters and flat_map, with broken records left out, in packed rows and in streams; what reading raises.
        """
        self._check_usable()
        description = self.source.describe()
        if not rows_are_positions(description, self._options, self._begin):
            raise ValueError(
                "which records are the rows of a batch is known here only once those before it were read: there are "
                "filters, flat_map, packing, a stream or what an amendment skips. Iterate, with on_host=True for "
                "arrays on the host"
            )
        rows = CountedBatches(0, description.stop, self.batch_size, self.drop_remainder).positions(batch)
        if not 0 <= start < stop <= len(rows):
            raise ValueError(f"rows [{start}, {stop}) of batch {batch} were asked for, which has {len(rows)} rows")
        at = self._begin._replace(position=rows.start + start)
        stream = self.source.batches(at, StreamOptions(stop - start, stop=rows.start + stop))
        with contextlib.closing(stream):
            return next(stream).columns

    @named_arguments
    def scan(
        self,
        step_fn: Callable[..., Any],
        *,
        length: int,
        modules: Sequence[Any] | nnx.Module = (),
        init_carry: Any = None,
    ) -> Any:
        """`length` train steps over the next batches in one compiled loop; then the position is behind them.

        On a mesh of several processes each step is a call of its own, of one compiled program, in every process.

        step_fn: (*modules, batch) -> out; with init_carry, (carry, *modules, batch) -> (carry, out). modules: NNX
        modules, optimizers and the like, or one alone, whose variables the steps update. Returns the outs, stacked on a
        new first axis (length, ...); with init_carry, (carry, outs). Compiled once for each step_fn (the same object),
        length and shapes. Batches are those of iteration, byte for byte, but without the fields that stay on the host.

        All or nothing: whatever it raises, the modules and the position are what they were, and the next scan or `for`
        begins at the same batch. Ctrl-C may be heard only when the loop has ended, and at its very end changes both.

        Raises: ValueError where fewer than `length` batches of full size are left (known before the first step, unless
        there are filters), no field is for the device, or a stage has variables that the steps would change; what the
        source raises, as from iteration, with a note which batch it was.
        """
        self._check_usable()
        length = whole("length", length, least=1)
        if isinstance(modules, nnx.Module):
            modules = (modules,)
        if self._on_host:
            raise ValueError("scan runs on the device, and with on_host=True batches stay on the host; iterate")
        description = self.source.describe()
        if rows_are_positions(description, self._options, self._consumer.consumed.state):
            full = CountedBatches(self.position, description.stop, self.batch_size, drops=not self.pad_remainder)
            if (left := full.num_batches) is not None and left < length:
                raise self._too_few(left, length)
        if shared := self._stages.shared_with(tuple(modules)):
            raise ValueError(
                f"the variables {', '.join(shared)} of modules are those of a stage, too: the steps would change them, "
                "and the stages of one compiled loop know what they hold at its beginning alone. Leave that stage out "
                "of the pipeline and call it in step_fn, or iterate"
            )
        try:
            result = self._consumer.alone(lambda: self._scan(step_fn, length, tuple(modules), init_carry))
        except Exception as error:
            if init_carry is None and isinstance(error, TypeError) and lacks_arguments(step_fn, len(modules) + 1):
                given = ", ".join([*(type(module).__name__ for module in modules), "batch"])
                error.add_note(
                    f"scan calls step_fn({given}); where it takes a carry first, give the first one as init_carry=, "
                    "and its modules as modules="
                )
            begin_at_users_line(error)
            raise
        return result if init_carry is not None else result[1]

    def _scan(self, step_fn: Callable[..., Any], length: int, modules: tuple[Any, ...], init_carry: Any) -> Any:
        key, begin = self._ahead(self._maker.feed)
        feed = Feed(self._consumer, key, begin, length, self._taken, partial(self._too_few, length=length))
        try:
            return self._scanner(feed, step_fn, modules, init_carry)
        except BaseException:
            feed.fail()
            raise

    def _ahead(self, prepare: Callable[[HostBatch], Any]) -> tuple[Any, Begin]:
        """What makes batches ahead, prepared in this way, under JAX's settings here; its key first."""
        settings = JaxSettings.of_this_thread()

        def begin(consumed: Consumed) -> BackgroundIterator[Delivery]:
            cancelled = Cancelled()
            items = self._maker.batches(consumed, prepare, settings, lambda: cancelled.is_set)
            return BackgroundIterator(items, self._prefetch, cancelled)

        return (prepare, settings), begin

    def get_state(self) -> dict[str, Any]:
        """Everything needed to resume, in plain values: under 4 KB, valid for any number of actors and trainers.

        It is the state of what was yielded; batches made ahead are not in it.
        """
        return self._consumer.consumed.to_json(self._settings(), self.source.describe().order)

    def set_state(self, state: Mapping[str, Any], *, allow_drift: Sequence[str] = ()) -> None:
        """Go on from a state, whatever the number of actors and trainers that wrote it.

        allow_drift: settings, by name as the refusal gives them, that may differ on purpose.

        Raises: DriftError where the state belongs to another stream; ValueError or TypeError where it is none.
        """
        check_not_forked(self._made_in, "this Pipeline")
        if state is None:
            raise TypeError("a state is a dict, got None, from which the stream would begin anew; seek(0) does that")
        consumed, before = self._consumed_in(state, allow_drift), self.amendments
        self._go_to(self._from(consumed))
        if gone := [str(each) for each in before if each not in consumed.state.amendments]:
            logger.warning(
                "this pipeline was amended (%s), and the state was not, so that holds no more; amend it once more",
                "; ".join(gone),
            )

    def verify(self) -> None:
        """Make the last rows of the restored state again, and compare; the first read does so, too.

        The source's actors make them. Without a restored state, or once rows were yielded, nothing is read.

        Raises: DriftError where a row is another now, with its file, record and field.
        """
        self._check_usable()
        consumed = self._consumer.consumed
        if (verify := getattr(self.source, "verify", None)) is not None:
            verify(consumed.state, consumed.trail, self.packing)

    @named_arguments
    def amend(
        self,
        *,
        skip: Iterable[Any] = (),
        weights: Sequence[float] | WeightSchedule | None = None,
        at: int | None = None,
        every_epoch: bool = False,
        why: str = "",
    ) -> None:
        """Change the stream from here on: leave out data (of a loss spike, say), or mix by other weights.

        What was yielded stays as it was. The change is in every state from now on, so whatever resumes from one repeats
        it, with any actors and trainers, and needs not call this; who says it again, as a script that is started anew,
        changes nothing. Several trainers each call it at the same step. `amendments` lists what was changed.

        skip: what gives nothing any more, as if a filter dropped it: positions of the stream, as numbers, as
            range(start, stop) or as what `locate` gives; or records, as `locate` and errors name them: "part-0[17]",
            several "part-0[17:99]", of a mixture "component 1: part-0[17]". A position is of one epoch, a record is
            left out in all that come; every_epoch: leave out the records at these positions in all, too.
        weights: of a MixtureSource without an end in its sources, one for each, or a WeightSchedule, whose positions
            are counted from `at`.
        at: the position from which on weights hold, and records are left out; None for the next one.
        why: a note for who asks later, up to 200 characters.

        Batches made ahead are made anew. Where something is left out, a batch is no longer found by counting positions,
        as behind a filter, until the last such position was passed. Random transforms stay as they were.

        Raises: ValueError for positions that were given already, and for what this stream has not; TypeError for what
        is none of these.

        Example: `pipeline.amend(skip=[range(48_000, 49_024)], why="loss spike at step 750")`
        """
        self._check_usable()
        change = partial(amended_state, skip=skip, weights=weights, at=at, every_epoch=every_epoch, why=why)
        self._consumer.alone(lambda: self._amend(change))

    def _amend(self, change: Callable[[Any, StreamState], StreamState]) -> None:
        consumed = self._consumer.consumed
        state = change(self.source.describe(), consumed.state)
        if state != consumed.state:
            self._go_to(consumed._replace(state=state))

    @property
    def amendments(self) -> tuple[Amendment, ...]:
        """What was changed of the stream by `amend`, here or by who wrote the state; str() tells one."""
        return self._consumer.consumed.state.amendments

    def seek(self, position: int) -> None:
        """Go on from a position; 0 is the beginning. Costs nothing; counts skipped records, and the digest, anew.

        position: in records of the source, epoch after epoch, also those that a filter leaves out; of a mixture with a
        stream in elements. A stream alone reserves positions of shards that ended, and for each epoch 2**40: take one
        that `locate` or a state gave.

        Raises: ValueError for a position beyond the end, or where the last batch from there on would not divide over
        the sharding, or a mixture had other weights; the position stays.
        """
        check_not_forked(self._made_in, "this Pipeline")
        state, stop = self._consumer.consumed.state.moved(position), self.source.describe().stop
        if stop is not None and state.position > stop:
            raise ValueError(f"the stream ends at position {stop}, got {position}; seek(0) begins again")
        self._go_to(self._from(Consumed(state)))

    def _consumed_in(self, state: Mapping[str, Any] | None, allow_drift: Sequence[str] = ()) -> Consumed:
        """What a state says was consumed; for None nothing, of the stream that is read. Raises: as set_state."""
        if state is None:  # of a mixture whose weights were changed, positions before that are refused
            return Consumed(self._begin)
        allowed = (allow_drift,) if isinstance(allow_drift, str) else tuple(allow_drift)
        unit: Unit = "elements" if self.packing is None else self.packing.unit
        stream = self.source.describe()
        found = Consumed.from_json(state, stream, self._settings(), unit=unit, allow_drift=allowed)
        # of a longer stream, which allow_drift lets differ, it is this one's end
        if not allowed and stream.stop is not None and found.state.position > stream.stop:
            raise ValueError(
                f"the state's position {found.state.position} is beyond the end of the stream, {stream.stop}: it is "
                "damaged, or was edited. Restore an earlier one; seek(position) goes elsewhere"
            )
        return found

    @property
    def _begin(self) -> StreamState:
        """The beginning of the stream that is read."""
        return StreamState(amendments=self._consumer.consumed.state.amendments)

    def _from(self, consumed: Consumed) -> Consumed:
        """What to go on from, with the digest that this trainer goes on with."""
        found = consumed.digest
        if not self._options.digest:
            if found is not None:
                logger.warning("the state has a digest of what was consumed, which ends here: there is no digest=True")
            return consumed._replace(digest=None)
        # who packs knows all documents, whichever rows are its own
        share = self._options.rows.share if self.packing is None else WHOLE
        held = None if found is None else found.held_by(share)
        if found is not None and held is None:
            logger.warning(
                "the state has the digest of parts %s of %d of every batch, and this trainer has others, so its own "
                "begins anew at position %d; restore what PipelineSave made of the states of all trainers",
                list(found.parts),
                found.num_parts,
                consumed.state.position,
            )
        return consumed._replace(digest=held or RollingDigest.begun(consumed.state, share))

    def _go_to(self, consumed: Consumed) -> None:
        self._check_sharding(consumed.state)
        self._consumer.go_to(consumed)
        self._timings.interrupted()

    def close(self) -> None:
        """Stop reading ahead and close the source, for good. The state can still be taken, and set. Takes 4 s at most.

        Where a source in this process is at a longer read then, the source is closed once that is done.
        """
        self._consumer.is_closed = True
        # after what is being read: to close files under a read would crash
        self._consumer.end(_CLOSE_S, then=getattr(self.source, "close", None))

    def _check_usable(self) -> None:
        check_not_forked(self._made_in, "this Pipeline")
        if is_traced():
            raise RuntimeError(
                "JAX traces this call (jit, grad, scan and the like): the batch would be a constant of the compiled "
                "program, which would give it again and again. Call step() outside, and pass the batch to the jitted "
                "function; or run many train steps in one compiled loop with pipeline.scan(step_fn, length=...)"
            )
        if self._consumer.is_closed:
            raise closed("Pipeline")

    @property
    def _is_at_end(self) -> bool:
        stop = self.source.describe().stop
        return self._consumer.consumed.is_end or (stop is not None and self.position >= stop)

    def _settings(self) -> dict[str, Any]:
        packing = {} if self.packing is None else {"packing": self.packing.settings()}
        return (
            self.source.describe().settings()
            | packing
            | {
                "batch_size": self.batch_size,
                "drop_remainder": self.drop_remainder,
                "pad_remainder": self.pad_remainder,
                "stages": self._stages.settings,
            }
        )

    def _check_sharding(self, start: StreamState) -> None:
        rows = self._options.rows
        check_sharding(self.sharding, rows, self.batch_size, "a batch")
        if self.packing is not None:
            check_shape(self.sharding, (self.batch_size, self.packing.seq_len), "a batch of packed rows")
        description = self.source.describe()
        may_be_short = not self.drop_remainder and not self.pad_remainder
        if description.stop is not None and rows_are_positions(description, self._options, start) and may_be_short:
            remainder = max(0, description.stop - start.position) % self.batch_size
            if remainder:
                check_sharding(self.sharding, rows, remainder, "the last batch")

    def _too_few(self, left: int, length: int) -> ValueError:
        return ValueError(
            f"scan(length={length}) needs {length} batches of {self.batch_size} rows, and from position "
            f"{self.position} to the end of the stream there are {left}; use a length of at most that and iterate "
            "the rest, pad_remainder=True to count in a short last batch, or more epochs (num_epochs)"
        )


# They are taken once, when the pipeline is made.
_ARGUMENTS = frozenset(inspect.signature(Pipeline.__init__).parameters) - {"self"}
_UNKNOWN = object()  # of those that it has no attribute for


class _Batches:
    """A pipeline's batches, by `next`; no generator, which an error would end as if the data were at an end."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._is_first = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        pipeline, is_first, self._is_first = self._pipeline, self._is_first, False
        was_at_end = is_first and pipeline._is_at_end
        try:
            return pipeline.step()
        except StopIteration:
            if was_at_end:
                logger.warning(
                    "the stream is at its end (position %d), so this loop gets no batch; "
                    "seek(0) begins again, with the same order and random numbers; num_epochs=n on the source gives n "
                    "epochs, each shuffled and drawn anew",
                    pipeline.position,
                )
            elif is_first and pipeline.drop_remainder:
                logger.warning(
                    "this loop got no batch: fewer elements than batch_size=%d were left, and drop_remainder "
                    "leaves them out",
                    pipeline.batch_size,
                )
            raise


def begin_at_users_line(error: Exception) -> None:
    """Cut off the frames of this package and JAX that lead to a user's, as to those of a stage.

    Of a RecordError all are cut off: a note has the traceback of the transform. Of an error that no user's line led to
    none, and none where JAX cuts off none of its own (JAX_TRACEBACK_FILTERING=off).
    """
    begin = users_traceback(error)
    is_cut = getattr(jax.config, "jax_traceback_filtering", None) != "off"
    if is_cut and (begin is not None or isinstance(error, RecordError)):
        error.__traceback__ = begin
