"""The transforms of test_meshes' streams, for actors to import. Imports no jax."""

from __future__ import annotations

from typing import Any

import numpy as np

SEQ_LEN = 8


def tokens(element: dict[str, Any]) -> dict[str, Any]:
    index = element["index"]
    return {"index": index, "tokens": index * 100 + np.arange(SEQ_LEN, dtype=np.int32), "name": f"r{index}"}


def document(element: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": element["index"] * 100 + np.arange(element["index"] % 7 + 1, dtype=np.int32)}


class Noise:
    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return element | {"noise": rng.random((SEQ_LEN, 2), dtype=np.float32)}


class DropFifths:
    def filter(self, element: dict[str, Any]) -> bool:
        return element["index"] % 5 != 0


class Twice:
    """Record i gives i % 3 elements."""

    def flat_map(self, element: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"index": element["index"] * 10 + nth} for nth in range(element["index"] % 3)]
