"""What the methods of an object or class read of it, and write to."""

from __future__ import annotations

import argparse
import dis
import functools
import inspect
import itertools
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any

import numpy as np

from datarax_ray.read.identity.loads import MAX_FOUND, SILENT, loaded_names
from datarax_ray.read.identity.plain_data import (
    PLACES,
    PLAIN,
    SETTINGS,
    data_of_library,
    is_data,
    parts_of_config,
    shortened,
)
from datarax_ray.read.identity.users_code import GENERATED, MADE, asked, called, inner, is_users, slots, written_by

_NAMESPACES = (argparse.Namespace, types.SimpleNamespace)
# What runs while objects are made, saved and shown; all other methods between underscores may be an operator's.
_NO_OPERATORS = {
    *MADE,
    *("__init_subclass__", "__set_name__", "__class_getitem__", "__del__", "__repr__", "__hash__"),
    *("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__"),
}


def lasting(value: Any, package: str | None = "") -> Any:
    """An object that is called, without what it writes to then: a cache, a clock, a file that it opens.

    package: None for actors (see walk): also without what its properties make when they are first asked.
    """
    if package is None and isinstance(value, PLAIN):  # a table, whatever attributes it has
        return value
    changed = changed_by(own_methods(type(value), "__call__", package))
    if package is None:
        parts = (part for base in type(value).__mro__ for part in vars(base).items())
        changed |= {name for name, part in parts if isinstance(part, functools.cached_property)}
    if not changed or not isinstance(asked(value, "__dict__"), dict) or callable(asked(value, "fingerprint")):
        return value
    return [type(value), {name: held for name, held in vars(value).items() if name not in changed}]


def changed_by(methods: Iterable[types.FunctionType]) -> set[str]:
    """The attributes that methods write to of their object."""
    found: set[str] = set()
    for function in methods:
        own = ".".join([function.__module__, *function.__code__.co_varnames[:1], ""])
        found |= {each.removeprefix(own).partition(".")[0] for each in written_by(function) if each.startswith(own)}
    return found


def read_of(owner: Any, own: Collection[types.FunctionType]) -> dict[str, Any]:
    """The plain attributes of an object, by name, that methods of its class load.

    Without what these write to or make when they are first asked, and without files that are mapped.
    """
    loaded = {name for function in own for name in loaded_names(function)}
    return plain_parts(type(owner), asked(owner, "__dict__", {}), loaded - changed_by(own)) if loaded else {}


def plain_parts(cls: type, held: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {
        name: value
        for name, value in held.items()
        if name in names and is_data(value) and not isinstance(value, np.memmap) and not _is_made_once(cls, name)
    }


def holds_parts(value: Any) -> bool:
    """Whether it is an object of which code may read parts: of users', a namespace, as argparse makes, or a config."""
    if inspect.isclass(value) or is_data(value) or isinstance(value, types.ModuleType):
        return False
    return isinstance(value, _NAMESPACES) or is_users(type(value)) or parts_of_config(value) is not None


def parts_of(name: str, value: Any, names: Set[str], *, is_whole: bool) -> dict[str, Any]:
    """What code reads of an object, and of the objects inside it, as far as attributes have these names, by name: data,
    also of libraries, functions, and the code of methods, with what these read.

    Without what methods write to, and without places. is_whole: code has the object itself, so that its operators
    count, too; of one of which code calls a method by name, the parts that are none of Python's alone: all else is told
    by that.
    """
    found: dict[str, Any] = {}
    waiting, seen = [(name, value, names, is_whole)], set[int]()
    while waiting and len(seen) < MAX_FOUND:
        name, value, names, is_whole = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if callable(inspect.getattr_static(type(value), "fingerprint", None)):
            found[name] = value
            continue
        own, changed = _called_methods(type(value), names, is_whole=is_whole)
        code = {f"{name}.{each.__module__}.{each.__qualname__}()": each for each in own if not is_generated(each)}
        found |= code if is_whole else {}
        names = {*names}.union(*map(loaded_names, own)) - changed
        held = parts_of_config(value)
        for each, part in ((asked(value, "__dict__") or {}) | slots(value) if held is None else held).items():
            place = f"{name}.{each}"
            if each not in names or isinstance(part, (np.memmap, *PLACES)) or _is_made_once(type(value), each):
                continue
            if holds_parts(part):
                waiting.append((place, part, names, True))
            elif is_data(part) or is_function(part):
                found |= {place: shortened(part)} if is_whole else {}
            elif (data := data_of_library(part)) is not None:
                found[place] = data
    return found


def _called_methods(cls: type, names: Set[str], *, is_whole: bool) -> tuple[list[types.FunctionType], set[str]]:
    """The methods of a class of these names, and its operators if an object is_whole, with what these call of it; and
    the attributes to which any method writes. Not the operators that a dataclass or attrs makes: they read all fields.
    """
    bases = [*filter(is_users, cls.__mro__)]
    methods = [(name, part) for base in bases for name, each in vars(base).items() for part in called(each)]
    written = {name for name, part in methods if not is_generated(part) and is_users(part)}
    wanted = {name for name, _ in methods if name in names or (is_whole and name in written and _is_operator(name))}
    own = {each: None for name in sorted(wanted) for each in own_methods(cls, name, None)}
    own |= dict.fromkeys(inherited_methods(cls, [*own]))
    writing = (part for name, part in methods if name not in MADE)
    return [*own], changed_by(map(inspect.unwrap, writing))


def _is_operator(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in _NO_OPERATORS


def _is_made_once(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)


def own_methods(cls: type, method: str, package: str | None) -> list[types.FunctionType]:
    """A method of users', and those of the class that it uses. package: None also its properties (see walk)."""
    found: list[types.FunctionType] = []
    waiting, seen = [method], set[str]()
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        function = inspect.getattr_static(cls, name, None)
        if package is None and isinstance(function, property | functools.cached_property | classmethod | staticmethod):
            function = next(called(function), None)
        if isinstance(function, types.FunctionType) and is_users(bare := inspect.unwrap(function)):
            found.append(bare)
            waiting += bare.__code__.co_names
    return found


def hands_on(method: types.FunctionType) -> bool:
    """Whether a method hands its object on, or gives it back: to others it is more than its parts."""
    own = method.__code__.co_varnames[:1]
    steps = [step for step in dis.get_instructions(method) if step.opname not in SILENT]
    for step, then in itertools.pairwise(steps):
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)  # Python 3.13 loads two at once
        if step.opname.startswith("LOAD_FAST") and (
            own == names[:-1] or (own == names[-1:] and not then.opname.endswith(("_ATTR", "_METHOD", "COPY")))
        ):
            return True
    return False


def inherited_methods(cls: type, own: Iterable[types.FunctionType]) -> Iterator[types.FunctionType]:
    """The functions of users' classes that methods call of those that theirs inherits from, by super() or by name."""
    bases = [base for base in cls.__mro__ if is_users(base)]
    first = {*own}
    seen, waiting = {*own}, [*own]
    while waiting:
        function = waiting.pop()
        names = loaded_names(function)
        loaded = (function.__globals__.get(name) for name in names)
        if function in first and "super" not in names and not any(each is base for each in loaded for base in bases):
            continue
        for base in bases:
            for each in (part for name in names & vars(base).keys() for part in called(vars(base)[name])):
                if (bare := inspect.unwrap(each)) not in seen and is_users(bare):
                    seen.add(bare)
                    waiting.append(bare)
                    yield bare


def of_class(cls: type, own: Set[str]) -> dict[str, Any]:
    """The plain attributes of these names, by name, of a class and of those of users' that it inherits from."""
    kinds = (*PLAIN, *SETTINGS)
    return {
        f"{base.__module__}.{base.__qualname__}.{name}": shortened(value)
        for base in filter(is_users, cls.__mro__)
        for name, value in vars(base).items()
        if name in own and isinstance(value, kinds)
    }


def is_function(value: Any) -> bool:
    """Whether it is a function of users', or a partial of one."""
    while isinstance(value, functools.partial):
        value = value.func
    return isinstance(value, types.FunctionType) and is_users(inner(value))


def is_generated(function: Any) -> bool:
    return inspect.unwrap(function).__code__.co_filename.startswith(GENERATED)
