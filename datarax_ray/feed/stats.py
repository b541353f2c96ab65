"""Where the time of a stream goes, and what would make it faster. Pure: clocks are arguments.

Actors read a batch, a thread of the pipeline waits for it and assembles it, and the trainer takes it. Each has its own
seconds, which run side by side; the verdict names the place that the others wait for.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from datarax_ray.feed.timeline import OWN_WORK, STARTING, TRAINER, WAITING, Timeline
from datarax_ray.plan.orders.mixture import ComponentShare, Proportions
from datarax_ray.plan.packing import NO_PADDING, Padding
from datarax_ray.read.block import Block
from datarax_ray.read.laps import Laps, WorkDone
from datarax_ray.read.skipped_records import SkipCounts

# A trainer that waits for less than this share of its time has little to gain from faster data.
RARELY_WAITS = 0.1
_NO_WORK = 0.02  # of its time: a trainer that works for less only takes batches
# Actors that are at work for more than this share of the time are the bottleneck.
AT_WORK = 0.7
_MIN_BATCHES, _MIN_S = 3, 1.0  # before them nothing is known: actors start, programs are compiled, windows are filled
_MAX_ACTORS_SHOWN = 16
_MAX_SKIPPED_SHOWN = 10


@dataclass(frozen=True)
class ActorWork:
    """The work of one actor.

    num_blocks, num_elements, nbytes, read_s: blocks for this stream, their elements and bytes, and seconds of reading.
    busy_s: seconds of reading for all streams.
    num_retries: repeated requests to the storage.
    num_from_memory, num_from_storage: records that cacheable=True found in memory, and other records.
    max_rss_nbytes: the largest memory of its process.
    up_s: seconds from its first block to the last batch, without losses and pauses.
    """

    num_blocks: int = 0
    num_elements: int = 0
    nbytes: int = 0
    read_s: float = 0.0
    busy_s: float = 0.0
    num_retries: int = 0
    num_from_memory: int = 0
    num_from_storage: int = 0
    max_rss_nbytes: int = 0
    up_s: float = 0.0

    def plus(self, block: Block, last: WorkDone | None) -> ActorWork:
        """With this block. last: what the actor had done by its last report; None before any report."""
        done = block.done or WorkDone("", 1, len(block.positions), block.read_s)
        before = WorkDone("", 0, 0, 0.0)
        if last is not None and last.process == done.process:
            before = last
        elif last is None and done.num_blocks > 1:  # what it did for others before does not count
            before = replace(done, read_s=done.read_s - block.read_s)
        counts = {
            name: getattr(self, name) + max(0, getattr(done, name) - getattr(before, name))
            for name in ("num_retries", "num_from_memory", "num_from_storage")
        }
        return ActorWork(
            self.num_blocks + 1,
            self.num_elements + len(block.positions),
            self.nbytes + block.memory_nbytes,
            self.read_s + block.read_s,
            self.busy_s + max(0.0, done.read_s - before.read_s),
            max_rss_nbytes=max(self.max_rss_nbytes, done.max_rss_nbytes),
            **counts,
        )

    @property
    def hits(self) -> float | None:
        """The share of the records that came from memory; None without cacheable=True."""
        asked = self.num_from_memory + self.num_from_storage
        return self.num_from_memory / asked if asked else None

    @property
    def at_work(self) -> float:
        """The share of up_s that it reads, from 0 to 1."""
        return _share(self.busy_s, self.up_s)

    @property
    def here(self) -> float:
        """The share of up_s that it reads for this stream, from 0 to 1."""
        return _share(self.read_s, self.up_s)


def _share(spent_s: float, of_s: float) -> float:
    return min(1.0, spent_s / of_s) if of_s else 0.0


@dataclass(frozen=True)
class PipelineStats:
    """Where the time went since the pipeline was made. Print it for a table, also in a notebook; see `verdict`.

    num_batches, num_records: handed out to all trainers: rows behind filters, without the padding of pad_remainder. For
        packed batches num_records counts the records read; for a packed stream of shards, the rows.
    first_s: the time to the first batch, with starts and compilation.
    elapsed_s: from then to the last batch, without the time from the end of the stream, or a seek, to the next batch.
    waited_s: the part of elapsed_s in which the trainer waited for a batch; the rest is its own work.
    making: seconds of the thread that makes batches: "waiting" for blocks, "assembling" batches, "placing" them on the
        device with the stages.
    reading: seconds of all readers: "storage" (bytes on their way, where known apart), "reading" (files, decompression,
        and all work without a name of its own), "memory" (cacheable=True), each transform by name (of functions of one
        element that follow each other, by the times of one element in 128), "stacking".
    actors: the work of each actor, by id; {} in one process.
    num_actors: actors that are wanted; 0 in one process.
    part: the share of each batch that this trainer takes.
    sharing: trainers that count the same reading.
    start_s: seconds until reading began.
    num_lost: requests that were lost with their actors and sent again.
    has_stages: whether placing a batch also runs stages.
    num_running: actors that run now; None where not known.
    at_work_while_waiting: the share of their time that actors work while the trainer waits; None where not known.
    skipped: broken records that were skipped, by component of a mixture, kind and file; "others" beyond 100 of them.
    components: of a mixture, the positions that weights gave each component, and the elements that came of them: of all
        that was read in order, which is up to a window ahead of the trainer. With weights_by, sizes of elements.
    epoch: in which the stream stands, the first is 1; None for mixtures, and where not known.
    counted: what `components` counts: "elements", or the field of weights_by.
    padding: of LengthBatches, the values and the padding of all rows that were cut into batches.
    """

    num_batches: int
    num_records: int
    first_s: float
    elapsed_s: float
    waited_s: float
    making: Mapping[str, float] = field(default_factory=dict)
    reading: Mapping[str, float] = field(default_factory=dict)
    actors: Mapping[int, ActorWork] = field(default_factory=dict)
    num_actors: int = 0
    part: float = 1.0
    sharing: int = 1
    start_s: float = 0.0
    num_lost: int = 0
    has_stages: bool = False
    num_running: int | None = None
    at_work_while_waiting: float | None = None
    skipped: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    components: tuple[ComponentShare, ...] = ()
    epoch: int | None = None
    counted: str = "elements"
    padding: Padding = NO_PADDING

    @property
    def records_per_s(self) -> float:
        """Records a second of all trainers, since the first batch; 0 before the second."""
        behind = self.num_records * (1 - 1 / self.num_batches) if self.num_batches else 0.0
        return behind / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def waits(self) -> float:
        """The share of its time that the trainer waits for data, from 0 to 1."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def at_work(self) -> float:
        """The share of their time that the readers are at work, also for other trainers, from 0 to 1; see ActorWork."""
        if not self.actors:
            return self.here
        return _share(sum(work.busy_s for work in self.actors.values()), self._up_s)

    @property
    def here(self) -> float:
        """The share of their time that the readers are at work for this stream, from 0 to 1."""
        if not self.actors:
            return _share(sum(self.reading.values()), max(0.0, self._total_s - self.start_s))
        return _share(sum(work.read_s for work in self.actors.values()), self._up_s)

    @property
    def _up_s(self) -> float:
        return sum(work.up_s for work in self.actors.values())

    @property
    def _of_work(self) -> float:
        """The share of the actors' work that is for this trainer."""
        busy_s = sum(work.busy_s for work in self.actors.values())
        return min(1.0, sum(work.read_s for work in self.actors.values()) / busy_s) if busy_s else 1.0

    @property
    def verdict(self) -> str:
        """The bottleneck of the stream, in words, and the remedy."""
        if self.num_batches < _MIN_BATCHES or self.elapsed_s < _MIN_S:
            so_far = f"{self.num_batches} batches, {self.elapsed_s:.2g} s since the first"
            return f"too early to say: {so_far}; ask again after {_MIN_BATCHES}, and {_MIN_S:g} s"
        enough = self._enough()
        if self.waits < RARELY_WAITS:
            said = f"bound by the trainer, which waits {self.waits:.1%} of its time"
            if enough is None or enough >= self.num_actors:
                return said
            return f"{said}. The {self.num_actors} actors are at work for {self.at_work:.0%}; {enough} would do"
        making = dict(self.making)
        waiting_s, own_s = making.pop("waiting", 0.0), sum(making.values())
        if own_s > waiting_s:
            name = max(making, key=making.__getitem__)
            stages = ", and make the stages cheaper" if name == "placing" and self.has_stages else ""
            return (
                f"bound by this process, which is {name} batches for {making[name] / self._total_s:.0%} of the time: "
                f"use larger batches, and fewer or smaller fields{stages}"
            )
        name, total_s = max(self.reading, key=self.reading.__getitem__, default="reading"), sum(self.reading.values())
        part = f"{self.reading.get(name, 0.0) / total_s if total_s else 0.0:.0%} of the reading"
        if not self.num_actors:
            return f"bound by {name} ({part}), in this process: use RaySource(source, num_actors=N)"
        at_work = self.at_work
        if self.at_work_while_waiting is not None:
            at_work = min(1.0, self.at_work_while_waiting / self._of_work)
        if at_work < AT_WORK:
            lost = f". {self.num_lost:,} requests were lost with their actors: see timeline()" if self.num_lost else ""
            return (
                f"bound by the way from the actors to here: the trainer waits {self.waits:.0%} of its time, and "
                f"while it waits the actors are at work for {at_work:.0%}. Look at the network and the object "
                f"store, and allow more bytes in flight (max_nbytes=){lost}"
            )
        if self.num_running is not None and self.num_running < self.num_actors:
            remedy = (
                f"{self.num_running} of {self.num_actors} actors run; the others start, were lost, or wait for room in "
                "the cluster (see `ray status`)"
            )
        elif enough is None or enough <= self.num_actors:
            remedy = "more actors would help"
        else:
            more = enough - self.num_actors
            remedy = f"{more} more {'actor' if more == 1 else 'actors'} would keep this trainer busy"
        return f"bound by {name} in the actors ({part}): {remedy}"

    @property
    def _total_s(self) -> float:
        return self.first_s + self.elapsed_s

    def _enough(self) -> int | None:
        """Actors that keep up with trainers that never wait; None where the trainer only takes batches."""
        own_s = self.elapsed_s - self.waited_s
        if not self.num_actors or own_s < _NO_WORK * self.elapsed_s:
            return None
        a_batch_s = sum(self.reading.values()) / self._of_work / (self.num_batches or 1)
        return max(1, math.ceil(a_batch_s * max(1, self.num_batches - 1) / own_s / 0.9))

    def __str__(self) -> str:
        rate = ""
        if self.records_per_s:
            here = "" if self.part == 1 else f" of all trainers, {self.records_per_s * self.part:,.0f} here"
            rate = f": {self.records_per_s:,.0f} records/s{here}"
        lines = [
            self.verdict,
            f"{self.num_batches:,} batches, {self.num_records:,} records; the first after {self.first_s:.2f} s, the "
            f"others in {self.elapsed_s:.2f} s{rate}{f'; in epoch {self.epoch}' if self.epoch else ''}",
        ]
        trainer = {"its own work": self.elapsed_s - self.waited_s, "waiting for a batch": self.waited_s}
        idle_s = max(0.0, self._total_s - sum(self.making.values()))
        lines += _rows("trainer since the first batch", trainer, self.elapsed_s)
        lines += _rows("making batches", {**self.making, "nothing to do": idle_s}, self._total_s)
        running = "" if self.num_running in (None, self.num_actors) else f"{self.num_running} of "
        who = f"reading, {running}{self.num_actors} actors" if self.num_actors else "reading, in this process"
        lines += _rows(who, self.reading, sum(self.reading.values()))
        lines += [f"skipped, {sum(self.skipped.values()):,} broken records:"] * bool(self.skipped)
        for (component, kind, file), count in sorted(self.skipped.items(), key=lambda of: -of[1])[:_MAX_SKIPPED_SHOWN]:
            lines.append(f"  {count:>9,} {component}{': ' * bool(component)}{kind}, in {file}")
        if self.padding.num_padded:
            lines.append(
                f"padding: {self.padding.share:.1%} of {self.padding.num_padded:,} values; in the order of the stream "
                f"it would be {self.padding.share_unsorted:.1%}"
            )
        return "\n".join(lines + self._mixture_table() + self._actor_table())

    @property
    def proportions(self) -> tuple[tuple[float, float], ...]:
        """For each component of a mixture, its share of the counted elements, and the share by its weight."""
        if not self.components:
            return ()
        wanted, achieved = (sum(of) or 1 for of in zip(*map(astuple, self.components), strict=True))
        return tuple((each.num_elements / achieved, each.num_positions / wanted) for each in self.components)

    def _mixture_table(self) -> list[str]:
        if not self.components:
            return []
        lines = [f"mixture, {sum(each.num_elements for each in self.components):,} {self.counted}:"]
        for index, (each, (achieved, wanted)) in enumerate(zip(self.components, self.proportions, strict=True)):
            name = f"component {index}"
            lines.append(f"  {name:<40} {each.num_elements:>11,} {achieved:>6.1%}, by weight {wanted:.1%}")
        return lines

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _actor_table(self) -> list[str]:
        """A line for each actor: rates and shares of the time for which it was there, memory, retries, cache hits."""
        if not self.actors:
            return []
        lines = ["actor   elements/s   MiB/s     there  at work  here    memory  retries  hits"]
        for actor, work in sorted(self.actors.items())[:_MAX_ACTORS_SHOWN]:
            memory = f"{work.max_rss_nbytes / 2**20:,.0f} MiB" if work.max_rss_nbytes else "-"
            up_s = work.up_s or math.inf
            lines.append(
                f"{actor:<6}{work.num_elements / up_s:>12,.0f}{work.nbytes / 2**20 / up_s:>8,.1f}"
                f"{work.up_s:>8,.1f} s{work.at_work:>9.0%}{work.here:>6.0%}{memory:>10}"
                f"{work.num_retries:>9,}{'-' if work.hits is None else format(work.hits, '.0%'):>6}"
            )
        if len(self.actors) > _MAX_ACTORS_SHOWN:
            lines.append(f"and {len(self.actors) - _MAX_ACTORS_SHOWN} actors more")
        return lines


def _rows(who: str, spent: Mapping[str, float], total_s: float) -> list[str]:
    lines = [f"{who}, {total_s:.2f} s:"]  # of which the percentages below are shares
    for name, seconds in sorted(spent.items(), key=lambda each: -each[1]):
        lines.append(f"  {name:<40.40} {seconds:>9.2f} s {seconds / total_s if total_s else 0:>6.1%}")
    return lines


class Timings:
    """Counts while a stream runs. skip_counts: of its consumer.

    The thread that makes batches uses `making`, the trainer's thread `taken`. Other threads see counts a moment late.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
        part: float = 1.0,
    ) -> None:
        self.making = Laps(clock)
        self.timeline = Timeline()
        self.skip_counts = SkipCounts()
        self._clock, self._now = clock, now
        self._reading: Counter[str] = Counter()
        self._actors: dict[int, ActorWork] = {}
        self._done: dict[int, WorkDone] = {}  # the last report of each
        self._part, self._sharing = part, 1
        self._read_since = 0.0
        self._num_batches = self._num_records = self._num_lost = 0
        self._first_s = self._elapsed_s = self._waited_s = self._began = self._taken_at = self._taken_clock = 0.0
        self._is_interrupted = False
        self._mixed: Proportions | None = None
        self._mixed_before: tuple[ComponentShare, ...] = ()
        self._padding = NO_PADDING

    def mixed(self, proportions: Proportions | None) -> None:
        """Event: a stream begins. proportions: counts the components of its mixture; None if it is no mixture."""
        self._mixed_before, self._mixed = self._components(), proportions

    def padded(self, padding: Padding) -> None:
        """Event: rows with this padding were cut into batches of about one length."""
        self._padding = Padding(*map(sum, zip(self._padding, padding, strict=True)))

    def _components(self) -> tuple[ComponentShare, ...]:
        now = () if self._mixed is None else self._mixed.shares()
        return tuple(map(ComponentShare.__add__, now, self._mixed_before)) if self._mixed_before and now else now

    def arrived(self, actor: int, block: Block, sharing: int = 1) -> None:
        """Event: a block of this actor is here. sharing: the trainers that asked for it."""
        if not self._actors:
            self._read_since = self._clock() - block.read_s
        last, self._sharing = self._done.get(actor), sharing
        self._actors[actor] = self._actors.get(actor, ActorWork()).plus(block, last)
        if block.done is not None and (last is None or not block.done.is_older(last)):
            self._done[actor] = block.done
        self._reading.update(block.spent)
        now = self._now()
        self.timeline.read(actor, min(block.read_at or now, now), block.spent)

    def lost(self, actor: int) -> None:
        self._num_lost += 1
        self.timeline.lost(actor, self._now())

    def looked(self, part: float, actors: Collection[int]) -> None:
        """Event: the window is this full, from 0 to 1, and these actors run."""
        self.timeline.filled(part, self._now())
        self.timeline.running(actors, self._now())

    def taken(self, waited_s: float, num_records: int) -> None:
        """Event: the trainer has a batch of this many records, and waited this long for it."""
        now, clock = self._now(), self._clock()
        self.timeline.add(TRAINER, WAITING if self._num_batches else STARTING, now - waited_s, now)
        if not self._num_batches:
            self._first_s, self._began = waited_s, clock
        else:
            self._waited_s += waited_s
            self._elapsed_s += waited_s
            if not self._is_interrupted:
                self._elapsed_s += max(0.0, clock - waited_s - self._taken_clock)
                self.timeline.add(TRAINER, OWN_WORK, self._taken_at, now - waited_s)
            else:
                self.timeline.paused(self._taken_at, now - waited_s)
        self._taken_at, self._taken_clock, self._is_interrupted = now, clock, False
        self._num_batches += 1
        self._num_records += num_records

    def interrupted(self) -> None:
        """Event: the stream has ended, or moved: until the next batch the trainer does other work."""
        self._is_interrupted = True

    def stats(
        self,
        num_actors: int | None,
        *,
        num_running: int | None = None,
        has_stages: bool = False,
        epoch: int | None = None,
    ) -> PipelineStats:
        """The counts up to now. num_actors: wanted, 0 once closed, None in one process. epoch: the current one."""
        num_running = num_running if num_actors else None
        num_actors = 0 if num_actors is None else num_actors or len(self._actors)
        up_s = self.timeline.up_s(self._taken_at) if num_actors else {}
        return PipelineStats(
            self._num_batches,
            self._num_records,
            self._first_s,
            self._elapsed_s,
            self._waited_s,
            dict(self.making.spent),
            dict(self._reading),
            {actor: replace(self._actors.get(actor, ActorWork()), up_s=seconds) for actor, seconds in up_s.items()},
            num_actors,
            self._part,
            self._sharing,
            max(0.0, self._read_since - self._began + self._first_s) if self._num_batches else 0.0,
            self._num_lost,
            has_stages,
            num_running,
            self.timeline.at_work_while_waiting(self._taken_at) if num_actors else None,
            dict(self.skip_counts.of),
            self._components(),
            epoch,
            "elements" if self._mixed is None else self._mixed.counted,
            self._padding,
        )
