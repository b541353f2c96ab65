"""Telling: plain values that stand for objects and code, from which digests are made.

What a release tells of a value every later one tells as well, to the letter: states are compared by it. What it did not
tell is told beside that. Only under source_text.PARSING.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np

from datarax_ray.plan.fingerprint import APART, digest
from datarax_ray.read.copying import Uncopied
from datarax_ray.read.elements.text_scalars import said
from datarax_ray.read.identity.digests import Kinds, few, label_of, without_folders
from datarax_ray.read.identity.loads import wrappers
from datarax_ray.read.identity.own_methods import lasting
from datarax_ray.read.identity.plain_data import (
    PLACES,
    SETTINGS,
    LongTable,
    bound_to,
    is_of_process,
    shortened,
    state_of,
    tensor_bytes,
    unsaid,
)
from datarax_ray.read.identity.program_folders import ProgramFolders
from datarax_ray.read.identity.referenced_globals import Used, used_by
from datarax_ray.read.identity.sampled_rows import hash_array
from datarax_ray.read.identity.source_text import text_digest
from datarax_ray.read.identity.told_loads import held_around, told_of
from datarax_ray.read.identity.unsaid_code import Filled, unsaid_of
from datarax_ray.read.identity.users_code import asked, cells, inner, is_users, module_of

_MAX_DEPTH = 6  # attributes of attributes: what lies deeper is told beside these, as earlier releases did not tell it
_MAX_TEXTS = 100_000  # of an array, that may name a folder of the program: some 30 ms
_PLAIN = frozenset({type(None), bool, int})
_OF_PYTHON = frozenset({float, complex, bytes, list, tuple, dict, set, frozenset, slice, range, np.ndarray})
_MAX_BELOW, MAX_PARTS = 64, 200_000  # further levels, and parts: an end for what makes ever new objects


class LongError(Exception):
    """What is to be told has more parts than were allowed."""


class Telling:
    """Plain values for what is told, and what was found on the way, around functions and beside them; each once."""

    def __init__(
        self,
        as_told: Callable[[Any], Any] = lambda value: value,
        most: float = math.inf,
        folders: ProgramFolders | None = None,
    ) -> None:
        self._as_told = as_told
        self._left = most
        self._folders = folders
        self.by_themselves: dict[str, str] = {}  # a digest of what is told by itself in the end, by name; see unsaid
        self.reached: dict[str, str] = {}  # two digits for each of what code reads of its own package, by name
        self.of_process: set[str] = set()  # the names of what another process has another value of
        self.around: list[Any] = []
        self.used: dict[str, str] = {}  # a digest of what is read beside code and its own data, by name
        self.settings: dict[str, str] = {}  # likewise
        self.places: dict[str, str] = {}  # likewise
        self.bound: dict[str, str] = {}  # likewise
        self.imports: dict[str, str] = {}  # of what is imported late, by module
        self.modules: dict[str, str] = {}  # of libraries, by the names that stand for them
        self.libraries: set[tuple[str, str]] = set()  # likewise, without the module that has the code
        self.kinds = Kinds()
        self.tables: list[str] = []
        self.objects: list[str] = []  # what is told beside the values of some, see unsaid
        self._unsaid: dict[str, Any] = {}  # what is told by itself in the end, see unsaid
        self._seen: set[types.CodeType] = set()
        self._classes: dict[type, Any] = {}  # a list may hold thousands of one
        self._used: dict[int, tuple[Any, Used]] = {}  # of each function and class; held, likewise
        self._under_way: set[str] = set()  # tables at module level, by name: their own functions may read them
        self._tables: dict[Any, tuple[Any, bytes, float]] = {}  # what stands for one, its kinds and number of parts
        self._depth_reached = 0  # see _reaching
        self._num_again = 0  # how often one was met that is under way
        self._arrays: dict[
            int, tuple[Any, list[Any]]
        ] = {}  # each looked at once; held, so that no other gets its address
        self._below: _Below | None = None
        self.apart: dict[str, Through] = {}  # take what Used says under these names; without them it is not told
        self._deep: list[str] = []

    @property
    def manner(self) -> tuple[Callable[[Any], Any], float, ProgramFolders | None]:
        """What another one is made with that tells a part of it."""
        return self._as_told, self._left, self._folders

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
        whole, self.by_themselves, has_filled = self._told_apart(with_filled=True)
        return whole, self._told_apart(with_filled=False)[0] if has_filled else whole

    def _told_apart(self, *, with_filled: bool) -> tuple[str, dict[str, str], bool]:
        """A digest, with those that it is of by name, and whether any of it is filled."""
        apart, found, has_filled = _Apart(*self.manner), dict[str, str](), False
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
        return told, found, has_filled

    def value(self, value: Any, depth: int) -> Any:
        """A plain value that stands for this one."""
        if type(value) is str:
            return self._text(value)
        if type(value) in _PLAIN:
            return value
        if depth <= _MAX_DEPTH and type(value) not in _OF_PYTHON:
            self._tell_unsaid(value, depth)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bool | int):
            return value
        if isinstance(value, bytes):
            return self._text(said(value))
        if isinstance(value, float | complex | np.dtype | slice | range):
            return said(value)
        self._left -= 1 + asked(value, "nbytes", 0) // 1024 if isinstance(value, np.ndarray) else 1
        if self._left < 0:
            raise LongError
        if depth > _MAX_DEPTH:
            if self._below is None:
                self._below = _Below(*self.manner)
                self._below.modules, self._below.libraries = self.modules, self.libraries
                self._below.tables, self._below.objects = self.tables, self.objects
                self._below.apart = self.apart
            self._deep.append(self._below.value(value, 1))
            return type(value).__qualname__
        if isinstance(value, os.PathLike):
            return self.value(os.fspath(value), depth)
        if isinstance(value, np.ndarray | np.generic) and value.dtype.hasobject:  # whose bytes are addresses
            return [str(value.dtype), list(value.shape), self.value(value.tolist(), depth + 1)]
        if isinstance(value, np.ndarray | np.generic):
            if id(value) not in self._arrays:
                told = value if value.dtype.kind != "U" or self._folders is None else self._texts(value)
                self._arrays[id(value)] = value, [str(told.dtype), list(value.shape), hash_array(told)[:16]]
            return self._arrays[id(value)][1]
        if isinstance(value, Mapping | list | tuple | set | frozenset) and is_users(type(value)):
            self._look_at_class(type(value))  # a dict with a __missing__, say
        if isinstance(value, Mapping | tuple | list):
            self.kinds.add(value)
        if isinstance(value, LongTable):
            self.tables.append(digest(Telling(folders=self._folders).value(value.some, 0)))
        if isinstance(value, Mapping):
            return [[self.value(k, depth + 1), self.value(v, depth + 1)] for k, v in value.items()]
        if isinstance(value, list | tuple):
            return [self.value(v, depth + 1) for v in value]
        if isinstance(value, set | frozenset):
            codes = (item for item in value if isinstance(item, type | re.Pattern))  # repr says their names, cut
            self._unsaid |= {f"{{{label_of(item)}}} {said(item)}": item for item in codes}
            with self.kinds.left_out():  # another order in every process
                return sorted(self._item(item, depth + 1) for item in sorted(value, key=_place))
        is_parameter = type(value).__name__ == "Parameter"  # as an object, as earlier releases
        if not is_parameter and (held := tensor_bytes(value)) is not None:
            return self.value(held, depth)
        if not inspect.isclass(value) and callable(asked(value, "__array__")) and asked(value, "shape") is not None:
            # of other libraries: jax, torch. One on a device, one that is trained and a key of JAX are told as objects.
            with contextlib.suppress(Exception):
                return self.value(np.asarray(value), depth)
        return self._code(value, depth)

    def _text(self, text: str) -> str:
        return self._folders.told(text) if self._folders else text

    def _texts(self, texts: np.ndarray | np.generic) -> Any:
        """An array of texts, where none is told otherwise the very same: its bytes are hashed."""
        if texts.size > _MAX_TEXTS:
            return texts
        before = texts.reshape(-1).tolist()
        now = [self._text(text) for text in before]
        return texts if now == before else np.array(now).reshape(texts.shape)

    def _tell_unsaid(self, value: Any, depth: int) -> None:
        if self.kinds.are_left_out or not (parts := unsaid(value)):
            return
        if is_users(type(value)) and isinstance(value, str | int | float | bytes):
            self._look_at_class(type(value))
        kinds, self.kinds = self.kinds, Kinds()  # of these earlier releases told none
        try:
            self.objects.append(digest([self.value(part, depth + 1) for part in parts]))
        finally:
            self.kinds = kinds

    def _item(self, value: Any, depth: int) -> str:
        """Of a set, whose order is another in every process: by repr, as long as that says no address and no order."""
        text = self._text(said(value))
        is_other = (" at 0x" in text or "frozenset(" in text) and not isinstance(value, str | bytes)
        return digest(self.value(value, depth)) if is_other else text

    def _code(self, value: Any, depth: int) -> Any:
        if not inspect.isclass(value) and callable(asked(value, "fingerprint")):
            return [type(value).__qualname__, self._text(str(value.fingerprint()))]
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
            self._look_at_object(value)
            return [type(value).__qualname__, self.value(value.__wrapped__, depth + 1)]
        if (owner := bound_to(value)) is not None:
            name = f"{type(owner).__name__}.{value.__name__}"
            self.bound[name] = digest([self.bound.get(name), self._setting(shortened(owner))])
        if asked(value, "__name__") is not None:  # builtins, ufuncs, modules
            self._look_at_object(value)
            return [type(value).__qualname__, value.__name__]
        parts = list(map(self.kinds.ours, state_of(value)))
        return [self.value(type(value), depth + 1), *(self.value(part, depth + 1) for part in parts)]

    def _reached(self, code: Any) -> Any:
        """What a function or class uses: of code the source, as what that uses stands in the list too."""
        with self._reaching():
            return self._used_by(code)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """While what code reads is told, and not what transforms are and hold."""
        self._depth_reached += 1
        try:
            yield
        finally:
            self._depth_reached -= 1

    def _used_by(self, code: Any) -> Any:
        found: list[Any] = []
        if id(code) not in self._used:
            self._used[id(code)] = code, used_by(code)
        used = self._used[id(code)][1]
        plain = (*used.reached, *used.beside, *used.bound, *used.parts)
        self.of_process |= {name for name, value in plain if is_of_process(name, value)}
        for name, value in used.reached:
            if inspect.isclass(value) or inspect.isfunction(value):
                found.append([name, text_digest(value)])
            else:
                found.append([name, self._table(name, value)])
            self.reached[name] = digest(found[-1])[:2]
        for name, value in used.beside:
            if name not in self.used:
                self.used[name] = ""  # what a closure holds may use the same again
                self.used[name] = digest(self.value(lasting(self._as_told(value)), 1))
        for name, value in used.settings:
            for part, each in {name: value, **_places_in(name, value)}.items():
                into = self.places if isinstance(each, PLACES) else self.settings
                if part not in self.used and part not in into:
                    into[part] = ""  # as above
                    into[part] = digest(without_folders(self._setting(each), part.partition(".")[0]))
        for name, value in used.bound:
            if not any(name in told for told in (self.used, self.settings, self.places, self.bound)):
                into = self.places if isinstance(value, PLACES) else self.bound
                into[name] = ""  # as above
                said = text_digest(value) if isinstance(value, types.FunctionType | type) else self._setting(value)
                into[name] = digest(without_folders(said, name.partition(".")[0]))
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
            return self._text(os.fspath(value))
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

    def _look_at_object(self, value: Any) -> None:
        """Tell an object apart that is told by its name, or by what it is around: of users', or of toolz; where a
        transform is it, or holds it. Where code reads it, it is a decorator; see Used.
        """
        if self._depth_reached or "values" not in self.apart:
            return
        if is_users(type(value)):
            inside = [each for each in (asked(value, "__wrapped__"),) if each is not None]
            self.apart["values"].tell_object(value, [type(value), told_of(held_around(value), inside)])
        elif type(value).__module__.partition(".")[0] in ("toolz", "cytoolz"):
            self.apart["values"].tell_object(value, [*state_of(value), asked(value, "func")])  # which it saves by name

    def _look_around(self, code: Any) -> None:
        for wrapper in wrappers(code):
            if wrapper.__code__ not in self._seen:
                self._seen.add(wrapper.__code__)
                self.around.append([text_digest(wrapper), self._reached(wrapper)])
                self._look_around(wrapper)


class Through(Telling):
    """Tells some of what code reaches, and what that uses, apart from all else: earlier releases told nothing of it,
    and what they told must stay the same.
    """

    def __init__(self, *manner: Any) -> None:
        super().__init__(*manner)
        self.apart = dict.fromkeys(APART, self)
        self.own: dict[str, str] = {}
        self._objects: dict[int, Any] = {}  # held, so that no other gets the address

    def tell(self, name: str, value: Any) -> None:
        """Once, by name."""
        if name not in self.own:
            self.own[name] = ""  # what it uses may use it again
            is_code = isinstance(value, types.FunctionType | type)
            with self._reaching():
                told = self.value(value, 1) if is_code else self._setting(lasting(self._as_told(value)))
            self.own[name] = digest(without_folders(told, name.partition(".")[0]))

    def tell_object(self, value: Any, parts: list[Any]) -> None:
        """Once; by its class and how many came before."""
        if id(value) not in self._objects:
            name = f"{type(value).__qualname__}, number {len(self._objects)}"
            self._objects[id(value)] = value
            self.own[name] = digest(self.value(parts, 1))

    def found(self) -> dict[str, str]:
        """A few digits for each, and for what they use; nothing where there is none."""
        if not self.own:
            return {}
        beside = [self.around, self.used, self.settings, self.bound, self.imports, sorted(self.libraries)]
        told = [self.kinds.digest, self.tables, self.objects, self.deep, self.unsaid()[1]]
        return few(self.own) | {"what these use": digest([beside, told])[:4]}


class _Below(Telling):
    """Tells each part of a value by a digest, and each object once: to any depth, and where it holds itself."""

    def __init__(self, *manner: Any) -> None:
        super().__init__(*manner)
        self._found: dict[int, tuple[Any, str]] = {}  # held, so that no other object gets the address
        self._level = 0

    def value(self, value: Any, depth: int) -> Any:
        if depth == 0 or value is None or isinstance(value, bool | int | float | str):
            return super().value(value, 0)
        if isinstance(value, Uncopied):  # a source that it looks up in, and not how far that has read
            name, describe = type(value).__qualname__, asked(value, "describe")
            return digest([name, describe().settings()]) if callable(describe) else name
        if id(value) not in self._found:
            if self._level > _MAX_BELOW or len(self._found) >= MAX_PARTS:
                return "deeper"
            self._found[id(value)] = value, "itself"
            self._level += 1
            self._found[id(value)] = value, digest(super().value(value, 0))
            self._level -= 1
        return self._found[id(value)][1]


class _Apart(_Below):
    """Tells code by its text, and what it uses, which lies anywhere, as unsaid_of says: once."""

    def __init__(self, *manner: Any) -> None:
        super().__init__(*manner)
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
