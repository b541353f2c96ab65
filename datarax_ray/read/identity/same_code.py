"""Whether a node has the code that the driver has: what other code reads there may be other bytes.

An actor imports this package, and the users' modules that a description names, from its own disk. The driver says what
they are, the actor compares before it answers for the first time; also what is imported when a function first runs.
No code is run for that. Libraries are not compared, nor what travels by value, as the functions of a script do.

What the program sets in such a module after its import (`config.SCALE = args.scale`) is in the driver alone. Where the
module's text says another plain value, and the description's code reads it, it is compared too, once that is imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import linecache
import reprlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import datarax_ray
from datarax_ray.read.identity.code import imported_names, read_digest, source_digest
from datarax_ray.read.identity.referenced_globals import is_users_file, read_of_modules

_OWN = datarax_ray.__name__
_MAX_MODULES = 500  # far more than transforms import


class OtherCodeError(RuntimeError):
    """This node has other code than the driver."""


@dataclass(frozen=True)
class Code:
    """What a description imports. each: digest and file of this package, of the users' modules that the description
    names, and of those that these import, by name. values: digest and look of what its code reads in such modules where
    that is not what their text says, by module and name there.
    """

    each: dict[str, tuple[str, str]]
    values: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

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


def code_of(names: Iterable[str], users: Iterable[Any] = (), by_value: Iterable[str] = ()) -> Code:
    """The code of this package, of the users' modules among these, and of those of users' that they import.

    users: functions and classes; what they read of plain values in users' modules, and the program has set, is compared
    too. by_value: modules that travel whole, values and all.
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
    read = sorted(set[str]().union(*map(read_of_modules, users)))
    travels = tuple(f"{module}." for module in ("__main__", *by_value))
    places = [place for name in read if not name.startswith(travels) and (place := _place(name)) is not None]
    values = {place: value for place in places if (value := _value(*place)) is not None and _is_set(*place, value[0])}
    return Code({name: (module.digest, module.file) for name, module in found.items()}, values)


def _place(name: str) -> tuple[str, str] | None:
    """The module that a dotted name begins with, and the name there."""
    module = name.rpartition(".")[0]
    while module and module not in sys.modules:
        module = module.rpartition(".")[0]
    return (module, name[len(module) + 1 :]) if module else None


def _value(module: str, name: str) -> tuple[str, str] | None:
    """Digest and look of what a module holds by this name; None where there is no such module, or nothing."""
    try:
        value = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
        return read_digest(value), reprlib.repr(value)
    except Exception:  # whoever needs it there says so
        return None


def _find(name: str) -> _Module | None:
    """The module of this name, where there is one in Python. Imports none, unlike importlib.util.find_spec."""
    file, path = None, None  # of the part of the name so far
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        part = ".".join(parts[:count])
        if (module := sys.modules.get(part)) is not None:
            file, path = getattr(module, "__file__", None), getattr(module, "__path__", None)
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


def _is_set(module: str, name: str, digest: str) -> bool:
    """Whether a module's text gives a name another plain value than this: what it makes out may differ by node."""
    *classes, last = name.split(".")
    try:
        found = _find(module)
        body = ast.parse(found.text if found is not None else "").body
        for each in classes:
            (body,) = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == each]
        (value,) = [node.value for node in body if last in _assigned(node)]  # type: ignore[attr-defined]
        literal = ast.literal_eval(value)
    except (SyntaxError, ValueError):  # a call, a comprehension; given twice, or by an import
        return False
    return not isinstance(literal, dict | list | set) and read_digest(literal) != digest  # those are filled at import


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@functools.cache
def _own_digest(file: str) -> str:
    """Of all of this package: its parts use each other."""
    sha = hashlib.sha256()
    top = Path(file).parent
    for path in sorted(top.rglob("*.py")):
        sha.update(f"{path.relative_to(top).as_posix()}\n".encode() + path.read_bytes())
    return sha.hexdigest()[:16]
