"""What a user's function uses beside its own text: module-level functions, classes and data of its own package.

Followed through the names that the code loads, and through modules of the package (`helpers.scale`), until nothing new
is found. Libraries are not followed, nor this package: their code changes with releases, not with a dataset.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import functools
import inspect
import os
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import numpy as np

import datarax_ray

# Far more than transforms use, and an end where a package is entered at its centre.
_MAX_FOUND = 500
# A longer table is data, which a fingerprint of code need not read in full: its length counts.
_MAX_ITEMS = 10_000
_SINGLE = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.ndarray, np.generic)
_PLAIN = (*_SINGLE, tuple, list, dict, set, frozenset)
_TABLES = (Mapping, tuple, list, set, frozenset)
# As plain as these, of types that fingerprints of earlier releases do not tell; see read_later.
SETTINGS = (re.Pattern, Decimal, Fraction, date, time, timedelta, Enum, PurePath)
# Of these, those that say where and when a program runs rather than what it makes.
PLACES = (date, time, PurePath)
_UNSEEN = object()
# What functions write to, by code and file: as their texts were at first, which may be edited while a program runs.
_WRITTEN: dict[tuple[types.CodeType, str], set[str]] = {}
_SILENT = {"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG"}
_CHANGING = {"append", "add", "update", "setdefault", "pop", "popitem", "extend", "insert", "clear", "remove"}
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")})
_PACKAGE = os.path.dirname(os.path.abspath(datarax_ray.__file__)) + os.sep


def reached(root: Any) -> list[tuple[str, Any]]:
    """(name, value) of every function, class and plain value that a function or class uses, sorted by name.

    Data that the code writes to (a cache) is left out: it would be another one after the first call.
    """
    found: dict[str, Any] = {}
    written: set[str] = set()
    for function in _walk(root, found):
        written |= _written(inspect.unwrap(function))
    return [(name, found[name]) for name in sorted(found.keys() - written)]


def read_beside(root: Any) -> list[tuple[str, Any]]:
    """(name, value) of what decides what a function or class does, beside what `reached` tells, sorted by name.

    Plain attributes of objects and classes at module level (`args.scale`, `Config.size`), where they are read by name
    and not written to; the defaults and closures of the functions that it calls, and objects that it calls.
    """
    functions: dict[str, Any] = {}
    found: dict[str, Any] = {}
    written: set[str] = set()
    package = str(getattr(root, "__module__", "")).partition(".")[0]
    for function in map(inspect.unwrap, _walk(root, functions)):
        written |= {_as_read(function, name) for name in _written(function)}
        found |= _attributes(function, package, written)
    for name, function in functions.items():
        if isinstance(function, types.FunctionType) and (_defaults(function) or cells(function)):
            found[name] = kept(function)  # as earlier releases, though all that it holds be written to
    return [(name, found[name]) for name in sorted(found.keys() - written)]


def read_later(root: Any) -> list[tuple[str, Any]]:
    """(name, value) of what neither `reached` nor `read_beside` tells, as states of earlier releases have those.

    Settings that are no plain data (patterns, decimals, dates, paths, members of enums), and objects of users' frozen
    dataclasses that are handed on whole; and plain attributes of classes that their own methods read (`self.SCALE`).
    """
    found: dict[str, Any] = {}
    written: set[str] = set()
    loaded: set[str] = set()
    reached: dict[str, Any] = {}
    package = str(getattr(root, "__module__", "")).partition(".")[0]
    for part in filter(is_users, root.__mro__) if inspect.isclass(root) else [root]:
        for function in map(inspect.unwrap, _walk(part, reached)):
            written |= {_as_read(function, name) for name in _written(function)}
            loaded |= _loaded_names(function)
            found |= _settings(function, package)
    own = loaded - {name.rpartition(".")[2] for name in written}  # self.count += 1 hides the class's
    for cls in filter(inspect.isclass, [root, *reached.values()]):
        found |= _of_class(cls, own)
    return [(name, found[name]) for name in sorted(found.keys() - written)]


def _loaded_names(function: types.FunctionType) -> set[str]:
    """The names that a function of users' loads; others are put into classes by libraries."""
    return {name for code in code_objects(function.__code__) for name in code.co_names} if is_users(function) else set()


def _of_class(cls: type, own: Set[str]) -> dict[str, Any]:
    """The plain attributes of these names, by name, of a class and of those of users' that it inherits from."""
    kinds = (*_PLAIN, *SETTINGS)
    return {
        f"{base.__module__}.{base.__qualname__}.{name}": shortened(value)
        for base in filter(is_users, cls.__mro__)
        for name, value in vars(base).items()
        if name in own and isinstance(value, kinds)
    }


def read_of_modules(imported: Iterable[Any], carried: Iterable[Any] = ()) -> set[str]:
    """Names ("module.name.attribute") of what functions and classes read in modules of users', in whichever of them.

    Functions, classes, plain data, plain attributes of objects, and of the classes themselves, and methods that were
    put into these. Without what any of them writes to: that is another one in each process. carried: travel by value,
    and with them the globals that they load.
    """
    names: set[str] = set()
    written: set[str] = set()
    for root in imported:
        names |= _read_by(root, written)
    for root in carried:
        loaded = (
            f"{function.__module__}.{name}"
            for function in map(inspect.unwrap, _functions(root, is_lazy=True))
            for code in code_objects(function.__code__)
            for name in code.co_names
        )
        names |= _read_by(root, written).difference(loaded)
    return names - written


def _read_by(root: Any, all_written: set[str]) -> set[str]:
    """The names for one of them; puts those of what it writes to into `all_written`."""
    found: dict[str, Any] = {}
    names: set[str] = set()
    written: set[str] = set()
    loaded: set[str] = set()
    for part in filter(is_users, root.__mro__) if inspect.isclass(root) else [root]:
        for function in map(inspect.unwrap, _walk(part, found, None)):
            written |= {_as_read(function, name) for name in _written(function)}
            names |= _attributes(function, None, written).keys() | _settings(function, None).keys()
            loaded |= _loaded_names(function)
    own = loaded - {name.rpartition(".")[2] for name in written}  # self.count += 1 hides the class's
    for cls in filter(inspect.isclass, [root, *found.values()]):
        names |= _of_class(cls, own).keys()
        for base in filter(is_users, cls.__mro__):
            put = {
                name
                for name, value in vars(base).items()
                if isinstance(value, types.FunctionType) and value.__qualname__ != f"{base.__qualname__}.{name}"
            }
            names |= {f"{base.__module__}.{base.__qualname__}.{name}" for name in put}
    all_written |= written
    return names | found.keys()


def functions_used(root: Any) -> Iterator[types.FunctionType]:
    """The function, or the methods of the class, and the users' functions of its package that these use, as called."""
    return _walk(root, {})


def wrappers(root: Any) -> list[types.FunctionType]:
    """The users' functions that stand around (functools.wraps) a function, the methods of a class and what these use.

    Each is given as one that is around nothing: Python's inspect shows the text of what is inside.
    """
    around: dict[Any, types.FunctionType] = {}
    for function in [root, *_walk(root, {})]:  # what is inside may be a library's
        for wrapper in _chain(function):
            if wrapper.__code__ not in around and is_users(bare := _bare(wrapper)):
                around[wrapper.__code__] = bare
    return list(around.values())


def _walk(root: Any, found: dict[str, Any], package: str | None = "") -> Iterator[Any]:
    """Every function of the root, and of what these use, as it is called; puts what is used into `found`, by name.

    package: that is followed; "" for the root's own, None for all of users', with those that stand around others.
    """
    if not is_users(root):
        return
    package = root.__module__.partition(".")[0] if package == "" else package
    waiting = [root]
    while waiting and len(found) < _MAX_FOUND:
        for function in _functions(waiting.pop(), is_lazy=package is None):
            yield function
            around = [] if package is not None else [*filter(is_users, map(_bare, _chain(function)))]
            yield from around
            for each in [inspect.unwrap(function), *around]:
                for name, called in [*_used(each, package), *(_held_code(each) if package is None else ())]:
                    value = inner(called)
                    if name not in found and value is not root:
                        found[name] = shortened(value)
                        if isinstance(value, types.FunctionType | type):
                            waiting.append(called)


def _chain(function: Any) -> Iterator[types.FunctionType]:
    """The functions around one, from the outside."""
    while hasattr(function, "__wrapped__"):
        if isinstance(function, types.FunctionType):
            yield function
        function = function.__wrapped__


def _bare(function: types.FunctionType) -> types.FunctionType:
    made = types.FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
    made.__qualname__ = function.__code__.co_qualname
    return made


def inner(value: Any) -> Any:
    """What is called in the end, inside functools.wraps, functools.cache or jax.jit."""
    return inspect.unwrap(value) if callable(value) and asked(value, "__wrapped__") is not None else value


def asked(value: Any, name: str, otherwise: Any = None) -> Any:
    """As getattr, also of what raises another error: a dict with attributes (`__getattr__ = dict.__getitem__`), say."""
    try:
        return getattr(value, name)
    except Exception:  # of a __getattr__ of the user's: a transform that needs it raises it too
        return otherwise


def module_of(code: Any) -> str:
    """The name of a module, or of that of a function or class; "" for none."""
    return code.__name__ if isinstance(code, types.ModuleType) else str(getattr(code, "__module__", None) or "")


def is_users(code: Any) -> bool:
    """Whether a function, class or module is of neither a library nor this package."""
    name = module_of(code)
    file = getattr(sys.modules.get(name), "__file__", None)
    is_own = name.partition(".")[0] == __name__.partition(".")[0]
    return not is_own and (name == "__main__" or bool(file and not file.startswith(_LIBRARIES)))


def is_users_file(name: str) -> bool:
    """Whether code with this file name, as its code object has it, is of neither a library nor this package."""
    return not name.startswith((*_LIBRARIES, _PACKAGE, "<frozen "))


def _functions(code: Any, *, is_lazy: bool = False) -> Iterator[Any]:
    """The function itself, or the methods of a class, with what is around them.

    is_lazy: with those of cached properties, which fingerprints of earlier releases do not tell.
    """
    for value in vars(code).values() if inspect.isclass(code) else [code]:
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif is_lazy and isinstance(value, functools.cached_property):
            value = value.func
        if callable(value) and isinstance(inspect.unwrap(value), types.FunctionType):
            yield value


def _is_in(package: str | None, code: Any) -> bool:
    """Whether a module, function or class is of the package; of None, whether it is users'."""
    return is_users(code) if package is None else module_of(code).partition(".")[0] == package


def _used(function: types.FunctionType, package: str | None) -> Iterator[tuple[str, Any]]:
    """What a function loads by a global name, or as an attribute of a module of the package, with what is around it."""
    loaded: list[tuple[str, Any]] = []
    for code in code_objects(function.__code__):
        value: Any = None
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                value = function.__globals__[step.argval]
                loaded.append((f"{function.__module__}.{step.argval}", value))
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType):
                module, value = value, asked(value, step.argval)
                if _is_in(package, module):
                    loaded.append((f"{module.__name__}.{step.argval}", value))
            elif step.opname not in ("CACHE", "PRECALL", "PUSH_NULL"):
                value = None
    for name, called in loaded:
        value = inner(called)
        is_code = isinstance(value, types.FunctionType | type) and _is_in(package, value)
        if isinstance(value, _PLAIN) or (is_code and is_users(value)):
            yield name, called


def _settings(function: types.FunctionType, package: str | None) -> dict[str, Any]:
    """What a function loads of settings that are no plain data, of objects and modules as `_attributes` says."""
    found: dict[str, Any] = {}
    for code in code_objects(function.__code__):
        name: str = ""
        value: Any = _UNSEEN
        for step in dis.get_instructions(code):
            if step.opname in _SILENT:
                continue
            is_next = step.opname in ("LOAD_ATTR", "LOAD_METHOD") and value is not _UNSEEN
            if not is_next and _is_frozen(value):  # no attribute of it, but all
                found[name] = value
            if step.opname == "LOAD_GLOBAL":
                name, value = f"{function.__module__}.{step.argval}", function.__globals__.get(step.argval, _UNSEEN)
            elif is_next:
                is_module = isinstance(value, types.ModuleType)
                is_far = is_module and not _is_in(package, value)
                name = f"{value.__name__ if is_module else name}.{step.argval}"
                value = _UNSEEN if is_far else _attribute(value, step.argval)
            else:
                value = _UNSEEN
            if isinstance(value, SETTINGS):
                found[name] = value
    return found


def _is_frozen(value: Any) -> bool:
    """Whether it is an object of a frozen dataclass of users'."""
    made = type(value)
    return dataclasses.is_dataclass(made) and made.__dataclass_params__.frozen and is_users(made)  # type: ignore[attr-defined]


def _held_code(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The users' functions in the closure and defaults of a function, and in partials that it loads by a global name;
    and the classes of objects that it loads so. By names that nothing has.
    """
    loaded = {name for code in code_objects(function.__code__) for name in code.co_names} & function.__globals__.keys()
    held = cells(function) | _defaults(function) | {name: function.__globals__[name] for name in loaded}
    for name, value in held.items():
        while isinstance(value, functools.partial):
            value = value.func
        code = value if isinstance(inner(value), types.FunctionType | type) else type(value)
        if is_users(inner(code)):
            yield f"{function.__module__}.{function.__qualname__}.<{name}>", code


def _attributes(function: types.FunctionType, package: str | None, written: set[str]) -> dict[str, Any]:
    """The plain attributes that a function reads of objects and classes that it loads by a global name, by name.

    Of what its package's modules hold, too; of no library's modules. And objects of users' classes that can be called.
    Where all of users' is followed (package None) also what the objects' methods read, of those that it calls.
    written: takes the names of attributes that these write to.
    """
    found: dict[str, Any] = {}
    for code in code_objects(function.__code__):
        name: str = ""
        value: Any = _UNSEEN
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL":
                name, value = f"{function.__module__}.{step.argval}", function.__globals__.get(step.argval, _UNSEEN)
                if isinstance(value, functools.partial) or (callable(value) and is_users(type(value))):
                    found[name] = value  # an object that is called
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and value is not _UNSEEN:
                is_module = isinstance(value, types.ModuleType)
                owner, of = value, name
                name = f"{value.__name__ if is_module else name}.{step.argval}"
                is_far = is_module and not _is_in(package, owner)
                value = _UNSEEN if is_far else _attribute(value, step.argval)
                if isinstance(value, _PLAIN) and not is_module:  # of modules these are told by their own names
                    found[name] = shortened(value)
                elif isinstance(value, types.MethodType) and value.__self__ is owner:
                    written |= {f"{of}.{each}" for each in _changed(type(owner), step.argval)}
                    if package is None:
                        found |= {f"{of}.{each}": held for each, held in _read_of(owner, step.argval).items()}
            elif step.opname not in _SILENT:
                value = _UNSEEN
    return found


def lasting(value: Any, *, is_lazy: bool = False) -> Any:
    """An object that is called, without what it writes to then: a cache, a clock, a file that it opens.

    is_lazy: also without what its properties make when they are first asked, which states of earlier releases have.
    """
    if is_lazy and isinstance(value, _PLAIN):  # a table, whatever attributes it has
        return value
    changed = _changed(type(value), "__call__", is_lazy=is_lazy)
    if is_lazy:
        parts = (part for base in type(value).__mro__ for part in vars(base).items())
        changed |= {name for name, part in parts if isinstance(part, functools.cached_property)}
    if not changed or not isinstance(asked(value, "__dict__"), dict) or callable(asked(value, "fingerprint")):
        return value
    return [type(value), {name: held for name, held in vars(value).items() if name not in changed}]


def _changed(cls: type, method: str, *, is_lazy: bool = False) -> set[str]:
    """The attributes that a method of users', and those of the class that it uses, write to of their object."""
    found: set[str] = set()
    for function in _own_methods(cls, method, is_lazy):
        own = ".".join([function.__module__, *function.__code__.co_varnames[:1], ""])
        found |= {each.removeprefix(own).partition(".")[0] for each in _written(function) if each.startswith(own)}
    return found


def _read_of(owner: Any, method: str) -> dict[str, Any]:
    """The plain attributes of an object, by name, that a method of users', and those that it uses, load.

    Without what these write to or make when they are first asked, and without files that are mapped.
    """
    cls = type(owner)
    loaded = {name for function in _own_methods(cls, method, is_lazy=True) for name in _loaded_names(function)}
    return {
        name: value
        for name, value in asked(owner, "__dict__", {}).items()
        if name in loaded - _changed(cls, method, is_lazy=True)
        and is_data(value)
        and not isinstance(value, np.memmap)
        and not isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)
    }


def _own_methods(cls: type, method: str, is_lazy: bool) -> Iterator[types.FunctionType]:
    """A method of users', and those of the class that it uses. is_lazy: also its properties."""
    waiting, seen = [method], set()
    while waiting:
        name = waiting.pop()
        function = inspect.getattr_static(cls, name, None)
        if is_lazy and isinstance(function, property):
            function = function.fget
        if name in seen or not isinstance(function, types.FunctionType) or not is_users(inspect.unwrap(function)):
            continue
        seen.add(name)
        function = inspect.unwrap(function)
        yield function
        waiting += function.__code__.co_names


def _as_read(function: types.FunctionType, written: str) -> str:
    """The name of what the function writes to as it is where that is read: by the module that holds it."""
    name = function.__module__
    first, *rest = written.removeprefix(f"{name}.").split(".")
    name, value = f"{name}.{first}", function.__globals__.get(first)
    for part in rest:
        name = f"{value.__name__ if isinstance(value, types.ModuleType) else name}.{part}"
        value = asked(value, part) if isinstance(value, types.ModuleType) else None
    return name


def kept(function: types.FunctionType) -> dict[str, Any]:
    """The defaults and the closure of a function, by name, without a table that it fills itself."""
    if not (held := _defaults(function) | cells(function)):
        return {}
    own = _written(function) | {f"{function.__module__}.{each}" for each in _rebound(function)}
    return {name: value for name, value in held.items() if f"{function.__module__}.{name}" not in own}


def _rebound(function: types.FunctionType) -> set[str]:
    """What a function holds of those around it and sets anew: nonlocal."""
    steps = (step for code in code_objects(function.__code__) for step in dis.get_instructions(code))
    return {step.argval for step in steps if step.opname == "STORE_DEREF"}


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    code, values = function.__code__, function.__defaults__ or ()  # its __signature__ may say anything
    names = code.co_varnames[: code.co_argcount]
    return dict(zip(names[len(names) - len(values) :], values, strict=True)) | (function.__kwdefaults__ or {})


def cells(function: types.FunctionType) -> dict[str, Any]:
    """What a function holds of those around it, by name; without names that have no value, or none yet."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the cell is empty
            continue
    return found


def _attribute(value: Any, name: str) -> Any:
    """What the attribute holds; _UNSEEN where looking would run a method, or there is none."""
    if isinstance(inspect.getattr_static(value, name, None), property | functools.cached_property):
        return _UNSEEN
    return asked(value, name, _UNSEEN)


def _written(function: types.FunctionType) -> set[str]:
    """Globals, and attributes of such, that a function assigns to or assigns items of, declares global, or calls a
    changing method of: caches, counters.
    """
    key = function.__code__, function.__code__.co_filename  # which equal codes may have other ones of
    if key not in _WRITTEN:
        _WRITTEN[key] = _written_names(function)
    return {f"{function.__module__}.{name}" for name in _WRITTEN[key]}


def _written_names(function: types.FunctionType) -> set[str]:
    """As they stand in the text."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # without source, or a lambda in the middle of a line
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names.update(node.names)
        elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            names.add(ast.unparse(node if isinstance(node, ast.Attribute) else node.value))
        elif isinstance(node, ast.Attribute) and node.attr in _CHANGING:
            names.add(ast.unparse(node.value))
    return names


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def imported_in(function: types.FunctionType) -> Iterator[str]:
    """The names of the modules that a function imports when it runs; and of what may be modules."""
    for code in code_objects(function.__code__):
        module = ""
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                module = step.argval
                yield module
            elif step.opname == "IMPORT_FROM":
                yield f"{module}.{step.argval}"


def shortened(value: Any) -> Any:
    """The value; of a long table its type and length."""
    is_table = isinstance(value, Mapping | Sequence | Set) and not isinstance(value, str | bytes)
    return [type(value).__name__, len(value)] if is_table and len(value) > _MAX_ITEMS else value


def is_data(value: Any) -> bool:
    """Whether it is plain data, or as plain as that."""
    return isinstance(value, (*_PLAIN, *SETTINGS))


def holds_code(value: Any) -> bool:
    """Whether a container holds more than plain data: classes that were registered, say."""
    if not isinstance(value, _PLAIN):  # of a user's own, which may be long in coming
        value = shortened(value)
    if not isinstance(value, _TABLES):
        return False
    for parts in (value.keys(), value.values()) if isinstance(value, Mapping) else (value,):
        kinds = set(map(type, parts))  # a tenth of looking at each
        tables = tuple(kind for kind in kinds if issubclass(kind, _TABLES))
        if not all(issubclass(kind, _PLAIN) for kind in kinds):
            return True
        if tables and any(isinstance(part, tables) and holds_code(part) for part in parts):
            return True
    return False
