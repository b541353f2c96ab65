"""What stages hold, as plain values that are the same in every process and change when what they do may have changed.

A user's module or object is its class and its attributes, whatever these are. Of a library the names count: its text
and its own attributes change with its releases. No value is told by its address.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import types
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx

from datarax_ray.read.identity.code import code_fingerprint
from datarax_ray.read.identity.referenced_globals import is_users

# Deeper than settings nest, and an end for what holds itself through ever new objects.
_MAX_DEPTH = 32
_SINGLE = (type(None), bool, int, float, complex, str, bytes, range, np.dtype)


def told(value: Any, around: tuple[Any, ...] = ()) -> Any:
    """A plain value that stands for this one. around: what this one is in, from the outside."""
    if isinstance(value, nnx.Variable):  # trained; the keys among them are told elsewhere
        return "variable"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value, around)
    if isinstance(value, _SINGLE) and not isinstance(value, enum.Enum):
        return repr(value)
    if len(around) >= _MAX_DEPTH or any(value is each for each in around):
        return "deeper"
    inner = functools.partial(told, around=(*around, value))
    if isinstance(value, enum.Enum):
        return [inner(type(value)), value.name, inner(value.value)]
    if isinstance(value, slice):
        return ["slice", *map(inner, (value.start, value.stop, value.step))]
    if isinstance(value, Mapping | nnx.Dict):  # in its order, in which a stage may go through it
        return ["dict", *([inner(key), inner(part)] for key, part in value.items())]
    if isinstance(value, Set):
        return ["set", *sorted(map(inner, value), key=json.dumps)]
    if isinstance(value, list | tuple | deque | nnx.List):
        return ["list", *map(inner, value)]
    if isinstance(value, functools.partial):
        return ["partial", *map(inner, (value.func, value.args, value.keywords))]
    if isinstance(value, types.MethodType):
        return ["method", inner(value.__func__), inner(value.__self__)]
    code = inspect.unwrap(value) if callable(value) else value  # jax.jit and functools.cache around a function
    if inspect.isclass(code) or inspect.isfunction(code):
        return code_fingerprint((code,))["digest"] if is_users(code) else _name(value)
    kind = type(value)
    if isinstance(value, nnx.Module) and not is_users(kind):
        return [_name(kind), {name: inner(held) for name, held in _attributes(value).items() if _is_told(held)}]
    if not is_users(kind) and not is_dataclass(value):
        return _name(value)
    if callable(getattr(value, "fingerprint", None)):
        return [inner(kind), str(value.fingerprint())]
    return [inner(kind), {name: inner(held) for name, held in _attributes(value).items()}]


def _attributes(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    found = getattr(value, "__dict__", {})
    # Flax's own; and datarax's number of an operator, in the order in which this process made them
    is_operator = callable(getattr(value, "_apply_on_raw", None))
    return {
        name: found[name]
        for name in sorted(found)
        if not name.startswith("_pytree__") and not (is_operator and name == "_unique_id")
    }


def _is_told(held: Any) -> bool:
    """Whether this is told of what a library's module holds: what a user's may be in, and dtypes."""
    return isinstance(held, nnx.Module | Mapping | list | tuple) or inspect.isclass(held)


def _array(value: Any, around: tuple[Any, ...]) -> Any:
    if isinstance(value, jax.Array):
        if not (value.is_fully_addressable or value.is_fully_replicated):  # each process has another part of it
            return [str(value.dtype), list(value.shape)]
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        value = np.asarray(value)
    if value.dtype.hasobject:  # whose bytes are addresses
        return [list(value.shape), told(value.tolist(), (*around, value))]
    return code_fingerprint((value,))["digest"]


def _name(value: Any) -> str:
    """Of a class or function of a library; of an object of one, which has no name, that of its class."""
    found = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(found, str):
        return _name(type(value))
    return f"{getattr(value, '__module__', None)}.{found}"
