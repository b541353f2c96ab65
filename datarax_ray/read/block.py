"""Blocks: a request in, the decoded elements of one part of one chunk out. What an actor does, and all that it does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.elements.columns import (
    ColumnError,
    Columns,
    concatenate,
    leaves,
    map_leaves,
    nbytes,
    spec,
    stack,
    unstack,
    unstack_to_stack,
)
from datarax_ray.read.elements.documents import join
from datarax_ray.read.elements.owning import UnfitError, columns_copied, copied, own_columns, read_only, writable
from datarax_ray.read.elements.transforms import Call, OnError, Progress, Step, steps
from datarax_ray.read.errors import Skipped, is_of_data, message_of

if TYPE_CHECKING:  # a description reads by what is here
    from datarax_ray.read.stream import IndexedStream, Reader


class Reads(Protocol):
    """What reading needs of a description."""

    @property
    def reader(self) -> Reader: ...

    @property
    def on_error(self) -> OnError: ...


@dataclass(frozen=True)
class Block:
    """Elements of one part of a chunk, stacked.

    positions: int64 (k,), ascending, with equal ones where a record gave several elements. columns: arrays of shape (k,
    ...), or Elements (grain.engine.pytrees) where they may be of any kind; None where k is 0. skipped: records left
    out. failure: what to raise when the stream comes to failure_position; the block holds only what is before it.
    lengths: int64 (k,) where elements are documents to be packed, and columns hold them end to end, (sum of lengths,
    ...). picked: int64 (m,), ascending, which of the elements the columns hold, (m, ...); None for all. whole_nbytes:
    what the columns of all elements take, where these hold none. read_s: what reading it took, 0 where that was not
    measured; no part of what the block is.
    """

    positions: Indices
    columns: Columns
    skipped: tuple[Skipped, ...] = ()
    failure: Exception | None = None
    failure_position: int = 0
    lengths: Indices | None = None
    picked: Indices | None = None
    whole_nbytes: int = 0
    read_s: float = field(default=0.0, compare=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", 0 if self.columns is None else nbytes(self.columns))


def timed(read: Callable[[Any], Block], request: Any) -> Block:
    """The block that `read` gives for the request, with the time that took."""
    begin = time.perf_counter()
    block = read(request)
    return replace(block, read_s=time.perf_counter() - begin)


def read_block(description: IndexedStream, request: ReadRequest) -> Block:
    """Read, decode, transform and stack what the request asks for. The same block wherever and whenever it is called.

    A record that cannot be read, decoded, transformed or stacked ends the block before it, and is its failure.

    Raises: OSError and ValueError for a file that is gone or replaced.
    """
    return block_at(description, *request.select(description.order), request.documents)


def block_at(
    description: IndexedStream,
    positions: Indices,
    records: Indices,
    documents: DocumentSpec | None = None,
    ended: str = "",
) -> Block:
    """The block of these positions, ascending, with these records: int64 (k,) each; see read_block.

    ended: what ended every process that read them, "" for nothing; then they are broken, and not read.
    """
    if not ended:
        return block_of(*_elements(description, positions, records), documents)
    reader = description.reader
    asked = Progress(records.tolist(), positions, records, on_error=description.on_error, locate=reader.locate)
    asked.run([Call(lambda *_: _raise(ChildProcessError(f"every process that reads it ends: {ended}")), "reading")])
    return block_of(asked, None, documents)


def _raise(error: Exception) -> NoReturn:
    raise error


def block_of(progress: Progress, columns: Columns, documents: DocumentSpec | None) -> Block:
    """The block of elements that went through the transforms. columns: theirs where they came as such, else None.

    documents: what they are to become for packing, None for elements.
    """
    lengths = None
    if documents is not None:
        columns, lengths = join(progress, columns, documents)
    elif columns is None and progress.elements:
        columns = _stack(progress)
    skipped = tuple(sorted(progress.skipped, key=lambda skip: skip.position))
    failed_at = 0 if progress.failure is None else progress.failure.position
    return Block(np.asarray(progress.positions, np.int64), columns, skipped, progress.failure, failed_at, lengths)


def read_elements(description: IndexedStream, request: ReadRequest) -> list[Any]:
    """The surviving elements that the request asks for, in the order of their positions, not stacked.

    Raises: RecordError for the first record that cannot be read, decoded or transformed, unless they are skipped.
    """
    return elements_at(description, *request.select(description.order))[1]


def elements_at(description: IndexedStream, positions: Indices, records: Indices) -> tuple[list[int], list[Any]]:
    """The surviving elements of these positions with these records, and the position of each; raises as above."""
    progress, columns = _elements(description, positions, records)
    if progress.failure is not None:
        raise progress.failure
    elements = progress.elements if columns is None else unstack(writable(columns), len(progress.positions))
    return list(progress.positions), elements


def _elements(description: IndexedStream, positions: Indices, records: Indices) -> tuple[Progress, Columns]:
    """Everything up to stacking; columns are there where nothing was done to single elements since they were made."""
    progress, columns = read_records(description, positions, records)
    return progress, transformed(progress, columns, steps(description.transforms), description.order.seed)


def transformed(progress: Progress, columns: Columns, todo: Sequence[Step], seed: int) -> Columns:
    """Put the elements through the transforms. columns: theirs where they came as such, and so the result."""
    for is_whole, group in itertools.groupby(todo, lambda step: step.kind in ("decode", "map_columns")):
        if not len(progress.positions):
            return None
        if is_whole:
            for step in group:
                columns = _decode(progress, step) if step.kind == "decode" else _map_columns(progress, step, columns)
            continue
        if columns is not None:
            progress.elements = unstack_to_stack(writable(columns), len(progress.positions))
            columns = None
        progress.apply(list(group), seed)
    return columns


def read_records(description: Reads, positions: Indices, records: Indices) -> tuple[Progress, Columns]:
    """The records for these positions, up to the first that cannot be read; columns where they are stored as such."""
    reader = description.reader
    asked = Progress([], positions, records, on_error=description.on_error, locate=reader.locate)
    if not len(records):
        return asked, None
    try:
        found = reader.read(records)
    except BaseException as error:
        if not is_of_data(error, reader.broken):
            raise
        # does not say which record it is about: ask for each alone
        asked.elements = records.tolist()
        asked.run([Call(lambda record, *_: reader.read(np.array([record])), "reading", catch=reader.broken)])
        if asked.elements and isinstance(asked.elements[0], Mapping):
            if all(spec(columns) == spec(asked.elements[0]) for columns in asked.elements):
                return asked, concatenate(asked.elements)
            asked.elements = [unstack_to_stack(columns, 1) for columns in asked.elements]  # images of several sizes
        asked.elements = [element for (element,) in asked.elements]
        return asked, None
    if isinstance(found, Mapping):
        return asked, found
    asked.elements = found if isinstance(found, list) else list(found)
    return asked, None


def _decode(progress: Progress, step: Step) -> Columns:
    """All records at once; where that fails, each alone, to find the one that is to blame."""
    if not len(progress.positions):
        return None
    try:
        return _call(step, progress.elements, len(progress.elements))
    except BaseException as whole:
        return _each_alone(progress, step, whole, lambda records: records)


def _map_columns(progress: Progress, step: Step, columns: Columns) -> Columns:
    """The columns of all elements at once; where that fails, those of each alone.

    Others may read the columns (a reader that keeps them, the second attempt), so they cannot be written to; a
    transform that does fails, and is called again with copies.
    """
    if columns is None and len(progress.positions):
        columns = _stack(progress)
    count = len(progress.positions)
    if not count:
        return None
    try:
        return _call(step, read_only(columns), count)
    except BaseException as first:
        if not is_of_data(first):
            raise
    try:
        return _call(step, columns_copied(columns), count)
    except BaseException as whole:
        progress.elements = list(range(count))
        return _each_alone(progress, step, whole, lambda rows: _rows_copied(columns, rows))


def _rows_copied(columns: Columns, rows: list[int]) -> Columns:
    return columns_copied(map_leaves(lambda array: array[rows], columns))


def _each_alone(progress: Progress, step: Step, whole: BaseException, together: Callable[[list[Any]], Any]) -> Columns:
    """The step for the elements that it does alone; together: what it takes for several of progress.elements."""
    if not is_of_data(whole):
        raise whole
    count, what = len(progress.elements), f"transform {step.name}"
    progress.run([Call(lambda element, *_: [_call(step, together([element]), 1)], what, "filter")])
    if len(progress.elements) == count:
        verb = "decodes" if step.kind == "decode" else "maps"
        reason = f"{what} {verb} this and the next {count - 1} records alone, but not together; it raised "
        progress.fail(0, f"{reason}{type(whole).__name__}: {message_of(whole)}", whole)
        progress.end_before_failure()
        return None
    kept = progress.elements
    return _call(step, together(kept), len(kept)) if kept else None


def _call(step: Step, given: Any, count: int) -> Columns:
    held = [step.call(given)]
    if held[0] is None:
        raise UnfitError("None", "; does it end without `return`?")
    columns = own_columns(held, given if step.kind == "map_columns" else {})
    found = list(leaves(columns))
    if not found:
        raise ValueError("its result has no fields; an element needs at least one")
    for path, array in found:
        name = ".".join(path) or "its result"
        if isinstance(array, np.ma.MaskedArray):
            copied(array, path)
        if not isinstance(array, np.ndarray) or not array.ndim:
            raise TypeError(f"{name} is a {type(array).__name__}; {step.kind} gives arrays with a row for each record")
        if len(array) != count:
            raise ValueError(f"{name} has {len(array)} rows for {count} records")
    return columns


def _stack(progress: Progress) -> Columns:
    """The columns of the elements; of those before the first that does not fit, where one does not."""
    while progress.elements:
        try:
            return stack(progress.elements)
        except ColumnError as error:  # the first of one field; another may have one before it
            progress.cut(error.index, error.message)
    return None
