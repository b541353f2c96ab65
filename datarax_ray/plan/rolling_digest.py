"""The rolling digest: one number for everything consumed of a stream, kept in its state.

    digest = sum, mod 2**64, over all elements wholly consumed, of a hash of (position, ordinal, fields)

A sum is the same for any actors, chunks and batches, and the sums of several trainers, each of its own rows, add up to
the sum of all rows. The hash covers the position, so rows that are swapped, dropped, repeated or changed by a bit give
another sum, but for one chance in 1.8e19. It is no seal against forgery. Hashes: read.elements.row_digests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from datarax_ray.plan.position import is_count, reading
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import WHOLE, Share

_MODULUS = 2**64


class RollingDigest(NamedTuple):
    """The digest of everything consumed since a state of the stream.

    since: position and offset of that state.
    total: the sum.
    parts: a trainer's own parts, of the num_parts parts of every batch; (0,) of 1 for all rows.
    """

    since: tuple[int, int]
    total: int = 0
    parts: tuple[int, ...] = (0,)
    num_parts: int = 1

    @classmethod
    def begun(cls, state: StreamState, share: Share = WHOLE) -> Self:
        """The digest of nothing, from this state on. share: of every batch, the rows to come."""
        parts, num_parts = share.counted, share.num_parts
        parts, num_parts = ((0,), 1) if len(parts) == num_parts else (parts, num_parts)
        return cls((state.position, state.offset), 0, parts, num_parts)

    @property
    def is_whole(self) -> bool:
        """Whether it covers all rows."""
        return self.num_parts == 1

    def plus(self, digest: int) -> Self:
        """The digest with more elements, of this sum."""
        return self._replace(total=(self.total + digest) % _MODULUS)

    def held_by(self, share: Share) -> Self | None:
        """The digest with which one trainer goes on: its own part, or the whole where it has the first rows.

        None where this is the part of another trainer.
        """
        own = self.begun(StreamState(*self.since), share)
        if (self.parts, self.num_parts) == (own.parts, own.num_parts):
            return self
        if not self.is_whole:
            return None
        return own.plus(self.total) if 0 in share.counted else own

    def to_json(self) -> dict[str, Any]:
        """As plain values, of constant size but for the parts of a trainer."""
        part = {} if self.is_whole else {"parts": list(self.parts), "num_parts": self.num_parts}
        return {"sum": f"{self.total:016x}", "since": list(self.since)} | part

    @classmethod
    def from_json(cls, plain: Any) -> Self:
        """What to_json wrote. Raises: ValueError for anything else."""
        with reading("digest", plain):
            (position, offset), parts = plain["since"], plain.get("parts", [0])
            found = cls((position, offset), int(plain["sum"], 16), tuple(parts), plain.get("num_parts", 1))
            counts = [*found.since, found.num_parts, *parts]
            if not all(map(is_count, counts)) or sorted(set(parts)) != parts or parts[-1:] >= [found.num_parts]:
                raise ValueError("what is no count")
            if found.to_json() != plain:
                raise ValueError("not as it is written")
            return found


def added(digests: Iterable[RollingDigest]) -> RollingDigest | None:
    """The digest of all rows, from the digests of trainers, each counted once; None where some rows are missing.

    >>> one, other = RollingDigest((0, 0), 2, (0,), 2), RollingDigest((0, 0), 5, (1,), 2)
    >>> added([one, other]), added([one, one])
    (RollingDigest(since=(0, 0), total=7, parts=(0,), num_parts=1), None)
    """
    each = set(digests)
    parts = sorted(part for digest in each for part in digest.parts)
    begun = {(digest.since, digest.num_parts) for digest in each if digest.parts}
    if len(begun) != 1:
        return None
    ((since, num_parts),) = begun
    is_whole = parts == [*range(num_parts)]
    return RollingDigest(since, sum(digest.total for digest in each) % _MODULUS) if is_whole else None
