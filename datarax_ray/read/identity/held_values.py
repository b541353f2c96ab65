"""Plain data in what travels by value: attributes of users' objects, and what their functions close over.

It is set in the actors as it was when it travelled. The program may have set another value since, with which it would
give other data itself.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.read.identity.module_values import DataValue
from datarax_ray.read.identity.referenced_globals import asked, attributes_written, kept, module_of, shortened

# Looked at by each stream that begins.
_MAX_OWNERS, _MAX_NBYTES = 500, 2**20


@dataclass(frozen=True)
class HeldValue:
    """Some data of an object or a function, and what it was."""

    owner: Any
    name: str
    value: Any
    was: DataValue

    @property
    def label(self) -> str:
        """Its name, for people."""
        if isinstance(self.owner, types.FunctionType):
            return f"{self.name}, which {self.owner.__qualname__} uses,"
        return f"{self.name} of a {type(self.owner).__qualname__}"

    @property
    def here(self) -> DataValue | None:
        """As it is now; None where it is no data any more."""
        return _data(self.owner, _held_by(self.owner).get(self.name))

    @property
    def may_be_scratch(self) -> bool:
        """Whether it is a table, or an array that was filled anew, which the code may do itself."""
        is_array = isinstance(self.value, np.ndarray) and _held_by(self.owner).get(self.name) is self.value
        return self.was.is_table or is_array


def held_values(
    owners: Iterable[Any], is_looked_at: Callable[[str, Any], bool] = lambda name, value: True
) -> tuple[HeldValue, ...]:
    """The data that some objects and functions hold, but for what their code writes to, and what is large.

    is_looked_at: tells which, by its name and itself.
    """
    owners = [*itertools.islice(owners, _MAX_OWNERS)]
    written = attributes_written(each if isinstance(each, types.FunctionType) else type(each) for each in owners)
    return tuple(
        HeldValue(owner, name, value, was)
        for owner in owners
        for name, value in [*_held_by(owner).items()]
        if name not in written
        and is_looked_at(name, value)
        and shortened(value) is value
        and (was := _data(owner, value)) is not None
    )


def _held_by(owner: Any) -> dict[str, Any]:
    if isinstance(owner, types.FunctionType):
        return kept(owner)
    pickling = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")  # of the user's own: as that says
    if any(isinstance(asked(type(owner), name), types.FunctionType) for name in pickling):
        return {}
    found = asked(owner, "__dict__", {})
    return found if isinstance(found, dict) else {}


def _data(owner: Any, value: Any) -> DataValue | None:
    return DataValue.of(value, module_of(owner if isinstance(owner, types.FunctionType) else type(owner)), _MAX_NBYTES)
