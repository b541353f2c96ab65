"""The --decoder option: from its text to the transforms that it names.

    none                                  raw:DTYPE[:SHAPE]       fields:NAME=DTYPE[:SHAPE];...
    msgpack    json                       example                 example:NAME=DTYPE[:SHAPE or *];...
    image[:FIELD][:H,W,C]

A SHAPE is sizes with commas; without one it is a scalar. A FIELD is what holds the image in an element that has fields,
of a tar file say; one that begins with a digit has a dot, as in 0.jpg.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def parse_decoder(text: str) -> tuple[Any, ...]:
    """The transforms for a source; () for "none".

    Raises: ValueError for what is no decoder, with the part that is wrong and an example of a right one.

    >>> parse_decoder("raw:uint8:8,8")
    (DecodeRaw(dtype='uint8', shape=(8, 8), field='data'),)
    >>> parse_decoder("none")
    ()
    """
    kind, colon, rest = text.strip().partition(":")
    if kind not in _KINDS:
        raise ValueError(f"{text!r} names no decoder; use one of {', '.join(_KINDS)}, such as {_EXAMPLES['fields']!r}")
    if colon and kind in ("none", "msgpack", "json"):
        raise ValueError(f"{kind} takes nothing after it, got {text!r}; write {kind!r}")
    try:
        return _KINDS[kind](rest)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; an example of a right one is {_EXAMPLES[kind]!r}") from error


def _raw(rest: str) -> tuple[Any, ...]:
    return (DecodeRaw(*_typed(rest)),)


def _fields(rest: str) -> tuple[Any, ...]:
    return (DecodeFields({name: _typed(value) for name, value in _named(rest).items()}),)


def _example(rest: str) -> tuple[Any, ...]:
    return (DecodeExample({name: _feature(value) for name, value in _named(rest).items()} if rest else None),)


def _image(rest: str) -> tuple[Any, ...]:
    is_shape = rest.strip()[:1].isdigit() and "." not in rest
    field, _, shape = ("", "", rest) if is_shape else rest.partition(":")
    options: dict[str, Any] = {"field": field.strip()} if field.strip() else {}
    if shape:
        height, width, channels = _sizes(shape, count=3)
        return (DecodeImage((height, width, channels), **options),)
    return (DecodeImage(**options),)


def _feature(text: str) -> FixedLen | VarLen:
    dtype, _, shape = text.partition(":")
    return VarLen(dtype) if shape.strip() == "*" else FixedLen(*_typed(text))


def _named(text: str) -> dict[str, str]:
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


def _sizes(text: str, count: int | None = None) -> tuple[int, ...]:
    sizes = [size.strip() for size in text.split(",")]
    if not all(size.isascii() and size.isdigit() for size in sizes) or (count is not None and len(sizes) != count):
        many = f"{count} sizes" if count else "sizes"
        raise ValueError(f"{text!r} is no shape: write {many} with commas between them")
    return tuple(map(int, sizes))


_KINDS: dict[str, Callable[[str], tuple[Any, ...]]] = {
    "none": lambda _: (),
    "raw": _raw,
    "fields": _fields,
    "msgpack": lambda _: (DecodeMsgpack(),),
    "json": lambda _: (DecodeJson(),),
    "example": _example,
    "image": _image,
}
_EXAMPLES = {
    "none": "none",
    "raw": "raw:uint8:8,8",
    "fields": "fields:image=uint8:8,8;label=uint8",
    "msgpack": "msgpack",
    "json": "json",
    "example": "example:x=float32:3;tags=bytes:*",
    "image": "image:224,224,3",
}
