"""A keyed permutation of [0, n) that is computed for any index alone, over whole NumPy arrays.

The construction is Grain's `index_shuffle`: a Simon-like Feistel network whose round keys come from C++'s
`std::seed_seq`, made to fit any n by cycle walking. Sources: Beaulieu et al., "The Simon and Speck families"
(eprint 2013/404); Black and Rogaway, "Ciphers with arbitrary finite domains" (2002); ISO C++ [rand.util.seedseq];
Grain's index_shuffle.cc for how the three are put together.

Legend: n is the domain, `block_bits` = 2 * `word_bits` the width of the cipher (a permutation of 2**block_bits
values), left and right the two words of a value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.arguments import whole

Indices = NDArray[np.int64]

MIN_BLOCK_BITS = 16  # Simon rotates a word by 8, so a word has at least 8 bits
MAX_NUM_RECORDS = 2**62  # positions and records are int64, and a block is even and under 64 bits

# Up to here an epoch's whole permutation is made at once: walking single indices back into a small domain takes
# 2**16 / n steps on average, pointer jumping over the 65,536 values of the block at most 16. Measured, all of it in
# 1 ms: what walking takes for 1,024 of 2**14 indices, or 2,200 of 2**15, and each table serves several chunks.
TABLE_LIMIT = 2**15
# A walk back into a smaller domain takes more than 64 steps on average, each of some 30 calls of NumPy.
_WALK_FROM = 2**10
# Values of 8 bytes and their temporaries stay in a core's L2 cache; measured 2x faster than whole arrays.
_STRIP = 2**13
# Words for which the round function is a table, of 2 to 512 KiB: a step is a quarter of the calls of NumPy. A walk
# just above a power of four has some 30 steps of fewer and fewer values, so that calls are what it takes: 8,192 indices
# of 1.1 million took 202 ns each, and take 84 (of 131,072: 66 and 60; of 1.0 million, without a walk: 26 and 13).
_TABLE_WORD_BITS = 16


def permute(indices: Indices, n: int, *, seed: int, rounds: int = 8) -> Indices:
    """The image of each index under the permutation of [0, n) chosen by `seed`.

    indices: int64 (k,), every value in [0, n). Returns int64 (k,). Equal to Grain's
    `index_shuffle(i, max_index=n - 1, seed=seed, rounds=rounds)` for every i, except at n = 4**k + 1 (k >= 8), where
    Grain's block is one value too small and its result is no permutation.

    n, seed and rounds come from an order, which has checked them.

    >>> permute(np.arange(5), 5, seed=42).tolist()
    [1, 0, 2, 4, 3]
    >>> sorted(permute(np.arange(1000), 1000, seed=7).tolist()) == list(range(1000))
    True
    """
    indices = np.asarray(indices, np.int64)
    if n <= TABLE_LIMIT:
        return _table(n, seed, rounds)[indices]
    return _walk(indices, n, seed, rounds, encrypt)


def invert(images: Indices, n: int, *, seed: int, rounds: int = 8) -> Indices:
    """The index that `permute` sends to each image: the walk of `permute`, backwards. Int64 (k,) to int64 (k,).

    >>> invert(permute(np.arange(5), 5, seed=42), 5, seed=42).tolist()
    [0, 1, 2, 3, 4]
    """
    images = np.asarray(images, np.int64)
    if n <= TABLE_LIMIT:
        return np.argsort(_table(n, seed, rounds))[images]
    return _walk(images, n, seed, rounds, _decrypt)


def invert_each(images: Indices, which: Indices, sizes: Indices, seeds: Sequence[int], *, rounds: int = 8) -> Indices:
    """As invert, for several permutations. Large permutations with few images are inverted at once, without a table.

    images: int64 (k,). which: the permutation of each image, an index in sizes (n) and seeds: int64 (k,), ascending.

    >>> invert_each(permute(np.arange(5), 5, seed=42), np.zeros(5, np.int64), np.array([5]), [42]).tolist()
    [0, 1, 2, 3, 4]
    """
    found = np.empty_like(images)
    cuts = np.searchsorted(which, np.arange(len(sizes) + 1))
    counts = np.diff(cuts)
    widths = np.array([block_bits(n) for n in sizes.tolist()])
    widths[(sizes < _WALK_FROM) | (counts >= _STRIP)] = 0
    for number in np.flatnonzero((widths == 0) & (counts > 0)).tolist():
        its = slice(cuts[number], cuts[number + 1])
        found[its] = invert(images[its], int(sizes[number]), seed=seeds[number], rounds=rounds)
    for width in set(widths[counts > 0].tolist()) - {0}:
        mine = widths[which] == width
        found[mine] = _walk(images[mine], sizes, np.array(seeds, np.uint32), rounds, _decrypt, which[mine])
    return found


def check(n: int, *, seed: int, rounds: int) -> None:
    """Raise ValueError unless a permutation of [0, n) by this seed and these rounds exists."""
    if not 1 <= n <= MAX_NUM_RECORDS:
        raise ValueError(f"num_records must be in [1, 2**62], got {n}")
    check_seed(seed)
    if whole("rounds", rounds) < 4 or rounds % 2:
        raise ValueError(f"rounds must be even and at least 4, got {rounds}")


def check_seed(seed: int) -> None:
    """Raise ValueError unless the seed is of 32 bits, TypeError unless it is a whole number."""
    if not 0 <= whole("seed", seed) < 2**32:
        raise ValueError(f"seed must be in [0, 2**32), got {seed}")


def block_bits(n: int) -> int:
    """Width of the smallest block that holds every value below n: even, at least 16."""
    bits = (n - 1).bit_length()
    return max(bits + bits % 2, MIN_BLOCK_BITS)


def grain_is_broken_at(n: int) -> bool:
    """Whether Grain's own index_shuffle repeats one record and never gives another: n = 4**k + 1, k >= 8.

    Its block is ceil(log2(n - 1)) bits wide, one value too few when n - 1 is a power of four.

    >>> [n for n in (65536, 65537, 131073, 262145) if grain_is_broken_at(n)]
    [65537, 262145]
    """
    bits = (n - 1).bit_length() - 1
    return bits >= MIN_BLOCK_BITS and bits % 2 == 0 and n - 1 == 1 << bits


@functools.lru_cache(maxsize=1024)
def round_keys(seed: int, rounds: int) -> tuple[int, ...]:
    """`rounds` 32-bit keys from std::seed_seq{seed}."""
    return tuple(int(keys[0]) for keys in seed_seq(np.array([seed], np.uint32), rounds))


def seed_seq(seeds: Any, rounds: int) -> list[Any]:
    """The keys of each seed, as [rand.util.seedseq] defines generate(): `rounds` arrays like seeds, uint32 (k,).

    seeds may be NumPy's or JAX's: arithmetic of uint32 arrays wraps in both.
    """
    n, s = rounds, 1
    t = 11 if n >= 623 else 7 if n >= 68 else 5 if n >= 39 else 3 if n >= 7 else (n - 1) // 2
    p = (n - t) // 2
    q = p + t
    m = max(s + 1, n)
    keys = [(seeds ^ seeds) | np.uint32(0x8B8B8B8B)] * n  # arrays: NumPy warns where a scalar overflows

    def mix(x: Any) -> Any:
        return x ^ (x >> np.uint32(27))

    for k in range(m):
        r1 = np.uint32(1664525) * mix(keys[k % n] ^ keys[(k + p) % n] ^ keys[(k - 1) % n])
        r2 = r1 + (np.uint32(s) if k == 0 else np.uint32(k % n) + seeds if k <= s else np.uint32(k % n))
        keys[(k + p) % n] = keys[(k + p) % n] + r1
        keys[(k + q) % n] = keys[(k + q) % n] + r2
        keys[k % n] = r2
    for k in range(m, m + n):
        r3 = np.uint32(1566083941) * mix(keys[k % n] + keys[(k + p) % n] + keys[(k - 1) % n])
        r4 = r3 - np.uint32(k % n)
        keys[(k + p) % n] = keys[(k + p) % n] ^ r3
        keys[(k + q) % n] = keys[(k + q) % n] ^ r4
        keys[k % n] = r4
    return keys


def _walk(
    indices: Indices, n: Any, seed: Any, rounds: int, step: Callable[..., NDArray], which: Indices | None = None
) -> Indices:
    """Step (encrypt, or its inverse) until every value is back below n; a permutation of the block returns there.

    All values take a step before any takes its next, so the few that walk far are few in all, not in each strip.
    which: the permutation of each index, where n and seed are arrays: of several permutations, all of one block width.
    """
    word_bits = block_bits(n if which is None else int(n[which[0]])) // 2
    word, mix = (np.int64, _looked_up) if word_bits <= _TABLE_WORD_BITS else (np.uint64, _mix)  # take() casts all else
    keys = _words(word, seed, rounds) if which is None else tuple(key.astype(word) for key in seed_seq(seed, rounds))
    bounds = word(n)

    def stepped(values: NDArray, of: Indices | None) -> NDArray:
        parts = []
        for i in range(0, max(1, values.size), _STRIP):
            its = keys if of is None else [key.take(of[i : i + _STRIP]) for key in keys]
            parts.append(step(values[i : i + _STRIP], word_bits, its, mix))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def is_outside(values: NDArray, of: Indices | None) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = values >= (bounds if of is None else bounds.take(of))
        return found

    values = stepped(indices.astype(word, copy=False), which)
    outside = np.flatnonzero(is_outside(values, which))
    walking, of = values[outside], None if which is None else which[outside]
    while outside.size:
        walking = stepped(walking, of)
        values[outside] = walking
        still = is_outside(walking, of)
        outside, walking, of = outside[still], walking[still], None if of is None else of[still]
    return values.astype(np.int64, copy=False)


def _table(n: int, seed: int, rounds: int) -> Indices:
    return (_small_table if n <= _SMALL else _large_table)(n, seed, rounds)


def _made_table(n: int, seed: int, rounds: int) -> Indices:
    """The whole permutation of a small domain, by pointer jumping: each pass doubles the steps that `jump` takes.

    Values below n stay where they are in it, so the walk of each start ends at the first of them.
    """
    word_bits = block_bits(n) // 2
    block = np.arange(1 << 2 * word_bits, dtype=np.uint32)
    jump = encrypt(block, word_bits, _words(np.uint32, seed, rounds)).astype(np.int64)
    table = jump[:n].copy()
    jump[:n] = block[:n]
    while (table >= n).any():
        table = jump[table]
        jump = jump[jump]
    table.flags.writeable = False
    return table


# Chunks of small datasets span several epochs, of very small ones hundreds: 16 MB of tables at most, of either kind.
_SMALL = 2**10
_small_table = functools.lru_cache(maxsize=2048)(_made_table)
_large_table = functools.lru_cache(maxsize=64)(_made_table)


def _words(word: Any, seed: int, rounds: int) -> tuple[Any, ...]:
    return tuple(word(key) for key in round_keys(seed, rounds))


def _mix(x: Any, word_bits: int, mask: Any) -> Any:
    """Simon's round function: (x rotl 1 & x rotl 8) ^ x rotl 2, in words of word_bits.

    Doubling the word (x repeated above itself) turns each rotation into one shift.
    """
    word = x.dtype.type
    doubled = x | (x << word(word_bits))
    mixed = doubled >> word(word_bits - 1)
    mixed &= doubled >> word(word_bits - 8)
    mixed ^= doubled >> word(word_bits - 2)
    mixed &= mask
    return mixed


@functools.cache
def _mixed(word_bits: int) -> Indices:
    """_mix of every word: 2 to 512 KiB."""
    words = np.arange(1 << word_bits)
    table: Indices = _mix(words, word_bits, np.int64(len(words) - 1))
    return table


def _looked_up(x: Indices, word_bits: int, mask: Any) -> Indices:
    return _mixed(word_bits).take(x)


def encrypt(values: Any, word_bits: int, keys: Sequence[Any], mix: Callable[..., Any] = _mix) -> Any:
    """One pass of the cipher over values in [0, 2**(2 * word_bits)); arrays of NumPy or of JAX.

    keys: one for all values, or an array like values for each round. mix: the round function.
    """
    word = values.dtype.type
    mask = word((1 << word_bits) - 1)
    left, right = values >> word(word_bits), values & mask
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left ^= mix(right, word_bits, mask) ^ (first & mask)
        right ^= mix(left, word_bits, mask) ^ (second & mask)
    return (left << word(word_bits)) | right


def _decrypt(values: NDArray, word_bits: int, keys: Sequence[Any], mix: Callable[..., Any] = _mix) -> NDArray:
    """The inverse of encrypt: the same rounds, last first."""
    word = values.dtype.type
    mask = word((1 << word_bits) - 1)
    left, right = values >> word(word_bits), values & mask
    for first, second in zip(keys[-2::-2], keys[::-2], strict=True):
        right ^= mix(left, word_bits, mask) ^ (second & mask)
        left ^= mix(right, word_bits, mask) ^ (first & mask)
    return (left << word(word_bits)) | right
