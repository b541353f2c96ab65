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

import numpy as np

from datarax_ray.read.identity.held_values import HeldValue, held_values, is_owner
from datarax_ray.read.identity.module_values import (
    CodeValue,
    DataValue,
    held_in,
    script_code,
    script_places,
    script_value,
    script_values,
)
from datarax_ray.read.identity.own_writes import OwnWrites
from datarax_ray.read.identity.users_code import asked, is_users, kept

logger = logging.getLogger("datarax_ray")

MAX_LOOKED_AT_NBYTES = 2**20  # by each stream that begins: some 10 ms
_MAX_OWNERS = 500
_MAX_ITEMS, _MAX_DEPTH, _MAX_TEXT = 100, 2, 2**16  # of a table, of tables in tables, and letters


@dataclass(frozen=True)
class Watched:
    """Data and code of modules, by module and name, and data of objects and functions, as it was.

    is_sure: whether the code writes to none of it in a way that cannot be seen.
    """

    script: dict[tuple[str, str], DataValue] = field(default_factory=dict)
    code: dict[tuple[str, str], CodeValue] = field(default_factory=dict)
    held: tuple[HeldValue, ...] = ()
    is_sure: bool = True

    @classmethod
    def of(cls, transforms: Iterable[Any]) -> Watched:
        """What these hold and read in users' modules, where it is small, but for what their code writes to, and for
        objects that say themselves what decides their elements.
        """
        owners = [*itertools.islice(_owners(transforms), _MAX_OWNERS)]
        code = dict.fromkeys(each if isinstance(each, types.FunctionType) else type(each) for each in owners)
        own = OwnWrites.of(owners)

        places = [place for place in script_places(code) if place[1].rpartition(".")[2] not in own.names]
        script = script_values(place for place in places if _is_small(held_in(*place)))
        return cls(script, script_code(places), held_values(owners, own, _is_small), own.is_sure)

    def changed(self) -> Iterator[tuple[str, str, str, bool]]:
        """The name of each value that is another now, how it looked, how it does, and whether the code may have done
        that itself: filled a table, or an array. Of what is large, nothing.
        """
        for (module, name), was in self.script.items():
            here = script_value(module, name, MAX_LOOKED_AT_NBYTES)
            if here is not None and here.digest != was.digest:
                yield f"{module}.{name}", was.look, here.look, here.is_table
        for place, code in self.code.items():
            if (other := code.replaced(*place)) is not None:
                yield ".".join(place), code.look, other.look, False
        for held in self.held:
            if (looks := held.changed) is not None:
                yield held.label, *looks, held.may_be_scratch

    def check(self) -> None:
        """Raise ValueError where the program has set anything anew; what the code may have changed is warned of."""
        for name, look, look_here, may_be_own in self.changed():
            said = (
                f"{name} was {look} when the source was made, and its state says so; it is {look_here} now, which "
                "gives data of no state. Set it before the source is made, or make another one after every change"
            )
            if self.is_sure and not may_be_own:
                raise ValueError(said)
            logger.warning(said)


def _is_small(value: Any, depth: int = 0) -> bool:
    """Whether looking at all of it takes a moment: no long text, no large or deep table, nor one that holds itself."""
    if isinstance(value, np.ndarray):
        return not depth and value.nbytes <= MAX_LOOKED_AT_NBYTES and not value.dtype.hasobject
    if isinstance(value, str | bytes | bytearray):
        return len(value) <= _MAX_TEXT
    if isinstance(value, dict):
        value = [*value.values()] if len(value) <= _MAX_ITEMS else None
    if isinstance(value, list | tuple | set | frozenset):
        return depth < _MAX_DEPTH and len(value) <= _MAX_ITEMS and all(_is_small(each, depth + 1) for each in value)
    return isinstance(value, int | float | complex | np.generic | None)


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
        elif isinstance(value, dict | list | tuple | set):
            waiting += [*(value.values() if isinstance(value, dict) else value)][:_MAX_ITEMS]
        elif is_owner(value):
            yield value
            waiting += asked(value, "__dict__", {}).values()
