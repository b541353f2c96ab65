"""What stages hold, as text that is the same in every process and changes when what they do may have changed.

A user's module or object is its class and its attributes, whatever these are. Of a library the names count: its text
and its own attributes change with its releases. No value is told by its address.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
import types
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from flax import nnx

from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.identity.code import code_digest
from datarax_ray.read.identity.users_code import is_users

# Deeper than settings nest, and an end for what holds itself through ever new objects.
_MAX_DEPTH = 32
_SINGLE = (type(None), bool, int, float, complex, str, bytes, bytearray, range, Decimal, Fraction, np.dtype)
_PLAIN = frozenset(_SINGLE)
_NAMESPACES = (types.SimpleNamespace, Namespace)  # of the standard library, and all in what a user gave them

Tell = Callable[[Any], str]


def told(module: nnx.Module) -> tuple[str, dict[str, str]]:
    """A text that stands for this module, and a digest of each attribute of a user's that says no fingerprint."""
    seen: dict[int, tuple[Any, str]] = {}
    whole = _tell(seen, 0, module)
    if not is_users(type(module)) or callable(getattr(module, "fingerprint", None)):
        return whole, {}
    attributes = {name: held for name, held in _attributes(module).items() if not isinstance(held, nnx.Variable)}
    return whole, {name: digest(_tell(seen, 1, held)) for name, held in attributes.items()}


def _tell(seen: dict[int, tuple[Any, str]], depth: int, value: Any) -> str:
    """The text of a plain value, a digest of any other.

    seen: each object that was told, by its address, with its digest: what many hold is gone through once, and what
    holds itself ends. It is held there, so that no other one gets its address.
    """
    if type(value) in _PLAIN:  # most of what there is, and quick
        return repr(value)
    if depth > _MAX_DEPTH:
        return "deeper"
    if id(value) not in seen:
        seen[id(value)] = value, "deeper"
        seen[id(value)] = value, digest(_parts(value, seen, depth))
    return seen[id(value)][1]


def _parts(value: Any, seen: dict[int, tuple[Any, str]], depth: int) -> Any:
    inner = functools.partial(_tell, seen, depth + 1)
    if isinstance(value, nnx.Variable):  # trained; the keys among them are told elsewhere
        return "variable"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value, inner)
    if isinstance(value, _SINGLE) and not isinstance(value, enum.Enum):
        return repr(value)
    if isinstance(value, enum.Enum):
        return [inner(type(value)), value.name, inner(value.value)]
    if isinstance(value, slice):
        return ["slice", *map(inner, (value.start, value.stop, value.step))]
    if isinstance(value, re.Pattern):
        return ["pattern", inner(value.pattern), value.flags]
    if isinstance(value, Mapping | nnx.Dict):  # in its order, in which a stage may go through it
        return ["dict", *([inner(key), inner(part)] for key, part in value.items()), *_own(value, inner)]
    if isinstance(value, Set):
        # in no order, so that no element may be told by what another one holds
        parts = (_tell(seen if type(part) in _PLAIN else dict(seen), depth + 1, part) for part in value)
        return ["set", *sorted(parts), *_own(value, inner)]
    if isinstance(value, list | tuple | deque | nnx.List):
        return ["list", *map(inner, value), *_own(value, inner)]
    if isinstance(value, functools.partial):
        return ["partial", *map(inner, (value.func, value.args, value.keywords))]
    if isinstance(value, types.MethodType):
        return ["method", inner(value.__func__), inner(value.__self__)]
    if inspect.isclass(value) or inspect.isfunction(value):
        return code_digest(value) if is_users(value) else _name(value)
    kind = type(value)
    if callable(value) and hasattr(value, "__wrapped__") and not is_users(kind):  # jax.jit, functools.cache
        return inner(value.__wrapped__)
    if isinstance(value, nnx.Module) and not is_users(kind):
        return [_name(kind), {name: inner(held) for name, held in _attributes(value).items() if _is_told(held)}]
    if not is_users(kind) and not is_dataclass(value) and kind not in _NAMESPACES:
        return _name(value)
    if callable(getattr(value, "fingerprint", None)):
        return [inner(kind), str(value.fingerprint())]
    return [inner(kind), {name: inner(held) for name, held in _attributes(value).items()}]


def _own(container: Any, inner: Tell) -> list[Any]:
    """What a user's class adds to a container."""
    kind = type(container)
    return [inner(kind), {name: inner(held) for name, held in _attributes(container).items()}] if is_users(kind) else []


def _attributes(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    state = object.__getstate__(value)  # in slots too, whatever a user's class would pickle
    found: dict[str, Any] = {}
    for held in state if isinstance(state, tuple) else (state,):
        found |= held or {}
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


def _array(value: Any, inner: Tell) -> Any:
    if isinstance(value, jax.Array):
        if not (value.is_fully_addressable or value.is_fully_replicated):  # each process has another part of it
            return [str(value.dtype), list(value.shape)]
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        value = np.asarray(value)
    if value.dtype.hasobject:  # whose bytes are addresses
        return [list(value.shape), inner(value.tolist())]
    return code_digest(value)


def _name(value: Any) -> str:
    """Of a class or function of a library; of an object of one, which has no name, that of its class."""
    found = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(found, str):
        return _name(type(value))
    return f"{getattr(value, '__module__', None)}.{found}"
