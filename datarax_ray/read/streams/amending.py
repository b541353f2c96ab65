"""Amending a stream: what a person says is to change of it, as an entry of the log in its state.

What is in the log depends on nothing but the stream: names of files have become numbers of records, and records at
positions those that stand there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from datarax_ray.plan.amendments import Amendment, amended, ranges_of
from datarax_ray.plan.arguments import whole
from datarax_ray.plan.plain_values import shown
from datarax_ray.plan.position import check_position
from datarax_ray.plan.runs import Pairs, joined_runs, num_rows_of
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.weights import Weights, weights_given
from datarax_ray.read.errors import Place
from datarax_ray.read.stream import Stream, is_endless

# Positions whose records are looked up: 16 MiB, a second. More of them lie apart, and are more than a log may hold.
_MAX_LOOKED_UP = 2**20


def amended_state(
    stream: Stream,
    state: StreamState,
    *,
    skip: Iterable[Any] = (),
    weights: Any = None,
    at: int | None = None,
    every_epoch: bool = False,
    why: str = "",
) -> StreamState:
    """The state of the stream with this change; see Pipeline.amend. Itself, where its log says so already."""
    if isinstance(skip, str):
        raise TypeError(f"skip is a list, got {skip!r}; write [{skip!r}]")
    if not isinstance(skip, Iterable):
        raise TypeError(
            f"skip is a list of positions, ranges of them, or names of records, got {skip!r}; write [{skip!r}]"
        )
    if not isinstance(why, str) or len(why) > 200:
        raise ValueError(f"why is a text of at most 200 characters, got {shown(why)}")
    given = list(skip)
    names = [each for each in given if isinstance(each, str)]
    # what `locate` gives is a tuple too
    positions = ranges_of(getattr(each, "position", each) for each in given if not isinstance(each, str))
    if positions and stream.stop is not None and positions[-1][1] > stream.stop:
        raise ValueError(
            f"position {max(positions[-1][0], stream.stop)} is beyond the end: the stream has positions 0 to "
            f"{stream.stop - 1}, of all its epochs, and nothing would be left out"
        )
    records = [each for name in names for each in _records_named(stream, name)]
    if every_epoch:
        records, positions = records + _records_at(stream, state, positions), ()
    new_weights = None if weights is None else _weights(stream, weights)
    if not (positions or records or new_weights is not None):
        raise ValueError("say what is to change: skip=[...], or weights=...")
    first = state.next_position  # a record that is begun is given to its end, and so is a pool
    start = first if at is None else check_position(whole("at", at))
    log = state.amendments
    if positions:
        log = amended(log, Amendment(positions[0][0], positions, why=why), first)
    if records:
        log = amended(log, Amendment(start, (), ranges_of(records), why=why), first)
    if new_weights is not None:
        last = next((each for each in reversed(log) if each.weights is not None), None)
        if at is None and last is not None and last.weights == new_weights:  # given again, it holds from where it began
            start = last.at
        log = amended(log, Amendment(start, weights=new_weights, why=why), first)
    stream.order.check(log)
    return state._replace(amendments=log)


def _weights(stream: Any, weights: Any) -> Weights:
    found = weights_given(weights)
    if finite := [index for index, each in enumerate(getattr(stream, "components", ())) if not is_endless(each)]:
        raise ValueError(
            f"weights are amended of components without an end, and {finite} have one: where it comes would depend on "
            "when the weights changed. Leave their num_epochs at -1, and set length on the mixture"
        )
    return found


def _records_at(stream: Any, state: StreamState, positions: Pairs) -> list[tuple[int, int]]:
    if not hasattr(stream.order, "records"):
        raise ValueError(
            "every_epoch=True leaves out the records at these positions wherever they come, and those of a stream of "
            "shards are known only when they are read; give the positions of each epoch, as locate tells them"
        )
    if (count := num_rows_of(positions)) > _MAX_LOOKED_UP:
        raise ValueError(
            f"every_epoch=True takes {_MAX_LOOKED_UP:,} positions at most, got {count:,}; drop such in a filter"
        )
    order = stream.order.amended(state.amendments)
    found = [order.records(np.arange(start, stop, dtype=np.int64)) for start, stop in positions]
    return [(record, record + 1) for record in np.unique(np.concatenate(found or [np.empty(0, np.int64)])).tolist()]


def _records_named(stream: Any, name: str) -> list[tuple[int, int]]:
    """The numbers of the records that errors and `locate` name so (see Place), as ranges.

    Raises: ValueError where a record is in no file, or where several files or components have the name.
    """
    asked = Place.of(name)
    if asked is None:
        raise ValueError(f"a record is named by its place in a file, 'part-0.array_record[17]', got {shown(name)}")
    if not hasattr(stream, "locate"):
        raise ValueError(
            f"{name} is a record, and records of a stream of shards have no number; give their positions, by locate"
        )
    first = asked.start
    last = first + 1 if asked.stop is None else asked.stop
    # a name may omit outer folders, and inner components
    named = [
        run
        for run in _runs(stream.locate, 0, stream.order.num_records)
        if run[0].components.startswith(asked.components) and f"/{run[0].path}".endswith(f"/{asked.path}")
    ]
    named = [run for run in named if run[0].path == asked.path] or named
    if len(files := sorted({"".join(place[:2]) for place, _, _ in named})) > 1:
        raise ValueError(
            f"{name} may be of {len(files)} files, such as {files[0]} and {files[1]}; give more of "
            "its name as `locate` has it"
        )
    parts = [
        (max(first, place.start), min(last, place.start + count), record - place.start)
        for place, record, count in named
    ]
    parts = [part for part in parts if part[0] < part[1]]
    if (count := num_rows_of(joined_runs([part[:2] for part in parts]))) < last - first or not parts:
        size = max((place.start + count for place, _, count in named), default=0)
        raise ValueError(
            f"{name}: the source has {count} of the {max(0, last - first)} records of this name, and {size} of this "
            "file. `locate` names the records that fed a batch"
        )
    return [(start + base, stop + base) for start, stop, base in parts]


def _runs(locate: Callable[[int], str], start: int, stop: int) -> Iterator[tuple[Place, int, int]]:
    """Each run of the records [start, stop) that lies in one file: place and number of the first record, and how many.

    Asks for the place of about log2(stop) records of each file.
    """
    todo = [(start, stop)]
    while todo:
        lo, hi = todo.pop()
        first, last = Place.of(locate(lo)), Place.of(locate(hi - 1))
        assert first is not None
        assert last is not None
        if first[:2] == last[:2] and last.start - first.start == hi - 1 - lo:
            yield first, lo, hi - lo
        else:
            middle = (lo + hi) // 2
            todo += [(middle, hi), (lo, middle)]
