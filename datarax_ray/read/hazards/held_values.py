"""What travels by value holds: attributes of users' objects, methods of their classes, and what functions close over.

It is set in the actors as it was when it travelled. The program may have set another value since, with which it would
give other data itself.
"""

from __future__ import annotations

import argparse
import itertools
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.plan.fingerprint import shown
from datarax_ray.read.hazards.module_values import DataValue
from datarax_ray.read.hazards.own_writes import OwnWrites
from datarax_ray.read.identity.code import value_digest
from datarax_ray.read.identity.plain_data import is_data, shortened
from datarax_ray.read.identity.users_code import asked, called, inner, is_users, kept, methods, module_of

# Looked at by each stream that begins.
_MAX_OWNERS, _MAX_NBYTES = 500, 2**20
_INHERITED = object()  # no data


@dataclass(frozen=True)
class HeldValue:
    """Something of an object, a function or a class, and what it was.

    was: of data; None for other objects, and for methods of a class.
    body: of a function its bytecode.
    is_inherited: of the class, not of the object itself.
    may_be_own: whether it may be that code sets it while elements are made, though nothing shows that, or that none
        reads it.
    """

    owner: Any
    name: str
    value: Any
    was: DataValue | None
    body: Any = None
    is_inherited: bool = False
    may_be_own: bool = False

    @property
    def label(self) -> str:
        """Its name, for people."""
        if isinstance(self.owner, types.FunctionType):
            return f"{self.name}, which {self.owner.__qualname__} uses,"
        kind = self.owner if isinstance(self.owner, type) else type(self.owner)
        return f"{self.name} of a {kind.__qualname__}"

    @property
    def changed(self) -> tuple[str, str] | None:
        """How it looked, and how it looks now; None where it is the same, or no data any more, or the class's still."""
        value = _held_by(self.owner).get(self.name, _INHERITED if self.is_inherited else None)
        if self.was is not None:
            here = _data(self.owner, value)
            return None if here is None or here.digest == self.was.digest else (self.was.look, here.look)
        body = asked(inner(value), "__code__")
        if value is None or (value is self.value and body == self.body):
            return None
        if value is not self.value and _digests(value) == _digests(self.value):
            return None
        return (f"another {type(self.value).__name__}", shown(shortened(value)))

    @property
    def may_be_scratch(self) -> bool:
        """Whether the code may have changed it itself, as of a table, or an array that was filled anew."""
        is_array = isinstance(self.value, np.ndarray) and _held_by(self.owner).get(self.name) is self.value
        return (self.was is not None and self.was.is_table) or is_array or self.may_be_own


def is_owner(value: Any) -> bool:
    """Whether it is an object of a class of users', or one that holds settings by name."""
    return is_namespace(value) or (not isinstance(value, type | types.ModuleType) and is_users(type(value)))


def is_namespace(value: Any) -> bool:
    """Whether it holds settings of a program, as argparse makes it."""
    return isinstance(value, types.SimpleNamespace | argparse.Namespace)


def held_values(
    owners: Iterable[Any], own: OwnWrites, is_looked_at: Callable[[Any], bool] = lambda value: True
) -> tuple[HeldValue, ...]:
    """What some objects and functions hold, and the methods of their classes, but for what their code writes to, data
    that is large, and settings of a program that no code names.
    """

    def may_read(owner: Any, name: str) -> bool:
        return isinstance(owner, types.FunctionType) or own.read is None or name in own.read

    found: list[HeldValue] = []
    owners = [*itertools.islice(owners, _MAX_OWNERS)]
    for owner in owners:
        held = _held_by(owner)
        for name, value in (_of_class(owner) | held).items():
            if name in own.names or (is_namespace(owner) and not may_read(owner, name)):
                continue
            may_be_own = name in own.perhaps or not may_read(owner, name)
            if is_data(value):
                is_taken = is_looked_at(value) and shortened(value) is value
                if is_taken and (was := _data(owner, value)) is not None:
                    found.append(HeldValue(owner, name, value, was, None, name not in held, may_be_own))
            elif name in held and not isinstance(value, types.ModuleType | Mapping | list | tuple | set):
                found.append(HeldValue(owner, name, value, None, asked(inner(value), "__code__"), False, may_be_own))
    kinds = dict.fromkeys(base for owner in owners for base in type(owner).__mro__ if is_users(base))
    for kind in kinds:
        for name, value in _held_by(kind).items():
            if name not in own.names:
                found.append(HeldValue(kind, name, value, None, asked(inner(value), "__code__")))
    return tuple(found)


def _digests(value: Any) -> list[str]:
    """Of an object, or the functions that it is."""
    return [value_digest(each) for each in [*called(value)] or [value]]


def _held_by(owner: Any) -> dict[str, Any]:
    if isinstance(owner, types.FunctionType):
        return kept(owner)
    if isinstance(owner, type):
        return {name: vars(owner)[name] for name, _ in methods(owner)}
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
