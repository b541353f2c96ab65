"""What the program has set anew since a source was made, of what its transforms hold and read.

The state says what they were then: with others, what is read belongs to no state.
"""

from __future__ import annotations

import itertools
import logging
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from datarax_ray.read.identity.held_values import HeldValue, held_values
from datarax_ray.read.identity.module_values import DataValue, script_value, script_values
from datarax_ray.read.identity.referenced_globals import asked, is_users, kept

logger = logging.getLogger("datarax_ray")

MAX_LOOKED_AT_NBYTES = 2**20  # by each stream that begins: some 10 ms
_MAX_OWNERS = 500


@dataclass(frozen=True)
class Watched:
    """Data of modules, by module and name, and of objects and functions, as it was."""

    script: dict[tuple[str, str], DataValue] = field(default_factory=dict)
    held: tuple[HeldValue, ...] = ()

    @classmethod
    def of(cls, transforms: Iterable[Any]) -> Watched:
        """What these hold and read in users' modules, but for those that say themselves what decides their elements."""
        owners = [*itertools.islice(_owners(transforms), _MAX_OWNERS)]
        code = dict.fromkeys(each if isinstance(each, types.FunctionType) else type(each) for each in owners)
        return cls(script_values(code), held_values(owners))

    def changed(self) -> Iterator[tuple[str, str, str, bool]]:
        """The name of each value that is another now, how it looked, how it does, and whether the code may have done
        that itself: filled a table, or an array. Of what is large, nothing.
        """
        for (module, name), was in self.script.items():
            here = script_value(module, name, MAX_LOOKED_AT_NBYTES)
            if here is not None and here.digest != was.digest:
                yield f"{module}.{name}", was.look, here.look, here.is_table
        for held in self.held:
            if (here := held.here) is not None and here.digest != held.was.digest:
                yield held.label, held.was.look, here.look, held.may_be_scratch

    def check(self, *, is_unread: bool = False) -> None:
        """Raise ValueError where the program has set anything anew. is_unread: nothing was read yet, so what the code
        may have changed itself is warned of as well.
        """
        for name, look, look_here, may_be_own in self.changed():
            said = (
                f"{name} was {look} when the source was made, and its state says so; it is {look_here} now, which "
                "gives data of no state. Set it before the source is made, or make another one after every change"
            )
            if not may_be_own:
                raise ValueError(said)
            if is_unread:
                logger.warning(said)


def _owners(roots: Iterable[Any]) -> Iterator[Any]:
    """The users' functions and objects among these, and among what they hold."""
    seen: dict[int, Any] = {}  # and kept, so that no other gets the same id meanwhile
    waiting = [*roots]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or callable(asked(value, "fingerprint")):
            continue
        seen[id(value)] = value
        if isinstance(value, types.MethodType):
            waiting += [value.__self__, value.__func__]
        elif isinstance(value, partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, types.FunctionType):
            if is_users(value):
                yield value
                waiting += kept(value).values()
        elif not isinstance(value, type | types.ModuleType) and is_users(type(value)):
            yield value
            waiting += asked(value, "__dict__", {}).values()
