"""Amendments: changes that people make to a running stream, each from a position on, kept in its state as a log.

Earlier positions keep their elements, and every later state repeats the log. So the stream does not depend on the time
or the reader of an amendment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.arguments import whole
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import shown
from datarax_ray.plan.position import Yields, is_count, reading
from datarax_ray.plan.runs import Pairs, joined_runs, pairs, within, without
from datarax_ray.plan.weights import Weights, plain_weights, saved_weights

# Every request carries the log, and every state holds it: 4,096 ranges are some 60 KB.
_MAX_RANGES = 4096
_MAX_AMENDMENTS = 256
_MAX_SHOWN = 3  # ranges, in a line for people


@dataclass(frozen=True)
class Amendment:
    """One change; str() describes the change.

    at: the first changed position.
    positions: positions to skip.
    records: records to skip from `at` on, in every epoch, by their number in the source.
    weights: new weights of a mixture; a schedule begins at `at`; None for no change.
    why: a comment for people.
    """

    at: int
    positions: Pairs = ()
    records: Pairs = ()
    weights: Weights | None = None
    why: str = ""

    def __str__(self) -> str:
        parts = [f"skips {name} {_shown_ranges(ranges)}" for name, ranges in self._skipped().items() if ranges]
        parts += [] if self.weights is None else [f"weights {plain_weights(self.weights)}"]
        return f"from position {self.at:,} on: {', '.join(parts)}{f' ({self.why})' if self.why else ''}"

    def _skipped(self) -> dict[str, Pairs]:
        return {"positions": self.positions, "records": self.records}

    def plain(self) -> dict[str, Any]:
        skipped = {name: [list(each) for each in ranges] for name, ranges in self._skipped().items() if ranges}
        weights = {} if self.weights is None else {"weights": plain_weights(self.weights)}
        return {"at": self.at} | skipped | weights | ({"why": self.why} if self.why else {})


# A log, in the order of the changes. Of two changes of one thing the later one holds.
Amendments: TypeAlias = tuple[Amendment, ...]


def amended(log: Amendments, new: Amendment, first: int) -> Amendments:
    """The log with one more change; parts that the log has already, as after a restart, are dropped.

    first: the first position that was not delivered yet.

    Raises: ValueError for a change of earlier positions, weights that begin before earlier ones, or too large a log.
    """
    positions = without(new.positions, (pair for each in log for pair in each.positions))
    records = without(new.records, (pair for each in log if each.at <= new.at for pair in each.records))
    before = [each for each in log if each.weights is not None]
    is_known = any((each.at, each.weights) == (new.at, new.weights) for each in before)
    holds = bool(before) and isinstance(new.weights, tuple) and before[-1].weights == new.weights
    weights = None if is_known or (holds and before[-1].at <= new.at) else new.weights
    if not (positions or records or weights is not None):
        return log
    at = new.at if records or weights is not None else positions[0][0]
    if (begin := min([at, *(start for start, _ in positions)])) < first:
        raise ValueError(
            f"position {begin} was delivered already, and the next is {first}: delivered elements cannot be changed. "
            "Restore an earlier state, or skip later positions"
        )
    if weights is not None and before and new.at < before[-1].at:
        raise ValueError(
            f"weights were to change at position {new.at}, and they change at {before[-1].at} already, which would "
            f"hold from there on: give at={before[-1].at} or more"
        )
    found = (*log, replace(new, at=at, positions=positions, records=records, weights=weights))
    num_ranges = sum(len(each.positions) + len(each.records) for each in found)
    if num_ranges > _MAX_RANGES or len(found) > _MAX_AMENDMENTS:
        raise ValueError(
            f"a stream takes {_MAX_AMENDMENTS} amendments with {_MAX_RANGES} ranges in all, which its state holds; "
            f"these would be {len(found)} with {num_ranges}. Skip positions rather than records, which lie apart where "
            "they are shuffled, or drop the records in a filter, in a new run"
        )
    return found


def are_skipped(log: Amendments, positions: Indices, records: Indices | None = None) -> NDArray[np.bool_]:
    """Which positions are skipped. positions, records: int64 (k,); records: None where they have no numbers."""
    found = np.zeros(len(positions), bool)
    for each in log:
        if each.positions:
            found |= within(each.positions, positions)
        if each.records and records is not None:
            found |= within(each.records, records) & (positions >= each.at)
    return found


def skips_from(log: Amendments, position: int) -> bool:
    """Whether any position from here on may be skipped."""
    return any(each.records or (each.positions and each.positions[-1][1] > position) for each in log)


class Apart(NamedTuple):
    """Positions [start, stop) in which two logs differ.

    is_sure: whether the streams differ there, by skipped positions or weights. Skipped records may stand elsewhere.
    """

    start: int
    stop: int
    is_sure: bool


def apart(one: Amendments, other: Amendments, since: int, end: int) -> Apart | None:
    """The first positions in [since, end) in which two logs differ, sure differences first; None where none do."""
    skipped, weights, records = [], [], []
    for log in (one, other):
        skipped.append(ranges_of(pair for each in log for pair in each.positions))
        # the weights at `since`, and the later ones by their beginning; a schedule counts from its beginning
        weights.append({max(at, since): new if isinstance(new, tuple) else (at, new) for at, new in changes_of(log)})
        gone: dict[int, Pairs] = {}
        for each in log:
            at = max(each.at, since)
            gone |= {at: ranges_of([*gone.get(at, ()), *each.records])} if each.records else {}
        records.append(gone)
    found = [Apart(*pair, True) for a, b in (skipped, skipped[::-1]) for pair in without(a, b)]
    for (a, b), is_sure in ((weights, True), (records, False)):
        found += [Apart(at, end, is_sure) for at in {*a, *b} if a.get(at) != b.get(at)]
    cut = [Apart(max(start, since), min(stop, end), is_sure) for start, stop, is_sure in found]
    cut = sorted((each for each in cut if each.start < each.stop), key=lambda each: (not each.is_sure, each))
    return cut[0] if cut else None


def yields_from(yields: Yields, log: Amendments, position: int) -> Yields:
    """The yields of an amended stream from `position` on. yields: without amendments."""
    if not log:
        return yields
    return replace(yields, is_one_to_one=yields.is_one_to_one and not skips_from(log, position))


def changes_of(log: Amendments) -> tuple[tuple[int, Weights], ...]:
    """(position, weights) of each change of weights."""
    return tuple((each.at, each.weights) for each in log if each.weights is not None)


def ranges_of(given: Iterable[Any]) -> Pairs:
    """The runs of numbers and ranges, as people give them. Raises: TypeError, ValueError for other values.

    >>> ranges_of([7, range(3, 6), (6, 7), 20])
    ((3, 8), (20, 21))
    """
    found = []
    for each in given:
        if isinstance(each, range) and each.step == 1:
            pair = each.start, each.stop
        elif isinstance(each, Sequence) and not isinstance(each, str | bytes | range) and len(each) == 2:
            pair = whole("the start of a range", each[0]), whole("its stop", each[1])
        else:
            pair = (number := whole("a position to skip", each, "; or a (start, stop)")), number + 1
        if not 0 <= pair[0] < pair[1] or not is_count(pair[1]):
            raise ValueError(f"a range to skip is [start, stop), from 0 on and not empty, got {shown(each)}")
        found.append(pair)
    return pairs(joined_runs(found))


def saved_amendments(plain: Any) -> Amendments:
    """The log of a state. Raises: ValueError where it cannot be read."""
    with reading("amendments", plain):
        return tuple(_saved(**each) for each in plain)


def _saved(at: int, positions: Any = (), records: Any = (), weights: Any = None, why: str = "") -> Amendment:
    positions, records = (tuple((start, stop) for start, stop in ranges) for ranges in (positions, records))
    return Amendment(at, positions, records, None if weights is None else saved_weights(weights), why)


def _shown_ranges(ranges: Pairs) -> str:
    few = ", ".join(f"[{start}, {stop})" for start, stop in ranges[:_MAX_SHOWN])
    total = sum(stop - start for start, stop in ranges)
    return f"{few}{'' if len(ranges) <= _MAX_SHOWN else f' and more, {total:,} in all'}"
