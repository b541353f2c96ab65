"""Pipelines, sources and decoders, by the text that a command is given for them.

A pipeline or source is FILE.py:NAME or module:NAME. A decoder is one of

    none                                  raw:DTYPE[:SHAPE]       fields:NAME=DTYPE[:SHAPE];...
    msgpack    json                       example                 example:NAME=DTYPE[:SHAPE or *];...
    image[:FIELD][:H,W,C]

A SHAPE is sizes with commas; without one the value is a scalar. FIELD holds the image in an element that has fields,
for instance of a tar file; one that begins with a digit has a dot, as in 0.jpg.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from datarax_ray.feed.source import source_under
from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.plain_values import shown
from datarax_ray.read.decode import (
    DecodeExample,
    DecodeFields,
    DecodeImage,
    DecodeJson,
    DecodeMsgpack,
    DecodeRaw,
    FixedLen,
    VarLen,
)

if TYPE_CHECKING:
    from datarax_ray.pipeline import Pipeline


def pipeline_of(target: str) -> Pipeline:
    """The Pipeline of this name, or the result of the function of this name; see _named.

    Raises: ValueError for another object, with the remedy; what the file itself raises, with a note.
    """
    from datarax_ray.pipeline import Pipeline

    found = _named(target, "pipeline")
    if not isinstance(found, Pipeline):
        raise ValueError(f"{target} is a {type(found).__name__}; it must be a Pipeline, or a function that returns one")
    return found


def source_of(target: str) -> Any:
    """The source of this name, that of a Pipeline, or the result of the function of this name; see _named.

    Raises: as pipeline_of.
    """
    found = source_under(_named(target, "source"))
    if not hasattr(found, "describe"):
        raise ValueError(
            f"{target} is a {type(found).__name__}; it must be a source or a Pipeline, or a function that returns one"
        )
    return found


def names_a_pipeline(target: str) -> bool:
    """Whether a text has the form FILE.py:NAME or module:NAME, and is no folder."""
    where, _, name = target.rpartition(":")
    return bool(where) and name.isidentifier() and "://" not in target and not Path(target).is_dir()


def _named(target: str, kind: str) -> Any:
    """The object of this name, or the result of the function of this name, which is called without arguments.

    Raises: ValueError where there is no such name, and where the file ends the program; what the file itself raises,
    with a note.
    """
    where, _, name = target.rpartition(":")
    if not names_a_pipeline(target):
        raise ValueError(f"{target!r} names no {kind}; write train.py:make_{kind}, or package.module:make_{kind}")
    with _without_arguments(where, name):
        try:
            module = _script(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        except Exception as error:
            error.add_note(f"while {where} was imported to find {name}")
            raise
        if (found := getattr(module, name, None)) is None:
            have = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
            raise ValueError(
                f"{where} has no {name}; it has {', '.join(have) or 'no functions'}.{nearest([name], vars(module))}"
            )
        if not inspect.isroutine(found):
            return found
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise ValueError(
                f"{where}:{name} is called without arguments: {error}; give its arguments defaults, or name a function "
                "that calls it"
            ) from None
        return found()


@contextlib.contextmanager
def _without_arguments(where: str, name: str) -> Iterator[None]:
    """Hide the command's own arguments from the user's code."""
    before, sys.argv = sys.argv, [where]
    try:
        yield
    except SystemExit as end:
        if end.code == signal.SIGTERM:  # see screen.reporting_errors
            raise
        raise ValueError(
            f"{where} ended the program, with {shown(end.code)}, while {name} was made, without arguments on its "
            'command line: code that needs them, or trains, belongs under `if __name__ == "__main__":`'
        ) from end
    finally:
        sys.argv = before


def _script(path: Path) -> ModuleType:
    """Run a file as Python runs a script, except for its code under `if __name__ == "__main__":`.

    Actors get its definitions by value, as they may lack the file.
    """
    from ray import cloudpickle  # in here: the decoders do without Ray

    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    sys.path.insert(0, str(path.parent.absolute()))  # as Python does for a script
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)  # a name that no library has
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks there for the names in its annotations
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


def parse_decoder(text: str) -> tuple[Any, ...]:
    """The transforms for a source; () for "none".

    Raises: ValueError for another text, with its wrong part and an example.

    >>> parse_decoder("raw:uint8:8,8")
    (DecodeRaw(dtype='uint8', shape=(8, 8), field='data'),)
    >>> parse_decoder("none")
    ()
    """
    kind, colon, rest = text.strip().partition(":")
    if kind not in _KINDS:
        raise ValueError(f"{text!r} names no decoder; use one of {', '.join(_KINDS)}, such as {_KINDS['fields'][1]!r}")
    parse, example = _KINDS[kind]
    if colon and example == kind:
        raise ValueError(f"{kind} takes nothing after it, got {text!r}; write {kind!r}")
    try:
        return parse(rest)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; a right one is {example!r}") from error


def _image(rest: str) -> tuple[Any, ...]:
    is_shape = rest.strip()[:1].isdigit() and "." not in rest
    field, _, shape = ("", "", rest) if is_shape else rest.partition(":")
    options: dict[str, Any] = {"field": field.strip()} if field.strip() else {}
    if not shape:
        return (DecodeImage(**options),)
    sizes = _sizes(shape)
    if len(sizes) != 3:
        raise ValueError(f"{shape!r} is no shape of an image: write height, width and channels with commas")
    return (DecodeImage(sizes, **options),)


def _feature(text: str) -> FixedLen | VarLen:
    dtype, _, shape = text.partition(":")
    return VarLen(dtype) if shape.strip() == "*" else FixedLen(*_typed(text))


def _assignments(text: str) -> dict[str, str]:
    """NAME=VALUE;... as a dict in the same order. A ; at the end is allowed."""
    named: dict[str, str] = {}
    for part in text.removesuffix(";").split(";"):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise ValueError(f"{part!r} is not NAME=DTYPE or NAME=DTYPE:SHAPE")
        if name in named:
            raise ValueError(f"the name {name!r} comes twice")
        named[name] = value
    return named


def _typed(text: str) -> tuple[str, tuple[int, ...]]:
    """DTYPE or DTYPE:SHAPE. The decoder checks the dtype."""
    dtype, colon, shape = text.partition(":")
    if not dtype.strip():
        raise ValueError("the dtype is missing")
    return dtype.strip(), _sizes(shape) if colon else ()


def _sizes(text: str) -> tuple[int, ...]:
    sizes = [size.strip() for size in text.split(",")]
    if not all(size.isascii() and size.isdigit() for size in sizes):
        raise ValueError(f"{text!r} is no shape: write sizes with commas between them")
    return tuple(map(int, sizes))


def _fields(text: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: _typed(value) for name, value in _assignments(text).items()}


def _features(text: str) -> dict[str, FixedLen | VarLen] | None:
    return {name: _feature(value) for name, value in _assignments(text).items()} if text else None


# How to parse the text after the colon, and an example.
_KINDS: dict[str, tuple[Callable[[str], tuple[Any, ...]], str]] = {
    "none": (lambda _: (), "none"),
    "raw": (lambda text: (DecodeRaw(*_typed(text)),), "raw:uint8:8,8"),
    "fields": (lambda text: (DecodeFields(_fields(text)),), "fields:image=uint8:8,8;label=uint8"),
    "msgpack": (lambda _: (DecodeMsgpack(),), "msgpack"),
    "json": (lambda _: (DecodeJson(),), "json"),
    "example": (lambda text: (DecodeExample(_features(text)),), "example:x=float32:3;tags=bytes:*"),
    "image": (_image, "image:224,224,3"),
}
