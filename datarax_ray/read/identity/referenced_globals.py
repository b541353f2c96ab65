"""What a user's function uses beside its own text: module-level functions, classes and data of its own package.

Followed through the names that the code loads, and through modules of the package (`helpers.scale`), until nothing new
is found. Libraries are not followed, nor this package: their code changes with releases, not with a dataset.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import logging
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import numpy as np

from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.identity.late_imports import late_imports
from datarax_ray.read.identity.plain_data import (
    PLAIN,
    SETTINGS,
    bound_to,
    config_of,
    holds_code,
    is_data,
    plainly,
    shortened,
)
from datarax_ray.read.identity.users_code import (
    GENERATED,
    MADE_CLASSES,
    NO_SOURCE,
    as_bare,
    asked,
    called,
    cells,
    code_objects,
    defaults,
    inner,
    is_users,
    kept,
    methods,
    module_of,
    once,
    slots,
    with_nested,
    wrapping,
    written_attributes,
    written_by,
)

logger = logging.getLogger("datarax_ray")

# Far more than transforms use, and an end where a package is entered at its centre.
_MAX_FOUND = 500
_UNSEEN = object()
_SILENT = {"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG"}

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
    unsaid: see _unsaid.
    beyond: of what it reaches through modules (`ops.normalize(x)`), and of what code of other modules uses: objects
        that are called, and what bound says of others.
    beneath: what else the code uses: of functions that are told by their text the defaults and closures, and of classes
        of other modules those that they inherit from; what cached properties read; inherited methods, and attributes
        that these read; and code that decorators hold.
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
    decorators: list[tuple[str, Any]]


def used_by(root: Any) -> Used:
    """What a function or class uses."""
    reached: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    written: set[str] = set()
    written_there: set[str] = set()  # by the modules that hold it
    package = _package(root)
    for function in map(inspect.unwrap, _walk(root, reached, package)):
        written |= written_by(function)
        written_there |= {_as_read(function, name) for name in written_by(function)}
        beside |= _attributes(_loads(function, package), package, written_there)
    for name, function in reached.items():
        if isinstance(function, types.FunctionType) and (defaults(function) or cells(function)):
            beside[name] = kept(function)  # as earlier releases, though all that it holds be written to
    read = _read(root, for_actors=False)
    far = _read(root, for_actors=True)  # of users' modules of any package: those beside a script, say
    classes = [each for each in (root, *{**far.used, **reached}.values()) if inspect.isclass(each)]
    behind = _behind(told_by_text := read.bound | _put_there(classes))
    bound = behind.bound | told_by_text | _beyond(package, far)
    beneath = _made_once(classes) | far.beneath
    beneath |= _beneath([value for value in far.used.values() if not _is_in(package, value)] + [*bound.values()])
    anywhere = read.written | far.written
    return Used(
        reached=_pairs(reached, written),
        beside=_pairs(beside, written_there),
        settings=_pairs(read.settings, read.written),
        bound=_pairs(bound, anywhere | behind.written),
        imports=_pairs(far.imports),
        modules=_pairs(read.modules | far.modules),
        unsaid=_pairs(_unsaid(root)),
        beyond=_pairs(far.bound, anywhere | bound.keys() | beside.keys()),
        beneath=_pairs(beneath, anywhere),
        decorators=_pairs(far.decorators, anywhere),
    )


def _pairs(found: Mapping[str, _Value], without: Set[str] = frozenset()) -> list[tuple[str, _Value]]:
    return [(name, found[name]) for name in sorted(found.keys() - without)]


def _behind(told: Mapping[str, Any]) -> _Read:
    """What functions and classes of which the text is told use in turn, all of it as `bound`."""
    found = _Read()
    waiting = [*told.values()]
    seen: set[int] = set()
    while waiting and len(found.bound) < _MAX_FOUND:
        code = waiting.pop()
        if not isinstance(code, types.FunctionType | type) or id(code) in seen:
            continue
        seen.add(id(code))
        read = _read(code, for_actors=False)
        found.bound.update({**read.used, **read.settings, **read.bound})
        found.written.update(read.written)
        waiting += read.bound.values()  # those that are used were followed
    return found


def _beyond(package: str, far: _Read) -> dict[str, Any]:
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
    """The functions that cached properties call, and partial methods, by name: _walk passes by them."""
    kinds = (functools.cached_property, functools.partialmethod)
    bases = {base: None for cls in classes for base in cls.__mro__ if is_users(base)}
    parts = (part for base in bases for part in vars(base).values() if isinstance(part, kinds))
    functions = (inspect.unwrap(each) for part in parts for each in called(part))
    return {f"{each.__module__}.{each.__qualname__}": each for each in functions}


def _beneath(codes: Iterable[Any]) -> dict[str, Any]:
    """What functions hold, and classes inherit from in their own module: of these codes the text is told."""
    found: dict[str, Any] = {}
    for code in filter(is_users, codes):
        if isinstance(code, types.FunctionType):
            held = _told_of(kept(code))
            found |= {f"{code.__module__}.{code.__qualname__}()": held} if held else {}
        elif inspect.isclass(code):  # those of other modules are unsaid
            bases = (base for base in code.__mro__[1:] if base.__module__ == code.__module__)
            found |= {f"{base.__module__}.{base.__qualname__}": base for base in bases}
    return found


def _told_of(held: Mapping[str, Any], without: Sequence[Any] = ()) -> dict[str, Any]:
    """Of what a function or object holds: data, code and users' objects. A library's may be a clock, so its class.

    without: what it is around, which is told as what is called.
    """
    return {
        name: value if is_data(value) or _is_code(value) or is_users(type(value)) else type(value)
        for name, value in held.items()
        if name != "__class__" and not any(value is each for each in without)
    }


def _is_code(value: Any) -> bool:
    return isinstance(value, types.FunctionType | types.MethodType | type | functools.partial)


def _around(load: _Load) -> dict[str, Any]:
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
            own = _changed(bare, "__call__", None) | {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__"}
            held = {name: part for name, part in (asked(each, "__dict__") or {}).items() if name not in own}
            held |= {"": bare}
        if told := _told_of(held, [*chain, value]):
            found[f"{load.name} @{asked(bare, '__qualname__')}"] = told
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
            if _is_generated(method):
                continue
            found |= {} if _is_in_text(method, cls) else {place: method}
            for each in (method, *filter(is_users, map(as_bare, wrapping(function)))):
                held = {part: value for part, value in kept(each).items() if not _is_in_text(value, cls)}
                found |= {f"{place}.{part}": lasting(value) for part, value in held.items()}
    return {name: value for name, value in found.items() if is_data(value) or is_users(value)}


def unsaid_of(root: Any, known: dict[str, Any]) -> dict[str, Any]:
    """As _unsaid, with the code that a function or class uses, where that is not known by then: takes it, by name."""
    before = {*known}
    found = _unsaid(root, known)
    new = {name: known[name] for name in known.keys() - before}
    return {name: value for name, value in new.items() if isinstance(value, types.FunctionType | type)} | found


def _unsaid(root: Any, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """What neither the text of a function or class, and of what that uses, says, nor what else is told of it, by name.

    Classes in other modules of users' that a class inherits from, and those of objects that it holds, descriptors too;
    what `__init_subclass__` registers of code; what named tuples, enums and dataclasses without a text are made of. No
    value that an object holds: that may be a clock, or a folder of this process.

    known: takes what it uses, by name; what is there is not looked at again.
    """
    used = {} if known is None else known
    found: dict[str, Any] = {}
    made: dict[str, Any] = {}  # of classes, as they were made
    kinds: dict[str, type] = {}  # of what they hold
    written: set[str] = set()  # names of attributes
    filled: set[str] = set()  # of classes: at the first use, mostly
    waiting, seen = [root], set[int]()
    while waiting and len(seen) < _MAX_FOUND:
        code = waiting.pop()
        if id(code) in seen or not is_users(code):
            continue
        seen.add(id(code))
        before = {*used}
        for function in map(inspect.unwrap, _walk(code, used, None)):
            if is_users(function) and function.__name__ not in MADE_CLASSES:
                written |= written_attributes(function)
                filled |= written_attributes(function, "self")
        for cls in filter(inspect.isclass, [code, *(used[name] for name in sorted(used.keys() - before))]):
            for base in filter(is_users, cls.__mro__):
                waiting.append(base)
                place = f"{base.__module__}.{base.__qualname__}"
                found |= {place: base} if base.__module__ != cls.__module__ else {}
                found |= {f"{place}()": parts} if (parts := _parts_of(base)) else {}
                kinds |= {
                    f"{place}.{name}": type(value)
                    for name, value in vars(base).items()
                    if not is_data(value) and is_users(type(value))
                }
                making = (each for name, each in methods(base) if name in MADE_CLASSES)
                names = {name for each in making for name in written_attributes(inspect.unwrap(each))}
                made |= {
                    f"{other.__module__}.{other.__qualname__}.{name}": value
                    for other in filter(is_users, cls.__mro__)
                    for name, value in vars(other).items()
                    if name in names and isinstance(value, PLAIN) and holds_code(value)
                }
    found |= {name: Filled(kind) if name.rpartition(".")[2] in filled else kind for name, kind in kinds.items()}
    return found | {name: value for name, value in made.items() if name.rpartition(".")[2] not in written}


class Filled(NamedTuple):
    """What a class holds in an attribute that code sets, a singleton: earlier releases told it, whenever that was."""

    kind: type


class _Parts(list[Any]):
    """What a class without a text is made of."""


@functools.lru_cache(1000)
def _parts_of(cls: type) -> _Parts | None:
    """The fields with their defaults, or the members, of a class that was made by a call; None of all others."""
    if dataclasses.is_dataclass(cls):
        parts = [[field.name, field.default] for field in dataclasses.fields(cls)]
    elif issubclass(cls, Enum):
        parts = [[member.name, member.value] for member in cls]
    elif issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
        parts = [[name, cls._field_defaults.get(name)] for name in cls._fields]  # type: ignore[attr-defined]
    else:
        return None
    try:
        inspect.getsource(cls)
    except NO_SOURCE:
        return _Parts([name, part] for name, part in parts if isinstance(part, int | str | None))
    return None


def _is_in_text(value: Any, cls: type) -> bool:
    """Whether it is a function or class that stands in the text of this class, or that class."""
    if not isinstance(value, types.FunctionType | type) or value.__module__ != cls.__module__:
        return False
    name = value.__code__.co_qualname if isinstance(value, types.FunctionType) else value.__qualname__
    return f"{name}.".startswith(f"{cls.__qualname__}.")


def _bound(load: _Load) -> dict[str, Any]:
    if (method := _method_of(load)) is not None:
        return _of_method(*method)
    value = load.value
    if load.is_whole and _is_frozen(value):
        own = (pair for base in type(value).__mro__ if is_users(base) for pair in methods(base))
        return {f"{load.name}.{name}()": each for name, each in own if not _is_generated(each)}
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


def _method_of(load: _Load) -> tuple[str, Any, str] | None:
    """Of a method that is loaded: the name of what has it, that, and its own name. None for all else."""
    value, owner = load.value, load.owner
    is_method = isinstance(value, types.MethodType) and owner is not None and value.__self__ is owner.value
    if isinstance(value, types.MethodType) and inspect.isclass(made := value.__self__) and not is_method:
        return (load.name, made, value.__name__) if load.is_of_modules else None
    if owner is not None and (value is _UNSEEN or is_method) and not isinstance(owner.value, type | types.ModuleType):
        return owner.name, owner.value, load.name.rpartition(".")[2]
    if isinstance(value, types.MethodType) and load.is_of_modules and is_users(type(value.__self__)):
        return load.name, value.__self__, value.__name__
    return None


def _of_inherited(load: _Load) -> dict[str, Any]:
    """Of a method that is loaded of an object: those that it calls of classes that the object's inherits from, and the
    plain attributes that these read, or that are in slots; and a function that is loaded of an object and no method.
    """
    owner = load.owner
    if owner is not None and not isinstance(owner.value, type | types.ModuleType) and _is_function(load.value):
        return {load.name: load.value}
    name, owned, method = _method_of(load) or ("", None, "")
    if owned is None or inspect.isclass(owned):
        return {}
    cls = type(owned)
    own = [*_own_methods(cls, method, None)]
    inherited = {f"{each.__module__}.{each.__qualname__}": each for each in _inherited(cls, own)}
    changed = _changed_by([*own, *inherited.values()])
    in_slots = slots(owned)
    held = {each: value for each, value in ((asked(owned, "__dict__") or {}) | in_slots).items() if each not in changed}
    by_own = {each for function in own for each in _loaded_names(function)}
    names = {each for function in inherited.values() for each in _loaded_names(function)}
    read = _plain_parts(cls, held, names | (in_slots.keys() & by_own))
    read |= {each: value for each, value in held.items() if each in names | by_own and _is_function(value)}
    return inherited | {f"{name}.{each}": value for each, value in read.items()}


def _is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType | functools.partial) and is_users(inner(value))


def _inherited(cls: type, own: Iterable[types.FunctionType]) -> Iterator[types.FunctionType]:
    """The functions of users' classes that methods call of those that theirs inherits from, by super() or by name."""
    bases = [base for base in cls.__mro__ if is_users(base)]
    first = {*own}
    seen, waiting = {*own}, [*own]
    while waiting:
        function = waiting.pop()
        names = _loaded_names(function)
        loaded = (function.__globals__.get(name) for name in names)
        if function in first and "super" not in names and not any(each is base for each in loaded for base in bases):
            continue
        for base in bases:
            for each in (part for name in names & vars(base).keys() for part in called(vars(base)[name])):
                if (bare := inspect.unwrap(each)) not in seen and is_users(bare):
                    seen.add(bare)
                    waiting.append(bare)
                    yield bare


def _called(load: _Load) -> dict[str, Any]:
    """An object of users' that may be called, or a partial, which a name or an attribute of a module stands for."""
    return {load.name: load.value} if load.is_of_modules and _is_called(load.value) else {}


def _is_called(value: Any) -> bool:
    return isinstance(value, functools.partial) or (callable(value) and is_users(type(value)))


def _of_method(name: str, owner: Any, method: str) -> dict[str, Any]:
    """The code of a method of an object or class, with that of those that it uses, and the plain attributes that these
    read of either.
    """
    cls = owner if inspect.isclass(owner) else type(owner)
    code = {f"{name}.{each.__name__}()": each for each in _own_methods(cls, method, None)}
    read = {each for function in code.values() for each in _loaded_names(function)} - _changed(cls, method, None)
    held = {} if owner is cls else _read_of(owner, method)
    return code | {f"{name}.{each}": value for each, value in held.items()} | _of_class(cls, read)


def _is_generated(function: Any) -> bool:
    return inspect.unwrap(function).__code__.co_filename.startswith(GENERATED)


@dataclasses.dataclass(frozen=True)
class _Read:
    """What a root reads, by name. used: as _walk finds it. attributes: for actors alone. settings, bound: as Used says;
    for_actors: with objects that are called. put: methods that were put into classes. written: names of what its
    functions write to. imports: as Used says, where all of users' is followed. modules: as Used says.
    beneath, decorators: as Used says, where all of users' is followed; the former of what is loaded alone.
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
    decorators: dict[str, Any] = dataclasses.field(default_factory=dict)


def _read(root: Any, *, for_actors: bool) -> _Read:
    read, loaded = _Read(), set[str]()
    package = None if for_actors else _package(root)
    for part in filter(is_users, root.__mro__) if inspect.isclass(root) else [root]:
        own_package = None if for_actors else _package(part)
        for function in map(inspect.unwrap, _walk(part, read.used, own_package)):
            read.written.update(_as_read(function, name) for name in written_by(function))
            loads = _loads(function, package)
            names = {load.name: load.value for load in loads if load.owner is None}
            libraries = (each for each in names.items() if isinstance(each[1], types.ModuleType))
            read.modules.update({name: each.__name__ for name, each in libraries if not is_users(each)})
            if for_actors:
                for load in (each for each in loads if not each.is_far):
                    read.bound.update(_bound(load) | _called(load))
                    read.beneath.update(_of_inherited(load))
                    for name, held in _around(load).items():
                        code = {part: value for part, value in held.items() if _is_code(value)}
                        data = {part: value for part, value in held.items() if part not in code}
                        read.beneath.update({name: code} if code else {})
                        read.decorators.update({name: data} if data else {})
                read.attributes.update(_attributes(loads, package, read.written))
                for name, each in late_imports(function).items():
                    read.imports[name] = digest([read.imports.get(name), each])
            else:
                for load in _loads(function, own_package):
                    read.bound.update({} if load.is_far else _bound(load))
            read.settings.update(_settings(loads))
            loaded |= _loaded_names(function)
    own = loaded - {name.rpartition(".")[2] for name in read.written}  # self.count += 1 hides the class's
    for cls in filter(inspect.isclass, [root, *read.used.values()]):
        read.settings.update(_of_class(cls, own))
        for base in filter(is_users, cls.__mro__):
            of = f"{base.__module__}.{base.__qualname__}"
            read.put.update(f"{of}.{name}" for name, value in vars(base).items() if _is_put(value, base, name))
    return read


def _is_put(value: Any, cls: type, name: str) -> bool:
    """Whether a class has a function there that is no method of its text: it may have been set since."""
    return any(asked(each, "__qualname__") != f"{cls.__qualname__}.{name}" for each in called(value))


@functools.cache  # once for each package
def _tell_of_many(package: str) -> None:
    logger.warning(
        "code of %s uses %d functions, classes and values of your modules and more, and no more of them are followed: "
        "what the program sets in others is what they are imported with in the actors. Give it to transforms as an "
        "argument, or set it where the module is imported (an environment variable)",
        package,
        _MAX_FOUND,
    )


def _loaded_names(function: types.FunctionType) -> set[str]:
    """The names that a function of users' loads; others are put into classes by libraries."""
    return {name for code in code_objects(function.__code__) for name in code.co_names} if is_users(function) else set()


def _of_class(cls: type, own: Set[str]) -> dict[str, Any]:
    """The plain attributes of these names, by name, of a class and of those of users' that it inherits from."""
    kinds = (*PLAIN, *SETTINGS)
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
    for root, is_carried in [*((each, False) for each in imported), *((each, True) for each in carried)]:
        read = _read(root, for_actors=True)
        if len(read.used) >= _MAX_FOUND:
            _tell_of_many(_package(root))
        written |= read.written
        loaded = (
            f"{function.__module__}.{name}"
            for function in map(inspect.unwrap, _functions(root, None) if is_carried else ())
            for code in code_objects(function.__code__)
            for name in code.co_names
        )
        beneath = {name for name, value in read.beneath.items() if is_data(value) and "@" not in name}
        names |= {*read.used, *read.attributes, *read.settings, *beneath, *read.put}.difference(loaded)
    return names - written


def functions_used(root: Any) -> Iterator[types.FunctionType]:
    """The function, or the methods of the class, and the users' functions of its package that these use, as called."""
    return _walk(root, {}, _package(root))


def wrappers(root: Any) -> list[types.FunctionType]:
    """The users' functions that stand around (functools.wraps) a function, the methods of a class and what these use.

    Each is given as one that is around nothing: Python's inspect shows the text of what is inside.
    """
    around: dict[Any, types.FunctionType] = {}
    for function in [root, *_walk(root, {}, _package(root))]:  # what is inside may be a library's
        for wrapper in wrapping(function):
            if wrapper.__code__ not in around and is_users(bare := as_bare(wrapper)):
                around[wrapper.__code__] = bare
    return list(around.values())


def _walk(root: Any, found: dict[str, Any], package: str | None) -> Iterator[Any]:
    """Every function of the root, and of what these use, as it is called; puts what is used into `found`, by name.

    package: that is followed. Fingerprints follow the root's, and tell no more of it than those of earlier releases;
    None follows all of users', with what else actors need: functions around others, and those of properties.
    """
    if not is_users(root):
        return
    waiting = [root]
    while waiting and len(found) < _MAX_FOUND:
        for function in _functions(waiting.pop(), package):
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


def _package(root: Any) -> str:
    return str(getattr(root, "__module__", "")).partition(".")[0]


def _functions(code: Any, package: str | None) -> Iterator[Any]:
    """The function itself, or the methods of a class, with what is around them. package: see _walk."""
    for value in vars(code).values() if inspect.isclass(code) else [code]:
        if package is None:
            yield from called(value)
        elif not isinstance(value, functools.cached_property | functools.partialmethod):
            yield from called(value.fget if isinstance(value, property) else value)


def _is_in(package: str | None, code: Any) -> bool:
    """Whether a module, function or class is of the package; of None, whether it is users'."""
    return is_users(code) if package is None else module_of(code).partition(".")[0] == package


class _Load(NamedTuple):
    """What a function loads by a global name, or as an attribute of what it loaded just before.

    name: with those of the attributes, by the module that holds it. value: _UNSEEN where there is none, or looking
    would run a method. owner: of an attribute, what has it; None for a global. is_of_modules: whether all that stands
    before it are modules. is_far: whether one of these is not of the package. is_whole: whether no attribute of it is
    loaded next.
    """

    name: str
    value: Any
    owner: _Load | None = None
    is_of_modules: bool = True
    is_far: bool = False
    is_whole: bool = True

    def attribute(self, name: str, package: str | None) -> _Load:
        is_module = isinstance(self.value, types.ModuleType)
        return _Load(
            f"{self.value.__name__ if is_module else self.name}.{name}",
            _attribute(self.value, name),
            self,
            self.is_of_modules and is_module,
            self.is_far or (is_module and not _is_in(package, self.value)),
        )


@once
def _loads(function: types.FunctionType, package: str | None) -> list[_Load]:
    return [*_each_load(function, package)]


def _each_load(function: types.FunctionType, package: str | None) -> Iterator[_Load]:
    for code in code_objects(function.__code__):
        load: _Load | None = None
        is_long = False
        for step in dis.get_instructions(code):
            is_long |= step.opname == "EXTENDED_ARG"
            if step.opname in _SILENT:
                continue
            is_next = step.opname in ("LOAD_ATTR", "LOAD_METHOD") and load is not None and load.value is not _UNSEEN
            if load is not None:
                yield load._replace(is_whole=not is_next)
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                load = _Load(f"{function.__module__}.{step.argval}", function.__globals__[step.argval])
            elif is_next:
                assert load is not None
                load = load.attribute(step.argval, package)
                # so it was told at first: of a name behind the 255th nothing stood before
                load = load._replace(is_of_modules=load.is_of_modules and not is_long)
            else:
                load = None
            is_long = False


@once
def _used(function: types.FunctionType, package: str | None) -> list[tuple[str, Any]]:
    """What is loaded by a global name, or as an attribute of a module of the package, with what is around it."""
    found = list[tuple[str, Any]]()
    for load in _loads(function, package):
        if not load.is_of_modules or not (load.owner is None or _is_in(package, load.owner.value)):
            continue
        as_used = None if load.value is _UNSEEN else load.value
        value = inner(as_used)
        is_code = isinstance(value, types.FunctionType | type) and _is_in(package, value)
        if isinstance(value, PLAIN) or (is_code and is_users(value)):
            found.append((load.name, as_used))
    return found


def _settings(loads: Iterable[_Load]) -> dict[str, Any]:
    """What is loaded of settings that are no plain data, of objects and modules as `_attributes` says, and objects of
    frozen dataclasses that are handed on whole.
    """
    return {
        load.name: load.value
        for load in loads
        if not load.is_far and (isinstance(load.value, SETTINGS) or (load.is_whole and _is_frozen(load.value)))
    }


def _is_frozen(value: Any) -> bool:
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


def _attributes(loads: Iterable[_Load], package: str | None, written: set[str]) -> dict[str, Any]:
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
            found |= {f"{load.name}.{each}": held for each, held in _read_of(value, "__getitem__").items()}
            if config_of(value) is not None:
                found[load.name] = value
        if owner is None:
            if _is_called(value):
                found[load.name] = value
        elif load.is_far:
            continue
        elif isinstance(value, PLAIN) and not isinstance(owner.value, types.ModuleType):
            found[load.name] = shortened(value)  # of modules these are told by their own names
        elif value is _UNSEEN or (isinstance(value, types.MethodType) and value.__self__ is owner.value):
            name = load.name.rpartition(".")[2]
            written |= {f"{owner.name}.{each}" for each in _changed(type(owner.value), name, package)}
            if package is None:
                found |= {f"{owner.name}.{each}": held for each, held in _read_of(owner.value, name).items()}
                if value is not _UNSEEN and config_of(owner.value) is not None:
                    found[owner.name] = owner.value
    return found


def lasting(value: Any, package: str | None = "") -> Any:
    """An object that is called, without what it writes to then: a cache, a clock, a file that it opens.

    package: None for actors (see _walk): also without what its properties make when they are first asked.
    """
    if package is None and isinstance(value, PLAIN):  # a table, whatever attributes it has
        return value
    changed = _changed(type(value), "__call__", package)
    if package is None:
        parts = (part for base in type(value).__mro__ for part in vars(base).items())
        changed |= {name for name, part in parts if isinstance(part, functools.cached_property)}
    if not changed or not isinstance(asked(value, "__dict__"), dict) or callable(asked(value, "fingerprint")):
        return value
    return [type(value), {name: held for name, held in vars(value).items() if name not in changed}]


def _changed(cls: type, method: str, package: str | None) -> set[str]:
    """The attributes that a method of users', and those of the class that it uses, write to of their object."""
    return _changed_by(_own_methods(cls, method, package))


def _changed_by(methods: Iterable[types.FunctionType]) -> set[str]:
    found: set[str] = set()
    for function in methods:
        own = ".".join([function.__module__, *function.__code__.co_varnames[:1], ""])
        found |= {each.removeprefix(own).partition(".")[0] for each in written_by(function) if each.startswith(own)}
    return found


def _read_of(owner: Any, method: str) -> dict[str, Any]:
    """The plain attributes of an object, by name, that a method of users', and those that it uses, load.

    Without what these write to or make when they are first asked, and without files that are mapped.
    """
    cls = type(owner)
    loaded = {name for function in _own_methods(cls, method, None) for name in _loaded_names(function)}
    if not loaded:
        return {}
    return _plain_parts(cls, asked(owner, "__dict__", {}), loaded - _changed(cls, method, None))


def _plain_parts(cls: type, held: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {
        name: value
        for name, value in held.items()
        if name in names
        and is_data(value)
        and not isinstance(value, np.memmap)
        and not isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)
    }


def _own_methods(cls: type, method: str, package: str | None) -> Iterator[types.FunctionType]:
    """A method of users', and those of the class that it uses. package: None also its properties (see _walk)."""
    waiting, seen = [method], set()
    while waiting:
        name = waiting.pop()
        function = inspect.getattr_static(cls, name, None)
        if package is None and isinstance(function, property | functools.cached_property | classmethod | staticmethod):
            function = next(called(function), None)
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


def _attribute(value: Any, name: str) -> Any:
    """What the attribute holds; _UNSEEN where looking would run a method, or there is none."""
    kinds = (property, functools.cached_property)  # what the latter keeps hides it
    if any(isinstance(inspect.getattr_static(each, name, None), kinds) for each in (value, type(value))):
        return _UNSEEN
    return asked(value, name, _UNSEEN)
