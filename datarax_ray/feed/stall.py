"""A stall: a consumer that waits long for its next batch is told for whom and for what. Nothing here waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datarax_ray.feed.dealing import AnyTicket, unshared
from datarax_ray.feed.window import Part
from datarax_ray.plan.lanes import LaneTicket
from datarax_ray.plan.shards import Ticket
from datarax_ray.read.description import Described, Description

# Of the wait from one report to the next: a wait of a day is told 12 times, not 3,000.
BACKOFF = 2.0
_MAX_NAMED = 4  # parts, and files of each: a line is for people


class Stall:
    """Decides when a wait is worth a word, and what the word is.

    after_s: how long a wait is before it is told. Told again when it has lasted twice as long, and so on.
    """

    def __init__(self, description: Described, after_s: float) -> None:
        self._description = description
        self._after_s = after_s
        self._began: float | None = None
        self._due_s = after_s

    def over(self) -> None:
        """Event: something came."""
        self._began, self._due_s = None, self._after_s

    def waited(self, now: float, parts: Sequence[Part]) -> str | None:
        """Event: at this time (seconds, of any clock) these parts are still waited for. What to say, if anything."""
        if self._began is None:
            self._began = now
        waited_s = now - self._began
        if waited_s < self._due_s:
            return None
        self._due_s = waited_s * BACKOFF
        named = "; ".join(self._name(part) for part in parts[:_MAX_NAMED]) or "an actor that runs"
        more = f" and {len(parts) - _MAX_NAMED} more" if len(parts) > _MAX_NAMED else ""
        return f"the stream has waited {waited_s:.0f} s for {named}{more}"

    def _name(self, part: Part) -> str:
        ticket = part.ticket
        where = self._where(unshared(ticket))
        return f"actor {part.actor}: positions [{ticket.start}, {ticket.stop}){where and f' of {where}'}"

    def _where(self, ticket: AnyTicket) -> str:
        """The files of its first records, its last, and some between; the lanes of a stream."""
        if isinstance(ticket, LaneTicket):
            return "lanes " + ", ".join(str(lane) for lane, _ in ticket.lanes)
        if not isinstance(ticket, Ticket) or not isinstance(self._description, Description):
            return ""
        _, records = ticket.select(self._description.order)
        where = [self._description.reader.locate(record) for record in _some(records)]
        return ", ".join(dict.fromkeys(name.rpartition("[")[0] or name for name in where))


def _some(records: np.ndarray) -> list[int]:
    """First, last, and between."""
    if not len(records):
        return []
    return [int(r) for r in records[np.unique(np.linspace(0, len(records) - 1, _MAX_NAMED).astype(int))]]
