"""Readers of objects with `__len__` and `__getitem__`, and of dicts of arrays.

Source: Grain's RandomAccessDataSource protocol, with the batched `__getitems__` of PyTorch and Hugging Face datasets.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import MAX_NUM_RECORDS, Indices
from datarax_ray.plan.plain_values import digest, shown
from datarax_ray.plan.position import pieces
from datarax_ray.read.elements.columns import Columns, leaves, map_leaves, nbytes
from datarax_ray.read.elements.owning import objects_copied, own, own_items
from datarax_ray.read.elements.row_digests import ADDRESS, evenly_spaced, hash_array, rows_digest
from datarax_ray.read.files.paths import OF_GENERATORS
from datarax_ray.read.forked import lock_of
from datarax_ray.read.formats.hugging_face.dataset import dataset_digests
from datarax_ray.read.formats.image_folder import ImageFolder
from datarax_ray.read.retry import retried
from datarax_ray.read.stream import Reader, ReaderTraits

_MAX_REPR = 120  # characters of it in the state; the digest covers all
_GUESSED_NBYTES = 1024  # of an element that says nothing of its size
_STRIPS_PER_THREAD = 4  # so that a slow element keeps the others from waiting, and a strip is still many of them
# Tables that look indexed and are not by their rows.
_TABLES = {"pandas.DataFrame", "pandas.Series", "pyarrow.Table", "pyarrow.RecordBatch", "polars.DataFrame"}
_DATASET = "datasets.arrow_dataset.Dataset"
_STREAM = "datasets.iterable_dataset.IterableDataset"
_NUMBERS = frozenset({bool, int, float, complex})
_MAX_SAMPLED = 1000  # elements of any kind, each looked at in Python
_SAMPLED_NBYTES = 4 * 2**20  # of arrays, for their digest: what is hashed in some milliseconds


class RandomAccessReader(Reader):
    """The elements of a Grain data source, a PyTorch or Hugging Face dataset, or any object indexed the same way.

    Reads by `__getitems__` or `_getitems` (a list of indices) where there is one. A context manager is entered before
    the first read and left at close, in every process that reads. The object travels to actors by pickle. One thread of
    a process reads it at a time, also where several sources have it: it may hold a file, which stands at one place.
    num_threads: that read single elements at the same time where there is no batched read; 0 for none.

    Raises: TypeError for what is not indexed, or not by its rows (tables of pandas, Arrow, Polars), and for arrays that
    are structured or of one value; ValueError for what is empty.
    """

    traits = ReaderTraits(Exception)  # any error of a data source for an index is about that index
    num_records = 0

    def __init__(self, data: Any, num_threads: int = 0) -> None:
        if isinstance(data, str | bytes):
            raise TypeError(
                f"{shown(data)} is text, its elements would be letters; of a path load(path, ...) makes the source of "
                "its format, and of text give a list of its lines, say"
            )
        if (table := _table(data)) is not None:
            raise TypeError(f"an index of a {table} gives no row; give its columns, {{name: table[name], ...}}")
        if isinstance(data, np.ndarray) and data.dtype.names is not None:
            raise TypeError(
                f"an index gives an np.void of the array's fields {list(data.dtype.names)}, no dict; give its fields, "
                "{name: data[name], ...}"
            )
        if inspect.isclass(data):
            raise TypeError(f"data is the class {data.__name__}; give an instance of it")
        if getattr(data, "ndim", None) == 0:
            raise TypeError(
                f"{shown(data)} is one value and has no rows; give an array or list with a row for each element"
            )
        if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
            raise TypeError(
                f"a data source has __len__ and __getitem__, {type(data).__name__} has not{remedy_for(data)}"
            )
        self._data = data
        self._num_threads = num_threads
        self._is_entered = False
        self._lock = lock_of(data)
        # leaving a Hugging Face dataset destroys it, and it needs no entering
        is_managed = hasattr(data, "__enter__") and not _is_hugging_face(data, _DATASET)
        self.traits = replace(self.traits, is_managed=is_managed)
        self.num_records = len(data)
        if not self.num_records:
            raise ValueError(f"there are 0 records in {_name(data)}; a stream needs at least one")
        if self.num_records > MAX_NUM_RECORDS:
            raise ValueError(
                f"{_name(data)} has {self.num_records:,} elements, so it repeats without an end; leave its .repeat() "
                "out, and .shuffle() before it, and say num_epochs (-1 is endless) and shuffle in the source's config"
            )

    @property
    def mean_nbytes(self) -> int:
        """Of the first element, if its arrays say."""
        try:
            first = self.read(np.zeros(1, np.int64))[0]
        except Exception:  # a broken element is an error when the stream comes to it
            return _GUESSED_NBYTES
        if isinstance(first, bytes | str):
            return len(first)
        arrays = first.values() if isinstance(first, Mapping) else [first]
        return sum(getattr(array, "nbytes", 8) for array in arrays) or _GUESSED_NBYTES

    def read(self, records: Indices) -> list[Any]:
        """Raises: StorageError where the storage of the data failed for long; errors of the data source."""
        return retried(lambda: self._read_within(records), f"elements of a {type(self._data).__qualname__}")

    def _read_within(self, records: Indices) -> list[Any]:
        """As _read, in the context of the data source where it is one, and alone."""
        with self._lock:
            if self.traits.is_managed and not self._is_entered:
                self._data.__enter__()
                self._is_entered = True
            return self._read(records)

    def _read(self, records: Indices) -> list[Any]:
        indices = records.tolist()
        batched = getattr(self._data, "__getitems__", None) or getattr(self._data, "_getitems", None)
        if batched is None:
            return self._read_each(indices)
        held = [batched(indices.copy())]  # which it may sort
        if held[0] is None or isinstance(held[0], Mapping | str | bytes):
            raise TypeError(
                f"{_name(self._data)} gave {type(held[0]).__name__} for a list of indices; {batched.__name__} returns "
                "a list with an element for each, in their order"
            )
        found = own_items(held)
        if len(found) != len(indices):
            raise ValueError(f"{_name(self._data)} gave {len(found)} elements for {len(indices)} indices")
        return found

    def _read_each(self, indices: list[int]) -> list[Any]:
        """Read elements one by one; with threads, each thread takes a few strips of them."""
        num_strips = min(self._num_threads * _STRIPS_PER_THREAD, len(indices))
        if num_strips < 2:
            return self._read_strip(indices)
        strips = [indices[start:stop] for start, stop in pieces(0, len(indices), num_strips)]
        with ThreadPoolExecutor(self._num_threads) as pool:
            return [element for strip in pool.map(self._read_strip, strips) for element in strip]

    def _read_strip(self, indices: list[int]) -> list[Any]:
        found: list[Any] = []
        for index in indices:
            found.append(self._data[index])
            own(found, -1)
        return found

    def locate(self, record: int) -> str:
        name = self._data.path(record) if isinstance(self._data, ImageFolder) else _name(self._data)
        return f"{name}[{record}]"

    def fingerprint(self) -> dict[str, Any]:
        """Its class, length and repr, without addresses.

        Of a list, tuple, array or Hugging Face dataset also a digest of some elements, spread over it. The rows that a
        checkpoint compares show the rest; see plan.evidence.
        """
        said = _name(self._data)
        named = {"num_records": self.num_records, "repr": said[:_MAX_REPR], "digest": digest(said)}
        if _is_hugging_face(self._data, _DATASET):
            return named | self._digests_of_dataset
        if type(self._data) not in (list, tuple, np.ndarray, np.memmap):
            return named
        count = max(2, min(_MAX_SAMPLED, _SAMPLED_NBYTES // max(1, self.mean_nbytes)))
        sampled = [self._data[index] for index in evenly_spaced(self.num_records, count).tolist()]
        try:
            return named | {"content": hashlib.sha256(_plain(sampled)).hexdigest()[:16]}
        except (TypeError, ValueError, RecursionError):  # dates, say, or objects of a class
            return named

    @functools.cached_property
    def _digests_of_dataset(self) -> dict[str, str]:
        return dataset_digests(self._data)  # once: every state has it, and a Dataset does not change

    def close(self) -> None:
        if not self.traits.is_managed:
            return  # or it would wait for another source that reads it
        with self._lock:
            if self._is_entered:
                self._is_entered = False
                self._data.__exit__(None, None, None)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_is_entered": False}


class ArraysReader(Reader):
    """The rows of a (nested) dict of arrays of one length. In actors all of a node read one copy, in the object store.

    Lists become arrays where that changes none of their values: text and mixtures with it stay as they are, as objects.

    Raises: ValueError for arrays of different lengths, without rows, or an empty dict, and for lists of numbers of
    several kinds; TypeError for what is no array, a masked one, a Hugging Face dataset (of a dict of splits, say), or a
    name that is no str.
    """

    traits = ReaderTraits(IndexError, caches_itself=True)
    num_records = 0

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        if (name := next((name for name in arrays if not isinstance(name, str)), None)) is not None:
            raise TypeError(
                f"a dict holds arrays by name, and {name!r} is no str; for elements by their numbers, give a list"
            )
        for path, array in leaves(arrays):
            if _is_hugging_face(array, _DATASET, _STREAM):
                raise TypeError(
                    f"{'.'.join(path)!r} is a Hugging Face dataset, no array, and its rows would become one field; "
                    f"give one dataset of {sorted(arrays)}, or several to a MixtureSource"
                )
            if isinstance(array, np.ma.MaskedArray):
                raise TypeError(
                    f"{'.'.join(path)!r} is a masked array, whose mask would be lost; give its filled(value), or its "
                    "data and its mask as two fields"
                )
            _check_alike(array, ".".join(map(str, path)))
        self._columns: Columns = map_leaves(_as_array, arrays)
        for (path, array), (_, given) in zip(leaves(self._columns), leaves(arrays), strict=True):
            if not array.ndim:
                raise TypeError(
                    f"{'.'.join(path)!r} is a {type(given).__name__}, no array or list with a row for each element; of "
                    "an iterable, list(...) makes one"
                )
        lengths = {".".join(path): len(array) for path, array in leaves(self._columns)}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the arrays must have one length, got {lengths or 'no arrays'}")
        self.num_records = next(iter(lengths.values()))
        if not self.num_records:
            raise ValueError(f"the arrays {sorted(lengths)} have no rows; a stream needs at least one")

    @property
    def mean_nbytes(self) -> int:
        return nbytes(self._columns) // self.num_records

    def read(self, records: Indices) -> Columns:
        return map_leaves(lambda array: objects_copied(array[records]), self._columns)

    def locate(self, record: int) -> str:
        return f"arrays[{record}]"

    def fingerprint(self) -> dict[str, Any]:
        """The number of rows, and a digest of names, shapes, dtypes and some rows, spread over each array."""
        count = max(2, min(self.num_records, _SAMPLED_NBYTES // max(1, self.mean_nbytes)))
        rows = evenly_spaced(self.num_records, count)
        return {"num_records": self.num_records, "digest": rows_digest(self.read(rows))}


def _as_array(values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind in "US" and isinstance(values, list | tuple):  # 1 would be "1", and b"a\0" would be b"a"
        return np.array(values, object)
    return array


def _check_alike(values: Any, name: str) -> None:
    """Raise ValueError for a list of numbers that an array would change: 2**63 beside 1, say, becomes a float; and for
    one that no array holds.
    """
    if not isinstance(values, list | tuple):
        _check_integers(values, name)
        return
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"the list {name!r} holds rows of several shapes, and makes no array ({error}); give a list of elements in "
            f"place of the dict of columns, as [{{{name!r}: row}} for row in rows]"
        ) from None
    if array.dtype.kind not in "biufc":
        return
    types = set(map(type, np.array(values, object).flat))
    kinds = {np.dtype(kind).kind for kind in types if kind in _NUMBERS or issubclass(kind, np.generic)}
    if len({kind.replace("u", "i") for kind in {*kinds, array.dtype.kind}}) > 1:
        raise ValueError(
            f"the list {name!r} holds {' and '.join(sorted(kind.__name__ for kind in types))}, and as an array of "
            f"{array.dtype} some of them would be other values; give a NumPy array of the dtype that you want"
        )


def _check_integers(values: Any, name: str) -> None:
    """Raise ValueError for a column of pyarrow or pandas with integers and nulls that floats would change."""
    kind, of_arrow = getattr(getattr(values, "dtype", None), "kind", None), str(getattr(values, "type", None))
    if not isinstance(values, np.ndarray) and (kind in ("i", "u") or of_arrow.startswith(("int", "uint"))):
        array = np.asarray(values)
        if array.dtype.kind == "f" and bool((np.abs(array) >= 2.0**53).any()):
            raise ValueError(
                f"the column {name!r} holds integers and nulls, and as an array of {array.dtype} some of these would "
                "be other numbers; fill its nulls (fill_null(0) of pyarrow, fillna(0) of pandas)"
            )


def _plain(values: Any) -> bytes:
    """As JSON, arrays of numbers and bytes by their digests. Raises: TypeError, ValueError for what else there is."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes | bytearray):
            return ["bytes", hashlib.sha256(value).hexdigest()]
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcMmSU":
            return [str(value.dtype), list(value.shape), hash_array(value)]
        raise TypeError(f"no plain value: {type(value)}")

    return json.dumps(list(values), sort_keys=True, default=plain).encode("utf-8", "surrogatepass")


def _name(data: Any) -> str:
    """Its repr, or its class where the repr gives an address, is long, or is the data itself."""
    if isinstance(data, list | tuple | np.ndarray):
        return type(data).__qualname__
    said = repr(data)
    if ADDRESS.search(said) or len(said) > 2000:
        return type(data).__qualname__
    return " ".join(said.split())


def remedy_for(given: Any) -> str:
    """What to do with this where a source is wanted, as the end of a sentence; "" for what gives no elements."""
    if _is_hugging_face(given, _DATASET, _STREAM):
        return "; from_hf(data, num_epochs=1) makes one"
    call = "RandomAccessSource(RandomAccessSourceConfig(num_epochs=1)"
    if (table := _table(given)) is not None:
        return f"; {call}, {{name: data[name], ...}}) makes one of the columns of a {table}"
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return f"; {call}, data) makes one"
    return f"; {OF_GENERATORS}" if hasattr(given, "__iter__") or inspect.isgeneratorfunction(given) else ""


def _table(data: Any) -> str | None:
    """The kind of a table that looks indexed and is not by its rows; None for other data. Imports nothing."""
    kinds = (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(data).__mro__)
    return next((kind for kind in kinds if kind in _TABLES), None)


def _is_hugging_face(data: Any, *kinds: str) -> bool:
    """Whether this is an instance of one of these classes of `datasets`. Imports nothing."""
    return any(f"{kind.__module__}.{kind.__qualname__}" in kinds for kind in type(data).__mro__)
