"""Evidence and digest: the record that a state keeps of the rows that were consumed.

Evidence is of the last rows. A resume makes them again, and continues only if they are the same. So nobody has to
judge code: a change of data, a transform, a library or an environment variable is found where a row changes. Rows are
host elements behind the transforms and before the stages; under packing they are documents.

The rolling digest is one number for everything consumed:

    digest = sum, mod 2**64, over all elements wholly consumed, of a hash of (position, ordinal, fields)

A sum is the same for any actors, chunks and batches, and the sums of trainers over their own rows add up to the sum of
all rows. The hash covers the position, so swapped, dropped, repeated or changed rows give another sum, but for one
chance in 1.8e19. The digest is no seal against forgery. Hashes: read.elements.row_digests.

Nothing here reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.plan.position import is_count, reading
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import WHOLE, Share

MAX_ROWS = 64
# Rows further behind the state are skipped: behind a filter that drops nearly all, a resume would read much.
MAX_POSITIONS = 4096
FIRST_PLACE = 0, 0  # the first position and ordinal of a stream
_MAX_FIELDS = 16  # recorded by name; the digest covers all
_MAX_NAME = 48  # characters
_LEN = 4  # hex digits of the digest of one field


@dataclass(frozen=True)
class RowsDigested:
    """Digests of consecutive rows.

    positions, ordinals: int64 (k,), of the rows. kinds: dtype and shape, by field. fields: uint64 (k,), by field.
    """

    positions: Indices
    ordinals: Indices
    kinds: Mapping[str, str]
    fields: Mapping[str, NDArray[np.uint64]]

    @classmethod
    def none(cls) -> Self:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), {}, {})

    def __len__(self) -> int:
        return len(self.positions)

    def of(self, name: str) -> NDArray[np.uint64]:
        """The digests of a field; 0 where a row has no such field, as where a dict is in its place in other rows."""
        return self.fields.get(name, np.zeros(len(self), np.uint64))

    def part(self, start: int, stop: int) -> RowsDigested:
        return self.at(slice(start, stop))

    def at(self, rows: Any) -> RowsDigested:
        fields = {name: each[rows] for name, each in self.fields.items()}
        return RowsDigested(self.positions[rows], self.ordinals[rows], self.kinds, fields)

    @property
    def rows(self) -> NDArray[np.uint64]:
        """One digest for each row, over its fields."""
        total = np.zeros(len(self), np.uint64)
        for each in self.fields.values():
            total = total + each  # modulo 2**64
        return total


class OtherRow(NamedTuple):
    """The first row that a resume makes otherwise. row: its number among the rows made again."""

    row: int
    difference: str


@dataclass(frozen=True)
class Evidence:
    """A state's record of rows.

    start: position and ordinal of the first of them, or the stream's first position for its first rows.
    places: a digest of their positions.
    fields: by name "dtype shape digest", of the first 16 fields, and one digest of the others.
    rows: two hex digits for each row.
    digest: sixteen hex digits over all.
    """

    start: tuple[int, int]
    places: str
    fields: Mapping[str, str]
    rows: str
    digest: str

    @property
    def num_rows(self) -> int:
        return len(self.rows) // 2

    @classmethod
    def of(cls, found: RowsDigested, *, are_first: bool = False) -> Self:
        """The evidence of at least one row. are_first: no row of the stream comes before."""
        rows = found.rows
        start = FIRST_PLACE if are_first else (int(found.positions[0]), int(found.ordinals[0]))
        whole = int(rows.sum(dtype=np.uint64)) % 2**64
        return cls(
            start,
            _places(found),
            _fields(found),
            bytes((rows & np.uint64(0xFF)).astype(np.uint8)).hex(),
            digest([start, dict(sorted(found.kinds.items())), f"{whole:016x}"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "start": list(self.start),
            "places": self.places,
            "fields": dict(self.fields),
            "rows": self.rows,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, saved: Any) -> Self:
        """The inverse of to_json. Raises: ValueError for anything else."""
        with reading("evidence", saved):
            (position, ordinal), fields = saved["start"], {**saved["fields"]}
            found = cls((position, ordinal), saved["places"], fields, saved["rows"], saved["digest"])
            texts = [found.places, found.digest, *fields, *fields.values()]
            are_rows = 1 <= len(bytes.fromhex(found.rows)) == found.num_rows <= MAX_ROWS
            if not (are_rows and is_count(position) and is_count(ordinal) and all(isinstance(t, str) for t in texts)):
                raise ValueError("not as it is written")
            return found

    def differing(self, found: RowsDigested) -> OtherRow | None:
        """The first row that was made otherwise, None if all rows are the same. found: the rows from `start` on."""
        if not len(found):
            return OtherRow(0, f"none of the {self.num_rows} rows is made any more: all are filtered out, or gone")
        found = found.part(0, self.num_rows)
        other = type(self).of(found, are_first=self.start == FIRST_PLACE)
        if other == self:
            return None
        if kinds := _changed_kinds(self.fields, other.fields):
            return OtherRow(0, kinds)
        pairs = enumerate(zip(self.rows, other.rows, strict=False))
        row = next((index // 2 for index, (old, new) in pairs if old != new), 0)  # 0 where two digits agree by chance
        if len(found) < self.num_rows or self.places != other.places or self.start != other.start:
            difference = (
                f"other records are kept: {self.num_rows} rows were consumed here, and they are not the same now"
            )
            return OtherRow(row, difference)
        names = [name for name, text in self.fields.items() if text != other.fields.get(name)]
        fields = ", ".join(f"{name!r}" if name else "the element" for name in names) or "a field"
        return OtherRow(row, f"{fields} has other values")


def _places(found: RowsDigested) -> str:
    return digest([found.positions.tolist(), found.ordinals.tolist()])[:_LEN]


def _fields(found: RowsDigested) -> dict[str, str]:
    names = sorted(found.fields)
    sums = {name: f"{int(found.fields[name].sum(dtype=np.uint64)):016x}" for name in names}
    each = {name: f"{found.kinds[name]} {sums[name][-_LEN:]}" for name in names[:_MAX_FIELDS]}
    if len(names) > _MAX_FIELDS:
        others = [[name, found.kinds[name], sums[name]] for name in names[_MAX_FIELDS:]]
        each[f"{len(others)} more fields"] = f"together {digest(others)[:_LEN]}"
    return {
        name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}.. {digest(name)[:4]}": t for name, t in each.items()
    }


def _changed_kinds(saved: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The fields with another dtype or shape; "" for none."""
    old, new = ({name: text.rpartition(" ")[0] for name, text in each.items()} for each in (saved, found))
    changed = [f"{name!r} is {new[name]}, and was {old[name]}" for name in old if old[name] != new.get(name, old[name])]
    changed += [f"{name!r} is new" for name in new if name not in old]
    changed += [f"{name!r} is missing" for name in old if name not in new]
    return "; ".join(changed)


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
        return self.num_parts == 1

    def plus(self, digest: int) -> Self:
        """The digest with more elements, of this sum."""
        return self._replace(total=(self.total + digest) % 2**64)

    def held_by(self, share: Share) -> Self | None:
        """The digest that a trainer goes on with: its own, or the whole with the first rows; None for another's."""
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
        """The inverse of to_json. Raises: ValueError for anything else."""
        with reading("digest", plain):
            (position, offset), parts = plain["since"], plain.get("parts", [0])
            found = cls((position, offset), int(plain["sum"], 16), tuple(parts), plain.get("num_parts", 1))
            counts = [*found.since, found.num_parts, *parts]
            if not all(map(is_count, counts)) or sorted(set(parts)) != parts or parts[-1:] >= [found.num_parts]:
                raise ValueError("no count of positions or parts")
            if found.to_json() != plain:
                raise ValueError("not as it is written")
            return found


def added(digests: Iterable[RollingDigest]) -> RollingDigest | None:
    """The digest of all rows, from the digests of all trainers; None where rows are missing or come twice.

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
    return RollingDigest(since, sum(digest.total for digest in each) % 2**64) if is_whole else None
