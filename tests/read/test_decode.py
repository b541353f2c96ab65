"""Decoders against the standard library's own encoders and bytes written by hand."""

import dataclasses
import functools
import io
import json
import math
import pickle
import re
import struct
import subprocess
import sys
import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.read.decode import (
    DecodeExample,
    DecodeFields,
    DecodeImage,
    DecodeJson,
    DecodeMsgpack,
    DecodeRaw,
    FixedLen,
    PadTo,
    VarLen,
)


def assert_same(found, expected):
    """Compare elements whole: names in order, and of every value type, dtype, shape and content."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert type(found[name]) is type(value), name
        if isinstance(value, np.ndarray | np.generic):
            assert found[name].dtype == value.dtype, name
            np.testing.assert_array_equal(found[name], value, strict=True)
        else:
            assert found[name] == value, name


# Records of one size


def test_raw_records_become_the_rows_of_one_writable_array():
    records = [struct.pack("<3i", 1, -2, 3), struct.pack("<3i", 4, 5, 2**31 - 1)]
    block = DecodeRaw("int32", (3,)).decode(records)
    assert_same(block, {"data": np.array([[1, -2, 3], [4, 5, 2**31 - 1]], "int32")})
    block["data"][0, 0] = 9
    assert records[0] == struct.pack("<3i", 1, -2, 3)


def test_raw_numbers_of_any_dtype_and_shape():
    assert_same(DecodeRaw("float64", field="x").decode([struct.pack("<d", 0.1)]), {"x": np.array([0.1])})
    swapped = DecodeRaw(">u2", 2).decode([struct.pack(">2H", 1, 256)])
    assert_same(swapped, {"data": np.array([[1, 256]], "uint16")})
    assert swapped["data"].dtype.isnative
    block = DecodeRaw("bfloat16", (2,)).decode([b"".join(struct.pack("<f", x)[2:] for x in (1.5, -2.0))])
    assert (block["data"].dtype.name, block["data"].tolist()) == ("bfloat16", [[1.5, -2.0]])
    assert_same(DecodeRaw("int8", (2, 3)).decode([]), {"data": np.zeros((0, 2, 3), "int8")})
    assert_same(DecodeRaw("int8", (0,)).decode([b"", b""]), {"data": np.zeros((2, 0), "int8")})


def test_raw_record_of_another_size_is_refused_even_when_the_total_is_right():
    decoder = DecodeRaw("int16", (2,))
    with pytest.raises(ValueError, match=r"a record of 3 bytes is not the 4 bytes of int16 \(2,\)"):
        decoder.decode([b"123", b"12345"])
    with pytest.raises(ValueError, match="a record of 0 bytes"):
        decoder.decode([b""])
    with pytest.raises(ValueError, match=r"6 bytes is not the 5 bytes of a uint8 \(\), b int32 \(\)"):
        DecodeFields({"a": ("uint8", ()), "b": ("int32", ())}).decode([b"123456"])


F32 = st.floats(width=32)


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(-(2**63), 2**63 - 1), F32, F32), max_size=5))
def test_packed_fields_read_what_struct_packs(rows):
    decoder = DecodeFields({"a": ("uint8", ()), "b": ("int64", ()), "c": ("float32", (2,))})
    expected = {
        "a": np.array([row[0] for row in rows], "uint8"),
        "b": np.array([row[1] for row in rows], "int64"),
        "c": np.array([row[2:] for row in rows], "float32").reshape(-1, 2),
    }
    block = decoder.decode([struct.pack("<Bqff", *row) for row in rows])
    assert_same(block, expected)
    assert all(column.flags.carray for column in block.values())


def test_packed_fields_keep_their_order_and_so_does_equality():
    first = DecodeFields({"a": ("int8", ()), "b": (">i2", (2,))})
    second = DecodeFields({"b": (">i2", (2,)), "a": ("int8", ())})
    assert first != second
    record = struct.pack(">bhh", 1, 2, 3)
    assert_same(first.decode([record]), {"a": np.array([1], "int8"), "b": np.array([[2, 3]], "int16")})


# Records that describe themselves

ROWS = pytest.mark.parametrize(
    ("decoder", "encode"),
    [(DecodeMsgpack, msgpack.packb), (DecodeJson, lambda value: json.dumps(value).encode())],
    ids=["msgpack", "json"],
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@ROWS
@given(element=st.dictionaries(st.text(), PLAIN, max_size=4))
def test_rows_without_arrays_are_what_was_written(decoder, encode, element):
    assert decoder().map(encode(element)) == element


@ROWS
def test_rows_turn_only_the_named_fields_into_arrays(decoder, encode):
    record = encode({"grid": [[1, 2], [3, 4]], "n": 5, "tags": ["a"], "none": None, "empty": [], "w": [0.1, 2]})
    element = decoder({"w": "float32", "n": "uint8", "grid": "int16", "empty": "int32"}).map(record)
    expected = {
        "grid": np.array([[1, 2], [3, 4]], "int16"),
        "n": np.array(5, "uint8"),
        "tags": ["a"],
        "none": None,
        "empty": np.zeros(0, "int32"),
        "w": np.array([0.1, 2], "float32"),
    }
    assert_same(element, expected)


@ROWS
@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        ([1, 1.5], "int32", "'x' holds 1.5, which int32 would change to 1"),
        ([1, 300], "uint8", "'x' holds 300, which uint8 would change to 44"),
        (-1, "uint64", "'x' holds -1, which uint64 would change to 18446744073709551615"),
        ([2**63], "int64", "'x' holds 9223372036854775808, which int64"),
        ([2, 1], "bool", "'x' holds 2, which bool would change to True"),
        ([2**24 + 1], "float32", "'x' holds 16777217, which float32 would change to 16777216.0"),
        # NumPy reads this list as float64, in which the first number is already another.
        ([2**53 + 1, 1.0], "int64", "'x' holds 9007199254740993, which int64 would change to 9007199254740992"),
        ([[0.0], [1e300]], "float32", "'x' holds 1e[+]300, which float32 would change to inf"),
        ("7", "int32", "'x' is '7'; an array of int32 takes numbers only"),
        ([1, None], "float32", r"'x' is \[1, None\]; an array of float32 takes numbers only"),
        ([[1], [2, 3]], "int32", r"'x' is \[\[1\], \[2, 3\]\]; an array of int32 .* lists of equal lengths"),
        ([1, math.nan], "int32", "'x' holds nan, which int32 would change"),
    ],
)
def test_rows_refuse_a_number_that_would_change(decoder, encode, value, dtype, message):
    with pytest.raises(ValueError, match=message):
        decoder({"x": dtype}).map(encode({"x": value}))


@ROWS
def test_rows_refuse_records_that_are_no_map_or_lack_an_array_or_are_not_whole(decoder, encode):
    with pytest.raises(ValueError, match="there is no field 'x'; the element has 'a', 'b'"):
        decoder({"x": "int8"}).map(encode({"b": 1, "a": 2}))
    with pytest.raises(ValueError, match=r"must be one .*, and this one is \[1, 2\], a list"):
        decoder().map(encode([1, 2]))
    record = encode({"a": [1, 2, 3]})
    for broken in (b"", record[:-1], record + b"\x01"):
        with pytest.raises(ValueError, match=rf"a record of {len(broken)} bytes that begins .* is not (msgpack|JSON)"):
            decoder().map(broken)


@pytest.mark.parametrize("nest", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: [1, {"b": inner}]])
@pytest.mark.parametrize(
    ("decoder", "encode"), [(DecodeJson(), lambda e: json.dumps(e).encode()), (DecodeMsgpack(), msgpack.packb)]
)
def test_rows_that_no_later_step_could_stack_or_pickle_are_bad_data(decoder, encode, nest):
    def nested(depth):
        return {"a": 0} if depth == 1 else {"a": functools.reduce(lambda inner, _: nest(inner), range(depth - 1), 0)}

    per_level = 2 if isinstance(nest(0), list) and len(nest(0)) == 2 else 1
    deepest = nested(1 + 63 // per_level)
    assert decoder.map(encode(deepest)) == deepest
    with pytest.raises(ValueError, match="nests lists and maps more than 64 deep"):
        decoder.map(encode(nested(2 + 63 // per_level)))
    with pytest.raises(ValueError, match=r"more than 64 deep|RecursionError|recursion|Unpack"):
        decoder.map(encode(nested(400)))


def test_msgpack_keeps_bytes_and_counts_a_timestamp_in_nanoseconds():
    record = msgpack.packb({"b": b"\xff\x00", "t": msgpack.Timestamp(1, 5)})
    assert DecodeMsgpack().map(record) == {"b": b"\xff\x00", "t": 1_000_000_005}


def test_msgpack_refuses_extensions_and_keys_that_are_not_text():
    with pytest.raises(ValueError, match=r"extension type 42 \(3 bytes\), which is not decoded"):
        DecodeMsgpack().map(msgpack.packb({"x": msgpack.ExtType(42, b"abc")}))
    with pytest.raises(ValueError, match="has the key b'x'"):
        DecodeMsgpack().map(msgpack.packb({b"x": 1}))
    with pytest.raises(ValueError, match="int is not allowed for map key"):
        DecodeMsgpack().map(msgpack.packb({1: 1}))


@pytest.mark.parametrize("decoder", [DecodeMsgpack(), DecodeJson(), DecodeExample()])
def test_a_row_in_the_place_of_a_record_is_told_as_one(decoder):
    with pytest.raises(TypeError, match=r"is a row that has the fields \['text', 'x'\] already; leave the decoder out"):
        decoder.map({"x": 1, "text": "a"})
    with pytest.raises(TypeError, match="a record is bytes, and this one is a int"):
        decoder.map(3)


# tf.train.Example, its wire format written by hand: https://protobuf.dev/programming-guides/encoding


def varint(number):
    number %= 2**64  # a negative int64 is its two's complement
    parts = []
    while number > 127:
        parts.append(number % 128 + 128)
        number //= 128
    return bytes([*parts, number])


def delimited(field, content):
    return varint(field * 8 + 2) + varint(len(content)) + content


def bytes_list(*values):
    return delimited(1, b"".join(delimited(1, value) for value in values))


def float_list(*values):
    return delimited(2, delimited(1, struct.pack(f"<{len(values)}f", *values)))


def int64_list(*values):
    return delimited(3, delimited(1, b"".join(map(varint, values))))


def example(**features):
    entries = [delimited(1, delimited(1, name.encode()) + delimited(2, kind)) for name, kind in features.items()]
    return delimited(1, b"".join(entries))


def test_example_without_a_description_has_every_feature_as_stored():
    record = example(text=bytes_list(b"a", b"\xff"), ids=int64_list(1, -2, 2**40), x=float_list(0.5, -1.0))
    expected = {
        "ids": np.array([1, -2, 2**40], "int64"),
        "text": [b"a", b"\xff"],
        "x": np.array([0.5, -1.0], "float32"),
    }
    assert_same(DecodeExample().map(record), expected)


def test_example_reads_a_known_record_and_numbers_that_are_not_packed():
    # tf.train.Example writes {"x": int64_list [1, 2]} packed; other writers may give every number a tag.
    packed = bytes.fromhex("0a0d 0a0b 0a0178 1206 1a04 0a02 0102")
    unpacked = bytes.fromhex("0a0d 0a0b 0a0178 1206 1a04 0801 0802")
    for record in (packed, unpacked):
        assert_same(DecodeExample().map(record), {"x": np.array([1, 2], "int64")})


@given(
    ints=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    floats=st.lists(st.floats(width=32, allow_nan=False), max_size=4),
    strings=st.lists(st.binary(max_size=200), max_size=4),
)
def test_example_round_trip(ints, floats, strings):
    record = example(i=int64_list(*ints), f=float_list(*floats), s=bytes_list(*strings))
    described = DecodeExample({"i": VarLen("int64"), "f": VarLen("float32"), "s": VarLen(bytes)})
    assert described.map(record) == {"i": ints, "f": floats, "s": strings}


def test_example_as_described():
    record = example(
        label=int64_list(3), grid=float_list(1, 2, 3, 4), jpeg=bytes_list(b"\xff\xd8"), other=int64_list(1),
        pair=bytes_list(b"a", b"b"), ids=int64_list(1, 2, 3),
    )  # fmt: skip
    features = {
        "label": FixedLen("int32"),
        "grid": FixedLen("float16", (2, 2)),
        "jpeg": FixedLen(bytes),
        "pair": FixedLen("bytes", (2,)),
        "ids": VarLen("uint8"),
        "absent": VarLen(bytes),
        "weight": FixedLen("float32", default=1),
        "mask": FixedLen("bool", (2,), default=True),
        "names": FixedLen(bytes, (2,), default=b"-"),
        "name": FixedLen(bytes, default=b""),
    }
    expected = {
        "absent": [],
        "grid": np.array([[1, 2], [3, 4]], "float16"),
        "ids": [1, 2, 3],
        "jpeg": b"\xff\xd8",
        "label": np.int32(3),
        "mask": np.array([True, True]),
        "name": b"",
        "names": [b"-", b"-"],
        "pair": [b"a", b"b"],
        "weight": np.float32(1),
    }
    assert_same(DecodeExample(features).map(record), expected)


def test_example_feature_without_a_list_is_missing():
    record = example(x=b"", y=int64_list(1))
    assert_same(DecodeExample().map(record), {"y": np.array([1])})
    assert_same(DecodeExample({"x": FixedLen("int8", default=7)}).map(record), {"x": np.int8(7)})


PAIR = example(x=int64_list(1, 300))


@pytest.mark.parametrize(
    ("spec", "record", "message"),
    [
        (FixedLen("int64", (3,)), PAIR, r"'x' holds 2 values, and FixedLen of shape \(3,\) takes 3"),
        (FixedLen("int64"), PAIR, r"'x' holds 2 values, and FixedLen of shape \(\) takes 1"),
        (FixedLen("uint8", (2,)), PAIR, "'x' holds 300, which uint8 would change to 44"),
        (VarLen("int8"), PAIR, "'x' holds 300, which int8 would change to 44"),
        (VarLen(bytes), PAIR, "'x' holds numbers and is described as bytes"),
        (FixedLen("float32"), example(x=bytes_list(b"12")), "'x' holds byte strings and is described as float32"),
        (FixedLen("int8"), example(b=int64_list(1), a=int64_list(1)), "no field 'x'; the element has 'a', 'b'"),
    ],
)
def test_example_that_is_not_as_described_is_refused(spec, record, message):
    with pytest.raises(ValueError, match=message):
        DecodeExample({"x": spec}).map(record)


def test_example_that_is_no_example_is_refused():
    with pytest.raises(ValueError, match=r"a record of 2 bytes is not a tf\.train\.Example: "):
        DecodeExample().map(b"\xff\xff")
    for record in (b"", example(), example(x=b"")):
        with pytest.raises(ValueError, match=f"a record of {len(record)} bytes holds no feature"):
            DecodeExample({"x": VarLen("int8")}).map(record)


def test_example_does_not_touch_the_protobuf_names_of_the_process():
    from google.protobuf import descriptor_pool

    DecodeExample().map(example(x=int64_list(1)))
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("tensorflow.Example")


# Images, written by hand as PNG: https://www.w3.org/TR/png

PIXELS = np.arange(2 * 3 * 3, dtype="uint8").reshape(2, 3, 3) * 13


def png(pixels, depth=8):
    height, width, num_channels = pixels.shape
    rows = b"".join(b"\x00" + row.tobytes() for row in pixels)
    return png_of(width, height, depth, {1: 0, 3: 2, 4: 6}[num_channels], rows)


def png_of(width, height, depth, colour, rows):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def test_image_is_rgb_and_exact_from_a_record_or_an_element():
    record = png(PIXELS)
    assert_same(DecodeImage().map(record), {"image": PIXELS})
    element = {"label": 3, "photo": record, "name": "a"}
    assert_same(DecodeImage(field="photo").map(element), {"label": 3, "photo": PIXELS, "name": "a"})
    assert element["photo"] == record


def test_image_channels_are_those_asked_for():
    grey = np.array([[[0], [100], [255]]], "uint8")
    assert_same(DecodeImage().map(png(grey)), {"image": np.repeat(grey, 3, axis=2)})
    assert_same(DecodeImage((None, None, 1)).map(png(grey)), {"image": grey})
    with_alpha = np.concatenate([PIXELS, np.full((2, 3, 1), 7, "uint8")], axis=2)
    assert_same(DecodeImage().map(png(with_alpha)), {"image": PIXELS})
    deep = (PIXELS.astype(">u2") * 257).astype(">u2")
    assert_same(DecodeImage().map(png(deep, depth=16)), {"image": PIXELS})


def test_image_shrinks_by_averaging_and_grows_by_interpolating():
    row = np.array([[[10], [20], [30], [100]]], "uint8")
    assert_same(DecodeImage((1, 1, 1)).map(png(row)), {"image": np.array([[[40]]], "uint8")})
    # Bilinear with pixel centres: the new ones lie 1/4 and 3/4 between the old, and the borders repeat.
    pair = np.array([[[0], [100]]], "uint8")
    assert_same(DecodeImage((1, 4, 1)).map(png(pair)), {"image": np.array([[[0], [25], [75], [100]]], "uint8")})
    assert_same(DecodeImage((2, 3, 3)).map(png(PIXELS)), {"image": PIXELS})


def test_jpeg_is_rgb():
    cv2 = pytest.importorskip("cv2")
    bgr = np.full((16, 16, 3), (10, 20, 200), "uint8")
    image = DecodeImage().map(cv2.imencode(".jpg", bgr)[1].tobytes())["image"]
    assert np.abs(image.astype(int) - (200, 20, 10)).max() <= 3


def test_damaged_images_are_refused():
    cv2 = pytest.importorskip("cv2")
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype="uint8")
    jpeg = cv2.imencode(".jpg", noise)[1].tobytes()
    for broken in (b"", b"text", png(PIXELS)[:-20], jpeg[: len(jpeg) // 2]):
        with pytest.raises(ValueError, match=f"{len(broken)} bytes that begin "):
            DecodeImage().map(broken)


@pytest.mark.parametrize("is_progressive", [False, True])
@pytest.mark.parametrize("with_thumbnail", [False, True])
def test_a_jpeg_that_lost_its_end_is_refused_although_its_thumbnail_has_one(is_progressive, with_thumbnail):
    """Cut short, or as an interrupted copy leaves it: of its size, with zeros for the rest, which decode to grey."""
    pil = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 99, (96, 128, 3), dtype="uint8")

    def encode(pixels, **options):
        pil.fromarray(pixels).save(file := io.BytesIO(), "JPEG", quality=90, **options)
        return file.getvalue()

    exif = exif_with_thumbnail(encode(noise[:16, :16])) if with_thumbnail else b""
    jpeg = encode(noise, exif=exif, progressive=is_progressive)
    assert jpeg.count(b"\xff\xd9") == 1 + with_thumbnail
    assert DecodeImage().map(jpeg)["image"].shape == (96, 128, 3)
    for kept in (*range(2_500, len(jpeg) - 1, 500), len(jpeg) - 1):
        for broken in (jpeg[:kept], jpeg[:kept].ljust(len(jpeg), b"\0")):
            with pytest.raises(ValueError, match="bytes that begin "):
                DecodeImage().map(broken)


def exif_with_thumbnail(jpeg):
    """As cameras write it: no tags of the picture itself, and three of its thumbnail, which follows them."""
    begin = 8 + 6 + 2 + 3 * 12 + 4
    tags = [(0x103, 3, 1, 6), (0x201, 4, 1, begin), (0x202, 4, 1, len(jpeg))]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    header = b"Exif\0\0II*\0" + struct.pack("<IHI", 8, 0, 14)
    return header + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0) + jpeg


BOMBS = {
    "JSON, 10 million deep": (DecodeJson(), b'{"a":' + b"[" * 10**7),
    "JSON, a number of 10 million digits": (DecodeJson(), b'{"a":' + b"9" * 10**7 + b"}"),
    "msgpack, 4 billion keys said": (DecodeMsgpack(), b"\xdf\xff\xff\xff\xff"),
    "msgpack, 4 GB of text said": (DecodeMsgpack(), b"\x81\xa1a\xdb\xff\xff\xff\xff"),
    "msgpack, a million elements said 200 deep": (
        DecodeMsgpack(),
        b"\x81\xa1a" + b"\xdd\x00\x0f\xff\xff" * 200 + bytes(2**20),
    ),
    "protobuf, 2**63 bytes said": (DecodeExample(), b"\x0a" + b"\xff" * 8 + b"\x7f"),
    "protobuf, a million groups deep": (DecodeExample(), b"\x0b" * 10**6),
    # one bit a pixel: 50 KB, and 1.2 GB decoded
    "an image, 20,000 pixels wide and high": (DecodeImage(), png_of(20_000, 20_000, 1, 0, bytes(20_000 * 2501))),
}


def test_what_says_to_be_more_than_it_is_breaks_its_record_in_little_memory():
    script = """
import json, pickle, resource, sys
bombs, found = pickle.load(sys.stdin.buffer), {}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
for name, (decoder, stored) in bombs.items():
    try:
        decoder.map(b"")  # what it imports is imported
    except ValueError:
        before = peak()
    try:
        decoder.map(stored)
    except ValueError as error:
        found[name] = [str(error), peak() - before]
print(json.dumps(found))
"""
    # in a process of its own: a peak of earlier tests would hide these, and OpenCV takes its limit as it is loaded
    run = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(BOMBS), capture_output=True, check=True)
    found = json.loads(run.stdout)
    assert list(found) == list(BOMBS)
    for message, growth_mib in found.values():
        assert re.search("is not (JSON|msgpack|a tf.train.Example)|not an image that|refused by OpenCV", message)
        assert len(message) < 1000
        assert growth_mib < 64


def test_image_in_a_dict_as_hugging_face_stores_it_is_decoded():
    for path in ("a.png", None):
        element = {"image": {"bytes": png(PIXELS), "path": path}, "label": 3}
        assert_same(DecodeImage().map(element), {"image": PIXELS, "label": 3})
        said = rf"no bytes, and its path is {path!r}; .*: from_hf\('parquet', data_files"
        with pytest.raises(ValueError, match=said):
            DecodeImage().map({"image": {"bytes": None, "path": path}})
    with pytest.raises(ValueError, match="this one is a dict"):
        DecodeImage().map({"image": {"bytes": png(PIXELS)}})


def test_image_that_is_not_there_or_not_bytes_is_refused():
    said = "'img', 'key'; say which one is the image: DecodeImage(field='img')"
    with pytest.raises(ValueError, match=re.escape(f"there is no field 'image'; the element has {said}")):
        DecodeImage().map({"key": "a", "img": b"abc"})
    with pytest.raises(ValueError, match="there is no field 'image'; the element has 'img'$"):
        DecodeImage().map({"img": "a.jpg"})
    with pytest.raises(ValueError, match="this one is a ndarray; leave DecodeImage out"):
        DecodeImage().map({"image": PIXELS})


def test_image_without_opencv_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ImportError, match=r"pip install 'datarax-ray\[images\]'"):
        DecodeImage().map(png(PIXELS))


# Padding


def test_padding_fills_the_end_and_leaves_the_rest():
    element = {"tokens": [1, 2], "text": "ab", "frames": np.ones((1, 2), "float32")}
    expected = {"tokens": np.array([1, 2, -1, -1], "int16"), "text": "ab", "frames": np.ones((1, 2), "float32")}
    assert_same(PadTo({"tokens": 4}, value=-1, dtype="int16").map(element), expected)
    assert element["tokens"] == [1, 2]
    padded = PadTo({"frames": 2}, value=0.5).map(element)
    assert_same({"frames": padded["frames"]}, {"frames": np.array([[1, 1], [0.5, 0.5]], "float32")})


def test_padding_of_two_axes_with_its_mask():
    pad = PadTo({"x": (2, 3)}, mask_suffix="_is_real")
    expected = {
        "x": np.array([[5, 6, 0], [0, 0, 0]], "uint8"),
        "x_is_real": np.array([[True, True, False], [False, False, False]]),
    }
    assert_same(pad.map({"x": np.array([[5, 6]], "uint8")}), expected)
    empty = PadTo({"x": (2, 3)}, dtype="uint8", mask_suffix="_is_real").map({"x": []})
    assert_same(empty, {"x": np.zeros((2, 3), "uint8"), "x_is_real": np.zeros((2, 3), bool)})


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8), st.integers(0, 8))
def test_padding_and_truncating_is_a_list_cut_and_filled(numbers, length):
    padded = PadTo({"x": length}, value=7, truncate=True, dtype="int32").map({"x": numbers})
    expected = (numbers + [7] * length)[:length]
    assert_same(padded, {"x": np.array(expected, "int32")})


@pytest.mark.parametrize(
    ("pad", "element", "message"),
    [
        (PadTo({"x": 2}), {"b": 1, "a": 2}, "there is no field 'x'; the element has 'a', 'b'"),
        (PadTo({"x": 2}), {"x": np.zeros(3)}, r"'x' has shape \(3,\), longer than \(2,\).*truncate=True"),
        (PadTo({"x": 2}), {"x": [1]}, "'x' is a list, which has no numeric dtype.*dtype='int32'"),
        (PadTo({"x": 2}), {"x": None}, r"'x' is null, .* by on_null=\{'x': \[\]\} of the source"),
        (PadTo({"x": 2}, dtype="int32"), {"x": None}, r"'x' is null, .* by on_null=\{'x': \[\]\} of the source"),
        (PadTo({"x": 2}), {"x": np.array(["a"])}, "'x' is a ndarray, which has no numeric dtype"),
        (PadTo({"x": (2, 2)}), {"x": np.zeros(2)}, r"'x' has shape \(2,\), and PadTo has 2 lengths"),
        (PadTo({"x": 2}, dtype="int8"), {"x": [200]}, "'x' holds 200, which int8 would change to -56"),
        (PadTo({"x": 2}, value=-1), {"x": np.zeros(1, "uint8")}, "value to pad x with' holds -1, which uint8"),
        (PadTo({"x": 2}, mask_suffix=""), {"x": np.zeros(1)}, "a field 'x', which the mask would replace"),
    ],
)
def test_padding_refuses_what_it_cannot_keep(pad, element, message):
    with pytest.raises(ValueError, match=message):
        pad.map(element)


# What a checkpoint and an actor need of a decoder

DECODERS = [
    DecodeRaw(np.float32, [2, 2]),
    DecodeFields({"a": (np.int8, 2), "b": (">f8", ())}),
    DecodeMsgpack({"x": int}),
    DecodeJson({"x": int}),
    DecodeExample({"x": FixedLen(np.int32, 2, default=np.int8(1)), "y": VarLen(bytes)}),
    DecodeExample(),
    DecodeImage([8, 9, 3]),
    PadTo({"x": 3, "y": [1, 2]}, value=np.int32(1), dtype=np.int16, mask_suffix="_mask"),
]

REPRS = [
    "DecodeRaw(dtype='float32', shape=(2, 2), field='data')",
    "DecodeFields(fields=(('a', ('int8', (2,))), ('b', ('>f8', ()))))",
    "DecodeMsgpack(arrays={'x': 'int64'})",
    "DecodeJson(arrays={'x': 'int64'})",
    "DecodeExample(features={'x': FixedLen(dtype='int32', shape=(2,), default=1), 'y': VarLen(dtype='bytes')})",
    "DecodeExample(features=None)",
    "DecodeImage(shape=(8, 9, 3), field='image')",
    "PadTo(lengths={'x': (3,), 'y': (1, 2)}, value=1, truncate=False, dtype='int16', mask_suffix='_mask')",
]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        *(
            (functools.partial(DecodeRaw, dtype), ValueError, "is not a fixed-size number; use one such as 'int32'")
            for dtype in (None, "S4", object, "text", [("a", "i4")])
        ),
        (lambda: DecodeRaw("int8", (-1, 2)), ValueError, r"shape \(-1, 2\) has a negative size"),
        (lambda: DecodeRaw("int8", (2.0,)), ValueError, "is not made of integers"),
        (lambda: DecodeFields({}), ValueError, "has no fields"),
        *(
            (functools.partial(DecodeFields, fields), TypeError, r"takes a dict of \(dtype, shape\) by name, .* got ")
            for fields in ({"x": "uint8"}, [("x", "uint8", ())], 3, {"x": None})
        ),
        *(
            (functools.partial(decoder, ["tokens"]), TypeError, r"is a dict of .* got \['tokens'\]")
            for decoder in (DecodeMsgpack, DecodeJson, DecodeExample)
        ),
        (lambda: DecodeJson({"x": "complex64"}), ValueError, "cannot be converted to complex64"),
        (lambda: DecodeMsgpack({"x": "bfloat16"}), ValueError, "cannot be converted to bfloat16"),
        (lambda: FixedLen("int32", default=1.5), ValueError, r"'default' holds 1\.5, which int32 would change to 1"),
        (lambda: FixedLen(bytes, default=0), ValueError, "default 0 is not one value of bytes"),
        (lambda: FixedLen("int8", (1,), default=[0]), ValueError, r"default \[0\] is not one value of int8"),
        (lambda: FixedLen(bytes, (2, 2)), ValueError, r"byte strings are one \(shape \(\)\) or a list"),
        (lambda: DecodeExample({"x": "int32"}), ValueError, r"'x' is described by 'int32'; use FixedLen"),
        *(
            (functools.partial(DecodeImage, shape), ValueError, r"is not \(height, width, channels\)")
            for shape in ((2, 3), (2, 3, 4), (0, 3, 3), (None, 3, 3), (2.0, 3.0, 3), 224, "jpg")
        ),
        (lambda: PadTo({"x": 2}, value=256, dtype="uint8"), ValueError, "'value' holds 256, which uint8 would"),
        (lambda: PadTo({"x": -1}), ValueError, "has a negative size"),
        (lambda: PadTo({"x": ()}), ValueError, "name no axis"),
        (lambda: PadTo("tokens", 4), TypeError, "lengths is a dict by field, got 'tokens'"),
    ],
)
def test_settings_that_make_no_decoder_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(("decoder", "text"), list(zip(DECODERS, REPRS, strict=True)), ids=REPRS)
def test_decoders_are_plain_values(decoder, text):
    assert repr(decoder) == text
    again = [pickle.loads(pickle.dumps(decoder)), eval(text), dataclasses.replace(decoder)]
    assert [(value, hash(value), repr(value)) for value in again] == [(decoder, hash(decoder), text)] * 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(decoder, dataclasses.fields(decoder)[0].name, None)


def test_decoding_loads_neither_jax_nor_what_other_decoders_need():
    script = """
import sys
from datarax_ray.read.decode import *
lazy = {"google.protobuf", "cv2", "ml_dtypes"}
assert not lazy & set(sys.modules), lazy & set(sys.modules)
record, image = map(bytes.fromhex, sys.argv[1:])
DecodeRaw("int8", (1,)).decode([b"a"])
DecodeRaw("bfloat16").decode([b"ab"])
DecodeFields({"a": ("int8", ())}).decode([b"a"])
DecodeJson({"x": "int8"}).map(b'{"x": [1]}')
DecodeMsgpack({"x": "int8"}).map(b"\\x81\\xa1x\\x91\\x01")
DecodeExample({"x": FixedLen("int8")}).map(record)
DecodeImage((4, 4, 3)).map(image)
PadTo({"x": 2}, dtype="int8").map({"x": [1]})
assert lazy < set(sys.modules)
print(sorted({"jax", "jaxlib", "ray", "flax", "grain", "tensorflow"} & set(sys.modules)))
"""
    arguments = [example(x=int64_list(1)).hex(), png(PIXELS).hex()]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
