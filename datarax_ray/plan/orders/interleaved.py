"""The order of a stream of shards that are read forwards only: the shard and element at each position.

In every epoch the shards take turns in a fixed rotation; a turn gives the next turn_size elements. An exhausted shard
gives its remaining elements and leaves the rotation.

Legend: an ordinal counts the elements of a shard in one epoch; a place is the index of a shard in the epoch's rotation;
an offset is a position within the epoch. Positions are reserved as if no shard ever ended,

    offset(place, ordinal) = (ordinal // turn_size * num_shards + place) * turn_size + ordinal % turn_size,

so that the position of an element depends on no other shard, and a position alone determines the place in every shard.
The price is gaps: positions grow, but do not count elements.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from datarax_ray.plan.amendments import Amendments
from datarax_ray.plan.arguments import whole
from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import reading
from datarax_ray.plan.requests import EVERYTHING, Wanted
from datarax_ray.plan.state import Extra, StreamState, check_rest, refuse_records, refuse_weights

# Reserved for each epoch, whose length is unknown: 10**12 elements, and 2**23 epochs fit in an int64.
EPOCH_POSITIONS = 2**40
# Keeps the keys of window shuffles apart from those of random transforms (seed, index of the transform).
_WINDOW_KEY = 2**63


@dataclass(frozen=True)
class InterleavedOrder:
    """The shard and element at each position.

    num_shards: fixed by the data.
    turn_size: consecutive elements of a shard.
    window_size: elements of a shard that are shuffled together, window by window; 1 for none.
    is_shuffled: shuffle the windows, and the rotation of every epoch; both are pure functions of (seed, epoch).

    >>> order = InterleavedOrder(num_shards=2, turn_size=2)
    >>> [order.positions(0, place, np.arange(4)).tolist() for place in (0, 1)]
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """

    num_shards: int
    turn_size: int
    seed: int = 0
    is_shuffled: bool = False
    window_size: int = 1

    cycle: ClassVar[int] = EPOCH_POSITIONS  # positions in an epoch

    def __post_init__(self) -> None:
        for name, least in (("num_shards", 1), ("turn_size", 1), ("window_size", 1), ("seed", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))
        cipher.check(self.num_shards, seed=self.seed, rounds=8)
        if self.window_size > 1 and not self.is_shuffled:
            raise ValueError(f"window_size={self.window_size} has no use in a stream that is not shuffled")

    @property
    def num_records(self) -> int:
        raise TypeError("a stream has no length before it is read to its end, so no len(); iterate it")

    @property
    def shuffle(self) -> str:
        return "window" if self.is_shuffled else "none"

    def settings(self) -> dict[str, Any]:
        window = {"window_size": self.window_size} if self.is_shuffled else {}
        return {"shuffle": self.shuffle, "seed": self.seed, "turn_size": self.turn_size} | window

    def shards(self, epoch: int) -> Indices:
        """The shard at each place of the epoch's rotation: int64 (num_shards,)."""
        return _rotation(self, epoch)

    def places(self, epoch: int) -> Indices:
        """The place of each shard in the epoch's rotation, the inverse of shards: int64 (num_shards,)."""
        return np.argsort(_rotation(self, epoch))

    def positions(self, epoch: int, place: int, ordinals: Indices) -> Indices:
        """The positions of a shard's elements. ordinals: int64 (k,). Returns int64 (k,)."""
        turns, within = np.divmod(np.asarray(ordinals, np.int64), self.turn_size)
        return epoch * EPOCH_POSITIONS + (turns * self.num_shards + place) * self.turn_size + within

    def at(self, offset: int) -> tuple[int, int]:
        """The place of the shard with the element at an offset, and the element's ordinal.

        >>> [InterleavedOrder(num_shards=2, turn_size=2).at(offset) for offset in range(6)]
        [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]
        """
        turns, rest = divmod(offset, self.num_shards * self.turn_size)
        place, within = divmod(rest, self.turn_size)
        return place, turns * self.turn_size + within

    def count_before(self, place: int, offset: int) -> int:
        """The number of elements before an offset of a long enough shard at a place.

        >>> [InterleavedOrder(num_shards=2, turn_size=2).count_before(1, offset) for offset in range(9)]
        [0, 0, 0, 1, 2, 2, 2, 3, 4]
        """
        rounds, rest = divmod(offset, self.num_shards * self.turn_size)
        return rounds * self.turn_size + min(max(rest - place * self.turn_size, 0), self.turn_size)

    def last_of(self, state: StreamState) -> tuple[int, int] | None:
        """Shard and ordinal of the last element delivered in a state's epoch; None for none, or where nobody knows."""
        if isinstance(state.extra, ShardCursors) and state.extra.is_earlier:
            return None
        number, offset = divmod(state.position - (0 if state.offset else 1), EPOCH_POSITIONS)
        if number != state.position // EPOCH_POSITIONS:
            return None
        place, ordinal = self.at(offset)
        return int(self.shards(number)[place]), ordinal

    def window_start(self, ordinal: int) -> int:
        """The first ordinal of the window of an element."""
        return ordinal - ordinal % self.window_size

    def window_stop(self, ordinal: int) -> int:
        """The number of elements to read for the first `ordinal` elements of a shard."""
        return -(-ordinal // self.window_size) * self.window_size

    def sources(self, epoch: int, shard: int, start: int, stop: int, length: int | None) -> Indices:
        """The stored index of each element at the ordinals [start, stop) of a shard: int64 (stop - start,).

        length: of the shard if known; otherwise all windows up to stop are whole.
        """
        ordinals = np.arange(start, stop, dtype=np.int64)
        if self.window_size == 1 or not len(ordinals):
            return ordinals
        for first in range(self.window_start(start), stop, self.window_size):
            size = self.window_size if length is None else min(self.window_size, length - first)
            lo, hi = max(first, start), min(first + size, stop)
            shuffled = self._window(epoch, shard, first // self.window_size, size)
            ordinals[lo - start : hi - start] = first + shuffled[lo - first : hi - first]
        return ordinals

    def extra_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> ShardCursors | None:
        """The shards of a saved state; None for their beginnings. See StatefulOrder."""
        check_rest(rest, "epoch", "cursors", "lengths")
        with reading("shards", dict(rest)):
            saved_cursors, saved_lengths = rest.get("cursors", {}).items(), rest.get("lengths", {}).items()
            cursors = {int(shard): Cursor(each["ordinal"], each["state"]) for shard, each in saved_cursors}
            known = ShardCursors(
                rest.get("epoch", -1), cursors, {int(shard): length for shard, length in saved_lengths}
            )
        # the first elements of an epoch were just delivered, and nothing is known of its shards yet
        return known if known.epoch == state.position // EPOCH_POSITIONS else None

    def earlier(self, state: StreamState, position: int) -> StreamState | None:
        """The state of an earlier position behind all cursors; None for any other position."""
        epoch, offset = divmod(position, EPOCH_POSITIONS)
        if epoch != state.position // EPOCH_POSITIONS:
            return None
        places = self.places(epoch)
        known = state.extra if isinstance(state.extra, ShardCursors) else ShardCursors(epoch, {}, {})
        for shard, cursor in known.cursors.items():
            if cursor.ordinal > self.window_start(self.count_before(int(places[shard]), offset)):
                return None
        return state._replace(position=position, offset=0, unit="elements", extra=replace(known, is_earlier=True))

    def check(self, amendments: Amendments) -> None:
        refuse_weights(amendments)
        refuse_records(amendments)

    def _window(self, epoch: int, shard: int, window: int, size: int) -> Indices:
        """The permutation of one window, by sorting random keys of its own.

        The cipher's table would cost 3 ms for a window of 1,000 elements; this costs 0.1 ms. Raw bits of Philox and a
        stable sort are the same in every release of NumPy; a Generator's permutation is not.
        """
        key = np.array([self.seed, _WINDOW_KEY], np.uint64)
        bits = np.random.Philox(key=key, counter=np.array([0, window, shard, epoch], np.uint64))
        return np.argsort(bits.random_raw(size), kind="stable")


@functools.lru_cache(maxsize=16)  # the epochs in flight
def _rotation(order: InterleavedOrder, epoch: int) -> Indices:
    shards = np.arange(order.num_shards, dtype=np.int64)
    if order.is_shuffled:
        shards = cipher.permute(shards, order.num_shards, seed=(order.seed + epoch) % 2**32)
    shards.flags.writeable = False
    return shards


@dataclass(frozen=True)
class Cursor:
    """A place from which a shard can be read: after `ordinal` stored elements.

    state: of the reader at this place, plain values; None for the beginning.
    """

    ordinal: int = 0
    state: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class ShardCursors(Extra):
    """Cursors of the shards in one epoch, and lengths of shards with a known end.

    At other positions shards are read from the beginning of the epoch.

    is_earlier: the position was not saved, and before it may be one of a shard that had ended.
    """

    epoch: int
    cursors: Mapping[int, Cursor]
    lengths: Mapping[int, int]
    is_earlier: bool = False

    def plain(self) -> dict[str, Any]:
        """As plain values, for a state. A shard with a known end may have elements after its cursor."""
        cursors = {
            str(shard): {"ordinal": cursor.ordinal, "state": cursor.state}
            for shard, cursor in sorted(self.cursors.items())
            if cursor.ordinal < self.lengths.get(shard, cursor.ordinal + 1)
        }
        return {
            "epoch": self.epoch,
            "cursors": cursors,
            "lengths": {str(shard): length for shard, length in sorted(self.lengths.items())},
        }


@dataclass(frozen=True)
class ShardEnd:
    """The place of a shard after a request. length: of the shard in this epoch, None before its end."""

    shard: int
    cursor: Cursor
    length: int | None


@dataclass(frozen=True)
class ShardReadRequest:
    """The elements of some shards at positions [start, stop) of one epoch, read forwards. See Request.

    shards: each with a cursor at or before its first element; the elements do not depend on the cursor.
    """

    start: int
    stop: int
    shards: tuple[tuple[int, Cursor], ...]
    wanted: Wanted = EVERYTHING

    @property
    def first_partition(self) -> int:
        return self.shards[0][0]

    @property
    def block_key(self) -> Hashable:
        """The same for any cursors."""
        return self.start, self.stop, tuple(shard for shard, _ in self.shards), replace(self.wanted, sharing=None)

    def narrowed(self, positions: tuple[int, ...]) -> None:
        """None: a shard is read forwards."""
