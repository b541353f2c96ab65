"""Which records a split of TensorFlow Datasets means: "train", "train[:80%]+test", "train[1shard]".

Source: tensorflow_datasets/core/splits.py (ReadInstruction, rounding "closest") and core/utils/shard_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SPLIT = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[\d\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")

ShardLengths = Mapping[str, Sequence[int]]  # records in each shard, by split


@dataclass(frozen=True)
class ShardPart:
    """Records [skip, skip + take) of one shard of a split."""

    split: str
    shard: int
    skip: int
    take: int


def shard_parts(spec: str, lengths: ShardLengths) -> tuple[ShardPart, ...]:
    """The parts of shards that the split means, in their order; shards without records are left out.

    A percentage p is record round(p * num_records / 100), a half going to the even one.

    Raises: ValueError for a split that is not there, a slice that is none, or one outside the split.

    >>> shard_parts("train[:50%]+test", {"train": [6, 5], "test": [2]})
    (ShardPart(split='train', shard=0, skip=0, take=6), ShardPart(split='test', shard=0, skip=0, take=2))
    >>> shard_parts("train[5:8]", {"train": [6, 5]})
    (ShardPart(split='train', shard=0, skip=5, take=1), ShardPart(split='train', shard=1, skip=0, take=2))
    """
    found: list[ShardPart] = []
    for part in re.split(r"\s*\+\s*", spec):
        for split in lengths if part == "all" else (part,):
            name, start, stop = _interval(split, lengths)
            found += _cut(name, start, stop, lengths[name])
    return tuple(found)


def _interval(spec: str, lengths: ShardLengths) -> tuple[str, int, int]:
    """The split, and its records [start, stop)."""
    match = _SPLIT.fullmatch(spec)
    if match is None:
        raise _unreadable(spec)
    name = match["name"]
    if name == "all":
        raise ValueError(f"split {spec!r}: 'all' cannot be sliced; slice each split, as in 'train[:10%]+test[:10%]'")
    if name not in lengths:
        raise ValueError(f"there is no split {name!r}, only {list(lengths)}")
    total = sum(lengths[name])
    start, stop = (0, total) if match["slice"] is None else _slice(spec, match["slice"], lengths[name])
    if abs(start) > total or abs(stop) > total:
        raise ValueError(f"split {spec!r} is records [{start}, {stop}), and {name} has {total}")
    return name, start if start >= 0 else total + start, stop if stop >= 0 else total + stop


def _slice(spec: str, text: str, lengths: Sequence[int]) -> tuple[int, int]:
    bounds = [_BOUND.fullmatch(bound) for bound in text.split(":")]
    if not all(bounds) or not any(bound and bound["value"] for bound in bounds) or len(bounds) > 2:
        raise _unreadable(spec)
    values = [bound["value"] for bound in bounds if bound]
    unit = next((bound["unit"] for bound in bounds if bound and bound["unit"]), None)  # "[50:80%]" is 50% to 80%
    if len(values) == 1:
        if unit != "shard":
            raise ValueError(f"split {spec!r}: one record is [n:n+1], and one percent [n%:n+1%]; only shards are [n]")
        values.append(str(int(values[0]) + 1))
    try:
        return _absolute(values, unit, lengths)
    except ValueError as error:
        raise ValueError(f"split {spec!r}: {error}") from error


def _absolute(values: Sequence[str | None], unit: str | None, lengths: Sequence[int]) -> tuple[int, int]:
    total = sum(lengths)
    first, last = values
    if unit == "%":
        start, stop = float(first or 0), float(last or 100)
        if max(abs(start), abs(stop)) > 100:
            raise ValueError(f"percentages are from -100 to 100, got {start:g} and {stop:g}")
        return round(start * total / 100), round(stop * total / 100)
    if unit == "shard":
        end = len(lengths) if last is None else int(last)
        return sum(lengths[: int(first or 0)]), sum(lengths[: end if end > 0 else len(lengths) + end])
    return int(first or 0), total if last is None else int(last)


def _cut(split: str, start: int, stop: int, lengths: Sequence[int]) -> list[ShardPart]:
    found, begin = [], 0
    for shard, length in enumerate(lengths):
        lo, hi = max(start, begin), min(stop, begin + length)
        if lo < hi:
            found.append(ShardPart(split, shard, lo - begin, hi - lo))
        begin += length
    return found


def _unreadable(spec: str) -> ValueError:
    return ValueError(
        f"split {spec!r} is none of 'train', 'train[100:200]', 'train[:80%]', 'train[2shard]', 'all', and sums of these"
    )
