"""What a dataset of Grain or torch is made of: layers around data, what each is set to, and the functions it runs.

Their reprs say too little: of `MapDataset.source(data).shuffle(seed=1).map(f)` the class, and of a Subset an address.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.identity.code import code_fingerprint, value_digest
from datarax_ray.read.identity.plain_data import data_of_library, shortened
from datarax_ray.read.identity.sampled_rows import spread
from datarax_ray.read.identity.users_code import asked, inner, is_users, module_of

_MODULES = ("grain._src.python.dataset.", "grain._src.python.experimental.", "torch.utils.data.")
_PLAIN = (bool, int, float, complex, str, bytes, np.generic)
_MAX_LAYERS = 12  # that are told one by one; one digest tells of the others
_MAX_TEXT = 80  # characters of what one is set to; its digest covers all
_MAX_PARTS = 32  # of a list or dict that are told one by one
_MAX_ROWS = 1000  # of a tensor that NumPy has no dtype for


def is_layered(data: Any) -> bool:
    """Whether it is such a layer, or something of theirs that one holds."""
    return _is_theirs(type(data))


def layers_of(data: Any, fingerprint_of: Callable[[Any], Mapping[str, Any]]) -> dict[str, Any]:
    """{"layers": what each is set to, by number and class, from outside, "functions": see code_fingerprint}.

    fingerprint_of: of what lies below, which is of another kind: arrays, lists, datasets of other libraries and of
    users. What a layer makes when it is first asked (functools.cached_property) and objects of other kinds, as locks
    and generators, are not told.
    """
    found = _Layers(fingerprint_of)
    try:
        found.add(data)
    except RecursionError:
        raise ValueError(
            f"the {type(data).__name__} has more layers, one in another, than a state can tell, and Python follows; "
            "do some of what they do in transforms of the source"
        ) from None
    texts = {f"{number} {name}": text for number, (name, text) in enumerate(found.each)}
    layers = {name: _short(text) for name, text in [*texts.items()][:_MAX_LAYERS]}
    if len(texts) > _MAX_LAYERS:
        layers["others"] = digest([*texts.items()][_MAX_LAYERS:])
    return {"layers": layers} | ({"functions": code_fingerprint(found.functions)} if found.functions else {})


def _is_theirs(code: Any) -> bool:
    return f"{module_of(code)}.".startswith(_MODULES)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... {digest(text)[:4]}"


@dataclass
class _Layers:
    """each: class, and what it is set to. functions: of users and other libraries, once each."""

    fingerprint_of: Callable[[Any], Mapping[str, Any]]
    each: list[tuple[str, str]] = field(default_factory=list)
    functions: list[Any] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    def add(self, layer: Any) -> str:
        """Tells it, and all below it. Returns what stands for it in another one."""
        if id(layer) not in self._numbers:
            number = self._numbers[id(layer)] = len(self.each)
            self.each.append((type(layer).__name__, ""))
            self.each[number] = type(layer).__name__, self._set_to(layer)
        return f"layer {self._numbers[id(layer)]}"

    def _set_to(self, holder: Any) -> str:
        told = ((name.strip("_"), self._told(value)) for name, value in sorted(_attributes(holder)))
        return ", ".join(f"{name}={text}" for name, text in told if text)

    def _told(self, value: Any) -> str:
        """What stands for a value; "" for nothing."""
        if isinstance(value, _PLAIN) or (asked(value, "ndim") == 0 and hasattr(value, "item")):
            return str(value.item() if hasattr(value, "item") else value)
        if isinstance(value, list | tuple | dict) and (len(value) <= _MAX_PARTS or any(map(is_layered, value))):
            told = [self._told(part) for part in (value.values() if isinstance(value, dict) else value)]
            names = digest(list(map(str, value)))[:4] if isinstance(value, dict) else ""
            return f"{names}({', '.join(told)})" if any(told) else ""
        if isinstance(value, dict):
            return value_digest(shortened(value))[:8]
        if is_layered(value):
            return self.add(value)
        if all(callable(asked(value, name)) for name in ("describe", "batches")):  # a source of this package
            return digest([type(value).__name__, value.describe().settings()])[:8]
        if callable(value):
            return self._run(value)
        if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
            return self._below(value)
        return self._run(value) if is_users(type(value)) else ""

    def _below(self, data: Any) -> str:
        with contextlib.suppress(TypeError, ValueError):  # of no rows, or of a dtype that NumPy has not
            is_tensor = module_of(type(data)) == "torch"  # in memory; of a file all would be read
            return digest(self.fingerprint_of(np.asarray(data) if is_tensor else data))[:8]
        rows: list[Any] = []
        with contextlib.suppress(Exception):  # of one value, or by names
            found = [data[index] for index in spread(len(data), _MAX_ROWS).tolist()]
            rows = [row if (told := data_of_library(row)) is None else told for row in found]
        return value_digest([type(data).__name__, str(asked(data, "dtype")), str(asked(data, "shape")), rows])[:8]

    def _run(self, function: Any) -> str:
        """Tells a function of users or of another library, or the object that it is a method of."""
        function = function.__self__ if isinstance(function, types.MethodType) else function
        code = inner(function)
        is_theirs = _is_theirs(code if isinstance(code, types.FunctionType | type) else type(code))
        if not is_theirs and not any(function is each for each in self.functions):
            self.functions.append(function)
        return ""


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    for name, value in (asked(holder, "__dict__") or {}).items():
        is_made = isinstance(inspect.getattr_static(type(holder), name, None), functools.cached_property)
        if value is not None and not is_made:
            yield name, value
