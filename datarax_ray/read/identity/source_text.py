"""The text of code, without comments, docstrings and layout: of functions, classes and modules; its bytecode where
there is none."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import linecache
import logging
import os
import re
import textwrap
import time
import types
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from datarax_ray.read.identity.sampled_rows import hash_array
from datarax_ray.read.identity.users_code import (
    NO_SOURCE,
    PARSING,
    asked,
    code_objects,
    methods,
    parsed,
    source_of,
    with_nested,
    without_docstrings,
)

logger = logging.getLogger("datarax_ray")


_BEGAN = time.time()
_TEXTS: dict[tuple[str, types.CodeType, str], str] = {}  # of functions, by name, code and file
_OF_CLASSES: weakref.WeakKeyDictionary[type, tuple[list[types.CodeType], str, list[str]]] = weakref.WeakKeyDictionary()


def text_digest(code: Any) -> str:
    """The digest of a function's or class's text as it was at first: the file may be edited while the program runs.

    Anew once `%autoreload` has put other code into it. No function is kept: its closure may hold most of the memory.
    """
    function = inspect.unwrap(code) if inspect.isfunction(code) else None  # getsource gives the text of that one, too
    if inspect.isfunction(function):
        key = code.__name__, function.__code__, function.__code__.co_filename
        if key not in _TEXTS:
            _TEXTS[key] = _text(code)
        return _TEXTS[key]
    return _of_class(code)[1] if inspect.isclass(code) else _text(code)


def _of_class(cls: type) -> tuple[list[types.CodeType], str, list[str]]:
    """The code of a class, the digest of its text, and the names of methods of which that does not say enough."""
    codes = [method.__code__ for part in with_nested(cls) for each in _methods(part).values() for method in each]
    found = _OF_CLASSES.get(cls)
    if found is None or [*map(id, found[0])] != [*map(id, codes)]:
        found = _OF_CLASSES[cls] = codes, _text(cls), _in_doubt(cls)
    return found


def methods_in_doubt(cls: type) -> dict[str, types.FunctionType]:
    """The methods of a class, by name, where its text does not say which: its file has several classes of this name, of
    which Python gives the first until 3.13; or that has several methods of one name, or one under another name.
    """
    names = _of_class(cls)[2]
    return {
        f"{name}, {number}": each
        for name, functions in _methods(cls).items()
        for number, each in enumerate(functions)
        if name in names and each.__code__.co_qualname == f"{cls.__qualname__}.{each.__name__}"  # else it was set since
    }


def _in_doubt(cls: type) -> list[str]:
    try:
        text, (file,) = source_of(cls), _files_of(cls)
    except (*NO_SOURCE, ValueError):  # it has none, or methods of several files
        return []
    is_one = _num_named("class", cls.__name__, "".join(linecache.getlines(file))) == 1
    is_other = {name for name, functions in _methods(cls).items() if any(each.__name__ != name for each in functions)}
    return [
        name for name in _methods(cls) if not is_one or name in is_other or _num_named("(?:async )?def", name, text) > 1
    ]


def _num_named(kind: str, name: str, text: str) -> int:
    return len(re.findall(rf"^\s*{kind} {re.escape(name)}\b", text, re.MULTILINE))


def _text(code: Any) -> str:
    """Digest of a function's or class's source without comments, docstrings and layout; else of its bytecode."""
    try:
        if getattr(code, "__name__", "") == "<lambda>":
            raise SyntaxError("getsource gives the line, which may hold several lambdas")
        text = ast.unparse(without_docstrings(parsed(textwrap.dedent(_source_lines(code)))))
    except NO_SOURCE:  # built by exec, written in C, or a lambda
        text = _bytecode(code)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _source_lines(code: Any) -> str:
    """The source that a function or class was made of. Raises: EditedError where its file has another now."""
    bare = inspect.unwrap(code) if inspect.isfunction(code) else code
    of_class = [each for methods_of in _methods(code).values() for each in methods_of] if inspect.isclass(code) else []
    file, moved_by = "", 0  # where it stands now, by lines
    for function in of_class or [bare]:
        body = asked(function, "__code__")
        if not isinstance(body, types.CodeType) or not _may_be_edited(body.co_filename):
            continue
        now = _codes_in(body.co_filename, os.stat(body.co_filename).st_mtime_ns).get(body.co_qualname, ())
        same = next((each for each in now if _code_object(each) == _code_object(body)), None)
        if same is None and (now or not of_class):  # of a class others may put methods there
            logger.warning(
                "%s was edited after this program imported it, and %s is other code there: the state says what runs "
                "here, so that no program takes it that has what is there now. Start this one again to have that",
                body.co_filename, body.co_qualname
            )  # fmt: skip
            raise EditedError(body.co_filename)
        if same is not None and (not of_class or body.co_qualname.startswith(f"{code.__qualname__}.")):
            file, moved_by = body.co_filename, same.co_firstlineno - body.co_firstlineno
    # of a class only Python 3.13 has the line where it stood; earlier ones look for its name
    stood_at = vars(code).get("__firstlineno__") if of_class else asked(asked(bare, "__code__"), "co_firstlineno")
    if not file or stood_at is None:
        return source_of(code)
    return "".join(inspect.getblock(linecache.getlines(file)[stood_at - 1 + moved_by :]))


class EditedError(OSError):
    """A file has other code than what was made of it."""


def _may_be_edited(file: str) -> bool:
    """Whether a file was written while this program runs; later than what of it was imported before this package."""
    try:
        return os.stat(file).st_mtime >= _BEGAN
    except OSError:
        return False


@functools.lru_cache(16)
def _codes_in(file: str, stamp: int) -> dict[str, list[types.CodeType]]:
    """The code of a file's functions, by their qualified names. stamp: when it was written."""
    linecache.checkcache(file)
    found: dict[str, list[types.CodeType]] = {}
    with contextlib.suppress(SyntaxError, ValueError):  # it is being edited
        for code in code_objects(compile("".join(linecache.getlines(file)), file, "exec", dont_inherit=True)):
            found.setdefault(code.co_qualname, []).append(code)
    return found


def _bytecode(code: Any) -> str:
    body = getattr(code, "__code__", None)
    if isinstance(body, types.CodeType):  # a metaclass may have any name
        return repr(_code_object(body))
    name = f"{getattr(code, '__module__', '')}.{getattr(code, '__qualname__', '')}"
    # Of a class of a notebook's cell Python finds no text. For what namedtuple and the like make the name stands.
    is_known = inspect.isclass(code) and (code.__module__ == "__main__" or any(map(_may_be_edited, _files_of(code))))
    return repr([name, *_members(code)]) if is_known else name


def _files_of(cls: type) -> set[str]:
    return {each.__code__.co_filename for functions in _methods(cls).values() for each in functions}


def _members(cls: type) -> list[Any]:
    """What a class without a text has: its methods by their texts, and plain data."""
    found: list[Any] = []
    functions = _methods(cls)
    for name, value in sorted(vars(cls).items()):
        if name in functions:
            found.append([name, *map(text_digest, functions[name])])
        elif inspect.isclass(value) and value.__qualname__ == f"{cls.__qualname__}.{name}":
            found.append([name, text_digest(value)])
        elif not name.startswith("__") and " at 0x" not in (said := repr(_plain(value))):
            found.append([name, said])
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(each)] for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(_constant, value))
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [str(value.dtype), list(value.shape), hash_array(value)[:16]]
    return _constant(value)


def _methods(cls: type) -> dict[str, list[types.FunctionType]]:
    """The functions of a class by their names, without what is around them."""
    found: dict[str, list[types.FunctionType]] = {}
    for name, function in methods(cls):
        found.setdefault(name, []).append(inspect.unwrap(function))
    return found


def _code_object(code: types.CodeType) -> tuple[Any, ...]:
    constants = [_code_object(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    return code.co_code.hex(), constants, code.co_names, code.co_varnames


def _constant(value: Any) -> str:
    # `x in {"a", "b"}` makes a frozenset, whose repr has another order in every process
    return f"frozenset({sorted(map(repr, value))})" if isinstance(value, frozenset) else repr(value)


def source_digest(text: str) -> str:
    """A digest of a module's text, without comments, docstrings and layout."""
    with PARSING, contextlib.suppress(SyntaxError, ValueError):  # of another Python's: as it stands there
        text = ast.unparse(without_docstrings(parsed(text)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def imported_names(text: str, package: str) -> list[str]:
    """The names of the modules that a module's text imports, anywhere in it; and of what may be modules."""
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError):
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            of = "." * node.level + (node.module or "")
            with contextlib.suppress(ImportError):  # relative, in what is no package
                of = importlib.util.resolve_name(of, package)
                found += [of, *(f"{of}.{name.name}" for name in node.names)]
    return found
