"""NumPy's text scalars on their way to another process: np.bytes_ and np.str_, and classes of users that inherit these.

NumPy's own pickles of them, like its repr, drop the NULs that they end in, and the class of a user
(https://github.com/numpy/numpy/blob/v2.4.0/numpy/_core/src/multiarray/scalartypes.c.src, gentype_reduce). So they are
registered here with `copyreg`, which every pickler asks: this package's, Ray's, and the one that sends an exception.
What is pickled so needs NumPy alone to be read.
"""

from __future__ import annotations

import copyreg
from typing import Any

import numpy as np

TEXT = (np.bytes_, np.str_)


def keep_class(kind: type) -> None:
    """Have pickles keep the class, which inherits one of the two, unless it says itself how it is pickled."""
    base: Any = np.bytes_ if issubclass(kind, np.bytes_) else np.str_
    has_own = (kind.__reduce__, kind.__reduce_ex__) != (base.__reduce__, base.__reduce_ex__)
    if not has_own and kind not in copyreg.dispatch_table:
        copyreg.pickle(kind, _reduced)


def exact(value: Any) -> bytes | str:
    """All of its bytes or characters, as Python's own.

    >>> exact(np.bytes_(b"a\\0")), np.bytes_(b"a\\0").item()
    (b'a\\x00', b'a')
    """
    return bytes.join(b"", (value,)) if isinstance(value, bytes) else str.join("", (value,))


def said(value: Any) -> str:
    """Any value's repr; of these with the NULs that it leaves out."""
    if not isinstance(value, TEXT):
        return repr(value)
    nul: Any = b"\0" if isinstance(value, bytes) else "\0"
    text: Any = exact(value)
    return repr(value) + "\0" * (len(text) - len(text.rstrip(nul)))


def _reduced(value: Any) -> tuple[Any, ...]:
    base, kind = np.bytes_ if isinstance(value, bytes) else np.str_, type(value)
    return (base, (exact(value),)) if kind is base else (_anew, (base, kind, exact(value), vars(value)))


def _anew(base: Any, kind: type, value: bytes | str, attributes: dict[str, Any]) -> Any:
    made = base.__new__(kind, value)
    vars(made).update(attributes)
    return made


keep_class(np.bytes_)
keep_class(np.str_)
