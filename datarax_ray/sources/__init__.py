"""The in-process sources, as Flax NNX modules with datarax's names and signatures: faces over plan, read and feed."""

import lazy_loader

# The names are in __init__.pyi, each loaded when it is first used: a program has one source or two.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
