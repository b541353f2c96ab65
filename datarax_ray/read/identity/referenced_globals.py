"""What a user's function uses beside its own text: module-level functions, classes and data of its own package.

Followed through the names that the code loads, and through modules of the package (`helpers.scale`), until nothing new
is found. Libraries are not followed, nor this package: their code changes with releases, not with a dataset.
"""

from __future__ import annotations

import ast
import dis
import inspect
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

# Far more than transforms use, and an end where a package is entered at its centre.
_MAX_FOUND = 500
# A longer table is data, which a fingerprint of code need not read in full: its length counts.
_MAX_ITEMS = 10_000
_SINGLE = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.ndarray, np.generic)
_PLAIN = (*_SINGLE, tuple, list, dict, set, frozenset)
_CHANGING = {"append", "add", "update", "setdefault", "pop", "popitem", "extend", "insert", "clear", "remove"}
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")})


def reached(root: Any) -> list[tuple[str, Any]]:
    """(name, value) of every function, class and plain value that a function or class uses, sorted by name.

    Data that the code writes to (a cache) is left out: it would be another one after the first call.
    """
    if not is_users(root):
        return []
    package = root.__module__.partition(".")[0]
    found: dict[str, Any] = {}
    written: set[str] = set()
    waiting = [root]
    while waiting and len(found) < _MAX_FOUND:
        for function in _functions(waiting.pop()):
            written |= _written(function)
            for name, value in _used(function, package):
                if name not in found and value is not root:
                    found[name] = _shortened(value)
                    if isinstance(value, types.FunctionType | type):
                        waiting.append(value)
    return [(name, found[name]) for name in sorted(found.keys() - written)]


def is_users(code: Any) -> bool:
    """Whether a function, class or module is of neither a library nor this package."""
    name = code.__name__ if isinstance(code, types.ModuleType) else getattr(code, "__module__", None) or ""
    file = getattr(sys.modules.get(name), "__file__", None)
    is_own = name.partition(".")[0] == __name__.partition(".")[0]
    return not is_own and (name == "__main__" or bool(file and not file.startswith(_LIBRARIES)))


def _functions(code: Any) -> Iterator[types.FunctionType]:
    """The function itself, or the methods of a class."""
    for value in vars(code).values() if inspect.isclass(code) else [code]:
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.FunctionType):
            yield value


def _used(function: types.FunctionType, package: str) -> Iterator[tuple[str, Any]]:
    """What a function loads by a global name, or as an attribute of a module of the package."""
    loaded: list[tuple[str, Any]] = []
    for code in _code_objects(function.__code__):
        value: Any = None
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                value = function.__globals__[step.argval]
                loaded.append((f"{function.__module__}.{step.argval}", value))
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType):
                name, value = f"{value.__name__}.{step.argval}", getattr(value, step.argval, None)
                if name.partition(".")[0] == package:
                    loaded.append((name, value))
            elif step.opname not in ("CACHE", "PRECALL", "PUSH_NULL"):
                value = None
    for name, value in loaded:
        value = inspect.unwrap(value) if hasattr(value, "__wrapped__") else value  # functools.cache, jax.jit
        is_code = isinstance(value, types.FunctionType | type) and value.__module__.partition(".")[0] == package
        if isinstance(value, _PLAIN) or (is_code and is_users(value)):
            yield name, value


def _written(function: types.FunctionType) -> set[str]:
    """Globals that a function assigns items of, declares global, or calls a changing method of: caches, counters."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # without source, or a lambda in the middle of a line
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names.update(node.names)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            names.update([node.value.id] if isinstance(node.value, ast.Name) else [])
        elif isinstance(node, ast.Attribute) and node.attr in _CHANGING and isinstance(node.value, ast.Name):
            names.add(node.value.id)
    return {f"{function.__module__}.{name}" for name in names}


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_objects(constant)


def _shortened(value: Any) -> Any:
    is_table = isinstance(value, Mapping | Sequence | Set) and not isinstance(value, str | bytes)
    return [type(value).__name__, len(value)] if is_table and len(value) > _MAX_ITEMS else value
