"""One exact stream of training batches from Ray actors to JAX, for any number of actors and trainers."""

import lazy_loader

__version__ = "0.1.0"

# The names are in __init__.pyi, each loaded when it is first used: a Ray worker imports this package, and must load
# neither jax nor, for reading, ray.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
