"""What an argument must be where Python would take something else for it. Each answers the argument in a plain type."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


def whole(name: str, value: Any, remedy: str = "") -> int:
    """The number as a plain int: NumPy's are not JSON, and a state holds them. Raises: TypeError for anything else.

    remedy: the end of the sentence.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, got {value!r}{remedy}") from None


def flag(name: str, value: Any) -> bool:
    """The claim as a plain bool. Raises: TypeError for anything else: the text "false", of a file of settings, is true
    to Python, and 1000 is tf.data's buffer.

    >>> flag("shuffle", np.bool_(False))
    False
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} is True or False, got {value!r}")
