"""A stall: a consumer that waits long for its next batch is told for whom and for what. Nothing here waits."""

from __future__ import annotations

from collections.abc import Sequence

from datarax_ray.feed.window import Part
from datarax_ray.read.stream import Stream

# Each report comes after so many times the wait of the last one: a wait of a day is told 12 times, not 3,000.
BACKOFF = 2.0
_MAX_NAMED = 4  # actors and what they are asked for: a line is for people


class Stall:
    """Decides when a wait is worth a word, and what the word is.

    after_s: how long a wait is before it is told. Told again when it has lasted twice as long, and so on.
    """

    def __init__(self, description: Stream, after_s: float) -> None:
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
        alike: dict[str, list[Part]] = {}  # an actor is asked for several parts of a chunk where it reads for others
        for part in parts:
            asked = f"actor {part.actor}: positions [{part.request.start}, {part.request.stop})"
            alike.setdefault(asked, []).append(part)
        named = "; ".join(self._name(*each) for each in list(alike.items())[:_MAX_NAMED]) or "an actor that runs"
        more = f" and {len(alike) - _MAX_NAMED} more" if len(alike) > _MAX_NAMED else ""
        return f"the stream has waited {waited_s:.0f} s for {named}{more}"

    def _name(self, asked: str, parts: Sequence[Part]) -> str:
        where = ", ".join(dict.fromkeys(name for part in parts for name in self._description.names(part.request)))
        return f"{asked}{where and f' of {where}'}"
