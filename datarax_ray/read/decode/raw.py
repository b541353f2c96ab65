"""Block decoders for records of one fixed size: a whole block is joined once and read in place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from datarax_ray.plan.arguments import NamedArguments, ordered
from datarax_ray.read.decode.dense import dtype_name, number_dtype, shape_of
from datarax_ray.read.elements.rows import FixedRecords
from datarax_ray.read.files.sniff import how_to_decode


@final
@dataclass(frozen=True)
class DecodeRaw(NamedArguments):
    """Read every record as one array of a fixed dtype and shape, its bytes as `ndarray.tobytes()` wrote them.

    dtype: of the numbers, little-endian unless it says otherwise (">i4"); held as its name.
    shape: of one record, in C order; () for a single number.
    field: the name of the array in the element.

    >>> DecodeRaw("int16", (2,), field="tokens").decode([b"\\x01\\x00\\x02\\x00", b"\\x03\\x00\\x04\\x00"])
    {'tokens': array([[1, 2],
           [3, 4]], dtype=int16)}
    """

    dtype: npt.DTypeLike
    shape: int | Iterable[int] = ()
    field: str = "data"

    takes_fixed_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        object.__setattr__(self, "shape", shape_of(self.shape))

    def decode(self, records: Sequence[bytes]) -> dict[str, npt.NDArray[Any]]:
        """The dict of `field`: `dtype` (len(records), *shape), a writable array in native byte order.

        Raises: ValueError when a record has another size.
        """
        dtype, shape = number_dtype(self.dtype), shape_of(self.shape)
        joined = _joined(records, dtype.itemsize * math.prod(shape), f"{self.dtype} {shape}")
        # Unlike np.frombuffer, ndarray takes a buffer of no bytes, which an empty block or shape is.
        stored: npt.NDArray[Any] = np.ndarray((len(records), *shape), dtype, joined)
        return {self.field: stored.astype(dtype.newbyteorder("="), copy=False)}


@final
@dataclass(frozen=True)
class DecodeFields(NamedArguments):
    """Read every record as fixed-size fields that follow one another without gaps, as C packs a struct.

    fields: name to (dtype, shape), in the order of the bytes; little-endian unless a dtype says otherwise. Held as
        (name, (dtype, shape)) pairs, because their order is the layout.

    Raises: ValueError when there are no fields; TypeError for another layout.

    >>> decoder = DecodeFields({"label": ("uint8", ()), "pixels": ("int16", (2,))})
    >>> decoder.decode([b"\\x07\\x01\\x00\\x02\\x00"])
    {'label': array([7], dtype=uint8), 'pixels': array([[1, 2]], dtype=int16)}
    >>> decoder
    DecodeFields(fields=(('label', ('uint8', ())), ('pixels', ('int16', (2,)))))
    """

    fields: (
        Mapping[str, tuple[npt.DTypeLike, int | Iterable[int]]]
        | Iterable[tuple[str, tuple[npt.DTypeLike, int | Iterable[int]]]]
    )

    takes_fixed_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ordered("fields", self.fields)
        try:
            given = [(name, dtype, shape) for name, (dtype, shape) in dict(self.fields).items()]
        except (TypeError, ValueError):
            raise TypeError(
                f"DecodeFields takes a dict of (dtype, shape) by name, {{'x': ('uint8', ())}} say, got {self.fields!r}"
            ) from None
        layout = tuple((name, (dtype_name(dtype), shape_of(shape))) for name, dtype, shape in given)
        if not layout:
            raise ValueError("DecodeFields has no fields; name at least one with its (dtype, shape)")
        object.__setattr__(self, "fields", layout)

    def decode(self, records: Sequence[bytes]) -> dict[str, npt.NDArray[Any]]:
        """The dict of every field: its dtype (len(records), *shape), writable, contiguous, in native byte order.

        Raises: ValueError when a record has another size.
        """
        layout = [(name, number_dtype(dtype), shape_of(shape)) for name, (dtype, shape) in dict(self.fields).items()]
        packed = np.dtype(layout)
        wanted = ", ".join(f"{name} {dtype} {shape}" for name, dtype, shape in layout)
        stored: npt.NDArray[Any] = np.ndarray(len(records), packed, _joined(records, packed.itemsize, wanted))
        # The copy also aligns the column and lets go of the other fields' bytes.
        return {name: np.array(stored[name], dtype=dtype.newbyteorder("="), order="C") for name, dtype, _ in layout}


def _joined(records: Sequence[bytes], nbytes: int, wanted: str) -> bytearray | npt.NDArray[np.uint8]:
    """The bytes of all records in one writable buffer; each must have `nbytes`.

    The sizes are checked one by one, since a short record and a long one add up to the right total.
    """
    wrong = ({records.size} if isinstance(records, FixedRecords) else set(map(len, records))) - {nbytes}
    if wrong:
        raise ValueError(
            f"a record of {min(wrong)} bytes is not the {nbytes} bytes of {wanted}; reading on would shift "
            "every later number. Give the dtypes and shapes that the records were written with."
            + how_to_decode(next(record for record in records if len(record) == min(wrong)))
        )
    return records.writable() if isinstance(records, FixedRecords) else bytearray().join(records)
