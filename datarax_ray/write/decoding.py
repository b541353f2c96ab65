"""Checks, while data is written, that pictures and members decode; what is written stays encoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from datarax_ray.read import decode
from datarax_ray.read.decode import DecodeImage
from datarax_ray.read.files.sniff import DECODERS, IMAGES, record_format
from datarax_ray.read.formats.image_folder import SUFFIXES
from datarax_ray.read.formats.webdataset.reader import DecodeExtensions, WebDatasetReader


@dataclass(frozen=True)
class CheckDecoding:
    """A transform that gives every element as it is, once its parts decode.

    decoders: of whole elements. pictures: fields with encoded pictures.
    """

    decoders: tuple[Any, ...] = ()
    pictures: tuple[str, ...] = ()

    @classmethod
    def of(cls, reader: Any, first: Sequence[Any]) -> Self:
        """The check of these records, by their first elements, some of which may be broken themselves.

        Raises: ValueError where nothing is to be decoded.
        """
        records = [each for each in first if isinstance(each, bytes)]
        names = Counter(DECODERS.get(record_format(record) or "") for record in records).most_common(1)
        decoders = [getattr(decode, name)() for name, _ in names if name is not None]
        decoders += [DecodeExtensions()] if isinstance(reader, WebDatasetReader) else []
        fields = [field for each in first if isinstance(each, Mapping) for field in each.items()]
        pictures = dict.fromkeys(name for name, value in fields if _is_picture(name, value))
        found = cls(tuple(decoders), tuple(pictures))
        if not found.what:
            raise ValueError(
                "check decodes pictures, members of tar files and records of a known encoding, and the first records "
                "have none of these, so nothing would be checked; leave check out"
            )
        return found

    @property
    def what(self) -> str:
        """The parts that are decoded, for people."""
        parts = [type(decoder).__name__ for decoder in self.decoders]
        return ", ".join([*parts, *(f"pictures in {name!r}" for name in self.pictures)])

    def map(self, element: Any) -> Any:
        """Raises: ValueError for a part that does not decode, by the name of its field."""
        for decoder in self.decoders:
            decoder.map(element)
        for name in self.pictures:
            value = element.get(name)
            if value is not None and not (isinstance(value, Mapping) and value.get("bytes") is None):  # a null
                try:
                    DecodeImage(field=name).map({name: value})
                except ValueError as error:
                    raise ValueError(f"field {name!r}: {error}") from None
        return element


def _is_picture(name: str, value: Any) -> bool:
    """Whether a value is an encoded picture, by its first bytes, or by a name like "left.jpg"."""
    if isinstance(value, Mapping) and value.keys() == {"bytes", "path"}:  # datasets.Image
        value = value["bytes"]
    is_named = f".{name.lower()}".endswith(SUFFIXES)
    return isinstance(value, bytes) and (is_named or record_format(value) in IMAGES)
