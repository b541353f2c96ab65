"""The transform that gives ragged fields one length, so that they stack into dense columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

from datarax_ray.plan.arguments import NamedArguments, mapping
from datarax_ray.read.decode.dense import Shape, exact_array, is_number, missing_field, real_dtype_name, shape_of


@final
@dataclass(frozen=True)
class PadTo(NamedArguments):
    """Pad the named fields at their end to a fixed length; other fields pass as they are.

    lengths: field to the length of its first axis, or the lengths of its first axes; other axes stay as they are, so
        give all of them where a list may be empty.
    value: the number to pad with.
    truncate: whether a longer field is cut at its end; otherwise it is an error.
    dtype: of the padded fields, whose numbers must fit. None keeps that of an array; lists need it, since an empty list
        has none and [1] and [1.0] differ. Use one PadTo for each dtype.
    mask_suffix: adds for every field a bool array of its padded lengths, named field + mask_suffix, True where the
        numbers are the element's own; None adds nothing.

    Raises: ValueError when a length is negative or the value does not fit the dtype.

    >>> pad = PadTo({"tokens": 3}, dtype="int32", mask_suffix="_mask")
    >>> pad.map({"tokens": [7, 8], "text": "abc"})
    {'tokens': array([7, 8, 0], dtype=int32), 'text': 'abc', 'tokens_mask': array([ True,  True, False])}
    """

    lengths: Mapping[str, int | Iterable[int]] = field(hash=False)
    value: float = 0
    truncate: bool = False
    dtype: npt.DTypeLike | None = None
    mask_suffix: str | None = None

    def __post_init__(self) -> None:
        mapping("lengths", self.lengths, "field")
        lengths = {name: shape_of(length) for name, length in sorted(self.lengths.items())}
        if not all(lengths.values()):
            raise ValueError(f"lengths {lengths} name no axis for a field; give an int or a tuple of ints")
        object.__setattr__(self, "lengths", lengths)
        if self.dtype is not None:
            object.__setattr__(self, "dtype", real_dtype_name(self.dtype))
        # As a plain number of the dtype, so that 0 and 0.0 have one repr and one fingerprint.
        value = np.asarray(self.value) if self.dtype is None else exact_array(self.value, self.dtype, "value")
        object.__setattr__(self, "value", value.item())

    def map(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """A new element with each named field as an array of its fixed lengths.

        Raises: ValueError when a field is missing, too long (unless `truncate`), has too few axes or holds a number
        that the dtype cannot, or when a mask would replace a field.
        """
        padded = dict(element)
        for name, lengths in self.lengths.items():
            if name not in element:
                raise missing_field(name, element)
            padded[name], mask = self._padded(name, element[name], shape_of(lengths))
            if self.mask_suffix is not None:
                if (mask_name := f"{name}{self.mask_suffix}") in padded:
                    raise ValueError(
                        f"the element has a field {mask_name!r}, which the mask would replace; use another suffix"
                    )
                padded[mask_name] = mask
        return padded

    def _padded(self, name: str, value: Any, lengths: Shape) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        array = self._array(name, value)
        if array.shape == (0,):
            array = array.reshape((0,) * len(lengths))  # an empty list has no inner axes
        if array.ndim < len(lengths):
            raise ValueError(
                f"field {name!r} has shape {array.shape}, and PadTo has {len(lengths)} lengths for it: {lengths}"
            )
        if not self.truncate and any(size > length for size, length in zip(array.shape, lengths, strict=False)):
            raise ValueError(
                f"field {name!r} has shape {array.shape}, longer than {lengths}; "
                "pad to a greater length, or cut it with truncate=True"
            )
        own = tuple(slice(min(size, length)) for size, length in zip(array.shape, lengths, strict=False))
        if array.dtype.kind in "biuf":
            fill = exact_array(self.value, array.dtype, f"value to pad {name} with")
        else:  # complex, or JAX's floats, which hold any value
            fill = np.asarray(self.value).astype(array.dtype)
        filled = np.full((*lengths, *array.shape[len(lengths) :]), fill)
        mask = np.zeros(lengths, dtype=bool)
        filled[own], mask[own] = array[own], True
        return filled, mask

    def _array(self, name: str, value: Any) -> npt.NDArray[Any]:
        if value is None:
            raise ValueError(
                f"field {name!r} is null, which has no length to pad. Put an empty list in its place, by "
                f"on_null={{{name!r}: []}} of the source's config where it has that, or drop such elements"
            )
        if self.dtype is not None:
            return exact_array(value, self.dtype, name)
        if isinstance(value, np.ndarray | np.generic) and is_number(value.dtype):
            return np.asarray(value)
        raise ValueError(
            f"field {name!r} is a {type(value).__name__}, which has no numeric dtype of its own; "
            "give PadTo one, such as dtype='int32'"
        )
