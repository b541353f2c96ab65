"""Data that is known by its name: "hf:NAME", "imagefolder:DIR", and what Hugging Face's `datasets` saved."""

from __future__ import annotations

import os
import re
from typing import Any

from datarax_ray.plan.arguments import nearest
from datarax_ray.read.formats.hugging_face.load import is_saved, only_split

# Read by name, and not by what files begin with.
KINDS = ("hf", "imagefolder")


def kind_of(paths: Any, split: str | None) -> tuple[str | None, str]:
    """What stands before the colon, and the name behind it; None for paths.

    Raises: ValueError for a mistyped one, and for a split of what is no dataset of Hugging Face.
    """
    kind, name = _named(paths)
    if split is not None and kind != "hf":
        where = f"{paths}/{split}" if kind == "imagefolder" else "the paths of its files, or hold out some by a filter"
        raise ValueError(f"split={split!r} is of a dataset of the hub, and {paths!r} is none; give {where}")
    return kind, name


def split_of(name: str, split: str | None) -> str:
    """The split that is read where none is named: the only one that was saved, or "train"."""
    return split or only_split(name) or "train"


def _named(paths: Any) -> tuple[str | None, str]:
    if isinstance(paths, str | os.PathLike) and is_saved(paths):
        return "hf", os.fspath(paths)
    named = re.fullmatch(r"(\w+):(?!//)(.*)", paths) if isinstance(paths, str) else None
    if named is None or os.path.exists(paths):
        return None, ""
    if named[1] in KINDS and not named[2]:
        raise ValueError(f"{paths!r} names nothing: it is {named[1]}:NAME")
    if named[1] not in KINDS and (hint := nearest([named[1]], KINDS)):
        raise ValueError(f"{named[1]!r} names no kind of data; those are {', '.join(KINDS)}.{hint}")
    return (named[1], named[2]) if named[1] in KINDS else (None, "")
