"""Owning: results in memory that nobody else writes to, copied only where somebody else holds them.

A transform may return its own buffer, or a view of it, and overwrite the buffer in its next call. It may also keep an
object and change it later. A data source may return an object that it keeps, and a transform may change that object in
place. So a value that outlives the next call must be ours. A value is ours if we hold all references to it, which
CPython counts, and if its items or the owner of its memory (the `base` of an array) are ours too. Bytes, text, numbers
and JAX arrays never change. Every other value is copied.

Source for counting references to prove that memory is not shared: numpy.ndarray.resize (refcheck).
"""

from __future__ import annotations

import copy
import copyreg
import datetime
import decimal
import itertools
import pathlib
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Set
from typing import Any

import numpy as np

from datarax_ray.read.elements.columns import HostDict, is_ragged_row, leaves, map_leaves, ragged_row
from datarax_ray.read.reused_memory import lender

Path = tuple[Any, ...]

# These never change. np.void is missing: it shows the memory of the array that it was taken from.
_CONSTANT = frozenset(
    {bytes, str, bool, int, float, complex, type(None), datetime.datetime, datetime.date, datetime.time}
    | {datetime.timedelta, decimal.Decimal, pathlib.PosixPath}
    | {kind for kind in np.sctypeDict.values() if not issubclass(kind, np.void | np.object_)}
)


def _reduced(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bytes):
        return np.bytes_, (bytes.join(b"", (value,)),)
    return np.str_, (str.join("", (value,)),)


# NumPy's own pickles drop the NULs at the end of a text scalar
# (https://github.com/numpy/numpy/blob/v2.4.0/numpy/_core/src/multiarray/scalartypes.c.src, gentype_reduce).
copyreg.pickle(np.bytes_, _reduced)
copyreg.pickle(np.str_, _reduced)


class UnfitError(TypeError):
    """A returned value that cannot be an element. path: of the unfit part. The message follows "returned"."""

    def __init__(self, what: str, remedy: str, path: Path = ()) -> None:
        super().__init__(what, remedy, path)
        self.path = path

    def __str__(self) -> str:
        what, remedy, _ = self.args
        return f"{what} in field {'.'.join(map(str, self.path))!r}{remedy}" if self.path else f"{what}{remedy}"


def _count(held: list[Any]) -> int:
    value = held[-1]
    return sys.getrefcount(value)


_ONE_HOLDER = _count([object()])  # as `own` counts: the container's reference, its own, and that of the call


def own(held: Any, key: Any) -> None:
    """Make held[key] ours, of a list or dict that is ours; a copy takes its place where needed.

    The caller holds no other reference to the value.

    Raises: UnfitError for a value that cannot be copied, can be read only once (an iterator), or has no order (a set).
    """
    value = held[key]
    kind = type(value)
    if kind in _CONSTANT:
        return
    if sys.getrefcount(value) <= _ONE_HOLDER:
        if kind is np.ndarray:
            if _shows_own_memory(value):
                return
        elif kind is dict or kind is list or kind is HostDict:
            name: Any = None
            try:
                if kind is not list:
                    for name in value:
                        if type(value[name]) not in _CONSTANT:
                            own(value, name)
                elif not _CONSTANT.issuperset(map(type, value)):
                    for name in range(len(value)):
                        own(value, name)
            except UnfitError as error:
                error.path = (name, *error.path)
                raise
            return
    held[key] = copied(value)


def own_items(held: list[Any]) -> list[Any]:
    """The items of the one iterable in `held`, each made ours before the next one is read; see own."""
    values = held[0]
    if type(values) is list and sys.getrefcount(values) <= _ONE_HOLDER:
        for index in range(len(values)):
            own(values, index)
        return values
    items = iter(values)
    found: list[Any] = []
    for count in itertools.count(1):
        found.extend(itertools.islice(items, 1))  # no variable holds it
        if len(found) < count:
            break
        own(found, -1)
    return found


def copied(value: Any, path: Path = ()) -> Any:
    """The value, with copies of all parts that may change. Raises: as own."""
    kind = type(value)
    if kind in _CONSTANT:
        return value
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return value
    if kind is dict or kind is HostDict:
        return kind({name: copied(item, (*path, name)) for name, item in value.items()})
    if kind is list:
        if _CONSTANT.issuperset(map(type, value)):
            return value.copy()
        return [copied(item, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_fields")):
        items = [copied(item, (*path, index)) for index, item in enumerate(value)]
        return tuple(items) if kind is tuple else kind(*items)
    if kind is np.ndarray:
        array = _copied_array(value, path)
        return ragged_row(array) if is_ragged_row(value) else array
    if kind.__module__.partition(".")[0] in ("jax", "jaxlib"):
        return value
    named = f"a {kind.__qualname__}"
    if isinstance(value, np.ma.MaskedArray):
        remedy = ", whose mask would be lost; return its filled(value), or its data and its mask as two fields"
        raise UnfitError(named, remedy, path)
    if isinstance(value, Iterator | AsyncIterator | Coroutine):
        remedy = "return a list, or, for several elements, give an object with flat_map(element) -> list"
        raise UnfitError(named, f", which can be read only once; {remedy}", path)
    if isinstance(value, Set):
        raise UnfitError(named, ", which has no order, so no two processes see the same; sort it to a list", path)
    try:
        return copy.deepcopy(value)
    except Exception as error:  # whatever a foreign class raises there
        remedy = f", which cannot be copied or sent to another process ({error}); return the data in it"
        raise UnfitError(named, remedy, path) from error


def own_columns(held: list[Any], given: Any) -> Any:
    """The columns that a step returned for the `given` ones, made ours. They are the one item of `held`.

    Arrays that show the memory of read-only given ones stay as they are.
    """
    fixed = (a for _, a in leaves(given) if not a.flags.writeable and (not a.dtype.hasobject or _has_constants(a)))
    return _own_columns(held, 0, {id(_owner(array)) for array in fixed}, False)


def _own_columns(held: Any, key: Any, owners: Set[int], is_shared: bool) -> Any:
    value = held[key]
    is_shared = is_shared or sys.getrefcount(value) > _ONE_HOLDER
    if isinstance(value, Mapping):
        return {name: _own_columns(value, name, owners, is_shared) for name in value}
    if type(value) is not np.ndarray or id(_owner(value)) in owners:
        return value
    return _copied_array(value, (key,)) if is_shared or not _shows_own_memory(value) else value


def read_only(columns: Any) -> Any:
    """The columns as read-only views; objects that may change are copied."""
    if isinstance(columns, Mapping):
        return {name: read_only(column) for name, column in columns.items()}
    view = columns.view() if not columns.dtype.hasobject or _has_constants(columns) else _copied_array(columns, ())
    view.flags.writeable = False
    return view


def columns_copied(columns: Any) -> Any:
    return map_leaves(lambda array: _copied_array(array, ()), columns)


def _owner(array: np.ndarray) -> Any:
    return array if array.base is None else array.base


def writable(columns: Any) -> Any:
    """Columns of our own as arrays that may be written to, copied where needed."""
    if not isinstance(columns, Mapping):
        return writable({"": columns})[""]
    found = {}
    for name in columns:
        value = columns[name]
        if isinstance(value, Mapping):
            found[name] = writable(value)
        elif sys.getrefcount(value) <= _ONE_HOLDER and _shows_own_memory(value) and value.flags.writeable:
            found[name] = value
        else:
            found[name] = _copied_array(value, (name,))
    return found


def objects_copied(array: np.ndarray, path: Path = ()) -> np.ndarray:
    """An array of our own, with copies of its objects in their places; see copied."""
    if array.dtype == object:
        if not _has_constants(array):
            items = [copied(item, path) for item in array.flat]
            array[...] = np.fromiter(items, object, len(items)).reshape(array.shape)
    elif array.dtype.hasobject:  # records with objects among their fields
        array = copy.deepcopy(array)
    return array


def unshared(array: np.ndarray) -> np.ndarray:
    """The array with copies of objects that a user may change in place, where its rows may be given again."""
    if array.dtype != object or not (kinds := set(map(type, array.flat)) - _CONSTANT):
        return array
    if kinds == {np.ndarray} and not any(type(v) is np.ndarray and v.flags.writeable for v in array.flat):
        return array
    return objects_copied(array.copy())


def _shows_own_memory(array: np.ndarray) -> bool:
    """Whether the memory of an array that nobody else holds is ours too."""
    owner, base = array, array.base
    while type(base) is np.ndarray and sys.getrefcount(base) <= _ONE_HOLDER:
        owner, base = base, base.base
    is_own = owner.flags.owndata if base is None else type(base) is bytes or base is lender(array)
    return is_own and (not array.dtype.hasobject or _has_constants(array))


def _has_constants(array: np.ndarray) -> bool:
    return array.dtype == object and _CONSTANT.issuperset(map(type, array.flat))


def _copied_array(array: np.ndarray, path: Path) -> np.ndarray:
    return objects_copied(array.copy(), path)
