"""Plain data in what travels by value: attributes of users' objects, and what their functions close over.

It is set in the actors as it was when it travelled. The program may have set another value since, with which it would
give other data itself.
"""

from __future__ import annotations

import argparse
import itertools
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.read.identity.module_values import DataValue
from datarax_ray.read.identity.own_writes import OwnWrites
from datarax_ray.read.identity.referenced_globals import asked, is_users, kept, module_of, shortened

# Looked at by each stream that begins.
_MAX_OWNERS, _MAX_NBYTES = 500, 2**20
_INHERITED = object()  # no data


@dataclass(frozen=True)
class HeldValue:
    """Some data of an object or a function, and what it was.

    is_inherited: of the class, not of the object itself. may_be_own: whether it may be that code sets it while elements
    are made, though nothing shows that, or that none reads it.
    """

    owner: Any
    name: str
    value: Any
    was: DataValue
    is_inherited: bool = False
    may_be_own: bool = False

    @property
    def label(self) -> str:
        """Its name, for people."""
        if isinstance(self.owner, types.FunctionType):
            return f"{self.name}, which {self.owner.__qualname__} uses,"
        return f"{self.name} of a {type(self.owner).__qualname__}"

    @property
    def here(self) -> DataValue | None:
        """As it is now; None where it is no data any more, or is the class's still."""
        return _data(self.owner, _held_by(self.owner).get(self.name, _INHERITED if self.is_inherited else None))

    @property
    def may_be_scratch(self) -> bool:
        """Whether the code may have changed it itself, as of a table, or an array that was filled anew."""
        is_array = isinstance(self.value, np.ndarray) and _held_by(self.owner).get(self.name) is self.value
        return self.was.is_table or is_array or self.may_be_own


def is_owner(value: Any) -> bool:
    """Whether it is an object of a class of users', or one that holds settings by name."""
    return _is_namespace(value) or (not isinstance(value, type | types.ModuleType) and is_users(type(value)))


def _is_namespace(value: Any) -> bool:
    return isinstance(value, types.SimpleNamespace | argparse.Namespace)


def held_values(
    owners: Iterable[Any], own: OwnWrites, is_looked_at: Callable[[Any], bool] = lambda value: True
) -> tuple[HeldValue, ...]:
    """The data that some objects and functions hold, but for what their code writes to, what is large, and settings of
    a program that no code names.
    """

    def may_read(owner: Any, name: str) -> bool:
        return isinstance(owner, types.FunctionType) or own.read is None or name in own.read

    return tuple(
        HeldValue(owner, name, value, was, name not in held, name in own.perhaps or not may_read(owner, name))
        for owner, held in ((owner, _held_by(owner)) for owner in itertools.islice(owners, _MAX_OWNERS))
        for name, value in (_of_class(owner) | held).items()
        if name not in own.names
        and (may_read(owner, name) or not _is_namespace(owner))
        and is_looked_at(value)
        and shortened(value) is value
        and (was := _data(owner, value)) is not None
    )


def _held_by(owner: Any) -> dict[str, Any]:
    if isinstance(owner, types.FunctionType):
        return kept(owner)
    pickling = (asked(type(owner), name) for name in ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"))
    if any(isinstance(each, types.FunctionType) and is_users(each) for each in pickling):  # as that says
        return {}
    slots = {name: slot for name, slot in _of_class(owner).items() if isinstance(slot, types.MemberDescriptorType)}
    found = {name: asked(owner, name, slot) for name, slot in slots.items()}
    return found | (each if isinstance(each := asked(owner, "__dict__", {}), dict) else {})


def _of_class(owner: Any) -> dict[str, Any]:
    """What an object has of its class and of those above it."""
    kinds = () if isinstance(owner, types.FunctionType) else type(owner).__mro__[::-1]
    held = (pair for kind in kinds if is_users(kind) for pair in vars(kind).items())
    return {name: value for name, value in held if name[:2] != "__"}


def _data(owner: Any, value: Any) -> DataValue | None:
    return DataValue.of(value, module_of(owner if isinstance(owner, types.FunctionType) else type(owner)), _MAX_NBYTES)
