"""What a case's stream is, by plain loops over single elements: Grain's own shuffle, the transforms called one by one.

Of datarax_ray it uses the order of Parquet's row groups and the component at a mixture's position, which have plain
loops of their own in tests/plan; everything else is written again here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from grain.experimental import index_shuffle

from datarax_ray.plan.orders.mixture import Mixture
from tests import shards_oracle
from tests.fuzz.stream_cases import (
    BUFFER,
    NEW_WEIGHTS,
    NUM_SHARDS,
    SEQ_LEN,
    TURN,
    WEIGHTS,
    Case,
    Columns,
    components,
    null_or,
    transforms_of,
)

WINDOW_BLOCKS = 64
WINDOW_STRIDE = 0x9E3779B1
EPOCH_POSITIONS = 2**40


@dataclass(frozen=True)
class Row:
    position: int
    element: dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """batches: of each the rows, as {field: list of values}, and how many are no padding. failed_at: the position of
    the error that ends the stream, None without. num_skipped: elements left out. is_empty: nothing is kept."""

    batches: list[tuple[dict[str, list[Any]], int]]
    failed_at: int | None
    num_skipped: int
    is_empty: bool


class FailedError(Exception):
    pass


def wanted(case: Case, order_of_groups: Any = None) -> Wanted:
    """The whole stream. order_of_groups: (positions) -> records, for Parquet in blocks."""
    rows: list[Row] = []
    failed_at = None
    skipped = [0]
    if case.kind == "merged" and any(map(_has_empty_epoch, components(case))):
        return Wanted([], None, 0, is_empty=True)
    try:
        rows.extend(_merged(case, skipped) if case.kind == "merged" else _rows(case, order_of_groups, skipped))
    except FailedError as failure:
        position, before = failure.args
        failed_at, rows = position, [row for row in before if row.position < position]
    batches = list(_batches(case, rows, failed_at is not None))
    is_empty = failed_at is None and not batches and not (rows and case.packing is None)
    return Wanted(batches, failed_at, skipped[0], is_empty)


def _rows(case: Case, order_of_groups: Any, skipped: list[int]) -> list[Row]:
    out: list[Row] = []
    chains: dict[int, Chain] = {}
    for component, position, own, element in _stored(case, order_of_groups):
        if any(start <= position < stop for start, stop in case.skip):
            continue
        part = components(case)[component] if case.kind == "mixture" else case
        chain = chains.setdefault(component, Chain(part, skipped))
        try:
            out += [Row(position, found) for found in chain(element, own)]
        except ZeroDivisionError:
            raise FailedError(position, out) from None
    return out


def _alone(part: Case) -> tuple[list[Row], list[int], bool]:
    """What a component gives, documents where they are packed; positions of what it leaves out; whether it fails."""
    out: list[Row] = []
    broken: list[int] = []
    count = [0]
    chain = Chain(part, count)
    for _, position, own, element in _stored(part, None):
        before = count[0]
        try:
            found = chain(element, own)
        except ZeroDivisionError:
            return out, broken, True
        broken += [position] * (count[0] - before)
        if part.packing is not None:
            cut = [each["t"] for each in found]
            size = {"concat": 10**9, "first fit": SEQ_LEN}.get(part.packing)
            found = [
                {"t": t[i : i + (size or SEQ_LEN)]}
                for t in cut
                for i in range(0, len(t) if size else min(1, len(t)), size or 1)
            ]
        out += [Row(position, each) for each in found]
    return out, broken, False


def _has_empty_epoch(part: Case) -> bool:
    """Whether an epoch of a component gives nothing, which may be an error."""
    rows, _, has_failed = _alone(part)
    size = EPOCH_POSITIONS if part.kind == "hf stream" else part.num_records
    found = {row.position // size for row in rows}
    return len(found) < (max(found, default=0) + 1 if has_failed else part.num_epochs)


def _merged(case: Case, skipped: list[int]) -> list[Row]:
    """The elements of components, one after the other; what is left out is told with the next one of its component."""
    given = [_alone(part) for part in components(case)]
    out: list[Row] = []
    taken = [0] * len(given)
    while True:
        position = sum(taken)
        component = int(Mixture(WEIGHTS, case.seed).place(np.array([position]))[0][0])
        rows, _, has_failed = given[component]
        if taken[component] == len(rows):
            break
        if not any(start <= position < stop for start, stop in case.skip):
            out.append(Row(position, rows[taken[component]].element))
        taken[component] += 1
    if has_failed:
        raise FailedError(position, out)
    for number, ((rows, broken, _), count) in enumerate(zip(given, taken, strict=True)):
        seen = rows[count - 1].position if count else -1
        skipped[0] += sum(at <= seen or number == component for at in broken)
    return out


class Chain:
    """One component's transforms, over one element after the other."""

    def __init__(self, case: Case, skipped: list[int]) -> None:
        self._case = case
        self._transforms = transforms_of(case)
        self._skipped = skipped

    def __call__(self, element: Any, position: int) -> list[Any]:
        found = [(copy.deepcopy(element), 0)]
        for index, transform in enumerate(self._transforms):
            after: list[tuple[Any, int]] = []
            for each, ordinal in found:
                try:
                    after += [
                        (copy.deepcopy(made), ordinal)
                        for made in self._apply(transform, index, each, position, ordinal)
                    ]
                except ZeroDivisionError:
                    if self._case.on_error == "raise":
                        raise
                    self._skipped[0] += 1
            if hasattr(transform, "flat_map"):
                after = [(each, number) for number, (each, _) in enumerate(after)]
            found = after
        return [each for each, _ in found]

    def _apply(self, transform: Any, index: int, element: Any, position: int, ordinal: int) -> list[Any]:
        if hasattr(transform, "filter"):
            return [element] if transform.filter(element) else []
        if hasattr(transform, "flat_map"):
            return list(transform.flat_map(element))
        if hasattr(transform, "random_map"):
            key = np.array([self._case.seed, index], np.uint64)
            counter = np.array([0, 0, position, ordinal], np.uint64)
            return [transform.random_map(element, np.random.Generator(np.random.Philox(key=key, counter=counter)))]
        if hasattr(transform, "map_with_index"):
            return [transform.map_with_index(position, element)]
        if isinstance(transform, Columns):
            return [element | {"z": element["x"] * 2}]
        return [transform.map(element)]


def _stored(case: Case, order_of_groups: Any) -> Iterator[tuple[int, int, int, Any]]:
    """(component, position, position of the component's own, element) of every record of the stream."""
    if case.kind == "hf stream":
        yield from ((0, position, position, {"x": x}) for position, x in _shards(case))
        return
    if case.kind == "mixture":
        parts = components(case)
        seen = [0, 0]
        for position in range(case.num_epochs * case.num_records):
            is_new = case.reweighted is not None and position >= case.reweighted
            mixture = Mixture(NEW_WEIGHTS if is_new else WEIGHTS, case.seed)
            component = int(mixture.place(np.array([position - (case.reweighted or 0) * is_new]))[0][0])
            own, part = seen[component], parts[component]
            seen[component] += 1
            epoch, offset = divmod(own, part.num_records)
            yield component, position, own, _element(part, _order(part, epoch, None)[offset])
        return
    for epoch in range(case.num_epochs):
        for offset, record in enumerate(_order(case, epoch, order_of_groups)):
            position = epoch * case.num_records + offset
            yield 0, position, position, _element(case, record)


def _element(case: Case, record: int) -> Any:
    if case.kind.startswith("array_record"):
        return np.array([record], "<i8").tobytes()
    return {"x": record} | ({"m": null_or(record)} if case.has_nulls else {})


def _order(case: Case, epoch: int, order_of_groups: Any) -> list[int]:
    n, seed = case.num_records, (case.seed + epoch) % 2**32
    if case.shuffle == "none":
        return list(range(n))
    if case.kind == "parquet" and case.shuffle == "block":
        found = order_of_groups(np.arange(epoch * n, (epoch + 1) * n)).tolist()
        assert sorted(found) == list(range(n))
        return list(found)
    if case.shuffle == "global":
        return [_shuffled(i, n, seed, case.rounds) for i in range(n)]
    size = case.block_size
    num_blocks = -(-n // size)
    in_slots: list[int] = []
    for slot in range(num_blocks):
        block = _shuffled(slot, num_blocks, seed, 8)
        in_slots += range(block * size, min((block + 1) * size, n))
    out: list[int] = []
    window = WINDOW_BLOCKS * size
    for number, begin in enumerate(range(0, n, window)):
        inside = min(window, n - begin)
        mixed = (seed + (number + 1) * WINDOW_STRIDE) % 2**32
        out += [in_slots[begin + _shuffled(i, inside, mixed, 8)] for i in range(inside)]
    return out


@lru_cache(maxsize=2**18)
def _shuffled(index: int, count: int, seed: int, rounds: int) -> int:
    return int(index_shuffle(index, max_index=count - 1, seed=seed, rounds=rounds)) if count > 1 else 0


def _shards(case: Case) -> list[tuple[int, int]]:
    """(position, record) of every element of the shards, which datasets cuts into runs of nearly one length."""
    count = min(NUM_SHARDS, case.num_records)
    seed = None if case.shuffle == "none" else case.seed
    small, more = divmod(case.num_records, count)
    lengths = [small + (shard < more) for shard in range(count)]
    starts = np.cumsum([0, *lengths]).tolist()
    out = []
    for epoch in range(case.num_epochs):
        for place, shard in enumerate(shards_oracle.shards(count, epoch, seed)):
            inside = list(range(lengths[shard]))
            if seed is not None:
                inside = shards_oracle.window_order(lengths[shard], BUFFER, seed=seed, epoch=epoch, shard=shard)
            for ordinal, index in enumerate(inside):
                offset = (ordinal // TURN * count + place) * TURN + ordinal % TURN
                out.append((epoch * EPOCH_POSITIONS + offset, starts[shard] + index))
    return sorted(out)


# -- batches ----------------------------------------------------------------------------------------------------------


def _batches(case: Case, rows: list[Row], is_cut: bool) -> Iterator[tuple[dict[str, list[Any]], int]]:
    """is_cut: an error follows the rows, so there is no last batch that is short."""
    if case.packing is None:
        cuts = [rows[i : i + case.batch_size] for i in range(0, len(rows), case.batch_size)]
        found = [{key: [row.element[key] for row in cut] for key in cut[0].element} for cut in cuts]
    else:
        documents = [row.element["t"].tolist() for row in rows]
        found = list((_concat if case.packing == "concat" else _first_fit)(case, documents, is_cut))
    for columns in found:
        count = len(next(iter(columns.values())))
        if count < case.batch_size:
            if is_cut or case.ending == "drop":
                return
            if case.ending == "pad":
                columns = {key: [*values, *[None] * (case.batch_size - count)] for key, values in columns.items()}
        yield columns, count


def _concat(case: Case, documents: list[list[int]], is_cut: bool) -> Iterator[dict[str, list[Any]]]:
    line = [(token, number) for number, document in enumerate(documents) for token in document]
    rows = [line[i : i + SEQ_LEN] for i in range(0, len(line), SEQ_LEN)]
    if is_cut and rows and len(rows[-1]) < SEQ_LEN:
        rows.pop()
    made = []
    for row in rows:
        pieces: list[list[int]] = []
        for index, (token, number) in enumerate(row):
            if index == 0 or number != row[index - 1][1]:
                pieces.append([])
            pieces[-1].append(token)
        made.append(pieces)
    for i in range(0, len(made), case.batch_size):
        yield _packed(made[i : i + case.batch_size])


def _first_fit(case: Case, documents: list[list[int]], is_cut: bool) -> Iterator[dict[str, list[Any]]]:
    cut = []
    for document in documents:
        if case.packing == "first fit":
            cut += [document[i : i + SEQ_LEN] for i in range(0, len(document), SEQ_LEN)]
        elif document:
            cut.append(document[:SEQ_LEN])
    bins: list[list[list[int]]] = [[] for _ in range(case.batch_size)]
    is_empty = True
    for document in cut:
        fitting = [each for each in bins if sum(map(len, each)) + len(document) <= SEQ_LEN]
        if not fitting:
            yield _packed(bins)
            bins = [[] for _ in range(case.batch_size)]
            fitting = bins
        fitting[0].append(document)
        is_empty = False
    if not is_empty and not is_cut:
        yield _packed([each for each in bins if each])


def _packed(rows: list[list[list[int]]]) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {"t": [], "t_segment_ids": [], "t_positions": []}
    for pieces in rows:
        line = [(token, 1 + number, index) for number, piece in enumerate(pieces) for index, token in enumerate(piece)]
        line += [(-1, 0, 0)] * (SEQ_LEN - len(line))
        for key, values in zip(out, zip(*line, strict=True), strict=True):
            out[key].append(np.array(values, np.int32))
    return out
