"""What the text of code does not say of it: bases in other modules, what is registered, what has no text."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from enum import Enum
from typing import Any, NamedTuple

from datarax_ray.read.identity.loads import MAX_FOUND, walk
from datarax_ray.read.identity.plain_data import PLAIN, holds_code, is_data
from datarax_ray.read.identity.users_code import (
    MADE_CLASSES,
    NO_SOURCE,
    is_users,
    methods,
    source_of,
    written_attributes,
)


def unsaid_of(root: Any, known: dict[str, Any]) -> dict[str, Any]:
    """As unsaid_by, with the code that a function or class uses, where that is not known by then: takes it, by name."""
    before = {*known}
    found = unsaid_by(root, known)
    new = {name: known[name] for name in known.keys() - before}
    return {name: value for name, value in new.items() if isinstance(value, types.FunctionType | type)} | found


def unsaid_by(root: Any, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """What neither the text of a function or class, and of what that uses, says, nor what else is told of it, by name.

    Classes in other modules of users' that a class inherits from, and those of objects that it holds, descriptors too;
    what `__init_subclass__` registers of code; what named tuples, enums and dataclasses without a text are made of. No
    value that an object holds: that may be a clock, or a folder of this process.

    known: takes what it uses, by name; what is there is not looked at again.
    """
    used = {} if known is None else known
    found: dict[str, Any] = {}
    made: dict[str, Any] = {}  # of classes, as they were made
    kinds: dict[str, type] = {}  # of what they hold
    written: set[str] = set()  # names of attributes
    filled: set[str] = set()  # of classes: at the first use, mostly
    waiting, seen = [root], set[int]()
    while waiting and len(seen) < MAX_FOUND:
        code = waiting.pop()
        if id(code) in seen or not is_users(code):
            continue
        seen.add(id(code))
        before = {*used}
        for function in map(inspect.unwrap, walk(code, used, None)):
            if is_users(function) and function.__name__ not in MADE_CLASSES:
                written |= written_attributes(function)
                filled |= written_attributes(function, "self")
        for cls in filter(inspect.isclass, [code, *(used[name] for name in sorted(used.keys() - before))]):
            for base in filter(is_users, cls.__mro__):
                waiting.append(base)
                place = f"{base.__module__}.{base.__qualname__}"
                found |= {place: base} if base.__module__ != cls.__module__ else {}
                found |= {f"{place}()": parts} if (parts := _parts_of(base)) else {}
                kinds |= {
                    f"{place}.{name}": type(value)
                    for name, value in vars(base).items()
                    if not is_data(value) and is_users(type(value))
                }
                making = (each for name, each in methods(base) if name in MADE_CLASSES)
                names = {name for each in making for name in written_attributes(inspect.unwrap(each))}
                made |= {
                    f"{other.__module__}.{other.__qualname__}.{name}": value
                    for other in filter(is_users, cls.__mro__)
                    for name, value in vars(other).items()
                    if name in names and isinstance(value, PLAIN) and holds_code(value)
                }
    found |= {name: Filled(kind) if name.rpartition(".")[2] in filled else kind for name, kind in kinds.items()}
    return found | {name: value for name, value in made.items() if name.rpartition(".")[2] not in written}


class Filled(NamedTuple):
    """What a class holds in an attribute that code sets, a singleton: earlier releases told it, whenever that was."""

    kind: type


class _Parts(list[Any]):
    """What a class without a text is made of."""


@functools.lru_cache(1000)
def _parts_of(cls: type) -> _Parts | None:
    """The fields with their defaults, or the members, of a class that was made by a call; None of all others."""
    if dataclasses.is_dataclass(cls):
        parts = [[field.name, field.default] for field in dataclasses.fields(cls)]
    elif issubclass(cls, Enum):
        parts = [[member.name, member.value] for member in cls]
    elif issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
        parts = [[name, cls._field_defaults.get(name)] for name in cls._fields]  # type: ignore[attr-defined]
    else:
        return None
    try:
        source_of(cls)
    except NO_SOURCE:
        return _Parts([name, part] for name, part in parts if isinstance(part, int | str | None))
    return None
