"""What functions import when they run: the text of what they use of users' modules, which are not imported for it.

What is imported so late is often heavy, or nothing for this process. So its text is read: the statements that bind a
name, and those of the names that these use in turn, through the modules that they import.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import os
import symtable
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.identity.users_code import (
    CHANGING,
    code_objects,
    file_of,
    imported_in,
    is_package,
    is_users_file,
    once,
    parsed,
    without_docstrings,
)

_MAX_FOUND = 500  # names; far more than transforms use
_MAX_NBYTES = 2**20  # a longer text is a table of data, mostly, and takes seconds: all of it counts
# Of a function's own body, and of a class's: names that are bound there are not the module's.
_INSIDE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class _Imported(NamedTuple):
    """module: that is imported. name: of what is taken of it, None for the module itself."""

    module: str
    name: str | None


class _Text(NamedTuple):
    """A module's text.

    bound: the statements that say what a name stands for.
    imported: what names stand for of other modules: of several, where one is tried after the other.
    stars: modules of which all is imported.
    package: that it is in.
    whole: of a long one a digest of all, in place of these.
    """

    bound: dict[str, list[ast.stmt]]
    imported: dict[str, list[_Imported]]
    stars: list[str]
    package: str
    whole: str | None = None


@once
def late_imports(function: types.FunctionType) -> dict[str, str]:
    """For each module of users' that the function imports when it runs: a digest of the text of what it uses of it."""
    used = sorted({name for code in code_objects(function.__code__) for name in code.co_names})
    found = {module: _reached((module, name) for name in used) for module in imported_in(function)}
    return {module: digest(sorted(texts.items())) for module, texts in found.items() if texts}


def _reached(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The text that says what these names of modules stand for, and that of what it uses, by module and name."""
    found: dict[str, list[str]] = {}
    waiting = [*pairs]
    while waiting and len(found) < _MAX_FOUND:
        module, name = waiting.pop()
        text = _text_of(module)
        if text is None or f"{module}.{name}" in found:
            continue
        if text.whole is not None:
            found[module] = [text.whole]
            continue
        if name in text.bound:
            found[f"{module}.{name}"] = [*map(_said, text.bound[name])]
            for each in text.bound[name]:
                waiting += _used_by(each, module, text)
        for other in text.imported.get(name, []):
            waiting += _of(other, ())
        if name not in text.bound and name not in text.imported:
            waiting += [(star, name) for star in text.stars]
    return found


def _said(statement: ast.stmt) -> str:
    try:
        return ast.unparse(statement)
    except RecursionError:  # a sum of hundreds of terms
        return hashlib.sha256(repr([*map(_shallow, ast.walk(statement))]).encode()).hexdigest()


def _shallow(node: ast.AST) -> list[object]:
    parts = (value for _, value in ast.iter_fields(node))
    return [type(node).__name__, *(each for each in parts if isinstance(each, str | bytes | int | float | complex))]


def _used_by(statement: ast.stmt, module: str, text: _Text) -> Iterator[tuple[str, str]]:
    """What a statement of a module uses, there and in modules that either imports."""
    names, attributes = _loaded_in(statement)
    for node in ast.walk(statement):
        for _, each in _imports(node, text.package):
            yield from _of(each, attributes)
    for name in names:
        yield module, name
        for each in text.imported.get(name, []):
            yield from _of(each, attributes)


def _loaded_in(statement: ast.stmt) -> tuple[Sequence[str], Sequence[str]]:
    """The names of the module that it loads, and the attributes of whatever."""
    nodes = [*ast.walk(statement)]
    types_named = {node for each in nodes for annotation in _annotations(each) for node in ast.walk(annotation)}
    nodes = [node for node in nodes if node not in types_named]  # what types it names decides nothing
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    loaded = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    try:
        tables = [symtable.symtable(ast.unparse(statement), "late", "exec")]
    except (SyntaxError, ValueError, RecursionError):  # a return at the top, say
        return sorted(loaded), sorted(attributes)
    names = {symbol.get_name() for symbol in tables[0].get_symbols()}
    for table in tables:
        tables += table.get_children()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return sorted(names & loaded), sorted(attributes)


def _annotations(node: ast.AST) -> list[ast.expr]:
    return [each for name in ("annotation", "returns") if isinstance(each := getattr(node, name, None), ast.expr)]


def _of(imported: _Imported, attributes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What an imported name stands for: itself, or of a module these attributes."""
    module, name = imported
    if name is not None:
        yield module, name
        module = f"{module}.{name}"
    yield from ((module, each) for each in attributes)


def _text_of(module: str) -> _Text | None:
    """None for a library's, for one without a text, and for what is no module."""
    file = file_of(module)
    if file is None or not is_users_file(file):
        return None
    with contextlib.suppress(OSError):
        return _parsed(module, file, os.stat(file).st_mtime_ns)
    return None


@functools.lru_cache(256)
def _parsed(module: str, file: str, modified_ns: int) -> _Text | None:
    del modified_ns  # another one is another text
    package = module if is_package(file) else module.rpartition(".")[0]
    try:
        with open(file, "rb") as opened:
            text = opened.read()
        is_long = len(text) > _MAX_NBYTES
        tree = ast.Module([], []) if is_long else without_docstrings(parsed(text))
    except (SyntaxError, ValueError, OSError):
        return None
    except (RecursionError, MemoryError):  # of Python's parser, for a sum of thousands of terms
        is_long = True
    if is_long:
        return _Text({}, {}, [], package, hashlib.sha256(text).hexdigest())
    found = _Text({}, {}, [], package)
    for statement in tree.body:
        if _is_for_a_program(statement):
            continue
        nodes = _of_module(statement)
        for node in nodes:
            for alias, each in _imports(node, package):
                found.stars.append(each.module) if alias == "*" else found.imported.setdefault(alias, []).append(each)
        for name in sorted({name for node in nodes for name in _bound_by(node)}):
            found.bound.setdefault(name, []).append(statement)
    return found


def _is_for_a_program(statement: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__"`, which no import runs."""
    test = statement.test if isinstance(statement, ast.If) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _of_module(statement: ast.stmt) -> list[ast.AST]:
    """A statement and what is inside it, but for bodies of functions and classes."""
    found: list[ast.AST] = [statement]
    for node in found:
        if not isinstance(node, _INSIDE):
            found += ast.iter_child_nodes(node)
    return found


def _bound_by(node: ast.AST) -> Iterator[str]:
    """The names that it gives a value, or changes what is inside of: `a = 1`, `a[0] = 1`, `a.b = 1`, `a.update(b)`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        is_changed = isinstance(node, ast.Attribute) and node.attr in CHANGING
        yield from _root(node) if is_changed or isinstance(node.ctx, ast.Store) else ()


def _root(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _imports(node: ast.AST, package: str) -> Iterator[tuple[str, _Imported]]:
    """What names of an import stand for. package: that it is in."""
    if isinstance(node, ast.Import):
        for each in node.names:
            whole = each.name if each.asname else each.name.partition(".")[0]
            yield each.asname or whole, _Imported(whole, None)
    elif isinstance(node, ast.ImportFrom):
        with contextlib.suppress(ImportError):  # relative, in what is no package
            name = "." * node.level + (node.module or "")
            of = importlib.util.resolve_name(name, package)
            yield from ((each.asname or each.name, _Imported(of, each.name)) for each in node.names)
