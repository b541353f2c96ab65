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
        (" DecodeMsgpack ", (DecodeMsgpack(),)),
        ("DecodeJson()", (DecodeJson(),)),
        ("DecodeMsgpack(arrays={'x': 'int32'})", (DecodeMsgpack(arrays={"x": "int32"}),)),
        ("DecodeRaw('>i4', (2, 3))", (DecodeRaw(">i4", (2, 3)),)),
        (
            "DecodeFields({'b': ('int16', ()), 'a': ('int8', 2)})",
            (DecodeFields({"b": ("int16", ()), "a": ("int8", 2)}),),
        ),
        ("DecodeExample", (DecodeExample(),)),
        (
            "DecodeExample({'x': FixedLen('float32', (3,), default=-1), 'tags': VarLen('bytes')})",
            (DecodeExample({"x": FixedLen("float32", (3,), default=-1), "tags": VarLen("bytes")}),),
        ),
        ("DecodeImage((224, 200, 1), field='0.jpg')", (DecodeImage((224, 200, 1), field="0.jpg"),)),
    ],
)
def test_a_decoder_is_read(text, expected):
    assert parse_decoder(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("png", "'png' names no decoder: png is none of DecodeAudio, DecodeExample, "),
        ("", "'' names no decoder: invalid syntax"),
        ("PadTo({'x': 3})", "it is none of DecodeAudio"),
        ("7", "it is none of DecodeAudio"),
        ("DecodeRaw", "missing 1 required positional argument: 'dtype'"),
        ("DecodeRaw('unit8', 8)", "dtype 'unit8' is not a fixed-size number"),
        ("DecodeRaw('uint8', -1)", "shape -1 has a negative size"),
        ("DecodeRaw('uint8', print('run'))", "print('run') is none of DecodeAudio"),
        ("DecodeRaw('uint8', (8).real)", "malformed node"),
        ("DecodeFields({**{}})", "malformed node"),
        ("DecodeRaw(**{'dtype': 'uint8'})", "names no decoder"),
        ("DecodeImage((224, 224, 4))", "channels are 3 (RGB) or 1 (grey)"),
        ("DecodeImage(shap=3)", "shap"),
    ],
)
def test_a_wrong_decoder_is_explained_and_nothing_else_is_run(text, said, capsys):
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_decoder(text)
    assert capsys.readouterr().out == ""
