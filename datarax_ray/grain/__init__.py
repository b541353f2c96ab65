"""Grain's DataLoader on Ray actors: the same batches, whatever their number, and checkpoints that do not name it.

Everything else here is Grain's own, so that `import datarax_ray.grain as grain` stands for `import grain.python as
grain`, and for `import grain`; `datarax_ray.grain.python` stands for `grain.python` alone.
"""

from typing import Any

import grain as _grain

from datarax_ray.grain import python
from datarax_ray.grain.iterator import DataLoaderIterator
from datarax_ray.grain.loader import DataLoader, load

__all__ = ["DataLoader", "DataLoaderIterator", "load", "python"]


def __getattr__(name: str) -> Any:
    for module in (_grain, python):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"neither {__name__!r} nor grain has an attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_grain), *dir(python)})
