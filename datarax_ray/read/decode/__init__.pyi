from .audio import DecodeAudio
from .example import DecodeExample, FixedLen, VarLen
from .image import DecodeImage
from .pad import PadTo
from .raw import DecodeFields, DecodeRaw
from .rows import DecodeJson, DecodeMsgpack
from .video import DecodeRandomClip, DecodeVideo

__all__ = [
    "DecodeAudio",
    "DecodeExample",
    "DecodeFields",
    "DecodeImage",
    "DecodeJson",
    "DecodeMsgpack",
    "DecodeRandomClip",
    "DecodeRaw",
    "DecodeVideo",
    "FixedLen",
    "PadTo",
    "VarLen",
]
