"""Variables that stages use and do not hold: constants of the compiled program, which is not traced again for them.

A function that calls a module of its closure, a global or its own object bakes in what the module holds at that moment.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from flax import nnx

from datarax_ray.read.identity.referenced_globals import is_users
from datarax_ray.sources.base.tracing import HostModule

_MAX_SEEN = 1000  # values on the way to them, and an end where a program holds much


class Constants:
    """The variables that these stages use from outside. Random ones are none: NNX refuses them under a trace."""

    def __init__(self, stages: Iterable[Any]) -> None:
        self._found: dict[str, nnx.Variable] = {}
        for stage in stages:
            self._found |= _variables(type(stage).__call__ if isinstance(stage, nnx.Module) else stage)
        self._values: dict[str, Any] = {}

    def check(self) -> None:
        """Raise RuntimeError where one of them was set since this was first called, before the program was compiled."""
        values = {name: variable.get_raw_value() for name, variable in self._found.items()}
        self._values = self._values or values
        if changed := [name for name, value in values.items() if value is not self._values[name]]:
            raise RuntimeError(
                f"{', '.join(changed)} was set since the stages were compiled, and a function among them uses it from "
                "outside: there it is a constant, so batches would be made by its old value, and by another one once a "
                "batch of another shape, or a restored run, is compiled. Give the module itself as a stage, or hold it "
                "in an nnx.Module that is one"
            )


def _variables(stage: Any) -> dict[str, nnx.Variable]:
    """The variables that a function or object reaches, by the names on the way to them."""
    found: dict[str, nnx.Variable] = {}
    seen: dict[int, Any] = {}  # held, so that no other value gets its address
    waiting = [("", stage)]
    while waiting and len(seen) < _MAX_SEEN:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, nnx.Module | nnx.Variable):
            graph = () if isinstance(value, HostModule) else nnx.iter_graph(value)
            found |= {
                ".".join([name, *map(str, path)]): variable
                for path, variable in graph
                if isinstance(variable, nnx.Variable) and not isinstance(variable, nnx.RngState)
            }
        else:
            waiting += ((f"{name}.{part}" if name else part, inner) for part, inner in _parts(value))
    return found


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds or, as a user's function, uses; with its name there."""
    if isinstance(value, functools.partial):
        yield from [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    elif isinstance(value, types.MethodType):
        yield from [("self", value.__self__), ("func", value.__func__)]
    elif isinstance(value, types.FunctionType):
        if is_users(value):
            yield from _used(value)
    elif isinstance(value, list | tuple | dict):
        yield from ((str(key), item) for key, item in (value.items() if isinstance(value, dict) else enumerate(value)))
    elif hasattr(value, "__wrapped__"):  # jax.jit, functools.cache
        yield "wrapped", value.__wrapped__
    elif not isinstance(value, type) and is_users(type(value)):
        yield from getattr(value, "__dict__", {}).items()
        yield "call", type(value).__call__ if callable(value) else None


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        waiting += (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                yield step.argval, function.__globals__[step.argval]
    yield "defaults", [function.__defaults__, function.__kwdefaults__]
