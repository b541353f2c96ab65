"""One exact stream of training batches from Ray actors to JAX, for any number of actors and trainers."""

import importlib.metadata
from typing import Any

import lazy_loader

# The names are in __init__.pyi, each loaded when it is first used: a Ray worker imports this package, and must load
# neither jax nor, for reading, ray.
_loaded, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # it stands in pyproject.toml alone
        return importlib.metadata.version("datarax-ray")
    try:
        return _loaded(name)
    except AttributeError as error:  # Python asks which name may be meant, where it is told the wrong one
        raise AttributeError(f"{__name__} has no {name!r}", name=name, obj=__import__(__name__)) from error
