"""What a user's function uses beside its own text: module-level functions, classes and data of its own package.

Followed through the names that the code loads, and through modules of the package (`helpers.scale`), until nothing new
is found. Libraries are not followed, nor this package: their code changes with releases, not with a dataset.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple, TypeVar

from datarax_ray.read.identity.loads import MAX_FOUND, as_read, is_in, loads_of, package_of, walk
from datarax_ray.read.identity.own_methods import is_generated, lasting
from datarax_ray.read.identity.plain_data import is_data
from datarax_ray.read.identity.reads import Read, read_by
from datarax_ray.read.identity.source_text import methods_in_doubt
from datarax_ray.read.identity.told_loads import attributes_of, told_of
from datarax_ray.read.identity.unsaid_code import unsaid_by
from datarax_ray.read.identity.users_code import (
    as_bare,
    called,
    cells,
    defaults,
    is_users,
    kept,
    methods,
    module_of,
    with_nested,
    wrapping,
    written_by,
)

_Value = TypeVar("_Value")


class Used(NamedTuple):
    """What decides what a function or class does: (name, value) of each, sorted by name.

    Data that the code writes to (a cache) is left out: it would be another one after the first call. States of earlier
    releases have reached and beside, so the others tell nothing of these two.

    reached: functions, classes and plain values.
    beside: plain attributes of objects and classes at module level (`args.scale`, `Config.size`), where they are read
        by name; the defaults and closures of the functions that it calls, and objects that it calls.
    settings: those that are no plain data (patterns, decimals, dates, paths, members of enums), and objects of users'
        frozen dataclasses that are handed on whole; and plain attributes of classes that their own methods read
        (`self.SCALE`).
    bound: what module-level names stand for of a library (`REDUCE = np.mean`: "mean"), and data of more types; the
        methods of users' objects at module level that the code calls (`tokenizer.encode`), and the plain attributes
        that these read, and those of `encode = tokenizer.encode`; the methods of such a frozen dataclass; the functions
        in np.vectorize and functools.singledispatch.
    imports: a digest of what functions import of users' modules when they run, by module.
    modules: of libraries, by the names that stand for them.
    unsaid: see unsaid_code.unsaid_by.
    beyond: of what it reaches through modules (`ops.normalize(x)`), and of what code of other modules uses: objects
        that are called, and what bound says of others.
    beneath: what else the code uses: of functions that are told by their text the defaults and closures, and of classes
        of other modules those that they inherit from; what cached properties read; inherited methods, and attributes
        that these read; and code that decorators hold.
    values: of what it reads by name the arrays, tables and patterns of libraries: a tensor, a Series, one of `regex`.
    parts: what it reads of objects that it has whole, and of the objects inside objects; and what partial methods call.
    decorators: data that the decorators of functions that it calls hold: a setting, or a clock.
    """

    reached: list[tuple[str, Any]]
    beside: list[tuple[str, Any]]
    settings: list[tuple[str, Any]]
    bound: list[tuple[str, Any]]
    imports: list[tuple[str, str]]
    modules: list[tuple[str, str]]
    unsaid: list[tuple[str, Any]]
    beyond: list[tuple[str, Any]]
    beneath: list[tuple[str, Any]]
    values: list[tuple[str, Any]]
    parts: list[tuple[str, Any]]
    decorators: list[tuple[str, Any]]


def used_by(root: Any) -> Used:
    """What a function or class uses."""
    reached: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    written: set[str] = set()
    written_there: set[str] = set()  # by the modules that hold it
    package = package_of(root)
    for function in map(inspect.unwrap, walk(root, reached, package)):
        written |= written_by(function)
        written_there |= {as_read(function, name) for name in written_by(function)}
        beside |= attributes_of(loads_of(function, package), package, written_there)
    for name, function in reached.items():
        if isinstance(function, types.FunctionType) and (defaults(function) or cells(function)):
            beside[name] = kept(function)  # as earlier releases, though all that it holds be written to
    read = read_by(root, for_actors=False)
    far = read_by(root, for_actors=True)  # of users' modules of any package: those beside a script, say
    classes = [each for each in (root, *{**far.used, **reached}.values()) if inspect.isclass(each)]
    behind = _behind(told_by_text := read.bound | _put_there(classes))
    bound = behind.bound | told_by_text | _beyond(package, far)
    beneath = _made_once(classes) | far.beneath
    beneath |= _beneath([value for value in far.used.values() if not is_in(package, value)] + [*bound.values()])
    anywhere = read.written | far.written
    return Used(
        reached=_pairs(reached, written),
        beside=_pairs(beside, written_there),
        settings=_pairs(read.settings, read.written),
        bound=_pairs(bound, anywhere | behind.written),
        imports=_pairs(far.imports),
        modules=_pairs(read.modules | far.modules),
        unsaid=_pairs(unsaid_by(root)),
        beyond=_pairs(far.bound, anywhere | bound.keys() | beside.keys()),
        beneath=_pairs(beneath, anywhere),
        values=_pairs(far.values, anywhere),
        parts=_pairs(far.parts, anywhere),
        decorators=_pairs(far.decorators, anywhere),
    )


def _pairs(found: Mapping[str, _Value], without: Set[str] = frozenset()) -> list[tuple[str, _Value]]:
    return [(name, found[name]) for name in sorted(found.keys() - without)]


def _behind(told: Mapping[str, Any]) -> Read:
    """What functions and classes of which the text is told use in turn, all of it as `bound`."""
    found = Read()
    waiting = [*told.values()]
    seen: set[int] = set()
    while waiting and len(found.bound) < MAX_FOUND:
        code = waiting.pop()
        if not isinstance(code, types.FunctionType | type) or id(code) in seen:
            continue
        seen.add(id(code))
        read = read_by(code, for_actors=False)
        found.bound.update({**read.used, **read.settings, **read.bound})
        found.written.update(read.written)
        waiting += read.bound.values()  # those that are used were followed
    return found


def _beyond(package: str, far: Read) -> dict[str, Any]:
    """Functions, classes and plain data that code reads of users' modules outside a package: of one beside a script."""
    kinds = (types.FunctionType, type)
    return {
        name: value
        for name, value in {**far.used, **far.attributes, **far.settings}.items()
        if "<" not in name  # held by a function, which tells it
        and (isinstance(value, kinds) or is_data(value))
        and (module_of(value) if isinstance(value, kinds) else name).partition(".")[0] != package
    }


def _made_once(classes: Iterable[type]) -> dict[str, Any]:
    """The functions that cached properties call, and partial methods, by name: walk passes by them; and the methods of
    which the text of a class does not say that they are it.
    """
    kinds = (functools.cached_property, functools.partialmethod)
    bases = {base: None for cls in classes for base in cls.__mro__ if is_users(base)}
    parts = (part for base in bases for part in vars(base).values() if isinstance(part, kinds))
    functions = (inspect.unwrap(each) for part in parts for each in called(part))
    found = {f"{each.__module__}.{each.__qualname__}": each for each in functions}
    for base in bases:
        of = f"{base.__module__}.{base.__qualname__}"
        found |= {f"{of}.{name}": each for name, each in methods_in_doubt(base).items()}
    return found


def _beneath(codes: Iterable[Any]) -> dict[str, Any]:
    """What functions hold, and classes inherit from in their own module: of these codes the text is told."""
    found: dict[str, Any] = {}
    for code in filter(is_users, codes):
        if isinstance(code, types.FunctionType):
            held = told_of(kept(code))
            found |= {f"{code.__module__}.{code.__qualname__}()": held} if held else {}
        elif inspect.isclass(code):  # those of other modules are unsaid
            bases = (base for base in code.__mro__[1:] if base.__module__ == code.__module__)
            found |= {f"{base.__module__}.{base.__qualname__}": base for base in bases}
    return found


def _put_there(classes: Iterable[type]) -> dict[str, Any]:
    """What the text of a class does not say of it, by name: users' functions in the place of methods, by a decorator or
    set since, classes of its descriptors, and data, users' functions, classes and objects that methods, and what is
    around them, hold.
    """
    found: dict[str, Any] = {}
    for cls in (each for outer in classes for each in with_nested(outer)):
        kinds = {type(value): name for name, value in vars(cls).items() if hasattr(type(value), "__get__")}
        found |= {f"{cls.__module__}.{cls.__qualname__}.{name}": kind for kind, name in kinds.items() if is_users(kind)}
        for name, function in methods(cls):
            place, method = f"{cls.__module__}.{cls.__qualname__}.{name}", inspect.unwrap(function)
            if is_generated(method):
                continue
            found |= {} if _is_in_text(method, cls) else {place: method}
            for each in (method, *filter(is_users, map(as_bare, wrapping(function)))):
                held = {part: value for part, value in kept(each).items() if not _is_in_text(value, cls)}
                found |= {f"{place}.{part}": lasting(value) for part, value in held.items()}
    return {name: value for name, value in found.items() if is_data(value) or is_users(value)}


def _is_in_text(value: Any, cls: type) -> bool:
    """Whether it is a function or class that stands in the text of this class, or that class."""
    if not isinstance(value, types.FunctionType | type) or value.__module__ != cls.__module__:
        return False
    name = value.__code__.co_qualname if isinstance(value, types.FunctionType) else value.__qualname__
    return f"{name}.".startswith(f"{cls.__qualname__}.")
