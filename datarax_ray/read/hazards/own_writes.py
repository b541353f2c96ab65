"""What the code of transforms reads and writes while elements are made: what it sets itself, the program has not set.

By the bytecode, as what is typed at a prompt has no text, and by the text, which shows what is changed in place.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.read.elements.transforms import METHODS
from datarax_ray.read.identity.users_code import (
    GENERATED,
    MADE,
    asked,
    attributes_written,
    code_objects,
    is_users,
    methods,
)

_MAX_FUNCTIONS = 1000
# What stores to names that the code does not show, and what calls those.
_UNSEEN = {"setattr", "__setattr__", "__dict__", "vars", "exec", "eval", "globals", "modules"}
_CALLS = {"getattr", "methodcaller", "attrgetter", "exec", "eval"}
_STORES = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF"}
_EMPTY = types.CellType()


@dataclass
class OwnWrites:
    """Names of attributes and globals that code stores to, or changes in place.

    names: by code that may run.
    perhaps: by methods of objects of which nothing is seen to be called, which a library may.
    read: what code that may run names; None where it may read anything.
    is_sure: whether users' code stores to nothing in a way that the code does not show.
    """

    names: set[str] = field(default_factory=set)
    perhaps: set[str] = field(default_factory=set)
    read: set[str] | None = field(default_factory=set)
    is_sure: bool = True

    @classmethod
    def of(cls, owners: Iterable[Any]) -> OwnWrites:
        """Of functions and objects, as these run while elements are made: functions, methods of transforms, those that
        Python calls itself, and what these name. A method that nothing names is the program's to call.
        """
        owners = [*owners]
        waiting = [each for each in owners if isinstance(each, types.FunctionType)]
        named: dict[str, list[Any]] = {}
        kinds = dict.fromkeys(type(each) for each in owners if not isinstance(each, types.FunctionType))
        for kind in kinds:
            theirs = {name for base in kind.__mro__ if not is_users(base) for name in vars(base)}  # may call it
            for base in kind.__mro__:
                for name, method in methods(base):
                    if name in METHODS or name in theirs or name[:2] == "__" == name[-2:]:
                        waiting.append(method)
                    else:
                        is_setter = isinstance(part := vars(base)[name], property) and method is not part.fget
                        named.setdefault(f"{name}=" if is_setter else name, []).append(method)

        running = _followed(waiting, named)
        ran = {function.__code__ for function in running if function.__name__ not in vars(object)}
        reading = (each for each in running if is_users(each) and each.__name__ not in MADE)
        read = {name for function in reading for name in _names(function.__code__)[0]}
        found = cls(_stored(running), is_sure=not any(map(_hides_stores, running)))
        found.read = read if read.isdisjoint(_CALLS | _UNSEEN) else None
        for kind in kinds:
            own = [method for base in kind.__mro__ if is_users(base) for _, method in methods(base)]
            if ran.isdisjoint(each.__code__ for each in map(inspect.unwrap, own)):
                found.perhaps |= _stored(_followed(own, {}))
        return found


def _followed(waiting: list[Any], named: dict[str, list[Any]]) -> list[types.FunctionType]:
    """Functions, what is inside them, and users' that these hold, load, or name among `named`: "x" is read, "x=" of a
    property set.
    """
    found: dict[types.CodeType, types.FunctionType] = {}
    named, waiting = dict(named), [*waiting]
    while waiting and len(found) < _MAX_FUNCTIONS:
        function = waiting.pop()
        waiting += filter(None, [asked(function, "__wrapped__")])
        if not isinstance(function, types.FunctionType) or function.__code__ in found:
            continue
        found[function.__code__] = function
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
        names = _names(function.__code__)[0]
        held += [function.__globals__.get(name) for name in names]
        waiting += [each for each in held if isinstance(each, types.FunctionType) and is_users(each)]
        wanted = names | {f"{name}=" for name in _names(function.__code__)[1]}
        if names & _CALLS and is_users(function):
            wanted |= {name for name in named if name[-1:] != "="}
        for name in wanted & named.keys():
            waiting += named.pop(name)
    return [*found.values()]


def _stored(functions: Iterable[types.FunctionType]) -> set[str]:
    functions = [each for each in functions if each.__name__ not in MADE]
    return {name for each in functions for name in _names(each.__code__)[1]}.union(
        attributes_written(filter(is_users, functions))
    )


def _hides_stores(function: types.FunctionType) -> bool:
    """Whether users' code may store to names that it does not show, but where objects are made."""
    is_made = function.__name__ in MADE or function.__code__.co_filename.startswith(GENERATED)
    is_looked_at = is_users(function) and not is_made
    return is_looked_at and not _UNSEEN.isdisjoint(_names(function.__code__)[0])


@functools.lru_cache(4096)  # a class of pydantic has a hundred functions, and every source asks
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """What code names, and of that what it stores to."""
    each = [*code_objects(code)]
    steps = (step for part in each for step in dis.get_instructions(part))
    named = frozenset(name for part in each for name in part.co_names)
    return named, frozenset(step.argval for step in steps if step.opname in _STORES)
