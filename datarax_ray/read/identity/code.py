"""A fingerprint of transforms: changes when what they do may have changed, stays when only their place or layout has.

It covers the source of a function (comments and layout apart), its defaults and closure, the attributes of an object,
and the functions, classes and data of the same package that these use (see referenced_globals). It does not look into
libraries: a transform may have `fingerprint() -> str` to say more.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import io
import logging
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import islice
from typing import Any

from datarax_ray.plan.fingerprint import APART, TOLD, Rest, digest, elsewhere, flattened, under
from datarax_ray.read.identity.digests import few, held, label_of, rest_of, without_folders
from datarax_ray.read.identity.loads import wrappers
from datarax_ray.read.identity.own_methods import lasting
from datarax_ray.read.identity.plain_data import config_of, is_of_process, shortened, state_of
from datarax_ray.read.identity.program_folders import ProgramFolders
from datarax_ray.read.identity.source_text import PARSING, text_digest
from datarax_ray.read.identity.telling import MAX_PARTS, LongError, Telling, Through
from datarax_ray.read.identity.users_code import (
    called,
    inner,
    installed_projects,
    is_users,
    kept,
    looking_once,
    with_projects,
)

logger = logging.getLogger("datarax_ray")

_MAX_NAMES = 20  # names are for people; the digest covers all, and the state stays small
_MAX_ELSEWHERE = 12  # that are told one by one
MAX_HELD = 16  # attributes that are told one by one, to name the one that changed; the digest covers all


def code_fingerprint(
    transforms: Iterable[Any], as_told: Callable[[Any], Any] = lambda value: value, most: float = math.inf
) -> dict[str, Any]:
    """{"names": [...], "digest": hex}: the first 20 names, and a digest over all transforms; and where there are any:

    wrappers: a digest of the users' functions that functools.wraps puts around others. The digest, which states of
        earlier releases have, is of what is inside these.
    elsewhere: of each of these that names a folder in which the program lies (see ProgramFolders), by path, a few
        digits of it without that.
    installed: all of these, where the project's own packages are installed among libraries; see installed_projects.
    held: of attributes of users' objects, a few digits each, so that the one that changed can be named.
    used: so of what the code reads of objects at module level, and the defaults and closures of what it calls.
    settings, bound, beyond, beneath, values, parts, decorators, imports: so of what Used says.
    places: so of the paths and times among the settings, of which a warning tells.
    each: so of the transforms, where there are several.
    deep: a digest of what lies deeper in them than the digest goes.
    kinds: one of what is a list, a tuple or a mapping, which the digest takes for one another.
    modules: one of what library each name of a module stands for, for states of earlier releases.
    libraries: the same without the name of the transform's own module, which is __main__ where that is run.
    tables: one of some entries of tables that are too long to be told.
    objects: one of what the digest leaves out of some objects; see unsaid.
    unsaid: one of what neither texts nor these say; see unsaid_code.unsaid_by.
    unfilled: the same without what classes hold that code puts there; "nothing" for none. Where it is another.
    rest: of what is told by one digest, two digits for each, whose names are known here; see Rest. Of the digest what
        the code reads of its own package: functions, classes and data.
    told: a number, always. Without it there may be more than is told: in a state that has it, there are no wrappers,
        kinds and objects where none is told; from 2 on no unsaid, from 3 on no libraries.

    as_told: what stands for an object at module level. most: parts that are told, an array for each KiB of it. Raises:
    LongError where there are more.
    """
    transforms = tuple(transforms)
    found = _of_any_folder(transforms, as_told, most)
    if projects := installed_projects(transforms):
        with with_projects(projects):
            installed = _of_any_folder(transforms, as_told, most)
        if installed != found:
            found |= {"installed": {name: part for name, part in installed.items() if name != "names"}}
    return found


def code_digest(code: Any) -> str:
    """The digest of code_fingerprint alone, as it is in this folder."""
    with PARSING, looking_once():
        return str(_found(Telling(), (code,))["digest"])


def _of_any_folder(transforms: tuple[Any, ...], as_told: Callable[[Any], Any], most: float) -> dict[str, Any]:
    with PARSING, looking_once():
        folders = ProgramFolders()
        found = _found(Telling(as_told, most, folders), transforms)
        if folders.are_named:
            without = Telling(as_told, most, ProgramFolders(are_left_out=True))
            found |= _elsewhere(found, _found(without, transforms))
        return found


def _elsewhere(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """{"elsewhere": ...}: by path, a few digits of what is another one in there, and all of "each"; {} for nothing. Of
    many, by part.
    """
    here, there = ({key: part for key, part in each.items() if key != "rest"} for each in (here, there))
    one, other = flattened(here), flattened(there)
    differ: dict[str, Any] = {}
    for paths in (one | other, here | there):
        told = {path: (under(path, one), under(path, other)) for path in paths}
        differ = {path: elsewhere(now) for path, (before, now) in told.items() if before != now}
        if len(differ) <= _MAX_ELSEWHERE:
            break
    differ |= {"each": there["each"]} if "each" in differ else {}
    return {"elsewhere": differ} if differ else {}


def _found(telling: Telling, transforms: tuple[Any, ...]) -> dict[str, Any]:
    """As code_fingerprint, by what tells it."""
    names = [label_of(transform) for transform in transforms]
    if len(names) > _MAX_NAMES:
        names = [*names[:_MAX_NAMES], f"and {len(names) - _MAX_NAMES} more"]
    telling.apart = {key: Through(*telling.manner) for key in APART}
    telling.apart["beyond"].apart |= {key: each for key, each in telling.apart.items() if key != "beyond"}
    try:
        values = [telling.value(transform, 0) for transform in transforms]
    except RecursionError as error:
        raise ValueError(
            f"what {', '.join(names)} read and hold leads on without end, as through the code of a library that "
            "lies in a folder of its own; give the transform a fingerprint() -> str that says what it does, or "
            "install the library"
        ) from error
    parts: dict[str, str] = {}
    for index, transform in enumerate(transforms):
        if is_users(type(transform)) and not callable(getattr(transform, "fingerprint", None)):
            saved = next((part for part in state_of(transform) if isinstance(part, dict)), {})
            parts |= held(index, transform, {name: digest(telling.value(part, 1)) for name, part in saved.items()})
            telling.of_process |= {
                f"{names[min(index, _MAX_NAMES)]}.{name}" for name, part in saved.items() if is_of_process(name, part)
            }
    if telling.of_process:
        _tell_of_process(*sorted(telling.of_process))
    unsaid, unfilled = telling.unsaid()
    by_name = {name: getattr(telling, name) for name in ("used", "settings", "places", "bound", "imports")}
    through = {key: apart.found() for key, apart in telling.apart.items()}
    rest = {name: rest_of(each) for name, each in by_name.items()} | {"unsaid": telling.by_themselves}
    rest |= {key: rest_of(apart.own) for key, apart in telling.apart.items()} | {"digest": telling.reached}
    more = {
        "told": TOLD,
        "wrappers": telling.around and digest(telling.around),
        "held": dict(islice(parts.items(), MAX_HELD)),
        **{name: few(each) for name, each in by_name.items()},
        **through,
        "each": [digest(value)[:4] for value in values[:_MAX_NAMES]] if len(values) > 1 else [],
        "deep": telling.deep,
        "kinds": telling.kinds.digest,
        "modules": telling.modules and digest(telling.modules),
        "libraries": telling.libraries and digest(sorted(telling.libraries)),
        "tables": telling.tables and digest(telling.tables),
        "objects": telling.objects and digest(telling.objects),
        "unsaid": unsaid,
        "unfilled": (unfilled or "nothing") if unfilled != unsaid else "",
        "rest": {name: Rest.of(each) for name, each in rest.items() if each},
    }
    return {"names": names, "digest": digest(values)} | {name: value for name, value in more.items() if value}


@functools.cache  # once
def _tell_of_process(*names: str) -> None:
    logger.warning(
        "%s: another process has another value (a time, the id or host of a process, a random id), and a state counts "
        "what transforms hold and read, in log texts, too: so that one will refuse the states of this one. Make it "
        "where it is logged, hold it elsewhere, or say what decides the elements by fingerprint() -> str",
        ", ".join(names),
    )


def value_digest(value: Any) -> str:
    """A digest of data: plain values, arrays and containers by what they hold, objects by their class and state."""
    with PARSING:
        return digest(Telling().value(value, 0))


def data_digest(rows: list[Any]) -> str:
    """As value_digest, of all rows, with what is told beside their values; "" where these are long."""
    telling = Telling(most=MAX_PARTS)
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
    return digest(without_folders(told, module)), digest(told)


def _told(value: Any) -> Any:
    telling = Telling()
    return [telling.value(value, 0), telling.deep]


def _in_full(table: Any) -> str:
    """A digest of all of a long table, unlike in a fingerprint; without an object for each part of it, mostly."""
    parts = dict(table) if isinstance(table, dict) else sorted(table, key=repr) if isinstance(table, Set) else table
    with contextlib.suppress(Exception):  # of what no pickle takes, as a lambda inside
        if not _holds_sets(parts):
            hashing = _Hashing()
            pickle.Pickler(hashing).dump(parts)
            return hashing.found.hexdigest()
    return digest(Telling().value(table, 0))


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
