"""Drivers that gave one name and still have a pool each, because their transforms differ: reported to the second one.

Trainers share their actors by a name. A transform that one driver made with other attributes (its rank, a process id)
is another transform, so that driver has actors of its own, or waits for room. Each driver reports to the head the parts
of its pool's identity, as digests, because a value may be a secret. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from datarax_ray.plan.fingerprint import changes, digest, flattened

PREFIX = "makings/"
_LEN = 8  # of a digest
_MOST_NAMED = 5


@dataclass(frozen=True)
class Makings:
    """What tells one pool from another: a few digits for each setting of the stream, by path."""

    settings: Mapping[str, str]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        return cls({path: digest(value)[:_LEN] for path, value in flattened(settings).items()})

    def differing(self, other: Makings) -> list[str]:
        """The settings of transforms that differ; none where data or order differ, as of training and evaluation.

        >>> one = Makings({"files.digest": "a", "transforms.code": "b"})
        >>> one.differing(Makings({"files.digest": "a", "transforms.code": "d"}))
        ['transforms.code']
        >>> one.differing(Makings({"files.digest": "f", "transforms.code": "d"}))
        []
        """
        settings = list(changes(self.settings, other.settings))
        return [] if any("transforms" not in path.split(".") for path in settings) else settings

    def said(self, name: str, others: Iterable[str], earlier: Iterable[str] = ()) -> str | None:
        """What to say of pools of this name whose transforms alone differ; None where there is none.

        others: what their drivers have told the head. earlier: the same of sources of this process, as those of a
        notebook's cell that was run before.
        """
        found, count = self._differing_of(others)
        is_own = not found
        if is_own:
            found, count = self._differing_of(earlier)
        if not found:
            return None
        names = list(found)
        more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
        if is_own:
            return (
                f"the actors named {name!r} of {count} earlier source{'s' * (count > 1)} of this process are not those "
                f"of this one: their transforms differ, in {', '.join([*names[:_MOST_NAMED], *more])}. They go on "
                "beside these, which wait where there is no room: close() the earlier one, as before a cell of a "
                "notebook is run again"
            )
        return (
            f"the actors named {name!r} are not shared with {count} other driver{'s' * (count > 1)} of that name, of "
            f"the same data and order: their transforms differ, in {', '.join([*names[:_MOST_NAMED], *more])}. So "
            "this one has actors of its own, and waits where there is no room for them. Where they are to share, give "
            "all the same value before their RaySource is made, and use what is one process's own (a rank, a process "
            "id, a time) in stages of the Pipeline, or behind it; else give them names of their own"
        )

    def _differing_of(self, told: Iterable[str]) -> tuple[dict[str, None], int]:
        """What differs in any of these, and in how many."""
        found: dict[str, None] = {}
        count = 0
        for text in told:
            try:
                differing = self.differing(Makings(**json.loads(text)))
            except (ValueError, TypeError):  # of another release
                continue
            count += bool(differing)
            found |= dict.fromkeys(differing)
        return found, count

    def to_json(self) -> str:
        return json.dumps({"settings": dict(self.settings)})
