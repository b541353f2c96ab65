"""The row decoder for TensorFlow Datasets: features.json describes how a tf.train.Example stores an element.

A feature is stored under its path ("nested/b/c"), sequences of sequences as ragged_flat_values and
ragged_row_lengths_0..., images and compressed tensors as bytes.
Source: tensorflow_datasets/core/example_parser.py and core/features.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from datarax_ray.read.decode.example import DecodeExample, FixedLen, VarLen
from datarax_ray.read.decode.image import DecodeImage

Kind = Literal["numbers", "bytes", "image", "raw", "zlib"]
Dims = tuple[int | None, ...]


@final
@dataclass(frozen=True)
class Leaf:
    """One feature. outer: the lengths of its sequences, outermost first, None for any. shape: of one value."""

    path: tuple[str, ...]
    kind: Kind
    dtype: str
    shape: Dims
    outer: Dims = ()

    @property
    def name(self) -> str:
        return "/".join(self.path)

    @property
    def stored(self) -> dict[str, FixedLen | VarLen]:
        """The stored features of the Example, by name."""
        is_packed = self.kind in ("raw", "zlib") and self.shape.count(None) > 1
        dims = self.outer + (self.shape if self.kind == "numbers" else ())
        dtype = "bytes" if self.kind != "numbers" else "int64" if self.dtype == "uint64" else self.dtype
        if self._num_lengths:
            lengths: dict[str, FixedLen | VarLen] = {
                f"{self.name}/ragged_row_lengths_{i}": VarLen("int64") for i in range(self._num_lengths)
            }
            return {f"{self.name}/ragged_flat_values": VarLen(dtype), **lengths}
        if is_packed:
            return {f"{self.name}/value": FixedLen(dtype), f"{self.name}/shape": FixedLen("int64", len(self.shape))}
        known = [size for size in dims if size is not None]
        if len(known) < len(dims) or (dtype == "bytes" and len(dims) > 1):
            return {self.name: VarLen(dtype)}
        return {self.name: FixedLen(dtype, tuple(known))}

    def value(self, stored: Mapping[str, Any]) -> Any:
        """The feature's value: an array or NumPy scalar where its shape is known, else nested lists; bytes."""
        if f"{self.name}/value" in stored:
            return self._unpacked(stored[f"{self.name}/value"], tuple(stored[f"{self.name}/shape"].tolist()))
        if self._num_lengths:
            lengths = [stored[f"{self.name}/ragged_row_lengths_{i}"] for i in range(self._num_lengths)]
            flat = stored[f"{self.name}/ragged_flat_values"]
            if self.kind == "numbers":
                sizes = [size or 1 for size in self.shape]
                return _nested(self._array(flat).reshape([-1, *sizes]).tolist(), lengths)
            return _nested([self._unpacked(value, self.shape) for value in flat], lengths)
        found = stored[self.name]
        if self.kind == "numbers":
            return self._numbers(found)
        if not self.outer:
            return self._unpacked(found, self.shape)
        values = [self._unpacked(value, self.shape) for value in found]
        is_dense = None not in self.outer and values and isinstance(values[0], np.ndarray)
        return np.stack(values).reshape(*self.outer, *values[0].shape) if is_dense else values

    @property
    def _num_lengths(self) -> int:
        """Sequences below the outermost have their lengths stored, where they are ragged."""
        return len(self.outer) - 1 if len(self.outer) > 1 and None in self.outer[1:] else 0

    def _numbers(self, found: Any) -> Any:
        dims = self.outer + self.shape
        if None not in dims:
            return found.view(np.uint64) if self.dtype == "uint64" else found
        if len(dims) == 1:
            return self._array(found).tolist() if self.dtype == "uint64" else found
        if dims.count(None) > 1:
            raise ValueError(f"feature {self.name!r} has several dimensions of any size, {dims}, and no lengths")
        known = math.prod(size for size in dims if size is not None)
        sizes = [len(found) // max(known, 1) if size is None else size for size in dims]
        return self._array(found).reshape(sizes).tolist()

    def _array(self, found: list[Any]) -> np.ndarray:
        """Stored numbers in the feature's dtype: an Example has the int64 of a uint64's bits."""
        return np.array(found, "int64").view("uint64") if self.dtype == "uint64" else np.array(found, self.dtype)

    def _unpacked(self, value: bytes, shape: Dims) -> Any:
        if self.kind == "bytes":
            return value
        if self.kind == "image":
            channels = self.shape[-1]
            return DecodeImage((None, None, channels or 3)).map(value)["image"]
        is_known = None not in shape
        nbytes = math.prod(size or 0 for size in shape) * np.dtype(self.dtype).itemsize
        if min((size or 0 for size in shape), default=0) < 0:
            raise ValueError(f"a tensor has the shape {shape}")
        if self.kind == "zlib":  # one byte more than there should be, and never all that a few bytes may stand for
            value = zlib.decompressobj().decompress(value, nbytes + 1 if is_known else 0)
        if is_known and len(value) != nbytes:
            raise ValueError(f"a tensor of {self.dtype} {shape} has {nbytes} bytes, not {len(value)}")
        array = np.frombuffer(value, self.dtype).reshape([-1 if size is None else size for size in shape])
        return array.tolist() if None in self.shape else array


@final
@dataclass(frozen=True)
class DecodeTfds:
    """Decode one record of a prepared dataset to the nested dict that its features describe.

    leaves: one for each feature; see tfds_leaves. Numbers of a known shape are arrays of the feature's dtype; text is
    bytes, as in tfds; sequences of any length are lists; images are uint8 (height, width, channels).
    """

    leaves: tuple[Leaf, ...]

    def map(self, record: bytes) -> dict[str, Any]:
        """Raises: ValueError for a record that the features do not describe."""
        stored = _examples(self.leaves).map(record)
        element: dict[str, Any] = {}
        for leaf in self.leaves:
            inner = element
            for key in leaf.path[:-1]:
                inner = inner.setdefault(key, {})
            try:
                inner[leaf.path[-1]] = leaf.value(stored)
            except (ValueError, zlib.error) as error:
                raise ValueError(f"feature {leaf.name!r}: {error}") from error
        return element


@functools.lru_cache(maxsize=16)  # and no field, as the fields of a decoder are its fingerprint
def _examples(leaves: tuple[Leaf, ...]) -> DecodeExample:
    return DecodeExample(dict(itertools.chain.from_iterable(leaf.stored.items() for leaf in leaves)))


def tfds_leaves(features: Mapping[str, Any], skip_decoding: Collection[str] = ()) -> tuple[Leaf, ...]:
    """The leaves of a features.json. skip_decoding: images, by path ("nested/image"), that stay encoded bytes.

    Raises: ValueError for a kind of feature that is not read here, by name; for a path that is no image.
    """
    found = tuple(_leaves(features, (), ()))
    images = {leaf.name for leaf in found if leaf.kind == "image"}
    if unknown := set(skip_decoding) - images:
        raise ValueError(f"skip_decoding names {sorted(unknown)}, and the images are {sorted(images)}")
    for leaf in found:
        if leaf.name in images - set(skip_decoding) and (leaf.dtype != "uint8" or leaf.shape[-1] not in (1, 3, None)):
            raise ValueError(
                f"feature {leaf.name!r} is an image of {leaf.dtype} {leaf.shape}, and images are decoded to uint8 with "
                f"1 or 3 channels; pass skip_decoding=[{leaf.name!r}] and decode its bytes in a transform"
            )
    return tuple(
        Leaf(leaf.path, "bytes", leaf.dtype, (), leaf.outer) if leaf.name in skip_decoding else leaf for leaf in found
    )


def _leaves(feature: Mapping[str, Any], path: tuple[str, ...], outer: Dims) -> Iterator[Leaf]:
    kind = next((key for key in feature if key not in ("pythonClassName", "description", "valueRange")), "nothing")
    inner: Any = feature.get(kind)
    match kind:
        case "featuresDict":
            for name, field in sorted(inner["features"].items()):
                yield from _leaves(field, (*path, name), outer)
        case "sequence":
            length = int(inner.get("length", -1))
            yield from _leaves(inner["feature"], path, (*outer, None if length == -1 else length))
        case "translation":
            for language in sorted(inner["languages"]):
                yield Leaf((*path, language), "bytes", "bytes", (), outer)
        case "classLabel":
            yield Leaf(path, "numbers", "int64", (), outer)
        case "text":
            yield Leaf(path, "bytes", "bytes", (), outer)
        case "image":
            yield Leaf(path, "image", inner["dtype"], _shape(inner), outer)
        case "tensor" | "boundingBox":
            dtype, encoding = inner.get("dtype", "float32"), inner.get("encoding") or "none"
            if dtype in ("string", "object", "str"):
                yield Leaf(path, "bytes", "bytes", (), outer + _shape(inner))
            else:
                packed: dict[str, Kind] = {"none": "numbers", "bytes": "raw", "zlib": "zlib"}
                yield Leaf(path, packed[encoding], dtype, _shape(inner), outer)
        case _:
            raise ValueError(
                f"feature {'/'.join(path)!r} is a {feature.get('pythonClassName', kind)}, which is not decoded here; "
                "read the records with ArrayRecordSourceModule and decode them in a transform"
            )


def _shape(inner: Mapping[str, Any]) -> Dims:
    return tuple(None if int(size) == -1 else int(size) for size in inner.get("shape", {}).get("dimensions", ()))


def _nested(values: list[Any], lengths: list[list[int]]) -> list[Any]:
    """Lists in lists: lengths[0] are those of the outermost rows."""
    for row in reversed(lengths):
        ends = list(itertools.accumulate(row, initial=0))
        values = [values[start:stop] for start, stop in itertools.pairwise(ends)]
    return values
