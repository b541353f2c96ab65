"""Random numbers that a transform's code draws from what is kept between elements, as its text shows before it runs.

The generators of `random` and of numpy.random, and one made once and held, go on from element to element: their
numbers depend on which process reads what, and when. So the values are others with another number of actors, and after
a resume. Seen is what users' functions load by name; not what a library draws, nor what is called through a variable.
"""

from __future__ import annotations

import dis
import functools
import inspect
import random
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from datarax_ray.read.identity.referenced_globals import cells, code_objects, functions_used, is_users

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
# Who sets a generator's state for each element has made it a function of the element.
_SETTING = {"seed", "setstate", "set_state"}
_SILENT = {"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG"}


def kept_random(transform: Any) -> str | None:
    """What the transform draws from so, as its code has it ("np.random.rand"); None where nothing is seen."""
    while isinstance(transform, functools.partial):
        transform = transform.func
    if isinstance(transform, types.FunctionType):
        roots: Iterable[Any] = [transform]
        held = {}
    else:
        transform = getattr(transform, "__self__", transform)  # of a bound method
        roots = [base for base in type(transform).__mro__ if is_users(base)]
        held = {
            name: value for name, value in getattr(transform, "__dict__", {}).items() if isinstance(value, _GENERATORS)
        }
    drawn: list[str] = []
    for function in (function for root in roots for function in functions_used(root)):
        function = inspect.unwrap(function)
        if function.__name__ == "__init__":  # which runs once, where the transform is made
            continue
        for said, value in _loaded(function, held):
            owner = value if isinstance(value, _GENERATORS) else getattr(value, "__self__", None)
            if isinstance(value, np.random.BitGenerator) or said.rpartition(".")[2] in _SETTING:
                return None
            if isinstance(owner, _GENERATORS) or said.endswith("default_rng()"):
                drawn.append(said)
    return max(drawn, key=len, default=None)  # "rng" comes before "rng.random"


def _loaded(function: types.FunctionType, held: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(as written, value) of globals, cells, imports inside and the attributes of modules and generators among them;
    held: generators by the names of attributes of `self` that hold them.
    """
    outside = {**function.__globals__, **cells(function)}
    for code in code_objects(function.__code__):
        imported: dict[str, Any] = {}
        said, value = "", None
        for step in dis.get_instructions(code):
            if step.opname in _SILENT:
                continue
            is_pair = "_FAST_" in step.opname and isinstance(step.argval, tuple)  # STORE_FAST_LOAD_FAST of Python 3.13
            name = step.argval[0] if is_pair else step.argval
            if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
                said, value = name, outside.get(name)
            elif step.opname.startswith("LOAD_FAST") and name in imported:
                said, value = name, imported[name]
            elif step.opname == "IMPORT_NAME":
                said, value = name, sys.modules.get(name)
            elif step.opname == "IMPORT_FROM":
                said, value = f"{said}.{name}", getattr(value, name, None)
            elif step.opname.startswith("STORE_FAST") and value is not None:
                imported[name] = value
                value = None
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, (types.ModuleType, *_GENERATORS)):
                said, value = f"{said}.{name}", getattr(value, name, None)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and name in held:
                said, value = f"self.{name}", held[name]
            elif step.opname == "CALL" and step.arg == 0 and value is np.random.default_rng:  # seeded by chance
                said += "()"
            else:
                value = None
            if value is not None:
                yield said, value
