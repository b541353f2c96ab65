"""The position of a Pipeline: the state to resume from, changes to the stream, and looking back at its batches."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flax import nnx
from jax.sharding import NamedSharding

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.consumer import Consumed, Consumer
from datarax_ray.feed.origins import Origin, origins, origins_in, replayed, rows_are_counted
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.pipeline.producing import BatchProducer, Source
from datarax_ray.pipeline.stages import Stages
from datarax_ray.pipeline.transfer import check_shape, check_sharding
from datarax_ray.plan.amendments import Amendment
from datarax_ray.plan.arguments import named_arguments
from datarax_ray.plan.evidence import RollingDigest
from datarax_ray.plan.packing import AnyPacking, Packing
from datarax_ray.plan.position import CountedBatches
from datarax_ray.plan.state import StreamState, Unit
from datarax_ray.plan.trainer_rows import WHOLE
from datarax_ray.plan.weights import WeightSchedule
from datarax_ray.read.closing import Closing, closed
from datarax_ray.read.elements.columns import Batch
from datarax_ray.read.errors import Skipped
from datarax_ray.read.forked import check_not_forked
from datarax_ray.read.stream import is_endless
from datarax_ray.read.streams.amending import amended_state
from datarax_ray.sources.base.device import HostModule, is_traced

logger = logging.getLogger("datarax_ray")


class Positioned(HostModule, Closing, nnx.Module, pytree=False):  # type: ignore[call-arg]
    """The base of Pipeline: its position in the stream, and its states. Pipeline sets the attributes."""

    source: Source
    packing: AnyPacking | None
    sharding: NamedSharding | None
    batch_size: int
    drop_remainder: bool
    pad_remainder: bool
    _options: StreamOptions
    _stages: Stages
    _maker: BatchProducer
    _consumer: Consumer
    _timings: Timings
    _made_in: int

    @property
    def position(self) -> int:
        """The position after the last record of the batches yielded: the stream goes on there."""
        return self._consumer.consumed.state.position

    @property
    def num_skipped(self) -> int:
        """Broken records skipped in the batches yielded, since the beginning; at the end, in the whole stream.

        After a flat_map, failing elements are skipped and counted.
        """
        return self._consumer.consumed.num_reported

    @property
    def skipped(self) -> list[Skipped]:
        """The first 1000 skipped records since this pipeline was made, or went on from elsewhere."""
        return self._consumer.skipped

    @property
    def amendments(self) -> tuple[Amendment, ...]:
        """The changes by `amend`, here or before the state was saved; str() describes a change."""
        return self._consumer.consumed.state.amendments

    @property
    def num_batches(self) -> int:
        """Global batches of the whole stream, through all its epochs. Also `len`.

        Raises: TypeError for an endless stream, and where the content of a batch is known only by reading.
        """
        description = self.source.describe()
        if is_endless(description):
            raise TypeError("the stream is endless (num_epochs=-1), so it has no number of batches; set num_epochs")
        found = CountedBatches(0, description.stop, self.batch_size, self.drop_remainder).num_batches
        if found is None or not rows_are_counted(description, self._options, self._begin):
            raise TypeError(
                "the batches of this stream are known only by reading: there are filters, flat_map, on_error='skip', "
                "packing, a stream, or positions that an amendment skips. Count them as they come"
            )
        return found

    def get_state(self) -> dict[str, Any]:
        """Everything needed to resume, in plain values: under 4 KB, valid for any number of actors and trainers.

        The state stands behind the last yielded batch; batches made ahead are not in it.
        """
        return self._consumer.consumed.to_json(self._settings(), self.source.describe().order)

    def set_state(self, state: Mapping[str, Any], *, allow_drift: Sequence[str] = ()) -> None:
        """Continue from a state, written with any number of actors and trainers.

        allow_drift: settings that may differ on purpose, by their names in the DriftError.

        Raises: DriftError for a state of another stream; ValueError or TypeError for a value that is no state.
        """
        check_not_forked(self._made_in, "this Pipeline")
        if state is None:
            raise TypeError("a state is a dict, got None; to begin anew call seek(0)")
        consumed, before = self._consumed_in(state, allow_drift), self.amendments
        self._go_to(self._from(consumed))
        if gone := [str(each) for each in before if each not in consumed.state.amendments]:
            logger.warning(
                "the amendments of this pipeline (%s) are not in the state, and so are gone; call amend again",
                "; ".join(gone),
            )

    def verify(self) -> None:
        """Make the last rows of the restored state again, and compare; the first read does so, too.

        The source's actors make them. Without a restored state, or once rows were yielded, nothing is read.

        Raises: DriftError if a row differs, with its file, record and field.
        """
        self._check_usable()
        self._maker.verify(self._consumer.consumed)

    def seek(self, position: int) -> None:
        """Go on from a position; 0 is the beginning. Costs nothing, and restarts the digest and the count of skips.

        position: in records of the source, epoch after epoch, including those that a filter drops; in elements for a
            mixture with a stream. A stream alone reserves positions of shards that ended, and 2**40 for each epoch: use
            a position from `locate` or a state.

        Raises: ValueError for a position beyond the end, or where the sharding does not divide the last batch.
        """
        check_not_forked(self._made_in, "this Pipeline")
        state, stop = self._consumer.consumed.state.moved(position), self.source.describe().stop
        if stop is not None and state.position > stop:
            raise ValueError(f"the stream ends at position {stop}, got {position}; seek(0) begins again")
        self._go_to(self._from(Consumed(state)))

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
        """Change the stream from here on: skip data (of a loss spike, say), or mix by other weights.

        Batches already yielded stay as they were. Every later state holds the change, so a resume repeats it without
        this call, with any actors and trainers. A second call with the same change, as in a restarted script, changes
        nothing. Several trainers call it at the same step. `amendments` lists the changes.

        skip: positions or records to leave out, as a filter would. Positions are numbers, ranges (start, stop) or
            values of `locate`; records are named as in `locate` and errors: "part-0[17]", several "part-0[17:99]", of a
            mixture "component 1: part-0[17]". A position is of one epoch; a record is skipped in all later epochs.
        every_epoch: skip the records at these positions in all epochs.
        weights: of a MixtureSource over endless sources: one for each, or a WeightSchedule that begins at `at`.
        at: the position where weights and skipped records begin; None for the next one.
        why: a note of up to 200 characters.

        Batches made ahead are rebuilt. Up to the last skipped position, batches can no longer be found by counting, as
        behind a filter. Random transforms stay as they were.

        Raises: ValueError for positions already yielded, or records or weights that the stream lacks; TypeError.

        Example: `pipeline.amend(skip=[range(48_000, 49_024)], why="loss spike at step 750")`
        """
        self._check_usable()
        change = partial(amended_state, skip=skip, weights=weights, at=at, every_epoch=every_epoch, why=why)

        def change_here() -> None:
            consumed = self._consumer.consumed
            state = change(self.source.describe(), consumed.state)
            if state != consumed.state:
                self._go_to(consumed._replace(state=state))

        self._consumer.alone(change_here)

    def locate(self, step: int, state: Mapping[str, Any] | None = None) -> list[Origin]:
        """The file and record of each row of a global batch, by row; the position does not move.

        step: number of the batch, counted from 0 at the beginning of the stream, or at `state` (of get_state, or of a
            checkpoint). Packed rows have an Origin for each piece of a document. If every position gives one row,
            nothing is read; otherwise (filters, flat_map, on_error="skip", packing, streams) this process reads.

        Raises: IndexError if the stream ends before that batch; as set_state for a state of another stream.
        """
        self._check_usable()
        return origins(self.source.describe(), self._consumed_in(state).state, self._options, step)

    def replay(self, first: int, stop: int, state: Mapping[str, Any] | None = None) -> Iterator[Batch]:
        """The batches [first, stop) once more, as NumPy arrays of the whole global batch, before the stages.

        Numbered as in `locate`; fewer if the stream ends. The position does not move. A RaySource's actors read. A last
        batch that pad_remainder fills has only its own rows here, and no mask.

        Raises: as locate.
        """
        return self._replayed(first, stop, state, lambda batch, start: batch.columns)

    def replay_with_origins(
        self, first: int, stop: int, state: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Batch, list[Origin]]]:
        """The batches of `replay`, each with the origins of its rows as `locate` gives them, from one read."""
        description = self.source.describe()
        return self._replayed(
            first, stop, state, lambda batch, at: (batch.columns, origins_in(batch, description, at, self._options))
        )

    def _replayed(
        self, first: int, stop: int, state: Mapping[str, Any] | None, give: Callable[[HostBatch, StreamState], Any]
    ) -> Iterator[Any]:
        """What `give` makes of each batch, and of the state from which they are counted."""
        self._check_usable()
        start = self._consumed_in(state).state
        batches = replayed(self.source.describe(), self.source.batches, start, self._options, first, stop)

        def given() -> Iterator[Any]:
            with contextlib.closing(batches):
                for batch in batches:
                    yield give(batch, start)

        return given()

    def digests(self, state: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
        """(position, offset in its record, digest) of each state, from the begin of the digest in `state` to the end.

        state: of this stream, with a digest of all rows. The position of this pipeline does not move. With
            LengthBatches, the offset counts batches of a pool.

        Raises: ValueError if the state has no such digest; as set_state for a state of another stream.
        """
        self._check_usable()
        consumed = self._consumed_in(state)
        digest = consumed.digest
        if digest is None or not digest.is_whole:
            raise ValueError("the state has no digest of all rows; Pipeline(digest=True) keeps one")
        start = consumed.state.moved(digest.since[0])._replace(offset=digest.since[1], unit=consumed.state.unit)
        return self._digests(start, digest._replace(total=0))

    def _digests(self, state: StreamState, digest: RollingDigest) -> Iterator[tuple[int, int, str]]:
        options = replace(self._options, process_index=0, process_count=1, share=None, digest=True)
        with contextlib.closing(self.source.batches(state, options)) as batches:
            yield *digest.since, digest.to_json()["sum"]
            for batch in batches:
                state, digest = batch.state, digest.plus(batch.digest)
                yield state.position, state.offset + state.pool.num_given, digest.to_json()["sum"]
        stop = self.source.describe().stop
        if not self.drop_remainder and stop is not None and state.position != stop:  # what is left gives nothing
            yield stop, 0, digest.to_json()["sum"]

    def _consumed_in(self, state: Mapping[str, Any] | None, allow_drift: Sequence[str] = ()) -> Consumed:
        """The consumed record of a state; for None, of the beginning. Raises: as set_state."""
        if state is None:
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
        return StreamState(amendments=self._consumer.consumed.state.amendments)

    def _from(self, consumed: Consumed) -> Consumed:
        """Where to go on, with the digest of this trainer."""
        found = consumed.digest
        if not self._options.digest:
            if found is not None:
                logger.warning("the digest in the state ends here: this Pipeline has no digest=True")
            return consumed._replace(digest=None)
        share = self._options.rows.share if self.packing is None else WHOLE  # who packs has all documents
        held = None if found is None else found.held_by(share)
        if held is None and consumed.state.pool.num_given:
            raise ValueError(
                f"a digest cannot begin behind {consumed.state.pool.num_given} batches of a pool; restore a state from "
                "the end of a pool (each num_batches batches), or leave out digest=True"
            )
        if found is not None and held is None:
            logger.warning(
                "the digest in the state is of parts %s of %d of every batch, and this trainer has others, so a new "
                "digest begins at position %d; restore what PipelineSave made of the states of all trainers",
                list(found.parts),
                found.num_parts,
                consumed.state.position,
            )
        return consumed._replace(digest=held or RollingDigest.begun(consumed.state, share))

    def _go_to(self, consumed: Consumed) -> None:
        self._check_sharding(consumed.state)
        self._consumer.go_to(consumed)
        self._timings.interrupted()

    def _check_usable(self) -> None:
        check_not_forked(self._made_in, "this Pipeline")
        if is_traced():
            raise RuntimeError(
                "JAX traces this call (jit, grad, scan and the like), so the batch would be a constant of the compiled "
                "program. Call step() outside and pass the batch to the jitted function, or run many train steps in "
                "one compiled loop with pipeline.scan(step_fn, length=...)"
            )
        if self._consumer.is_closed:
            raise closed("Pipeline")

    @property
    def _is_at_end(self) -> bool:
        stop = self.source.describe().stop
        return self._consumer.consumed.is_end or (stop is not None and self.position >= stop)

    def _settings(self) -> dict[str, Any]:
        packing = {} if self.packing is None else {"packing": self.packing.settings()}
        own = {name: getattr(self, name) for name in ("batch_size", "drop_remainder", "pad_remainder")}
        return self.source.describe().settings() | packing | own | {"stages": self._stages.settings}

    def _check_sharding(self, start: StreamState) -> None:
        rows = self._options.rows
        check_sharding(self.sharding, rows, self.batch_size, "a batch")
        if isinstance(self.packing, Packing):
            check_shape(self.sharding, (self.batch_size, self.packing.seq_len), "a batch of packed rows")
        elif self.packing is not None:
            for each in self.packing.widths:
                check_shape(self.sharding, (self.batch_size, each), "a batch of rows of one length")
        description = self.source.describe()
        may_be_short = not self.drop_remainder and not self.pad_remainder
        if description.stop is not None and rows_are_counted(description, self._options, start) and may_be_short:
            remainder = max(0, description.stop - start.position) % self.batch_size
            if remainder:
                check_sharding(self.sharding, rows, remainder, "the last batch")
