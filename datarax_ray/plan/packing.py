"""Packing: documents of any length into rows of one length, or into batches of about one length; decided here.

Legend: a batch is `rows` rows of seq_len tokens, in one flat line; a piece is the part of one document in one row.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.arguments import NamedArguments, ordered, whole
from datarax_ray.plan.orders.cipher import Indices, permute
from datarax_ray.plan.state import Unit

TooLong = Literal["raise", "truncate", "split"]


@dataclass(frozen=True)
class DocumentSpec:
    """How actors make documents of elements.

    fields: of the element, arrays or lists of one length; other fields are dropped.
    max_length: tokens in a document, None for any number.
    too_long: "raise" (see on_error), "truncate", or "split" into documents of at most max_length.
    are_rows: each is a row of its own, with the other fields beside it: elements stay elements.
    """

    fields: tuple[str, ...]
    max_length: int | None = None
    too_long: TooLong = "raise"
    are_rows: bool = False


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
        _check_fields(self)
        made = {f"{name}_{kind}" for name in self.fields for kind in ("segment_ids", "positions")}
        if clash := made & set(self.fields):
            raise ValueError(f"packing makes fields {sorted(clash)} of its own; give the elements' fields other names")

    @property
    @abstractmethod
    def documents(self) -> DocumentSpec:
        """How actors make documents of elements."""

    @abstractmethod
    def placer(self, rows: int) -> Placer:
        """A packer of one batch of so many rows."""

    def first_token(self, name: str) -> int | None:
        """The token that replaces the first of each piece of a field; None for none."""
        return None

    @property
    def padding(self) -> dict[str, int]:
        """By field, the token that fills a row where there is no other."""
        return _padding(self)

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

    too_long: of documents longer than seq_len: "raise" (on_error="skip" skips them), "truncate", or "split" by seq_len.
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
        """Place documents from `index` on, the first without its first `skip` tokens, until the batch is full.

        lengths: int64 (k,), of all documents at hand, each at least 1; ends: their running sum. Returns the places of m
        documents in the flat batch, the tokens of each (the last may be cut), and whether the batch is full.
        """
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
        """Tokens in each row that has any: int64 (rows so far,)."""
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
        """As ConcatPlacer.take; lengths are at most seq_len. A batch without room for the next document is full."""
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


Placer: TypeAlias = ConcatPlacer | FirstFitPlacer


@dataclass(frozen=True)
class LengthBatches(NamedArguments):
    """Batches of rows of about one length, padded to the smallest of `boundaries` that holds the longest row.

    The elements of num_batches batches in a row, a pool, are sorted by length and cut into batches. The batches come in
    an order drawn from the seed of the source and the place of the pool, so lengths do not rise and fall. Within a
    batch, rows keep the order of the stream. Every element comes once, and a resume is exact in the middle of a pool:
    its state is of constant size, and the pool is read again. A short last batch has the longest rows.

    fields: one name, or several whose values have one length in each element: arrays or lists. All other fields stay.
    boundaries: lengths to pad to, ascending; a longer element is an error (see on_error). Or a number k, for multiples
        of k. Each length is one compilation of the train step.
    num_batches: of a pool. More make less padding, need more memory on the trainer's host, and a longer first read.
    pad_id: fills rows up, for all fields or by name.

    A batch has each field as (batch_size, length, ...), and `x_length` for the first field x: int32 (batch_size,), the
    length of each row without its padding. `Pipeline.stats` has the padding, beside that of batches in order.

    Source: the rule of tf.data's bucket_by_sequence_length, with pools in place of buckets, which would be in a state.
    """

    fields: tuple[str, ...] | str = ("tokens",)
    boundaries: Sequence[int] | int = 64
    num_batches: int = 32
    pad_id: int | Mapping[str, int] = 0

    unit: ClassVar[Unit] = "elements"

    def __post_init__(self) -> None:
        _check_fields(self)
        object.__setattr__(self, "num_batches", whole("num_batches", self.num_batches, ", of a pool", least=1))
        if isinstance(self.boundaries, Sequence) and not isinstance(self.boundaries, str):
            bounds = tuple(whole("a boundary", each, least=1) for each in self.boundaries)
            if not bounds or list(bounds) != sorted(set(bounds)):
                raise ValueError(f"boundaries are lengths, ascending, or one number for multiples of it, got {bounds}")
            object.__setattr__(self, "boundaries", bounds)
        else:
            object.__setattr__(self, "boundaries", whole("boundaries", self.boundaries, least=1))

    @property
    def names(self) -> tuple[str, ...]:
        return _names(self.fields)

    @property
    def documents(self) -> DocumentSpec:
        limit = None if isinstance(self.boundaries, int) else self.boundaries[-1]
        return DocumentSpec(self.names, limit, are_rows=True)

    @property
    def widths(self) -> tuple[int, ...]:
        """Lengths of batches that divide as all do."""
        return (self.boundaries,) if isinstance(self.boundaries, int) else tuple(self.boundaries)

    @property
    def padding(self) -> dict[str, int]:
        return _padding(self)

    def width(self, longest: int) -> int:
        """The length of a batch whose longest row has this one.

        >>> LengthBatches("x", boundaries=(4, 9)).width(5), LengthBatches("x", boundaries=4).width(5)
        (9, 8)
        """
        if isinstance(self.boundaries, int):
            return max(1, -(-longest // self.boundaries)) * self.boundaries
        return next(each for each in self.boundaries if each >= longest)

    def settings(self) -> dict[str, Any]:
        bounds = self.boundaries if isinstance(self.boundaries, int) else list(self.boundaries)
        return {
            "kind": "by_length",
            "fields": list(self.names),
            "boundaries": bounds,
            "num_batches": self.num_batches,
            "pad_id": {name: _plain(value) for name, value in self.padding.items()},
        }


AnyPacking: TypeAlias = Packing | LengthBatches


class Padding(NamedTuple):
    """num_values: of all rows. num_padded: with the padding. num_unsorted: with that of batches in order."""

    num_values: int = 0
    num_padded: int = 0
    num_unsorted: int = 0

    @property
    def share(self) -> float:
        """The part of all values that is padding, from 0 to 1."""
        return 1 - self.num_values / self.num_padded if self.num_padded else 0.0

    @property
    def share_unsorted(self) -> float:
        """The same of batches in the order of the stream."""
        return 1 - self.num_values / self.num_unsorted if self.num_unsorted else 0.0


NO_PADDING = Padding()


def rows_by_length(lengths: Indices, batch_size: int, seed: int, place: str) -> list[Indices]:
    """The rows of each batch of a pool, int64 (batch_size,), ascending; a short batch comes last.

    lengths: int64 (k,), of the rows in the order of the stream. place: of the pool, as text.

    >>> [rows.tolist() for rows in rows_by_length(np.array([5, 1, 9, 1, 7]), 2, 0, "0/0")]
    [[0, 4], [1, 3], [2]]
    """
    order = np.argsort(lengths, kind="stable")
    number = len(order) // batch_size
    drawn = int.from_bytes(hashlib.sha256(f"lengths/{seed}/{place}".encode()).digest()[:4], "big")
    turns = permute(np.arange(number), number, seed=drawn).tolist() if number else []
    cuts = [order[at * batch_size : (at + 1) * batch_size] for at in [*turns, number]]
    return [np.sort(cut) for cut in cuts if len(cut)]


def padding_of(lengths: Indices, cuts: Sequence[Indices], batch_size: int, by: LengthBatches) -> Padding:
    """The padding of one pool. lengths: of its rows, at least one. cuts: the rows of each batch."""
    padded = sum(by.width(int(lengths[cut].max())) * len(cut) for cut in cuts)
    begins = range(0, len(lengths), batch_size)
    unsorted = sum(by.width(int((cut := lengths[at : at + batch_size]).max())) * len(cut) for at in begins)
    return Padding(int(lengths.sum()), padded, unsorted)


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


def _check_fields(given: AnyPacking) -> None:
    """Make a tuple of the fields. Raises: TypeError, ValueError for what is none, and for a pad_id of other fields."""
    ordered("fields", given.fields)
    object.__setattr__(given, "fields", _names(given.fields))
    if not given.fields or len(set(given.fields)) < len(given.fields):
        raise ValueError(f"fields must be one or more different names, got {given.fields!r}")
    if isinstance(given.pad_id, Mapping) and (unknown := set(given.pad_id) - set(given.fields)):
        raise ValueError(f"pad_id names {sorted(unknown)}, and the fields are {list(given.fields)}")


def _padding(given: AnyPacking) -> dict[str, int]:
    pad = given.pad_id
    return {name: pad.get(name, 0) if isinstance(pad, Mapping) else pad for name in _names(given.fields)}


def _plain(value: Any) -> Any:
    """A NumPy number as Python's, and nan as text, for it equals nothing: settings are JSON, and compared."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if value == value else str(value)


def _names(fields: str | Iterable[str]) -> tuple[str, ...]:
    return (fields,) if isinstance(fields, str) else tuple(fields)
