"""Batches by length: the elements of many batches in a row, a pool, cut into batches of about one length, and padded.

A pool is read like one large batch of all rows, by every trainer, so its batches are a pure function of the stream. A
state in the middle of a pool has the place where the pool begins, and how many of its batches were given; a resume
reads the pool again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import numpy as np

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.trail import part_of
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import LengthBatches, Padding, padding_of, rows_by_length
from datarax_ray.plan.runs import rows_in
from datarax_ray.plan.state import PoolState, StreamState
from datarax_ray.plan.trainer_rows import TrainerRows
from datarax_ray.read.elements.columns import map_leaves
from datarax_ray.read.errors import Skipped

Batches = Generator[HostBatch, None, tuple[Skipped, ...]]


def by_length(
    pools: Batches,
    start: StreamState,
    lengths: LengthBatches,
    rows: TrainerRows,
    *,
    seed: int,
    drop_remainder: bool,
    padded: Callable[[Padding], None],
) -> Batches:
    """The batches of the pools, from a state on. rows: this trainer's rows of every batch. seed: of the order.

    padded: called with the padding of each pool.

    Raises: DriftError if the first pool differs from the pool when the state was taken.
    """
    begin, given = start._replace(pool=PoolState()), start.pool.num_given
    like: dict[str, tuple[Any, ...]] = {}
    unreported: tuple[Skipped, ...] = ()
    with closing(pools):
        while True:
            try:
                pool = next(pools)
            except StopIteration as end:
                return unreported + (end.value or ())
            stop = pool.stop + (pool.state.offset > 0)
            if given and start.pool.stop != stop:
                raise DriftError(
                    f"the checkpoint stands behind {given} batches of a pool of positions [{begin.position}, "
                    f"{start.pool.stop}), which now are [{begin.position}, {stop}): the remaining batches of the pool "
                    "would differ. Restore a state from the end of a pool (each num_batches batches), or "
                    f"seek({begin.position}) to begin the pool again"
                )
            cuts, after, batch = _cut(pool, begin, lengths, rows, seed, drop_remainder, like, padded)
            unreported = () if cuts else pool.skipped
            for number, cut in enumerate(cuts[given:], given + 1):
                yield batch(cut, after if number == len(cuts) else begin._replace(pool=PoolState(number, stop)))
            begin, given = pool.state, 0


def _cut(
    pool: HostBatch,
    begin: StreamState,
    lengths: LengthBatches,
    rows: TrainerRows,
    seed: int,
    drop_remainder: bool,
    like: dict[str, tuple[Any, ...]],
    padded: Callable[[Padding], None],
) -> tuple[list[Indices], StreamState, Callable[[Indices, StreamState], HostBatch]]:
    """The rows of each batch of the pool, the state behind the pool, and a function (rows, state) -> batch.

    like: dtype and shape of a token of each field, once one was seen.
    """
    names, count, size = lengths.names, pool.num_rows, rows.batch_size
    if f"{names[0]}_length" in pool.columns:
        raise ValueError(
            f"LengthBatches makes a field {names[0] + '_length'!r} of its own, and the elements have one; give theirs "
            "another name in a transform"
        )
    nth = np.zeros(count, np.int64) if pool.ordinals is None else pool.ordinals
    after = pool.state
    if drop_remainder and count % size:  # of the stream, or short rows would be kept rather than long ones
        count -= count % size
        after = begin._replace(position=int(pool.positions[count]), offset=int(nth[count]))
    length = np.fromiter(map(len, pool.columns[names[0]]), np.int64, pool.num_rows)
    for name in names:
        _check_alike(name, pool, lengths.padding[name], like)
    cuts = rows_by_length(length[:count], size, seed, f"{begin.position}/{begin.offset}")
    if count:
        padded(padding_of(length[:count], cuts, size, lengths))
    last = part_of(pool.positions, nth, pool.columns, is_written=True) if count == pool.num_rows else None

    def batch(cut: Indices, state: StreamState) -> HostBatch:
        mine = rows_in(rows.of(len(cut)), cut)
        width = lengths.width(int(length[cut].max()))
        columns = map_leaves(lambda column: column[mine], pool.columns)
        for name in names:
            dtype, shape = like.get(name, (pool.columns[name][0].dtype, pool.columns[name][0].shape[1:]))
            filled = np.full((len(mine), width, *shape), lengths.padding[name], dtype)
            for into, row in zip(filled, columns[name], strict=True):  # a mask takes thrice as long for long rows
                into[: len(row)] = row
            columns[name] = filled
        columns[f"{names[0]}_length"] = length[mine].astype(np.int32)
        is_last = not state.pool.num_given
        return HostBatch(
            columns,
            pool.positions[mine],
            int(pool.positions[cut[0]]),
            state,
            len(cut),
            pool.skipped if is_last else (),
            None if pool.ordinals is None else nth[mine],
            int(nth[cut[0]]),
            digest=0 if pool.row_digests is None else int(pool.row_digests[cut].sum()),
            documents=last if is_last else None,
            in_order=False,
        )

    return cuts, after, batch


def _check_alike(name: str, pool: HostBatch, fill: int, like: dict[str, tuple[Any, ...]]) -> None:
    """Raise ValueError if rows of a field differ in dtype or shape, or its padding is no value of their dtype."""
    kinds = {(row.dtype, row.shape[1:]): at for at, row in reversed([*enumerate(pool.columns[name])]) if len(row)}
    if not kinds:
        return  # empty rows say nothing of the dtype
    if name not in like:
        like[name] = min(kinds, key=kinds.__getitem__)
        dtype = like[name][0]
        if dtype.kind in "iu" and not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max:
            raise ValueError(f"pad_id={fill} is no {dtype}, which {name!r} is; give {name!r} a value of its own")
    if odd := kinds.keys() - {like[name]}:
        other = min(odd, key=kinds.__getitem__)
        raise ValueError(
            f"field {name!r} is {like[name][0]} with rows of shape {like[name][1]} so far, and {other[0]} {other[1]} "
            f"at position {pool.positions[kinds[other]]}; make them alike in a transform"
        )
