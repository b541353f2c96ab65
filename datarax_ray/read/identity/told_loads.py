"""What is told of what a function loads: of objects, methods and decorators more than the name stands for."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from datarax_ray.read.identity.loads import UNSEEN, Load, is_frozen, loaded_names
from datarax_ray.read.identity.own_methods import (
    changed_by,
    hands_on,
    holds_parts,
    inherited_methods,
    is_function,
    is_generated,
    of_class,
    own_methods,
    parts_of,
    plain_parts,
    read_of,
)
from datarax_ray.read.identity.plain_data import (
    PLAIN,
    bound_to,
    config_of,
    data_of_library,
    is_data,
    plainly,
    shortened,
)
from datarax_ray.read.identity.users_code import as_bare, asked, inner, is_users, kept, methods, slots


def bound_of(load: Load) -> dict[str, Any]:
    if (method := _method_of(load)) is not None:
        return _of_method(*method)
    value = load.value
    if load.is_whole and is_frozen(value):
        own = (pair for base in type(value).__mro__ if is_users(base) for pair in methods(base))
        return {f"{load.name}.{name}()": each for name, each in own if not is_generated(each)}
    if isinstance(value, np.vectorize) and is_users(value.pyfunc):
        return {load.name: value.pyfunc}
    kinds = asked(value, "registry")
    if isinstance(value, types.FunctionType) and isinstance(kinds, types.MappingProxyType):
        return {f"{load.name}({kind.__qualname__})": each for kind, each in kinds.items() if is_users(each)}
    if (data := plainly(value)) is not None:
        return {load.name: data}
    is_name = load.is_of_modules and callable(value) and not is_users(inner(value))
    if not is_name or not isinstance(asked(value, "__name__"), str):
        return {}
    owner = bound_to(value)
    return {load.name: str(value.__name__)} | ({} if owner is None else {f"{load.name}()": shortened(owner)})


def called_of(load: Load) -> dict[str, Any]:
    """An object of users' that may be called, or a partial, which a name or an attribute of a module stands for; not
    one of which code has an attribute alone, as a method that it calls.
    """
    return {load.name: load.value} if load.is_whole and load.is_of_modules and _is_called(load.value) else {}


def _is_called(value: Any) -> bool:
    return isinstance(value, functools.partial) or (callable(value) and is_users(type(value)))


def _method_of(load: Load) -> tuple[str, Any, str] | None:
    """Of a method that is loaded: the name of what has it, that, and its own name. None for all else."""
    value, owner = load.value, load.owner
    is_method = isinstance(value, types.MethodType) and owner is not None and value.__self__ is owner.value
    if isinstance(value, types.MethodType) and inspect.isclass(made := value.__self__) and not is_method:
        return (load.name, made, value.__name__) if load.is_of_modules else None
    if owner is not None and (value is UNSEEN or is_method) and not isinstance(owner.value, type | types.ModuleType):
        return owner.name, owner.value, load.name.rpartition(".")[2]
    if isinstance(value, types.MethodType) and load.is_of_modules and is_users(type(value.__self__)):
        return load.name, value.__self__, value.__name__
    return None


def _of_method(name: str, owner: Any, method: str) -> dict[str, Any]:
    """The code of a method of an object or class, with that of those that it uses, and the plain attributes that these
    read of either.
    """
    cls = owner if inspect.isclass(owner) else type(owner)
    own = own_methods(cls, method, None)
    code = {f"{name}.{each.__name__}()": each for each in own}
    read = {each for function in code.values() for each in loaded_names(function)} - changed_by(own)
    held = {} if owner is cls else read_of(owner, own)
    return code | {f"{name}.{each}": value for each, value in held.items()} | of_class(cls, read)


def inherited_of(load: Load) -> dict[str, Any]:
    """Of a method that is loaded of an object: those that it calls of classes that the object's inherits from, and the
    plain attributes that these read, or that are in slots; and a function that is loaded of an object and no method.
    """
    owner = load.owner
    if owner is not None and not isinstance(owner.value, type | types.ModuleType) and is_function(load.value):
        return {load.name: load.value}
    name, owned, method = _method_of(load) or ("", None, "")
    if owned is None or inspect.isclass(owned):
        return {}
    cls = type(owned)
    own = own_methods(cls, method, None)
    inherited = {f"{each.__module__}.{each.__qualname__}": each for each in inherited_methods(cls, own)}
    changed = changed_by([*own, *inherited.values()])
    in_slots = slots(owned)
    held = {each: value for each, value in ((asked(owned, "__dict__") or {}) | in_slots).items() if each not in changed}
    by_own = {each for function in own for each in loaded_names(function)}
    names = {each for function in inherited.values() for each in loaded_names(function)}
    read = plain_parts(cls, held, names | (in_slots.keys() & by_own))
    read |= {each: value for each, value in held.items() if each in names | by_own and is_function(value)}
    return inherited | {f"{name}.{each}": value for each, value in read.items()}


def values_of(load: Load) -> dict[str, Any]:
    """An array, table or pattern of a library that is loaded, and that of a method which a name stands for; and what a
    partial method of an object calls, with its arguments.
    """
    owner = None if load.owner is None else load.owner.value
    part = inspect.getattr_static(type(owner), load.name.rpartition(".")[2], None)
    if isinstance(part, functools.partialmethod) and is_users(type(owner)):
        return {f"{load.name}()": [part.func, part.args, part.keywords]}
    is_method = isinstance(load.value, types.BuiltinMethodType)
    if (is_method and not load.is_of_modules) or (data := data_of_library(load.value)) is None:
        return {}
    return {f"{load.name}()" if is_method else load.name: data}


def parts_of_owner(load: Load) -> dict[str, Any]:
    """Of a method that is loaded of an object: what it reads of libraries' in that, and of the objects inside."""
    name, owned, method = _method_of(load) or ("", None, "")
    return parts_of(name, owned, {method}, is_whole=False) if holds_parts(owned) else {}


def handed_of(load: Load) -> dict[str, Any]:
    """An object that holds parts and that code has itself, by name: it hands it on, uses it by an operator, or calls a
    method that does so, or is a library's. Not what is told whole.
    """
    if load.is_far:
        return {}
    if (method := _method_of(load)) is not None:
        name, owned, called_by = method
        own = own_methods(type(owned), called_by, None)
        is_whole = any(map(hands_on, own)) or (load.value is not UNSEEN and not own)
        return {name: owned} if is_whole and holds_parts(owned) else {}
    is_told = is_frozen(load.value) or (load.is_of_modules and _is_called(load.value))
    return {load.name: load.value} if load.is_whole and not is_told and holds_parts(load.value) else {}


def attributes_of(loads: Iterable[Load], package: str | None, written: set[str]) -> dict[str, Any]:
    """The plain attributes that are read of objects and classes that are loaded by a global name, by name.

    Of what its package's modules hold, too; of no library's modules. And objects of users' classes that can be called.
    Where all of users' is followed (package None) also what the objects' methods and properties read, of those that it
    calls, and configs that it asks by other means than attributes (see config_of). written: takes the names of
    attributes that methods write to.
    """
    found: dict[str, Any] = {}
    for load in loads:
        value, owner = load.value, load.owner
        if package is None and not load.is_far and load.is_whole:
            own = own_methods(type(value), "__getitem__", None)
            found |= {f"{load.name}.{each}": held for each, held in read_of(value, own).items()}
            if config_of(value) is not None:
                found[load.name] = value
        if owner is None:
            if _is_called(value) and (load.is_whole or package is None):
                found[load.name] = value
        elif load.is_far:
            continue
        elif isinstance(value, PLAIN) and not isinstance(owner.value, types.ModuleType):
            found[load.name] = shortened(value)  # of modules these are told by their own names
        elif value is UNSEEN or (isinstance(value, types.MethodType) and value.__self__ is owner.value):
            own = own_methods(type(owner.value), load.name.rpartition(".")[2], package)
            written |= {f"{owner.name}.{each}" for each in changed_by(own)}
            if package is None:
                found |= {f"{owner.name}.{each}": held for each, held in read_of(owner.value, own).items()}
                if value is not UNSEEN and config_of(owner.value) is not None:
                    found[owner.name] = owner.value
    return found


def around_of(load: Load) -> dict[str, Any]:
    """What decorators hold that stand around a function which is loaded by its name: users' functions
    (functools.wraps), wrapt's, and objects of users' classes.
    """
    value, found, chain = load.value, dict[str, Any](), list[Any]()
    while load.is_of_modules and callable(value) and (wrapped := asked(value, "__wrapped__")) is not None:
        chain.append(value)
        value = wrapped
    for each in chain:
        held: dict[str, Any] = {}
        if callable(wrapper := asked(each, "_self_wrapper")):
            held, bare = {"wrapper": wrapper}, wrapper
        elif isinstance(each, types.FunctionType):
            bare = as_bare(each)
            held = kept(bare) if is_users(bare) else {}
        elif is_users(bare := type(each)):
            held = {**held_around(each), "": bare}
        if told := told_of(held, [*chain, value]):
            found[f"{load.name} @{asked(bare, '__qualname__')}"] = told
    return found


def held_around(value: Any) -> dict[str, Any]:
    """What an object that is called holds, without what it is around, what it copied of that, and what it writes to."""
    own = changed_by(own_methods(type(value), "__call__", None)) | {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__"}
    return {name: part for name, part in (asked(value, "__dict__") or {}).items() if name not in own}


def told_of(held: Mapping[str, Any], without: Sequence[Any] = ()) -> dict[str, Any]:
    """Of what a function or object holds: data, code and users' objects. A library's may be a clock, so its class.

    without: what it is around, which is told as what is called.
    """
    return {
        name: value if is_data(value) or is_code(value) or is_users(type(value)) else type(value)
        for name, value in held.items()
        if name != "__class__" and not any(value is each for each in without)
    }


def is_code(value: Any) -> bool:
    return isinstance(value, types.FunctionType | types.MethodType | type | functools.partial)
