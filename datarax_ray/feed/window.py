"""The window: which chunks are in flight, as a machine without I/O. Events go in, parts to ask for come out.

    part:   waiting -> asked -> arrived          lost: asked -> waiting, with one more attempt
    chunk:  opened (in order) -> complete (all parts arrived) -> released (in order)

Its bound is in bytes: complete chunks count with what they hold, others with at least the largest bytes per position
seen so far. Chunks grow from small, so that the first batch comes soon, to a size at which a block is
worth its overhead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from datarax_ray.feed.dealing import MAX_PART_RECORDS, AnyTicket, Dealer

# An object costs the driver 1 ms of CPU and more whatever its size. Measured with blocks of 1, 4, 8 and 16 MiB, driver,
# actors and Ray together: 57, 36, 36 and 25 us for a record of 4 KB.
TARGET_BLOCK_NBYTES = 16 * 2**20
# Chunks that the window's bytes are divided into: one delivered, the others read meanwhile. More, and blocks get small.
DEPTH = 4
MAX_OPEN_CHUNKS = 16
GROWTH = 4  # of one chunk over the last: the size is right after a few chunks, and no guess is far off
FIRST_CHUNK_RECORDS = 256
MAX_ATTEMPTS = 5


@dataclass(frozen=True)
class Part:
    """One actor's part of one chunk. attempt: 0 at first, one more each time that it was lost."""

    chunk: int
    index: int
    actor: int
    ticket: AnyTicket
    attempt: int = 0


@dataclass
class _Chunk:
    """A chunk in flight. size: positions that may have an element. arrived: bytes of each part that is there."""

    number: int
    start: int
    stop: int
    size: int
    parts: list[Part]
    arrived: dict[int, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return len(self.arrived) == len(self.parts)


class Window:
    """The ordered, bounded set of chunks in flight of what a dealer deals.

    chunk_size: positions in a chunk, None to choose by the bytes that arrive, from first_chunk_size on. max_nbytes:
    bound on what is in flight and not yet released.
    """

    def __init__(
        self,
        dealer: Dealer,
        *,
        chunk_size: int | None = None,
        first_chunk_size: int = FIRST_CHUNK_RECORDS,
        max_nbytes: int,
    ) -> None:
        self._dealer = dealer
        self._chunk_size = chunk_size
        self._max_nbytes = max_nbytes
        self._chunks: deque[_Chunk] = deque()
        self._waiting: list[Part] = []
        self._num_opened = 0
        self._size = chunk_size or min(first_chunk_size, dealer.max_size)
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
        """Whether every chunk up to the dealer's stop has been released."""
        return not self._chunks and self._dealer.is_exhausted

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

    def reassign(self, actors: Sequence[int]) -> None:
        """Event: there are other actors. Holds for chunks opened, and parts lost, from now on."""
        self._dealer.reassign(actors)
        self._waiting = [self._ask_owner(part) for part in self._waiting]

    def release(self) -> None:
        """Event: the consumer is done with the first chunk, which is complete."""
        if not self._chunks:
            raise RuntimeError("a chunk was released, and no chunk is open")
        chunk = self._chunks[0]
        if not chunk.is_complete:
            raise RuntimeError(f"chunk {chunk.number} was released before its parts {self.head} had arrived")
        self._chunks.popleft()
        per_position = sum(chunk.arrived.values()) / chunk.size
        self._nbytes_per_position = max(self._nbytes_per_position, per_position)
        if self._chunk_size is None:
            size = next_chunk_size(
                self._size,
                self._nbytes_per_position,
                num_actors=self._dealer.num_actors,
                max_nbytes=self._max_nbytes,
                max_part_size=self._dealer.max_part_size,
            )
            self._is_growing = size == GROWTH * self._size
            self._size = min(size, self._dealer.max_size)

    def _may_open(self) -> bool:
        if len(self._chunks) >= MAX_OPEN_CHUNKS or self._dealer.is_exhausted:
            return False
        if not self._chunks:
            return True  # one chunk is always in flight, or a bound below its size would stop the stream
        if not self._nbytes_per_position:
            return len(self._chunks) < 2  # nothing is known of the size of elements yet
        if self._is_growing and len(self._chunks) >= DEPTH:
            return False  # or the window fills with small chunks, each at the cost of a large one
        return self.nbytes + self._size * self._nbytes_per_position <= self._max_nbytes

    def _open(self) -> _Chunk:
        deal = self._dealer.deal(self._size)
        parts = [
            Part(self._num_opened, index, actor, ticket) for index, (actor, ticket) in enumerate(deal.tickets.items())
        ]
        chunk = _Chunk(self._num_opened, deal.start, deal.stop, deal.size, parts)
        self._chunks.append(chunk)
        self._num_opened += 1
        return chunk

    def _ask_owner(self, part: Part) -> Part:
        """A lost part, addressed to whoever owns what it asks for now, in place of what its chunk held."""
        asked = replace(part, actor=self._dealer.owner(part.ticket))
        self._chunks[part.chunk - self._chunks[0].number].parts[part.index] = asked
        return asked

    def _estimate(self, chunk: _Chunk) -> int:
        arrived = sum(chunk.arrived.values())
        if chunk.is_complete:
            return arrived
        # Not per part: parts are of any size, and the one that is missing may hold nearly all of the chunk.
        return max(arrived, math.ceil(chunk.size * self._nbytes_per_position))

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
    max_part_size: int = MAX_PART_RECORDS,
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
    return max(1, min(ideal, num_actors * max_part_size, GROWTH * size))
