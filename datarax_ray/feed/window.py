"""The window: which chunks are in flight, as a machine without I/O. Events go in, parts to ask for come out.

    part:   waiting -> asked -> arrived          lost: asked -> waiting, with one more attempt; or split into several
    chunk:  opened (in order) -> complete (all parts arrived) -> released (in order)

The bound is in bytes. A complete chunk counts with its bytes, any other chunk with at least the largest bytes per
position seen lately. Chunks begin small, so that the first batch comes soon, and grow until a block is worth its
overhead or takes a second to read: a lost actor, and an interrupt, cost what is in flight.

A lost part proves nothing about its records: an actor that is killed from outside was reading something. So the part is
asked for again and again, in smaller and smaller pieces, until the record that ends its process stands alone. This
record is read in a process of its own, and the actor reports the end of that process (see actors.trial) as any other
failure. Later parts of the chunk are then asked for no more. During this search the window asks for nothing new, and
for no lost part of later chunks or other partitions: several records may end actors.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from datarax_ray.plan.partitions import assign
from datarax_ray.plan.requests import Request
from datarax_ray.plan.scheduling import MAX_PART_RECORDS, Scheduler

# An object costs the driver at least 1 ms of CPU, and as much elsewhere, whatever its size. Measured with blocks of 1,
# 4, 8 and 16 MiB, for the driver, the actors and Ray together: 57, 36, 36 and 25 us for a record of 4 KB. Blocks of 16,
# 24, 32 and 64 MiB, the driver of actors that read nothing: 0.38, 0.35, 0.30, 0.27 s a GB; of actors that read records
# of 150 KB, 16 and 24 MiB, all processes: 430 and 369 us. malloc keeps no piece of more than 32 MiB.
TARGET_BLOCK_NBYTES = 24 * 2**20
# In one process a block costs nothing by itself, and a batch shows its block where it is a good part of the block.
OWN_BLOCK_NBYTES = 16 * 2**20
# Chunks that share the window's bytes: one is delivered, the others are read meanwhile. More make blocks small.
DEPTH = 4
# Bytes in flight, if not given: enough for blocks of the size at which they are cheap, from 4 actors.
DEFAULT_MAX_NBYTES = DEPTH * 4 * TARGET_BLOCK_NBYTES
# Of the object stores. The rest is for batches, for what Ray gives back late, and for others.
_MOST_OF_STORE = 0.4
# With many actors more and smaller chunks: the slowest actors take longer by their usual time.
MANY_ACTORS, DEPTH_OF_MANY = 16, 8
MAX_OPEN_CHUNKS = 16
# Trainers that ask the same actors for rows of their own stand in line behind one another. So each has fewer chunks
# open, but at least these: one that is delivered, one that is read, one to go on with.
MIN_OPEN_CHUNKS = 3
GROWTH = 4  # of one chunk over the last: the size is right after a few chunks, and no guess is far off
# Two such chunks are asked for before anything is known: 16 decoded images are 10 MB, 16 slow transforms take seconds.
FIRST_CHUNK_RECORDS = 16
# Parts that take longer to read become smaller. A second is 10 times the least cost of a block in Ray.
TARGET_READ_S = 1.0
# The same for the parts of all trainers in one chunk together, which stand in line before one another. But not less
# than makes the requests to all actors, a millisecond each, a quarter of a driver's time.
TARGET_ALL_READ_S, MIN_READ_S_OF_ACTOR = 4.0, 0.004
# The factor by which the largest bytes per position seen so far fade with each chunk: an outlier of 20 times the usual
# is forgotten after 60 chunks of its size, or one chunk 60 times as large.
DECAY, MAX_FADING = 0.95, 60.0
# The factor by which the times of earlier chunks fade, weighted by their sizes. The small chunks of the beginning,
# whose time is the time of requests and not of records, are soon outweighed.
TIME_DECAY = 0.75
# Losses of a part before it is split: most actors die of something else, and then the whole part is cheapest.
SPLIT_AFTER = 2
# Losses of a single position before it is tried in a process of its own. A trial takes seconds, which an actor that is
# killed again and again may not have, so every other attempt from there on is plain.
TRY_AFTER = 3


@dataclass(frozen=True)
class Bound:
    """How many bytes may be in flight to all drivers.

    nbytes: to all drivers together; None to follow the actors: blocks of the best size from each actor to each driver.
    node_nbytes, all_nbytes: the object store of an average node, and of all nodes; most of it stays free with None.
    """

    nbytes: int | None
    node_nbytes: float = math.inf
    all_nbytes: float = math.inf

    def of_each(self, num_actors: int, num_drivers: int = 1) -> int:
        """The bound of each driver; at least 1 byte, with which a window has one chunk.

        >>> Bound(2**30).of_each(num_actors=64, num_drivers=4) == 2**28
        True
        """
        if self.nbytes is not None:
            return max(1, self.nbytes // num_drivers)
        wanted = max(DEFAULT_MAX_NBYTES, num_actors * DEPTH * TARGET_BLOCK_NBYTES)
        room = _MOST_OF_STORE * min(self.node_nbytes, self.all_nbytes / num_drivers)
        return int(min(wanted, room)) or DEFAULT_MAX_NBYTES


@dataclass(frozen=True)
class Part:
    """One actor's part of one chunk. attempt: 0 at first, one more after each loss."""

    chunk: int
    index: int
    actor: int
    request: Request
    attempt: int = 0

    def __hash__(self) -> int:
        return hash((self.chunk, self.index, self.actor, self.attempt))  # the request names many partitions

    @property
    def size(self) -> int:
        """Number of positions; a part of one position cannot be split."""
        return self.request.stop - self.request.start

    @property
    def is_trial(self) -> bool:
        """Whether to read the part in a separate process."""
        return self.attempt >= TRY_AFTER and (self.attempt - TRY_AFTER) % 2 == 0 and self.size == 1


@dataclass
class _Chunk:
    """A chunk in flight.

    size: positions that may have an element.
    asked_size: the size that the window asked the scheduler for.
    arrived: the bytes of each part that is here.
    nbytes, read_s: of all these parts together.
    suspects: parts that were lost twice, and pieces of such parts, until they arrive.
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

    @property
    def is_complete(self) -> bool:
        return len(self.arrived) == len(self.parts)

    @property
    def missing(self) -> list[Part]:
        return [part for part in self.parts if part.index not in self.arrived]


class Window:
    """The ordered, bounded set of chunks in flight, and the owners of the partitions. `reassign` comes first.

    chunk_size: positions in a chunk, None to choose by the bytes that arrive and the time that reading takes.
    max_nbytes: bound on the bytes in flight and not yet released.
    max_actor_nbytes: the same for each actor that gets requests; None for no such bound.
    block_nbytes: how large a block should be.
    batches: the begin of the first batch, and the size of a batch: a larger chunk ends with a batch, so that a batch
        can show its rows as they lie in a block. None if blocks have parts of batches only.
    num_sharing: the trainers of one job that have the same chunks. Chunk sizes count these trainers alone, since
        each trainer learns of other drivers at another time.

    allowed: the share of max_nbytes that holds now; may be set at any time. One chunk is in flight in any case.
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
        batches: tuple[int, int] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._batches = None if chunk_size else batches
        self._stop = 0 if batches is None else batches[0]  # of the last chunk
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
        self._num_actors = 0  # actors that get requests
        self._is_growing = chunk_size is None
        self._nbytes_per_position = 0.0  # the largest of any complete chunk of late; 0 until there is one
        self._nbytes_size = 1  # positions of that chunk
        self._part_s = self._part_size = 0.0  # that parts took on average, and of how many positions their chunks were
        self.allowed = 1.0

    def asks(self) -> list[Part]:
        """The parts to send now, in order: lost parts first, then the parts of chunks that may be opened."""
        asks, self._waiting = sorted(self._waiting, key=lambda part: (part.chunk, part.request.start)), []
        chunk = next((chunk for chunk in self._chunks if chunk.suspects), None)
        if chunk is not None:
            owned = min(chunk.parts[index].request.first_partition for index in chunk.suspects)
            last = chunk.number, owned
            self._waiting = [part for part in asks if (part.chunk, part.request.first_partition) > last]
            return [part for part in asks if (part.chunk, part.request.first_partition) <= last]
        while self._may_open():
            size = self._size if self._batches is None else whole_batches(self._size, self._stop, *self._batches)
            found = self.scheduler.next_chunk(size, self._owners)
            self._stop = found.stop
            parts = [Part(self._num_opened, nth, actor, request) for nth, (actor, request) in enumerate(found.requests)]
            self._chunks.append(_Chunk(self._num_opened, found.start, found.stop, found.size, self._size, parts))
            self._num_opened += 1
            asks += parts
        return asks

    @property
    def is_ready(self) -> bool:
        return bool(self._chunks) and self._chunks[0].is_complete

    @property
    def head(self) -> list[Part]:
        """The parts of the first chunk that have not arrived; [] when it is complete or nothing is open."""
        return [part for chunk in itertools.islice(self._chunks, 1) for part in chunk.missing]

    @property
    def num_open(self) -> int:
        """Chunks in flight or complete, and not released."""
        return len(self._chunks)

    @property
    def head_number(self) -> int:
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
        known = self._nbytes_per_position
        # Not per part: parts are of any size, and the one that is missing may hold nearly all of the chunk.
        return sum(
            chunk.nbytes if chunk.is_complete else max(chunk.nbytes, math.ceil(chunk.size * known))
            for chunk in self._chunks
        )

    @property
    def fill(self) -> float:
        """The share of the bound that is in flight, from 0 to 1."""
        bound = self._bound(self.allowed)  # 0 while nobody is asked
        return min(1.0, self.nbytes / bound) if bound else 0.0

    def arrived(self, part: Part, nbytes: int, read_s: float = 0.0) -> None:
        """Event: the block of an asked part is here. read_s: seconds that reading took, 0 where not known."""
        chunk = self._chunk_of(part)
        chunk.arrived[part.index] = nbytes
        chunk.suspects.discard(part.index)
        chunk.nbytes += nbytes
        chunk.read_s += read_s

    def lost(self, part: Part, *, was_read: bool = True) -> None:
        """Event: an asked part will not come. Its owner is asked again, for pieces of the part if pieces may help.

        was_read: whether an actor was reading the part, which may have ended the actor.
        """
        again = self._again(self._chunk_of(part), part, was_read)
        self._waiting += [self._ask_owner(each) for each in again]

    def failed(self, chunk: int, position: int) -> list[Part]:
        """Event: the stream ends at this position of a chunk in flight. Returns the missing parts behind it."""
        found = self._chunks[chunk - self._chunks[0].number]
        behind = [part for part in found.missing if part.request.start > position]
        found.arrived |= dict.fromkeys((part.index for part in behind), 0)
        found.suspects -= found.arrived.keys()
        self._waiting = [part for part in self._waiting if part not in behind]
        return behind

    def reassign(self, actors: Sequence[int], weights: Mapping[int, float] | None = None) -> None:
        """Event: other actors or weights (see plan.partitions.assign), for chunks opened and parts lost from now on.

        Trainers that share actors must send the same requests, whenever each began, so earlier owners do not count.
        """
        limits = self.scheduler.limits
        actors = actors[: limits.max_actors]
        self.scheduler.fit(len(actors))
        before, self._partitioning = self._partitioning, self.scheduler.partitioning
        last = self._owners
        if limits.is_aligned:
            last = ()
        elif last and self._partitioning != before:
            coarser = (self._partitioning.coarser(s, before) for s in range(self._partitioning.num_partitions))
            last = tuple(last[s] for s in coarser)
        self._owners = assign(self._partitioning, actors, last, weights)
        self._num_actors = len(set(self._owners))
        self._waiting = [self._ask_owner(part) for part in self._waiting]

    def release(self) -> None:
        """Event: the consumer is done with the first chunk, which is complete."""
        chunk = self._chunks[0]
        assert chunk.is_complete, chunk
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
                max_nbytes=self._bound(1 / self._num_sharing if limits.is_aligned else self.allowed),
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
            return True  # otherwise a bound below the size of a chunk would stop the stream
        if not self._nbytes_per_position:
            return len(self._chunks) < 2  # the size of elements is not known yet
        if self._is_growing and len(self._chunks) >= DEPTH:
            return False  # or the window fills with small chunks, each at the cost of a large one
        return self.nbytes + self._size * self._nbytes_per_position <= self._bound(self.allowed)

    def _bound(self, allowed: float) -> int:
        nbytes = max(1, int(self._max_nbytes * allowed))
        return nbytes if self._max_actor_nbytes is None else min(nbytes, self._max_actor_nbytes * self._num_actors)

    def _again(self, chunk: _Chunk, part: Part, was_read: bool) -> list[Part]:
        """The parts to ask for in place of a lost part: itself, or its pieces as parts of the chunk."""
        if not was_read:
            return [part]
        requests: Sequence[Request] = ()
        if part.attempt + 1 >= SPLIT_AFTER:
            chunk.suspects.add(part.index)
            requests = self.scheduler.split(part.request) if part.size > 1 else ()
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
        """A lost part, addressed to its owner, in place of the chunk's part of this index."""
        asked = replace(part, actor=self._owners[part.request.first_partition])
        self._chunks[part.chunk - self._chunks[0].number].parts[part.index] = asked
        return asked

    def _chunk_of(self, part: Part) -> _Chunk:
        chunk = self._chunks[part.chunk - self._chunks[0].number]
        assert chunk.parts[part.index] == part, part
        assert part not in self._waiting, part
        assert part.index not in chunk.arrived, part
        return chunk


def whole_batches(size: int, start: int, first: int, batch_size: int) -> int:
    """Positions in a chunk from start on that are at most `size`, and end with a batch where that is possible.

    >>> whole_batches(111, 0, 0, 64), whole_batches(111, 16, 0, 64), whole_batches(40, 0, 0, 64)
    (64, 48, 40)
    """
    excess = (start + size - first) % batch_size
    return size - excess if excess < size else size


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
    """Positions in the next chunk: block_nbytes for each actor, at most 1/4 of the window (1/8 with many actors) and 4x
    the last size.

    read_s_per_position: average seconds of a part, for each position of the whole chunk; an actor is asked for at most
    max_read_s. The slowest part does not count: among a thousand some are always slow, and backups help with these.

    >>> next_chunk_size(256, 64.0, num_actors=2, max_nbytes=2**30)
    1024
    >>> next_chunk_size(65536, 64.0, num_actors=2, max_nbytes=2**30)
    65536
    >>> next_chunk_size(256, 600_000.0, num_actors=2, max_nbytes=2**30)
    83
    >>> next_chunk_size(256, 64.0, 0.1, num_actors=2, max_nbytes=2**30)
    10
    """
    target = min(num_actors * block_nbytes, max_nbytes // (DEPTH if num_actors <= MANY_ACTORS else DEPTH_OF_MANY))
    ideal = int(target / max(nbytes_per_position, 1.0))
    if read_s_per_position > 0:
        ideal = min(ideal, round(max_read_s / read_s_per_position))
    return max(1, min(ideal, num_actors * max_part_size, GROWTH * size))
