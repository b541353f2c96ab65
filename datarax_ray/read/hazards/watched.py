"""What the program has set anew since a source was made, of what its transforms hold and read.

The state says what they were then: with others, what is read belongs to no state.
"""

from __future__ import annotations

import itertools
import logging
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from datarax_ray.read.copying import Uncopied
from datarax_ray.read.hazards.held_values import HeldValue, held_values, is_namespace, is_owner
from datarax_ray.read.hazards.module_values import (
    CodeValue,
    DataValue,
    held_in,
    script_code,
    script_places,
    script_value,
    script_values,
)
from datarax_ray.read.hazards.own_writes import OwnWrites
from datarax_ray.read.identity.code import code_fingerprint
from datarax_ray.read.identity.telling import LongError
from datarax_ray.read.identity.users_code import asked, is_users, kept

logger = logging.getLogger("datarax_ray")

MAX_LOOKED_AT_NBYTES = 2**20  # by each stream that begins: some 10 ms
_MAX_OWNERS = 500
_MAX_ITEMS, _MAX_DEPTH, _MAX_TEXT = 100, 2, 2**16  # of a table, of tables in tables, and letters
_LATER = "Set it before the source is made, or make another one after every change"
_MAX_PARTS = 10_000  # that are told again: some 50 ms
_begun = [0]  # streams of this process and single reads, whose transforms may fill what they hold


@dataclass(frozen=True)
class Watched:
    """Data and code of modules, by module and name, and data of objects and functions, as it was.

    is_sure: whether the code writes to none of it in a way that cannot be seen.
    told: transforms of each stream, and how they were told; own: the names that their code writes to.
    number: of streams that had begun.
    """

    script: dict[tuple[str, str], DataValue] = field(default_factory=dict)
    code: dict[tuple[str, str], CodeValue] = field(default_factory=dict)
    held: tuple[HeldValue, ...] = ()
    is_sure: bool = True
    told: tuple[tuple[tuple[Any, ...], Mapping[str, Any]], ...] = ()
    own: frozenset[str] = frozenset()
    number: int = 0

    def __getstate__(self) -> dict[str, Any]:
        """For a transform that holds a source: as it was told before there were the others, and nothing that counts."""
        return {name: getattr(self, name) for name in ("script", "code", "held", "is_sure")}

    @classmethod
    def of(cls, told: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> Watched:
        """What transforms hold and read in users' modules, where it is small, but for what their code writes to, and
        for objects that say themselves what decides their elements. told: of each stream its transforms, and their
        code_fingerprint.
        """
        told = tuple(told)
        transforms = [transform for each, _ in told for transform in each]
        owners = [*itertools.islice(_owners(transforms), _MAX_OWNERS)]
        code = dict.fromkeys(each if isinstance(each, types.FunctionType) else type(each) for each in owners)
        own = OwnWrites.of(owners)

        places = [place for place in script_places(code) if place[1].rpartition(".")[2] not in own.names]
        script = script_values(place for place in places if _is_small(held_in(*place)))
        held = held_values(owners, own, _is_small)
        names = frozenset(own.names | own.perhaps)
        told = tuple((each, was) for each, was in told if all(map(_is_all_of_it, each)))
        return cls(script, script_code(places), held, own.is_sure, told, names, _begun[0])

    def changed(self) -> Iterator[tuple[str, str, str, bool]]:
        """The name of each value that is another now, how it looked, how it does, and whether the code may have done
        that itself: filled a table, or an array. Of what is large, nothing.
        """
        for (module, name), was in self.script.items():
            here = script_value(module, name, MAX_LOOKED_AT_NBYTES)
            if here is not None and here.digest != was.digest:
                yield f"{module}.{name}", was.look, here.look, here.is_table
        for place, code in self.code.items():
            if (other := code.replaced(*place)) is not None:
                yield ".".join(place), code.look, other.look, False
        for held in self.held:
            if (looks := held.changed) is not None:
                yield held.label, *looks, held.may_be_scratch

    def check(self) -> None:
        """Raise ValueError where the program has set anything anew; what the code may have changed is warned of, and
        whatever else is told otherwise now, unless another stream has begun, whose transforms may share what they hold.
        """
        is_alone, is_told = _begun[0] == self.number, False
        begins()
        for name, look, look_here, may_be_own in self.changed():
            said = (
                f"{name} was {look} when the source was made, and its state says so; it is {look_here} now, which "
                f"gives data of no state. {_LATER}"
            )
            if self.is_sure and not may_be_own:
                raise ValueError(said)
            logger.warning(said)
            is_told = True
        for transforms, told in self.told if is_alone and not is_told else ():
            for name in _told_anew(transforms, told, self.own):
                logger.warning(
                    "%s is not what it was when the source was made, and its state says what it was: unless this is a "
                    "cache, what is read now is data of no state. %s", name, _LATER
                )  # fmt: skip


def begins() -> None:
    """Say that a stream begins, or a single read, whose transforms may fill what they share with others."""
    _begun[0] += 1


def _is_all_of_it(transform: Any) -> bool:
    """Whether it holds no more than it needs, so that it may be told again: no program that it is a method of."""
    is_function = isinstance(transform, types.FunctionType)
    return transform.__closure__ is None if is_function else is_users(type(transform))


def _told_anew(transforms: Iterable[Any], then: Mapping[str, Any], own: Iterable[str]) -> list[str]:
    """What is another now, by name, but for what code writes to itself, and for settings of a program, which are looked
    at by name. Nothing where there is much, or a program: what holds a pipeline or source.
    """
    transforms = tuple(transforms)
    held = [part for owner in _owners(transforms) for part in asked(owner, "__dict__", {}).values()]
    if any(isinstance(part, Uncopied) or str(type(part).__module__).startswith("flax.") for part in held):
        return []
    try:
        now = code_fingerprint(transforms, most=_MAX_PARTS)
    except LongError:
        return []
    programs = {
        f"{index} {type(each).__name__}.{name}"
        for index, each in enumerate(transforms)
        for name, part in asked(each, "__dict__", {}).items()
        if is_namespace(part)
    }
    return _told_otherwise(then, now, {*own}, programs)


def _told_otherwise(then: Mapping[str, Any], now: Mapping[str, Any], own: set[str], programs: set[str]) -> list[str]:
    """What is another, by name; of an attribute that is, nothing of what it brings along.

    >>> then = {"digest": "1", "held": {"0 Crop.size": "1", "0 Crop.count": "3"}}
    >>> _told_otherwise(then, {"digest": "2", "held": {"0 Crop.size": "2", "0 Crop.count": "4"}}, {"count"}, set())
    ['Crop.size']
    >>> _told_otherwise({"digest": "1", "names": ["crop"]}, {"digest": "2", "names": ["crop"]}, set(), set())
    ['something that crop holds']
    """
    for parts in (("held",), ("used", "settings", "bound", "imports")):
        pairs = [(then.get(part, {}), now.get(part, {})) for part in parts]
        names = {name for old, new in pairs for name in {**old, **new} if old.get(name) != new.get(name)}
        if names:
            others = {name for name in names - programs if name.rpartition(".")[2] not in own}
            return sorted(name.partition(" ")[2] or name for name in others)
    if any(then.get(part) != now.get(part) for part in ("digest", "wrappers", "deep")):
        return [f"something that {', '.join(now['names'])} holds"]
    return []


def _is_small(value: Any, depth: int = 0) -> bool:
    """Whether looking at all of it takes a moment: no long text, no large or deep table, nor one that holds itself."""
    if isinstance(value, np.ndarray):
        return not depth and value.nbytes <= MAX_LOOKED_AT_NBYTES and not value.dtype.hasobject
    if isinstance(value, str | bytes | bytearray):
        return len(value) <= _MAX_TEXT
    if isinstance(value, dict):
        value = [*value.values()] if len(value) <= _MAX_ITEMS else None
    if isinstance(value, list | tuple | set | frozenset):
        return depth < _MAX_DEPTH and len(value) <= _MAX_ITEMS and all(_is_small(each, depth + 1) for each in value)
    return isinstance(value, int | float | complex | np.generic | None)


def _owners(roots: Iterable[Any]) -> Iterator[Any]:
    """The users' functions and objects among these, and among what they hold."""
    seen: dict[int, Any] = {}  # and kept, so that no other gets the same id meanwhile
    waiting = [*roots]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or callable(asked(value, "fingerprint")):
            continue
        seen[id(value)] = value
        if isinstance(value, types.MethodType):
            waiting += [value.__self__, value.__func__]
        elif isinstance(value, partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, types.FunctionType):
            if is_users(value):
                yield value
                waiting += kept(value).values()
        elif isinstance(value, dict | list | tuple | set):
            waiting += [*(value.values() if isinstance(value, dict) else value)][:_MAX_ITEMS]
        elif is_owner(value):
            yield value
            waiting += asked(value, "__dict__", {}).values()
