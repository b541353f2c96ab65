"""What an argument must be where Python would take something else for it. Each answers the argument in a plain type."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def whole(name: str, value: Any, remedy: str = "") -> int:
    """The number as a plain int: NumPy's are not JSON, and a state holds them. Raises: TypeError for anything else.

    remedy: the end of the sentence.
    """
    try:
        if not isinstance(value, bool):  # True is a slip for another argument
            return operator.index(value)
    except TypeError:
        pass  # told below
    raise TypeError(f"{name} is a whole number, got {value!r}{remedy}")


def names(name: str, value: Any) -> tuple[str, ...]:
    """The names as a tuple. Raises: TypeError for what is no list of them, as one name alone: its letters are no names.

    >>> names("columns", ["a", "b"])
    ('a', 'b')
    """
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        value = tuple(value)
        if all(isinstance(item, str) for item in value):
            return value
        value = list(value)
    remedy = f"; write [{value!r}]" if isinstance(value, str) else ""
    raise TypeError(f"{name} is a list of names, got {value!r}{remedy}")


def mapping(name: str, value: Any, key: str) -> None:
    """Raise TypeError unless this is a dict by names. key: what the names are of."""
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name} is a dict by {key}, got {value!r}")


def nearest(unknown: Iterable[str], known: Iterable[str]) -> str:
    """A question for who mistyped names, with a space before it; "" where nothing is near.

    >>> nearest(["lable"], ["image", "label"])
    " Did you mean 'label'?"
    """
    known = list(known)
    found = [match for name in unknown for match in difflib.get_close_matches(name, known, 1)]
    return f" Did you mean {' and '.join(map(repr, found))}?" if found else ""


def flag(name: str, value: Any) -> bool:
    """The claim as a plain bool. Raises: TypeError for anything else: the text "false", of a file of settings, is true
    to Python, and 1000 is tf.data's buffer.

    >>> flag("shuffle", np.bool_(False))
    False
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} is True or False, got {value!r}")
