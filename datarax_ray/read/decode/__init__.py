"""From the bytes of a record to an element: block decoders take many records at once, row decoders take one.

A decoder is a frozen value with plain fields (dtypes by name, shapes as tuples of ints). It pickles into actors, and
its repr can stand in a checkpoint's fingerprint. Bad data is a ValueError about the record alone; the reader adds file
and index. Nothing here imports JAX, Ray, Flax or Grain.
"""

from datarax_ray.read.decode.audio import DecodeAudio
from datarax_ray.read.decode.example import DecodeExample, FixedLen, VarLen
from datarax_ray.read.decode.image import DecodeImage
from datarax_ray.read.decode.pad import PadTo
from datarax_ray.read.decode.raw import DecodeFields, DecodeRaw
from datarax_ray.read.decode.rows import DecodeJson, DecodeMsgpack
from datarax_ray.read.decode.video import DecodeRandomClip, DecodeVideo
from datarax_ray.read.formats.materialized.records import DecodeMaterialized

__all__ = [
    "DecodeAudio",
    "DecodeExample",
    "DecodeFields",
    "DecodeImage",
    "DecodeJson",
    "DecodeMaterialized",
    "DecodeMsgpack",
    "DecodeRandomClip",
    "DecodeRaw",
    "DecodeVideo",
    "FixedLen",
    "PadTo",
    "VarLen",
]
