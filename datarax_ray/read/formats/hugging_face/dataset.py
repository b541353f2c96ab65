"""Reads rows of a Hugging Face map-style dataset by index, as columns, from its Arrow table.

Arrow files are memory-mapped: an actor receives their paths, and reads a row where it lies. Tables in memory travel as
their buffers, once to each node. Source: datasets.arrow_dataset, datasets.table, datasets.features.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import pickle
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.elements.columns import Columns, map_leaves
from datarax_ray.read.elements.owning import unshared
from datarax_ray.read.elements.row_digests import MAX_WHOLE, evenly_spaced
from datarax_ray.read.errors import StorageError
from datarax_ray.read.formats.arrow.columns import MAX_JOINED_NBYTES, ColumnTypes
from datarax_ray.read.formats.arrow.elements import with_loose, without_pil
from datarax_ray.read.formats.arrow.types import stored
from datarax_ray.read.retry import retried
from datarax_ray.read.stream import Reader, ReaderTraits

_NUM_SAMPLED = 256  # rows for the digest
_SAMPLED_NBYTES = 4 * 2**20  # of rows in Python: some tenths of a second
# What Table.take joins (0.2 ms for 1 MB) in the time that taking rows of one more batch takes (10 to 30 us).
_JOINED_NBYTES = 100_000
_RUN_NBYTES = 16 * 2**20  # of rows that are taken at once as a table
_IMAGE, _JSON = "Image", "Json"  # the features that are decoded here
_DECODERS = {"Audio": "DecodeAudio", "Video": "DecodeVideo"}


class UndecodableError(ValueError):
    """A stored value, an image for example, that does not decode."""


class DatasetReader(Reader):
    """The rows of a datasets.Dataset, after its select, shuffle and filter, with its format's columns.

    All rows decide what a column becomes (see read.formats.arrow.columns). Images are decoded.

    name: how the dataset is called, for people. on_null: see OnNull.

    Raises: TypeError for what is no datasets.Dataset; ValueError for one that is empty, that runs a function whenever
    it is read (set_transform), or has features that only `datasets` can decode.
    """

    traits = ReaderTraits(UndecodableError, caches_itself=True)
    num_records = mean_nbytes = 0
    name_firsts = np.zeros(1, np.int64)
    breaks_whole = False  # see GroupedRows

    def __init__(self, dataset: Any, name: str, on_null: Any = None) -> None:
        _check(dataset, name)
        if dataset.format["columns"] != dataset.column_names:
            dataset = dataset.select_columns(dataset.format["columns"])
        self._name = name
        self._features = dataset.features
        self._tables = _Tables(dataset.data, dataset._indices, name)
        self.num_records = len(dataset)
        self._decoded = tuple(key for key, needed in self._features._column_requires_decoding.items() if needed)
        as_objects = [*self._decoded, *arrays_of_any_length(self._features)]
        self._types = ColumnTypes.of(dataset.data.table, self._tables.rows, as_objects, on_null)
        self.mean_nbytes = dataset.data.nbytes // max(1, dataset.data.num_rows)

    def read(self, records: Indices) -> Columns | list[Any]:
        """The columns of these rows, in the given order; a list of elements where images among them differ in size.

        records: int64 (k,), in [0, num_records), repeats allowed. Neighbouring rows of one Arrow batch, in their order,
        are read-only views of it.

        Raises: UndecodableError for an image or JSON text that does not decode; StorageError where a file behind a URL
        cannot be read for long.
        """
        columns = self._stored(records)
        images = {}
        for key in self._decoded:
            decoded = self._decode(key, columns.pop(key))
            if _IMAGE in _decoded_kinds(self._features[key]):
                images[key] = decoded
            else:
                columns[key] = np.fromiter(decoded, object, len(decoded))
        return with_loose(columns, images) if images and len(records) else columns

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The rows [start, stop) in runs of some megabytes: what `table` takes."""
        step = max(1, _RUN_NBYTES // max(1, self.mean_nbytes))
        return [(first, min(first + step, stop)) for first in range(start, stop, step)]

    def table(self, start: int, stop: int) -> Any:
        """The rows [start, stop) as a pyarrow.Table: as they are stored, with their nulls; pictures are the bytes of
        their files, also where the dataset has these elsewhere.
        """
        table, where = self._tables.taken(np.arange(start, stop))
        table = table.select(list(self._features))
        if where is not None:
            table = table.take(where)
        for key in self._decoded:
            table = _embedded(table, key, self._features[key])
        return table

    def locate(self, record: int) -> str:
        return f"{self._name}[{record}]"

    def fingerprint(self) -> dict[str, Any]:
        """The number of rows, and digests of the features and of rows.

        The fingerprint of `datasets` differs between two loads of the same data in memory.
        """
        return {"num_records": self.num_records, **self._digests, **self._types.on_null.identity()}

    @property
    def column_types(self) -> ColumnTypes:
        return self._types

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_digests"}

    @functools.cached_property
    def _digests(self) -> dict[str, str]:
        found = self._tables.digests(self.num_records, list(self._features))
        return found | {"digest": digest([found["digest"], sorted(map(str, self._features.items()))])}

    def _stored(self, records: Indices) -> Columns:
        table, where = self._tables.taken(records)
        columns = self._types.columns(table)
        return columns if where is None else map_leaves(lambda column: unshared(column[where]), columns)

    def _decode(self, key: str, values: np.ndarray) -> list[Any]:
        def decoded() -> list[Any]:
            return [without_pil(value) for value in self._features.decode_column(values.tolist(), key)]

        try:
            return retried(decoded, f"column {key!r} of {self._name}")
        except StorageError:
            raise
        except Exception as error:
            raise UndecodableError(f"column {key!r} does not decode: {error}") from error


def _embedded(table: Any, key: str, feature: Any) -> Any:
    """The table with the bytes of files in place of their paths."""
    import pyarrow as pa
    from datasets.table import embed_array_storage

    column = table.column(key)
    chunks = [embed_array_storage(chunk, feature) for chunk in column.chunks]
    index = table.column_names.index(key)
    return table.set_column(index, table.schema.field(index), pa.chunked_array(chunks, column.type))


def dataset_digests(dataset: Any) -> dict[str, str]:
    """content: a digest of some rows of a datasets.Dataset as they are stored, and of its format. rows: of all rows.

    Nothing is decoded and no function of set_transform is called.
    """
    found = _Tables(dataset.data, dataset._indices, "the dataset").digests(len(dataset), dataset.column_names)
    content = [found.pop("digest"), dataset.format["type"], sorted(dataset.format["columns"])]
    return found | {"content": digest(content)}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _movable(value: Any) -> Any:
    """A stored value with digests in place of bytes, and file names without folders: data may move."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, dict):
        found = {key: _movable(v) for key, v in value.items()}
        if value.keys() == {"bytes", "path"} and value["path"]:
            found["path"] = os.path.basename(value["path"])
        return found
    return [_movable(v) for v in value] if isinstance(value, list | tuple) else value


class _Tables:
    """The tables of a dataset, its rows and which of them are used, opened where they are first read.

    The Tables of `datasets` pickle mapped files as their paths, and open them when they are unpickled: an error there
    would be about an actor that cannot start, not about the file.
    """

    def __init__(self, data: Any, indices: Any, name: str) -> None:
        self._name = name
        self._opened: tuple[Any, Any] | None = (data, indices)
        self._closed: tuple[bytes, list[Any]] | None = None

    def taken(self, records: Indices) -> tuple[Any, Indices | None]:
        """The table of these rows, each once and in stored order, and the place of each row; None for that order."""
        rows = records if self.rows is None else self.rows[records]
        wanted, where = np.unique(rows, return_inverse=True)
        return self.take(wanted), None if np.array_equal(where, np.arange(len(wanted))) else where

    def digests(self, num_records: int, columns: list[str]) -> dict[str, str]:
        """digest: of up to 256 rows, 4 MiB, spread over all. rows: of all rows, where they are few (20,000, 4 MiB)."""

        def text_of(records: Indices) -> str:
            table, where = self.taken(records)
            rows = stored(table.select(sorted(columns))).to_pylist()
            return repr(_movable(rows if where is None else [rows[index] for index in where.tolist()]))

        count = min(_NUM_SAMPLED, _SAMPLED_NBYTES // len(text_of(np.arange(1))))
        some = evenly_spaced(num_records, count)
        sample = text_of(some)
        found = {"digest": _hash(sample)}
        if num_records <= MAX_WHOLE and len(sample) / len(some) * num_records <= _SAMPLED_NBYTES:
            found["rows"] = _hash(text_of(np.arange(num_records)))
        return found

    def take(self, rows: Indices) -> Any:
        """A pyarrow.Table of these rows, ascending and distinct: views of Arrow batches where rows are neighbours.

        Batch by batch, unless there is less to join than that costs: Table.take first joins whole columns, where they
        hold lists or text.
        """
        import pyarrow as pa

        batches, starts, nbytes = self._batches
        owner = np.searchsorted(starts, rows, side="right") - 1
        cuts = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(rows)]
        if len(cuts) > 2 and nbytes < min(_JOINED_NBYTES * len(cuts), MAX_JOINED_NBYTES):
            return self._open()[0].table.take(rows)
        parts = []
        for lo, hi in itertools.pairwise(cuts):
            batch, inner = batches[owner[lo]], rows[lo:hi] - starts[owner[lo]]
            is_run = inner[-1] - inner[0] == hi - lo - 1
            parts.append(batch.slice(inner[0], hi - lo) if is_run else batch.take(pa.array(inner)))
        return pa.Table.from_batches(parts)

    @functools.cached_property
    def _batches(self) -> tuple[list[Any], Indices, int]:
        """The batches with rows, the first row of each, and the bytes of the whole table."""
        table = self._open()[0].table
        found = [batch for batch in table.to_batches() if batch.num_rows]
        return found, np.cumsum([0, *(batch.num_rows for batch in found)])[:-1], table.nbytes

    @functools.cached_property
    def rows(self) -> Indices | None:
        """The rows that are used, in their order; None for all."""
        indices = self._open()[1]
        return None if indices is None else indices.column(0).to_numpy().view(np.int64)

    def _open(self) -> tuple[Any, Any]:
        if self._opened is None:
            assert self._closed is not None
            try:
                self._opened = pickle.loads(self._closed[0], buffers=self._closed[1])
            except FileNotFoundError as error:
                error.add_note(
                    f"{self._name} is mapped from this file, which every node must have under this path: keep the "
                    "cache of `datasets` (HF_HOME) or the saved folder on storage that all nodes share, or load it "
                    "with keep_in_memory=True to send its data to them"
                )
                raise
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        if self._closed is None:
            import pyarrow as pa

            buffers: list[pickle.PickleBuffer] = []
            stream = io.BytesIO()
            _TablePickler(stream, protocol=5, buffer_callback=buffers.append).dump(self._opened)
            # Arrow's buffers, which go out of band as these do, but pickle by older protocols too
            self._closed = stream.getvalue(), [pa.py_buffer(buffer.raw()) for buffer in buffers]
        return {"_name": self._name, "_opened": None, "_closed": self._closed}


class _TablePickler(pickle.Pickler):
    """Pickles of a slice of a table its own rows, where pyarrow pickles the buffers of the whole."""

    def reducer_override(self, value: Any) -> Any:
        import pyarrow as pa

        if not isinstance(value, pa.Table) or value.get_total_buffer_size() <= 2 * value.nbytes:
            return NotImplemented
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_table(value)
        return _read_table, (sink.getvalue(),)


def _read_table(stored: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(stored).read_all()


def _check(dataset: Any, name: str) -> None:
    import datasets

    if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise TypeError(f"{name} is a dict of the splits {list(dataset)}; give one of them")
    if isinstance(dataset, datasets.IterableDataset):
        raise TypeError(f"{name} is an IterableDataset, a stream without random access; use HFStreamingSource for it")
    if not isinstance(dataset, datasets.Dataset):
        raise TypeError(f"a dataset is a datasets.Dataset, got {type(dataset).__name__}")
    if not len(dataset):
        raise ValueError(f"there are 0 records in {name}; a stream needs at least one")
    if not dataset.format["columns"]:
        raise ValueError(f"{name} has no columns; an element needs at least one field")
    if dataset.format["type"] == "custom":
        raise ValueError(
            f"{name} runs a function whenever it is read (set_transform), which may give another result when a row is "
            "read again, and takes batches; pass transforms=[...] of single elements instead (random_map for random "
            "ones), after dataset.reset_format()"
        )
    for key in dataset.format["columns"]:
        _check_feature(key, dataset.features[key])


def _check_feature(key: str, feature: Any) -> None:
    """Raise for a column that needs more than Pillow to decode."""
    from datasets.features.features import require_decoding

    if not require_decoding(feature):
        return
    kinds = _decoded_kinds(feature)
    if not kinds <= {_IMAGE, _JSON}:
        raise ValueError(
            f"column {key!r} is of the feature {feature}, and decoding it gives no arrays; take its stored bytes, "
            f"dataset.cast_column({key!r}, {type(feature).__name__}(decode=False)), and decode them by "
            f"{_DECODERS.get(type(feature).__name__, 'a transform')}, or leave it out with exclude_keys=[{key!r}]"
        )
    if _IMAGE in kinds:
        try:
            import PIL  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"column {key!r} holds images, which `datasets` decodes with Pillow: pip install pillow; or take the "
                f"stored bytes, dataset.cast_column({key!r}, Image(decode=False)), and DecodeImage"
            ) from error


def arrays_of_any_length(features: Any) -> list[str]:
    """The columns of Array2D to Array5D whose first axis has any length: objects, whatever lengths there are."""
    return [key for key, feature in (features or {}).items() if None in (getattr(feature, "shape", None) or ())]


def _decoded_kinds(feature: Any) -> set[str]:
    from datasets.features.features import require_decoding

    if not require_decoding(feature):
        return set()
    if isinstance(feature, dict):
        return set().union(*map(_decoded_kinds, feature.values()))
    inner = feature[0] if isinstance(feature, list | tuple) else getattr(feature, "feature", None)
    return {type(feature).__name__} if inner is None else _decoded_kinds(inner)
