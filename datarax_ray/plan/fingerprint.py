"""What a checkpoint says about its stream, and the refusal to go on with another one.

Settings are a nested dict of plain values that the sequence of batches depends on. They are saved beside the position
and compared, value by value, before a position is taken back.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datarax_ray.plan.arguments import nearest

VERSION = 1

# What a block order has whose state says nothing of window_blocks: it was left out where it was this. A constant of the
# format, whatever the default of an order is.
_UNSAID_WINDOW_BLOCKS = 64
_MAX_SHOWN = 200  # characters of a value in an error; what is saved is shorter
_MAX_LISTED = 20  # settings that changed; a damaged state may have thousands
_MAX_REST = 40  # things whose names are looked for; the digest is of all
_MAX_DEPTH = 16  # no source's settings nest half as deep


def _of_code(one: str, made: str) -> dict[str, tuple[str, str]]:
    """What is said of the code that makes elements or batches: of transforms, or stages."""
    differ, allow = f"the remaining {made} would be made differently", f"pass allow_drift=('{one}s',) if the change is"
    used = (
        f"{differ}, unless this decides nothing of them (what is logged, say)",
        f"Set the old value, or {allow} meant or decides nothing. An object that is called may say what decides "
        f"the {made} by a method fingerprint() -> str.",
    )
    imported = (
        f"a name that the {one}s read stands for another library, and {differ}",
        f"Restore the old import, or {allow} meant.",
    )
    return {
        f"{one}s": (
            differ,
            f"Restore the old code, or {allow} meant. A script that runs is the module __main__, and another one where "
            f"it is imported: keep {one}s in a module that both import.",
        ),
        f"{one}s.held": (
            f"{differ}, unless this is a cache that the {one} fills itself, or decides nothing",
            f"Restore the old value, make the {one} anew, let it hold no more than it needs (args.scale in place of "
            f"args; np.zeros in place of np.empty), or leave its cache out by a method fingerprint() -> str that says "
            f"what decides the {made}; or {allow} meant.",
        ),
        f"{one}s.deep": (
            f"something that lies deep in what the {one}s hold is another (an object in an object in a list, say), and "
            f"{differ}",
            f"Restore the old value; where a library's object is another in every process (it holds a generator, say), "
            f"give the {one} a method fingerprint() -> str that says what decides the {made}; or {allow} meant or "
            "decides nothing.",
        ),
        f"{one}s.used": used,
        f"{one}s.settings": used,
        f"{one}s.bound": used,
        f"{one}s.beyond": used,
        f"{one}s.beneath": used,
        f"{one}s.values": used,
        f"{one}s.parts": used,
        f"{one}s.imports": (
            f"what the {one}s import of a module of yours when they run has another text, and {differ}",
            f"Restore the old code, or {allow} meant.",
        ),
        f"{one}s.kinds": (
            f"what the {one}s hold and read has a tuple where a list was, say, and {differ}",
            f"Restore the old value, or {allow} meant or decides nothing.",
        ),
        f"{one}s.libraries": imported,
        f"{one}s.modules": imported,
        f"{one}s.tables": (
            f"a long table that the {one}s read has other entries, and {differ}",
            f"Restore the old table, or {allow} meant or decides nothing.",
        ),
        f"{one}s.objects": (
            f"something about what the {one}s hold and read is another beside their values (the labels of a table, a "
            f"mask, what a defaultdict makes, the function in np.vectorize), and {differ}",
            f"Restore the old value, or {allow} meant or decides nothing.",
        ),
        f"{one}s.unsaid": (
            f"something about the code of the {one}s is another that its text does not say (a class of another module "
            f"that it inherits from, the code of an object that a class holds, what is registered), and {differ}",
            f"Restore the old code or value, or {allow} meant or decides nothing.",
        ),
        f"{one}s.places": (
            f"a path or time that {one}s read is another, and so are the {made} that are made of it",
            "Set the old value where it is more than where and when the program runs.",
        ),
        f"{one}s.decorators": (
            f"what a decorator holds of a function that {one}s call is another: a setting (times(3)), or a counter or "
            "clock, which decide nothing",
            f"Set the old value where it decides the {made}.",
        ),
    }


def _of_fields(one: str, arguments: str) -> tuple[str, str]:
    """What is said of the fields of elements: of files that may be the same, by what the source is told of them."""
    return (
        "the remaining elements would have other fields, or of other types",
        f"Set the old {arguments}, or pass allow_drift=('files.{one}',) if the change is meant; where none of these "
        "changed, point the source to the original files.",
    )


_RENAMED = (
    "their names alone differ, what they hold is the same in the same order, as far as is looked at (ends, and pages "
    "between)",
    "Give the files their old names, or pass allow_drift=('files.digest',) to read them under these.",
)
_OTHER_FILES = (
    "Point the source to the original files, or start a new run. allow_drift=('files',) goes on at the same position "
    "of the new ones: in this epoch some records come again, others never."
)
_NEW_RUN = "Set the old value, or start a new run."
_ON_PURPOSE = "Set the old value, or pass allow_drift=('{}',) to {} on purpose."
_ORDER = ("records would be repeated and others never seen", _NEW_RUN)
_REMAINDER = "the last batch would be another"

# For each setting: what would follow from going on, and what to do. A prefix covers what lies under it.
_CONSEQUENCES = {
    "files": ("resuming would skip or repeat records", _OTHER_FILES),
    "files.schema": _of_fields("schema", "columns= or exclude_columns=, or column_types=, column_names= or delimiter="),
    "files.columns": _of_fields("columns", "columns=, column_types= or fill_nulls="),
    "files.lists": _of_fields("lists", "columns=, exclude_columns= or fill_nulls="),
    "files.fill_nulls": (
        "the remaining elements would have other values in place of nulls",
        "Set the old fill_nulls= of the source's config, or pass allow_drift=('files.fill_nulls',) if the change is "
        "meant.",
    ),
    "files.layers": (
        "a dataset of Grain or torch is made otherwise, and resuming would skip, repeat or change records",
        "Make it as it was, or start a new run. allow_drift=('files',) goes on at the same position of the new one.",
    ),
    "files.seeds": (
        "interleave_datasets draws in another order, and resuming would skip or repeat records",
        "Give it the old seed, or start a new run.",
    ),
    "files.functions": (
        "the dataset itself runs other functions (a generator, its map or filter), and the remaining elements would be "
        "made differently",
        "Restore the old code, or pass allow_drift=('files',) if the change is meant or decides nothing.",
    ),
    "order": _ORDER,
    "order.num_epochs": ("the stream would end elsewhere", _ON_PURPOSE.format("order.num_epochs", "end it there")),
    "mixture": _ORDER,
    "mixture.weights": (
        "the components would go on elsewhere: records would be repeated and others never seen",
        "Set the old weights, or give MixtureSource allow_new_weights=True to go on with the new ones from here.",
    ),
    "mixture.length": ("the stream would end elsewhere", _ON_PURPOSE.format("mixture.length", "end it there")),
    "components": (
        "a component of the mixture would not go on as it was",
        "Set its old data, order, transforms and on_error, or start a new run.",
    ),
    "batch_size": (
        "every later batch would hold other rows",
        _ON_PURPOSE.format("batch_size", "go on from the same record"),
    ),
    "drop_remainder": (_REMAINDER, _ON_PURPOSE.format("drop_remainder", "change it")),
    "pad_remainder": (_REMAINDER, _ON_PURPOSE.format("pad_remainder", "change it")),
    "packing": ("later rows would hold other tokens", _ON_PURPOSE.format("packing", "go on from the same token")),
    **_of_code("transform", "elements"),
    **_of_code("stage", "batches"),
    "stages.key": (
        "the stages of the remaining batches would draw other random numbers",
        "Give each Pipeline an nnx.Rngs of its own, made anew with the old seed: another pipeline, or a model, that "
        "draws from the same one moves it on. Or pass allow_drift=('stages',) if the change is meant.",
    ),
    "on_error": ("broken records would be treated differently", _ON_PURPOSE.format("on_error", "change it")),
}
# Settings that states of earlier releases do not have. They load for ever: these are compared where a state has them.
_LATER = ("files.content", "files.rows", "files.layers", "files.functions", "files.seeds", "stages.attributes")
# What a fingerprint of code has beside its names and digest: of transforms, stages, on_error and samplers; see
# read.identity.code. APART: each of these with all that it uses, apart from all else. TOLD_APART: each of these has a
# digest of its own in a mixture of many components, so that a state of a release that knew of none of these is still
# compared by the rest.
APART = ("beyond", "beneath", "values", "parts", "decorators")
TOLD_APART = (
    *("used", "settings", "places", "imports", "objects", "unsaid", "libraries", "elsewhere", "installed"),
    "unfilled",
    *APART,
)
# The number that a fingerprint of code says of itself. Before 4, objects with __call__ were told whole.
TOLD = 4
# All of it, which states of earlier releases do not have; with each, from which number of "told" on a state without it
# says that there was nothing to tell.
_LATER_OF_CODE = dict.fromkeys((*TOLD_APART, "held", "bound", "each", "deep", "modules", "tables"), math.inf)
_LATER_OF_CODE |= {"wrappers": 1, "kinds": 1, "objects": 1, "unsaid": 2, "libraries": 3}
_NAMING = ("each", "rest")  # what tells which one changed
# What is said beside it, and not compared; the last by an earlier release alone.
_BESIDE = ("told", "rest", "anywhere")
_LATER_OF_CODE |= dict.fromkeys(_BESIDE, math.inf)
# Digests over all that is told in their way.
_OF_ALL = ("wrappers", "deep", "kinds", "modules", "libraries", "tables", "objects", "unsaid", "unfilled")
_OF_OTHERS = ("others", "what these use")
_UNKNOWN = ("the stream would not be the same", _NEW_RUN)


class Rest(str):
    """Two digits for each of the first 40 things that are told by one digest, in the order of their names.

    The names are known where it was made, and are in no state.
    """

    __slots__ = ("names",)
    names: tuple[str, ...]

    @classmethod
    def of(cls, digests: Mapping[str, str]) -> Rest:
        names = sorted(digests)[:_MAX_REST]
        rest = cls("".join(digests[name][:2] for name in names))
        rest.names = tuple(names)
        return rest

    @staticmethod
    def changed(before: Any, now: Any) -> list[str]:
        """The names of those that are others, where as many were told before."""
        if not isinstance(now, Rest) or not isinstance(before, str) or len(before) != len(now):
            return []
        return [name for at, name in enumerate(now.names) if before[2 * at : 2 * at + 2] != now[2 * at : 2 * at + 2]]


@dataclass(frozen=True)
class Difference:
    """A setting that changed. saved, current: its values, None where there is none. said: both, what follows, what to
    do.
    """

    setting: str
    saved: Any
    current: Any
    said: str


class DriftError(ValueError):
    """A checkpoint belongs to another stream than the one it is restored into: other data, order or settings.

    differences: all settings that changed, where they are known; the message has the first 20.
    """

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


def check_drift(saved: Mapping[str, Any], current: Mapping[str, Any], allow: Iterable[str] = ()) -> list[str]:
    """Raise DriftError unless the settings are equal, except for those at or under a path in `allow`.

    The error lists the settings that changed, with both values, the consequence and the remedy. Returns what is to be
    said of paths and times that code reads and that changed: they are others on every host and day, and mostly decide
    nothing.

    >>> check_drift({"order": {"seed": 1}}, {"order": {"seed": 2}})
    Traceback (most recent call last):
    datarax_ray.plan.fingerprint.DriftError: the checkpoint belongs to another stream:
      order.seed: the checkpoint was written with 1, this pipeline has 2; records would be repeated and others never \
seen. Set the old value, or start a new run.
    """
    old, new = _paired(saved, current)
    allowed = (allow,) if isinstance(allow, str) else tuple(allow)
    unknown = [path for path in allowed if not any(_is_under(key, path) for key in [*old, *new])]
    if unknown:
        groups = {key.partition(".")[0] for key in (*old, *new)}
        known = sorted({*old, *new, *groups})
        raise ValueError(
            f"allow_drift names no setting: {unknown}.{nearest(unknown, known)} The settings are {known}; the name "
            "before a dot is of all behind it"
        )
    changed, told = _changed(old, new, allowed)
    if changed:
        found = [Difference(key, old.get(key), new.get(key), _describe(key, old, new)) for key in changed]
        raise DriftError(f"the checkpoint belongs to another stream:{listed([each.said for each in found])}", found)
    return [_describe(key, old, new) for key in told]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """A line for each setting in which two streams that run at one time differ; "" where they are one.

    >>> print(differences({"order": {"seed": 1}}, {"order": {"seed": 2}}))
    <BLANKLINE>
      order.seed: 1 and 2
    """
    old, new = _paired(one, other)

    def line(key: str) -> str:
        code = " and ".join(_others(key, old, new))
        values = f"{shown(old.get(key))} and {shown(new.get(key))}"
        return f"{shown(key)[1:-1]}: {f'{code}, by code or settings' if code else values}"

    return listed([line(key) for key in _changed(old, new)[0]])


class _Missing:
    """The value of a setting that is not there, which None is not."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Both values of each setting that is not the same in two, by path; MISSING for one that is not there.

    >>> changes({"order": {"seed": None, "salt": 1}}, {"order": {"salt": 2}})
    {'order.salt': (1, 2), 'order.seed': (None, missing)}
    """
    old, new = flattened(one), flattened(other)
    both = {key: (old.get(key, MISSING), new.get(key, MISSING)) for key in sorted(old | new)}
    return {key: (before, now) for key, (before, now) in both.items() if before != now}


def _paired(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both by path, as if one release had written them."""
    old, new = _completed(flattened(saved)), _completed(flattened(current))
    _take_installed(old, new)
    _leave_out_moved(old, new)
    _leave_out_untold(old, new)
    for place in filter(_is_place, new.keys() - old.keys()):  # settings, in states of a release that refused them
        setting = place.replace(".places.", ".settings.", 1)
        if setting in old and setting not in new:
            old[place] = old.pop(setting)
    for key in filter(_is_of_libraries, old.keys() & new.keys()):  # they say the same, whatever the module's name is
        for settings in (old, new):
            settings.pop(f"{key.removesuffix('libraries')}modules", None)
    for key in [key for key in old.keys() | new.keys() if key.endswith(".unfilled") and _is_later(key)]:
        unsaid = f"{key.removesuffix('unfilled')}unsaid"
        before, now = (settings.pop(key, settings.get(unsaid, "nothing")) for settings in (old, new))
        if before == now:  # what a class holds since its first use is no matter
            old.pop(unsaid, None)
            new.pop(unsaid, None)
    return old, new


def _take_installed(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Take what is told of code with the project's installed packages in place of what is told without, where both
    have it; where one has not, as its packages were not installed, if it is the same code.
    """
    heads = {key.partition("installed.")[0] for key in (*old, *new) if ".installed." in key and _is_later(key)}
    for head in heads:
        of_it = [under(f"{head}installed", flat) for flat in (old, new)]
        one, other = (f"{head}installed." if installed else head for installed in of_it)
        is_same = any(
            f"{one}{name}" in old and old[f"{one}{name}"] == new.get(f"{other}{name}")
            for name in ("digest", "elsewhere.digest")
        )
        for flat, installed in zip((old, new), of_it, strict=True):
            if installed and (all(of_it) or is_same):
                for key in [key for key in under(head[:-1], flat) if key == f"{head}digest" or _part(key)]:
                    del flat[key]
                flat |= {head + key.removeprefix(f"{head}installed."): value for key, value in installed.items()}
            for key in installed:
                flat.pop(key, None)


def _leave_out_moved(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Leave out of both what is another one by the folders alone that the program lies in; see elsewhere."""
    moved = {key for key in old.keys() | new.keys() if ".elsewhere." in key and _is_later(key)}
    for key in moved:
        head, _, path = key.partition("elsewhere.")
        if path == "each" and all(isinstance(flat.get(key), list) for flat in (old, new)):
            old[f"{head}each"], new[f"{head}each"] = old[key], new[key]
            continue
        told = [under(f"{head}{path}", flat) for flat in (old, new)]
        of_head = [{each.removeprefix(head): value for each, value in found.items()} for found in told]
        if old.get(key, elsewhere(of_head[0])) == new.get(key, elsewhere(of_head[1])):
            for each in told[0].keys() | told[1].keys():
                old.pop(each, None)
                new.pop(each, None)
    for key in moved:
        old.pop(key, None)
        new.pop(key, None)


def _leave_out_untold(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Leave out objects with __call__ that earlier releases told whole, where code has methods of them alone; and with
    them what was told of these beside.
    """
    untold = {key for key in old.keys() - new.keys() if _part(key) in ("used", "beyond")}
    for head in {f"{key}.".partition(f".{_part(key)}.")[0] + "." for key in untold}:
        if max(old.get(f"{head}{told}", 0) for told in ("told", "functions.told")) >= TOLD:
            continue
        for key in [key for key in under(head[:-1], {**old, **new}) if _part(key)]:
            if key not in old or key not in new or _part(key) in _OF_ALL or key.rpartition(".")[2] in _OF_OTHERS:
                old.pop(key, None)
                new.pop(key, None)


def elsewhere(found: Mapping[str, Any]) -> str:
    """A few digits of settings by path, which a state has of what is another one in another folder."""
    return digest(dict(found))[:8]


def under(path: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Of settings by path, those at or under one."""
    return {key: value for key, value in flat.items() if _is_under(key, path)}


def _is_of_libraries(key: str) -> bool:
    return key.endswith(".libraries") and _is_later(key)


def _changed(
    old: Mapping[str, Any], new: Mapping[str, Any], allowed: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """The settings that differ, and beside them paths and times that code reads."""
    changed = [
        key
        for key in sorted(old.keys() | new.keys())
        if (key not in old or key not in new or not _is_same(old[key], new[key]))
        and _part(key) not in _BESIDE
        and not (key not in old and _is_later(key) and not _is_none_told(key, old))
        and not any(_is_under(name, path) for path in allowed for name in (key, _files_of(key, old, new)))
    ]
    told = [key for key in changed if _is_place(key)]
    changed = [key for key in changed if key not in told]
    said = [key for key in changed if _is_said(key, changed)]
    for key in changed:
        if (files := _files_of(key, old, new)) and any(_is_under(each, files) for each in changed):
            said.append(key)
    return [key for key in changed if key not in said], told


def _files_of(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The files that a setting follows from, that of blocks which are groups of files; "" for none."""
    head = key.removesuffix("order.block_size")
    return f"{head}files" if head != key and isinstance(old.get(key), str) and isinstance(new.get(key), str) else ""


def listed(lines: list[str], most: int = _MAX_LISTED) -> str:
    """The first of these lines, each on its own, and how many more settings there are."""
    more = [f"and {len(lines) - most} more settings"] if len(lines) > most else []
    return "".join(f"\n  {each}" for each in [*lines[:most], *more])


def later(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings hold that earlier releases did not write, by path, and that nothing else covers, as a digest
    covers "each"; see without_later.
    """
    return {
        path: value for path, value in flattened(settings).items() if _is_later(path) and _part(path) not in _NAMING
    }


def without_later(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings as earlier releases wrote them, so that a digest of them is the one in states of these.

    >>> without_later({"files": {"num_files": 1, "content": "1f"}, "on_error": "raise"})
    {'files': {'num_files': 1}, 'on_error': 'raise'}
    """
    return {
        key: without_later(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if not _is_later(f"{prefix}{key}")
        and (_setting(f"{prefix}{key}"), value) != ("order.window_blocks", _UNSAID_WINDOW_BLOCKS)
    }


def digest(value: Any) -> str:
    """Sixteen hex digits of SHA-256 over the canonical JSON of a plain value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shown(value: Any) -> str:
    """A value of any kind as a person can read it in an error: its repr, cut where it is long.

    A Dataset of Ray Data is told by its class: its repr reads all of it, on the cluster.

    >>> shown("a" * 300)[-12:]
    'aaaaaaaaa...'
    """
    if type(value).__module__.startswith("ray.data."):
        return f"a {type(value).__name__} of Ray Data"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; lists in lists in lists
        return f"a {type(value).__name__}, which is too large to show"
    except Exception as error:  # of a __repr__ of the user's
        return f"a {type(value).__name__}, whose repr is an error: {type(error).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _is_said(key: str, changed: list[str]) -> bool:
    """Whether another setting that changed says more of it: digests of code, beside the names and digests of parts."""
    head, _, last = key.rpartition(".")
    if last == "unsaid":  # of code that is told by other means as well
        return any(key != other and _is_under(other, head) for other in changed)
    if last == "what these use":  # of something that is named
        whole = head.removesuffix(f".{_part(key)}")
        return any(_is_under(other, whole) and not other.endswith(f".{last}") for other in changed)
    if last == "each" or (last == "rows" and head.endswith("files")):
        return not {f"{head}.digest", f"{head}.content"}.isdisjoint(changed)
    parts = key.split(".")
    of = next((index for index, part in enumerate(parts) if part in _LATER_OF_CODE or part == "digest"), len(parts))
    return f"{'.'.join(parts[:of])}.names" in changed  # of other transforms all else is another, too


def _describe(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    name = _setting(key)
    prefixes = [name.rsplit(".", n)[0] for n in range(name.count(".") + 1)]
    consequence, remedy = next((_CONSEQUENCES[p] for p in prefixes if p in _CONSEQUENCES), _UNKNOWN)
    if name == "files.digest" and _are_renamed(key.removesuffix("digest"), old, new):
        consequence, remedy = _RENAMED
    remedy = remedy.replace("allow_drift=('", f"allow_drift=('{key.removesuffix(name)}")  # whole, of a component
    others = _others(key, old, new)
    values = f"the checkpoint was written with {shown(old.get(key))}, this pipeline has {shown(new.get(key))}"
    if others:
        values = f"{' and '.join(others)}: the checkpoint was written with other code or settings of it"
    return f"{shown(key)[1:-1]}: {values}; {consequence}. {remedy}"


def _are_renamed(head: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether files hold the same in the same order, as far as is looked at. head: of their settings."""
    return all(key in old and old[key] == new.get(key) for key in (f"{head}num_files", f"{head}content"))


def _others(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The transforms or stages that changed, by number and name, where this is their digest and that is known.

    >>> _others("transforms.digest", {"transforms.each": [1, 2]}, {"transforms.each": [1, 3], "transforms.names": "ab"})
    ['number 1 (b)']
    """
    head, _, last = key.rpartition(".")
    if last in ("others", "unsaid"):
        group = head.rpartition(".")[2] if last == "others" else last
        path = f"{head.removesuffix(f'.{group}')}.rest.{group}"
        return Rest.changed(old.get(path), new.get(path))
    before, now, names = old.get(f"{head}.each"), new.get(f"{head}.each"), new.get(f"{head}.names")
    if last != "digest" or not names:
        return []
    read = Rest.changed(old.get(f"{head}.rest.digest"), new.get(f"{head}.rest.digest"))
    if len(names) == 1:
        before, now = [None], names
    if not isinstance(before, list) or not isinstance(now, list):
        return read
    each = zip(before, now, names, strict=False)
    found = [f"number {index} ({name})" for index, (was, its, name) in enumerate(each) if was != its]
    return [*found[:-1], f"{found[-1]}, by {', '.join(read)}"] if found and read else found or read


def _setting(key: str) -> str:
    """What is said of a setting of a component of a mixture ("components.2.order.seed") is said of the setting."""
    of_component = key.split(".", 2)[2:] if key.startswith("components.") else []
    return _setting(of_component[0]) if of_component else key


def _is_later(key: str) -> bool:
    setting = _setting(key)
    return any(_is_under(setting, each) for each in _LATER) or not _LATER_OF_CODE.keys().isdisjoint(setting.split("."))


def _is_none_told(key: str, old: Mapping[str, Any]) -> bool:
    """Whether a state without this setting says that there was none, and is not of a release that did not tell it."""
    head, _, last = key.rpartition(".")
    told = old.get(f"{head}.told")
    return isinstance(told, int) and told >= _LATER_OF_CODE.get(last, math.inf)


def _is_place(key: str) -> bool:
    return _part(key) in ("places", "decorators")


def _part(key: str) -> str:
    """Which part of a fingerprint of code a setting is in; "" for none."""
    return next((part for part in _setting(key).split(".") if part in _LATER_OF_CODE), "")


def _is_same(old: Any, new: Any) -> bool:
    try:
        return bool(old == new)
    except (ValueError, TypeError, RecursionError):  # arrays, and whatever else no JSON holds
        return False


def _is_under(key: str, path: str) -> bool:
    return key == path or key.startswith(path + ".")


def _completed(flat: dict[str, Any]) -> dict[str, Any]:
    """With what is meant where nothing is said."""
    for key in [key for key, value in flat.items() if _setting(key) == "order.shuffle" and value == "block"]:
        flat.setdefault(f"{key.removesuffix('shuffle')}window_blocks", _UNSAID_WINDOW_BLOCKS)
    return flat


def flattened(settings: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """The settings by path, "order.seed" say. Raises: ValueError for what nests deeper than any."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"settings nest {_MAX_DEPTH} deep at most, {shown(prefix)} is deeper; the state is damaged")
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.", depth + 1) or {f"{prefix}{key}": {}}
        else:
            flat[f"{prefix}{key}"] = value
    return flat
