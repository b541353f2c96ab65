"""Evidence: digests of the last rows that were consumed, which a state carries and a resume makes again.

A resume continues only where the rows that it makes again are the rows that were consumed. So nothing needs to judge
code: whatever changed (data, a transform, a library, an environment variable) is found where it changes a row, and is
of no importance where it does not. Rows are host elements behind the transforms and before the stages; under packing
they are documents. Nothing here reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.fingerprint import digest, shown
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import is_count

MAX_ROWS = 64
# Rows further behind the state are left out: behind a filter that drops nearly all, a resume would read much.
MAX_POSITIONS = 4096
_MAX_FIELDS = 16  # recorded by name; the digest covers all
_MAX_NAME = 48  # characters
_LEN = 4  # hex digits of the digest of one field
_MODULUS = 2**64


@dataclass(frozen=True)
class RowsDigested:
    """Digests of consecutive rows.

    positions, ordinals: int64 (k,), of each row. kinds: dtype and shape of each field. fields: uint64 (k,) for each.
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

    def part(self, start: int, stop: int) -> RowsDigested:
        fields = {name: each[start:stop] for name, each in self.fields.items()}
        return RowsDigested(self.positions[start:stop], self.ordinals[start:stop], self.kinds, fields)

    def at(self, positions: Indices) -> RowsDigested:
        """The rows of these positions alone."""
        kept = np.isin(self.positions, positions)
        fields = {name: each[kept] for name, each in self.fields.items()}
        return RowsDigested(self.positions[kept], self.ordinals[kept], self.kinds, fields)

    @property
    def rows(self) -> NDArray[np.uint64]:
        """One digest for each row, over its fields."""
        total = np.zeros(len(self), np.uint64)
        for each in self.fields.values():
            total = total + each  # modulo 2**64
        return total


class OtherRow(NamedTuple):
    """The first row that a resume makes otherwise. row: its number among those made again. said: what differs."""

    row: int
    said: str


@dataclass(frozen=True)
class Evidence:
    """What a state records of rows.

    start: position and ordinal of the first of them.
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
    def of(cls, found: RowsDigested) -> Self:
        """The evidence of at least one row."""
        rows = found.rows
        start = int(found.positions[0]), int(found.ordinals[0])
        whole = int(rows.sum(dtype=np.uint64)) % _MODULUS
        return cls(
            start,
            _places(found),
            _fields(found),
            bytes((rows & np.uint64(0xFF)).astype(np.uint8)).hex(),
            digest([start, dict(sorted(found.kinds.items())), f"{whole:016x}"]),
        )

    def to_json(self) -> dict[str, Any]:
        """In plain values, of constant size."""
        return {
            "start": list(self.start),
            "places": self.places,
            "fields": dict(self.fields),
            "rows": self.rows,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, saved: Any) -> Self:
        """The inverse of to_json. Raises: ValueError for anything that to_json does not give."""
        try:
            position, ordinal = saved["start"]
            found = cls((position, ordinal), saved["places"], dict(saved["fields"]), saved["rows"], saved["digest"])
            texts = [found.places, found.rows, found.digest, *found.fields, *found.fields.values()]
            is_right = (
                isinstance(saved["fields"], Mapping)
                and is_count(position)
                and is_count(ordinal)
                and all(isinstance(text, str) for text in texts)
            )
            if is_right and 1 <= found.num_rows <= MAX_ROWS and len(bytes.fromhex(found.rows)) == found.num_rows:
                return found
        except (TypeError, ValueError, KeyError, AttributeError):
            pass  # reported below
        raise ValueError(f"the state's evidence is none: {shown(saved)}; the state is damaged, restore an earlier one")

    def differing(self, found: RowsDigested) -> OtherRow | None:
        """The first row that was made otherwise, None where all are the same. found: the rows from `start` on."""
        if len(found):
            found = found.part(0, self.num_rows)
            other = type(self).of(found)
            if other == self:
                return None
        else:
            return OtherRow(0, f"none of the {self.num_rows} rows is made any more: all are filtered out, or gone")
        index = _first_difference(self.rows, other.rows)
        if said := _kinds_said(self.fields, other.fields):
            return OtherRow(0, said)
        if len(found) < self.num_rows or self.places != other.places or self.start != other.start:
            return OtherRow(
                index, f"other records are kept: {self.num_rows} rows were consumed here, and they are not the same now"
            )
        names = [name for name, text in self.fields.items() if text != other.fields.get(name)]
        fields = ", ".join(f"{name!r}" if name else "the element" for name in names) or "a field"
        return OtherRow(index, f"{fields} has other values")


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


def _kinds_said(saved: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Which fields are of another kind; "" for none."""
    old, new = ({name: text.rpartition(" ")[0] for name, text in each.items()} for each in (saved, found))
    said = [f"{name!r} is {new[name]}, and was {old[name]}" for name in old if name in new and old[name] != new[name]]
    said += [f"{name!r} is new" for name in new if name not in old]
    said += [f"{name!r} is missing" for name in old if name not in new]
    return "; ".join(said)


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The index of the first row whose two digits differ; 0 where they are the same by chance."""
    pairs = zip(one[::2], one[1::2], strict=False), zip(other[::2], other[1::2], strict=False)
    return next((index for index, (a, b) in enumerate(zip(*pairs, strict=False)) if a != b), 0)
