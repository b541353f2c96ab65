"""Whether a node has the code that the driver has: what other code reads there may be other bytes.

An actor imports this package, and the users' modules that a description names, from its own disk. The driver says what
they are, the actor compares before it answers for the first time; also what is imported when a function first runs.
No code is run for that. Libraries are not compared, nor what travels by value, as the functions of a script do.

What the program sets in such a module after its import (`config.SCALE = args.scale`) is in the driver alone. Where the
module's text says another plain value, and the description's code reads it, it is compared too, once all is imported
that the description names.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import linecache
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import datarax_ray
from datarax_ray.plan.fingerprint import shown
from datarax_ray.read.identity.code import PARSING, imported_names, read_digest, source_digest
from datarax_ray.read.identity.referenced_globals import (
    asked,
    holds_code,
    is_users_file,
    module_of,
    read_of_modules,
    shortened,
)

_OWN = datarax_ray.__name__
_MAX_MODULES = 500  # far more than transforms import
_MAX_TAKEN = 8  # modules that take a name from one another, and an end where a package takes its own part


class OtherCodeError(RuntimeError):
    """This node has other code than the driver."""


@dataclass(frozen=True)
class Code:
    """What a description imports. each: digest and file of this package, of the users' modules that the description
    names, and of those that these import, by name. values: digest and look of what its code reads in such modules where
    that is not what their text says, by module and name there. imports: what unpickling it imports, in turn.
    """

    each: dict[str, tuple[str, str]]
    values: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    imports: tuple[str, ...] = ()

    @property
    def digests(self) -> dict[str, str]:
        """What tells it from other code, wherever it lies."""
        values = {":".join(name): found for name, (found, _) in self.values.items()}
        return {name: found for name, (found, _) in self.each.items()} | values

    def check(self, host: str) -> None:
        """Raise OtherCodeError where a module here, on this host, is another one than in the driver, or holds another
        value.
        """
        for name, (wanted, there) in self.each.items():
            here = _find(name)  # what is not here is told of when it is imported, or travels by value
            if here is not None and (found := here.digest) != wanted:
                raise OtherCodeError(
                    f"{name} on node {host} ({here.file}, digest {found}) is other code than "
                    f"in the driver ({there}, digest {wanted}); what it reads could be other data, so nothing is read "
                    "there. Install the same on all nodes, and start the program again after a change"
                )
        for name in self.imports if self.values else ():
            _imported(name)  # one of them may set it, as it did in the driver
        for (module, name), (wanted, there) in self.values.items():
            value = _value(module, name)
            if value is not None and value[0] != wanted:
                raise OtherCodeError(
                    f"{module}.{name} is {value[1]} on node {host}, where {module} is imported anew, and {there} in "
                    "the driver, where the program has set it; what is read there would be other data, so nothing is. "
                    "Give it to the transform as an argument or attribute, which travels with it, or set it in the "
                    "module itself"
                )


@dataclass(frozen=True)
class _Module:
    """A module in Python, imported or not. package: to which its relative imports are relative."""

    name: str
    file: str
    package: str

    @property
    def text(self) -> str:
        linecache.checkcache(self.file)
        module = sys.modules.get(self.name)
        return "".join(linecache.getlines(self.file, None if module is None else vars(module)))

    @property
    def digest(self) -> str:
        return _own_digest(self.file) if self.name == _OWN else source_digest(self.text)


def code_of(
    names: Iterable[str], imported: Iterable[Any] = (), by_value: Iterable[str] = (), carried: Iterable[Any] = ()
) -> Code:
    """The code of this package, of the users' modules among these, and of those of users' that they import.

    imported: modules, functions and classes that a description names; what these read of plain values in users'
    modules, and the program has set, is compared too. by_value: modules that travel whole, values and all. carried:
    functions and classes that travel with the globals that they load, as a lambda does.
    """
    own = _find(_OWN)
    assert own is not None
    found, seen, waiting = {_OWN: own}, {_OWN}, sorted(names)
    while waiting and len(found) < _MAX_MODULES:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name.partition(".")[0] in ("__main__", _OWN) or (module := _find(name)) is None:
            continue
        if is_users_file(module.file):
            found[name] = module
            waiting += imported_names(module.text, module.package)
    imported = [*imported]
    travels = tuple(f"{module}." for module in ("__main__", *by_value))
    with PARSING:
        read = read_of_modules([each for each in imported if not isinstance(each, types.ModuleType)], carried)
        values = dict(_set({name for name in read if not name.startswith(travels)}))
    imports = tuple(dict.fromkeys(map(module_of, imported)))
    return Code({name: (module.digest, module.file) for name, module in found.items()}, values, imports)


def _place(name: str) -> tuple[str, str] | None:
    """The module that a dotted name begins with, and the name there."""
    module = name.rpartition(".")[0]
    while module and module not in sys.modules:
        module = module.rpartition(".")[0]
    return (module, name[len(module) + 1 :]) if module else None


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit):  # whoever needs it there says so
        return None


def _value(module: str, name: str) -> tuple[str, str] | None:
    """Digest and look of what a module holds by this name; None where there is no such module, or nothing, or a table
    of code: that is filled at import, and the driver may have imported more.
    """
    value = _imported(module)
    try:
        for part in name.split("."):
            value = getattr(value, part)
        return None if holds_code(shortened(value)) else (read_digest(value), shown(value))
    except Exception:  # whoever needs it there says so
        return None


def _find(name: str) -> _Module | None:
    """The module of this name, where there is one in Python. Imports none, unlike importlib.util.find_spec."""
    file, path = None, None  # of the part of the name so far
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        part = ".".join(parts[:count])
        if (module := sys.modules.get(part)) is not None:
            file, path = asked(module, "__file__"), asked(module, "__path__")
            continue
        if not parts[count - 1] or (count > 1 and path is None):
            return None
        spec = _spec(part, path)
        if spec is None:
            return None
        file, path = spec.origin, spec.submodule_search_locations
    if file is None or not file.endswith(".py"):
        return None
    return _Module(name, file, name if path is not None else name.rpartition(".")[0])


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    try:
        finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
        return next((spec for find in finders if (spec := find(name, path)) is not None), None)
    except Exception:  # of a finder's own; a namespace within one that is not imported raises KeyError (Python 3.11)
        return None


def _set(names: Iterable[str]) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Module and name there, digest and look, of those of these that a module's text gives another plain value."""
    given = functools.cache(_given)
    for module, name in filter(None, map(_place, sorted(names))):
        try:
            said = given(module)[name]
            for _ in range(_MAX_TAKEN):
                said = given(said[0])[said[1]] if isinstance(said, tuple) else said
            literal = ast.literal_eval(said)  # type: ignore[arg-type]
        except (KeyError, ValueError):  # a call, a comprehension; what a library says
            continue
        if isinstance(literal, dict | list | set):  # those are filled at import
            continue
        value = _value(module, name)
        if value is not None and value[0] != read_digest(literal):
            yield (module, name), value


def _given(module: str) -> dict[str, ast.expr | tuple[str, str]]:
    """What a users' module's text gives the names in it, and those in its classes (`Class.name`), once.

    Of what it imports from another module that one's name, and the name there. What it gives anew (in an `if` or a
    `try`, say) it makes out where it is imported, and that may differ by node.
    """
    found = _find(module)
    if found is None or not is_users_file(found.file):
        return {}
    try:
        return _given_once(ast.parse(found.text).body, found.package)
    except (SyntaxError, ValueError, ImportError):  # the last of `from ...config import`, beyond its package
        return {}


def _given_once(body: list[ast.stmt], package: str, prefix: str = "") -> dict[str, ast.expr | tuple[str, str]]:
    found: dict[str, ast.expr | tuple[str, str]] = {}
    bound = Counter(_bound(body))
    for node in body:
        if isinstance(node, ast.ClassDef) and bound[node.name] == 1:
            found |= _given_once(node.body, package, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name) and bound[target.id] == 1]
            found |= {f"{prefix}{name}": node.value for name in names}
        elif isinstance(node, ast.ImportFrom):
            of = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            taken = {alias.asname or alias.name: (of, alias.name) for alias in node.names}
            found |= {f"{prefix}{name}": there for name, there in taken.items() if bound[name] == 1}
    return found


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements give something, as often as they do; without those inside functions and classes."""
    waiting: list[ast.AST] = [*body]
    for node in waiting:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(name := getattr(node, "asname", None) or getattr(node, "name", None), str):
            yield name  # of an import, a function, a class, an exception
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


@functools.cache
def _own_digest(file: str) -> str:
    """Of all of this package: its parts use each other."""
    sha = hashlib.sha256()
    top = Path(file).parent
    for path in sorted(top.rglob("*.py")):
        sha.update(f"{path.relative_to(top).as_posix()}\n".encode() + path.read_bytes())
    return sha.hexdigest()[:16]
