"""What users' code is: whose a function is, where a module's text is, what functions and classes hold and write."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import importlib.metadata
import importlib.util
import inspect
import itertools
import json
import os
import sys
import sysconfig
import textwrap
import threading
import tokenize
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from pathlib import PurePath
from typing import Any, TypeVar

import datarax_ray

# What inspect.getsource and ast.parse of it raise where there is none, or another program's: a file that was edited.
NO_SOURCE = (OSError, TypeError, SyntaxError, tokenize.TokenError)
GENERATED = ("<string>", "<attrs")  # what a dataclass, a named tuple and attrs make of a class's text
# What functions write to, by code and file: as their texts were at first, which may be edited while a program runs.
_WRITTEN: dict[tuple[types.CodeType, str], set[str]] = {}
MADE = ("__init__", "__post_init__", "__new__")  # where objects are made
MADE_CLASSES = ("__init_subclass__", "__set_name__")
CHANGING = {"append", "add", "update", "setdefault", "pop", "popitem", "extend", "insert", "clear", "remove"}
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")})
_PACKAGE = os.path.dirname(os.path.abspath(datarax_ray.__file__)) + os.sep
_PROJECTS: ContextVar[frozenset[str]] = ContextVar("projects", default=frozenset())
_LOOKED: ContextVar[dict[Any, tuple[Any, Any]] | None] = ContextVar("looked", default=None)

_Found = TypeVar("_Found")

# One thread at a time. Two in Python's parser spoil each other's count of how deep they are, and one raises SystemError
# (3.11, 3.12: https://github.com/python/cpython/issues/106905); a class that is looked at gets __annotations__ while
# another thread looks through it. Reentrant: a fingerprint() of a user's may make sources.
PARSING = threading.RLock()
_MAX_TRIES = 20  # of one that another library's thread spoils: a traceback that is written parses, too


def parsed(text: str | bytes) -> ast.Module:
    """As ast.parse, in whichever threads others parse."""
    return _tried(ast.parse, text)


def source_of(code: Any) -> str:
    """As inspect.getsource, likewise: of a class it parses the file."""
    return _tried(inspect.getsource, code)


def _tried(read: Callable[[Any], _Found], what: Any) -> _Found:
    with PARSING:
        for _ in range(_MAX_TRIES):
            with contextlib.suppress(SystemError):
                return read(what)
        return read(what)


@contextlib.contextmanager
def looking_once() -> Iterator[None]:
    """Each function is looked at once while this lasts: nothing that it loads is set anew then."""
    before = _LOOKED.set({})
    try:
        yield
    finally:
        _LOOKED.reset(before)


def once(look: Callable[..., _Found]) -> Callable[..., _Found]:
    """Around what looks at the code and globals of a function alone; see looking_once."""

    @functools.wraps(look)
    def found(function: types.FunctionType, *arguments: Any) -> _Found:
        if (known := _LOOKED.get()) is None:
            return look(function, *arguments)
        key = look, function.__code__, function.__module__, id(function.__globals__), *arguments
        if key not in known:  # the globals are held, so that no others get their address
            known[key] = function.__globals__, look(function, *arguments)
        return known[key][1]

    return found


def installed_projects(codes: Iterable[Any]) -> frozenset[str]:
    """The packages that are a project's own though they lie among libraries: those that were installed from a folder,
    as `pip install .` does in an image, and of those that were installed from a wheel on this host the ones that have
    the code itself, as a host without a network has all libraries from wheels.
    """
    tops = {(module_of(inner(code)) or module_of(type(code))).partition(".")[0] for code in codes}
    return frozenset(name for name, how in _installed_from_here().items() if how == "dir_info" or name in tops)


@functools.cache
def _installed_from_here() -> dict[str, str]:
    """How packages were installed that did not come from an index, by name. Source: PEP 610, direct_url.json."""
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        with contextlib.suppress(Exception):  # of what others wrote there
            told = json.loads(each.read_text("direct_url.json") or "{}")
            how = next((how for how in ("dir_info", "archive_info") if how in told), None)
            if how and told["url"].startswith("file:"):
                files = [PurePath(file) for file in each.files or () if PurePath(file).suffix == ".py"]
                found |= {file.parts[0].removesuffix(".py"): how for file in files}
    found.pop(__name__.partition(".")[0], None)
    return found


@contextlib.contextmanager
def with_projects(packages: frozenset[str]) -> Iterator[None]:
    """These packages are users' while this lasts."""
    before = _PROJECTS.set(packages)
    try:
        yield
    finally:
        _PROJECTS.reset(before)


def is_users(code: Any) -> bool:
    """Whether a function, class or module is of neither a library nor this package."""
    name = module_of(code)
    if name.partition(".")[0] in _PROJECTS.get():
        return True
    file = getattr(sys.modules[name], "__file__", None) if name in sys.modules else _file_of(code)
    is_own = name.partition(".")[0] == __name__.partition(".")[0]
    return not is_own and (name == "__main__" or bool(file and not _is_librarys(file)))


def _file_of(code: Any) -> str | None:
    """The file of a function, or of the first method of a class, as its code has it: its module is not to be found, as
    behind runpy.run_path, exec, and a spec that was only executed. None for all else.
    """
    functions = [code] if isinstance(code, types.FunctionType) else []
    if inspect.isclass(code):
        functions = [each for each in vars(code).values() if isinstance(each, types.FunctionType)]
    return next((each.__code__.co_filename for each in functions), None)


def is_users_file(name: str) -> bool:
    """Whether code with this file name, as its code object has it, is of neither a library nor this package."""
    return not _is_librarys(name) and not name.startswith((_PACKAGE, "<frozen "))


@functools.lru_cache(10_000)
def _is_librarys(file: str) -> bool:
    """Also of `pip install --user`, of another environment on the path, and of Debian's packages."""
    return file.startswith(_LIBRARIES) or not {"site-packages", "dist-packages"}.isdisjoint(PurePath(file).parts)


def module_of(code: Any) -> str:
    """The name of a module, or of that of a function or class; "" for none."""
    return code.__name__ if isinstance(code, types.ModuleType) else str(getattr(code, "__module__", None) or "")


def asked(value: Any, name: str, otherwise: Any = None) -> Any:
    """As getattr, also of what raises another error: a dict with attributes (`__getattr__ = dict.__getitem__`), say."""
    try:
        return getattr(value, name)
    except Exception:  # of a __getattr__ of the user's: a transform that needs it raises it too
        return otherwise


def inner(value: Any) -> Any:
    """What is called in the end, inside functools.wraps, functools.cache or jax.jit."""
    return inspect.unwrap(value) if callable(value) and asked(value, "__wrapped__") is not None else value


def called(value: Any) -> Iterator[Any]:
    """What Python calls of an attribute of a class, where that is a function in the end."""
    if isinstance(value, property):
        parts = [value.fget, value.fset, value.fdel]
    else:
        name = "__func__" if isinstance(value, staticmethod | classmethod) else "func"
        is_around = isinstance(value, staticmethod | classmethod | functools.cached_property | functools.partialmethod)
        parts = [getattr(value, name) if is_around else value]
    return (part for part in parts if callable(part) and isinstance(inspect.unwrap(part), types.FunctionType))


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The functions of a class itself by name, with what is around them, also of properties and the like."""
    return ((name, function) for name, value in vars(cls).items() for function in called(value))


def with_nested(cls: type) -> Iterator[type]:
    """A class, and those that its text defines inside it."""
    yield cls
    for name, value in vars(cls).items():
        if inspect.isclass(value) and value.__qualname__ == f"{cls.__qualname__}.{name}":
            yield from with_nested(value)


def defaults(function: types.FunctionType) -> dict[str, Any]:
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


def slots(value: Any) -> dict[str, Any]:
    """What an object holds in __slots__ of users' classes, by name."""
    own = (part for base in type(value).__mro__ if is_users(base) for part in vars(base).items())
    names = (name for name, part in own if isinstance(part, types.MemberDescriptorType))
    return {name: asked(value, name) for name in names if hasattr(value, name)}


def kept(function: types.FunctionType) -> dict[str, Any]:
    """The defaults and the closure of a function, by name, without a table that it fills itself."""
    if not (held := defaults(function) | cells(function)):
        return {}
    own = written_by(function) | {f"{function.__module__}.{each}" for each in _rebound(function)}
    return {name: value for name, value in held.items() if f"{function.__module__}.{name}" not in own}


def _rebound(function: types.FunctionType) -> set[str]:
    """What a function holds of those around it and sets anew: nonlocal."""
    steps = (step for code in code_objects(function.__code__) for step in dis.get_instructions(code))
    return {step.argval for step in steps if step.opname == "STORE_DEREF"}


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def imported_in(function: types.FunctionType) -> Iterator[str]:
    """The names of the modules that a function imports when it runs; and of what may be modules."""
    package = str(function.__globals__.get("__package__") or "")
    for code in code_objects(function.__code__):
        module, levels = "", [0, 0]  # what stands before: the level of a relative import, and the names
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                module = step.argval
                if isinstance(level := levels[-2], int) and level > 0:
                    module = _absolute(level, module, package)
                if module:
                    yield module
            elif step.opname == "IMPORT_FROM" and module:
                yield f"{module}.{step.argval}"
            levels.append(step.argval)


def _absolute(level: int, module: str, package: str) -> str:
    """The name of a module that is imported relative to a package; "" where there is none."""
    try:
        return importlib.util.resolve_name("." * level + module, package)
    except ImportError:
        return ""


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree itself, in which they stand no more."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def attributes_written(functions: Iterable[types.FunctionType]) -> set[str]:
    """The names of attributes, of whatever, that functions assign to, or change what is inside of."""
    return {name.rpartition(".")[2] for each in functions for name in written_by(inspect.unwrap(each))}


def written_attributes(function: types.FunctionType, but_of: str | None = None) -> set[str]:
    """The names of attributes that a function writes to, of whatever but a variable of this name; of no variable."""
    names = (name.removeprefix(f"{function.__module__}.") for name in written_by(function))
    return {name.rpartition(".")[2] for name in names if "." in name and name.rpartition(".")[0] != but_of}


def written_by(function: types.FunctionType) -> set[str]:
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
        tree = parsed(textwrap.dedent(source_of(function)))
    except NO_SOURCE:  # or a lambda in the middle of a line
        return set()
    names: set[str] = set()
    is_lambda = function.__name__ == "<lambda>"  # whose text is that of the whole line
    tops = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)] if is_lambda else [tree]
    nodes = [*itertools.chain.from_iterable(map(ast.walk, tops))]
    aliases = _aliases(nodes)
    for node in nodes:
        if isinstance(node, ast.Global):
            names.update(node.names)
        elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            names |= _written_of(node if isinstance(node, ast.Attribute) else node.value, aliases)
        elif isinstance(node, ast.Attribute) and node.attr in CHANGING:
            names |= _written_of(node.value, aliases)
    return names


def _aliases(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """What a local name stands for to which a name, an attribute or an item is assigned, and nothing else
    (`cache = self.cache`).
    """
    found: dict[str, ast.expr | None] = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            value = node.value if isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript) else None
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id] = value if target.id not in found else None
    return {name: value for name, value in found.items() if value is not None}


def _written_of(written: ast.expr, aliases: Mapping[str, ast.expr]) -> set[str]:
    """What is written to as it stands in the text, and what that is an item of, or another name for."""
    found = {ast.unparse(written)}
    for _ in range(10):  # names may stand for one another
        root, steps = written, list[ast.Attribute | ast.Subscript]()
        while isinstance(root, ast.Attribute | ast.Subscript):
            steps.insert(0, root)
            root = root.value
        item = next((step for step in steps if isinstance(step, ast.Subscript)), None)
        if item is not None:
            written = item.value
        elif isinstance(root, ast.Name) and root.id in aliases:
            written = aliases[root.id]
            for step in steps:
                assert isinstance(step, ast.Attribute)
                written = ast.Attribute(written, step.attr, ast.Load())
        else:
            break
        found.add(ast.unparse(written))
    return found


def wrapping(function: Any) -> Iterator[types.FunctionType]:
    """The functions around one, from the outside; of an object of a class (functools.update_wrapper) its __call__."""
    while hasattr(function, "__wrapped__"):
        around = function if isinstance(function, types.FunctionType) else asked(type(function), "__call__")
        if isinstance(around, types.FunctionType):
            yield around
        function = function.__wrapped__


def as_bare(function: types.FunctionType) -> types.FunctionType:
    made = types.FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
    made.__qualname__ = function.__code__.co_qualname
    return made


def file_of(name: str) -> str | None:
    """The file with the text of the module of this name; None where there is none, or it is no text.

    Imports none of the packages that it is in, unlike importlib.util.find_spec.
    """
    file: str | None = None
    path: Sequence[str] | None = None  # of the part of the name so far
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        part = ".".join(parts[:count])
        if (module := sys.modules.get(part)) is not None:
            held = asked(module, "__dict__") or {}
            file, path = held.get("__file__"), held.get("__path__")
        elif not parts[count - 1] or (count > 1 and path is None):
            return None
        elif (spec := _spec(part, path)) is not None:
            file, path = spec.origin, spec.submodule_search_locations
        else:  # within packages that are not imported a folder without __init__.py has no spec
            folders = [os.path.join(each, parts[count - 1]) for each in path or ()]
            file, path = None, [each for each in folders if os.path.isdir(each)] or None
    return file if isinstance(file, str) and file.endswith(".py") else None


def is_package(file: str) -> bool:
    return os.path.basename(file) == "__init__.py"


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    try:
        finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
        return next((spec for find in finders if (spec := find(name, path)) is not None), None)
    except Exception:  # of a finder's own; a namespace within one that is not imported raises KeyError (Python 3.11)
        return None
