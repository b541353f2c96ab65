"""Grain's DataLoader on Ray actors: the same batches, whatever their number, and checkpoints that do not name it.

Everything else here is Grain's own, so that `import datarax_ray.grain as grain` stands for `import grain.python as
grain`, and for `import grain`.
"""

from typing import Any

import grain as _grain
import grain.python as _grain_python

from datarax_ray.grain.iterator import DataLoaderIterator
from datarax_ray.grain.loader import DataLoader, load

__all__ = ["DataLoader", "DataLoaderIterator", "load"]


def __getattr__(name: str) -> Any:
    for module in (_grain, _grain_python):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"neither {__name__!r} nor grain has an attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_grain), *dir(_grain_python)})
