"""What a state records of code: names, and a digest of each object's own text and plain attributes.

It informs people, and never refuses: the rows are compared instead (plan.evidence). An object whose method
`fingerprint() -> str` names what decides its results is the exception: another fingerprint refuses a state.
Nothing here follows what code calls.
"""

from __future__ import annotations

import functools
import inspect
import tokenize
import types
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from datarax_ray.plan.plain_values import digest

_MAX_EACH = 16  # objects that are recorded one by one
_MAX_NAME = 24  # characters, the last ones
_MAX_TEXT = 64  # characters of a fingerprint(); a longer one is recorded as its digest
_MAX_ATTRIBUTE = 2000  # characters of an attribute's repr that is plain
_LEN = 8
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def code_digests(objects: Iterable[Any]) -> dict[str, Any]:
    """Three entries. names, code: the name and a digest of each object. fingerprints: by number and name, if any.

    >>> code_digests([len])["names"]
    ['len']
    """
    given = tuple(objects)
    names = [name_of(each)[-_MAX_NAME:] for each in given]
    code = [digest(_parts(each))[:_LEN] for each in given]
    said = {f"{number} {name}": _own(each) for number, (name, each) in enumerate(zip(names, given, strict=True))}
    own = {name: text for name, text in said.items() if text is not None}
    if len(given) > _MAX_EACH:
        names = [*names[:_MAX_EACH], f"{len(given) - _MAX_EACH} more"]
        code = [*code[:_MAX_EACH], digest(code[_MAX_EACH:])[:_LEN]]
        own = {"all": digest(own)} if own else {}
    return {"names": names, "code": code} | ({"fingerprints": own} if own else {})


def name_of(value: Any) -> str:
    """The name of a function or class, or of an object's class."""
    found = getattr(value, "__qualname__", None)
    return found if isinstance(found, str) else type(value).__qualname__


def _own(value: Any) -> str | None:
    """The text of the object's fingerprint(), None where it has none."""
    method = None if inspect.isclass(value) else getattr(value, "fingerprint", None)
    if not callable(method):
        return None
    text = str(method())
    return text if len(text) <= _MAX_TEXT else digest(text)


def _parts(value: Any) -> Any:
    """The text and plain attributes of a value, as plain values."""
    if isinstance(value, functools.partial):
        return ["partial", _parts(value.func), _plain(value.args), _plain(value.keywords)]
    if isinstance(value, types.MethodType):
        return [_parts(value.__func__), _parts(value.__self__)]
    value = inspect.unwrap(value) if isinstance(value, types.FunctionType) else value
    if isinstance(value, types.FunctionType | type):
        return _text(value)
    kind: Any = type(value)
    attributes = getattr(value, "__dict__", {})
    return [_text(kind), {name: text for name, held in attributes.items() if (text := _plain(held))}]


@functools.lru_cache(maxsize=1024)  # of a class, inspect reads its whole file
def _text(code: Any) -> str:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # a builtin, or text in no file of Python
        return f"{code.__module__}.{code.__qualname__}"


def _plain(value: Any) -> str:
    """The repr of a plain value, and of lists, dicts and dataclasses of plain values; "" for any other."""
    text = repr(value) if _is_plain(value, 4) else ""
    return text if len(text) <= _MAX_ATTRIBUTE else digest(text)


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, list | tuple):
        return bool(depth) and len(value) <= _MAX_ATTRIBUTE and all(_is_plain(each, depth - 1) for each in value)
    if isinstance(value, dict):
        return _is_plain([*value, *value.values()], depth)
    if is_dataclass(value) and not isinstance(value, type):
        return _is_plain([getattr(value, field.name, None) for field in fields(value)], depth)
    return isinstance(value, _PLAIN)
