"""The order of a stream that can only be read lane by lane, each forwards: who is next, and at which position.

A lane is one sequential shard. In every epoch the lanes take turns in a fixed rotation, each giving its next turn_size
elements; a lane that is exhausted gives what it has left and is missing from then on.

Legend: an ordinal counts the elements that a lane gives in one epoch; a place is where a lane stands in the epoch's
rotation; an offset is a position within the epoch. Positions are reserved as if no lane ever ended,

    offset(place, ordinal) = (ordinal // turn_size * num_lanes + place) * turn_size + ordinal % turn_size,

so that an element's position depends on no other lane, and a position alone says how far every lane is. The price is
gaps: positions grow, but are not a count.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from datarax_ray.plan.fingerprint import shown
from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import Documents
from datarax_ray.plan.state import StreamState, is_count, refuse_rest

# Reserved for each epoch, for its length is not known: 10**12 elements, and 2**23 epochs fit in an int64.
EPOCH_POSITIONS = 2**40
# Tells the keys of window shuffles from those of random transforms (seed, index of the transform).
_WINDOW_KEY = 2**63


@dataclass(frozen=True)
class LaneOrder:
    """Which element of which lane stands at a position.

    num_lanes: fixed by the data. turn_size: elements of a lane in a row. window_size: elements of a lane that are
    shuffled among themselves, window by window; 1 for none. is_shuffled: shuffle so, and give every epoch a rotation of
    its own; both are pure functions of (seed, epoch).

    >>> order = LaneOrder(num_lanes=2, turn_size=2)
    >>> [order.positions(0, place, np.arange(4)).tolist() for place in (0, 1)]
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """

    num_lanes: int
    turn_size: int
    seed: int = 0
    is_shuffled: bool = False
    window_size: int = 1

    may_differ: ClassVar[tuple[str, ...]] = ()  # see StatefulOrder

    def __post_init__(self) -> None:
        for name in ("num_lanes", "turn_size", "seed", "window_size"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        cipher.check(max(1, self.num_lanes), seed=self.seed, rounds=8)
        if self.num_lanes < 1 or self.turn_size < 1 or self.window_size < 1:
            raise ValueError(
                f"num_lanes, turn_size and window_size must be at least 1, got {self.num_lanes}, {self.turn_size} and "
                f"{self.window_size}"
            )
        if self.window_size > 1 and not self.is_shuffled:
            raise ValueError(f"window_size={self.window_size} has no use in a stream that is not shuffled")

    def lanes(self, epoch: int) -> Indices:
        """The lane at each place of the epoch's rotation: int64 (num_lanes,)."""
        return _rotation(self, epoch)

    def places(self, epoch: int) -> Indices:
        """The place of each lane in the epoch's rotation, the inverse of lanes: int64 (num_lanes,)."""
        return np.argsort(_rotation(self, epoch))

    def positions(self, epoch: int, place: int, ordinals: Indices) -> Indices:
        """Where a lane's elements stand in the stream. ordinals: int64 (k,). Returns int64 (k,)."""
        turns, within = np.divmod(np.asarray(ordinals, np.int64), self.turn_size)
        return epoch * EPOCH_POSITIONS + (turns * self.num_lanes + place) * self.turn_size + within

    def count_before(self, place: int, offset: int) -> int:
        """How many elements of the lane at a place stand before an offset, where it has so many.

        >>> [LaneOrder(num_lanes=2, turn_size=2).count_before(1, offset) for offset in range(9)]
        [0, 0, 0, 1, 2, 2, 2, 3, 4]
        """
        rounds, rest = divmod(offset, self.num_lanes * self.turn_size)
        return rounds * self.turn_size + min(max(rest - place * self.turn_size, 0), self.turn_size)

    def window_start(self, ordinal: int) -> int:
        """The first element of the window that an element is in."""
        return ordinal - ordinal % self.window_size

    def window_stop(self, ordinal: int) -> int:
        """How many elements of the lane must be read to give the first `ordinal` ones."""
        return -(-ordinal // self.window_size) * self.window_size

    def sources(self, epoch: int, lane: int, start: int, stop: int, length: int | None) -> Indices:
        """Which elements of the lane, as it is stored, come at the ordinals [start, stop): int64 (stop - start,).

        length: of the lane, where it is known; else all windows up to stop are whole.
        """
        ordinals = np.arange(start, stop, dtype=np.int64)
        if self.window_size == 1 or not len(ordinals):
            return ordinals
        for first in range(self.window_start(start), stop, self.window_size):
            size = self.window_size if length is None else min(self.window_size, length - first)
            lo, hi = max(first, start), min(first + size, stop)
            shuffled = self._window(epoch, lane, first // self.window_size, size)
            ordinals[lo - start : hi - start] = first + shuffled[lo - first : hi - first]
        return ordinals

    def extra_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> LaneCursors | None:
        """What a saved state says of the lanes; None where that is nothing. See StatefulOrder."""
        number, offset = divmod(state.position, EPOCH_POSITIONS)
        refuse_rest({key: value for key, value in rest.items() if key not in ("epoch", "cursors", "lengths")})
        epoch = rest.get("epoch", 0)
        if not is_count(epoch) or epoch > number:
            raise ValueError(
                f"the state's lanes are those of epoch {shown(epoch)}, and its position is in epoch {number}; it is "
                "damaged, restore an earlier one"
            )
        cursors = {lane: _cursor(lane, said) for lane, said in self._entries(rest, "cursors")}
        lengths = {lane: _length(lane, said) for lane, said in self._entries(rest, "lengths")}
        if epoch < number or not rest:  # the first of this epoch were just delivered, and nothing was known yet
            return None
        places = self.places(number)
        for lane, cursor in cursors.items():
            wanted = self.window_start(self.count_before(int(places[lane]), offset))
            if cursor.ordinal > wanted:
                raise ValueError(
                    f"the state's cursor of lane {lane} stands at element {cursor.ordinal}, and its position at "
                    f"{wanted}; going on would skip what is between. The state is damaged; restore an earlier one."
                )
        return LaneCursors(epoch, cursors, lengths)

    def _entries(self, rest: Mapping[str, Any], name: str) -> Iterator[tuple[int, Any]]:
        found = rest.get(name, {})
        if not isinstance(found, Mapping):
            raise ValueError(f"the state's {name} must be a dict by lane, got {shown(found)}")
        for key, value in found.items():
            if not (isinstance(key, str) and key.isdecimal() and str(int(key)) == key and int(key) < self.num_lanes):
                raise ValueError(f"the state's {name} name the lane {shown(key)}, and the stream has {self.num_lanes}")
            yield int(key), value

    def _window(self, epoch: int, lane: int, window: int, size: int) -> Indices:
        """The permutation of one window: elements by random keys, which nothing else in the stream shares.

        Not the cipher: its table costs 3 ms for a window of 1,000, this 0.1 ms. Raw bits of Philox, and a stable sort:
        both are the same in every release of NumPy, which a Generator's own permutation is not.
        """
        key = np.array([self.seed, _WINDOW_KEY], np.uint64)
        bits = np.random.Philox(key=key, counter=np.array([0, window, lane, epoch], np.uint64))
        return np.argsort(bits.random_raw(size), kind="stable")


@functools.lru_cache(maxsize=16)  # the epochs in flight
def _rotation(order: LaneOrder, epoch: int) -> Indices:
    lanes = np.arange(order.num_lanes, dtype=np.int64)
    if order.is_shuffled:
        lanes = cipher.permute(lanes, order.num_lanes, seed=(order.seed + epoch) % 2**32)
    lanes.flags.writeable = False
    return lanes


@dataclass(frozen=True)
class Cursor:
    """Where a lane can be taken up again: before it stand `ordinal` elements, as stored. state: what its reader needs
    to begin there, plain values; None for the beginning. A lane can be read on from any cursor before what is wanted.
    """

    ordinal: int = 0
    state: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class LaneCursors:
    """What a state says of the lanes in one epoch: cursors by lane, and the lengths of those known to have ended."""

    epoch: int
    cursors: Mapping[int, Cursor]
    lengths: Mapping[int, int]

    def plain(self) -> dict[str, Any]:
        """As plain values, for a state. A lane whose end is known may have elements behind its cursor."""
        cursors = {
            str(lane): {"ordinal": cursor.ordinal, "state": cursor.state}
            for lane, cursor in sorted(self.cursors.items())
            if cursor.ordinal < self.lengths.get(lane, cursor.ordinal + 1)
        }
        return {
            "epoch": self.epoch,
            "cursors": cursors,
            "lengths": {str(lane): length for lane, length in sorted(self.lengths.items())},
        }

    def at(self, position: int) -> None:
        """Nothing: the lanes are then read from the beginning of the epoch. See Extra."""


def _cursor(lane: int, said: Any) -> Cursor:
    ordinal, state = (said.get("ordinal"), said.get("state")) if isinstance(said, Mapping) else (None, None)
    if not is_count(ordinal) or not isinstance(state, Mapping | None):
        raise ValueError(f"the state's cursor of lane {lane} is no cursor: {shown(said)}")
    assert ordinal is not None
    return Cursor(ordinal, state)


def _length(lane: int, said: Any) -> int:
    if not is_count(said):
        raise ValueError(f"the state's length of lane {lane} must be an integer of at least 0, got {shown(said)}")
    return said


@dataclass(frozen=True)
class LaneTicket:
    """What one actor is asked to read: the elements of some lanes at positions [start, stop), all of one epoch.

    lanes: each with a cursor at or before its first element. A pure function: where they are read makes no difference.
    documents: what the elements are to become for packing, None to leave them as they are.
    """

    start: int
    stop: int
    lanes: tuple[tuple[int, Cursor], ...]
    documents: Documents | None = None

    @property
    def asked(self) -> Hashable:
        """What decides the block: equal for tickets that ask for the same, whatever cursors they came to know."""
        return self.start, self.stop, tuple(lane for lane, _ in self.lanes), self.documents
