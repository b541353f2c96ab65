"""What a function or class reads, by name: it, what it calls, and what these call."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import logging
import types
from collections.abc import Iterable, Set
from typing import Any

from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.identity.late_imports import late_imports
from datarax_ray.read.identity.loads import (
    MAX_FOUND,
    as_read,
    functions_of,
    loaded_names,
    loads_of,
    package_of,
    settings_in,
    walk,
)
from datarax_ray.read.identity.own_methods import of_class, own_methods, parts_of
from datarax_ray.read.identity.plain_data import data_of_library, is_data
from datarax_ray.read.identity.told_loads import (
    around_of,
    attributes_of,
    bound_of,
    called_of,
    handed_of,
    inherited_of,
    is_code,
    parts_of_owner,
    values_of,
)
from datarax_ray.read.identity.users_code import asked, called, code_objects, is_users, methods, written_by

logger = logging.getLogger("datarax_ray")


@dataclasses.dataclass(frozen=True)
class Read:
    """What a root reads, by name.

    used: as walk finds it.
    attributes: for actors alone.
    settings, bound: as Used says; for_actors: with objects that are called.
    put: methods that were put into classes.
    written: names of what its functions write to.
    imports: as Used says, where all of users' is followed.
    modules: as Used says.
    beneath, values, decorators: as Used says, where all of users' is followed; the first of what is loaded alone.
    """

    used: dict[str, Any] = dataclasses.field(default_factory=dict)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    bound: dict[str, Any] = dataclasses.field(default_factory=dict)
    put: set[str] = dataclasses.field(default_factory=set)
    written: set[str] = dataclasses.field(default_factory=set)
    imports: dict[str, str] = dataclasses.field(default_factory=dict)
    modules: dict[str, str] = dataclasses.field(default_factory=dict)
    beneath: dict[str, Any] = dataclasses.field(default_factory=dict)
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    parts: dict[str, Any] = dataclasses.field(default_factory=dict)
    decorators: dict[str, Any] = dataclasses.field(default_factory=dict)


def read_by(root: Any, *, for_actors: bool) -> Read:
    read, loaded, handed = Read(), set[str](), dict[str, Any]()
    walked: list[types.FunctionType] = []
    package = None if for_actors else package_of(root)
    for part in filter(is_users, root.__mro__) if inspect.isclass(root) else [root]:
        own_package = None if for_actors else package_of(part)
        for function in map(inspect.unwrap, walk(part, read.used, own_package)):
            read.written.update(as_read(function, name) for name in written_by(function))
            loads = loads_of(function, package)
            names = {load.name: load.value for load in loads if load.owner is None}
            libraries = (each for each in names.items() if isinstance(each[1], types.ModuleType))
            read.modules.update({name: each.__name__ for name, each in libraries if not is_users(each)})
            if for_actors:
                for load in (each for each in loads if not each.is_far):
                    read.bound.update(bound_of(load) | called_of(load))
                    read.beneath.update(inherited_of(load))
                    read.values.update(values_of(load))
                    read.parts.update(parts_of_owner(load))
                    handed |= handed_of(load)
                    for name, held in around_of(load).items():
                        code = {part: value for part, value in held.items() if is_code(value)}
                        data = {part: value for part, value in held.items() if part not in code}
                        read.beneath.update({name: code} if code else {})
                        read.decorators.update({name: data} if data else {})
                read.attributes.update(attributes_of(loads, package, read.written))
                for name, each in late_imports(function).items():
                    read.imports[name] = digest([read.imports.get(name), each])
            else:
                for load in loads_of(function, own_package):
                    read.bound.update({} if load.is_far else bound_of(load))
            read.settings.update(settings_in(loads))
            loaded |= loaded_names(function)
            walked.append(function)
    if handed:
        by_them = _named_by(walked, root, handed.values())
        for name, value in handed.items():
            read.parts.update(parts_of(name, value, by_them, is_whole=True))
    own = loaded - {name.rpartition(".")[2] for name in read.written}  # self.count += 1 hides the class's
    for cls in filter(inspect.isclass, [root, *read.used.values()]):
        read.settings.update(of_class(cls, own))
        for base in filter(is_users, cls.__mro__):
            of = f"{base.__module__}.{base.__qualname__}"
            if for_actors:
                data = {f"{of}.{name}": data_of_library(value) for name, value in vars(base).items() if name in own}
                read.values.update({name: each for name, each in data.items() if each is not None})
                read.parts.update(_partials(base, of, own))
            read.put.update(f"{of}.{name}" for name, value in vars(base).items() if _is_put(value, base, name))
    return read


def _named_by(walked: Iterable[types.FunctionType], root: Any, handed: Iterable[Any]) -> set[str]:
    """The names that functions load, those of their arguments (`**vars(args)`) and texts (`cfg["scale"]`), without
    methods of the objects' classes: all are walked, called or not. Of those that are called, with what they call.
    """
    kinds = {base for value in handed for base in type(value).__mro__ if is_users(base) and base is not root}
    of_kinds = {inspect.unwrap(each): name for kind in kinds for name, each in methods(kind)}
    functions = {each: None for each in walked if each not in of_kinds and is_users(each)}
    loaded = set[str]().union(*map(loaded_names, functions))
    names = {name for name in of_kinds.values() if name in loaded}
    called_of_kinds = {each for kind in kinds for name in names for each in own_methods(kind, name, None)}
    reached = (inspect.unwrap(each) for method in called_of_kinds for each in walk(method, {}, None))
    functions |= dict.fromkeys(each for each in reached if each not in of_kinds and is_users(each))
    codes = [code for each in functions for code in code_objects(each.__code__)]
    texts = {text for code in codes for text in code.co_consts if isinstance(text, str)}
    is_unpacked = any(step.opname == "CALL_FUNCTION_EX" for code in codes for step in dis.get_instructions(code))
    arguments = [code.co_varnames for code in codes] if is_unpacked else []
    return texts.union(*map(loaded_names, functions), *arguments)


def _partials(cls: type, of: str, names: Set[str]) -> dict[str, Any]:
    """What the partial methods of a class call, with their arguments, and its partials of these names."""
    return {
        f"{of}.{name}": [value.func, value.args, value.keywords]
        for name, value in vars(cls).items()
        if isinstance(value, functools.partialmethod) or (isinstance(value, functools.partial) and name in names)
    }


def _is_put(value: Any, cls: type, name: str) -> bool:
    """Whether a class has a function there that is no method of its text: it may have been set since."""
    return any(asked(each, "__qualname__") != f"{cls.__qualname__}.{name}" for each in called(value))


def read_of_modules(imported: Iterable[Any], carried: Iterable[Any] = ()) -> set[str]:
    """Names ("module.name.attribute") of what functions and classes read in modules of users', in whichever of them.

    Functions, classes, plain data, plain attributes of objects, and of the classes themselves, and methods that were
    put into these. Without what any of them writes to: that is another one in each process. carried: travel by value,
    and with them the globals that they load.
    """
    names: set[str] = set()
    written: set[str] = set()
    for root, is_carried in [*((each, False) for each in imported), *((each, True) for each in carried)]:
        read = read_by(root, for_actors=True)
        if len(read.used) >= MAX_FOUND:
            _tell_of_many(package_of(root))
        written |= read.written
        loaded = (
            f"{function.__module__}.{name}"
            for function in map(inspect.unwrap, functions_of(root, None) if is_carried else ())
            for code in code_objects(function.__code__)
            for name in code.co_names
        )
        beneath = {name for name, value in read.beneath.items() if is_data(value) and "@" not in name}
        names |= {*read.used, *read.attributes, *read.settings, *beneath, *read.put}.difference(loaded)
    return names - written


@functools.cache  # once for each package
def _tell_of_many(package: str) -> None:
    logger.warning(
        "code of %s uses %d functions, classes and values of your modules and more, and no more of them are followed: "
        "what the program sets in others is what they are imported with in the actors. Give it to transforms as an "
        "argument, or set it where the module is imported (an environment variable)",
        package,
        MAX_FOUND,
    )
