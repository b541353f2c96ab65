"""Where a stream continues: one value, which rides on every batch, is replaced in one assignment, and is saved.

A saved state is external input. A checksum proves its position and rest to be as written; this module and the stream's
order then check them against the stream. All other code trusts a StreamState.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, Self

from datarax_ray.plan.amendments import Amendments, saved_amendments
from datarax_ray.plan.fingerprint import VERSION, check_drift
from datarax_ray.plan.plain_values import digest, shown
from datarax_ray.plan.position import Yields, check_position, is_count, reading

Unit = Literal["elements", "tokens", "documents"]

# The name of an offset in a saved state names its unit.
_NAMES: dict[Unit, str] = {"elements": "offset", "tokens": "token_offset", "documents": "document_offset"}
_LOG = "amendments"
_POOL = "pool"
# Of the position and the rest: `datasets` accepts a damaged cursor, and a merged mixture any place of a component.
_CHECKSUM = "rest_checksum"


class Extra(Protocol):
    """An order's state beside the position; immutable. The default holds at one position alone."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """As plain values, under names of its own."""

    def at(self, position: int) -> Extra | None:
        """The part that holds at another position of the stream, None for nothing."""
        return None


class StatefulOrder(Protocol):
    """An order, for reading a state. The defaults are for an order that needs a position alone."""

    def earlier(self, state: StreamState, position: int) -> StreamState | None:
        """The state of an earlier position, to read its rows again; None where that is not possible."""
        return state.moved(position)

    def extra_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> Extra | None:
        """The extra of a saved state.

        rest: the saved entries beside position and offset, which are in `state` already.
        saved: the saved settings; only allowed drift differs from this order's.

        Raises: ValueError for a rest of another order or position.
        """
        check_rest(rest)
        return None

    def check(self, amendments: Amendments) -> None:
        """Raise ValueError for amendments of another kind of order: by default, weights."""
        refuse_weights(amendments)


class Stateful(Protocol):
    """A description of a stream, for reading a state."""

    @property
    def order(self) -> Any: ...

    @property
    def yields(self) -> Yields: ...


class PoolState(NamedTuple):
    """The delivered part of a pool (LengthBatches). num_given: its batches; stop: the position behind its last row."""

    num_given: int = 0
    stop: int = 0


_NO_POOL = PoolState()


class StreamState(NamedTuple):  # one is made for every element that is handed out, in half of a frozen dataclass's time
    """Where a stream continues.

    position: of the first record not delivered, or not wholly.
    offset: the delivered part of this record; 0 for nothing.
    unit: of the offset.
    extra: cursors of shards (ShardCursors), or places of the components of a merged mixture (ComponentStates); None
        where the order needs the position alone.
    amendments: people's changes to the stream.
    pool: of batches by length, that begins at the position and was delivered in part.
    """

    position: int = 0
    offset: int = 0
    unit: Unit = "elements"
    extra: Extra | None = None
    amendments: Amendments = ()
    pool: PoolState = _NO_POOL

    @property
    def next_position(self) -> int:
        """The first position of which nothing was delivered."""
        return max(self.position + (self.offset > 0), self.pool.stop)

    @classmethod
    def at(cls, start: int | StreamState) -> StreamState:
        """The state of a position; a state is returned as it is. Raises: ValueError, TypeError as check_position."""
        return start if isinstance(start, StreamState) else cls(check_position(start))

    def moved(self, position: int) -> StreamState:
        """The state of another position of the same stream. Raises: ValueError, TypeError as check_position and at."""
        position = check_position(position)
        extra = None if self.extra is None else self.extra.at(position)
        return StreamState(position, extra=extra, amendments=self.amendments)

    def to_json(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The position and the rest, with these settings, as plain values."""
        offset = {_NAMES[self.unit]: self.offset} if self.offset else {}
        log = {_LOG: [each.plain() for each in self.amendments]} if self.amendments else {}
        pool = {_POOL: list(self.pool)} if self.pool.num_given else {}
        return written(self.position, (self.extra.plain() if self.extra else {}) | offset | log | pool, settings)

    @classmethod
    def from_json(
        cls,
        state: Any,
        stream: Stateful,
        settings: Mapping[str, Any],
        *,
        unit: Unit = "elements",
        allow_drift: Iterable[str] = (),
    ) -> Self:
        """Read a saved state of this stream. unit: of this stream's offsets.

        Raises: TypeError, ValueError for anything but a state of this version; DriftError for another stream's state.
        """
        position, rest, saved = _parts_of(state)
        check_drift(saved, settings, allow_drift)
        amendments = saved_amendments(rest.get(_LOG, ()))
        stream.order.check(amendments)
        offset = rest.get(_NAMES[unit], 0)
        own = (_NAMES[unit], _LOG, *[_POOL] * (settings.get("packing", {}).get("kind") == "by_length"))
        others = {key: value for key, value in rest.items() if key not in own}
        with reading(_POOL, rest.get(_POOL)):
            pool = PoolState(*rest.get(_POOL, ())) if _POOL in own else _NO_POOL
        changed = [name for name in ("batch_size", "packing") if saved.get(name) != settings.get(name)]
        if pool.num_given and changed:
            raise ValueError(
                f"the state stands behind {pool.num_given} batches of a pool, and {' and '.join(changed)} would cut "
                f"that pool otherwise: {shown({name: saved.get(name) for name in changed})} then, "
                f"{shown({name: settings.get(name) for name in changed})} now. Restore a state from the end of a pool "
                f"(each num_batches batches), or seek({position}) to have the whole pool again"
            )
        if counted := [name for name in _NAMES.values() if name in others]:
            raise ValueError(
                f"this stream goes on from a position and the {_NAMES[unit]} in its record, and the state has "
                f"{shown({name: others[name] for name in counted})}; restore it with the packing that it was written "
                "with, or seek to its position"
            )
        if offset and unit == "elements" and not stream.yields.may_repeat:
            raise ValueError(
                f"the state stands behind {offset} elements of one record, and without a flat_map it gives at most "
                "one; restore with the transforms that it was written with, or seek to its position to have all of "
                "that record"
            )
        found = cls(position, offset, unit, None, amendments, pool)
        return found._replace(extra=stream.order.extra_in(others, found, saved))


BEGIN = StreamState()


def written(position: int, rest: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state. rest: its entries beside the position."""
    more = {"rest": rest, _CHECKSUM: _checksum(position, rest)} if rest else {}
    return {"version": VERSION, "position": position, **more, "settings": settings}


def _checksum(position: int, rest: Mapping[str, Any]) -> str:
    return digest([position, rest])


def _parts_of(state: Any) -> tuple[int, Mapping[str, Any], Mapping[str, Any]]:
    if not isinstance(state, Mapping):
        remedy = "; json.loads(text) makes one of JSON" if isinstance(state, str | bytes) else ""
        raise TypeError(f"a state is a dict, got {type(state).__name__}{remedy}")
    if "version" not in state:
        raise ValueError(f"this is no state of a stream: it has no version, only {shown(sorted(map(str, state))[:10])}")
    version, position = state["version"], state.get("position")
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"the state has version {shown(version)}, this release reads version {VERSION}; "
            "restore it with the release that wrote it."
        )
    if type(position) is not int:
        raise ValueError(f"the state's position must be an integer, got {shown(position)}; it is damaged")
    check_position(position)
    rest, saved = state.get("rest", {}), state.get("settings")
    if not isinstance(rest, Mapping) or not isinstance(saved, Mapping):
        raise ValueError(f"the state's rest and settings must be dicts, got {shown(rest)} and {shown(saved)}")
    with reading("rest", rest):
        is_whole = _checksum(position, rest) == state.get(_CHECKSUM) if rest or _CHECKSUM in state else True
    if not is_whole:
        raise ValueError(
            "the state's position, or the rest beside it, is not what was written: it is damaged, or was edited. "
            "Restore an earlier one; seek(position) goes elsewhere, and amend(...) changes the stream"
        )
    return position, rest, saved


def num_skipped_in(state: Mapping[str, Any]) -> int:
    """How many broken records were skipped before a saved state."""
    statistics = state.get("statistics", {})
    num_skipped: Any = statistics.get("num_skipped", 0) if isinstance(statistics, Mapping) else None
    if not is_count(num_skipped):
        raise ValueError(f"the state's statistics must count skipped records, got {shown(statistics)}; it is damaged")
    return int(num_skipped)


def check_rest(rest: Mapping[str, Any], *known: str) -> None:
    """Raise ValueError for entries of a saved state that its order does not know."""
    if others := {key: value for key, value in rest.items() if key not in known}:
        raise ValueError(
            f"this stream goes on from a position and {', '.join(known) or 'an offset in it'}, and the state has "
            f"{shown(others)}; it is another stream's"
        )


def refuse_weights(amendments: Amendments) -> None:
    """Raise ValueError for amended weights: for orders without weights."""
    if changes := "; ".join(str(each) for each in amendments if each.weights is not None):
        raise ValueError(f"weights are amended ({changes}), and this stream is no mixture, so it has none")


def refuse_records(amendments: Amendments) -> None:
    """Raise ValueError for records skipped by number: for orders of records without numbers."""
    if records := [each.records for each in amendments if each.records]:
        raise ValueError(
            f"records {shown(records)} are to be skipped, and records of a stream of shards have no number; give the "
            "positions at which they stand, in one epoch"
        )
