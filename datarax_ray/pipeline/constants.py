"""What functions among the stages use of modules that they do not hold: constants of the compiled program.

A function that calls a module of its closure, a global or its own object bakes in what the module holds when the
program is compiled, and is not compiled again for another. So what was seen then is looked for again with each batch.
Plain globals and numbers in closures are constants too, as of any function under jax.jit; these are not looked at.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

from flax import nnx

from datarax_ray.read.identity.users_code import cells, code_objects, is_users
from datarax_ray.sources.base.tracing import HostModule

_MAX_SEEN = 1000  # values on the way to them, and an end where a program holds much
_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()


class Constants:
    """What these stages use of modules from outside. Random variables are none: NNX refuses them under a trace."""

    def __init__(self, stages: Iterable[Any]) -> None:
        self._stages = tuple(stages)
        self._is_empty = not self._found()  # as a rule, and then nothing is looked for again
        self._values: dict[str, Any] = {}

    @property
    def variables(self) -> list[nnx.Variable]:
        """Those that are constants."""
        return [] if self._is_empty else [value for value in self._found().values() if isinstance(value, nnx.Variable)]

    def check(self) -> None:
        """Raise RuntimeError where any of it was changed since this was first called, before anything was compiled."""
        if self._is_empty:
            return
        values = {
            name: value.get_raw_value() if isinstance(value, nnx.Variable) else value
            for name, value in self._found().items()
        }
        self._values = self._values or values
        names = {*values, *self._values}
        if changed := sorted(n for n in names if not _is_same(values.get(n, _MISSING), self._values.get(n, _MISSING))):
            raise RuntimeError(
                f"{', '.join(changed)} was set since the stages were compiled, and a function among them uses it from "
                "outside: there it is a constant, so batches would be made by its old value, and by another one once a "
                "batch of another shape, or a restored run, is compiled. Give the module itself as a stage, or hold it "
                "in an nnx.Module that is one"
            )

    def _found(self) -> dict[str, Any]:
        """The variables that the stages reach, and plain attributes beside these, by the names on the way to them."""
        found: dict[str, Any] = {}
        for stage in self._stages:
            inside = _methods(stage) if isinstance(stage, nnx.Module) else [("", stage)]
            for name, value in inside:
                found |= _reached(name, value)
        return found


def _is_same(left: Any, right: Any) -> bool:
    return left is right or (type(left) in _PLAIN and type(left) is type(right) and left == right)


def _methods(module: nnx.Module) -> Iterator[tuple[str, Any]]:
    """What a user wrote for a module. What it does with the module itself is with the module's variables."""
    for kind in type(module).__mro__:
        if is_users(kind):
            yield from ((name, value) for name, value in vars(kind).items() if isinstance(value, types.FunctionType))


def _reached(name: str, stage: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    seen: dict[Any, Any] = {}  # held, so that no other value gets its address
    waiting: list[tuple[str, Any, frozenset[str]]] = [(name, stage, frozenset())]
    while waiting and len(seen) < _MAX_SEEN:
        name, value, attributes = waiting.pop()
        key = (id(value.__func__), id(value.__self__)) if isinstance(value, types.MethodType) else id(value)
        if key in seen:
            continue
        seen[key] = value
        if isinstance(value, nnx.Module | nnx.Variable):
            found |= {} if isinstance(value, HostModule) else _values(name, value)
        else:
            parts = _parts(value, attributes)
            waiting += ((f"{name}.{part}" if name else part, inner, loads) for part, inner, loads in parts)
    return found


def _values(name: str, module: Any) -> dict[str, Any]:
    found = {}
    for path, value in nnx.iter_graph(module):
        here = ".".join([name, *map(str, path)])
        if isinstance(value, nnx.Variable) and not isinstance(value, nnx.RngState):
            found[here] = value
        elif isinstance(value, nnx.Module):
            plain = ((key, each) for key, each in vars(value).items() if type(each) in _PLAIN)
            found |= {f"{here}.{key}": each for key, each in plain if not key.startswith("_")}
    return found


def _parts(value: Any, attributes: frozenset[str]) -> Iterator[tuple[str, Any, frozenset[str]]]:
    """What a value holds or, as a user's function, uses: its name there, and which attributes of it are used.

    attributes: those that are used of the value, by who holds it.
    """
    if isinstance(value, functools.partial):
        yield from ((name, getattr(value, name), _loads(value.func)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.MethodType):
        yield from (("self." + name, each, used) for name, each, used in _parts(value.__self__, _loads(value)))
        yield "func", value.__func__, frozenset()
    elif isinstance(value, types.FunctionType):
        if is_users(value):
            yield from ((name, each, _loads(value)) for name, each in _used(value))
    elif isinstance(value, list | tuple | dict):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((str(key), item, attributes) for key, item in pairs)
    elif hasattr(value, "__wrapped__"):  # jax.jit, functools.cache
        yield "wrapped", value.__wrapped__, frozenset()
    elif isinstance(value, nnx.Module | nnx.Variable):  # of a method
        yield "", value, frozenset()
    elif isinstance(value, types.ModuleType) or (not isinstance(value, type) and is_users(type(value))):
        yield from ((name, _attribute(value, name), attributes) for name in sorted(attributes))
        if callable(value):
            yield "call", types.MethodType(type(value).__call__, value), frozenset()


def _attribute(value: Any, name: str) -> Any:
    """An attribute, without running a property; None where there is none."""
    found = inspect.getattr_static(value, name, None)
    if isinstance(found, types.MemberDescriptorType):  # of a class with slots
        return getattr(value, name, None)
    if isinstance(found, types.FunctionType) and not isinstance(value, types.ModuleType):
        return types.MethodType(found, value)
    return found.fget if isinstance(found, property) else found


def _loads(function: Any) -> frozenset[str]:
    """The names of all attributes that a function uses, of whatever."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return frozenset() if code is None else _names(code)[1]


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The globals, and the attributes, that a code and those in it name."""
    names, attributes = [], set()
    for inner in code_objects(code):
        for step in dis.get_instructions(inner):
            if step.opname == "LOAD_GLOBAL":
                names.append(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                attributes.add(step.argval)
    return tuple(dict.fromkeys(names)), frozenset(attributes)


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield from cells(function).items()
    for name in _names(function.__code__)[0]:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield "defaults", [function.__defaults__, function.__kwdefaults__]
