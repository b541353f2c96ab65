"""The settings that a checkpoint records of its stream, and the refusal to continue another stream.

Settings are a nested dict of plain values that decide the sequence of batches. They are saved beside the position, and
compared value by value before a position is restored. Code is not compared: names and digests of transforms and stages
are recorded to inform people (INFORMING), and the rows themselves are compared instead; see plan.evidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datarax_ray.plan.arguments import nearest

VERSION = 1

_MAX_SHOWN = 200  # characters of a value in an error; what is saved is shorter
_MAX_LISTED = 20  # settings that changed; a damaged state may have thousands
_MAX_DEPTH = 16  # no source's settings nest half as deep

# The last part of a path whose values may differ: they describe code.
INFORMING = ("names", "code")

_NEW_RUN = "Set the old value, or start a new run."
_ON_PURPOSE = "Set the old value, or pass allow_drift=('{}',) to {} on purpose."
_ORDER = ("records would be repeated and others never seen", _NEW_RUN)
_REMAINDER = "the last batch would be another"
_FIELDS = "the remaining elements would have other fields, or fields of other types"
_FILES = "Point the source to the original files"
_UNKNOWN = ("the stream would not be the same", _NEW_RUN)

# For each setting: what would follow from continuing, and what to do. A prefix covers the paths under it.
_CONSEQUENCES = {
    "files": (
        "resuming would skip or repeat records",
        f"{_FILES}, or start a new run. allow_drift=('files',) continues at the same position of the new files: some "
        "records of this epoch come again, and others never come.",
    ),
    "files.version": (
        "a row may have another index in another version, and resuming would skip or repeat records",
        "To continue with the version of the checkpoint: set version= of the source's config to it. Or start a new "
        "run; allow_drift=('files',) continues at the same position of the new version.",
    ),
    "files.schema": (
        _FIELDS,
        "Set the old columns=, exclude_columns=, column_types=, column_names= or delimiter=, or pass "
        f"allow_drift=('files.schema',) if the change is meant; if no argument changed: {_FILES}.",
    ),
    "files.columns": (
        _FIELDS,
        "Set the old columns=, column_types= or fill_nulls=, or pass allow_drift=('files.columns',) if the change is "
        f"meant; if no argument changed: {_FILES}.",
    ),
    "files.lists": (
        _FIELDS,
        "Set the old columns=, exclude_columns= or fill_nulls=, or pass allow_drift=('files.lists',) if the change is "
        f"meant; if no argument changed: {_FILES}.",
    ),
    "files.fill_nulls": (
        "the remaining elements would have other values in place of nulls",
        _ON_PURPOSE.format("files.fill_nulls", "change them"),
    ),
    "files.seeds": (
        "interleave_datasets draws in another order, and resuming would skip or repeat records",
        "Give it the old seed, or start a new run.",
    ),
    "order": _ORDER,
    "order.num_epochs": ("the stream would end elsewhere", _ON_PURPOSE.format("order.num_epochs", "end it there")),
    "mixture": _ORDER,
    "mixture.weights": (
        "the components would continue elsewhere: records would be repeated and others never seen",
        "Set the old weights, restore, and call pipeline.amend(weights=...) to continue with the new ones from here.",
    ),
    "mixture.length": ("the stream would end elsewhere", _ON_PURPOSE.format("mixture.length", "end it there")),
    "components": (
        "a component of the mixture would not continue as it was",
        "Set its old data, order and on_error, or start a new run.",
    ),
    "batch_size": (
        "every later batch would hold other rows",
        _ON_PURPOSE.format("batch_size", "continue from the same record"),
    ),
    "drop_remainder": (_REMAINDER, _ON_PURPOSE.format("drop_remainder", "change it")),
    "pad_remainder": (_REMAINDER, _ON_PURPOSE.format("pad_remainder", "change it")),
    "packing": ("later rows would hold other tokens", _ON_PURPOSE.format("packing", "continue from the same token")),
    "transforms": (
        "the transform's own fingerprint() says that it makes other elements",
        _ON_PURPOSE.format("transforms", "change it"),
    ),
    "stages": (
        "the stage's own fingerprint() says that it makes other batches",
        _ON_PURPOSE.format("stages", "change it"),
    ),
    "stages.key": (
        "the stages of the remaining batches would draw other random numbers",
        "Give each Pipeline an nnx.Rngs of its own with the old seed: another pipeline, or a model, that draws from "
        "the same Rngs moves it on. Or pass allow_drift=('stages',) if the change is meant.",
    ),
    "on_error": ("broken records would be treated differently", _ON_PURPOSE.format("on_error", "change it")),
}
_RENAMED = (
    "only their names differ; the bytes that were compared (both ends, and pages between) are the same in the same "
    "order",
    "Give the files their old names, or pass allow_drift=('files.digest',) to read them under these.",
)


@dataclass(frozen=True)
class Difference:
    """A setting that changed. saved, current: its values, None where there is none. said: the line of the error."""

    setting: str
    saved: Any
    current: Any
    said: str


class DriftError(ValueError):
    """A checkpoint belongs to another stream than the one it is restored into: other data, order, settings or rows.

    differences: every setting that changed; the message lists the first 20. () where the rows differ.
    """

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


def check_drift(saved: Mapping[str, Any], current: Mapping[str, Any], allow: Iterable[str] = ()) -> list[str]:
    """Raise DriftError unless the settings are equal, except for those at or under a path in `allow`.

    The error lists the settings that changed, with both values, the consequence and the remedy. Returns the transforms
    and stages whose recorded code differs, by name.

    >>> check_drift({"order": {"seed": 1}}, {"order": {"seed": 2}})
    Traceback (most recent call last):
    datarax_ray.plan.fingerprint.DriftError: the checkpoint belongs to another stream:
      order.seed: the checkpoint was written with 1, this pipeline has 2; records would be repeated and others never \
seen. Set the old value, or start a new run.
    >>> check_drift(*({"transforms": {"names": ["Crop"], "code": [code]}} for code in ("1f", "2e")))
    ['Crop']
    """
    old, new = flattened(saved), flattened(current)
    allowed = (allow,) if isinstance(allow, str) else tuple(allow)
    unknown = [path for path in allowed if not any(_is_under(key, path) for key in [*old, *new])]
    if unknown:
        known = sorted({key for key in (*old, *new) if not _informs(key)} | {k.partition(".")[0] for k in (*old, *new)})
        raise ValueError(
            f"allow_drift names no setting: {unknown}.{nearest(unknown, known)} The settings are {known}; the name "
            "before a dot covers all behind it"
        )
    changed = [key for key in _changed(old, new) if not any(_is_under(key, path) for path in allowed)]
    if changed:
        found = [Difference(key, old.get(key), new.get(key), _describe(key, old, new)) for key in changed]
        raise DriftError(f"the checkpoint belongs to another stream:{listed([each.said for each in found])}", found)
    return code_changes(old, new)


def code_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The names of transforms and stages whose recorded code differs, by flattened settings."""
    found: dict[str, None] = {}
    for path in sorted(old.keys() | new.keys()):
        before, now = old.get(path) or [], new.get(path) or []
        if path.endswith(".code") and before != now and isinstance(before, list):
            names = new.get(f"{path.removesuffix('code')}names") or old.get(f"{path.removesuffix('code')}names") or []
            each = [name for name, a, b in zip(names, before, now, strict=False) if a != b]
            found |= dict.fromkeys(map(str, each if len(before) == len(now) else names))
    return list(found)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """A line for each setting in which two streams that run at one time differ; "" where they are one.

    >>> print(differences({"order": {"seed": 1}}, {"order": {"seed": 2}}))
    <BLANKLINE>
      order.seed: 1 and 2
    """
    old, new = flattened(one), flattened(other)
    return listed([f"{key}: {shown(old.get(key))} and {shown(new.get(key))}" for key in _changed(old, new)])


class _Missing:
    """The value of a setting that is not there; None is a value."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Both values of each setting in which two differ, by path; MISSING for one that is not there.

    >>> changes({"order": {"seed": None, "salt": 1}}, {"order": {"salt": 2}})
    {'order.salt': (1, 2), 'order.seed': (None, missing)}
    """
    old, new = flattened(one), flattened(other)
    both = {key: (old.get(key, MISSING), new.get(key, MISSING)) for key in sorted(old | new)}
    return {key: (before, now) for key, (before, now) in both.items() if before != now}


def flattened(settings: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """The settings by path, such as "order.seed". Raises: ValueError for settings that nest too deep."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"settings nest {_MAX_DEPTH} deep at most, {shown(prefix)} is deeper; the state is damaged")
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.", depth + 1) or {f"{prefix}{key}": {}}
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def without_code(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are compared, by path.

    >>> without_code({"on_error": "raise", "transforms": {"names": ["Crop"], "code": ["1f"]}})
    {'on_error': 'raise'}
    """
    return {key: value for key, value in flattened(settings).items() if not _informs(key)}


def listed(lines: list[str], most: int = _MAX_LISTED) -> str:
    """The first lines, each on its own, and how many more there are."""
    more = [f"and {len(lines) - most} more settings"] if len(lines) > most else []
    return "".join(f"\n  {each}" for each in [*lines[:most], *more])


def digest(value: Any) -> str:
    """Sixteen hex digits of SHA-256 over the canonical JSON of a plain value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shown(value: Any) -> str:
    """A value of any kind as an error shows it: its repr, cut where it is long.

    A Dataset of Ray Data is shown by its class: its repr reads all of it, on the cluster.

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


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    changed = [
        key
        for key in sorted(old.keys() | new.keys())
        if not _informs(key) and (key not in old or key not in new or not _is_same(old[key], new[key]))
    ]
    # blocks that are groups of files follow from the files
    return [key for key in changed if not (_files_of(key, old, new) and _files_of(key, old, new) in _heads(changed))]


def _heads(keys: Iterable[str]) -> set[str]:
    return {f"{key[: key.index('files.')]}files" for key in keys if "files." in key}


def _files_of(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The files that a block size follows from, where blocks are groups of files; "" for every other setting."""
    head = key.removesuffix("order.block_size")
    return f"{head}files" if head != key and isinstance(old.get(key), str) and isinstance(new.get(key), str) else ""


def _informs(key: str) -> bool:
    return key.rpartition(".")[2] in INFORMING and ("transforms." in key or "stages." in key)


def _describe(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    name = _setting(key)
    prefixes = [name.rsplit(".", n)[0] for n in range(name.count(".") + 1)]
    consequence, remedy = next((_CONSEQUENCES[p] for p in prefixes if p in _CONSEQUENCES), _UNKNOWN)
    head = key.removesuffix("digest")
    if name == "files.digest" and all(
        f"{head}{each}" in old and old[f"{head}{each}"] == new.get(f"{head}{each}") for each in ("num_files", "content")
    ):
        consequence, remedy = _RENAMED
    remedy = remedy.replace("allow_drift=('", f"allow_drift=('{key.removesuffix(name)}")  # whole, of a component
    values = f"the checkpoint was written with {shown(old.get(key))}, this pipeline has {shown(new.get(key))}"
    return f"{shown(key)[1:-1]}: {values}; {consequence}. {remedy}"


def _setting(key: str) -> str:
    """The setting within a component of a mixture ("components.2.order.seed") is described as the setting itself."""
    of_component = key.split(".", 2)[2:] if key.startswith("components.") else []
    return _setting(of_component[0]) if of_component else key


def _is_same(old: Any, new: Any) -> bool:
    try:
        return bool(old == new)
    except (ValueError, TypeError, RecursionError):  # arrays, and other values that no JSON holds
        return False


def _is_under(key: str, path: str) -> bool:
    return key == path or key.startswith(path + ".")
