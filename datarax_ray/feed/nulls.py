"""Nulls of tables behind transforms of single elements.

A column of numbers with nulls is objects, with None. Behind a transform of single elements there are values, and the
rows of one block do not tell whether a row of another is None. So the first rows go through the transforms with None in
each such field before anything is read: where the result has None, its column is objects in every block.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax_ray.feed.stream import StreamOptions, chunks
from datarax_ray.plan.state import StreamState
from datarax_ray.read.block import rows_copied, transformed
from datarax_ray.read.elements.columns import Columns, leaves, unstack, unstack_to_stack
from datarax_ray.read.elements.progress import ObjectsAt, Progress
from datarax_ray.read.errors import message_of
from datarax_ray.read.stream import held

if TYPE_CHECKING:
    from datarax_ray.read.formats.arrow.columns import ColumnTypes

logger = logging.getLogger("datarax_ray")

_MAX_ROWS = 8  # of which the first counts that no filter drops


def with_known_nulls(stream: Any, types: ColumnTypes, first: str) -> Any:
    """The stream, with the fields that are objects behind its transforms; warns once of fields that nulls keep there.

    stream: an ElementStream. types: of its rows. first: the place of the first row.
    """
    named = {path: f"{path} ({told})" if told else path for path, told in types.nulls.items()}
    of_elements = [step.kind not in ("decode", "map_columns") for step in stream.steps]
    if not named or not any(of_elements):
        if moved := types.moved:
            _warn_of_nulls(first, "", tuple(named[path] for path in moved), next(iter(moved)))
        return stream
    ends = [at + 1 for at, is_so in enumerate(of_elements) if is_so and not any(of_elements[at + 1 : at + 2])]
    rows = _first_rows(stream)
    found: dict[str, set[ObjectsAt]] = {}
    for path in named:
        found[path], raised = _left_none(stream, [None if at == len(of_elements) else at for at in ends], rows, path)
        if raised:
            _warn_of_failure(first, named[path], path, raised)
    if kept := [path for path in types.moved if found[path]]:
        name = stream.steps[of_elements.index(True)].name
        _warn_of_nulls(first, name, tuple(named[path] for path in kept), kept[0])
    return replace(stream, as_objects=frozenset(itertools.chain.from_iterable(found.values())))


def _first_rows(stream: Any) -> list[Columns]:
    """The columns of each of the first rows, before transforms."""
    bare = replace(stream, transforms=(), on_error="raise")
    rows: list[Columns] = []
    with held(stream):
        if hasattr(bare.order, "records"):
            records = np.arange(min(_MAX_ROWS, bare.order.num_records))  # in file order, so of one group
            blocks = iter([bare.block_at(records, records)])
        else:
            chunked = chunks(bare, None, StreamState(), StreamOptions(1, chunk_size=1))
            blocks = itertools.chain.from_iterable(blocks for _, _, blocks in chunked)
        for block in blocks:
            rows += [rows_copied(block.columns, [row]) for row in range(len(block.positions))]
            if len(rows) >= _MAX_ROWS:
                break
    return rows[:_MAX_ROWS]


def _left_none(
    stream: Any, ends: Iterable[int | None], rows: Iterable[Columns], path: str
) -> tuple[set[ObjectsAt], str]:
    """The fields that are None for a null of the field at this path; and the error that such a null raises, or "".

    ends: the transforms before which elements become columns; None for a batch.
    Nothing of both where other rows raise as well, as where a transform loads a model that only other hosts have.
    """
    found: set[ObjectsAt] = set()
    for before in ends:
        for row in rows:
            made, raised = _made(stream, row, before, path.split("."))
            if raised:
                return found, "" if _made(stream, row, before)[1] else raised
            found |= {(before, where) for element in made for where, value in leaves(element) if value is None}
            if made:
                break
    return found, ""


def _made(stream: Any, row: Columns, before: int | None, null: Sequence[str] = ()) -> tuple[list[Any], str]:
    """The elements that the transforms before this one make of the row, and their failure, or "".

    null: the path of a field that is None in the row.
    """
    given = unstack_to_stack(rows_copied(row, [0]), 1)
    inner = given[0]
    for key in null[:-1]:
        inner = inner[key]
    if null:
        inner[null[-1]] = None
    progress = Progress(given, [0], [0], on_error="raise", locate=lambda _: "")
    with held(stream):
        try:
            columns = transformed(progress, None, stream.steps[:before], stream.order.seed)
        except Exception as error:
            return [], message_of(error)
    if progress.failure is not None:
        return [], str(progress.failure).partition(": ")[2]
    return progress.elements if columns is None else unstack(columns, len(progress.positions)), ""


@functools.cache  # each copy of a source looks at the first rows anew
def _warn_of_nulls(first: str, step: str, names: tuple[str, ...], one: str) -> None:
    logger.warning(
        "fields with nulls stay on the host, as objects with None%s: %s. on_null={%r: 0} in the source's config "
        "makes an array of it, on_null='host' ends this warning, on_null='error' refuses nulls",
        f", also behind transform {step}" if step else "",
        ", ".join(names),
        one,
    )


@functools.cache
def _warn_of_failure(first: str, name: str, path: str, raised: str) -> None:
    logger.warning(
        "a null in field %s makes its row a broken record, which ends the stream or is skipped, as on_error says: with "
        "None there %s. on_null={%r: 0} in the source's config has a value there",
        name,
        raised,
        path,
    )
