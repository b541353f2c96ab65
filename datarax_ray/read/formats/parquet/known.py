"""What the footers of all files tell of nulls and of the lengths of lists, before any row is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from datarax_ray.read.elements.columns import Path
from datarax_ray.read.formats.arrow.columns import Field, Known
from datarax_ray.read.formats.arrow.types import is_number
from datarax_ray.read.formats.parquet.footer import FileFooter, by_name


def known_of(files: Sequence[FileFooter], schema: Any, *, unknown_are_null: bool = False) -> Known:
    """What these footers tell of the fields of the schema.

    A footer counts, for a leaf, the places without a value: its own nulls, nulls of the structs and lists around it,
    and empty lists. So a null of a field in a struct is sure only where another field of the struct has fewer. Lists
    with places without a value are ragged; where all have one length of more than 1, the nulls are inside.
    unknown_are_null: take a field of numbers that a writer did not count for one with nulls.
    """
    fields = [leaf for part in schema for leaf in _leaves(Field.of_type(part.name, part.type, {}), ())]
    nulls: Counter[str] = Counter()
    unsure: set[str] = set()
    lengths: dict[str, set[int | None]] = {}
    inside: set[str] = set()
    unders: dict[int, dict[str, list[Path]]] = {}  # by id of the leaves, which files of one kind share
    files = [file for file in files if file.num_rows]
    for file in files:
        under = unders.setdefault(id(file.leaves), by_name(file.leaves))
        least: dict[str, int] = {}  # nulls that a struct has at most
        lacking: set[str] = set()
        for field, around in fields:
            if (missing := next((path for path in (*around, field.path) if path not in under), None)) is not None:
                lacking.add(missing)
                lengths.setdefault(missing, set()).add(None)
                continue
            leaf = ".".join(under[field.path][0])
            count = file.null_counts.get(leaf)
            if leaf in file.list_values:
                length = file.list_values[leaf]
                lengths.setdefault(field.path, set()).add(length if not count or (length or 0) > 1 else None)
                if count and (length or 0) > 1:
                    inside.add(field.path)
            elif not is_number(field.type):
                continue
            elif count is None and unknown_are_null:
                nulls[field.path] += 0
            elif count:
                if around and around[-1] not in least:
                    found = [file.null_counts.get(".".join(each)) for each in under[around[-1]]]
                    least[around[-1]] = min(each for each in found if each is not None)
                own = count - (least[around[-1]] if around else 0)
                if own:
                    nulls[field.path] += own
                else:
                    unsure.add(field.path)
        nulls.update(dict.fromkeys(lacking, file.num_rows))
    ragged = {path for path, found in lengths.items() if len(found) > 1 or None in found}
    return Known(
        {path: nulls[path] for path in [*nulls, *inside]},
        unsure - nulls.keys(),
        ragged,
        inside - ragged,
        sum(file.num_rows for file in files),
    )


def _leaves(field: Field, around: tuple[str, ...]) -> Iterator[tuple[Field, tuple[str, ...]]]:
    """The fields that become an array, each with the paths of the structs around it."""
    if not field.parts:
        yield field, around
    for part in field.parts:
        yield from _leaves(part, (*around, field.path))
