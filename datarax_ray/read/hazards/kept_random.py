"""What a transform's code makes of more than its element, random numbers say, as its text shows before it runs.

The generators of `random` and of numpy.random, and one made once and held, go on from element to element: their
numbers depend on which process reads what, and when. So the values are others with another number of actors, and after
a resume. So it is with chance itself (uuid4, os.urandom), with hash(), which Python keys anew in every process for
text, and with the time of day. Seen is what users' functions load by name, and generators in objects of libraries
(Albumentations' pipelines); not what a library's functions draw, nor what is called through a variable.
"""

from __future__ import annotations

import datetime
import dis
import functools
import inspect
import os
import random
import secrets
import sys
import time
import types
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from datarax_ray.read.identity.loads import functions_used
from datarax_ray.read.identity.users_code import asked, cells, code_objects, inner, is_users

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
# Nobody can seed these.
_CHANCE = {os.urandom, uuid.uuid1, uuid.uuid4}
_CHANCE |= {secrets.randbelow, secrets.token_bytes, secrets.token_hex, secrets.token_urlsafe}
_CLOCKS = {time.time, time.time_ns}
_DAYS = (datetime.date, datetime.datetime)
# Who sets a generator's state for each element has made it a function of the element.
_SETTING = {"seed", "setstate", "set_state", "set_random_seed"}
_SILENT = {"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG"}


def kept_random(transform: Any, entered: Iterable[str] | None = None) -> str | None:
    """What the transform draws from so, as its code has it ("np.random.rand"); None where nothing is seen.

    entered: the methods that are called for each element, of an object that has others too, a dataset; None for all.
    """
    drawn: list[str] = []
    for said, value in _all_loaded(transform, entered):
        owner = value if isinstance(value, _GENERATORS) else asked(value, "__self__")
        if isinstance(value, np.random.BitGenerator) or said.rpartition(".")[2] in _SETTING:
            return None
        is_chance = isinstance(value, types.FunctionType | types.BuiltinFunctionType) and value in _CHANCE
        if is_chance or isinstance(owner, _GENERATORS) or said.endswith("default_rng()"):
            drawn.append(said)
    return max(drawn, key=len, default=None)  # "rng" comes before "rng.random"


def uses_hash(transform: Any) -> bool:
    """Whether the transform's code uses Python's hash(), but to say what its own objects' is."""
    return any(value is hash for _, value in _all_loaded(transform))


def read_environment(transform: Any) -> str | None:
    """Where the transform's code asks for the environment ("os.environ"); None where nothing is seen."""
    asking = (os.environ, os.environb, os.getenv)
    return next((said for said, value in _all_loaded(transform) if any(value is each for each in asking)), None)


def read_clock(transform: Any) -> str | None:
    """The time of day that the transform's code asks for ("time.time"); None where nothing is seen."""
    for said, value in _all_loaded(transform):
        is_of_day = any(asked(value, "__self__") is day for day in _DAYS)
        if isinstance(value, types.BuiltinFunctionType) and (
            value in _CLOCKS or (is_of_day and value.__name__ in ("now", "today", "utcnow"))
        ):
            return said
    return None


def _all_loaded(transform: Any, entered: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
    """What the functions of a transform load each time that they are called; see _loaded."""
    for function, held in called(transform, entered):
        yield from _loaded(function, held)


def called(transform: Any, entered: Iterable[str] | None = None) -> Iterator[tuple[types.FunctionType, dict[str, Any]]]:
    """The functions of a transform that are called for its elements, and the generators that its attributes hold."""
    while isinstance(transform, functools.partial):
        transform = transform.func
    held = {}
    if isinstance(transform, types.FunctionType):
        roots: Iterable[Any] = [transform]
    else:
        transform = asked(transform, "__self__", transform)  # of a bound method
        roots = [base for base in type(transform).__mro__ if is_users(base)]
        if entered is not None:
            roots = reached_methods(type(transform), entered)
        found = {name: _generator_in(value) for name, value in getattr(transform, "__dict__", {}).items()}
        held = {name: value for name, value in found.items() if isinstance(value, _GENERATORS)}
    for function in (inspect.unwrap(function) for root in roots for function in functions_used(root)):
        if function.__name__ not in ("__init__", "__hash__"):  # the one runs where the transform is made
            yield function, held


def _generator_in(value: Any) -> Any:
    """What an object of a library draws from, if it holds that; the value itself otherwise."""
    held = asked(value, "__dict__")
    if not isinstance(held, dict) or isinstance(value, types.ModuleType | types.FunctionType) or is_users(type(value)):
        return value
    own = (each for name, each in held.items() if name != "random_state")  # scikit-learn's, for what is fitted
    return next((each for each in own if isinstance(each, _GENERATORS)), value)


def reached_methods(kind: type, entered: Iterable[str]) -> list[types.FunctionType]:
    """These methods of users' classes, and those that they name, and so on."""
    found: dict[str, types.FunctionType] = {}
    waiting = list(entered)
    while waiting:
        name = waiting.pop()
        method = inner(asked(kind, name))
        if name not in found and isinstance(method, types.FunctionType) and is_users(method):
            found[name] = method
            waiting += (used for code in code_objects(method.__code__) for used in code.co_names)
    return list(found.values())


def _loaded(function: types.FunctionType, held: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(as written, value) of globals, cells, imports inside and the attributes of modules and generators among them;
    held: generators by the names of attributes of `self` that hold them.
    """
    outside = {"hash": hash, **function.__globals__, **cells(function)}
    for code in code_objects(function.__code__):
        imported: dict[str, Any] = {}
        said, value = "", None
        for step in dis.get_instructions(code):
            if step.opname in _SILENT:
                continue
            is_pair = "_FAST_" in step.opname and isinstance(step.argval, tuple)  # STORE_FAST_LOAD_FAST of Python 3.13
            name = step.argval[0] if is_pair else step.argval
            if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
                said, value = name, _generator_in(outside.get(name))
            elif step.opname.startswith("LOAD_FAST") and name in imported:
                said, value = name, imported[name]
            elif step.opname == "IMPORT_NAME":
                said, value = name, sys.modules.get(name)
            elif step.opname == "IMPORT_FROM":
                said, value = f"{said}.{name}", asked(value, name)
            elif step.opname.startswith("STORE_FAST") and value is not None:
                imported[name] = value
                value = None
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and (
                isinstance(value, (types.ModuleType, *_GENERATORS)) or any(value is each for each in _DAYS)
            ):
                said, value = f"{said}.{name}", asked(value, name, value if name in _SETTING else None)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and name in held:
                said, value = f"self.{name}", held[name]
            elif step.opname == "CALL" and step.arg == 0 and value is np.random.default_rng:  # seeded by chance
                said += "()"
            else:
                value = None
            if value is not None:
                yield said, value
