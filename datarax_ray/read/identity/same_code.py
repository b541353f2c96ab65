"""Whether a node has the code that the driver has: what other code reads there may be other bytes.

An actor imports this package, and the users' modules that a description names, from its own disk. The driver says what
they are, the actor compares before it answers for the first time. Libraries are not compared, nor what travels by
value, as the functions of a script do.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import datarax_ray
from datarax_ray.read.identity.code import imported_names, source_digest
from datarax_ray.read.identity.referenced_globals import is_users

_OWN = datarax_ray.__name__
_MAX_MODULES = 500  # far more than transforms import


class OtherCodeError(RuntimeError):
    """This node has other code than the driver."""


@dataclass(frozen=True)
class Code:
    """What a description imports. named: the users' modules that it names. each: digest and file of these, of those of
    users' that they import, and of this package, by name.
    """

    named: tuple[str, ...]
    each: dict[str, tuple[str, str]]

    @property
    def digests(self) -> dict[str, str]:
        """What tells it from other code, wherever it lies."""
        return {name: found for name, (found, _) in self.each.items()}

    def check(self, host: str) -> None:
        """Raise OtherCodeError where a module here, on this host, is another one than in the driver. Imports what is
        named.
        """
        for name in self.named:
            with contextlib.suppress(Exception, SystemExit):  # reading imports it again, and tells of that
                importlib.import_module(name)
        for name, (wanted, there) in self.each.items():
            if name in sys.modules and (found := _digest(name)) != wanted:
                raise OtherCodeError(
                    f"{name} on node {host} ({_file(name)}, digest {found}) is other code than "
                    f"in the driver ({there}, digest {wanted}); what it reads could be other data, so nothing is read "
                    "there. Install the same on all nodes, and start the program again after a change"
                )


def code_of(modules: Iterable[str]) -> Code:
    """The code of these modules, of which only users' are compared."""
    named = tuple(sorted(filter(_is_compared, modules)))
    return Code(named, {name: (_digest(name), _file(name)) for name in _imported(named)})


def _imported(named: tuple[str, ...]) -> list[str]:
    """This package, and the users' modules that are imported with these."""
    found, waiting = {_OWN: None}, list(named)
    while waiting and len(found) < _MAX_MODULES:
        name = waiting.pop()
        if name not in found and _is_compared(name):
            found[name] = None
            waiting += imported_names(sys.modules[name])
    return list(found)


def _is_compared(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and name != "__main__" and is_users(module)


def _digest(name: str) -> str:
    return _own_digest() if name == _OWN else source_digest(sys.modules[name])


@functools.cache
def _own_digest() -> str:
    """Of all of this package: its parts use each other."""
    sha = hashlib.sha256()
    top = Path(_file(_OWN)).parent
    for path in sorted(top.rglob("*.py")):
        sha.update(f"{path.relative_to(top).as_posix()}\n".encode() + path.read_bytes())
    return sha.hexdigest()[:16]


def _file(name: str) -> str:
    return str(getattr(sys.modules[name], "__file__", None))
