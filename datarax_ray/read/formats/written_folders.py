"""Whether files are those that `convert` or `materialize` wrote to their folder: `dataset.json` there says which."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from datarax_ray.read.formats.inspecting import inspect_all

FINISHED = "dataset.json"
UNFINISHED = "dataset.json.unfinished"
SHARD = re.compile(r"data-\d{5,}-of-\d{5,}\.\w+")


def check_folders(paths: Iterable[str], seen: Callable[[str], tuple[int, str]]) -> None:
    """Look whether these files of this machine are whole where they lie in folders that were written here.

    seen: the size of a file, and the digest of its content (see read.identity.contents).

    Raises: ValueError for a folder that was not written to its end, or of which a file lacks, and for a file there that
    is another one than was written.
    """
    folders: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        folders.setdefault(os.path.dirname(path) or ".", []).append(path)
    for folder, found in folders.items():
        shards = _shards_in(folder)
        if shards is None:
            if os.path.exists(os.path.join(folder, UNFINISHED)):
                raise not_finished(folder)
            continue
        remedy = f"or, where that is meant, remove {FINISHED} from there"
        if missing := sorted(name for name in shards if not os.path.exists(os.path.join(folder, name))):
            raise ValueError(
                f"{folder}: {len(missing)} of the {len(shards)} files that were written there are gone, {missing[0]} "
                f"the first; copy the folder anew, {remedy}"
            )
        names = {path: os.path.basename(path) for path in found}
        if strange := next(
            (path for path in found if names[path] not in shards and SHARD.fullmatch(names[path])), None
        ):
            raise ValueError(
                f"{strange} is none of the {len(shards)} files that were written there; take it away, {remedy}"
            )
        mine = [path for path in found if names[path] in shards]
        for path, now in zip(mine, inspect_all(seen, mine) if mine else [], strict=True):
            check_shard(path, shards[names[path]], *now)


def check_shard(path: str, shard: Mapping[str, Any], nbytes: int, content: str) -> None:
    """Raise ValueError where a file is another one than was written. shard: what `dataset.json` says of it."""
    if (nbytes, content) != (was := (shard["nbytes"], shard["content"])):
        others = "others" if nbytes == was[0] else f"{was[0]:,}"
        raise ValueError(
            f"{path} is not the file that was written: it has {nbytes:,} bytes, and {others} were written. Copy it "
            f"anew, write all anew, or, where that is meant, remove {FINISHED} from there"
        )


def not_finished(folder: str) -> ValueError:
    """The error for a folder in which a run of convert or materialize has begun, and not ended."""
    return ValueError(
        f"{folder} was not written to its end: run the same command, or call materialize, again, which goes on, or "
        f"remove {UNFINISHED} from there to read what is whole"
    )


def _shards_in(folder: str) -> dict[str, Mapping[str, Any]] | None:
    """What was written to a folder, by name; None where nothing says so."""
    try:
        with open(os.path.join(folder, FINISHED), "rb") as file:
            told = json.load(file)
        return {shard["name"]: {key: shard[key] for key in ("nbytes", "content")} for shard in told["shards"]} or None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none of ours
        return None
