"""Reads a Hugging Face IterableDataset lane by lane: a lane is one of its shards, a cursor holds its own state_dict.

Where the dataset reads Arrow tables, lanes give columns, in portions of batch_size rows: its state is exact behind such
a portion, and the portions of a resumed run must be those of the first. Else lanes give elements, one by one.

Source: datasets.iterable_dataset (IterableDataset.shard, iter, state_dict, load_state_dict, set_epoch).
"""

from __future__ import annotations

import abc
import functools
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from datarax_ray.plan.fingerprint import digest
from datarax_ray.read import iterable_tree
from datarax_ray.read.lanes import LaneRun
from datarax_ray.read.layout import Layout
from datarax_ray.read.patience import PatientRun, patiently
from datarax_ray.read.rows import Rows

# A portion costs 0.5 ms whatever its size, so it should hold many rows. Of Parquet and Arrow files it costs no memory:
# the dataset has decoded a row group or mapped the file, and a portion is a view of that.
_PORTION_NBYTES = 4 * 2**20
_MIN_ROWS, _MAX_ROWS = 16, 4096
# Single elements may be decoded images of any size, and cost the more for each, not for each portion.
_PORTION_ELEMENTS = 64
_FIRST_ROWS = 256  # by which is decided what columns become


class HFLanes:
    """The lanes of a datasets.IterableDataset, one for each of its shards, with what it does inside (map, filter).

    What a column becomes is decided by its first rows: numbers, and lists of one length there, are dense; strings,
    ragged lists, and what holds None there, are objects on the host. A row that does not fit is an error in its place.

    name: what the data is called, for people. on_host: columns that are objects whatever the first rows are.

    Raises: TypeError for what is no IterableDataset; ValueError for one that cannot be taken up exactly where it stood,
    or that is empty.
    """

    def __init__(self, dataset: Any, name: str, on_host: Iterable[str] = ()) -> None:
        import datasets

        if not isinstance(dataset, datasets.IterableDataset):
            raise TypeError(f"a stream is a datasets.IterableDataset, got {type(dataset).__name__}")
        iterable_tree.check_resumable(dataset)
        self._dataset = dataset
        self._name = name
        self.num_lanes = int(dataset.num_shards)
        self._layout: Layout | None = None
        self._batch_size = _PORTION_ELEMENTS
        if self.num_lanes and iterable_tree.has_arrow(dataset) and not _needs_decoding(dataset):
            self._look(on_host)
        self._fingerprint = {
            "num_lanes": self.num_lanes,
            "columns": digest(str(dataset.features)),
            "batch_size": self._batch_size,
            "on_host": [] if self._layout is None else list(self._layout.on_host),
            "digest": iterable_tree.tree_fingerprint(dataset),
        }

    def run(self, epoch: int, lane: int, state: Mapping[str, Any] | None) -> LaneRun:
        return PatientRun(functools.partial(self._run, epoch, lane), state)

    def _run(self, epoch: int, lane: int, state: Mapping[str, Any] | None) -> LaneRun:
        # a dataset of its own for each run: a dataset has one state, that of what it was last iterated for
        dataset = self._dataset.shard(self.num_lanes, lane)
        dataset = dataset.with_format("arrow") if self._layout is not None else _without_tables(dataset)
        dataset.set_epoch(epoch)
        if state is not None:
            if state.get("epoch") != epoch:  # `datasets` would begin at the start, and say nothing
                raise ValueError(
                    f"the cursor of lane {lane} is of epoch {state.get('epoch')!r}, and epoch {epoch} is read"
                )
            dataset.load_state_dict(state)
        if self._layout is not None:
            return _TableRun(dataset, self._batch_size, self._layout)
        return _ElementRun(dataset, self._batch_size)

    def locate(self, lane: int, index: int) -> str:
        files = iterable_tree.files_of(self._dataset.shard(self.num_lanes, lane))
        where = f" ({os.path.basename(files[0])})" if len(files) == 1 else ""
        return f"{self._name}, lane {lane}{where}, element {index}"

    def fingerprint(self) -> dict[str, Any]:
        """The number of lanes, and digests of columns, files (names and sizes) and what the dataset does inside."""
        return self._fingerprint

    def _look(self, on_host: Iterable[str]) -> None:
        """Decide by the first rows what columns become, and how many rows a portion has."""
        dataset = self._dataset.with_format("arrow")
        first = patiently(lambda: next(dataset.iter(_FIRST_ROWS), None))
        if first is None:
            return
        self._layout = Layout.of(first, as_objects=on_host)
        rows = _PORTION_NBYTES * first.num_rows // max(1, first.nbytes)
        self._batch_size = max(_MIN_ROWS, min(_MAX_ROWS, 1 << max(0, rows.bit_length() - 1)))


class _Run(abc.ABC):
    """A pass through a lane by the dataset's own iterator, which is nowhere ahead of what it gave."""

    def __init__(self, dataset: Any, iterator: Any) -> None:
        self._dataset = dataset
        self._iterator = iterator

    @abc.abstractmethod
    def next(self) -> list[Rows] | None: ...

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(json.dumps(self._dataset.state_dict()))
        return state

    def close(self) -> None:
        self._iterator.close()


class _TableRun(_Run):
    """Portions of columns."""

    def __init__(self, dataset: Any, batch_size: int, layout: Layout) -> None:
        super().__init__(dataset, dataset.iter(batch_size))
        self._layout = layout

    def next(self) -> list[Rows] | None:
        table = next(self._iterator, None)
        if table is None:
            return None
        try:  # each batch where it lies: joining them would copy all
            return [self._layout.columns(table.from_batches([batch])) for batch in table.to_batches()]
        except ValueError as error:  # Arrow's errors are ValueErrors
            raise ValueError(
                f"the next {table.num_rows} rows are not like the first {_FIRST_ROWS} of the dataset, by which it was "
                f"decided what columns become ({error}); name the column in host_keys to have it as objects"
            ) from error


class _ElementRun(_Run):
    """Portions of elements; where one cannot be read, those before it come first."""

    def __init__(self, dataset: Any, batch_size: int) -> None:
        super().__init__(dataset, iter(dataset))
        self._batch_size = batch_size
        self._failure: Exception | None = None

    def next(self) -> list[Rows] | None:
        if self._failure is not None:
            raise self._failure
        elements: list[Any] = []
        try:
            for element in itertools.islice(self._iterator, self._batch_size):
                elements.append(element)
        except Exception as error:
            if not elements:
                raise
            self._failure = error
        return [elements] if elements else None


def _needs_decoding(dataset: Any) -> bool:
    """Whether columns hold files that `datasets` decodes (images, audio): element by element, then."""
    from datasets.features.features import require_decoding

    return any(require_decoding(feature) for feature in (dataset.features or {}).values())


def _without_tables(dataset: Any) -> Any:
    """The dataset giving single elements; a format of arrays is kept."""
    formatting = dataset._formatting
    return dataset.with_format(None) if formatting is not None and formatting.is_table else dataset
