"""Hostile records for the decoders: mutated ones, noise, and those that are built to hurt."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read import decode
from datarax_ray.read.decode.example import example_class
from datarax_ray.read.formats.random_access import RandomAccessReader
from datarax_ray.read.streams.indexed import IndexedStream
from tests.fuzz import outcomes
from tests.fuzz.mutations import MUTATIONS

_NAME = RandomAccessReader([b""]).locate(0)


class DecoderTarget:
    """One decoder, as a block's first transform; its result must be stacked and pickled, or be that record's error."""

    def __init__(self, directory: Path, decoder: str) -> None:
        self._decoder, self._record, hostile = _DECODERS[decoder]()
        self._hostile = hostile
        self.mutations = MUTATIONS | {"built to hurt": lambda file, rng: self._hostile(rng)}
        self.kinds = tuple(self.mutations)

    def check(self, kind: str, rng: random.Random) -> tuple[str, str]:
        return self.check_record(self.mutations[kind](self._record, rng))

    def check_record(self, record: bytes) -> tuple[str, str]:
        stream = IndexedStream(RandomAccessReader([record]), order_of(1), 1, (self._decoder,))
        try:
            block = stream.read(ReadRequest(0, 1))
            pickle.dumps(block)  # as it goes into the object store
        except Exception as error:
            return outcomes.refusal(error, _NAME, ())
        if block.failure is None:
            return outcomes.UNHARMED, ""  # a record of its format: there is no checksum that could tell
        if _NAME not in str(block.failure):
            return outcomes.NAMELESS, str(block.failure)[:300]
        raised = re.search(r"raised (\w+):", str(block.failure))
        if raised and raised[1] not in ("ValueError", "UnicodeDecodeError"):
            return outcomes.FOREIGN, str(block.failure)[:300]
        return outcomes.REFUSED, ""


def _nested(rng: random.Random) -> int:
    return rng.choice([10, 90, 150, 300, 500, 900, 990, 1500, 100_000])


def _json() -> tuple[Any, bytes, Callable[[random.Random], bytes]]:
    def hostile(rng: random.Random) -> bytes:
        depth = _nested(rng)
        return rng.choice(
            [
                b'{"tokens":[],"a":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}",
                b'{"tokens":[],"a":' + b"[" * depth + b"]" * depth + b"}",
                b'{"tokens":[' + b"9" * rng.choice([20, 400, 4300, 4301, 100_000]) + b"]}",
                b'{"tokens":[1e400,-1e400,NaN,Infinity]}',
                b'{"tokens":[1,[2]], "text":"\\ud800"}',
                b'{"tokens":' + b"[" * 70 + b"1" + b"]" * 70 + b"}",
                b'{"":{}, "tokens":[]}',
            ]
        )

    record = json.dumps({"tokens": [1, 2, 3], "text": "hello", "more": {"a": [1.5, None, True]}}).encode()
    return decode.DecodeJson(arrays={"tokens": "int32"}), record, hostile


def _msgpack() -> tuple[Any, bytes, Callable[[random.Random], bytes]]:
    def hostile(rng: random.Random) -> bytes:
        depth = _nested(rng)
        return rng.choice(
            [
                tokens + b"\x81\xa1a" * depth + b"\x01",  # maps in maps
                tokens + b"\x91" * depth + b"\x01",  # lists in lists
                b"\x81\xa1a" + rng.choice([b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"]) + b"\xff\xff\xff\xff",
                b"\x81\xa1a\xc7\x0c\xff" + rng.randbytes(12),  # a timestamp out of range
                b"\x81\xa1a\xd4\x05\x00",  # an extension type
                b"\x81\x91\x01\x01",  # a list as a key
            ]
        )

    tokens = b"\x82\xa6tokens\x90\xa1a"
    record = msgpack.packb({"tokens": [1, 2, 3], "text": "hello", "more": {"a": [1.5, None, True, b"bytes"]}})
    return decode.DecodeMsgpack(arrays={"tokens": "int32"}), record, hostile


def _example() -> tuple[Any, bytes, Callable[[random.Random], bytes]]:
    def hostile(rng: random.Random) -> bytes:
        varint = rng.choice([b"\xff" * 9 + b"\x01", b"\xff" * 4 + b"\x07", b"\xff" * 11, b"\x80" * 10 + b"\x01"])
        depth = rng.choice([10, 99, 101, 10_000])
        return rng.choice(
            [b"\x0a" + varint + b"abc", b"\x0b" * depth + b"\x0c" * depth, varint, b"\x0a\x05\x0a\x03\x0a\x01\xff"]
        )

    example = example_class()()
    example.features.feature["tokens"].int64_list.value.extend([1, 2, 3])
    example.features.feature["scale"].float_list.value.append(0.5)
    example.features.feature["text"].bytes_list.value.append(b"hello")
    return decode.DecodeExample(), example.SerializeToString(), hostile


def _image() -> tuple[Any, bytes, Callable[[random.Random], bytes]]:
    with contextlib.suppress(ValueError):
        decode.DecodeImage().map(b"x")  # first of all: it sets OpenCV's limit before it loads it
    import cv2

    def hostile(rng: random.Random) -> bytes:
        width, height = (rng.choice([0, 1, 2**14, 2**15, 2**16, 2**20, 2**31 - 1, 2**32 - 1]) for _ in range(2))
        return rng.choice([_png(width, height), bomb, _bmp(width, height), jpeg[:2] + rng.randbytes(200) + jpeg[-2:]])

    pixels = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    jpeg = cv2.imencode(".jpg", pixels)[1].tobytes()
    bomb = _png(20_000, 20_000, 0, 1, bytes(20_000 * 2_501))  # 50 KB, and 1.2 GB once it is decoded
    return decode.DecodeImage(), jpeg, hostile


def _png(width: int, height: int, colour: int = 2, depth: int = 8, pixels: bytes = bytes(10_000)) -> bytes:
    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(pixels)) + part(b"IEND", b"")


def _bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIIIHH", 54, 0, 0, 54, 40, width, height, 1, 24) + bytes(24)


def _raw() -> tuple[Any, bytes, Callable[[random.Random], bytes]]:
    return decode.DecodeRaw("<i4", (3,)), bytes(12), lambda rng: rng.randbytes(rng.choice([0, 11, 12, 13, 24]))


def _fields() -> tuple[Any, bytes, Callable[[random.Random], bytes]]:
    decoder = decode.DecodeFields({"a": ("<f8", ()), "b": ("u1", (4,))})
    return decoder, bytes(12), lambda rng: rng.randbytes(rng.choice([0, 11, 12, 13, 24]))


_DECODERS: dict[str, Callable[[], tuple[Any, bytes, Callable[[random.Random], bytes]]]] = {
    "json": _json,
    "msgpack": _msgpack,
    "tf.Example": _example,
    "image": _image,
    "raw": _raw,
    "fields": _fields,
}
