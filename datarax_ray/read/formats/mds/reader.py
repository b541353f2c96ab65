"""Reads samples of MDS shards by global index: of each run of them in a file, the bytes at once."""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import numpy as np

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.decode.rows import json_value
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.decoded_groups import (
    DEFAULT_MAX_NBYTES,
    BrokenRowGroupError,
    DecodedGroups,
    read_together,
)
from datarax_ray.read.formats.file_spans import BrokenRecordError, RecordsInFiles
from datarax_ray.read.formats.mds.shards import INDEX, MDSShard, bounds_of, find_shards
from datarax_ray.read.stream import ReaderTraits

Decode = Callable[[bytes], Any]

# Of an ndarray whose dtype is not in the name of its encoding, by the number before it.
_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
# dtype and channels of Pillow's modes, as np.asarray(image) has them; 0 for no axis of them. A palette is not stored.
_MODES = {
    "L": ("u1", 0), "P": ("u1", 0), "LA": ("u1", 2), "RGB": ("u1", 3), "YCbCr": ("u1", 3), "LAB": ("u1", 3),
    "HSV": ("u1", 3), "RGBA": ("u1", 4), "RGBX": ("u1", 4), "CMYK": ("u1", 4), "I;16": ("<u2", 0), "I": ("<i4", 0),
    "F": ("<f4", 0),
}  # fmt: skip
_PICKLE = "pkl"


def decoder_of(encoding: str) -> Decode | None:
    """What makes a value of a column's bytes; None for an encoding that is not known. It raises ValueError.

    Scalars are NumPy's, of that dtype, but Python's for int and str_*; arrays are writable; a pil is what
    np.asarray(image) gives. Files of pictures (jpeg, png) stay bytes, for DecodeImage, as do pickles.

    >>> decoder_of("int")((7).to_bytes(8, "little")), decoder_of("ndarray:uint8:2,2")(b"abcd").tolist()
    (7, [[97, 98], [99, 100]])
    """
    name, _, rest = encoding.partition(":")
    if name == "ndarray":
        dtype, _, shape = rest.partition(":")
        if dtype and dtype not in _DTYPES.values():
            return None
        return functools.partial(_array, dtype, tuple(map(int, shape.split(","))) if shape else None)
    if name in _DTYPES.values():
        return functools.partial(_scalar, np.dtype(name).newbyteorder("<"))
    return _DECODERS.get(name)


def _same(data: bytes) -> bytes:
    return data


def _scalar(dtype: np.dtype[Any], data: bytes) -> Any:
    if len(data) != dtype.itemsize:
        raise ValueError(f"it has {len(data)} bytes, and a {dtype.name} has {dtype.itemsize}")
    return np.frombuffer(data, dtype)[0]


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("utf-8"))
    except InvalidOperation:
        raise ValueError("it is no number") from None


def _array(dtype: str, shape: tuple[int, ...] | None, data: bytes) -> np.ndarray:
    """[dtype: 1] [ndim << 2 | log2 of a length's bytes: 1] [lengths] values; in [] what the encoding does not say."""
    at = 0
    if not dtype:
        dtype, at = _DTYPES.get(data[0] if data else -1, ""), 1
        if not dtype:
            raise ValueError("it begins with no number of a dtype")
    if shape is None:
        num_axes, size = (data[at] >> 2, 1 << (data[at] & 3)) if at < len(data) else (0, 1)
        end = at + 1 + num_axes * size
        shape = tuple(np.frombuffer(data[at + 1 : end], f"<u{size}").tolist())
        if len(shape) != num_axes or not num_axes:
            raise ValueError("it ends within its shape")
        at = end
    return _whole(data[at:], np.dtype(dtype).newbyteorder("<"), shape)


def _whole(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    if len(data) != (nbytes := math.prod(shape) * dtype.itemsize):
        raise ValueError(f"there are {len(data):,} bytes of values, and {dtype.name} {shape} has {nbytes:,}")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))  # a copy, to write to


def _pil(data: bytes) -> np.ndarray:
    """Width, height, and the length of the mode's name, uint32 each; the mode; the pixels, row by row."""
    if len(data) < 12:
        raise ValueError("it ends within its size")
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode, pixels = data[12 : 12 + length].decode("utf-8"), data[12 + length :]
    if mode == "1":  # eight pixels a byte, rows filled up to whole ones
        rows = _whole(pixels, np.dtype("u1"), (height, -(-width // 8)))
        return np.unpackbits(rows, axis=1, count=width).astype(bool)
    if mode not in _MODES:
        raise ValueError(f"{mode!r} is no mode of a picture that is known here")
    dtype, channels = _MODES[mode]
    return _whole(pixels, np.dtype(dtype), (height, width, *([channels] if channels else [])))


def _several(decode: Decode, begin: int, data: bytes) -> list[Any]:
    """From byte `begin` on: uint32 how many, uint32 the size of each, then all of them."""
    count = int.from_bytes(data[begin : begin + 4], "little")
    at = begin + 4 + 4 * count
    if len(data) < at:
        raise ValueError("it ends within the sizes of its pictures")
    ends = at + np.cumsum(np.frombuffer(data, "<u4", count, begin + 4), dtype=np.int64)
    if len(data) != (int(ends[-1]) if count else at):
        raise ValueError("it ends elsewhere than the last of its pictures")
    return [decode(data[first:last]) for first, last in zip([at, *ends.tolist()], ends.tolist(), strict=False)]


_DECODERS: dict[str, Decode] = {
    **dict.fromkeys(("bytes", "jpeg", "png", _PICKLE), _same),
    "str": lambda data: data.decode("utf-8"),
    "int": lambda data: int(_scalar(np.dtype("<i8"), data)),
    "str_int": lambda data: int(data.decode("utf-8")),
    "str_float": lambda data: float(data.decode("utf-8")),
    "str_decimal": _decimal,
    "json": json_value,
    "pil": _pil,
    **dict.fromkeys(("jpeg_array", "jpegarray"), functools.partial(_several, _same, 0)),
    # behind four bytes that mean nothing
    **dict.fromkeys(("list[jpeg]", "list[png]"), functools.partial(_several, _same, 4)),
    "list[pil]": functools.partial(_several, _pil, 4),
}


class MDSReader(RecordsInFiles):
    """The samples of many shards; see RecordsInFiles.

    A packed shard is unpacked when one of its samples is first asked for, and kept as DecodedGroups does. columns: to
    read, None for all. pickles_as_bytes: whether columns of pickles are read at all.
    """

    def __init__(
        self,
        filesystem: Any,
        files: Sequence[MDSShard],
        columns: tuple[str, ...] | None = None,
        pickles_as_bytes: bool = False,
        max_nbytes: int = DEFAULT_MAX_NBYTES,
    ) -> None:
        options = {"columns": columns, "pickles_as_bytes": pickles_as_bytes, "max_nbytes": max_nbytes}
        super().__init__(filesystem, files, **options)
        firsts = {shard.columns: shard for shard in reversed(files)}
        layouts = {each: _Layout.of(shard, columns, pickles_as_bytes) for each, shard in firsts.items()}
        self._layouts = [layouts[shard.columns] for shard in files]
        self._shard_groups = RecordGroups(shard.num_samples for shard in self.files)
        self._unpacked = DecodedGroups(self._shard_groups, max_nbytes)
        self._lock = ThreadLock()  # of what is unpacked; pipelines over one source read in threads of their own

    @classmethod
    def of(
        cls, paths: Any, *, filesystem: Any = None, columns: Iterable[str] | None = None, pickles_as_bytes: bool = False
    ) -> MDSReader:
        """Look at all shards that `paths` names, in parallel; see shards.find_shards."""
        return cls(*find_shards(paths, filesystem), None if columns is None else tuple(columns), pickles_as_bytes)

    @property
    def mean_nbytes(self) -> int:
        return sum(shard.raw_nbytes for shard in self.files) // self.num_records

    @functools.cached_property
    def traits(self) -> ReaderTraits:
        """Samples of packed shards are best read together."""
        return ReaderTraits(BrokenRecordError, keeps_groups=any(shard.codec for shard in self.files))

    @property
    def groups(self) -> RecordGroups:
        """Samples that are best read together, where shards are packed: those of a shard, small ones with the next."""
        return read_together(self._shard_groups, [shard.raw_nbytes for shard in self.files])

    def with_room_for(self, nbytes: int) -> MDSReader:
        """A reader of the same samples that keeps at least so many bytes of unpacked shards."""
        return MDSReader(**self._given | {"max_nbytes": max(self._given["max_nbytes"], nbytes)})

    def fingerprint(self) -> dict[str, Any]:
        """See RecordsInFiles; with the columns that are read."""
        parts = self._layouts[0].parts
        return super().fingerprint() | {"columns": digest([part[:2] for part in parts if part[3]])}

    def close(self) -> None:
        with self._lock:
            self._unpacked.clear()
        super().close()

    def _stored(self, index: int, numbers: Indices) -> list[bytes]:
        if self.files[index].codec is None:
            return super()._stored(index, numbers)
        with self._lock:
            return list(self._unpacked.read(numbers + self._starts[index], self._unpack)["sample"])

    def _record(self, index: int, number: int, stored: bytes) -> dict[str, Any]:
        try:
            return self._layouts[index].sample(stored)
        except ValueError as error:
            raise BrokenRecordError(str(error)) from error

    def _unpack(self, index: int) -> dict[str, np.ndarray]:
        shard = self.files[index]
        (packed,) = self._spans.read(index, np.array([[0, shard.nbytes]]))
        try:
            data = _unpacked(packed, shard.codec, shard.raw_nbytes)
            bounds = bounds_of(data, shard.num_samples, len(data)).tolist()
        except ValueError as error:
            raise BrokenRowGroupError(f"its shard cannot be read: {error}") from error
        samples = np.empty(shard.num_samples, object)
        samples[:] = [data[first:last] for first, last in itertools.pairwise(bounds)]
        return {"sample": samples}


class _Layout(NamedTuple):
    """The layout of samples. parts: name, encoding, size and decoder of each column; no decoder for skipped columns."""

    sizes: struct.Struct
    parts: tuple[tuple[str, str, int | None, Decode | None], ...]

    @classmethod
    def of(cls, shard: MDSShard, columns: tuple[str, ...] | None, pickles_as_bytes: bool) -> _Layout:
        """Raises: ValueError for unknown columns, and for columns of pickles or of an unknown encoding."""
        names = [column.name for column in shard.columns]
        if missing := [name for name in columns or () if name not in names]:
            raise ValueError(f"columns names {missing}, and {shard.path} has {names}.{nearest(missing, names)}")
        parts = []
        for name, encoding, size in shard.columns:
            is_read = columns is None or name in columns
            decode = decoder_of(encoding)
            others = [other for other in columns or names if other != name]
            if is_read and decode is None:
                raise ValueError(
                    f"{shard.path}: column {name!r} is stored as {encoding!r}, which is not known here; "
                    f"columns={others} leaves it out"
                )
            if is_read and encoding.partition(":")[0] == _PICKLE and not pickles_as_bytes:
                raise ValueError(
                    f"{shard.path}: column {name!r} holds pickles, which run what code whoever wrote them put there. "
                    f"columns={others} leaves it out; MDSSourceConfig(pickles_as_bytes=True) gives their bytes, for a "
                    "transform of your own that loads them"
                )
            parts.append((name, encoding, size, decode if is_read else None))
        return cls(struct.Struct(f"<{sum(column.size is None for column in shard.columns)}I"), tuple(parts))

    def sample(self, stored: bytes) -> dict[str, Any]:
        """Raises: ValueError for other bytes than the columns have."""
        own = iter(self.sizes.unpack_from(stored) if len(stored) >= self.sizes.size else ())
        sizes = [next(own, 0) if size is None else size for _, _, size, _ in self.parts]
        at = self.sizes.size
        if (nbytes := at + sum(sizes)) != len(stored):
            raise ValueError(f"it has {len(stored):,} bytes, and its columns {nbytes:,}: it is damaged")
        found = {}
        for (name, encoding, _, decode), size in zip(self.parts, sizes, strict=True):
            if decode is not None:
                value = stored[at : at + size]
                try:
                    found[name] = decode(value)
                except ValueError as error:
                    raise ValueError(
                        f"column {name!r}, {size:,} bytes that begin {value[:16]!r}, is no {encoding}: {error}"
                    ) from error
            at += size
        return found


def _unpacked(packed: bytes, codec: str | None, nbytes: int) -> bytes:
    """Unpack a shard to nbytes. Raises: ValueError for a damaged shard, and for another size."""
    import pyarrow as pa

    try:
        if codec == "snappy":  # of which pyarrow has no stream
            found: bytes = pa.decompress(packed, decompressed_size=nbytes, codec=codec, asbytes=True)
        else:
            with pa.CompressedInputStream(pa.BufferReader(packed), codec) as stream:
                found = stream.read(nbytes + 1)  # no more than that, whatever it unpacks to
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"it does not unpack: {error}; copy it again") from error
    if len(found) != nbytes:
        more = "or more " if len(found) > nbytes else ""
        raise ValueError(f"it unpacks to {len(found):,} bytes {more}and its {INDEX} says {nbytes:,}; copy it again")
    return found
