"""Stands for `grain.python`: the same names, with this package's loader, iterator and load in the place of Grain's."""

from typing import Any

import grain.python as _grain_python

from datarax_ray.grain.loader import DataLoader, DataLoaderIterator, load

__all__ = ["DataLoader", "PyGrainDatasetIterator", "load"]

PyGrainDatasetIterator = DataLoaderIterator


def __getattr__(name: str) -> Any:
    if hasattr(_grain_python, name):
        return getattr(_grain_python, name)
    raise AttributeError(f"neither {__name__!r} nor grain.python has an attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_grain_python)})
