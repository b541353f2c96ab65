"""The digest of a plain value, and the text of any value for people."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_MAX_SHOWN = 200  # characters of a value in an error; what is saved is shorter


def digest(value: Any) -> str:
    """Sixteen hex digits of SHA-256 over the canonical JSON of a plain value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shown(value: Any) -> str:
    """The repr of any value for an error message, cut where it is long.

    A Dataset of Ray Data is shown by its class: its repr reads all of it, on the cluster.

    >>> shown("a" * 300)[-12:]
    'aaaaaaaaa...'
    """
    if type(value).__module__.startswith("ray.data."):
        return f"a {type(value).__name__} of Ray Data"
    try:
        text = repr(value)
    except Exception as error:  # of a user's __repr__; an integer of thousands of digits; lists in lists in lists
        return f"a {type(value).__name__}, whose repr is an error: {type(error).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
