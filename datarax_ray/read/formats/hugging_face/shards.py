"""Reads a Hugging Face IterableDataset shard by shard. A cursor holds the state_dict of the dataset.

A dataset of Arrow tables gives columns, in portions of batch_size rows. The state is exact behind a portion, so a
resumed run must read the portions of the first run. Other datasets give elements one by one. A portion of elements
becomes columns too, unless the elements are no table or the dataset has a format of arrays.

Images and audio are decoded on delivery. A window holds their stored bytes, and a broken image does not end the
iterator of the dataset.

Source: datasets.iterable_dataset (IterableDataset.shard, iter, state_dict, load_state_dict, set_epoch).
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datarax_ray.plan.plain_values import digest, shown
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.elements.owning import own, own_items
from datarax_ray.read.errors import StorageError
from datarax_ray.read.file_contents import difference, stamp
from datarax_ray.read.files.filesystems import changed
from datarax_ray.read.formats.arrow.columns import FIRST_ROWS, ColumnTypes, UnlikeError
from datarax_ray.read.formats.arrow.elements import ElementTypes, without_pil
from datarax_ray.read.formats.arrow.types import OnNull
from datarax_ray.read.formats.hugging_face import iterable_tree
from datarax_ray.read.formats.hugging_face.dataset import arrays_of_any_length
from datarax_ray.read.retry import retried
from datarax_ray.read.streams.open_shards import RetriedRun, Rows, ShardRun

logger = logging.getLogger(__name__)

_OF_ELEMENTS = (
    "make all alike in the map or generator that they come from (a value for None, lists of one length, one type of "
    "numbers, as features= declares it), or "
)
_FIRST_ELEMENTS = 64  # by which is decided what they become; they may cost a map, and are made again when they are due
_FIRST_SHARDS = 16  # that are begun for so many, where they are short: on a web server each may take a second


@dataclass(frozen=True)
class Portions:
    """The size of a portion. States stand between portions, so streams of different sizes have different states.

    A portion costs 0.5 ms whatever its size, so it should hold many rows. Portions of Parquet and Arrow files cost no
    memory: they are views of a decoded row group or a mapped file.

    nbytes: of rows, estimated by the first rows.
    min_rows, max_rows: bounds of the number of rows.
    elements: per portion, where elements are read one by one. They may be decoded images of any size.
    """

    nbytes: int = 4 * 2**20
    min_rows: int = 16
    max_rows: int = 4096
    elements: int = 64

    def num_rows(self, first: Any) -> int:
        """The rows in a portion of rows like these: a power of two within the bounds."""
        rows = self.nbytes * first.num_rows // max(1, first.nbytes)
        return max(self.min_rows, min(self.max_rows, 1 << max(0, rows.bit_length() - 1)))


class HFShards:
    """The shards of a datasets.IterableDataset, with its own map and filter.

    The first rows or elements decide the types of columns, by the policy of read.formats.arrow.columns. A later row
    that does not fit is an error at its place.

    name: of the data, for people.
    on_host: columns that are always objects.
    portions: how much is read at a time.
    on_null: see OnNull.

    Raises: TypeError for other objects; ValueError for a dataset that is empty, or that cannot be resumed exactly, and
    for on_null of elements that stay as they come.
    """

    def __init__(
        self, dataset: Any, name: str, on_host: Iterable[str] = (), portions: Portions = Portions(), on_null: Any = None
    ) -> None:
        import datasets
        from datasets.features.features import require_decoding

        if not isinstance(dataset, datasets.IterableDataset):
            raise TypeError(f"a stream is a datasets.IterableDataset, got {type(dataset).__name__}")
        self.decode: _Decoder | None = None
        self._dataset = dataset
        # images, audio: decoded element by element
        holds_files = any(require_decoding(feature) for feature in (dataset.features or {}).values())
        if holds_files and iterable_tree.decodes_last(dataset):  # else a map or a filter inside saw them decoded
            self.decode, self._dataset = _Decoder(dataset), dataset.decode(False).with_format(None)
        iterable_tree.check_resumable(self._dataset)
        self._name = name
        self._stamps = {path: stamp(path) for path in iterable_tree.files_of(dataset) if os.path.isfile(path)}
        self.num_shards = int(dataset.num_shards)
        if by_shard := iterable_tree.done_by_shard(self._dataset):
            logger.warning(
                "%s: `datasets` does %s for each of the %d shards apart, as for the workers of a DataLoader: the "
                "elements are the same for any number of actors, but not those of a plain loop over the dataset. Where "
                "these are wanted, do it to data of one shard, or choose among the data_files",
                name,
                ", ".join(by_shard),
                self.num_shards,
            )
        self._types: ColumnTypes | ElementTypes | None = None  # None: elements stay as they come
        self._num_first = 0  # rows or elements that decided
        self._batch_size = portions.elements
        as_objects = (*on_host, *arrays_of_any_length(dataset.features))
        if self.num_shards and iterable_tree.has_arrow(self._dataset) and not holds_files:
            self._look_at_rows(as_objects, portions, on_null)
        elif self.num_shards and (dataset._formatting is None or dataset._formatting.is_table):  # else it makes arrays
            self._look_at_elements(dataset.features or {}, as_objects, on_null)
        if self._types is None and self.num_shards and on_null is not None:
            raise ValueError(
                f"on_null={on_null!r} is of columns, and the elements of {name} stay as the dataset makes them (by a "
                "format of arrays, or with other fields in each), so their nulls would stay. Fill them in a transform, "
                "or take the format away, dataset.with_format(None)"
            )
        self._fingerprint = {
            "num_lanes": self.num_shards,
            "columns": digest([str(dataset.features), None if self._types is None else self._types.described()]),
            "batch_size": self._batch_size,
            **iterable_tree.tree_fingerprint(self._dataset),
            **OnNull.of(on_null).identity(),
        }

    @property
    def column_types(self) -> ColumnTypes | None:
        return self._types.types if isinstance(self._types, ElementTypes) else self._types

    def run(self, epoch: int, shard: int, state: Mapping[str, Any] | None) -> ShardRun:
        return RetriedRun(functools.partial(self._run, epoch, shard), state)

    def _run(self, epoch: int, shard: int, state: Mapping[str, Any] | None) -> ShardRun:
        if state is not None and state.get("epoch") != epoch:  # `datasets` would begin at the start, and say nothing
            raise ValueError(
                f"the cursor of shard {shard} is of epoch {state.get('epoch')!r}, and epoch {epoch} is read"
            )
        open_at = functools.partial(self._open, epoch, shard)
        if isinstance(self._types, ColumnTypes):
            return _TableRun(open_at(state), self._batch_size, self._types, self._num_first)
        return _ElementRun(open_at, state, self._batch_size, self._types, self._num_first)

    def _open(self, epoch: int, shard: int, state: Mapping[str, Any] | None) -> Any:
        """The shard as a dataset, for one run: a dataset holds the state of its last iterator alone."""
        dataset = self._dataset.shard(self.num_shards, shard)
        for path in filter(os.path.isfile, iterable_tree.files_of(dataset)):
            if (seen := self._stamps.setdefault(path, now := stamp(path))) != now:
                raise changed(path, difference(seen, now))
        if isinstance(self._types, ColumnTypes):
            dataset = dataset.with_format("arrow")
        elif dataset._formatting is not None and dataset._formatting.is_table:
            dataset = dataset.with_format(None)  # single elements; a format of arrays is kept
        dataset.set_epoch(epoch)
        if state is not None:
            _check_like(dataset.state_dict(), state, f"the cursor of shard {shard}")
            dataset.load_state_dict(state)
        return dataset

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stamps": {}}  # other hosts have other inodes

    def loose(self, columns: Columns) -> dict[str, Any]:
        """The columns that are still to be stacked: values to decode, arrays, and objects of the user's classes."""
        names = self._types.loose if isinstance(self._types, ElementTypes) else ()
        return {name: columns[name] for name in names}

    def locate(self, shard: int, index: int) -> str:
        files = iterable_tree.files_of(self._dataset.shard(self.num_shards, shard))
        where = f" ({os.path.basename(files[0])})" if len(files) == 1 else ""
        return f"{self._name}, shard {shard}{where}[{index}]"

    def fingerprint(self) -> dict[str, Any]:
        """The number of shards, and digests of columns, of files (names, sizes, and some bytes of local files), and of
        the settings of the dataset's own map, filter and so on.
        """
        return dict(self._fingerprint)  # a state may be changed by whoever has it

    def close(self) -> None:
        """End the threads that decode; decoding starts them again."""
        if self.decode is not None:
            self.decode.close()

    def _look_at_rows(self, as_objects: Sequence[str], portions: Portions, on_null: Any) -> None:
        """Decide by the first rows the types of columns, and the number of rows in a portion."""
        dataset = self._dataset.with_format("arrow")
        first = retried(lambda: next(dataset.iter(FIRST_ROWS), None))
        if first is not None:
            self._types = ColumnTypes.of(first, as_objects=as_objects, on_null=on_null)
            self._num_first, self._batch_size = first.num_rows, portions.num_rows(first)

    def _look_at_elements(self, features: Any, as_objects: Sequence[str], on_null: Any) -> None:
        """Decide by the first elements the types of fields."""
        from datasets.features.features import require_decoding

        first: list[Any] = []

        def look() -> None:
            first.clear()
            for shard in range(min(self.num_shards, _FIRST_SHARDS)):
                for element in itertools.islice(self._open(0, shard, None), _FIRST_ELEMENTS - len(first)):
                    first.append(element)  # one by one: those before what cannot be read count
                if len(first) == _FIRST_ELEMENTS:
                    return

        try:
            retried(look)
        except StorageError:
            raise  # or fewer elements would decide, and a resume find another stream
        except Exception:  # reading it raises again, in its place
            pass
        to_decode = [name for name, feature in features.items() if require_decoding(feature)]
        kinds = {part.name: part.type for part in features.arrow_schema} if features else {}
        self._types = ElementTypes.of(first, kinds, to_decode, as_objects, on_null)
        self._num_first = len(first)


class _TableRun:
    """Portions of columns, from the iterator of the dataset, which reads nothing ahead.

    Where a row is unlike the first rows, the rows before it in its portion come first. They have no state, as it would
    be the state of a portion of another size.
    """

    def __init__(self, dataset: Any, batch_size: int, types: ColumnTypes, num_first: int) -> None:
        self._dataset = dataset
        self._iterator = dataset.iter(batch_size)
        self._types, self._num_first = types, num_first
        self._failure: ValueError | None = None  # of the row that comes next

    def next(self) -> list[Rows] | None:
        if self._failure is not None:
            raise self._failure
        table = next(self._iterator, None)
        if table is None:
            return None
        try:
            return self._columns(table)
        except ValueError as error:  # Arrow's errors are ValueErrors
            index, why = self._types.first_odd(table) or (0, error)
        self._failure = _unlike("this row is", f"first {self._num_first}", "", why)
        self._failure.__cause__ = why
        if not index:
            raise self._failure
        return self._columns(table.slice(0, index))

    def _columns(self, table: Any) -> list[Rows]:
        """Each batch where it lies: joining them would copy all."""
        return [self._types.columns(table.from_batches([batch])) for batch in table.to_batches()]

    def state(self) -> dict[str, Any] | None:
        return None if self._failure is not None else _state(self._dataset)

    def close(self) -> None:
        self._iterator.close()


class _ElementRun:
    """Portions of elements. Where an element cannot be read, the elements before it come first, with their state.

    open_at: opens the shard's part of the dataset at a state.
    """

    def __init__(
        self,
        open_at: Callable[[Mapping[str, Any] | None], Any],
        state: Mapping[str, Any] | None,
        batch_size: int,
        types: ElementTypes | None,
        num_first: int,
    ) -> None:
        self._open_at = open_at
        self._types, self._num_first = types, num_first
        self._state = state
        self._batch_size = batch_size
        self._dataset = open_at(state)
        self._iterator = iter(self._dataset)

    def next(self) -> list[Rows] | None:
        elements: list[Any] = []
        try:
            for element in itertools.islice(self._iterator, self._batch_size):
                elements.append(element)
                del element  # a generator may give the same again, changed
                own(elements, -1)
        except Exception:
            if not elements:
                raise
            # The dataset's state may be behind what failed, which would be missing from what is read from there on.
            elements = self._again(len(elements))
        if not elements:
            return None
        given = self._rows(elements)
        self._state = _state(self._dataset)
        return [given]

    def _rows(self, elements: list[Any]) -> Rows:
        """The elements as columns, where they have types; only the elements before the first that does not fit."""
        if self._types is None:
            return list(map(without_pil, elements))
        try:
            return self._types.columns(elements)
        except ValueError as error:
            index, why = self._types.first_odd(elements) or (0, error)
        if index:
            return self._types.columns(self._again(index))
        raise _unlike("this element is", f"first {self._num_first} elements", _OF_ELEMENTS, why) from why

    def _again(self, count: int) -> list[Any]:
        """The next `count` elements, read again from the last state on."""
        self.close()
        self._dataset = self._open_at(self._state)
        self._iterator = iter(self._dataset)
        return own_items([itertools.islice(self._iterator, count)])

    def state(self) -> Mapping[str, Any]:
        assert self._state is not None  # asked for behind some elements
        return self._state

    def close(self) -> None:
        self._iterator.close()


def _unlike(these_are: str, first: str, remedy: str, error: Exception) -> ValueError:
    if isinstance(error, UnlikeError) and error.is_of_nulls:
        remedy = f"{error.remedy}; or {remedy}"
    return ValueError(
        f"{these_are} not like the {first} of the dataset, which decide the types of columns ({error}); "
        f"{remedy}name the column in host_keys to have it as objects"
    )


def _state(dataset: Any) -> dict[str, Any]:
    return json.loads(json.dumps(dataset.state_dict()))


def _check_like(fresh: Any, state: Any, name: str) -> None:
    """Raise ValueError where a state lacks parts of a fresh one: `datasets` would silently read these parts from their
    start. Other parts, such as `previous_state`, are added by `datasets` on the way.
    """
    parts: Any = fresh.items() if isinstance(fresh, dict) else enumerate(fresh)
    if isinstance(fresh, dict):
        is_like = isinstance(state, dict) and fresh.keys() <= state.keys() and state.get("type") == fresh.get("type")
    else:
        is_like = isinstance(state, list) and len(state) == len(fresh)
    if not is_like:
        raise ValueError(
            f"{name} is {shown(state)}, and in this dataset it is like {shown(fresh)}: the state is damaged, or of "
            "another release of `datasets`; restore an earlier one, or read on with that release"
        )
    for key, part in parts:
        if isinstance(part, dict | list):
            _check_like(part, state[key], f"{key} of {name}")


class _Decoder:
    """Decodes elements with files as `datasets` does, in the dataset's pool of threads where it has one.

    A dataset on the hub has a pool, to fetch many files at a time.
    """

    def __init__(self, dataset: Any) -> None:
        self._features = dataset.features
        self._tokens = dataset._token_per_repo_id
        self._format = None if dataset._formatting is None else dataset._formatting.format_type
        self._pool = iterable_tree.decoding_pool(dataset)

    def __call__(self, element: Any) -> Callable[[], Any]:
        decode = functools.partial(retried, functools.partial(self._decoded, element))
        return decode if self._pool is None else self._pool.submit(decode).result

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _decoded(self, element: Any) -> Any:
        from datasets.formatting import TensorFormatter, get_formatter

        decoded = self._features.decode_example(element, token_per_repo_id=self._tokens)
        formatter = get_formatter(self._format)
        if isinstance(formatter, TensorFormatter):
            return formatter.recursive_tensorize(decoded)
        return without_pil(decoded)
