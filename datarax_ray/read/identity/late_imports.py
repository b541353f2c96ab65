"""What functions import when they run: the text of what they use of users' modules, which are not imported for it.

What is imported so late is often heavy, or nothing for this process. So its text is read: the statements that bind a
name, and those of the names that these use in turn, through the modules that they import.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from typing import NamedTuple

from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.identity.users_code import code_objects, imported_in, is_users_file, without_docstrings

_MAX_FOUND = 500  # names; far more than transforms use
# Of a function's own body, and of a class's: names that are bound there are not the module's.
_INSIDE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class _Imported(NamedTuple):
    """module: that is imported. name: of what is taken of it, None for the module itself."""

    module: str
    name: str | None


class _Text(NamedTuple):
    """A module's text. bound: the statements that say what a name stands for. imported: what names stand for of other
    modules. stars: modules of which all is imported.
    """

    bound: dict[str, list[ast.stmt]]
    imported: dict[str, _Imported]
    stars: list[str]


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
        if name in text.bound:
            statements = text.bound[name]
            found[f"{module}.{name}"] = [ast.unparse(each) for each in statements]
            for each in statements:
                waiting += _used_by(each, module)
        elif name in text.imported:
            waiting += _of(text.imported[name], ())
        else:
            waiting += [(star, name) for star in text.stars]
    return found


def _used_by(statement: ast.stmt, module: str) -> Iterator[tuple[str, str]]:
    """What a statement of a module uses, there and in modules that either imports."""
    text = _text_of(module)
    assert text is not None
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    attributes = sorted({node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)})
    own = {alias: each for node in ast.walk(statement) for alias, each in _imports(node, module)}
    for name in sorted(names):
        if (imported := own.get(name) or text.imported.get(name)) is not None:
            yield from _of(imported, attributes)
        else:
            yield module, name


def _of(imported: _Imported, attributes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What an imported name stands for: itself, or of a module these attributes."""
    module, name = imported
    if name is not None:
        yield module, name
        module = f"{module}.{name}"
    yield from ((module, each) for each in attributes)


def _text_of(module: str) -> _Text | None:
    """None for a library's, for one without a text, and for what is no module."""
    file = _file_of(module)
    if file is None or not file.endswith(".py") or not is_users_file(file):
        return None
    with contextlib.suppress(OSError):
        return _parsed(module, file, os.stat(file).st_mtime_ns)
    return None


@functools.lru_cache(256)
def _parsed(module: str, file: str, modified_ns: int) -> _Text | None:
    del modified_ns  # another one is another text
    try:
        with open(file, "rb") as opened:
            tree = without_docstrings(ast.parse(opened.read()))
    except (SyntaxError, ValueError, OSError):
        return None
    is_package = os.path.basename(file) == "__init__.py"
    found = _Text({}, {}, [])
    for statement in tree.body:
        nodes = [*_of_module(statement)]
        for node in nodes:
            for alias, each in _imports(node, f"{module}." if is_package else module):
                found.stars.append(each.module) if alias == "*" else found.imported.setdefault(alias, each)
        for name in {name for node in nodes for name in _bound_by(node)}:
            found.bound.setdefault(name, []).append(statement)
    return found


def _of_module(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is inside it, but for bodies of functions and classes."""
    yield node
    if not isinstance(node, _INSIDE):
        for child in ast.iter_child_nodes(node):
            yield from _of_module(child)


def _bound_by(node: ast.AST) -> Iterator[str]:
    """The names that it gives a value, or sets something of: `a = 1`, `a[0] = 1`, `a.b = 1`, `a.update(b)`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield from _root(node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _root(node.value.func)


def _root(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _imports(node: ast.AST, module: str) -> Iterator[tuple[str, _Imported]]:
    """What names of an import stand for. module: where it is; of a package with a dot at its end."""
    if isinstance(node, ast.Import):
        for each in node.names:
            whole = each.name if each.asname else each.name.partition(".")[0]
            yield each.asname or whole, _Imported(whole, None)
    elif isinstance(node, ast.ImportFrom):
        with contextlib.suppress(ImportError):  # relative, in what is no package
            name = "." * node.level + (node.module or "")
            of = importlib.util.resolve_name(name, module.rpartition(".")[0])
            yield from ((each.asname or each.name, _Imported(of, each.name)) for each in node.names)


def _file_of(module: str) -> str | None:
    """Where a module's text is. Nothing is imported: of a package within one its folders are asked."""
    if module in sys.modules:
        file = getattr(sys.modules[module], "__file__", None)
        return file if isinstance(file, str) else None
    package, _, _ = module.rpartition(".")
    try:
        if not package:
            spec = importlib.util.find_spec(module)
        else:
            init = _file_of(package)
            folders = [os.path.dirname(init)] if init else _folders_of(package)
            spec = PathFinder.find_spec(module, folders) if folders else None
    except (ImportError, ValueError, AttributeError):
        return None
    return None if spec is None or not spec.has_location else spec.origin


def _folders_of(package: str) -> list[str]:
    """Those of a package without an __init__.py."""
    parts, path = package.split("."), None
    for index in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: index + 1]), path)
        if spec is None or spec.submodule_search_locations is None:
            return []
        path = [*spec.submodule_search_locations]
    return path or []
