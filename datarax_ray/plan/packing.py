"""Packing: documents of any length into rows of one length, and the place of each document.

Legend: a batch is `rows` rows of seq_len tokens, in one flat line; a piece is the part of one document in one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.arguments import NamedArguments, ordered, whole
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.state import Unit

TooLong = Literal["raise", "truncate", "split"]


@dataclass(frozen=True)
class DocumentSpec:
    """How actors make documents of elements.

    fields: of the element, arrays or lists of one length; other fields are dropped.
    max_length: tokens in a document, None for any number.
    too_long: "raise" (see on_error), "truncate", or "split" into documents of at most max_length.
    """

    fields: tuple[str, ...]
    max_length: int | None = None
    too_long: TooLong = "raise"


class Placer(Protocol):
    """The placing of documents in one batch."""

    def take(self, lengths: Indices, ends: Indices, index: int, skip: int) -> tuple[Indices, Indices, bool]:
        """Place documents from `index` on, the first without its first `skip` tokens, until the batch is full.

        lengths: int64 (k,), of all documents at hand, each at least 1; ends: their running sum. Returns the places of
        the first m documents in the flat batch, the tokens of each (all but for the last), and whether the batch is
        full.
        """
        ...

    @property
    def used(self) -> Indices:
        """Tokens in each row that has any: int64 (rows so far,)."""
        ...


@dataclass(frozen=True)
class Packing(NamedArguments, ABC):
    """How rows of seq_len tokens are packed from documents. Pickles.

    fields: one name, or several whose values have one length in each element; other fields are dropped.
    pad_id: fills a row where there is no token, for all fields or by name.
    unit: what an offset in a record counts.
    """

    seq_len: int
    fields: tuple[str, ...] | str = ("tokens",)
    pad_id: int | Mapping[str, int] = 0

    unit: ClassVar[Unit]

    def __post_init__(self) -> None:
        seq_len = whole("seq_len", self.seq_len, f"; write {type(self).__name__}(seq_len, fields)", least=1)
        object.__setattr__(self, "seq_len", seq_len)
        ordered("fields", self.fields)
        object.__setattr__(self, "fields", _names(self.fields))
        if not self.fields or len(set(self.fields)) < len(self.fields):
            raise ValueError(f"fields must be one or more different names, got {self.fields!r}")
        made = {f"{name}_{kind}" for name in self.fields for kind in ("segment_ids", "positions")}
        if clash := made & set(self.fields):
            raise ValueError(f"packing makes fields {sorted(clash)} of its own; give the elements' fields other names")
        if isinstance(self.pad_id, Mapping) and (unknown := set(self.pad_id) - set(self.fields)):
            raise ValueError(f"pad_id names {sorted(unknown)}, and the fields are {list(self.fields)}")

    @property
    @abstractmethod
    def documents(self) -> DocumentSpec:
        """How actors make documents of elements."""

    @abstractmethod
    def unit_sizes(self, lengths: Indices) -> Indices:
        """The units in documents of these lengths: int64 (k,) both."""

    @abstractmethod
    def placer(self, rows: int) -> Placer:
        """A packer of one batch of so many rows."""

    def first_token(self, name: str) -> int | None:
        """The token that replaces the first of each piece of a field; None for none."""
        return None

    @property
    def padding(self) -> dict[str, int]:
        """By field, the token that fills a row where there is no other."""
        pad = self.pad_id
        return {name: pad.get(name, 0) if isinstance(pad, Mapping) else pad for name in _names(self.fields)}

    def settings(self) -> dict[str, Any]:
        """All parameters of the rows, in plain values."""
        pad_id = {name: _plain(value) for name, value in self.padding.items()}
        return {"seq_len": self.seq_len, "fields": list(self.fields), "pad_id": pad_id}


@dataclass(frozen=True)
class ConcatThenSplit(Packing):
    """Documents end to end, cut every seq_len tokens. A document may begin in one row and go on in the next.

    Equal to a flat_map into tokens and batches of batch_size * seq_len tokens: a state names a record and its token.
    Only the end of the stream's last row is padded. Empty documents are dropped.

    fields: one name, or several whose values have one length in each element; other fields are dropped.
    pad_id: fills the last row, for all fields or by name.
    bos_token_id: replaces the first token of each piece, in bos_fields (None for the first field).

    Batches hold x, x_segment_ids and x_positions for each field x: (batch_size, seq_len, ...), the last two int32. In a
    row, segment ids count pieces from 1, and positions count the tokens of a piece from 0; both are 0 in padding.

    Source: Grain's ConcatThenSplitIterDataset; bos_token_id is its REPLACE_FIRST_TOKEN_WITH_BOS.
    """

    bos_token_id: int | None = None
    bos_fields: tuple[str, ...] | str | None = None

    unit: ClassVar[Unit] = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bos_fields is not None and self.bos_token_id is None:
            raise ValueError(f"bos_fields={self.bos_fields!r} has no use without bos_token_id")
        chosen = () if self.bos_token_id is None else self.fields[:1] if self.bos_fields is None else self.bos_fields
        object.__setattr__(self, "bos_fields", _names(chosen))
        if unknown := set(self.bos_fields or ()) - set(self.fields):
            raise ValueError(f"bos_fields names {sorted(unknown)}, and the fields are {list(self.fields)}")

    @property
    def documents(self) -> DocumentSpec:
        return DocumentSpec(_names(self.fields))

    def unit_sizes(self, lengths: Indices) -> Indices:
        return lengths

    def first_token(self, name: str) -> int | None:
        return self.bos_token_id if name in (self.bos_fields or ()) else None

    def placer(self, rows: int) -> Placer:
        return ConcatPlacer(rows, self.seq_len)

    def settings(self) -> dict[str, Any]:
        bos = {"bos_token_id": _plain(self.bos_token_id), "bos_fields": list(self.bos_fields or ())}
        return {"kind": "concat_then_split"} | super().settings() | bos


@dataclass(frozen=True)
class FirstFitPack(Packing):
    """Whole documents, each in the first row of the batch that has room for it; rows are padded at their end.

    A document that fits in no row completes the batch and begins the next one: a state names a record. Larger batches
    have less padding. Empty documents are dropped.

    too_long: for a document of more than seq_len tokens "raise" (on_error="skip" skips it), "truncate", or "split" into
        documents of seq_len.
    fields, pad_id, batches: as of ConcatThenSplit; positions count the tokens of a document.

    Source: Grain's FirstFitPackIterDataset with num_packing_bins = batch_size and shuffle_bins=False.
    """

    too_long: TooLong = "raise"

    unit: ClassVar[Unit] = "documents"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.too_long not in ("raise", "truncate", "split"):
            raise ValueError(f"too_long must be 'raise', 'truncate' or 'split', got {self.too_long!r}")

    @property
    def documents(self) -> DocumentSpec:
        return DocumentSpec(_names(self.fields), self.seq_len, self.too_long)

    def unit_sizes(self, lengths: Indices) -> Indices:
        return np.ones_like(lengths)

    def placer(self, rows: int) -> Placer:
        return FirstFitPlacer(rows, self.seq_len)

    def settings(self) -> dict[str, Any]:
        return {"kind": "first_fit"} | super().settings() | {"too_long": self.too_long}


@dataclass
class ConcatPlacer:
    """Puts documents end to end. filled: tokens of the batch so far."""

    rows: int
    seq_len: int
    filled: int = 0

    def take(self, lengths: Indices, ends: Indices, index: int, skip: int) -> tuple[Indices, Indices, bool]:
        begin = int(ends[index] - lengths[index]) + skip
        stop = min(int(ends[-1]), begin + self.rows * self.seq_len - self.filled)
        last = int(np.searchsorted(ends, stop))
        sizes = lengths[index : last + 1].copy()
        sizes[0] -= skip
        sizes[-1] -= ends[last] - stop
        starts = self.filled + np.cumsum(sizes) - sizes
        self.filled += stop - begin
        return starts, sizes, self.filled == self.rows * self.seq_len

    @property
    def used(self) -> Indices:
        count = -(-self.filled // self.seq_len)
        return np.minimum(self.filled - np.arange(count, dtype=np.int64) * self.seq_len, self.seq_len)


@dataclass
class FirstFitPlacer:
    """Puts whole documents in the first row with room for them."""

    rows: int
    seq_len: int
    _used: Indices = field(init=False)

    def __post_init__(self) -> None:
        self._used = np.zeros(self.rows, np.int64)

    def take(self, lengths: Indices, ends: Indices, index: int, skip: int) -> tuple[Indices, Indices, bool]:
        """As Placer.take; lengths are at most seq_len. A batch without room for the next document is full."""
        used, starts = self._used, []
        for length in lengths[index:]:
            row = int((used <= self.seq_len - length).argmax())
            if used[row] > self.seq_len - length:
                break
            starts.append(row * self.seq_len + int(used[row]))
            used[row] += length
        count = len(starts)
        return np.array(starts, np.int64), lengths[index : index + count], index + count < len(lengths)

    @property
    def used(self) -> Indices:
        return self._used[self._used > 0]


def segments(starts: Indices, used: Indices, seq_len: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Segment ids and positions of rows: two int32 arrays (rows, seq_len).

    starts: int64 (m,), where documents begin in the flat line of these rows. used: int64 (rows,), tokens in each row.
    Each row begins with a new piece; ids count its pieces from 1, and positions the tokens of each piece from 0.

    >>> ids, positions = segments(np.array([0, 2, 6]), np.array([4, 3]), seq_len=4)
    >>> ids.tolist(), positions.tolist()
    ([[1, 1, 2, 2], [1, 1, 2, 0]], [[0, 1, 0, 1], [0, 1, 0, 0]])
    """
    marks = np.zeros((len(used), seq_len), bool)
    marks.reshape(-1)[starts] = True
    marks[:, 0] = True
    column = np.arange(seq_len, dtype=np.int32)
    is_token = column < used[:, None]
    ids = np.cumsum(marks, axis=1, dtype=np.int32) * is_token
    begins = np.maximum.accumulate(np.where(marks, column, np.int32(0)), axis=1)
    return ids, (column - begins) * is_token


def _plain(value: Any) -> Any:
    """A NumPy number as Python's: settings are JSON."""
    return value.item() if isinstance(value, np.generic) else value


def _names(fields: str | Iterable[str]) -> tuple[str, ...]:
    return (fields,) if isinstance(fields, str) else tuple(fields)
