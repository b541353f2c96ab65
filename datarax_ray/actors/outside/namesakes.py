"""Drivers that gave one name and have a pool each, as what their code reads differs: told as the second begins.

Trainers mean to share their actors by a name. What one reads of its own (its rank, its process id, the time) makes its
elements others, so it has actors of its own, or waits for room where there is some for one pool only. So each driver
tells the head of what its pool's identity is made: digests alone, as a value may be a secret. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from datarax_ray.plan.fingerprint import changes, digest, flattened

PREFIX = "makings/"
_LEN = 8  # of a digest
_MOST_NAMED = 5


@dataclass(frozen=True)
class Makings:
    """What a pool is told apart by, a few digits each, by name.

    settings: what the stream depends on. read: modules, and values in them, that code reads, also in the script.
    looks: of these, for people; stay here.
    """

    settings: Mapping[str, str]
    read: Mapping[str, str]
    looks: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any], read: Mapping[str, str], looks: Mapping[str, str]) -> Self:
        found = {path: digest(value)[:_LEN] for path, value in flattened(settings).items()}
        return cls(found, {name: each[:_LEN] for name, each in read.items()}, looks)

    def differing(self, other: Makings) -> list[str]:
        """The names of what makes these two pools, values first; none where they read other data, or in another order,
        as training and evaluation do.

        >>> one = Makings({"files.digest": "a", "transforms.digest": "b"}, {"users.RANK": "c"})
        >>> one.differing(Makings({"files.digest": "a", "transforms.digest": "d"}, {"users.RANK": "e"}))
        ['users.RANK']
        >>> one.differing(Makings({"files.digest": "f", "transforms.digest": "d"}, {"users.RANK": "e"}))
        []
        """
        settings = list(changes(self.settings, other.settings))
        if any({"transforms", "on_error"}.isdisjoint(path.split(".")) for path in settings):
            return []
        read = list(changes(self.read, other.read))
        # a value that is read is in the digests of what reads it; else they name an attribute, say, or the transform
        named = [path for path in settings if not path.endswith((".digest", ".each"))]
        return read or named or settings

    def said(self, name: str, others: Iterable[str], earlier: Iterable[str] = ()) -> str | None:
        """What to say of pools of this name that differ by what code reads alone; None where there is none.

        others: what their drivers have told the head. earlier: the same of sources of this process, as those of a
        notebook's cell that was run before.
        """
        found, count = self._differing_of(others)
        is_own = not found
        if is_own:
            found, count = self._differing_of(earlier)
        if not found:
            return None
        names = [f"{each} ({self.looks[each]} here)" if each in self.looks else each for each in found]
        more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
        if is_own:
            return (
                f"the actors named {name!r} of {count} earlier source{'s' * (count > 1)} of this process are not those "
                f"of this one: what transforms read differs, in {', '.join([*names[:_MOST_NAMED], *more])}. They go on "
                "beside these, which wait where there is no room: close() the earlier one, as before a cell of a "
                "notebook is run again"
            )
        return (
            f"the actors named {name!r} are not shared with {count} other driver{'s' * (count > 1)} of that name, of "
            f"the same data and order: what transforms read differs, in {', '.join([*names[:_MOST_NAMED], *more])}. So "
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
        return json.dumps({"settings": dict(self.settings), "read": dict(self.read)})
