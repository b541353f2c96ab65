"""The parts of dense columns: dtypes by name, shapes as tuples, and arrays whose numbers are those that were given."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from datarax_ray.plan.arguments import ordered

Shape = tuple[int, ...]


def number_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The NumPy dtype of numbers that `dtype` names, JAX's own such as "bfloat16" included.

    Raises: ValueError when it is no fixed-size number (strings, objects, structures, None).

    >>> number_dtype("int32"), number_dtype("bfloat16")
    (dtype('int32'), dtype(bfloat16))
    """
    found: Any = None
    try:
        found = None if dtype is None else np.dtype(dtype)  # np.dtype(None) is float64
    except TypeError:
        import ml_dtypes  # comes with JAX but does not load it; NumPy knows its names only then

        if hasattr(ml_dtypes, str(dtype)):
            found = np.dtype(getattr(ml_dtypes, str(dtype)))
    if found is None or not is_number(found):
        raise ValueError(
            f"dtype {dtype!r} is not a fixed-size number; use one such as 'int32', 'float32', 'bool' or 'bfloat16'"
        )
    return found


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is bool, int, uint, float, complex or one of JAX's own, which NumPy keeps as kind "V".

    >>> is_number(np.dtype("int8")), is_number(np.dtype("S3"))
    (True, False)
    """
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type is not np.void)


def dtype_name(dtype: npt.DTypeLike) -> str:
    """The name of a dtype in a decoder's fields: "int32", or ">i4" where the bytes are swapped.

    Raises: ValueError as `number_dtype`.

    >>> dtype_name(np.int32), dtype_name("<i4"), dtype_name(">i4"), dtype_name("bfloat16")
    ('int32', 'int32', '>i4', 'bfloat16')
    """
    found = number_dtype(dtype)
    return found.name if found.isnative else found.str


def real_dtype_name(dtype: npt.DTypeLike) -> str:
    """The `dtype_name` of a bool, integer or float that NumPy itself knows, in native byte order.

    Raises: ValueError for complex numbers and for JAX's extra dtypes, as no exact conversion to them is written here.

    >>> real_dtype_name(float)
    'float64'
    """
    found = number_dtype(dtype)
    if found.kind not in "biuf":
        raise ValueError(
            f"decoded values cannot be converted to {found}; ask for a bool, int, uint or float dtype "
            "such as 'float32' here, and cast on the device"
        )
    return found.newbyteorder("=").name


def shape_of(shape: int | Iterable[int]) -> Shape:
    """The `shape` as a tuple of ints; a single int is the shape of a vector.

    Raises: ValueError when a size is negative or not an integer.

    >>> shape_of(3), shape_of([2, 3]), shape_of(())
    ((3,), (2, 3), ())
    """
    ordered("shape", shape)
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError as error:
        raise ValueError(f"shape {shape!r} is not made of integers") from error
    if min(sizes, default=0) < 0:
        raise ValueError(f"shape {shape!r} has a negative size; every size must be known here")
    return sizes


def missing_field(field: str, fields: Iterable[str]) -> ValueError:
    """The error for a field that an element lacks, with the names of its fields."""
    names = ", ".join(map(repr, sorted(fields))) or "no fields"
    return ValueError(f"there is no field {field!r}; the element has {names}")


def no_record(given: Any) -> TypeError:
    if not isinstance(given, Mapping):
        return TypeError(f"a record is bytes, and this one is a {type(given).__name__}")
    return TypeError(
        f"a record is bytes, and this one is a row that has the fields {sorted(given, key=str)} already; leave the "
        "decoder out, or decode a field in a function of the element"
    )


def exact_array(value: Any, dtype: npt.DTypeLike, field: str) -> npt.NDArray[Any]:
    """The `value` as an array of `dtype` (bool, int, uint or float), with the same numbers.

    Floats may be rounded to the nearest float of `dtype`, but a finite number stays finite. Every other conversion is
    exact or refused.

    value: a number, nested lists of numbers of equal lengths, or an array, which is returned where it has `dtype`.
    dtype: of the result.
    field: the name in errors.

    Raises: ValueError naming the field and the first number that would change, or a value that is no array of numbers.

    >>> exact_array([[1, 2.0], [True, 3]], "uint8", "x")
    array([[1, 2],
           [1, 3]], dtype=uint8)
    """
    target = np.dtype(dtype)
    try:
        source = np.asarray(value)
        if source.dtype.kind not in "biuf":
            raise ValueError
    except ValueError as error:
        raise ValueError(
            f"field {field!r} is {reprlib.repr(value)}; an array of {target} takes numbers only, in lists of equal "
            "lengths"
        ) from error
    with np.errstate(over="ignore", invalid="ignore"):
        array = source.astype(target, copy=False)
    changed = None if array is source else _first_change(value, source, array)
    if changed is not None:
        raise ValueError(
            f"field {field!r} holds {changed[0]!r}, which {target} would change to {changed[1]!r}; "
            "ask for a dtype that can hold it"
        )
    return array


def _first_change(value: Any, source: npt.NDArray[Any], array: npt.NDArray[Any]) -> tuple[Any, Any] | None:
    """The first number that the conversion changed, before and after; None where it changed none."""
    num_floats = (source.dtype.kind == "f") + (array.dtype.kind == "f")
    if num_floats != 1:
        lost = np.isfinite(source) & ~np.isfinite(array) if num_floats else source != array
        return (source[lost][0].item(), array[lost][0].item()) if lost.any() else None
    # Python compares an int with a float exactly; NumPy would first round the int to a float64. Lists compare in C.
    numbers = value if isinstance(value, list) else source.tolist()
    if array.tolist() == numbers:
        return None
    flat = np.asarray(numbers, dtype=object).ravel().tolist()
    pairs = zip(flat, array.ravel().tolist(), strict=True)
    return next(((before, after) for before, after in pairs if before != after), None)
