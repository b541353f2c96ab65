"""From the bytes of a record to an element: block decoders take many records at once, row decoders take one.

A decoder is a frozen value with plain fields (dtypes by name, shapes as tuples of ints). It pickles into actors, and
its repr can stand in a checkpoint's fingerprint. Bad data is a ValueError about the record alone; the reader adds file
and index. Nothing here imports JAX, Ray, Flax or Grain.
"""

import lazy_loader

# The names are in __init__.pyi, each loaded when it is first used: a program has one decoder or two.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
