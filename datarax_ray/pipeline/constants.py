"""The modules that functions among the stages use from outside: constants of the compiled program.

A function that calls a module of its closure or a global compiles in what the module holds, and is not compiled again
after a change. So the variables that were compiled in are compared with each batch. Plain globals and numbers are
constants too, as of any function under jax.jit, and are not compared.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from flax import nnx

from datarax_ray.sources.base.tracing import HostModule

_EMPTY = types.CellType()
_PLAIN = (bool, int, float, str, type(None))


class Constants:
    """The variables of outside modules. Random variables are left out: NNX refuses them under a trace."""

    def __init__(self, stages: Iterable[Any]) -> None:
        functions = [stage for stage in stages if not isinstance(stage, nnx.Module)]
        self._modules = {name: module for function in functions for name, module in _modules(function)}
        self._values: dict[str, Any] = {}

    @property
    def variables(self) -> list[nnx.Variable]:
        return [value for value in self._found().values() if isinstance(value, nnx.Variable)]

    def check(self) -> None:
        """Raise RuntimeError where a value changed since the first call, before which nothing was compiled."""
        if not self._modules:
            return
        values = {name: v.get_raw_value() if isinstance(v, nnx.Variable) else v for name, v in self._found().items()}
        self._values = self._values or values
        if changed := sorted(name for name, old in self._values.items() if not _is_same(values.get(name), old)):
            raise RuntimeError(
                f"{', '.join(changed)} was set since the stages were compiled, and a function among them uses it from "
                "outside: there it is a constant, so batches would be made by its old value, and by another one once a "
                "batch of another shape, or a restored run, is compiled. Give the module itself as a stage, or hold it "
                "in an nnx.Module that is one"
            )

    def _found(self) -> dict[str, Any]:
        """The variables of the modules, and their plain attributes, by name."""
        found: dict[str, Any] = {}
        for name, module in self._modules.items():
            for path, value in nnx.iter_graph(module):
                here = ".".join([name, *map(str, path)])
                if isinstance(value, nnx.Variable) and not isinstance(value, nnx.RngState):
                    found[here] = value
                elif isinstance(value, nnx.Module):
                    held = vars(value).items()
                    found |= {f"{here}.{k}": v for k, v in held if type(v) in _PLAIN and not k.startswith("_")}
        return found


def _is_same(left: Any, right: Any) -> bool:
    return left is right or (type(left) in _PLAIN and type(left) is type(right) and left == right)


def _modules(stage: Any) -> Iterator[tuple[str, nnx.Module]]:
    """The modules that a function names, and that a partial or a method holds, by name."""
    while isinstance(stage, functools.partial) or hasattr(stage, "__wrapped__"):
        if isinstance(stage, functools.partial):
            yield from _named(dict(enumerate(stage.args)) | stage.keywords)
        stage = stage.func if isinstance(stage, functools.partial) else stage.__wrapped__
    if isinstance(stage, types.MethodType):
        yield from _named({"self": stage.__self__} | getattr(stage.__self__, "__dict__", {}))
        stage = stage.__func__
    elif not isinstance(stage, types.FunctionType):  # an object that is called
        yield from _named(getattr(stage, "__dict__", {}))
    if isinstance(stage, types.FunctionType):
        cells = zip(stage.__code__.co_freevars, stage.__closure__ or (), strict=True)
        held = {name: cell.cell_contents for name, cell in cells if cell != _EMPTY}
        yield from _named({name: stage.__globals__.get(name) for name in _globals(stage.__code__)} | held)


def _globals(code: types.CodeType) -> Iterator[str]:
    """The globals that a function reads, itself and in functions within. inspect.getclosurevars takes attributes for
    globals of the same name.
    """
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals(inner)


def _named(values: dict[Any, Any]) -> Iterator[tuple[str, nnx.Module]]:
    for name, value in values.items():
        if isinstance(value, list | tuple | dict):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f"{name}.{key}", part) for key, part in parts if _is_outside(part))
        elif _is_outside(value):
            yield str(name), value


def _is_outside(value: Any) -> bool:
    return isinstance(value, nnx.Module) and not isinstance(value, HostModule)
