"""Blocks: a ticket in, the decoded elements of one part of one chunk out. What an actor does, and all that it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datarax_ray.plan.cipher import Indices
from datarax_ray.plan.shards import Ticket
from datarax_ray.read.columns import ColumnError, Columns, leaves, nbytes, stack, unstack
from datarax_ray.read.description import Description
from datarax_ray.read.errors import RecordError, Skipped
from datarax_ray.read.transforms import Progress, Step, steps


@dataclass(frozen=True)
class Block:
    """Elements of one part of a chunk, stacked.

    positions: int64 (k,), ascending. columns: arrays of shape (k, ...), None where k is 0. skipped: records left out.
    """

    positions: Indices
    columns: Columns
    skipped: tuple[Skipped, ...] = ()
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", 0 if self.columns is None else nbytes(self.columns))


def read_block(description: Description, ticket: Ticket) -> Block:
    """Read, decode, transform and stack what the ticket asks for. The same block wherever and whenever it is called.

    Raises: RecordError for a record that cannot be read, decoded or transformed, unless the description says to skip
    it; ColumnError for elements that do not stack.
    """
    progress, columns = _elements(description, ticket)
    if columns is None and progress.elements:
        columns = _stack(progress, description)
    positions = np.array(progress.positions, np.int64)
    return Block(positions, columns, tuple(sorted(progress.skipped, key=lambda s: s.position)))


def read_elements(description: Description, ticket: Ticket) -> list[Any]:
    """The surviving elements that the ticket asks for, in the order of their positions, not stacked."""
    progress, columns = _elements(description, ticket)
    return progress.elements if columns is None else unstack(columns, len(progress.positions))


def _elements(description: Description, ticket: Ticket) -> tuple[Progress, Columns]:
    """Everything up to stacking; columns are there only where a block decoder is all there is to do."""
    positions, records = ticket.select(description.order)
    progress = _read(description, positions, records)
    todo = list(steps(description.transforms))
    columns: Columns = None
    if todo and todo[0].kind == "decode" and progress.elements:
        columns = _decode(progress, todo[0])
    todo = [step for step in todo if step.kind != "decode"]
    if todo and columns is not None:
        progress.elements = unstack(columns, len(progress.positions))
        columns = None
    for step in todo:
        progress.apply(step, description.order.seed)
    return progress, columns


def _read(description: Description, positions: Indices, records: Indices) -> Progress:
    reader = description.reader
    asked = Progress([], positions.tolist(), records.tolist(), on_error=description.on_error, locate=reader.locate)
    if not len(records):
        return asked
    try:
        asked.elements = list(reader.read(records))
    except RuntimeError:  # array_record's word for a broken record does not say which: ask for each alone
        broken = []
        for index, record in enumerate(asked.records):
            try:
                asked.elements += reader.read(np.array([record], np.int64))
            except RuntimeError as error:
                asked.elements.append(None)
                asked.fail(index, "reading", error)
                broken.append(index)
        asked.drop(broken)
    return asked


def _decode(progress: Progress, step: Step) -> Columns:
    """All records at once; where that fails, each alone, to find the one that is to blame."""
    try:
        return _call_decoder(step, progress.elements)
    except Exception as whole:
        broken = []
        for index, record in enumerate(progress.elements):
            try:
                _call_decoder(step, [record])
            except Exception as error:
                progress.fail(index, f"transform {step.name}", error)
                broken.append(index)
        if not broken:
            raise RecordError(f"transform {step.name} fails on records together that it decodes alone") from whole
        progress.drop(broken)
        return _call_decoder(step, progress.elements) if progress.elements else None


def _call_decoder(step: Step, records: list[bytes]) -> Columns:
    columns = step.call(records)
    for path, array in leaves(columns):
        if len(array) != len(records):
            name = ".".join(path) or "its result"
            raise ValueError(f"{name} has {len(array)} rows for {len(records)} records")
    return columns


def _stack(progress: Progress, description: Description) -> Columns:
    try:
        return stack(progress.elements)
    except ColumnError as error:
        for index in (0, error.index):
            where = description.reader.locate(progress.records[index])
            error.add_note(f"element {index} of this block is {where} at position {progress.positions[index]}")
        raise
