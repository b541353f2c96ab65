"""What the program sets in modules that other processes import anew (`config.SCALE = args.scale`), set there as well.

A function of the script travels with the globals that it reads, one of a module by its name alone. So what such code
reads of users' modules travels beside it, and is set where it is another: plain data, attributes of classes and of
objects, and functions, methods, classes and objects that it calls. Not what the code itself writes to (a cache, a
counter), nor tables of code, which modules fill as they are imported, nor paths that are each process's own: in the
folder that the code lies in, and of temporary files that the import makes.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import pickle
import sys
import tempfile
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from datarax_ray.plan.fingerprint import shown
from datarax_ray.read.identity.code import read_digests
from datarax_ray.read.identity.plain_data import config_of, holds_code, is_data, shortened
from datarax_ray.read.identity.program_folders import folder_of
from datarax_ray.read.identity.reads import read_of_modules
from datarax_ray.read.identity.source_text import PARSING
from datarax_ray.read.identity.users_code import asked, inner, is_users

# A transform that holds more sends it once for all actors of a node; this goes to each, and is kept by the driver.
_MAX_NBYTES = 16 * 2**20
_MISSING = object()


class TooLargeError(Exception):
    """A value takes more than travels so."""


@dataclass(frozen=True)
class ModuleValue:
    """What is read in a module, as the driver has it.

    name: in the module.
    digest: tells it from another value, wherever the module lies; "" for an object of which attributes are read, which
        is set only where there is none.
    exact: the digest of the very same value.
    look: for people.
    pickled: what to set; empty where that cannot be, as `why_not` says.
    nbytes: of it pickled, or more than travels.
    is_temporary: whether it is a path of a temporary file.
    """

    module: str
    name: str
    digest: str
    exact: str
    look: str
    pickled: bytes
    why_not: str
    nbytes: int
    is_temporary: bool

    @property
    def is_here(self) -> bool:
        """Whether this process has the same there."""
        with PARSING:
            value = held_in(self.module, self.name)
            if not self.digest:
                return value is not None and value is not _MISSING
            if value is _MISSING:
                return False
            is_own = self.is_temporary and _is_temporary(value, self.module)
            if is_own and os.fspath(value) not in _text(self.module):
                return True
            found, exact = read_digests(value, self.module)
            return found == self.digest or exact == self.exact

    @property
    def may_be_cache(self) -> bool:
        """Whether what changed may be inside it: of a table, or of an object that looks as it did."""
        value = held_in(self.module, self.name)
        return isinstance(value, Mapping | list | set) or (not is_data(value) and self.look == self.look_here)

    @property
    def look_here(self) -> str:
        value = held_in(self.module, self.name)
        return "missing" if value is _MISSING else shown(shortened(value))

    def set_here(self) -> str:
        """Set it in this process. Returns why that could not be, "" where it could."""
        if not self.pickled:
            return self.why_not
        *path, last = self.name.split(".")
        try:
            owner, value = functools.reduce(getattr, path, imported(self.module)), pickle.loads(self.pickled)
            if value is held_in(self.module, self.name):
                return "it travels by its name, without its defaults and what it holds"
            try:
                setattr(owner, last, value)
                is_taken = isinstance(owner, type | types.ModuleType) or self.is_here
            except Exception:  # a frozen dataclass
                is_taken = False
            if not is_taken:  # absl's FLAGS give nothing where they were not parsed
                object.__setattr__(owner, last, value)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


def module_values(
    roots: Iterable[Any], carried: Iterable[Any], by_value: Collection[str], dumps: Callable[[Any, int], bytes]
) -> tuple[ModuleValue, ...]:
    """What functions and classes read in users' modules, objects before their attributes.

    carried: of those that travel with the globals that they load, as a lambda does.
    by_value: modules that travel so.
    dumps: pickles a value; raises TooLargeError where that takes more than so many bytes.
    """
    found: dict[tuple[str, str], ModuleValue] = {}
    with PARSING:
        names = read_of_modules([root for root in roots if not isinstance(root, types.ModuleType)], carried)
        for module, name in filter(None, map(_place, sorted(names))):
            if module in ("__main__", *by_value) or name.startswith("__") or "<" in name:
                continue
            for part in itertools.accumulate(name.split("."), "{}.{}".format):
                value = held_in(module, part)
                is_read = part == name and (config_of(value) is not None or not holds_code(value))
                is_owner = part != name and not isinstance(value, type | types.ModuleType)
                if value is not _MISSING and (is_read or (is_owner and (module, part) not in found)):
                    digests = read_digests(value, module) if is_read else ("", "")
                    found[module, part] = _value(module, part, value, digests, dumps)
    return tuple(found.values())


@dataclass(frozen=True)
class DataValue:
    """Plain data as it was when it travelled. look: for people. is_table: it may be a cache."""

    digest: str
    look: str
    is_table: bool

    @classmethod
    def of(cls, value: Any, module: str, most: int) -> DataValue | None:
        """None for what is no data, or takes more than so many bytes."""
        with PARSING:
            if not is_data(value) or asked(value, "nbytes", 0) > most or holds_code(value):
                return None
            is_table = isinstance(value, Mapping | list | set)
            return cls(read_digests(value, module)[0], shown(shortened(value)), is_table)


@dataclass(frozen=True)
class CodeValue:
    """A function or class of users' as it was. value: with what is around it. body: of a function its bytecode."""

    value: Any
    body: Any
    digest: str

    @classmethod
    def of(cls, value: Any, module: str) -> CodeValue:
        with PARSING:
            return cls(value, asked(inner(value), "__code__"), read_digests(value, module)[0])

    @property
    def look(self) -> str:
        return f"code of digest {self.digest[:8]}"

    def replaced(self, module: str, name: str) -> CodeValue | None:
        """What does something else and stands there now; None where that is the same, or nothing does."""
        value = held_in(module, name)
        is_same = value is self.value and asked(inner(value), "__code__") == self.body
        if value is _MISSING or is_same:  # whatever it holds by now
            return None
        here = CodeValue.of(value, module)
        return here if here.digest != self.digest else None


def script_places(code: Iterable[Any]) -> list[tuple[str, str]]:
    """Where in users' modules stands what functions and classes read: the module, and the name in it."""
    with PARSING:
        return [*filter(None, map(_place, sorted(read_of_modules(code))))]


def script_values(places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], DataValue]:
    """The data there; of large arrays nothing."""
    found = {place: script_value(*place) for place in places}
    return {place: value for place, value in found.items() if value is not None}


def script_code(places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], CodeValue]:
    """The functions and classes of users' there."""
    found = {(module, name): held_in(module, name) for module, name in places}
    return {
        place: CodeValue.of(value, place[0])
        for place, value in found.items()
        if isinstance(inner(value), types.FunctionType | type) and is_users(inner(value))
    }


def script_value(module: str, name: str, most: int = _MAX_NBYTES) -> DataValue | None:
    """What is there; None for what is no data, or takes more than so many bytes."""
    return DataValue.of(held_in(module, name), module, most)


def set_values(values: Iterable[ModuleValue], imports: Iterable[str]) -> Iterator[tuple[ModuleValue, str]]:
    """Set them in this process. Gives those that are another here and could not be set, and why.

    imports: modules, in turn, one of which may set what another one holds, as it did in the driver.
    """
    values = [*values]
    for name in imports if values else ():
        imported(name)
    values = [value for value in values if imported(value.module) is not None]
    # an object brings its attributes, and one that is called may be the same once what it reads is
    failed = [(value, why) for value in values if not value.is_here and (why := value.set_here())]
    return ((value, why) for value, why in failed if value.digest and not value.is_here)


def imported(module: str) -> Any:
    """The module; None where it cannot be imported: whoever needs it says so."""
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit):
        return None


def _value(
    module: str, name: str, value: Any, digests: tuple[str, str], dumps: Callable[[Any, int], bytes]
) -> ModuleValue:
    pickled, why_not = b"", ""
    nbytes = value.nbytes if isinstance(value, np.ndarray) else 0  # a file that is mapped may be larger than the memory
    try:
        if nbytes <= _MAX_NBYTES:
            pickled = dumps(value, _MAX_NBYTES)
            nbytes = len(pickled)
    except TooLargeError:
        nbytes = _MAX_NBYTES + 1
    except Exception as error:  # a lock, an open file
        why_not = f"{type(error).__name__}: {error}"
    if nbytes > _MAX_NBYTES:
        why_not = f"it takes more than {_MAX_NBYTES >> 20} MiB"
    is_temporary = _is_temporary(value, module)
    return ModuleValue(module, name, *digests, shown(shortened(value)), pickled, why_not, nbytes, is_temporary)


def _place(name: str) -> tuple[str, str] | None:
    """The module that a dotted name begins with, and the name there: an object may have the name of a module."""
    module = name.rpartition(".")[0]
    while module and (module not in sys.modules or held_in(module, name[len(module) + 1 :]) is _MISSING):
        module = module.rpartition(".")[0]
    return (module, name[len(module) + 1 :]) if module else None


def held_in(module: str, name: str) -> Any:
    """What is there, or what stands for nothing."""
    value = imported(module)
    try:
        for part in name.split("."):
            kept = vars(value).get(part) if isinstance(value, type) else None
            value = kept if isinstance(kept, staticmethod | classmethod | property) else getattr(value, part)
    except Exception:  # there is none, or a __getattr__ of the user's raises another error
        return _MISSING
    return value


def _is_temporary(value: Any, module: str) -> bool:
    """Whether it is the path of a temporary file, none of the code, which a job's working_dir has among these."""
    if not isinstance(value, str | os.PathLike):
        return False
    top, folder, path = tempfile.gettempdir() + os.sep, folder_of(module), str(os.fspath(value))
    return path.startswith(top) and not (folder.startswith(top) and f"{path}{os.sep}".startswith(folder + os.sep))


def _text(module: str) -> str:
    try:
        return Path(str(getattr(sys.modules.get(module), "__file__", ""))).read_text()
    except (OSError, ValueError):
        return ""
