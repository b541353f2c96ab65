"""What functions load by global names, and what is reached by following that from function to function.

Followed through modules of a package too (`helpers.scale`), until nothing new is found. Libraries are not followed, nor
this package: their code changes with releases, not with a dataset.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from datarax_ray.read.identity.plain_data import PLAIN, SETTINGS, shortened
from datarax_ray.read.identity.users_code import (
    as_bare,
    asked,
    called,
    cells,
    code_objects,
    defaults,
    inner,
    is_users,
    module_of,
    once,
    wrapping,
)

# Far more than transforms use, and an end where a package is entered at its centre.
MAX_FOUND = 500
UNSEEN = object()
SILENT = {"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG"}


def functions_used(root: Any) -> Iterator[types.FunctionType]:
    """The function, or the methods of the class, and the users' functions of its package that these use, as called."""
    return walk(root, {}, package_of(root))


def wrappers(root: Any) -> list[types.FunctionType]:
    """The users' functions that stand around (functools.wraps) a function, the methods of a class and what these use.

    Each is given as one that is around nothing: Python's inspect shows the text of what is inside.
    """
    around: dict[Any, types.FunctionType] = {}
    for function in [root, *walk(root, {}, package_of(root))]:  # what is inside may be a library's
        for wrapper in wrapping(function):
            if wrapper.__code__ not in around and is_users(bare := as_bare(wrapper)):
                around[wrapper.__code__] = bare
    return list(around.values())


def walk(root: Any, found: dict[str, Any], package: str | None) -> Iterator[Any]:
    """Every function of the root, and of what these use, as it is called; puts what is used into `found`, by name.

    package: that is followed. Fingerprints follow the root's, and tell no more of it than those of earlier releases;
    None follows all of users', with what else actors need: functions around others, and those of properties.
    """
    if not is_users(root):
        return
    waiting = [root]
    while waiting and len(found) < MAX_FOUND:
        for function in functions_of(waiting.pop(), package):
            yield function
            around = [] if package is not None else [*filter(is_users, map(as_bare, wrapping(function)))]
            yield from around
            for each in [inspect.unwrap(function), *around]:
                used = _used(each, package)
                for name, as_used in [*used, *(_held_code(each) if package is None else ())]:
                    value = inner(as_used)
                    if name not in found and value is not root:
                        found[name] = shortened(value)
                        if isinstance(value, types.FunctionType | type):
                            waiting.append(as_used)


def functions_of(code: Any, package: str | None) -> Iterator[Any]:
    """The function itself, or the methods of a class, with what is around them. package: see walk."""
    for value in vars(code).values() if inspect.isclass(code) else [code]:
        if package is None:
            yield from called(value)
        elif not isinstance(value, functools.cached_property | functools.partialmethod):
            yield from called(value.fget if isinstance(value, property) else value)


def package_of(root: Any) -> str:
    return str(getattr(root, "__module__", "")).partition(".")[0]


def is_in(package: str | None, code: Any) -> bool:
    """Whether a module, function or class is of the package; of None, whether it is users'."""
    return is_users(code) if package is None else module_of(code).partition(".")[0] == package


class Load(NamedTuple):
    """What a function loads by a global name, or as an attribute of what it loaded just before.

    name: with those of the attributes, by the module that holds it.
    value: UNSEEN where there is none, or looking would run a method.
    owner: of an attribute, what has it; None for a global.
    is_of_modules: whether all that stands before it are modules.
    is_far: whether one of these is not of the package.
    is_whole: whether no attribute of it is loaded next.
    """

    name: str
    value: Any
    owner: Load | None = None
    is_of_modules: bool = True
    is_far: bool = False
    is_whole: bool = True

    def attribute(self, name: str, package: str | None) -> Load:
        is_module = isinstance(self.value, types.ModuleType)
        return Load(
            f"{self.value.__name__ if is_module else self.name}.{name}",
            _attribute(self.value, name),
            self,
            self.is_of_modules and is_module,
            self.is_far or (is_module and not is_in(package, self.value)),
        )


@once
def loads_of(function: types.FunctionType, package: str | None) -> list[Load]:
    return [*_each_load(function, package)]


def _each_load(function: types.FunctionType, package: str | None) -> Iterator[Load]:
    for code in code_objects(function.__code__):
        load: Load | None = None
        is_long = False
        for step in dis.get_instructions(code):
            is_long |= step.opname == "EXTENDED_ARG"
            if step.opname in SILENT:
                continue
            is_next = step.opname in ("LOAD_ATTR", "LOAD_METHOD") and load is not None and load.value is not UNSEEN
            if load is not None:
                yield load._replace(is_whole=not is_next)
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                load = Load(f"{function.__module__}.{step.argval}", function.__globals__[step.argval])
            elif is_next:
                assert load is not None
                load = load.attribute(step.argval, package)
                # so it was told at first: of a name behind the 255th nothing stood before
                load = load._replace(is_of_modules=load.is_of_modules and not is_long)
            else:
                load = None
            is_long = False


def _attribute(value: Any, name: str) -> Any:
    """What the attribute holds; UNSEEN where looking would run a method, or there is none."""
    kinds = (property, functools.cached_property)  # what the latter keeps hides it
    if any(isinstance(inspect.getattr_static(each, name, None), kinds) for each in (value, type(value))):
        return UNSEEN
    return asked(value, name, UNSEEN)


@once
def _used(function: types.FunctionType, package: str | None) -> list[tuple[str, Any]]:
    """What is loaded by a global name, or as an attribute of a module of the package, with what is around it."""
    found = list[tuple[str, Any]]()
    for load in loads_of(function, package):
        if not load.is_of_modules or not (load.owner is None or is_in(package, load.owner.value)):
            continue
        as_used = None if load.value is UNSEEN else load.value
        value = inner(as_used)
        is_code = isinstance(value, types.FunctionType | type) and is_in(package, value)
        if isinstance(value, PLAIN) or (is_code and is_users(value)):
            found.append((load.name, as_used))
    return found


def settings_in(loads: Iterable[Load]) -> dict[str, Any]:
    """What is loaded of settings that are no plain data, of objects and modules as `attributes_of` says, and objects of
    frozen dataclasses that are handed on whole.
    """
    return {
        load.name: load.value
        for load in loads
        if not load.is_far and (isinstance(load.value, SETTINGS) or (load.is_whole and is_frozen(load.value)))
    }


def is_frozen(value: Any) -> bool:
    """Whether it is an object of a frozen dataclass of users'."""
    made = type(value)
    return dataclasses.is_dataclass(made) and made.__dataclass_params__.frozen and is_users(made)  # type: ignore[attr-defined]


def _held_code(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The users' functions in the closure and defaults of a function, and in partials that it loads by a global name;
    and the classes of objects that it loads so. By names that nothing has.
    """
    loaded = {name for code in code_objects(function.__code__) for name in code.co_names} & function.__globals__.keys()
    held = cells(function) | defaults(function) | {name: function.__globals__[name] for name in loaded}
    for name, value in held.items():
        while isinstance(value, functools.partial):
            value = value.func
        code = value if isinstance(inner(value), types.FunctionType | type) else type(value)
        if is_users(inner(code)):
            yield f"{function.__module__}.{function.__qualname__}.<{name}>", code


def loaded_names(function: types.FunctionType) -> set[str]:
    """The names that a function of users' loads; others are put into classes by libraries."""
    return {name for code in code_objects(function.__code__) for name in code.co_names} if is_users(function) else set()


def as_read(function: types.FunctionType, written: str) -> str:
    """The name of what the function writes to as it is where that is read: by the module that holds it."""
    name = function.__module__
    first, *rest = written.removeprefix(f"{name}.").split(".")
    name, value = f"{name}.{first}", function.__globals__.get(first)
    for part in rest:
        name = f"{value.__name__ if isinstance(value, types.ModuleType) else name}.{part}"
        value = asked(value, part) if isinstance(value, types.ModuleType) else None
    return name
