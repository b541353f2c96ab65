"""A fingerprint of transforms: changes when what they do may have changed, stays when only their place or layout has.

It covers the source of a function (comments and layout apart), its defaults and closure, the attributes of an object,
and the functions, classes and data of the same package that these use (see referenced_globals). It does not look into
libraries: a transform may have `fingerprint() -> str` to say more.
"""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import functools
import hashlib
import inspect
import io
import json
import math
import os
import pickle
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from enum import Enum
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from datarax_ray.plan.fingerprint import APART, digest
from datarax_ray.read.copying import Uncopied
from datarax_ray.read.elements.text_scalars import said
from datarax_ray.read.identity.plain_data import (
    PLACES,
    SETTINGS,
    LongTable,
    bound_to,
    config_of,
    shortened,
    unsaid,
)
from datarax_ray.read.identity.referenced_globals import Filled, Used, lasting, unsaid_of, used_by, wrappers
from datarax_ray.read.identity.sampled_rows import hash_array
from datarax_ray.read.identity.source_text import PARSING, text_digest
from datarax_ray.read.identity.users_code import (
    asked,
    called,
    cells,
    inner,
    is_users,
    kept,
    looking_once,
    module_of,
)

_MAX_NAMES = 20  # names are for people; the digest covers all, and the state stays small
_MAX_NAME = 80  # bytes, as JSON
MAX_HELD = 16  # attributes that are told one by one, to name the one that changed; the digest covers all
_MAX_USED = 8  # likewise, with the others in one digest
_MAX_USED_NAME = 40
_MAX_DEPTH = 6  # attributes of attributes: what lies deeper is told beside these, as earlier releases did not tell it
_PLAIN = frozenset({type(None), bool, int, str})
_OF_PYTHON = frozenset({float, complex, bytes, list, tuple, dict, set, frozenset, slice, range, np.ndarray})
_MAX_BELOW, _MAX_PARTS = 64, 200_000  # further levels, and parts: an end for what makes ever new objects


class LongError(Exception):
    """What is to be told has more parts than were allowed."""


def code_fingerprint(
    transforms: Iterable[Any], as_told: Callable[[Any], Any] = lambda value: value, most: float = math.inf
) -> dict[str, Any]:
    """{"names": [...], "digest": hex}: the first 20 names, and a digest over all transforms; and where there are any:

    wrappers: a digest of the users' functions that functools.wraps puts around others. The digest, which states of
        earlier releases have, is of what is inside these.
    anywhere: the digest, without the folders from which the transforms' modules are imported, where it has these.
    held: of attributes of users' objects, a few digits each, so that the one that changed can be named.
    used: so of what the code reads of objects at module level, and the defaults and closures of what it calls.
    settings, bound, beyond, beneath, decorators, imports: so of what Used says.
    places: so of the paths and times among the settings, of which a warning tells.
    each: so of the transforms, where there are several.
    deep: a digest of what lies deeper in them than the digest goes.
    kinds: one of what is a list, a tuple or a mapping, which the digest takes for one another.
    modules: one of what library each name of a module stands for, for states of earlier releases.
    libraries: the same without the name of the transform's own module, which is __main__ where that is run.
    tables: one of some entries of tables that are too long to be told.
    objects: one of what the digest leaves out of some objects; see unsaid.
    unsaid: one of what neither texts nor these say; see referenced_globals._unsaid.
    unfilled: the same without what classes hold that code puts there; "nothing" for none. Where it is another.
    told: a number, always. Without it there may be more than is told: in a state that has it, there are no wrappers,
        kinds and objects where none is told; from 2 on no unsaid, from 3 on no libraries.

    as_told: what stands for an object at module level. most: parts that are told, an array for each KiB of it. Raises:
    LongError where there are more.
    """
    transforms = tuple(transforms)
    names = [_label(transform) for transform in transforms]
    if len(names) > _MAX_NAMES:
        names = [*names[:_MAX_NAMES], f"and {len(names) - _MAX_NAMES} more"]
    with PARSING, looking_once():
        telling = _Telling(as_told, most)
        telling.apart = {key: _Through(as_told, most) for key in APART}
        telling.apart["beyond"].apart |= {key: each for key, each in telling.apart.items() if key != "beyond"}
        try:
            values = [telling.value(transform, 0) for transform in transforms]
        except RecursionError as error:
            raise ValueError(
                f"what {', '.join(names)} read and hold leads on without end, as through the code of a library that "
                "lies in a folder of its own; give the transform a fingerprint() -> str that says what it does, or "
                "install the library"
            ) from error
        found = {"names": names, "digest": digest(values)}
        modules = {module_of(inner(each)) or module_of(type(each)) for each in transforms}
        parts: dict[str, str] = {}
        for index, transform in enumerate(transforms):
            if is_users(type(transform)) and not callable(getattr(transform, "fingerprint", None)):
                saved = next((part for part in _state(transform) if isinstance(part, dict)), {})
                parts |= held(index, transform, {name: digest(telling.value(part, 1)) for name, part in saved.items()})
        anywhere = _anywhere(values, *modules)
        unsaid, unfilled = telling.unsaid()
        more = {
            "told": 3,
            "anywhere": digest(anywhere) if anywhere != _anywhere(values) else "",
            "wrappers": telling.around and digest(telling.around),
            "held": dict(islice(parts.items(), MAX_HELD)),
            "used": _few(telling.used),
            "settings": _few(telling.settings),
            "places": _few(telling.places),
            "bound": _few(telling.bound),
            **{key: apart.found() for key, apart in telling.apart.items()},
            "imports": _few(telling.imports),
            "each": [digest(value)[:4] for value in values[:_MAX_NAMES]] if len(values) > 1 else [],
            "deep": telling.deep,
            "kinds": telling.kinds.digest,
            "modules": telling.modules and digest(telling.modules),
            "libraries": telling.libraries and digest(sorted(telling.libraries)),
            "tables": telling.tables and digest(telling.tables),
            "objects": telling.objects and digest(telling.objects),
            "unsaid": unsaid,
            "unfilled": (unfilled or "nothing") if unfilled != unsaid else "",
        }
        return found | {name: value for name, value in more.items() if value}


def _few(digests: Mapping[str, str]) -> dict[str, str]:
    """A few digits for each of the first, by a name for people, and one digest of the others."""
    found: dict[str, str] = {}
    rest = sorted(digests.items())
    while rest and len(found) < _MAX_USED:
        name, each = rest.pop(0)
        label = name.encode("ascii", "replace").decode()[-_MAX_USED_NAME:]
        found[label] = digest([found.get(label), each])[:4]
    return found | ({"others": digest(rest)} if rest else {})


def held(index: int, code: Any, digests: Mapping[str, str]) -> dict[str, str]:
    """A few digits for each attribute of an object, by a name for people. index: of the object among its like."""
    return {f"{index} {type(code).__name__}.{name}"[:_MAX_NAME]: found[:4] for name, found in digests.items()}


def value_digest(value: Any) -> str:
    """A digest of data: plain values, arrays and containers by what they hold, objects by their class and state."""
    with PARSING:
        return digest(_Telling().value(value, 0))


def data_digest(rows: list[Any]) -> str:
    """As value_digest, of all rows, with what is told beside their values; "" where these are long."""
    telling = _Telling(most=_MAX_PARTS)
    with PARSING, contextlib.suppress(LongError, RecursionError):
        told = telling.value(rows, 0)
        return digest([told, telling.bound, telling.kinds.digest, telling.objects, telling.deep])
    return ""


def read_digests(value: Any, module: str) -> tuple[str, str]:
    """Digests of what code reads in a module: of data as value_digest, of a function or class its text.

    The first is the same wherever the module lies: in paths the folder from which it is imported does not count. The
    second is the same where the value is, though it names the folder of another host.
    """
    with PARSING:
        found: Any = inner(value)
        if isinstance(value, staticmethod | classmethod | property):
            functions = map(inspect.unwrap, called(value))
            told = [type(value).__name__, [[text_digest(each), _told(kept(each))] for each in functions]]
        elif inspect.isclass(found) or inspect.isfunction(found):
            around = [text_digest(wrapper) for wrapper in wrappers(value)] if value is not found else []
            held = kept(found) if inspect.isfunction(found) else {}
            held = {name: each for name, each in held.items() if not isinstance(each, io.IOBase)}  # file=sys.stderr
            # of functions that it holds the text alone, too: what these read is told by itself
            of_held = [[name, text_digest(each) if inspect.isfunction(each) else each] for name, each in held.items()]
            told = [text_digest(found), around, _told(of_held)]
        elif (config := config_of(value)) is not None:
            told = [type(value).__qualname__, _told(config)]
        elif shortened(value) is not value:
            told = [type(value).__qualname__, _in_full(value)]
        else:
            told = _told(lasting(value, None))
    return digest(_anywhere(told, module)), digest(told)


def _told(value: Any) -> Any:
    telling = _Telling()
    return [telling.value(value, 0), telling.deep]


def _in_full(table: Any) -> str:
    """A digest of all of a long table, unlike in a fingerprint; without an object for each part of it, mostly."""
    parts = dict(table) if isinstance(table, dict) else sorted(table, key=repr) if isinstance(table, Set) else table
    with contextlib.suppress(Exception):  # of what no pickle takes, as a lambda inside
        if not _holds_sets(parts):
            hashing = _Hashing()
            pickle.Pickler(hashing).dump(parts)
            return hashing.found.hexdigest()
    return digest(_Telling().value(table, 0))


class _Hashing:
    """A file of which the digest alone is kept: a table may take most of the memory."""

    def __init__(self) -> None:
        self.found = hashlib.sha256()

    def write(self, data: Any) -> None:
        self.found.update(data)


def _holds_sets(table: Any) -> bool:
    """Whether there are sets in it, which are pickled in another order by every process."""
    for parts in (table.keys(), table.values()) if isinstance(table, Mapping) else (table,):
        kinds = set(map(type, parts))
        if any(issubclass(kind, Set) for kind in kinds):
            return True
        tables = tuple(kind for kind in kinds if issubclass(kind, Mapping | list | tuple))
        if tables and any(isinstance(part, tables) and _holds_sets(part) for part in parts):
            return True
    return False


def _anywhere(told: Any, *modules: str) -> str:
    """The JSON of a plain value, the same wherever these modules lie: without the folders from which they are
    imported.
    """
    text = json.dumps(told, sort_keys=True)
    for folder in sorted(set(map(folder_of, modules)) - {""}, key=len, reverse=True):
        text = text.replace(json.dumps(folder)[1:-1], "")
    return text


def folder_of(module: str) -> str:
    """The folder from which a module is imported; "" for none, or the root."""
    file = asked(sys.modules.get(module), "__file__")
    if file is None:
        return ""
    depth, parents = module.count(".") + (Path(file).stem == "__init__"), Path(file).absolute().parents
    folder = parents[min(depth, len(parents) - 1)]
    return "" if folder == folder.parent else str(folder)


def _label(transform: Any) -> str:
    name = (getattr(transform, "__qualname__", None) or type(transform).__qualname__)[:_MAX_NAME]
    while len(json.dumps(name)) > _MAX_NAME:  # a character may take six bytes there
        name = name[:-1]
    return name


class _Kinds:
    """A digest of what kinds of containers were told, in their order; "" for lists alone."""

    def __init__(self) -> None:
        self.found = bytearray()
        self.are_left_out = False
        self._ours: dict[int, Any] = {}  # held, so that no other object gets the address

    def ours(self, value: Any) -> Any:
        """The same container, which is of one kind wherever it is told: of a function's defaults, say."""
        self._ours[id(value)] = value
        return value

    def add(self, value: Any) -> None:
        if not self.are_left_out and id(value) not in self._ours:
            self.found += b"m" if isinstance(value, Mapping) else b"t" if isinstance(value, tuple) else b"l"

    def add_all(self, found: bytes) -> None:
        """Those of containers that were told before."""
        self.found += found

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        before, self.are_left_out = self.are_left_out, True
        try:
            yield
        finally:
            self.are_left_out = before

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.found).hexdigest()[:16] if self.found.strip(b"l") else ""


class _Telling:
    """Plain values for what is told, and what was found on the way, around functions and beside them; each once."""

    def __init__(self, as_told: Callable[[Any], Any] = lambda value: value, most: float = math.inf) -> None:
        self._as_told = as_told
        self._left = most
        self.around: list[Any] = []
        self.used: dict[str, str] = {}  # a digest of what is read beside code and its own data, by name
        self.settings: dict[str, str] = {}  # likewise
        self.places: dict[str, str] = {}  # likewise
        self.bound: dict[str, str] = {}  # likewise
        self.imports: dict[str, str] = {}  # of what is imported late, by module
        self.modules: dict[str, str] = {}  # of libraries, by the names that stand for them
        self.libraries: set[tuple[str, str]] = set()  # likewise, without the module that has the code
        self.kinds = _Kinds()
        self.tables: list[str] = []
        self.objects: list[str] = []  # what is told beside the values of some, see unsaid
        self._unsaid: dict[str, Any] = {}  # what is told by itself in the end, see unsaid
        self._seen: set[types.CodeType] = set()
        self._classes: dict[type, Any] = {}  # a list may hold thousands of one
        self._used: dict[int, tuple[Any, Used]] = {}  # of each function and class; held, likewise
        self._under_way: set[str] = set()  # tables at module level, by name: their own functions may read them
        self._tables: dict[Any, tuple[Any, bytes, float]] = {}  # what stands for one, its kinds and number of parts
        self._num_again = 0  # how often one was met that is under way
        self._arrays: dict[int, tuple[Any, str]] = {}  # each looked at once; held, so that no other gets its address
        self._below: _Below | None = None
        self.apart: dict[str, _Through] = {}  # take what Used says under these names; without them it is not told
        self._deep: list[str] = []

    @property
    def deep(self) -> str:
        """A digest of what lies deeper than `value` goes, and of what that uses; "" for nothing."""
        if self._below is None:
            return ""
        below = self._below
        late = [below.imports] if below.imports else []
        return digest([self._deep, below.around, below.used, below.settings, below.bound, *late])

    def unsaid(self) -> tuple[str, str]:
        """Digests of what is told of by itself, and of what that uses in turn; "" for nothing. The second without what
        classes hold that code puts there, as at its first use.
        """
        whole, has_filled = self._told_apart(with_filled=True)
        return whole, self._told_apart(with_filled=False)[0] if has_filled else whole

    def _told_apart(self, *, with_filled: bool) -> tuple[str, bool]:
        """A digest, and whether any of it is filled."""
        apart, found, has_filled = _Apart(self._as_told, self._left), dict[str, str](), False
        waiting = self._unsaid | (self._below._unsaid if self._below else {})
        while waiting:
            value = waiting.pop(name := min(waiting))  # what is in a set has another order in every process
            if isinstance(value, Filled):
                has_filled, value = True, value.kind
                if not with_filled:
                    continue
            if name not in found:
                found[name] = text_digest(value) if inspect.isfunction(value) else digest(apart._setting(value))
                waiting |= apart._unsaid
                apart._unsaid = {}
        told = digest([sorted(found.items()), apart.bound, apart.tables]) if found else ""
        return told, has_filled

    def value(self, value: Any, depth: int) -> Any:
        """A plain value that stands for this one."""
        if type(value) in _PLAIN:
            return value
        if depth <= _MAX_DEPTH and type(value) not in _OF_PYTHON:
            self._tell_unsaid(value, depth)
        if isinstance(value, bool | int | str):
            return value
        if isinstance(value, float | complex | bytes | np.dtype | slice | range):
            return said(value)
        self._left -= 1 + asked(value, "nbytes", 0) // 1024 if isinstance(value, np.ndarray) else 1
        if self._left < 0:
            raise LongError
        if depth > _MAX_DEPTH:
            if self._below is None:
                self._below = _Below(self._as_told, self._left)
                self._below.modules, self._below.libraries = self.modules, self.libraries
                self._below.tables, self._below.objects = self.tables, self.objects
                self._below.apart = self.apart
            self._deep.append(self._below.value(value, 1))
            return type(value).__qualname__
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, np.ndarray | np.generic) and value.dtype.hasobject:  # whose bytes are addresses
            return [str(value.dtype), list(value.shape), self.value(value.tolist(), depth + 1)]
        if isinstance(value, np.ndarray | np.generic):
            if id(value) not in self._arrays:
                self._arrays[id(value)] = value, hash_array(value)[:16]
            return [str(value.dtype), list(value.shape), self._arrays[id(value)][1]]
        if isinstance(value, Mapping | list | tuple | set | frozenset) and is_users(type(value)):
            self._look_at_class(type(value))  # a dict with a __missing__, say
        if isinstance(value, Mapping | tuple | list):
            self.kinds.add(value)
        if isinstance(value, LongTable):
            self.tables.append(value_digest(value.some))
        if isinstance(value, Mapping):
            return [[self.value(k, depth + 1), self.value(v, depth + 1)] for k, v in value.items()]
        if isinstance(value, list | tuple):
            return [self.value(v, depth + 1) for v in value]
        if isinstance(value, set | frozenset):
            codes = (item for item in value if isinstance(item, type | re.Pattern))  # repr says their names, cut
            self._unsaid |= {f"{{{_label(item)}}} {said(item)}": item for item in codes}
            with self.kinds.left_out():  # another order in every process
                return sorted(self._item(item, depth + 1) for item in sorted(value, key=_place))
        if not inspect.isclass(value) and callable(asked(value, "__array__")) and asked(value, "shape") is not None:
            # of other libraries: jax, torch. One on a device, one that is trained and a key of JAX are told as objects.
            with contextlib.suppress(Exception):
                return self.value(np.asarray(value), depth)
        return self._code(value, depth)

    def _tell_unsaid(self, value: Any, depth: int) -> None:
        if self.kinds.are_left_out or not (parts := unsaid(value)):
            return
        if is_users(type(value)) and isinstance(value, str | int | float | bytes):
            self._look_at_class(type(value))
        kinds, self.kinds = self.kinds, _Kinds()  # of these earlier releases told none
        try:
            self.objects.append(digest([self.value(part, depth + 1) for part in parts]))
        finally:
            self.kinds = kinds

    def _item(self, value: Any, depth: int) -> str:
        """Of a set, whose order is another in every process: by repr, as long as that says no address and no order."""
        text = said(value)
        is_other = (" at 0x" in text or "frozenset(" in text) and not isinstance(value, str | bytes)
        return digest(self.value(value, depth)) if is_other else text

    def _code(self, value: Any, depth: int) -> Any:
        if not inspect.isclass(value) and callable(asked(value, "fingerprint")):
            return [type(value).__qualname__, str(value.fingerprint())]
        if isinstance(value, functools.partial):
            ours = self.kinds.ours
            return [self.value(v, depth + 1) for v in (value.func, ours(value.args), ours(value.keywords))]
        if isinstance(value, types.MethodType):
            return [self.value(value.__func__, depth + 1), self.value(value.__self__, depth + 1)]
        if isinstance(value, types.FunctionType):
            self._look_around(value)
            ours = self.kinds.ours
            closure = ours(cells(value))
            defaults = ours([ours(value.__defaults__), ours(value.__kwdefaults__)])
            return [
                text_digest(value),
                self.value(closure, depth + 1),
                self.value(defaults, depth + 1),
                self._reached(value),
            ]
        if inspect.isclass(value):
            if value not in self._classes:
                num_again = self._num_again
                # This package's own classes keep what they do from release to release; their text may change.
                own = value.__module__.startswith("datarax_ray.")
                bases = [] if own else _own_bases(value)
                for base in bases:
                    self._look_around(base)
                told = [value.__qualname__, *map(text_digest, bases), *map(self._reached, bases)]
                if self._num_again > num_again:
                    return told  # elsewhere what is under way is another
                self._classes[value] = told
            return self._classes[value]
        if asked(value, "__wrapped__") is not None:  # functools.wraps, functools.cache, jax.jit
            return [type(value).__qualname__, self.value(value.__wrapped__, depth + 1)]
        if (owner := bound_to(value)) is not None:
            name = f"{type(owner).__name__}.{value.__name__}"
            self.bound[name] = digest([self.bound.get(name), self._setting(shortened(owner))])
        if asked(value, "__name__") is not None:  # builtins, ufuncs, modules
            return [type(value).__qualname__, value.__name__]
        parts = list(map(self.kinds.ours, _state(value)))
        return [self.value(type(value), depth + 1), *(self.value(part, depth + 1) for part in parts)]

    def _reached(self, code: Any) -> Any:
        """What a function or class uses: of code the source, as what that uses stands in the list too."""
        found: list[Any] = []
        if id(code) not in self._used:
            self._used[id(code)] = code, used_by(code)
        used = self._used[id(code)][1]
        for name, value in used.reached:
            if inspect.isclass(value) or inspect.isfunction(value):
                found.append([name, text_digest(value)])
            else:
                found.append([name, self._table(name, value)])
        for name, value in used.beside:
            if name not in self.used:
                self.used[name] = ""  # what a closure holds may use the same again
                self.used[name] = digest(self.value(lasting(self._as_told(value)), 1))
        for name, value in used.settings:
            for part, each in {name: value, **_places_in(name, value)}.items():
                into = self.places if isinstance(each, PLACES) else self.settings
                if part not in self.used and part not in into:
                    into[part] = ""  # as above
                    into[part] = digest(_anywhere(self._setting(each), part.partition(".")[0]))
        for name, value in used.bound:
            if not any(name in told for told in (self.used, self.settings, self.places, self.bound)):
                into = self.places if isinstance(value, PLACES) else self.bound
                into[name] = ""  # as above
                said = text_digest(value) if isinstance(value, types.FunctionType | type) else self._setting(value)
                into[name] = digest(_anywhere(said, name.partition(".")[0]))
        for key, apart in self.apart.items():
            for name, value in getattr(used, key):
                if not any(name in told for told in (self.used, self.settings, self.places, self.bound)):
                    apart.tell(name, value)
        self.modules |= dict(used.modules)
        self.libraries |= {(name.removeprefix(f"{code.__module__}."), library) for name, library in used.modules}
        self._unsaid |= used.unsaid
        for name, each in used.imports:
            self.imports[name] = digest([self.imports.get(name), each])
        return found

    def _table(self, name: str, value: Any) -> Any:
        """What stands for a value at module level, of which functions in it may read it again, or other tables: it is
        looked at again until that tells nothing new, and then known for what is under way.
        """
        if name in self._under_way:
            self._num_again += 1
            return "under way"
        key = name, frozenset(self._under_way), self.kinds.are_left_out
        if key in self._tables:
            told, kinds, parts = self._tables[key]
            self.kinds.add_all(kinds)
            self._left -= parts
            return told
        num_again, before, num_kinds, left = self._num_again, self._told_beside(), len(self.kinds.found), self._left
        self._under_way.add(name)
        told = self.value(value, 1)
        self._under_way.remove(name)
        if is_cyclic := self._num_again > num_again:
            told = digest(told)  # written out, tables of which each reads all would have no end either
        if is_cyclic or self._told_beside() == before:
            self._tables[key] = told, bytes(self.kinds.found[num_kinds:]), left - self._left
        return told

    def _told_beside(self) -> list[Any]:
        """What is another one after something was told that is told once."""
        lists = (self.around, self.used, self.settings, self.places, self.tables, self.objects, self._deep)
        return [*map(len, (*lists, self._classes, self._seen)), {**self.bound}, {**self.imports}]

    def _setting(self, value: Any) -> Any:
        """A plain value for one, the same with every release of Python."""
        kind = type(value).__qualname__
        if isinstance(value, re.Pattern):
            return [kind, self.value(value.pattern, 1), value.flags]
        if isinstance(value, Enum):
            return [kind, value.name, self.value(value.value, 1)]
        if isinstance(value, PurePath):
            return os.fspath(value)
        if dataclasses.is_dataclass(value):
            parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
            return [kind, [[n, self.value(part, 1)] for n, part in parts.items() if not isinstance(part, PLACES)]]
        return [kind, repr(value)] if isinstance(value, SETTINGS) else self.value(value, 1)

    def _look_at_class(self, kind: type) -> None:
        """Tell the code of a container's class beside it: earlier releases told what it holds, alone."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name not in self.bound:
            self.bound[name] = ""  # what it uses may hold one again
            self.bound[name] = digest(self.value(kind, 1))

    def _look_around(self, code: Any) -> None:
        for wrapper in wrappers(code):
            if wrapper.__code__ not in self._seen:
                self._seen.add(wrapper.__code__)
                self.around.append([text_digest(wrapper), self._reached(wrapper)])
                self._look_around(wrapper)


class _Through(_Telling):
    """Tells some of what code reaches, and what that uses, apart from all else: earlier releases told nothing of it,
    and what they told must stay the same.
    """

    def __init__(self, as_told: Callable[[Any], Any], most: float) -> None:
        super().__init__(as_told, most)
        self.apart = dict.fromkeys(APART, self)
        self._own: dict[str, str] = {}

    def tell(self, name: str, value: Any) -> None:
        """Once, by name."""
        if name not in self._own:
            self._own[name] = ""  # what it uses may use it again
            is_code = isinstance(value, types.FunctionType | type)
            told = self.value(value, 1) if is_code else self._setting(lasting(self._as_told(value)))
            self._own[name] = digest(_anywhere(told, name.partition(".")[0]))

    def found(self) -> dict[str, str]:
        """A few digits for each, and for what they use; nothing where there is none."""
        if not self._own:
            return {}
        beside = [self.around, self.used, self.settings, self.bound, self.imports, sorted(self.libraries)]
        told = [self.kinds.digest, self.tables, self.objects, self.deep, self.unsaid()[1]]
        return _few(self._own) | {"what these use": digest([beside, told])[:4]}


class _Below(_Telling):
    """Tells each part of a value by a digest, and each object once: to any depth, and where it holds itself."""

    def __init__(self, as_told: Callable[[Any], Any], most: float) -> None:
        super().__init__(as_told, most)
        self._found: dict[int, tuple[Any, str]] = {}  # held, so that no other object gets the address
        self._level = 0

    def value(self, value: Any, depth: int) -> Any:
        if depth == 0 or value is None or isinstance(value, bool | int | float | str):
            return super().value(value, 0)
        if isinstance(value, Uncopied):  # a source that it looks up in, and not how far that has read
            name, describe = type(value).__qualname__, asked(value, "describe")
            return digest([name, describe().settings()]) if callable(describe) else name
        if id(value) not in self._found:
            if self._level > _MAX_BELOW or len(self._found) >= _MAX_PARTS:
                return "deeper"
            self._found[id(value)] = value, "itself"
            self._level += 1
            self._found[id(value)] = value, digest(super().value(value, 0))
            self._level -= 1
        return self._found[id(value)][1]


class _Apart(_Below):
    """Tells code by its text, and what it uses, which lies anywhere, as `_unsaid`: once."""

    def __init__(self, as_told: Callable[[Any], Any], most: float) -> None:
        super().__init__(as_told, most)
        self._known: dict[str, Any] = {}

    def _reached(self, code: Any) -> Any:
        self._unsaid |= unsaid_of(code, self._known)
        return []


def _places_in(name: str, value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are told apart from the others, by name."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    parts = {f"{name}.{field.name}": getattr(value, field.name) for field in fields}
    return {part: each for part, each in parts.items() if isinstance(each, PLACES)}


def _place(item: Any) -> tuple[str, str]:
    """Where the code of what is in a set stands: an order that is the same everywhere, for what is told beside it."""
    while isinstance(item, functools.partial):
        item = item.func
    code = item if isinstance(inner(item), types.FunctionType | type) else type(item)
    return module_of(code), str(asked(code, "__qualname__"))


def _own_bases(cls: type) -> list[type]:
    """The class and those that it inherits from in its own package: a library's may change with its release."""
    package = cls.__module__.partition(".")[0]
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] == package]


def _state(value: Any) -> list[Any]:
    """What pickle would save of an object beside its class: for a pattern, a deque or a Decimal that is all of it."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        saved = reduce(value) if reduce else value.__reduce_ex__(2)
    except Exception:
        # A lock, an open file: nothing in it is a setting. What refuses by its own code still has its attributes.
        own = (getattr(type(value), name, None) for name in ("__getstate__", "__reduce__", "__reduce_ex__"))
        return [dict(vars(value))] if any(map(inspect.isfunction, own)) and hasattr(value, "__dict__") else []
    if isinstance(saved, str):
        return [saved]
    _, arguments, *rest = saved
    if isinstance(own := asked(value, "__dict__"), dict) and "_pytree__state" in own and rest and rest[0] is not None:
        rest[0] = dict(sorted(own.items()))  # nnx.jit gives modules their attributes back in that order
    if rest and isinstance(rest[0], dict):  # without addresses of what it holds, as scikit-learn's vectorizers have
        ids = {*map(id, rest[0].values())}
        if any(type(part) is int and part in ids for part in rest[0].values()):
            rest[0] = {name: part for name, part in rest[0].items() if type(part) is not int or part not in ids}
    if isinstance(value, io.BytesIO | io.StringIO) and rest[0] is not None:
        # its __dict__ is made as it is looked for
        rest[0] = tuple(part or None if isinstance(part, dict) else part for part in rest[0])
    return [[a for a in arguments if a is not type(value)], *(list(r) if isinstance(r, Iterator) else r for r in rest)]
