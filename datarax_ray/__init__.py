"""One exact stream of training batches from Ray actors to JAX, for any number of actors and trainers."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Loaded when first used: a Ray worker imports this package, and must load neither jax nor, for reading, ray.
_PUBLIC = {
    "ConcatThenSplit": "datarax_ray.plan.packing",
    "FirstFitPack": "datarax_ray.plan.packing",
    "RaySource": "datarax_ray.actors.source",
    "Pipeline": "datarax_ray.pipeline",
}

__all__ = ["ConcatThenSplit", "FirstFitPack", "Pipeline", "RaySource", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
