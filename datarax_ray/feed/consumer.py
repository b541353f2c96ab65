"""The consumer: holds the place where a stream goes on, and moves it as batches are handed out.

A source and a Pipeline over it have a consumer each. A source's position moves with its own elements (`next`,
get_batch); a Pipeline's position moves with its batches. The Pipeline takes batches by Source.batches, which moves no
position, so `pipeline.source.position` stays.

Nothing here makes batches: a session does, ahead or on request. Any error ends the session, and the next session begins
behind the last batch that was handed out. Consumed.to_json writes the saved state; plan/state.py checks it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.trail import Trail
from datarax_ray.plan.evidence import Evidence, RollingDigest
from datarax_ray.plan.fingerprint import code_changes
from datarax_ray.plan.state import Stateful, StatefulOrder, StreamState, Unit, num_skipped_in
from datarax_ray.read.background import BackgroundIterator
from datarax_ray.read.errors import Skipped
from datarax_ray.read.skipped_records import COUNT_ALONE, SkipCounts, SkipOptions, SkippedRecords

ROWS = "rows"  # of allow_drift: the last rows may be others
# Settings that leave the rows as they are, where a person allows them to differ.
_SAME_ROWS = frozenset(
    {"batch_size", "drop_remainder", "pad_remainder", "stages", "order.num_epochs", "mixture.length"}
)

logger = logging.getLogger("datarax_ray")

T = TypeVar("T")


class Consumed(NamedTuple):  # as cheap as a StreamState
    """The record of all batches handed out so far. Beside a batch: the record once that batch is handed out.

    state: the place where the stream goes on.
    num_before: broken records skipped before the last batch.
    skipped: broken records skipped in the last batch. If a short last batch is dropped, some may lie behind the state;
        a stream that goes on from the state meets them again.
    is_end: the stream was seen to end here.
    digest: of all that was handed out; None without digest=True.
    num_rows: of the last batch, of all trainers; 0 where it is none of a Pipeline's.
    trail: the last rows that were handed out.
    """

    state: StreamState
    num_before: int = 0
    skipped: tuple[Skipped, ...] = ()
    is_end: bool = False
    digest: RollingDigest | None = None
    num_rows: int = 0
    trail: Trail = Trail()

    def then(
        self,
        state: StreamState,
        skipped: tuple[Skipped, ...] = (),
        *,
        is_end: bool = False,
        digest: int = 0,
        num_rows: int = 0,
        trail: Trail | None = None,
    ) -> Consumed:
        """The record with one more batch. state, trail: behind the batch. skipped, digest, num_rows: of the batch."""
        whole = None if self.digest is None else self.digest.plus(digest)
        return Consumed(state, self.num_reported, skipped, is_end, whole, num_rows, trail or self.trail)

    @property
    def num_reported(self) -> int:
        """Broken records reported so far, with those at the end of the stream."""
        return self.num_before + len(self.skipped)

    @property
    def num_skipped(self) -> int:
        """Broken records skipped before the state."""
        return self.num_before + sum(skip.position < self.state.position for skip in self.skipped)

    def to_json(self, settings: Mapping[str, Any], order: StatefulOrder) -> dict[str, Any]:
        """The saved state, in plain values."""
        digest = {} if self.digest is None else {"digest": self.digest.to_json()}
        statistics = {"statistics": {"num_skipped": self.num_skipped}}
        return self.state.to_json(settings) | statistics | self.evidence(order) | digest

    def evidence(self, order: StatefulOrder) -> dict[str, Any]:
        """{"evidence": of the last rows}; {} for none."""
        found = self.trail.evidence(self.state, order)
        return {} if found is None else {"evidence": found.to_json()}

    @classmethod
    def from_json(
        cls,
        state: Any,
        stream: Stateful,
        settings: Mapping[str, Any],
        *,
        unit: Unit = "elements",
        allow_drift: Iterable[str] = (),
    ) -> Self:
        """The record of a saved state. Raises: as StreamState.from_json; ValueError for an invalid count or digest."""
        checked = [name for name in allow_drift if name != ROWS]
        found = StreamState.from_json(state, stream, settings, unit=unit, allow_drift=checked)
        digest = RollingDigest.from_json(state["digest"]) if "digest" in state else None
        evidence = Evidence.from_json(state["evidence"]) if "evidence" in state else None
        changed = code_changes(state["settings"], settings)
        may_differ = not _SAME_ROWS.issuperset(allow_drift)
        trail = Trail() if may_differ else Trail(saved=evidence, changed=tuple(changed))
        return cls(found, num_skipped_in(state), digest=digest, trail=trail)


# A batch or an element, and the record once it is handed out. At the end of the stream the batch is None.
Delivery: TypeAlias = tuple[Any, Consumed]


class LazySession:
    """A session whose deliveries are made when they are asked for, in the thread that asks."""

    def __init__(self, deliveries: Generator[Delivery, None, None]) -> None:
        self._deliveries = deliveries
        self.next = deliveries.__next__  # itself: it is called for every element

    @property
    def is_waiting(self) -> bool:
        return False

    def close(self, timeout_s: float | None, then: Callable[[], None] | None = None) -> None:
        with suppress(ValueError):  # it runs in another thread, or below this signal's handler, which finds out
            self._deliveries.close()
        if then is not None:
            then()


# Makes deliveries from one place on; a BackgroundIterator makes them ahead of use. A session that is dropped ends.
Session: TypeAlias = LazySession | BackgroundIterator[Delivery]
Begin: TypeAlias = Callable[[Consumed], Session]


class Leg:
    """A run through the stream from one place on, until the consumer goes on from another place.

    consumed: the record so far. session: makes batches; None while no session runs. key: the kind of the session.
    """

    def __init__(self, consumed: Consumed) -> None:
        self.consumed = consumed
        self.session: Session | None = None
        self.key: Any = None

    def end(self, timeout_s: float | None = None, then: Callable[[], None] | None = None) -> None:
        """End the session; see BackgroundIterator.close."""
        session, self.session = self.session, None
        if session is not None:
            session.close(timeout_s, then)
        elif then is not None:
            then()

    def fail(self) -> None:
        """End the session after an error: the end of a failed session would pass for the end of the data."""
        # What interrupts the wait (Ctrl-C, a signal's handler) must not wait for a batch that may never come.
        self.end(0 if self.session is not None and self.session.is_waiting else None)


class Consumer:
    """The record of the batches handed out, replaced in one assignment, and the session that makes more.

    A thread, or a signal's handler, may read `consumed` at any time, or move the stream to another place: the batch
    that is being taken is then refused, and dropped.

    skip_options: the limit of broken records, and their file.
    is_listing: whether broken records are also listed in a file: only by the first trainer, as all skip the same.
    is_closed: set by the owner, for good.
    """

    def __init__(self, skip_options: SkipOptions = COUNT_ALONE, *, is_listing: bool = True) -> None:
        self._skipped_records = SkippedRecords(skip_options, is_listing=is_listing)
        self._leg = Leg(Consumed(StreamState()))
        self.alone = Turns().alone
        self.is_closed = False

    @property
    def consumed(self) -> Consumed:
        """The record of the batches handed out, as one value; safe to read at any time."""
        return self._leg.consumed

    @property
    def skipped(self) -> list[Skipped]:
        """The first 1000 broken records skipped in what was handed out, since the last seek."""
        return self._skipped_records.skipped

    def take(self, key: Any, begin: Begin, finish: Callable[[Any], Any] | None = None) -> Any:
        """Hand out the next batch of a session of this key. Called within `alone`.

        finish: applied to the batch. Raises: StopIteration at the end of the stream; the errors of making the batch;
        RuntimeError if the stream was moved meanwhile. After an error nothing was handed out.
        """
        leg = self._leg
        if leg.consumed.is_end:
            raise StopIteration
        session = leg.session if leg.key == key else None
        if session is None:
            leg, session = self.opened(key, begin)
        try:
            batch, consumed = session.next()
            if finish is not None and not consumed.is_end:
                batch = finish(batch)
            self.commit(leg, consumed, consumed.skipped)
        except StopIteration as error:  # the end of the stream is a delivery
            leg.fail()
            raise RuntimeError(
                "StopIteration was raised where a batch was made: by a stage that calls next() on an exhausted "
                "iterator, or because another thread closed the stream. Nothing was handed out"
            ) from error
        except BaseException:
            leg.fail()
            raise
        if consumed.is_end:
            leg.end()
            raise StopIteration
        return batch

    def opened(self, key: Any, begin: Begin) -> tuple[Leg, Session]:
        """The current leg and its session of this key; begins a session where none runs."""
        leg = self._leg
        if leg.key != key:
            leg.end()
        session = leg.session
        if session is None:
            # what is behind the state comes again
            was = leg.consumed
            leg.consumed = Consumed(was.state, was.num_skipped, digest=was.digest, trail=was.trail.until(was.state))
            self._skipped_records.rewind(leg.consumed.state.position)
            session = begin(leg.consumed)
            leg.key, leg.session = key, session
        return leg, session

    @property
    def skip_counts(self) -> SkipCounts:
        """Of all that was handed out, also before a seek."""
        return self._skipped_records.counts

    def check(self, leg: Leg, skipped: Sequence[Skipped]) -> None:
        """Raise SkippedError if these records, skipped in the next batch, would be too many."""
        self._skipped_records.check(skipped, leg.consumed.num_reported)

    def commit(self, leg: Leg, consumed: Consumed, skipped: tuple[Skipped, ...]) -> None:
        """Hand out a batch that skips these records: `consumed` is assigned last, so an error changes nothing.

        Raises: SkippedError if they are too many; OSError if skipped_path cannot be written; RuntimeError if the stream
        is on another leg by now.
        """
        if leg is not self._leg:
            raise RuntimeError(
                "the stream goes on from elsewhere by now: another thread, or a signal's handler, moved it while a "
                "batch was asked for. Nothing was handed out; the next batch comes from the new place"
            )
        if skipped:
            for line in self._skipped_records.enter(skipped, leg.consumed.num_reported):
                logger.warning("%s", line)
        leg.consumed = consumed

    def go_to(self, consumed: Consumed) -> None:
        """Go on from another place. The list of broken records begins anew."""
        leg, self._leg = self._leg, Leg(consumed)
        leg.end()
        self._skipped_records.restart()

    def end(self, timeout_s: float | None = None, then: Callable[[], None] | None = None) -> None:
        """End the session; the place stays, and `take` begins another session. See BackgroundIterator.close."""
        self._leg.end(timeout_s, then)


class Turns:
    """Lets threads take from one stream one after the other. A forked process begins with a free turn."""

    def __init__(self) -> None:
        self._made_in = os.getpid()
        self._lock = threading.RLock()
        self._is_busy = False  # somebody takes, and holds the lock

    def alone(self, take: Callable[[], T]) -> T:
        """Call `take` while no other thread takes. Raises: RuntimeError if a signal's handler interrupts `take`."""
        if self._made_in != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            if self._is_busy:
                raise RuntimeError(
                    "a signal's handler asked for a batch while the program was taking one. Let the handler set a flag "
                    "that the loop reads; a handler may take states"
                )
            try:
                self._is_busy = True
                return take()
            finally:  # nothing is called here: a handler that raises could come in between
                self._is_busy = False


def deliveries(
    stream: Generator[HostBatch, None, tuple[Skipped, ...]], consumed: Consumed, *, is_written: bool = True
) -> Generator[Delivery, None, None]:
    """The batches of a stream, and its end. consumed: the record at the begin of the stream.

    is_written: whether the user of a batch may write to its arrays.
    """
    with closing(stream):
        while True:
            try:
                batch = next(stream)
            except StopIteration as end:
                yield None, consumed.then(consumed.state, end.value or (), is_end=True)
                return
            trail = consumed.trail.then(batch, consumed.state, is_written=is_written)
            consumed = consumed.then(
                batch.state, batch.skipped, digest=batch.digest, num_rows=batch.global_rows, trail=trail
            )
            yield batch, consumed
