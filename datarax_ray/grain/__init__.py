"""Grain's DataLoader on Ray actors: the same batches and checkpoints for any number of actors.

Everything else here is Grain's own, so `import datarax_ray.grain as grain` replaces `import grain.python as grain` and
`import grain`; `datarax_ray.grain.python` replaces `grain.python` alone.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datarax_ray.grain import python
    from datarax_ray.grain.loader import DataLoader, DataLoaderIterator, load

__all__ = ["DataLoader", "DataLoaderIterator", "load", "python"]


def __getattr__(name: str) -> Any:
    """A name of the loader, of this package or of Grain, imported on first use: an actor's engine loads no Grain."""
    if name in __all__ and name != "python":
        return getattr(importlib.import_module(f"{__name__}.loader"), name)
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:  # a module of ours, `python` among them
        return importlib.import_module(f"{__name__}.{name}")
    for home in ("grain", f"{__name__}.python"):
        if hasattr(module := importlib.import_module(home), name):
            return getattr(module, name)
    raise AttributeError(f"neither {__name__!r} nor grain has an attribute {name!r}")


def __dir__() -> list[str]:
    python = importlib.import_module("datarax_ray.grain.python")
    return sorted({*__all__, *dir(importlib.import_module("grain")), *dir(python)})
