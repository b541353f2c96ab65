"""Sharded files: the shards that their names promise (train-00003-of-00006.parquet), and whether all are there."""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Literal, get_args

from datarax_ray.read.formats.remote.clients import redacted

logger = logging.getLogger("datarax_ray")

_OF = re.compile(
    r"(?P<before>.*?)(?P<number>\d+)(?P<of>[-_]of[-_])(?P<total>\d+)(?P<after>.*)", re.IGNORECASE | re.DOTALL
)
_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d{3,})(?P<after>\D*)", re.DOTALL)
_AT = re.compile(r"(?P<before>.*[^/@])@(?P<total>[1-9]\d{0,6})(?P<after>(\.[^/@]+)?)", re.DOTALL)
_SHOWN = 3


MissingShards = Literal["error", "warn"]
_POLICY: ContextVar[MissingShards] = ContextVar("missing_shards", default="error")
WITHOUT = "to go without, set missing_shards='warn' in the source's config, or give the files as a list"


class ShardsError(ValueError):
    """Files are shards of a set that is not whole, or of several sets."""


def check_policy(missing_shards: str) -> None:
    """Raise ValueError for a word that is no policy."""
    if missing_shards not in get_args(MissingShards):
        raise ValueError(f"missing_shards is 'error' or 'warn', got {missing_shards!r}")


@contextmanager
def going_by(policy: MissingShards) -> Iterator[None]:
    """What is looked up within, in this thread, goes by this policy about missing shards."""
    before = _POLICY.set(policy)
    try:
        yield
    finally:
        _POLICY.reset(before)


def policy() -> MissingShards:
    """About missing shards, here."""
    return _POLICY.get()


def report_missing(said: str) -> None:
    """Say that shards are missing: raise ShardsError, or log a warning, by the policy."""
    if policy() == "error":
        raise ShardsError(f"{said}. Bring back what is missing; {WITHOUT}")
    logger.warning("%s. What is there is read (missing_shards='warn')", said)


def shards_at(path: str) -> list[str]:
    """The shards that "path@6" or "path@6.parquet" names, as TFDS and Grain write it; [] for other paths.

    >>> shards_at("a/train.array_record@2")
    ['a/train.array_record-00000-of-00002', 'a/train.array_record-00001-of-00002']
    """
    found = _AT.fullmatch(path)
    if found is None:
        return []
    total = int(found["total"])
    return [f"{found['before']}-{number:05d}-of-{total:05d}{found['after']}" for number in range(total)]


def check_shards(given: str, files: Iterable[str], pattern: str = "") -> None:
    """Report shards that are missing among the files; raise ShardsError where they are of sets of different sizes.

    Names without a total (00003.tar) promise nothing, so a gap in their numbers is a warning.

    given: the directory or glob, for messages. pattern: the glob, which may mean some shards alone; "" for a directory.

    >>> check_shards("a", ["a/x-00000-of-00003.parquet", "a/x-00002-of-00003.parquet"])
    Traceback (most recent call last):
      ...
    datarax_ray.read.files.shards.ShardsError: a: 1 of the 3 shards is missing: x-00001-of-00003.parquet. Bring \
back what is missing; to go without, set missing_shards='warn' in the source's config, or give the files as a list
    """
    sets: dict[tuple[str, ...], dict[int, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    numbered: dict[tuple[str, ...], dict[int, str]] = defaultdict(dict)
    for path in files:
        folder, name = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
        if shard := _OF.fullmatch(name):
            suffix = shard["after"][shard["after"].find(".") :] if "." in shard["after"] else ""  # behind a hash
            sets[folder, shard["before"], shard["of"], suffix][int(shard["total"])][int(shard["number"])] = path
        elif plain := _NUMBERED.fullmatch(name):
            numbered[folder, plain["before"], plain["after"], str(len(plain["number"]))][int(plain["number"])] = path
    said = redacted(given)
    for totals in sets.values():
        if len(totals) > 1:
            one, two = (_name(min(totals[total].values())) for total in sorted(totals)[:2])
            counts = " and ".join(str(total) for total in sorted(totals))
            raise ShardsError(
                f"{said} holds sets of {counts} shards ({one}, {two}), so rows could come twice. Give a glob of one "
                f"set, as *-of-{two.lower().rpartition('of')[2][1:]}, or a list of files"
            )
        ((total, there),) = totals.items()
        begin = 1 if total in there and 0 not in there else 0
        if missing := _missing(there, range(begin, begin + total), _OF, pattern):
            names = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
            are = "is" if len(missing) == 1 else "are"
            report_missing(f"{said}: {len(missing)} of the {total} shards {are} missing: {names}")
    for there in numbered.values():
        if min(there) in (0, 1) and (missing := _missing(there, range(min(there), max(there)), _NUMBERED, pattern)):
            logger.warning(
                "%s: files are numbered up to %s, and %d of the numbers are missing, %s the first. All that are there "
                "are read.",
                said,
                _name(there[max(there)]),
                len(missing),
                missing[0],
            )


def _missing(there: dict[int, str], numbers: range, names: re.Pattern[str], pattern: str) -> list[str]:
    if len(there) >= len(numbers) + (numbers.stop in there):
        return []
    example = min(there.values())
    folder, name = os.path.split(example)
    found = names.fullmatch(name)
    assert found is not None
    start, stop = found.span("number")

    def named(number: int) -> str:
        return f"{name[:start]}{number:0{stop - start}d}{name[stop:]}"

    missing = [named(number) for number in numbers if number not in there]
    if pattern and fnmatchcase(example, pattern):
        return [each for each in missing if fnmatchcase(os.path.join(folder, each), pattern)]
    return missing


def _name(path: str) -> str:
    return path[path.rfind("/") + 1 :]
