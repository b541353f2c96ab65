"""Checks of arguments that Python would accept and misread. They return arguments in plain types."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


def whole(name: str, value: Any, remedy: str = "", *, least: int | None = None) -> int:
    """The number as a plain int, which a state can hold: NumPy's are not JSON.

    remedy: the end of the sentence. Raises: TypeError for another type; ValueError for less than `least`.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)  # True is a slip for another argument
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"{name} is a whole number, got {value!r}{remedy}")
    if least is not None and found < least:
        raise ValueError(f"{name} must be at least {least}, got {found}")
    return found


def positive(name: str, value: Any) -> None:
    """Raise TypeError unless this is a number, ValueError unless it is more than 0.

    >>> positive("timeout_s", 0.5)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} is a number, got {value!r}")
    if not value > 0:
        raise ValueError(f"{name} must be more than 0, got {value}")


def names(name: str, value: Any) -> tuple[str, ...]:
    """The names as a tuple. Raises: TypeError for another type, and for one name: its letters are no names.

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


def ordered(name: str, value: Any) -> None:
    """Raise TypeError for a set where order counts: each process hashes text differently and would use its own order.

    >>> ordered("weights", [0.7, 0.3])
    """
    if isinstance(value, set | frozenset):
        raise TypeError(f"{name} is a {type(value).__name__}, which has no order; give a list")


def mapping(name: str, value: Any, key: str) -> None:
    """Raise TypeError unless this is a dict with text as keys. key: what a key names."""
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name} is a dict by {key}, got {value!r}")


def nearest(unknown: Iterable[str], known: Iterable[str]) -> str:
    """The known names nearest to mistyped ones, as a question with a space before it; "" if none is near.

    >>> nearest(["lable"], ["image", "label"])
    " Did you mean 'label'?"
    """
    known = list(known)
    found = [match for name in unknown for match in difflib.get_close_matches(name, known, 1)]
    return f" Did you mean {' and '.join(map(repr, found))}?" if found else ""


def flag(name: str, value: Any) -> bool:
    """The value as a plain bool. Raises: TypeError for another value: Python takes "false" and 1000 for true.

    >>> flag("shuffle", np.bool_(False))
    False
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} is True or False, got {value!r}")


def check_names(called: Callable[..., Any], given: Iterable[str], num_unnamed: int = 0) -> None:
    """Raise TypeError unless `called` takes arguments of these names, and so many without a name.

    The message proposes the nearest name. Python 3.13 does so for functions, but for no class with a metaclass.
    """
    if not given and not num_unnamed:
        return
    parameters = inspect.signature(called).parameters.values()
    kinds = [each.kind for each in parameters]
    most = sum(each in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in kinds)
    if num_unnamed > most and inspect.Parameter.VAR_POSITIONAL not in kinds:
        needed = ", ".join(f"{each.name}=..." for each in parameters if each.default is each.empty)
        raise TypeError(
            f"{called.__name__} takes {most or 'no'} argument{'' if most == 1 else 's'} without a name, got "
            f"{num_unnamed}; write {called.__name__}({needed or '...'})"
        )
    known = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    unknown = [name for name in given if name not in known]
    if not unknown or inspect.Parameter.VAR_KEYWORD in kinds:  # the function that gets the rest checks them
        return
    remedy = _taken_beside(called, unknown) or nearest(unknown, known) or f" It takes {', '.join(known) or 'none'}"
    raise TypeError(f"{called.__name__} takes no argument {' and '.join(map(repr, unknown))}.{remedy}")


def _taken_beside(called: Callable[..., Any], names: Sequence[str]) -> str:
    """The class of a source's config, or of a config's source, if it takes these names; "" otherwise.

    Of a function, as load is: the public configs, Pipeline and RaySource.
    """
    scope, about = vars(sys.modules[called.__module__]), called.__name__.removesuffix("Config").removesuffix("Module")
    others = [scope.get(about + suffix) for suffix in ("Config", "", "Module")]
    if not inspect.isclass(called):
        others = [*_public("datarax_ray.sources", "Config"), *_public("datarax_ray", ("Pipeline", "RaySource"))]
    found: dict[str, list[str]] = {}
    for other in others:
        if inspect.isclass(other) and other is not called:
            taken = [name for name in names if name in inspect.signature(other).parameters]
            if taken:
                found.setdefault("it" if len(names) == 1 else " and ".join(map(repr, taken)), []).append(other.__name__)
    for what, takers in found.items():
        return f" {', '.join(takers)} take{'s' if len(takers) == 1 else ''} {what}"
    return ""


def _public(module: str, suffix: str | tuple[str, ...]) -> list[Any]:
    names = [name for name in getattr(sys.modules.get(module), "__all__", ()) if name.endswith(suffix)]
    return [getattr(sys.modules[module], name) for name in names]


class NamedArguments:
    """Base of classes that users make: the error for a misspelt argument proposes the right one.

    A plain base class, because NNX modules have a metaclass.

    >>> class Crop(NamedArguments):
    ...     def __init__(self, size, padding=0): ...
    >>> Crop(8, paddin=2)
    Traceback (most recent call last):
    TypeError: Crop takes no argument 'paddin'. Did you mean 'padding'?
    """

    def __new__(cls, *args: Any, **named: Any) -> Self:
        check_names(cls, named, len(args))
        return super().__new__(cls)


def named_arguments(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
    @functools.wraps(function)
    def call(*args: _P.args, **named: _P.kwargs) -> _Result:
        check_names(function, named)
        return function(*args, **named)

    return call
