"""From blocks to outputs, by hand: the order of rows, addresses, and failures. Against Grain in tests/grain."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from datarax_ray.grain.engine.outputs import Address, Batching, Stages, outputs
from datarax_ray.grain.engine.stream import Elements, ObjectList
from datarax_ray.read.block import Block
from datarax_ray.read.errors import RecordError


def block(*rows: tuple[int, Any], failed_at: int | None = None) -> Block:
    """Rows of (position, element)."""
    positions = np.array([position for position, _ in rows], np.int64)
    elements = Elements(ObjectList([element for _, element in rows])) if rows else None
    failure = None if failed_at is None else RecordError(f"broken at {failed_at}", failed_at)
    return Block(positions, elements, (), failure, failed_at or 0)


def results(chunks: Any, stages: Stages = (), start: Address = (0, 0)) -> list[tuple[Any, Address]]:
    made = outputs(chunks, None, stages, start, quiet_after=10**9)
    return [(item.data, after) for item, after in made]


def stream(*chunks: tuple[int, int, list[Block]]) -> Generator[tuple[int, int, list[Block]], None, None]:
    yield from chunks


def in_batches(size: int, drop_remainder: bool = False) -> Batching:
    return Batching(size, drop_remainder, np.stack, "Batch")


def test_rows_of_several_blocks_come_in_the_order_of_their_positions() -> None:
    blocks = [block((0, "a"), (1, "b"), (4, "e")), block((2, "c"), (3, "d"), (5, "f"))]
    got = results(stream((0, 6, blocks), (6, 8, [block((6, "g"))])))
    assert got == [
        ("a", (1, 0)),
        ("b", (2, 0)),
        ("c", (3, 0)),
        ("d", (4, 0)),
        ("e", (5, 0)),
        ("f", (6, 0)),
        ("g", (7, 0)),
    ]


def test_a_failure_is_raised_after_what_is_before_it_in_any_block() -> None:
    blocks = [block((0, "a"), (3, "d"), (3, "e"), failed_at=3), block((1, "b"), (4, "x"), failed_at=6)]
    made = outputs(stream((0, 8, blocks)), None, (), (0, 0), quiet_after=10**9)
    got = [(item.data, after) for item, after in (next(made) for _ in range(4))]
    # two outputs of position 3 were made before it failed, so it is not yet past
    assert got == [("a", (1, 0)), ("b", (2, 0)), ("d", (3, 1)), ("e", (3, 2))]
    with pytest.raises(RecordError, match="broken at 3"):
        next(made)


def test_batches_go_across_blocks_and_chunks() -> None:
    chunks = [(0, 4, [block((0, 0), (2, 2)), block((1, 1), (3, 3))]), (4, 5, [block((4, 4))])]
    got = results(stream(*chunks), [in_batches(3)])
    assert [(data.tolist(), after) for data, after in got] == [([0, 1, 2], (3, 0)), ([3, 4], (5, 0))]
    got = results(stream(*chunks), [in_batches(3, drop_remainder=True)])
    assert [data.tolist() for data, _ in got] == [[0, 1, 2]]
