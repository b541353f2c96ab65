"""The chunks of a Riegeli file, and forged ones: hostile fields and data under checksums that hold.

Source: riegeli/doc/riegeli_records_file_format.md and google/highwayhash. Legend: a block is 64 KiB and begins with 24
bytes of its own, which lie inside of chunks; a chunk is a header of 40 bytes and its data.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

BLOCK = 1 << 16
_BLOCK_HEADER, _CHUNK_HEADER = 24, 40
_MASK = (1 << 64) - 1
_KEY = struct.unpack("<4Q", b"Riegeli/records\nRiegeli/records\n")
_MUL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_HOSTILE = (0, 1, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**32, 2**40, 2**47, 2**55, 2**56 - 1)


def chunks(file: bytes) -> Iterator[tuple[int, list[int]]]:
    """(where the header begins, the offsets of all bytes of the chunk without those of block headers)."""
    begin = 0
    while begin + _CHUNK_HEADER <= len(file):
        header = _offsets(begin, _CHUNK_HEADER)
        fields = struct.unpack("<5Q", bytes(file[i] for i in header if i < len(file)).ljust(40, b"\0"))
        offsets = _offsets(begin, _CHUNK_HEADER + min(fields[1], len(file)))
        if offsets[-1] >= len(file):
            return
        yield begin, offsets
        num_records = fields[3] >> 8
        begin = max(offsets[-1] + 1, begin + num_records)
        if begin % BLOCK < _BLOCK_HEADER and begin % BLOCK:  # no chunk begins inside of a block header
            begin += _BLOCK_HEADER - begin % BLOCK


def borders(file: bytes) -> list[int]:
    """Where chunks and blocks begin."""
    return sorted({begin for begin, _ in chunks(file)} | set(range(0, len(file) + 1, BLOCK)))


def forge(file: bytes, rng: random.Random) -> bytes:
    """One chunk with a hostile header field, or changed data, and both of its checksums made anew."""
    out = bytearray(file)
    _, offsets = rng.choice(list(chunks(file)))
    chunk = bytearray(file[i] for i in offsets)
    if len(chunk) > _CHUNK_HEADER and rng.random() < 0.5:
        for _ in range(rng.randint(1, 4)):
            # the first bytes are sizes and counts: hostile there more often than anywhere else
            end = min(len(chunk), _CHUNK_HEADER + 24) if rng.random() < 0.6 else len(chunk)
            chunk[rng.randrange(_CHUNK_HEADER, end)] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        if len(chunk) < 2**15:
            chunk[16:24] = struct.pack("<Q", highway_hash(bytes(chunk[_CHUNK_HEADER:])))
    else:
        field = rng.choice(["data_size", "num_records", "decoded_data_size", "chunk_type"])
        value = rng.choice(_HOSTILE)
        if field == "chunk_type":
            chunk[24] = rng.randrange(256)
        elif field == "num_records":
            chunk[25:32] = value.to_bytes(7, "little")
        else:
            at = 8 if field == "data_size" else 32
            chunk[at : at + 8] = struct.pack("<Q", rng.choice([value, 2**63 - 1, 2**63, 2**64 - 1]))
    chunk[:8] = struct.pack("<Q", highway_hash(bytes(chunk[8:_CHUNK_HEADER])))
    for offset, byte in zip(offsets, chunk, strict=True):
        out[offset] = byte
    return bytes(out)


def _offsets(begin: int, size: int) -> list[int]:
    out: list[int] = []
    at = begin
    while len(out) < size:
        if at % BLOCK == 0:
            at += _BLOCK_HEADER
        step = min(size - len(out), BLOCK - at % BLOCK)
        out += range(at, at + step)
        at += step
    return out


def highway_hash(data: bytes) -> int:
    """HighwayHash64 under Riegeli's key."""
    mul0, mul1 = list(_MUL0), list(_MUL1)
    v0 = [mul ^ key for mul, key in zip(mul0, _KEY, strict=True)]
    v1 = [mul ^ _swapped(key) for mul, key in zip(mul1, _KEY, strict=True)]
    state = v0, v1, mul0, mul1
    whole = len(data) // 32 * 32
    for at in range(0, whole, 32):
        _update(state, struct.unpack_from("<4Q", data, at))
    if size := len(data) - whole:
        for i in range(4):
            v0[i] = (v0[i] + (size << 32) + size) & _MASK
            v1[i] = _rotated(v1[i] & 0xFFFFFFFF, size) | _rotated(v1[i] >> 32, size) << 32
        _update(state, struct.unpack("<4Q", _packet(data[whole:])))
    for _ in range(4):
        _update(state, tuple(_swapped(v0[i]) for i in (2, 3, 0, 1)))
    return (v0[0] + v1[0] + mul0[0] + mul1[0]) & _MASK


def _packet(rest: bytes) -> bytes:
    packet = bytearray(32)
    whole, odd = len(rest) & ~3, len(rest) & 3
    packet[:whole] = rest[:whole]
    if len(rest) & 16:
        packet[28:32] = rest[-4:]
    elif odd:
        packet[16:19] = bytes([rest[whole], rest[whole + (odd >> 1)], rest[-1]])
    return bytes(packet)


def _update(state: tuple[list[int], ...], shards: tuple[int, ...]) -> None:
    v0, v1, mul0, mul1 = state
    for i in range(4):
        v1[i] = (v1[i] + mul0[i] + shards[i]) & _MASK
        mul0[i] ^= (v1[i] & 0xFFFFFFFF) * (v0[i] >> 32)
        v0[i] = (v0[i] + mul1[i]) & _MASK
        mul1[i] ^= (v0[i] & 0xFFFFFFFF) * (v1[i] >> 32)
    for source, target in ((v1, v0), (v0, v1)):
        for i in (0, 2):
            low, high = _zipped(source[i + 1], source[i])
            target[i] = (target[i] + low) & _MASK
            target[i + 1] = (target[i + 1] + high) & _MASK


def _zipped(v1: int, v0: int) -> tuple[int, int]:
    low = (
        ((v0 & 0xFF000000) | (v1 & 0xFF00000000)) >> 24
        | ((v0 & 0xFF0000000000) | (v1 & 0xFF000000000000)) >> 16
        | (v0 & 0xFF0000)
        | (v0 & 0xFF00) << 32
        | (v1 & 0xFF00000000000000) >> 8
        | v0 << 56
    )
    high = (
        ((v1 & 0xFF000000) | (v0 & 0xFF00000000)) >> 24
        | (v1 & 0xFF0000)
        | (v1 & 0xFF0000000000) >> 16
        | (v1 & 0xFF00) << 24
        | (v0 & 0xFF000000000000) >> 8
        | (v1 & 0xFF) << 48
        | (v0 & 0xFF00000000000000)
    )
    return low & _MASK, high & _MASK


def _swapped(word: int) -> int:
    return word >> 32 | (word & 0xFFFFFFFF) << 32


def _rotated(half: int, count: int) -> int:
    return (half << count | half >> (32 - count)) & 0xFFFFFFFF
