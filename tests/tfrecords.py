"""TFRecord files for tests, written with a checksum of their own. Imports no jax."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path


def masked_crc(data: bytes) -> bytes:
    """Bit by bit, by RFC 3720, appendix B.4, and TensorFlow's mask."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)


def write_tfrecord(path: Path, records: Iterable[bytes]) -> Path:
    with path.open("wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + masked_crc(length) + record + masked_crc(record))
    return path
