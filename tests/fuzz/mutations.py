"""Mutations of a file, by kind: the bytes of a pristine one and a random.Random in, the bytes of a mutant out.

Nothing here reads or writes files; the same seed gives the same mutant.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

Mutation = Callable[[bytes, random.Random], bytes]


def flip_bits(file: bytes, rng: random.Random) -> bytes:
    out = bytearray(file)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        out[_place(len(out), rng)] ^= 1 << rng.randrange(8)
    return bytes(out)


def overwrite(file: bytes, rng: random.Random) -> bytes:
    """A run of zeros, ones or noise."""
    at = _place(len(file), rng)
    size = min(rng.choice([1, 4, 8, 64, 1024]), len(file) - at)
    noise = rng.choice([b"\0" * size, b"\xff" * size, rng.randbytes(size)])
    return file[:at] + noise + file[at + size :]


def huge_number(file: bytes, rng: random.Random) -> bytes:
    """Eight bytes that read as a number near the end of a range."""
    number = rng.choice([2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 0])
    at = _place(len(file), rng) & ~3
    return (file[:at] + number.to_bytes(8, "little") + file[at + 8 :])[: max(len(file), 8)]


def truncate(file: bytes, rng: random.Random) -> bytes:
    sizes = [0, 1, 7, 8, 23, 24, 39, 40, 63, 64, len(file) // 2, len(file) - 1, _place(len(file), rng)]
    return file[: max(0, rng.choice(sizes))]


def truncate_at(borders: Callable[[bytes], Sequence[int]]) -> Mutation:
    """Cut at, just before or just after one of the borders of a format."""

    def cut(file: bytes, rng: random.Random) -> bytes:
        return file[: max(0, min(len(file) - 1, rng.choice(borders(file)) + rng.choice([-1, 0, 0, 1])))]

    return cut


def extend(file: bytes, rng: random.Random) -> bytes:
    size = rng.choice([1, 24, 1000, 65536])
    return file + rng.choice([b"\0" * size, rng.randbytes(size), file[:size], file])


def move(file: bytes, rng: random.Random) -> bytes:
    """A run of bytes cut out, doubled, or exchanged with another."""
    size = max(1, min(rng.choice([1, 16, 256, 4096]), len(file) // 4))
    a, b = sorted(rng.randrange(max(1, len(file) - size)) for _ in range(2))
    kind = rng.choice(["drop", "double", "exchange"])
    if kind == "drop":
        return file[:a] + file[a + size :]
    if kind == "double" or b < a + size:
        return file[: a + size] + file[a:]
    return file[:a] + file[b : b + size] + file[a + size : b] + file[a : a + size] + file[b + size :]


def noise(file: bytes, rng: random.Random) -> bytes:
    """Random bytes, of any size up to a little more than the file's."""
    return rng.randbytes(rng.choice([0, 1, 2, 5, 17, rng.randrange(len(file) + 9)]))


def splice(other: bytes) -> Mutation:
    """A run of another file's bytes at the same place."""

    def spliced(file: bytes, rng: random.Random) -> bytes:
        at = _place(min(len(file), len(other)), rng)
        size = rng.choice([8, 40, 256, 4096, len(file)])
        return file[:at] + other[at : at + size] + file[at + size :]

    return spliced


MUTATIONS: dict[str, Mutation] = {
    "flipped bits": flip_bits,
    "overwritten": overwrite,
    "huge number": huge_number,
    "truncated": truncate,
    "extended": extend,
    "moved": move,
    "noise": noise,
}


def change(path: Path, how: str, mutant: bytes, cut_at: Callable[[], int]) -> None:
    """Change a file that is open: "overwritten in place" by the mutant, "cut in place", "deleted", else "replaced"."""
    if how == "overwritten in place":
        path.write_bytes(mutant)
    elif how == "cut in place":
        os.truncate(path, cut_at())
    elif how == "deleted":
        path.unlink()
    else:
        new = path.with_suffix(".new")
        new.write_bytes(mutant)
        new.replace(path)


def _place(size: int, rng: random.Random) -> int:
    """Any place, those near the beginning more often: small files are mostly padding after it."""
    if size < 2:
        return 0
    return rng.choice([rng.randrange(size), rng.randrange(min(size, 8192)), rng.randrange(min(size, 256))])
