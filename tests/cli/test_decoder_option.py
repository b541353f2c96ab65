"""The --decoder option by value, and what is said of a wrong one."""

import re

import pytest

from datarax_ray.cli.arguments import parse_decoder
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", ()),
        (" msgpack ", (DecodeMsgpack(),)),
        ("json", (DecodeJson(),)),
        ("raw:float32", (DecodeRaw("float32", ()),)),
        ("raw:uint8:8,8", (DecodeRaw("uint8", (8, 8)),)),
        ("raw: >i4 : 2, 3", (DecodeRaw(">i4", (2, 3)),)),
        ("fields:image=uint8:8,8;label=uint8", (DecodeFields({"image": ("uint8", (8, 8)), "label": ("uint8", ())}),)),
        ("fields:b=int16;a=int8;", (DecodeFields({"b": ("int16", ()), "a": ("int8", ())}),)),
        ("example", (DecodeExample(),)),
        (
            "example:x=float32:3;tags=bytes:*;y=int64",
            (DecodeExample({"x": FixedLen("float32", (3,)), "tags": VarLen("bytes"), "y": FixedLen("int64")}),),
        ),
        ("image", (DecodeImage(),)),
        ("image:224,200,1", (DecodeImage((224, 200, 1)),)),
        ("image: 224, 200, 1", (DecodeImage((224, 200, 1)),)),
        ("image:jpg", (DecodeImage(field="jpg"),)),
        ("image:0.jpg", (DecodeImage(field="0.jpg"),)),
        ("image:jpg:224,200,1", (DecodeImage((224, 200, 1), field="jpg"),)),
    ],
)
def test_a_decoder_is_read(text, expected):
    assert parse_decoder(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("png", "'png' names no decoder; use one of none, raw, fields, msgpack, json, example, image"),
        ("", "'' names no decoder"),
        ("none:1", "none takes nothing after it, got 'none:1'; write 'none'"),
        ("json:x=int8", "json takes nothing after it"),
        ("raw", "'raw': the dtype is missing; a right one is 'raw:uint8:8,8'"),
        ("raw:unit8:8", "dtype 'unit8' is not a fixed-size number"),
        ("raw:uint8:8x8", "'8x8' is no shape: write sizes with commas between them"),
        ("raw:uint8:", "'' is no shape"),
        ("raw:uint8:-1", "'-1' is no shape"),
        ("fields", "'' is not NAME=DTYPE or NAME=DTYPE:SHAPE"),
        ("fields:image", "'image' is not NAME=DTYPE or NAME=DTYPE:SHAPE; a right one is 'fields:image="),
        ("fields:a=int8;a=int8", "the name 'a' comes twice"),
        ("fields:a=:3", "the dtype is missing"),
        ("example:x", "'x' is not NAME=DTYPE"),
        ("image:224,224", "'224,224' is no shape of an image: write height, width and channels with commas"),
        ("image:jpg:224", "'224' is no shape of an image"),
        ("image:224,224,4", "channels are 3 (RGB) or 1 (grey)"),
    ],
)
def test_a_wrong_decoder_is_explained(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_decoder(text)
