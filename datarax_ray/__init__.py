"""One exact stream of training batches from Ray actors to JAX, for any number of actors and trainers."""

from typing import Any

import lazy_loader

__version__ = "0.1.0"

# The names are in __init__.pyi, each loaded when it is first used: a Ray worker imports this package, and must load
# neither jax nor, for reading, ray.
_loaded, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _loaded(name)
    except AttributeError as error:  # Python asks which name may be meant, where it is told the wrong one
        raise AttributeError(f"{__name__} has no {name!r}", name=name, obj=__import__(__name__)) from error
