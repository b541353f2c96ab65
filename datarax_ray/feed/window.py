"""The window: which chunks are in flight, as a machine without I/O. Events go in, parts to ask for come out.

    part:   waiting -> asked -> arrived          lost: asked -> waiting, with one more attempt
    chunk:  opened (in order) -> complete (all parts arrived) -> released (in order)

Its bound is in bytes: complete chunks count with what they hold, others with at least the largest bytes per position
seen so far. Chunks grow from small, so that the first batch comes soon, to a size at which a block is
worth its overhead.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from datarax_ray.plan.order import Order
from datarax_ray.plan.packing import Documents
from datarax_ray.plan.position import Rows
from datarax_ray.plan.shards import Layout, Ticket, owners_in

# An object costs the driver 1 ms of CPU and more whatever its size. Measured with blocks of 1, 4, 8 and 16 MiB, driver,
# actors and Ray together: 57, 36, 36 and 25 us for a record of 4 KB.
TARGET_BLOCK_NBYTES = 16 * 2**20
# A part of tiny records is bounded by time, not bytes: 2**15 random records take an actor about 0.1 s.
MAX_PART_RECORDS = 2**15
# Rows of a part where whole groups of them are read as columns, at a tenth of that: 8 MiB of 64-byte rows.
MAX_PART_ROWS = 2**17
# Chunks that the window's bytes are divided into: one delivered, the others read meanwhile. More, and blocks get small.
DEPTH = 4
MAX_OPEN_CHUNKS = 16
GROWTH = 4  # of one chunk over the last: the size is right after a few chunks, and no guess is far off
FIRST_CHUNK_RECORDS = 256
# An epoch of a small shuffled dataset costs its whole table, 3 to 9 ms however few its records, so a chunk of 2**15
# positions of 10 records would take half a minute. 64 are kept by the cipher for those who share an order.
MAX_CHUNK_EPOCHS = 64
MAX_ATTEMPTS = 5


@dataclass(frozen=True)
class Part:
    """One actor's part of one chunk. attempt: 0 at first, one more each time that it was lost."""

    chunk: int
    index: int
    actor: int
    ticket: Ticket
    attempt: int = 0


@dataclass
class _Chunk:
    """A chunk in flight. arrived: bytes of each part that is there, by its index."""

    number: int
    start: int
    stop: int
    parts: list[Part]
    arrived: dict[int, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return len(self.arrived) == len(self.parts)


class Window:
    """The ordered, bounded set of chunks in flight over the positions [start, stop).

    owners: actor of each shard. rows: the one trainer's rows to ask for, None for all. documents: what to ask for where
    elements are to be packed. chunk_size: positions in a chunk, None to choose by the bytes that arrive, from
    first_chunk_size on. max_nbytes: bound on what is in flight and not yet released.
    """

    def __init__(
        self,
        order: Order,
        layout: Layout,
        owners: Sequence[int],
        *,
        start: int,
        stop: int | None,
        rows: Rows | None = None,
        documents: Documents | None = None,
        chunk_size: int | None = None,
        first_chunk_size: int = FIRST_CHUNK_RECORDS,
        max_nbytes: int,
    ) -> None:
        self._order = order
        self._layout = layout
        self._owners = tuple(owners)
        self._next = start
        self._stop = stop
        self._rows = rows
        self._documents = documents
        self._chunk_size = chunk_size
        self._max_nbytes = max_nbytes
        self._chunks: deque[_Chunk] = deque()
        self._waiting: list[Part] = []
        self._num_opened = 0
        self._max_size = MAX_CHUNK_EPOCHS * order.num_records if order.shuffle != "none" else sys.maxsize
        self._size = chunk_size or min(first_chunk_size, self._max_size)
        self._is_growing = chunk_size is None
        self._nbytes_per_position = 0.0  # the largest of any complete chunk; 0 until there is one
        self.num_retried = 0

    def asks(self) -> list[Part]:
        """The parts to send now: lost ones first, then those of the chunks that may be opened."""
        asks, self._waiting = self._waiting, []
        while self._may_open():
            asks += self._open().parts
        return asks

    @property
    def head(self) -> list[Part]:
        """The parts of the first chunk that have not arrived; [] when it is complete or nothing is open."""
        if not self._chunks:
            return []
        first = self._chunks[0]
        return [part for part in first.parts if part.index not in first.arrived]

    @property
    def head_range(self) -> tuple[int, int]:
        """The positions [start, stop) of the first chunk."""
        return self._chunks[0].start, self._chunks[0].stop

    @property
    def is_finished(self) -> bool:
        """Whether every chunk up to stop has been released."""
        return not self._chunks and self._next == self._stop

    @property
    def nbytes(self) -> int:
        """Estimate of the bytes in flight or arrived, and not released."""
        return sum(map(self._estimate, self._chunks))

    def arrived(self, part: Part, nbytes: int) -> None:
        """Event: the block of an asked part is here."""
        self._find(part, "arrived").arrived[part.index] = nbytes

    def lost(self, part: Part) -> None:
        """Event: an asked part will not come. It is asked again, of whoever owns its first shard now.

        Raises: RuntimeError after MAX_ATTEMPTS, naming the chunk and the actor.
        """
        chunk = self._find(part, "lost")
        if part.attempt + 1 >= MAX_ATTEMPTS:
            raise RuntimeError(
                f"positions [{chunk.start}, {chunk.stop}) were lost {MAX_ATTEMPTS} times, last by actor {part.actor}; "
                "the actors do not stay alive. Look at their logs (ray logs) and memory (num_cpus, memory per actor)."
            )
        self._waiting.append(self._ask_owner(replace(part, attempt=part.attempt + 1)))
        self.num_retried += 1

    def reassign(self, owners: Sequence[int]) -> None:
        """Event: shards have other owners. Holds for chunks opened, and parts lost, from now on."""
        self._owners = tuple(owners)
        self._waiting = [self._ask_owner(part) for part in self._waiting]

    def release(self) -> None:
        """Event: the consumer is done with the first chunk, which is complete."""
        if not self._chunks:
            raise RuntimeError("a chunk was released, and no chunk is open")
        chunk = self._chunks[0]
        if not chunk.is_complete:
            raise RuntimeError(f"chunk {chunk.number} was released before its parts {self.head} had arrived")
        self._chunks.popleft()
        per_position = sum(chunk.arrived.values()) / (chunk.stop - chunk.start)
        self._nbytes_per_position = max(self._nbytes_per_position, per_position)
        if self._chunk_size is None:
            size = next_chunk_size(
                self._size,
                self._nbytes_per_position,
                num_actors=len(set(self._owners)),
                max_nbytes=self._max_nbytes,
                max_part_records=MAX_PART_ROWS if self._layout.by_group else MAX_PART_RECORDS,
            )
            self._is_growing = size == GROWTH * self._size
            self._size = min(size, self._max_size)

    def _may_open(self) -> bool:
        if self._next == self._stop or len(self._chunks) >= MAX_OPEN_CHUNKS:
            return False
        if not self._chunks:
            return True  # one chunk is always in flight, or a bound below its size would stop the stream
        if not self._nbytes_per_position:
            return len(self._chunks) < 2  # nothing is known of the size of elements yet
        if self._is_growing and len(self._chunks) >= DEPTH:
            return False  # or the window fills with small chunks, each at the cost of a large one
        return self.nbytes + self._size * self._nbytes_per_position <= self._max_nbytes

    def _open(self) -> _Chunk:
        start = self._next
        stop = start + self._size if self._stop is None else min(start + self._size, self._stop)
        parts = owners_in(self._order, self._layout, self._owners, start, stop)
        chunk = _Chunk(
            self._num_opened,
            start,
            stop,
            [
                Part(
                    self._num_opened,
                    index,
                    actor,
                    Ticket(start, stop, self._layout, shards, self._rows, self._documents),
                )
                for index, (actor, shards) in enumerate(parts.items())
            ],
        )
        self._chunks.append(chunk)
        self._num_opened += 1
        self._next = stop
        return chunk

    def _ask_owner(self, part: Part) -> Part:
        """A lost part, addressed to whoever owns its first shard now, in place of what its chunk held."""
        assert part.ticket.shards is not None  # the window makes no ticket without
        asked = replace(part, actor=self._owners[part.ticket.shards[0]])
        self._chunks[part.chunk - self._chunks[0].number].parts[part.index] = asked
        return asked

    def _estimate(self, chunk: _Chunk) -> int:
        arrived = sum(chunk.arrived.values())
        if chunk.is_complete:
            return arrived
        # Not per part: parts are of any size, and the one that is missing may hold nearly all of the chunk.
        return max(arrived, math.ceil((chunk.stop - chunk.start) * self._nbytes_per_position))

    def _find(self, part: Part, event: str) -> _Chunk:
        index = part.chunk - self._chunks[0].number if self._chunks else -1
        chunk = self._chunks[index] if 0 <= index < len(self._chunks) else None
        if chunk is None or part not in chunk.parts or part in self._waiting:
            numbers = [chunk.number for chunk in self._chunks]
            raise RuntimeError(f"{event} {part}, which is not in flight; the open chunks are {numbers}")
        if part.index in chunk.arrived:
            raise RuntimeError(f"{event} {part}, which had arrived")
        return chunk


def next_chunk_size(
    size: int,
    nbytes_per_position: float,
    *,
    num_actors: int,
    max_nbytes: int,
    max_part_records: int = MAX_PART_RECORDS,
) -> int:
    """Positions in the next chunk: 16 MiB for each actor, at most a quarter of the window, at most 4x the last one.

    >>> next_chunk_size(256, 64.0, num_actors=2, max_nbytes=2**30)
    1024
    >>> next_chunk_size(65536, 64.0, num_actors=2, max_nbytes=2**30)
    65536
    >>> next_chunk_size(256, 600_000.0, num_actors=2, max_nbytes=2**30)
    55
    """
    target = min(num_actors * TARGET_BLOCK_NBYTES, max_nbytes // DEPTH)
    ideal = int(target / max(nbytes_per_position, 1.0))
    return max(1, min(ideal, num_actors * max_part_records, GROWTH * size))
