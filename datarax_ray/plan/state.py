"""Where a stream goes on: one value, which rides on every batch, is replaced in one assignment, and is saved.

A saved state is external input. Whatever is wrong with one is said here, or by the order that it belongs to, when it is
read; behind that, code trusts a StreamState.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, Self

from datarax_ray.plan.amendments import Amendments, changes_of, saved_amendments
from datarax_ray.plan.fingerprint import VERSION, check_drift, digest, shown
from datarax_ray.plan.position import Yields, check_position, is_count

Unit = Literal["elements", "tokens", "documents"]

# The name of an offset in a saved state says what it counts.
_NAMES: dict[Unit, str] = {"elements": "offset", "tokens": "token_offset", "documents": "document_offset"}


_LOG = "amendments"
# Of the position and the rest: `datasets` takes a damaged cursor, and a merged mixture the place of another one.
_CHECKSUM = "rest_checksum"


class Extra(Protocol):
    """What an order needs to go on beside a position; immutable. The bodies are those of what holds there alone."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """As plain values, under names of its own."""
        ...

    def at(self, position: int) -> Extra | None:
        """What of it holds at another position of the stream. Raises: ValueError where none of it says."""
        return None


class StatefulOrder(Protocol):
    """What reading a state needs of an order. The bodies are those of one for which a position is all."""

    def earlier(self, state: StreamState, position: int) -> StreamState | None:
        """The state of an earlier position, from which its rows are made again; None where that is not possible."""
        return state.moved(position)

    def extra_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> Extra | None:
        """The extra of a saved state. rest: what it says beside position and offset, which are in `state` already.

        saved: its settings, which differ from this order's only where a person allowed it.

        Raises: ValueError for what does not fit this order at this position.
        """
        refuse_rest(rest)
        return None

    def check(self, amendments: Amendments) -> None:
        """Raise ValueError for amendments that cannot be about this order: these, where it has no weights."""
        refuse_weights(amendments)


class Stateful(Protocol):
    """What reading a state needs of a description."""

    @property
    def order(self) -> Any: ...

    @property
    def yields(self) -> Yields: ...


class StreamState(NamedTuple):  # one is made for every element that is handed out, in half of a frozen dataclass's time
    """Where a stream goes on.

    position: of the first record not delivered, or not all of it.
    offset: how much of that record was delivered; 0 for nothing.
    unit: what the offset counts, of what the record gives.
    extra: what the order needs beside the position: cursors of shards (ShardCursors), or the places of the components
        of a merged mixture (ComponentStates); None where the position is all.
    amendments: what people changed of the stream, if anything.
    """

    position: int = 0
    offset: int = 0
    unit: Unit = "elements"
    extra: Extra | None = None
    amendments: Amendments = ()

    @classmethod
    def at(cls, start: int | StreamState) -> StreamState:
        """The state of a position; a state is that already. Raises: ValueError, TypeError as check_position."""
        return start if isinstance(start, StreamState) else cls(check_position(start))

    def moved(self, position: int) -> StreamState:
        """The state of another position of the same stream. Raises: ValueError, TypeError as check_position and at."""
        position = check_position(position)
        extra = None if self.extra is None else self.extra.at(position)
        return StreamState(position, extra=extra, amendments=self.amendments)

    def to_json(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What is saved of a stream, in plain values: where it goes on, and which stream it is."""
        offset = {_NAMES[self.unit]: self.offset} if self.offset else {}
        log = {_LOG: [each.plain() for each in self.amendments]} if self.amendments else {}
        return written(self.position, (self.extra.plain() if self.extra else {}) | offset | log, settings)

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
        """The state that was saved, once everything in it is found to fit this stream.

        unit: what offsets count in this stream.

        Raises: TypeError, ValueError for what is no state of this version; DriftError for another stream's.
        """
        position, rest, saved = parts_of(state)
        check_drift(saved, settings, allow_drift)
        others = {key: value for key, value in rest.items() if key not in (_NAMES[unit], _LOG)}
        amendments = saved_amendments(rest[_LOG]) if _LOG in rest else ()
        stream.order.check(amendments)
        offset = _offset(rest, unit)
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
        found = cls(position, offset, unit, None, amendments)
        found = found._replace(extra=stream.order.extra_in(others, found, saved))
        if (rest or _CHECKSUM in state) and state.get(_CHECKSUM) != _checksum(position, rest):
            raise ValueError(
                "the state's position, or what it says beside it, is not what was written: it is damaged, or was "
                "edited. Restore an earlier one; seek(position) goes elsewhere, and amend(...) changes the stream"
            )
        return found


BEGIN = StreamState()


def written(position: int, rest: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A state as it is saved. rest: what it says of where the stream goes on beside the position, {} for nothing."""
    more = {"rest": rest, _CHECKSUM: _checksum(position, rest)} if rest else {}
    return {"version": VERSION, "position": position, **more, "settings": settings}


def _checksum(position: int, rest: Mapping[str, Any]) -> str:
    return digest([position, rest])


def parts_of(state: Any) -> tuple[int, Mapping[str, Any], Mapping[str, Any]]:
    """Position, rest and settings of a saved state: its version is checked first, then its shape.

    Raises: TypeError, ValueError for what is no state of this version.
    """
    if not isinstance(state, Mapping):
        remedy = "; json.loads(text) makes one of JSON" if isinstance(state, str | bytes) else ""
        raise TypeError(f"a state is a dict, got {type(state).__name__}{remedy}")
    if "version" not in state:
        raise ValueError(f"this is no state of a stream: it has no version, only {shown(sorted(map(str, state))[:10])}")
    version = state["version"]
    if type(version) is not int:
        raise ValueError(f"the state's version must be an integer, got {shown(version)}; it is damaged")
    if version != VERSION:
        raise ValueError(
            f"the state has version {shown(version)}, this release reads version {VERSION}; "
            "restore it with the release that wrote it."
        )
    for name in ("position", "settings"):
        if name not in state:
            raise ValueError(f"the state has no {name}; it is damaged, restore an earlier one")
    position, rest, saved = state["position"], state.get("rest"), state["settings"]
    if type(position) is not int:
        raise ValueError(f"the state's position must be an integer of at least 0, got {shown(position)}")
    check_position(position)
    if not isinstance(rest, Mapping | None):
        raise ValueError(f"the state's rest must be a dict, got {shown(rest)}")
    if not isinstance(saved, Mapping):
        raise ValueError(f"the state's settings must be a dict, got {shown(saved)}")
    return position, rest or {}, saved


def num_skipped_in(state: Mapping[str, Any]) -> int:
    """How many broken records a state says were left out before it; 0 where it says nothing.

    Raises: ValueError for what is no count.
    """
    statistics = state.get("statistics", {})
    if not isinstance(statistics, Mapping):
        raise ValueError(f"the state's statistics must be a dict, got {shown(statistics)}")
    num_skipped = statistics.get("num_skipped", 0)
    if not is_count(num_skipped):
        raise ValueError(f"the state's statistics.num_skipped must be a count of records, got {shown(num_skipped)}")
    return num_skipped


def refuse_rest(rest: Mapping[str, Any]) -> None:
    """Raise ValueError where a state says anything beside its position and offset: for orders that need no more."""
    if rest:
        raise ValueError(
            f"a stream of records goes on from a position and an offset in it, and this state has {shown(dict(rest))}; "
            "it is damaged, or another stream's. Restore an earlier one"
        )


def refuse_weights(amendments: Amendments) -> None:
    """Raise ValueError where weights are amended: for orders that have none."""
    if changes := changes_of(amendments):
        raise ValueError(f"weights are amended to {shown(changes)}, and this stream is no mixture, so it has none")


def refuse_records(amendments: Amendments) -> None:
    """Raise ValueError where records are amended by number: for orders in which they have none."""
    if records := [each.records for each in amendments if each.records]:
        raise ValueError(
            f"records {shown(records)} are to be left out, and those of a stream of shards have no number; give "
            "the positions at which they stand, which are of one epoch"
        )


def _offset(rest: Mapping[str, Any], unit: Unit) -> int:
    offset = rest.get(_NAMES[unit], 0)
    if not is_count(offset) or (not offset and _NAMES[unit] in rest):
        raise ValueError(
            f"the state's {_NAMES[unit]} must be a number of {unit} of at least 1, got {shown(offset)}; the state is "
            "damaged, restore an earlier one"
        )
    return offset
