"""The settings that a checkpoint records of its stream, and the refusal to continue another stream.

Settings are a nested dict of plain values that decide the sequence of batches. They are saved beside the position, and
compared value by value before a position is restored. Code is not compared: names and digests of transforms and stages
are recorded to inform people (INFORMING), and the rows themselves are compared instead; see plan.evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.plain_values import shown

VERSION = 1

_MAX_LISTED = 20  # settings that changed; a damaged state may have thousands
_MAX_DEPTH = 16  # no source's settings nest half as deep

# The last part of a path whose values may differ: they describe code.
INFORMING = ("names", "code")

# Remedies. {path}: the setting as allow_drift takes it; {head}: the part that names a component of a mixture, or "".
_NEW_RUN = "Set the old value, or start a new run."
_ON_PURPOSE = "Set the old value, or pass allow_drift=('{path}',) to continue with the new one on purpose."
_FILES = "Point the source to the original files"
_REREAD = "resuming would skip or repeat records"
_REORDERED = "records would be repeated and others never seen"
_FIELDS = (
    "the remaining elements would have other fields, or fields of other types",
    "Set the old columns=, exclude_columns=, column_types=, column_names=, delimiter= or on_null=, or pass "
    f"allow_drift=('{{path}}',) if the change is meant; if no argument changed: {_FILES}.",
)
_UNKNOWN = ("the stream would not be the same", _NEW_RUN)

# For each setting: the consequence of continuing, and the remedy. A prefix covers the paths under it.
_CONSEQUENCES = {
    "files": (
        _REREAD,
        f"{_FILES}, or start a new run. allow_drift=('{{path}}',) continues at the same position of the new "
        "files: some records of this epoch come again, and others never come.",
    ),
    "files.version": (
        f"a row may have another index in another version, and {_REREAD}",
        "To continue with the version of the checkpoint: set version= of the source's config to it. Or start a new "
        "run; allow_drift=('{head}files',) continues at the same position of the new version.",
    ),
    **dict.fromkeys(("files.schema", "files.columns", "files.lists"), _FIELDS),
    "files.on_null": ("the remaining elements would have other values in place of nulls", _ON_PURPOSE),
    "files.seeds": (f"interleave_datasets draws in another order, and {_REREAD}", _NEW_RUN),
    "order": (_REORDERED, _NEW_RUN),
    "order.num_epochs": ("the stream would end elsewhere", _ON_PURPOSE),
    "mixture": (_REORDERED, _NEW_RUN),
    "mixture.weights": (
        f"the components would continue elsewhere: {_REORDERED}",
        "Set the old weights, restore, and call pipeline.amend(weights=...) to continue with the new ones from here.",
    ),
    "mixture.length": ("the stream would end elsewhere", _ON_PURPOSE),
    "components": (
        "a component of the mixture would not continue as it was",
        "Give the source or mixture that the checkpoint was written with, or start a new run.",
    ),
    "batch_size": ("every later batch would hold other rows", _ON_PURPOSE),
    "drop_remainder": ("the last batch would be another", _ON_PURPOSE),
    "pad_remainder": ("the last batch would be another", _ON_PURPOSE),
    "packing": ("later rows would hold other tokens", _ON_PURPOSE),
    "transforms": ("the transform's own fingerprint() says that it makes other elements", _ON_PURPOSE),
    "stages": ("the stage's own fingerprint() says that it makes other batches", _ON_PURPOSE),
    "stages.key": (
        "the stages of the remaining batches would draw other random numbers",
        "Give each Pipeline an nnx.Rngs of its own with the old seed: another pipeline, or a model, that draws from "
        "the same Rngs moves it on. Or pass allow_drift=('{head}stages',) if the change is meant.",
    ),
    "on_error": ("broken records would be treated differently", _ON_PURPOSE),
}
_RENAMED = (
    "only their names differ; the bytes that were compared (both ends, and pages between) are the same in the same "
    "order",
    "Give the files their old names, or pass allow_drift=('{head}files.digest',) to read them under these.",
)


@dataclass(frozen=True)
class Difference:
    """A changed setting. saved, current: its values, None for a missing one. line: of the error."""

    setting: str
    saved: Any
    current: Any
    line: str


class DriftError(ValueError):
    """A checkpoint belongs to another stream: with other data, order, settings or rows.

    differences: every changed setting; the message lists the first 20. () if only rows differ.
    """

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


def check_drift(saved: Mapping[str, Any], current: Mapping[str, Any], allow: Iterable[str] = ()) -> None:
    """Raise DriftError unless the settings are equal, except for those at or under a path in `allow`.

    The error lists the settings that changed, with both values, the consequence and the remedy.

    >>> check_drift({"order": {"seed": 1}}, {"order": {"seed": 2}})
    Traceback (most recent call last):
    datarax_ray.plan.fingerprint.DriftError: the checkpoint belongs to another stream:
      order.seed: the checkpoint was written with 1, this pipeline has 2; records would be repeated and others never \
seen. Set the old value, or start a new run.
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
    changed = [key for key in _changed(saved, current) if not any(_is_under(key, path) for path in allowed)]
    if changed:
        others = _other_sources(saved, current)
        old, new = (
            {**of, **{key: kinds[index] for key, kinds in others.items()}} for index, of in enumerate((old, new))
        )
        beside = tuple(
            key.removesuffix("components") for key in others
        )  # of one source and of a mixture nothing is alike
        changed = [*others, *(key for key in changed if not key.startswith(beside))]
        found = [Difference(key, old.get(key), new.get(key), _describe(key, old, new)) for key in changed]
        raise DriftError(f"the checkpoint belongs to another stream:{listed([each.line for each in found])}", found)


def code_changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """The names of transforms and stages whose recorded code differs.

    >>> code_changes(*({"transforms": {"names": ["Crop"], "code": [code]}} for code in ("1f", "2e")))
    ['Crop']
    """
    old, new = flattened(saved), flattened(current)
    found: dict[str, None] = {}
    for path in sorted(path for path in old | new if path.endswith(".code")):
        before, now = old.get(path) or [], new.get(path) or []
        if before != now and isinstance(before, list):
            names_path = f"{path.removesuffix('code')}names"
            names = new.get(names_path) or old.get(names_path) or []
            each = [name for name, a, b in zip(names, before, now, strict=False) if a != b]
            found |= dict.fromkeys(map(str, each if len(before) == len(now) else names))
    return list(found)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """A line for each setting in which two running streams differ; "" for equal streams.

    >>> print(differences({"order": {"seed": 1}}, {"order": {"seed": 2}}))
    <BLANKLINE>
      order.seed: 1 and 2
    """
    return listed([f"{key}: {shown(old)} and {shown(new)}" for key, (old, new) in _changed(one, other).items()])


class _Missing:
    """The value of a missing setting; None is a value."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Both values of each setting that differs, by path; MISSING for a missing one.

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
    """The compared settings, by path.

    >>> without_code({"on_error": "raise", "transforms": {"names": ["Crop"], "code": ["1f"]}})
    {'on_error': 'raise'}
    """
    return {key: value for key, value in flattened(settings).items() if not _informs(key)}


def listed(lines: list[str], most: int = _MAX_LISTED) -> str:
    """The first lines, each on its own, and how many more there are."""
    more = [f"and {len(lines) - most} more settings"] if len(lines) > most else []
    return "".join(f"\n  {each}" for each in [*lines[:most], *more])


def _changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The changes of compared settings. A digest of the files' groups as block size follows from the files."""
    changed = {key: values for key, values in changes(one, other).items() if not _informs(key)}
    return {
        key: values
        for key, values in changed.items()
        if not (
            key.endswith("order.block_size")
            and all(isinstance(value, str) for value in values)
            and any(each.startswith(f"{key.removesuffix('order.block_size')}files.") for each in changed)
        )
    }


def _other_sources(saved: Any, current: Any, path: str = "") -> dict[str, tuple[str, str]]:
    """What reads where one source became a mixture, or a mixture has another number of sources, by path."""
    one, other = (of.get("components") if isinstance(of, Mapping) else None for of in (saved, current))
    sources = [of if isinstance(of, Mapping) else {} for of in (one, other)]
    if len(sources[0]) != len(sources[1]):
        kinds = [f"a mixture of {len(of)} sources" if of else "one source" for of in sources]
        return {f"{path}components": (kinds[0], kinds[1])}
    found: dict[str, tuple[str, str]] = {}
    for name, of in sources[0].items():
        found |= _other_sources(of, sources[1].get(name), f"{path}components.{name}.")
    return found


def _informs(key: str) -> bool:
    return key.rpartition(".")[2] in INFORMING and ("transforms." in key or "stages." in key)


def _describe(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    name = re.sub(r"^(components\.[^.]+\.)+", "", key)  # a setting of a component is described as the setting itself
    head = key.removesuffix(name)
    prefixes = [name.rsplit(".", n)[0] for n in range(name.count(".") + 1)]
    found = next((each for each in prefixes if each in _CONSEQUENCES), name)
    consequence, remedy = _CONSEQUENCES.get(found, _UNKNOWN)
    others = [f"{head}files.num_files", f"{head}files.content"]
    if name == "files.digest" and all(path in old and old[path] == new.get(path) for path in others):
        consequence, remedy = _RENAMED
    remedy = remedy.replace("{path}", f"{head}{found}").replace("{head}", head)
    if name == "components":
        return (
            f"{key}: the checkpoint was written with {old[key]}, this pipeline has {new[key]}; {consequence}. {remedy}"
        )
    before, now = (shown(of[key]) if key in of else "no such setting" for of in (old, new))
    values = f"the checkpoint was written with {before}, this pipeline has {now}"
    return f"{shown(key)[1:-1]}: {values}; {consequence}. {remedy}"


def _is_under(key: str, path: str) -> bool:
    return key == path or key.startswith(path + ".")
