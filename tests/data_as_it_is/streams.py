"""One stream, read as people read it: at once, from its middle on by another source, and by two actors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from datarax_ray import Pipeline, RaySource


def plain(value: Any) -> Any:
    """As Python has it."""
    if isinstance(value, dict):
        return {name: plain(value[name]) for name in sorted(value)}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return [plain(each) for each in value] if isinstance(value, list) else value


def rows(batches: Any) -> list[Any]:
    """The elements of batches of plain fields."""
    found = []
    for batch in batches:
        columns = plain(batch)
        first = columns
        while isinstance(first, dict):
            first = next(iter(first.values()))
        found += [_row(columns, index) for index in range(len(first))]
    return found


def _row(columns: Any, index: int) -> Any:
    return (
        {name: _row(column, index) for name, column in columns.items()} if isinstance(columns, dict) else columns[index]
    )


def pipeline(source: Any, batch_size: int = 2) -> Pipeline:
    return Pipeline(source=source, batch_size=batch_size, on_host=True)


def assert_gives(make: Callable[[], Any], want: list[Any], *, num_actors: int = 0) -> None:
    """The source gives these elements, and so it does when it goes on behind the first batch, and over actors."""
    first = pipeline(make())
    assert rows(first) == want
    first.seek(0)
    next(iter(first))
    state = json.loads(json.dumps(first.get_state()))
    resumed = pipeline(make())
    resumed.set_state(state)
    assert rows(resumed) == want[2:]
    if num_actors:
        with RaySource(make(), num_actors=num_actors, num_cpus=0.5, chunk_size=2) as distributed:
            assert rows(pipeline(distributed)) == want
