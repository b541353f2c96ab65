"""Nulls of tables behind transforms of single elements.

A column of numbers with nulls is objects, with None. Behind a transform of single elements there are values, and the
rows of one block do not tell whether a row of another is None. So the first rows go through the transforms with None in
each such field before anything is read: where the result has None, its column is objects in every block.
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax_ray.feed.stream import StreamOptions, chunks
from datarax_ray.plan.state import StreamState
from datarax_ray.read.block import rows_copied, transformed
from datarax_ray.read.elements.columns import Columns, Path, leaves, unstack, unstack_to_stack
from datarax_ray.read.elements.progress import ObjectsAt, Progress
from datarax_ray.read.errors import message_of
from datarax_ray.read.formats.arrow.types import value_like
from datarax_ray.read.stream import held

if TYPE_CHECKING:
    from datarax_ray.read.formats.arrow.columns import ColumnTypes, Field

logger = logging.getLogger("datarax_ray")

_MAX_ROWS, _MOST_MADE = 16, 4  # rows that are tried, and those that are enough if no filter drops them


def with_known_nulls(stream: Any, types: ColumnTypes, first: str) -> Any:
    """The stream, with the fields that are objects behind its transforms; warns once of fields that nulls keep there.

    stream: an ElementStream. types: of its rows. first: the place of the first row.
    """
    # by path: a value for its nulls, as an example, and the keys to it
    keyed = [each for field in types.fields for each in _keyed(field, (field.path,))]
    leaves_of = {leaf.path: (value_like(leaf.type), keys) for leaf, keys in keyed}
    told = {**types.missing, **types.nulls}
    named = {path: f"{path} ({count})" if count else path for path, count in told.items()}
    of_elements = [step.kind not in ("decode", "map_columns") for step in stream.steps]
    found: set[ObjectsAt] = set()
    if not any(of_elements[:1]):  # pictures of several sizes come as elements, with all that is beside them
        found |= {(0 if of_elements else None, leaves_of[path][1]) for path in types.nulls}
    kept, name = list(types.moved), ""
    if named and any(of_elements):
        name, rows = stream.steps[of_elements.index(True)].name, _first_rows(stream)
        ends = [at + 1 for at, is_so in enumerate(of_elements) if is_so and not any(of_elements[at + 1 : at + 2])]
        trial = _Trial(stream, [None if at == len(of_elements) else at for at in ends], rows)
        for path in named:
            value, keys = leaves_of[path]
            left, raised = trial.left_none([keys])
            if path in types.nulls or value is not None:
                found |= left
            if raised and path in types.missing:
                put = f"on_null={{{path!r}: {value!r}}} in the source's config puts a value there"
                _warn_of_failure(first, named[path], raised, "Let it take None" if value is None else put)
            if not left and path in kept:
                kept.remove(path)
        if len(types.nulls) > 1:
            found |= trial.left_none([leaves_of[path][1] for path in types.nulls])[0]
    if kept:
        one = next((path for path in kept if leaves_of[path][0] is not None), kept[0])
        value = leaves_of[one][0]
        put = f"on_null={{{one!r}: {value!r}}} in the source's config"
        put = "A transform that fills them in" if value is None else put
        _warn_of_nulls(first, name, tuple(named[path] for path in kept), put)
    return replace(stream, as_objects=frozenset(found))


def _keyed(field: Field, keys: Path) -> Iterator[tuple[Field, Path]]:
    """The leaves of a field, with the keys to them; a key may have dots."""
    if [*field.leaves] == [field]:
        yield field, keys
        return
    for part in field.parts:
        yield from _keyed(part, (*keys, part.path.removeprefix(f"{field.path}.")))


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


@dataclass(frozen=True)
class _Trial:
    """The transforms of a stream, tried with None in some fields of its first rows.

    ends: the transforms before which elements become columns; None for a batch. rows: the columns of each row.
    """

    stream: Any
    ends: Sequence[int | None]
    rows: Sequence[Columns]

    def left_none(self, nulls: Sequence[Path]) -> tuple[set[ObjectsAt], str]:
        """The fields that are None where all fields under these keys are; and the error that this raises, or "".

        Nothing of both where other rows raise as well, as where a transform loads a model that only other hosts have.
        """
        found: set[ObjectsAt] = set()
        for before in self.ends:
            num_made = 0
            for row in range(len(self.rows)):
                made, raised = self._made(row, before, nulls)
                if raised:
                    return found, "" if self._made(row, before, ())[1] else raised
                found |= {(before, path) for each in made for path, value in leaves(each) if _has_none(value)}
                num_made += bool(made)
                if num_made == _MOST_MADE:
                    break
            if not num_made and all(step.kind == "filter" for step in self.stream.steps[:before]):
                found |= {(before, keys) for keys in nulls}
        return found, ""

    def _made(self, row: int, before: int | None, nulls: Sequence[Path]) -> tuple[list[Any], str]:
        """The elements that the transforms before this one make of the row, and their failure, or ""."""
        given = unstack_to_stack(rows_copied(self.rows[row], [0]), 1)
        for *around, last in nulls:
            functools.reduce(operator.getitem, around, given[0])[last] = None
        progress = Progress(given, [row], [row], on_error="raise", locate=lambda _: "")
        with held(self.stream):
            try:
                columns = transformed(progress, None, self.stream.steps[:before], self.stream.order.seed)
            except Exception as error:
                return [], message_of(error)
        if progress.failure is not None:
            return [], str(progress.failure).partition(": ")[2]
        return progress.elements if columns is None else unstack(columns, len(progress.positions)), ""


def _has_none(value: Any) -> bool:
    is_objects = isinstance(value, np.ndarray) and value.dtype == object
    return value is None or (is_objects and any(each is None for each in value.flat))


@functools.cache  # each copy of a source looks at the first rows anew
def _warn_of_nulls(first: str, step: str, names: tuple[str, ...], remedy: str) -> None:
    logger.warning(
        "fields with nulls stay on the host, as objects with None%s: %s. %s makes an array of it, on_null='host' ends "
        "this warning, on_null='error' refuses nulls",
        f", also behind transform {step}" if step else "",
        ", ".join(names),
        remedy,
    )


@functools.cache
def _warn_of_failure(first: str, name: str, raised: str, remedy: str) -> None:
    logger.warning(
        "a null in field %s makes its row a broken record, which ends the stream or is skipped, as on_error says: with "
        "None there %s. %s",
        name,
        raised,
        remedy,
    )
