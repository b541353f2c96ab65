"""Whether a node has the code that the driver has: what other code reads there may be other bytes.

An actor imports this package, and the users' modules that a description names, from its own disk. The driver says what
they are, the actor compares before it answers for the first time; also what is imported when a function first runs.
No code is run for that. Libraries are not compared, nor what travels by value, as the functions of a script do.

What the program has set in such modules since is in the driver alone, and set there too (see module_values); so are
settings of some libraries (see library_settings).
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datarax_ray
from datarax_ray.plan.fingerprint import digest, shown
from datarax_ray.read.hazards.library_settings import changed_settings, library_settings, set_library_settings
from datarax_ray.read.hazards.module_values import ModuleValue, set_values
from datarax_ray.read.hazards.watched import MAX_LOOKED_AT_NBYTES, Watched
from datarax_ray.read.identity.source_text import imported_names, source_digest
from datarax_ray.read.identity.users_code import file_of, is_package, is_users_file

logger = logging.getLogger("datarax_ray")

_OWN = datarax_ray.__name__
_MAX_MODULES = 500  # far more than transforms import


class OtherCodeError(RuntimeError):
    """This node has other code than the driver."""


@dataclass(frozen=True)
class Code:
    """What a description imports.

    each: digest and file of this package, of the users' modules that the description names, and of those that these
        import, by name.
    values: what its code reads there, as the driver has it.
    imports: what unpickling it imports, in turn.
    watched: data that travels with it, to say what was set since, and that of the script in what two programs differ.
    settings: of libraries, where they are not the defaults.
    """

    each: dict[str, tuple[str, str]]
    values: tuple[ModuleValue, ...] = ()
    imports: tuple[str, ...] = ()
    watched: Watched = field(default_factory=Watched)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def digests(self) -> dict[str, str]:
        """What tells it from other code, wherever it lies."""
        values = {f"{value.module}:{value.name}": value.digest for value in self.values if not value.is_temporary}
        settings = {name: digest(shown(value)) for name, value in self.settings.items()}
        return {name: found for name, (found, _) in self.each.items()} | values | settings

    @property
    def read(self) -> dict[str, str]:
        """The same by the names that people know, with what it reads of the script."""
        script = {".".join(place): value.digest for place, value in self.watched.script.items()}
        return {name.replace(":", "."): found for name, found in self.digests.items()} | script

    @property
    def looks(self) -> dict[str, str]:
        """What is read, for people, by these names."""
        script = {".".join(place): value.look for place, value in self.watched.script.items()}
        settings = {name: shown(value) for name, value in self.settings.items()}
        return {f"{value.module}.{value.name}": value.look for value in self.values if value.digest} | script | settings

    @property
    def nbytes(self) -> int:
        """How much of it grows with what is read."""
        return sum(len(value.pickled) for value in self.values)

    def check(self, host: str) -> None:
        """Give the modules and libraries here the values that they have in the driver.

        Raises: OtherCodeError where a module here, on this host, is another one than in the driver, or a value stays
        another.
        """
        set_library_settings(self.settings)  # before users' modules are imported, and JAX by these
        for name, (wanted, there) in self.each.items():
            here = _find(name)  # what is not here is told of when it is imported, or travels by value
            if here is not None and (found := here.digest) != wanted:
                raise OtherCodeError(
                    f"{name} on node {host} ({here.file}, digest {found}) is other code than "
                    f"in the driver ({there}, digest {wanted}); what it reads could be other data, so nothing is read "
                    "there. Install the same on all nodes, and start the program again after a change"
                )
        for value, why in set_values(self.values, self.imports):
            raise OtherCodeError(
                f"{value.module}.{value.name} is {value.look_here} on node {host}, where {value.module} is imported "
                f"anew, and {value.look} in the driver, and cannot be set there ({why}); what is read there would be "
                "other data, so nothing is. Give it to the transform as an argument or attribute, which travels with "
                "it; an object that is called may say what decides the elements by a method fingerprint() -> str"
            )

    def check_unchanged(self, told: set[str]) -> None:
        """Raise ValueError where this process has set something anew since this was made. What changed inside a table
        or object is told alone, as it may be a cache, and so is a library's setting, which no transform may use; unless
        it is among `told`. Of a large value, at which looking takes long, nothing is.
        """
        changed = [
            (f"{value.module}.{value.name}", value.look, value.look_here, value.may_be_cache)
            for value in self.values
            if value.digest and value.nbytes <= MAX_LOOKED_AT_NBYTES and not value.is_here
        ]
        settings = [(*found, True) for found in changed_settings(self.settings)]
        for name, look, look_here, may_be_cache in [*changed, *self.watched.changed(), *settings]:
            said = (
                f"{name} was {look} when the RaySource was made, and its actors have "
                f"that; it is {look_here} now, with which one process would give other data. Set it before "
                "the RaySource is made, or make another one after every change"
            )
            if not may_be_cache:
                raise ValueError(said)
            if said not in told:
                told.add(said)
                logger.warning(said)


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
    names: Iterable[str],
    values: tuple[ModuleValue, ...] = (),
    imports: tuple[str, ...] = (),
    watched: Watched | None = None,
) -> Code:
    """The code of this package, of the users' modules among these, and of those of users' that they import."""
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
    each = {name: (module.digest, module.file) for name, module in found.items()}
    return Code(each, values, imports, watched or Watched(), library_settings())


def _find(name: str) -> _Module | None:
    """The module of this name, where there is one in Python."""
    file = file_of(name)
    return None if file is None else _Module(name, file, name if is_package(file) else name.rpartition(".")[0])


@functools.cache
def _own_digest(file: str) -> str:
    """Of all of this package: its parts use each other."""
    sha = hashlib.sha256()
    top = Path(file).parent
    for path in sorted(top.rglob("*.py")):
        sha.update(f"{path.relative_to(top).as_posix()}\n".encode() + path.read_bytes())
    return sha.hexdigest()[:16]
