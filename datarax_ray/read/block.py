"""Blocks, the answers of actors: the elements of one part of one chunk, transformed and stacked."""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.read.elements.columns import (
    ColumnError,
    Columns,
    given_note,
    leaves,
    map_leaves,
    nbytes,
    spec,
    stack,
    unstack_to_stack,
)
from datarax_ray.read.elements.documents import as_rows, join
from datarax_ray.read.elements.owning import UnfitError, columns_copied, copied, own_columns, read_only, writable
from datarax_ray.read.elements.progress import Call, ObjectsAt, Progress, Taken
from datarax_ray.read.elements.row_digests import Digests, moved, row_digests
from datarax_ray.read.elements.rows import FixedRecords, are_alike, joined, look_due
from datarax_ray.read.elements.transforms import Step
from datarax_ray.read.errors import Skipped, is_of_data, message_of
from datarax_ray.read.laps import WorkDone, counted, lap, laps_of


@dataclass(frozen=True)
class Block:
    """Elements of one part of a chunk, stacked.

    positions: int64 (k,), ascending, with equal ones where a record gave several elements.
    columns: arrays of shape (k, ...), or Elements (grain.engine.stream) where they may be of any kind; None where k
        is 0.
    skipped: records that were skipped.
    failure: the error to raise when the stream comes to failure_position; the block ends before it.
    lengths: int64 (k,) if elements are documents to be packed; columns then hold them end to end, (sum of lengths,
        ...).
    selected: which rows of all columns these hold, as runs (see plan.runs); None for all.
    whole_nbytes: bytes of all columns, if these hold none.
    digests: uint64 (k,), of each element (read.elements.row_digests); None if not wanted.
    learned: facts for the scheduler, found while reading: ShardEnds, of a stream of shards.
    taken: the columns that each transform of columns took.
    may_come: whether a skipped element may come at another position, since a transform had the position or random
        numbers.
    spent: the seconds of reading, by lap; {} where they were not measured.
    read_at: the end of reading, by time.time() there.
    done: the work of the actor that read it; None for this process. The last three do not count in a comparison.
    """

    positions: Indices
    columns: Columns
    skipped: tuple[Skipped, ...] = ()
    failure: Exception | None = None
    failure_position: int = 0
    lengths: Indices | None = None
    selected: Indices | None = None
    whole_nbytes: int = 0
    digests: Digests | None = None
    learned: tuple[Any, ...] = ()
    taken: tuple[Taken, ...] = ()
    may_come: bool = False
    spent: Mapping[str, float] = field(default_factory=dict, compare=False)
    read_at: float = field(default=0.0, compare=False)
    done: WorkDone | None = field(default=None, compare=False)

    @functools.cached_property
    def nbytes(self) -> int:
        return 0 if self.columns is None else nbytes(self.columns)

    @property
    def memory_nbytes(self) -> int:
        """Bytes of all columns, wherever these are."""
        return self.whole_nbytes or self.nbytes

    @property
    def read_s(self) -> float:
        """Seconds of reading; 0 where they were not measured."""
        return sum(self.spent.values())

    def part(self, start: int, stop: int, at: Indices | None = None) -> Block:
        """The elements [start, stop) as a block. at: their new positions; None to keep the old."""
        lengths, first, last = None, start, stop
        if self.lengths is not None:
            lengths, first = self.lengths[start:stop], int(self.lengths[:start].sum())
            last = first + int(lengths.sum())
        columns = map_leaves(lambda array: array[first:last], self.columns)
        digests = None if self.digests is None else self.digests[start:stop]
        if digests is not None and at is not None:
            digests = moved(digests, at)
        return Block(self.positions[start:stop] if at is None else at, columns, lengths=lengths, digests=digests)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"columns": map_leaves(joined, self.columns)}


def first_failure(blocks: Iterable[Block], stop: int, *others: tuple[int, Exception]) -> tuple[int, Exception | None]:
    """The position where the blocks fail first, and why; (stop, None) where none fails. others: more failures."""
    failures = [(block.failure_position, block.failure) for block in blocks if block.failure is not None]
    return min([*failures, *others], key=lambda each: each[0], default=(stop, None))


def digested(read: Callable[[Any], Block], request: Any) -> Block:
    """The block that `read` gives for the request, with the digests of its elements if wanted."""
    block = read(request)
    if not request.wanted.is_digested:
        return block
    with lap("digest"):
        return replace(block, digests=row_digests(block.positions, block.columns, block.lengths))


def timed(read: Callable[[Any], Block], request: Any) -> Block:
    """As `digested`, with the time of reading."""
    with counted() as laps, laps.lap("reading"):
        block = digested(read, request) if request.wanted.is_digested else read(request)
    return replace(block, spent=laps.spent, read_at=time.time())


def block_of(progress: Progress, columns: Columns, documents: DocumentSpec | None) -> Block:
    """The block of elements that went through the transforms. columns: theirs where they came as such, else None.

    documents: how packing takes the elements as documents; None for plain elements.
    """
    lengths = None
    with lap("stacking"):
        if documents is not None and documents.are_rows:
            columns = as_rows(progress, columns, documents)
        elif documents is not None:
            columns, lengths = join(progress, columns, documents)
        if lengths is None and columns is None and progress.elements:
            columns = _stack(progress)
    skipped = tuple(sorted(progress.skipped, key=lambda skip: skip.position))
    failed_at = 0 if progress.failure is None else progress.failure.position
    positions = np.asarray(progress.positions, np.int64)
    taken = tuple(progress.taken)
    return Block(
        positions, columns, skipped, progress.failure, failed_at, lengths, taken=taken, may_come=progress.may_come
    )


def transformed(
    progress: Progress, columns: Columns, todo: Sequence[Step], seed: int, as_objects: Iterable[ObjectsAt] = ()
) -> Columns:
    """Put the elements through the transforms. columns: theirs where they came as such, and so the result.

    as_objects: see ElementStream.
    """
    progress.as_objects = as_objects
    counts = Counter(step.name for step in todo)
    names = {step.index: step.name if counts[step.name] == 1 else f"{step.name} [{step.index}]" for step in todo}
    for is_whole, group in itertools.groupby(todo, lambda step: step.kind in ("decode", "map_columns")):
        if is_whole:
            for step in group:
                if not len(progress.positions):
                    return None
                with lap(names[step.index]):
                    decodes = step.kind == "decode"
                    if decodes and columns is not None:
                        raise TypeError(
                            f"transform {step.name} decodes records, which are bytes, and these are rows that have the "
                            f"columns {sorted(columns)} already; leave it out, or decode a column in a function of the "
                            "element"
                        )
                    columns = _decode(progress, step) if decodes else _map_columns(progress, step, columns)
            continue
        if not len(progress.positions):
            return None
        each = list(group)
        with laps_of([names[step.index] for step in each]) as seconds:
            if columns is not None:
                progress.elements = unstack_to_stack(writable(columns), len(progress.positions))
                columns = None
            progress.apply(each, seed, seconds)
    return columns


def _decode(progress: Progress, step: Step) -> Columns:
    """Decode all records at once; if that fails, each record alone, to find the broken one."""
    records = progress.elements
    if isinstance(records, FixedRecords) and not takes_fixed_records(step):
        records = records.tolist()
    try:
        return _call(step, records, len(records))
    except BaseException as whole:
        return _each_alone(progress, step, whole, lambda records: records)


def _map_columns(progress: Progress, step: Step, columns: Columns) -> Columns:
    """The columns of all elements at once; if that fails, of each element alone.

    Others may read the columns (a reader that keeps them, the second attempt), so they cannot be written to; a
    transform that does fails, and is called again with copies.
    """
    if columns is None:
        columns = _stack(progress, step.index)
    count = len(progress.positions)
    if not count:
        return None
    progress.taken.append((f"{step.name} [{step.index}]", int(progress.positions[0]), spec(columns)))
    try:
        return _row_by_row(progress, step, columns, _call(step, read_only(columns), count))
    except BaseException as first:
        if not is_of_data(first):
            raise
    try:
        return _row_by_row(progress, step, columns, _call(step, columns_copied(columns), count))
    except BaseException as whole:
        progress.elements = list(range(count))
        return _each_alone(progress, step, whole, lambda rows: rows_copied(columns, rows))


def _row_by_row(progress: Progress, step: Step, columns: Columns, found: Columns) -> Columns:
    """The result of a transform of columns, after a test that one of its rows comes of that row alone.

    Otherwise the stream would depend on the rows that are read together: actors, batch sizes and resumes change these.
    """
    count = len(progress.positions)
    if count == 1 or not (look := look_due(getattr(step.call, "__self__", step.call))):
        return found
    row = count - 1 if look % 2 else count // 2
    try:
        alone = _call(step, rows_copied(columns, [row]), 1)
    except BaseException as error:
        if not is_of_data(error):
            raise
        other: str | None = f"{message_of(error)} ({type(error).__name__})"
    else:
        pairs = zip_longest(leaves(found), leaves(alone), fillvalue=((), np.empty(0)))
        odd = (path for (path, many), (its, one) in pairs if path != its or not are_alike(many, row, one))
        other = next((f"another {'.'.join(path) or 'value'}" for path in odd), None)
    if other is None:
        return found
    progress.cut(
        0,
        f"transform {step.name} maps row {row} of {count}, and gives {other} for that row alone, so batches would "
        "depend on which rows are read together, and that changes with actors and resumes. Make each row of the "
        "result of its own row: give it statistics of the data beforehand, and make random numbers in random_map",
    )
    return None


def rows_copied(columns: Columns, rows: list[int]) -> Columns:
    return columns_copied(map_leaves(lambda array: array[rows], columns))


def _each_alone(progress: Progress, step: Step, whole: BaseException, together: Callable[[list[Any]], Any]) -> Columns:
    """Run the step for each element alone. together: gives the argument for several of progress.elements."""
    if not is_of_data(whole):
        raise whole
    count, what = len(progress.elements), f"transform {step.name}"
    progress.run([Call(lambda element, *_: [_call(step, together([element]), 1)], what, "filter")])
    if len(progress.elements) == count:
        verb = "decodes" if step.kind == "decode" else "maps"
        reason = f"{what} {verb} this and the next {count - 1} records alone, but not together; it raised "
        progress.cut(0, f"{reason}{type(whole).__name__}: {message_of(whole)}", whole)
        return None
    kept = progress.elements
    return _call(step, together(kept), len(kept)) if kept else None


def takes_fixed_records(step: Step) -> bool:
    """Whether a decoder has takes_fixed_records: then its arrays are not copied (see FixedRecords)."""
    return step.kind == "decode" and getattr(getattr(step.call, "__self__", None), "takes_fixed_records", False)


def _call(step: Step, given: Any, count: int) -> Columns:
    try:
        held = [step.call(given)]
    except Exception as error:
        if isinstance(given, Mapping):
            error.add_note(given_note(given, error))
        raise
    if held[0] is None:
        raise UnfitError("None", "; does it end without `return`?")
    columns = held[0] if takes_fixed_records(step) else own_columns(held, given if step.kind == "map_columns" else {})
    found = list(leaves(columns))
    if not found:
        raise ValueError("its result has no fields; an element needs at least one")
    for path, array in found:
        name = ".".join(path) or "its result"
        if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):  # np.ma is loaded by its first use
            copied(array, path)
        if not isinstance(array, np.ndarray) or not array.ndim:
            remedy = "" if isinstance(array, np.ndarray | np.generic) else "; np.asarray makes one of it"
            raise TypeError(
                f"{name} is a {type(array).__name__}; {step.kind} gives NumPy arrays with a row for each record{remedy}"
            )
        if len(array) != count:
            raise ValueError(
                f"{name} has {len(array)} rows for {count} records; {step.kind} gives one for each. A filter(element) "
                "leaves records out, and a flat_map(element) gives several"
            )
    return columns


def _stack(progress: Progress, before: int | None = None) -> Columns:
    """The columns of the elements before the first that does not fit; of all elements if all fit.

    before: the transform that takes the columns; None for a batch.
    """
    as_objects = [path for at, path in progress.as_objects if at == before]
    while progress.elements:
        try:
            return stack(list(progress.elements), alike=progress.alike, as_objects=as_objects)
        except ColumnError as error:  # the first of one field; another may have one before it
            progress.cut(error.index, error.message)
    return None
