"""The window: which chunks are in flight, as a machine without I/O. Events go in, parts to ask for come out.

    part:   waiting -> asked -> arrived          lost: asked -> waiting, with one more attempt; or split into several
                                                 doubted: asked -> waiting, of another actor
    chunk:  opened (in order) -> complete (all parts arrived) -> released (in order)

Its bound is in bytes: complete chunks count with what they hold, others with at least the largest bytes per position
seen lately. Chunks grow from small, so that the first batch comes soon, to a size at which a block is worth its
overhead, or takes a second to read: what is in flight is what a lost actor costs, and what an interrupt waits for.

A part that is lost says nothing of its records: who kills actors from outside kills them at something. So it is asked
for again as often as it takes, in smaller and smaller pieces, until what ends its process stands alone; that is then
read in a process of its own, whose end is told by the actor that lives on (see actors.trial), as any other failure.
What of its chunk is behind such a failure is then asked for no more. Until that is found nothing new is asked for, nor
again what was lost of others' partitions or of later chunks: more than one thing may end actors.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from datarax_ray.plan.homes import assign_at_home
from datarax_ray.plan.partitions import assign
from datarax_ray.plan.requests import Request
from datarax_ray.plan.scheduling import MAX_PART_RECORDS, Scheduler

# An object costs the driver 1 ms of CPU and more whatever its size. Measured with blocks of 1, 4, 8 and 16 MiB, driver,
# actors and Ray together: 57, 36, 36 and 25 us for a record of 4 KB.
TARGET_BLOCK_NBYTES = 16 * 2**20
# Chunks that the window's bytes are divided into: one delivered, the others read meanwhile. More, and blocks get small.
DEPTH = 4
# As many more of many actors, in blocks that are smaller by that: the slowest of them take longer, by their usual time.
MANY_ACTORS, DEPTH_OF_MANY = 16, 8
MAX_OPEN_CHUNKS = 16
# Where trainers ask the same actors for rows of their own, what one has in flight stands in line before the others'. So
# each has as many fewer chunks open, but these: one that is delivered, one that is read, one to go on with.
MIN_OPEN_CHUNKS = 3
GROWTH = 4  # of one chunk over the last: the size is right after a few chunks, and no guess is far off
# Two of them are asked for before anything is known: 16 decoded images are 10 MB, 16 slow transforms a few seconds.
FIRST_CHUNK_RECORDS = 16
# Parts that take longer to read are made smaller. A second is 10 times what a block costs Ray at the least.
TARGET_READ_S = 1.0
# And all trainers' parts of one chunk together, of which each reads some: what stands in line before one another. But
# as long as requests for all actors cost a driver a quarter of its time, at a millisecond for each.
TARGET_ALL_READ_S, MIN_READ_S_OF_ACTOR = 4.0, 0.004
# What is left, after each chunk, of the largest bytes per position seen so far: an outlier of 20 times the usual is
# forgotten after 60 chunks of its size, or one that is 60 times as large: what few positions held is no word on many.
DECAY, MAX_FADING = 0.95, 60.0
# What is left, after each chunk, of what the chunks before it say of the time that a part takes, by their sizes: the
# small ones of the beginning, whose time is that of requests and not of records, are outweighed by the next.
TIME_DECAY = 0.75
# Losses of a part before it is split: most actors die of something else, and then the whole is the cheapest.
SPLIT_AFTER = 2
# Losses of a single position before it is tried in a process of its own; which takes seconds, and an actor that is
# killed again and again may not have them, so every other attempt from there on is a plain one.
TRY_AFTER = 3


@dataclass(frozen=True)
class Part:
    """One actor's part of one chunk. attempt: 0 at first, one more each time that it was lost."""

    chunk: int
    index: int
    actor: int
    request: Request
    attempt: int = 0

    def __hash__(self) -> int:
        return hash((self.chunk, self.index, self.actor, self.attempt))  # not of the request: it names many partitions

    @property
    def is_single(self) -> bool:
        """Whether it is one position, and cannot be made smaller."""
        return self.request.stop - self.request.start == 1

    @property
    def is_trial(self) -> bool:
        """Whether it is to be read in a process of its own."""
        return self.is_single and self.attempt >= TRY_AFTER and (self.attempt - TRY_AFTER) % 2 == 0


@dataclass
class _Chunk:
    """A chunk in flight.

    size: positions that may have an element.
    asked_size: as many as it was to have.
    arrived: bytes of each part that is there.
    nbytes: of all these.
    read_s: that reading these took, together.
    suspects: parts that were lost twice, or are pieces of such, and have not arrived.
    displaced: parts that were lost, each with the actor that was asked for it.
    """

    number: int
    start: int
    stop: int
    size: int
    asked_size: int
    parts: list[Part]
    arrived: dict[int, int] = field(default_factory=dict)
    nbytes: int = 0
    read_s: float = 0.0
    suspects: set[int] = field(default_factory=set)
    displaced: dict[int, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return len(self.arrived) == len(self.parts)


class Window:
    """The ordered, bounded set of chunks in flight of what a scheduler deals, and who owns the partitions of it.

    Nothing may be asked before the first `reassign`.

    chunk_size: positions in a chunk, None to choose by the bytes that arrive and the time that takes.
    max_nbytes: bound on what is in flight and not yet released.
    max_actor_nbytes: likewise, for each of the actors that get requests; None for no bound of its own.
    block_nbytes: how large a block should be.

    allowed: how much of max_nbytes holds now, 1.0 for all of it; whoever drives the window says so at any time. One
    chunk is in flight whatever it is. num_sharing: the trainers of one job that are dealt the same chunks. These are
    cut as if just they were there, since each learns of other drivers at another time.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        chunk_size: int | None = None,
        max_nbytes: int,
        max_actor_nbytes: int | None = None,
        block_nbytes: int = TARGET_BLOCK_NBYTES,
        num_sharing: int = 1,
    ) -> None:
        self.scheduler = scheduler
        self._num_sharing = num_sharing
        self._chunk_size = chunk_size
        self._max_nbytes = max_nbytes
        self._max_actor_nbytes = max_actor_nbytes
        self._block_nbytes = block_nbytes
        self._chunks: deque[_Chunk] = deque()
        self._waiting: list[Part] = []
        self._num_opened = 0
        limits = scheduler.limits
        self._size = chunk_size or min(FIRST_CHUNK_RECORDS, limits.first_size, limits.max_size)
        self._partitioning = scheduler.partitioning
        self._owners: tuple[int, ...] = ()  # of each partition of it
        self._is_growing = chunk_size is None
        self._nbytes_per_position = 0.0  # the largest of any complete chunk of late; 0 until there is one
        self._nbytes_size = 1  # positions of that chunk
        self._part_s = self._part_size = 0.0  # that parts took on average, and of how many positions their chunks were
        self.allowed = 1.0

    def asks(self) -> list[Part]:
        """The parts to send now, in order: lost ones first, then those of the chunks that may be opened."""
        asks, self._waiting = sorted(self._waiting, key=lambda part: (part.chunk, part.request.start)), []
        chunk = next((chunk for chunk in self._chunks if chunk.suspects), None)
        if chunk is not None:
            owned = min(chunk.parts[index].request.first_partition for index in chunk.suspects)
            last = chunk.number, owned
            self._waiting = [part for part in asks if (part.chunk, part.request.first_partition) > last]
            return [part for part in asks if (part.chunk, part.request.first_partition) <= last]
        while self._may_open():
            asks += self._open().parts
        return asks

    @property
    def is_ready(self) -> bool:
        """Whether the first chunk is complete."""
        return bool(self._chunks) and self._chunks[0].is_complete

    @property
    def head(self) -> list[Part]:
        """The parts of the first chunk that have not arrived; [] when it is complete or nothing is open."""
        if not self._chunks:
            return []
        first = self._chunks[0]
        return [part for part in first.parts if part.index not in first.arrived]

    @property
    def num_open(self) -> int:
        """Chunks in flight or complete, and not released."""
        return len(self._chunks)

    @property
    def head_number(self) -> int:
        """Of the first chunk."""
        return self._chunks[0].number

    @property
    def head_range(self) -> tuple[int, int]:
        """The positions [start, stop) of the first chunk."""
        return self._chunks[0].start, self._chunks[0].stop

    @property
    def is_finished(self) -> bool:
        """Whether every chunk up to the scheduler's stop has been released."""
        return not self._chunks and self.scheduler.is_exhausted

    @property
    def nbytes(self) -> int:
        """Estimate of the bytes in flight or arrived, and not released."""
        return sum(map(self._estimate, self._chunks))

    @property
    def fill(self) -> float:
        """How much of what may be in flight is, from 0 to 1."""
        return min(1.0, self.nbytes / bound) if (bound := self._bound) else 0.0  # which is 0 while nobody is asked

    def arrived(self, part: Part, nbytes: int, read_s: float = 0.0) -> None:
        """Event: the block of an asked part is here. read_s: what reading it took, 0 where that is not known."""
        chunk = self._find(part, "arrived")
        chunk.arrived[part.index] = nbytes
        chunk.suspects.discard(part.index)
        chunk.nbytes += nbytes
        chunk.read_s += read_s

    def lost(self, part: Part, *, was_read: bool = True, whole: Part | None = None) -> None:
        """Event: an asked part will not come. It is asked again, of whoever owns it now; split, if that may help.

        was_read: whether its actor was at it, so that it may be what ended the actor, and did not only stand in line.
        whole: what to ask for in place of a part that was only a second opinion, None for the part itself.
        """
        chunk = self._find(part, "lost")
        chunk.displaced[part.index] = part.actor
        again = self._again(chunk, whole or part, was_read)
        self._waiting += [self._ask_owner(each) for each in again]

    def displaced(self) -> list[tuple[Part, Part]]:
        """The parts that were lost, asked of another actor, and whose actor is back: each with the part to ask for now.

        They stand behind what the other one was asked for before, and the one that is back has nothing to do. Not what
        may be what ends actors. Where files lie on some nodes alone, of whoever owns them now.
        """
        found: list[tuple[Part, Part]] = []
        for chunk in self._chunks:
            for index, before in sorted(chunk.displaced.items()):
                part = chunk.parts[index]
                if index not in chunk.arrived.keys() | chunk.suspects and part not in self._waiting:
                    owner = self._owners[part.request.first_partition]
                    is_back = before in self._owners and not self.scheduler.limits.homes
                    again = replace(part, actor=before if is_back else owner)
                    found += [(part, again)] if again != part else []
        return found

    def moved(self, part: Part, other: Part) -> None:
        """Event: another actor was asked for it instead."""
        self._find(part, "moved").parts[part.index] = other

    def doubted(self, part: Part, other: Part) -> None:
        """Event: what an asked part brought is not believed, or not yet; this is asked for in its place."""
        self._find(part, "doubted").parts[part.index] = other
        self._waiting.append(other)

    def failed(self, chunk: int, position: int) -> list[Part]:
        """Event: the stream ends at this position of a chunk in flight. Its parts behind that need not arrive.

        Returns those that have not.
        """
        found = self._chunks[chunk - self._chunks[0].number]
        behind = [part for part in found.parts if part.index not in found.arrived and part.request.start > position]
        found.arrived |= dict.fromkeys((part.index for part in behind), 0)
        found.suspects -= found.arrived.keys()
        self._waiting = [part for part in self._waiting if part not in behind]
        return behind

    def reassign(
        self,
        actors: Sequence[int],
        weights: Mapping[int, float] | None = None,
        nodes: Mapping[int, str] | None = None,
    ) -> bool:
        """Event: other actors or weights (see plan.partitions.assign), for chunks opened and parts lost from now on.

        Those who share the actors are to ask the same of them, whenever each began: so nothing counts but who is there.
        nodes: of each actor, where that counts (ChunkLimits.homes). Returns whether there is an owner for everything;
        otherwise nothing may be asked for until there is.
        """
        limits = self.scheduler.limits
        homes, actors = limits.homes, actors[: limits.max_actors]
        self.scheduler.fit(len(actors))
        before, self._partitioning = self._partitioning, self.scheduler.partitioning
        last = self._owners
        if limits.is_aligned:
            last = ()
        elif last and self._partitioning != before:
            coarser = (self._partitioning.coarser(s, before) for s in range(self._partitioning.num_partitions))
            last = tuple(last[s] for s in coarser)
        if homes:
            owners = assign_at_home(self._partitioning, homes, nodes or {}, actors, last, weights)
            if owners is None:
                return False
        else:
            owners = assign(self._partitioning, actors, last, weights)
        self._owners = owners
        self._waiting = [self._ask_owner(part) for part in self._waiting]
        return True

    def release(self) -> None:
        """Event: the consumer is done with the first chunk, which is complete."""
        if not self._chunks:
            raise RuntimeError("a chunk was released, and no chunk is open")
        chunk = self._chunks[0]
        if not chunk.is_complete:
            raise RuntimeError(f"chunk {chunk.number} was released before its parts {self.head} had arrived")
        self._chunks.popleft()
        nbytes = chunk.nbytes / chunk.size
        faded = self._nbytes_per_position * DECAY ** min(MAX_FADING, max(1.0, chunk.size / self._nbytes_size))
        self._nbytes_per_position = max(nbytes, faded)
        if nbytes >= faded:
            self._nbytes_size = chunk.size
        self._part_s = chunk.read_s / max(1, len(chunk.parts)) + TIME_DECAY * self._part_s
        self._part_size = chunk.size + TIME_DECAY * self._part_size
        if self._chunk_size is None:
            limits = self.scheduler.limits
            size = next_chunk_size(
                self._size,
                self._nbytes_per_position,
                self._part_s / self._part_size,
                num_actors=self._num_actors,
                max_nbytes=self._bound_of(1 / self._num_sharing) if limits.is_aligned else self._bound,
                max_part_size=limits.max_part_size,
                max_read_s=min(
                    TARGET_READ_S, limits.share * max(TARGET_ALL_READ_S, self._num_actors * MIN_READ_S_OF_ACTOR)
                ),
                block_nbytes=self._block_nbytes,
            )
            if limits.is_aligned:
                size = 1 << size.bit_length() - 1
            self._size = min(size, limits.max_size)
            self._is_growing = self._size > 2 * chunk.asked_size

    def _may_open(self) -> bool:
        most = max(MIN_OPEN_CHUNKS, round(MAX_OPEN_CHUNKS * self.scheduler.limits.share))
        if len(self._chunks) >= most or self.scheduler.is_exhausted:
            return False
        if not self._chunks:
            return True  # one chunk is always in flight, or a bound below its size would stop the stream
        if not self._nbytes_per_position:
            return len(self._chunks) < 2  # nothing is known of the size of elements yet
        if self._is_growing and len(self._chunks) >= DEPTH:
            return False  # or the window fills with small chunks, each at the cost of a large one
        return self.nbytes + self._size * self._nbytes_per_position <= self._bound

    @property
    def _bound(self) -> int:
        return self._bound_of(self.allowed)

    def _bound_of(self, allowed: float) -> int:
        nbytes = max(1, int(self._max_nbytes * allowed))
        return nbytes if self._max_actor_nbytes is None else min(nbytes, self._max_actor_nbytes * self._num_actors)

    @property
    def _num_actors(self) -> int:
        """Actors that get requests."""
        return len(set(self._owners))

    def _open(self) -> _Chunk:
        dealt = self.scheduler.next_chunk(self._size, self._owners)
        parts = [Part(self._num_opened, index, actor, request) for index, (actor, request) in enumerate(dealt.requests)]
        chunk = _Chunk(self._num_opened, dealt.start, dealt.stop, dealt.size, self._size, parts)
        self._chunks.append(chunk)
        self._num_opened += 1
        return chunk

    def _again(self, chunk: _Chunk, part: Part, was_read: bool) -> list[Part]:
        """What to ask for in place of a part that was lost. Pieces of it are parts of the chunk of their own."""
        if not was_read:
            return [part]
        is_to_split = not part.is_single and part.attempt + 1 >= SPLIT_AFTER
        requests = self.scheduler.split(part.request) if is_to_split else ()
        if part.attempt + 1 >= SPLIT_AFTER:
            chunk.suspects.add(part.index)
        if not requests:
            return [replace(part, attempt=part.attempt + 1)]
        indexes = [part.index, *range(len(chunk.parts), len(chunk.parts) + len(requests) - 1)]
        pieces = [
            Part(part.chunk, index, part.actor, request, SPLIT_AFTER - 1)
            for index, request in zip(indexes, requests, strict=True)
        ]
        chunk.parts += pieces[1:]
        chunk.suspects.update(indexes)
        return pieces

    def _ask_owner(self, part: Part) -> Part:
        """A lost part, addressed to whoever owns what it asks for now, in place of what its chunk held."""
        asked = replace(part, actor=self._owners[part.request.first_partition])
        self._chunks[part.chunk - self._chunks[0].number].parts[part.index] = asked
        return asked

    def _estimate(self, chunk: _Chunk) -> int:
        if chunk.is_complete:
            return chunk.nbytes
        # Not per part: parts are of any size, and the one that is missing may hold nearly all of the chunk.
        return max(chunk.nbytes, math.ceil(chunk.size * self._nbytes_per_position))

    def _find(self, part: Part, event: str) -> _Chunk:
        index = part.chunk - self._chunks[0].number if self._chunks else -1
        chunk = self._chunks[index] if 0 <= index < len(self._chunks) else None
        if chunk is None or chunk.parts[part.index : part.index + 1] != [part] or part in self._waiting:
            numbers = [chunk.number for chunk in self._chunks]
            raise RuntimeError(f"{event} {part}, which is not in flight; the open chunks are {numbers}")
        if part.index in chunk.arrived:
            raise RuntimeError(f"{event} {part}, which had arrived")
        return chunk


def next_chunk_size(
    size: int,
    nbytes_per_position: float,
    read_s_per_position: float = 0.0,
    *,
    num_actors: int,
    max_nbytes: int,
    max_part_size: int = MAX_PART_RECORDS,
    max_read_s: float = TARGET_READ_S,
    block_nbytes: int = TARGET_BLOCK_NBYTES,
) -> int:
    """Positions in the next chunk: block_nbytes for each actor, at most a quarter of the window (an eighth of that
    of many actors) and 4x the last one.

    read_s_per_position: seconds that a part took on average, for each position of the whole chunk; at most max_read_s
    are asked of an actor. Not of the slowest part: of a thousand some are always slow, and others are asked for what
    they are late with (feed.backups).

    >>> next_chunk_size(256, 64.0, num_actors=2, max_nbytes=2**30)
    1024
    >>> next_chunk_size(65536, 64.0, num_actors=2, max_nbytes=2**30)
    65536
    >>> next_chunk_size(256, 600_000.0, num_actors=2, max_nbytes=2**30)
    55
    >>> next_chunk_size(256, 64.0, 0.1, num_actors=2, max_nbytes=2**30)
    10
    """
    target = min(num_actors * block_nbytes, max_nbytes // (DEPTH if num_actors <= MANY_ACTORS else DEPTH_OF_MANY))
    ideal = int(target / max(nbytes_per_position, 1.0))
    if read_s_per_position > 0:
        ideal = min(ideal, round(max_read_s / read_s_per_position))
    return max(1, min(ideal, num_actors * max_part_size, GROWTH * size))
