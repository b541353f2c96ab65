"""What is saved of what was told: names for people and a few digits each, the same wherever the code lies."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.identity.program_folders import folder_of

_MAX_NAME = 80  # bytes, as JSON
_MAX_USED = 8  # that are told one by one, to name the one that changed, with the others in one digest
_MAX_USED_NAME = 40


def few(digests: Mapping[str, str]) -> dict[str, str]:
    """A few digits for each of the first, by a name for people, and one digest of the others."""
    found: dict[str, str] = {}
    rest = sorted(digests.items())
    while rest and len(found) < _MAX_USED:
        name, each = rest.pop(0)
        label = name.encode("ascii", "replace").decode()[-_MAX_USED_NAME:]
        found[label] = digest([found.get(label), each])[:4]
    return found | ({"others": digest(rest)} if rest else {})


def rest_of(digests: Mapping[str, str]) -> dict[str, str]:
    """Those of which `few` tells one digest."""
    return dict(sorted(digests.items())[_MAX_USED:])


def held(index: int, code: Any, digests: Mapping[str, str]) -> dict[str, str]:
    """A few digits for each attribute of an object, by a name for people. index: of the object among its like."""
    return {f"{index} {type(code).__name__}.{name}"[:_MAX_NAME]: found[:4] for name, found in digests.items()}


def label_of(transform: Any) -> str:
    name = (getattr(transform, "__qualname__", None) or type(transform).__qualname__)[:_MAX_NAME]
    while len(json.dumps(name)) > _MAX_NAME:  # a character may take six bytes there
        name = name[:-1]
    return name


def without_folders(told: Any, *modules: str) -> str:
    """The JSON of a plain value, the same wherever these modules lie: without the folders from which they are
    imported.
    """
    text = json.dumps(told, sort_keys=True)
    for folder in sorted(set(map(folder_of, modules)) - {""}, key=len, reverse=True):
        text = text.replace(json.dumps(folder)[1:-1], "")
    return text


class Kinds:
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
