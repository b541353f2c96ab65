"""A whole Hugging Face dataset as an NNX source, with the names and signatures of datarax.sources.hf_eager_source."""

from __future__ import annotations

import functools
import operator
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import numpy as np
from flax import nnx

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.consumer import Turns
from datarax_ray.feed.source import Source, one_size
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.kinds import Shuffle, order_of
from datarax_ray.plan.state import StreamState
from datarax_ray.read.elements.columns import Columns, map_leaves, stack
from datarax_ray.read.errors import Skipped
from datarax_ray.read.formats.hugging_face.dataset import DatasetReader
from datarax_ray.read.streams.indexed import IndexedStream, request_at
from datarax_ray.sources.base.config import SHUFFLE_STREAM
from datarax_ray.sources.base.device import put, records_at, refuse_amended
from datarax_ray.sources.base.indexed import IndexedSourceConfig, IndexedSourceModule
from datarax_ray.sources.hf_config import HFConfig, HFNamed


@dataclass(frozen=True, kw_only=True)
class HFEagerConfig(HFConfig, IndexedSourceConfig):
    """How a dataset is loaded and read; once unless num_epochs is given.

    See HFConfig, IndexedSourceConfig and SourceConfig for the fields.

    shuffle: one permutation of all rows in every epoch.
    cacheable: accepted for datarax's sake; Arrow files are memory-mapped, and stay in memory as far as there is room.

    >>> HFEagerConfig(name="mnist", split="train", shuffle=True, include_keys=["image"]).include_keys
    ('image',)
    """


class HFEagerSource(HFNamed, IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The rows of a map-style Hugging Face dataset, in an order that is a pure function of the position.

    dataset: a built datasets.Dataset (of load_from_disk, from_dict, after map and filter); None to load config.name and
        config.split.
    transforms: of single elements; see datarax_ray.read.elements.transforms.

    The table of datarax_ray.read.formats.arrow.columns lists the array of each column, decided over all rows: numbers
    and lists of one length are dense, images are decoded; text, ragged lists and columns with None stay on the host.

    Elements, `get_batch`, `get_batch_at` and `data` give numbers as jax.Arrays, as datarax does: of 32 bits unless
    jax_enable_x64 is on, with OverflowError for larger numbers. Host fields are object arrays, and lists from
    `get_batch_at` and `data`. In a Pipeline and in actors, all arrays are NumPy's up to the device.

    Passes: a `for` goes on from the current position to the end of its epoch, also after a `break` or set_state; the
    next `for` is the next epoch, in its own order. `get_batch` ends its last batch at the epoch's end and goes on with
    the next epoch, for ever. With num_epochs in the config, `for` runs through all epochs; then there is no element,
    and {} from get_batch, until reset(). With transforms, {} from get_batch also ends each pass, since datarax's own
    Pipeline reads such a source as a stream. Without num_epochs, a Pipeline and a RaySource give one pass.

    Raises: ValueError, TypeError at construction for a dataset that is missing, empty or a stream, or has unreadable
    features, by name and with the remedy; errors of datasets.load_dataset.

    >>> import datasets
    >>> dataset = datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0], "name": ["a", "b", "c"]})
    >>> source = HFEagerSource(HFEagerConfig(exclude_keys=["name"]), dataset=dataset)
    >>> source.get_batch(2), source.get_batch(2), source.get_batch(2)["x"].shape
    ({'x': Array([1., 2.], dtype=float32)}, {'x': Array([3.], dtype=float32)}, (2,))
    >>> jax.jit(lambda start: source.get_batch_at(start, 2))(1)
    {'x': Array([2., 3.], dtype=float32)}
    """

    config_type = HFEagerConfig

    def __init__(
        self,
        config: HFEagerConfig,
        *,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
        dataset: Any = None,
        transforms: Any = (),
    ) -> None:
        if dataset is None:
            dataset = config.loaded("HFEagerSource", streaming=False)
        label, own_name = self._take_names(config, dataset)
        self._table = _Table(DatasetReader(config.select(dataset), label, config.on_null))
        super().__init__(
            config, {"dataset": dataset}, self._table.reader, transforms=transforms, rngs=rngs, name=name or own_name
        )
        self._is_over = False  # the pass was seen to end
        self._alone = Turns().alone  # one of several threads goes on to the next pass
        self.index, self.epoch = self.current_index, self.current_epoch  # datarax's names for them here

    include_keys, exclude_keys = property(HFNamed._kept_keys), property(HFNamed._dropped_keys)

    @property
    def length(self) -> int:
        """Rows in one epoch."""
        return len(self)

    @property
    def data(self) -> dict[str, Any]:
        """The columns of all rows, in the order of the dataset, before transforms; made when first asked for.

        Raises: ColumnError where images differ in size; OverflowError for numbers that JAX's 32 bits do not hold.
        """
        return self._table.columns

    def set_random_order(self, enabled: bool) -> None:
        """Shuffle from here on, or stop. The position stays, so the current epoch mixes two orders."""
        self._reconfigure(shuffle=bool(enabled))

    def reset(self, seed: int | None = None) -> None:
        """Begin again with the first epoch; with a seed, in the order of that seed."""
        if seed is not None:
            self._reconfigure(seed=seed)
        self.seek(0)

    def supports_indexed_access(self) -> bool:
        """Whether datarax's Pipeline is to gather on the device: not where transforms have to run on the host."""
        return not self.describe().transforms

    def get_dataset_info(self) -> Any:
        """The datasets.DatasetInfo: features, splits, sizes, licence, as far as known."""
        return self._given.value["dataset"].info

    def __iter__(self) -> Self:
        if self._ends_passes and (self._is_over or self.position >= self._pass_end):
            self.seek(self._pass_end)
        return super().__iter__()

    def __next__(self) -> Any:
        try:
            return self.next_element(put)
        except StopIteration:
            self._is_over = True
            raise

    def __getitem__(self, index: int) -> Any:
        """As of every indexed source, with jax.Arrays; see PositionedSourceModule."""
        return put(super().__getitem__(index))

    def get_batch(  # type: ignore[override]
        self, batch_size: int | None = None, key: Any = None, *, size: int | None = None
    ) -> Columns:
        """The next `batch_size` elements, stacked: jax.Arrays of shape (batch_size, ...), fewer at an epoch's end.

        Then the next epoch, or {} at the end of the stream; see the class. size: another name for batch_size.
        key: for datarax's stateless batches instead: the first rows by jax.random.permutation of this key, or the first
        rows of the dataset without shuffle.
        """
        batch_size = one_size(batch_size, size)
        if key is not None:
            rows = np.arange(len(self))
            if self.is_random_order:
                rows = np.asarray(jax.random.permutation(key, len(self)))
            return put(self._table.rows(rows[:batch_size].astype(np.int64)))
        return self._alone(functools.partial(self._next_batch, batch_size))

    def _next_batch(self, batch_size: int) -> Columns:
        batch = Source.get_batch(self, batch_size, finish=put)
        if not batch and self._ends_passes and self.supports_indexed_access():
            self.seek(self._pass_end)
            batch = Source.get_batch(self, batch_size, finish=put)
        return batch

    def get_batch_at(self, start: Any, size: int, key: Any = None) -> Any:
        """The elements at positions [start, start + size), stacked, each epoch in its own order. Stateless.

        Under jit, scan and other traces, rows are gathered on the device from `data`, without the fields that stay on
        the host, and always `size` of them: after the last epoch those of further ones. Otherwise there are fewer at
        the end of the stream, and {} after it. key: accepted for datarax's sake, not used.

        start: an integer >= 0; as int32, below 2**31 (JAX gives a larger one a negative value in silence).

        Raises: TypeError under a trace where transforms, which run on the host, would have to run.
        """
        if isinstance(start, jax.core.Tracer):
            return self._gather(start, size)
        start = operator.index(start)
        if start < 0 or size < 0:
            raise ValueError(f"start and size must not be negative, got {start} and {size}")
        description = self.describe()
        stop = start + size if description.stop is None else min(start + size, description.stop)
        block = description.read(request_at(start, max(start, stop), self.state))
        if block.failure is not None:
            raise block.failure
        return {} if block.columns is None else _delivered(block.columns)

    def get_state(self) -> dict[str, Any]:
        """Where the stream stands and which stream it is, in plain values: under 4 KB, never data."""
        state = super().get_state()
        return state | {"index": state["current_index"], "epoch": state["current_epoch"]}

    def set_state(self, state: Mapping[str, Any], allow_drift: tuple[str, ...] = ()) -> None:
        """Go on from a state, also in the middle of an epoch: the next `for` gives the rest of the epoch.

        Raises: DriftError where the state belongs to another stream; ValueError or TypeError for a malformed one.
        """
        whole = self._description
        found = StreamState.from_json(state, whole, whole.settings(), allow_drift=allow_drift)
        self.seek(found)
        self.iterator_initialized.set_value(bool(state.get("iterator_initialized", True)))

    def batches(
        self, start: int | StreamState, options: StreamOptions
    ) -> Generator[HostBatch, None, tuple[Skipped, ...]]:
        """The batches of the whole stream from a position or state on, whichever pass the source itself is in."""
        return Source(self._description).batches(start, options)

    @property
    def _ends_passes(self) -> bool:
        return self.config.num_epochs is None

    @property
    def _pass_end(self) -> int:
        stop = self.description.stop
        assert stop is not None
        return stop

    def seek(self, position: int | StreamState) -> None:
        """Go on from there: in a source of the passes up to that one, where nobody says how many there are."""
        self._is_over = False
        state = position if isinstance(position, StreamState) else self.state.moved(position)
        if self._ends_passes:
            passes = replace(self._description, num_epochs=state.position // len(self) + 1)
            if passes.stop != self.description.stop or passes.order != self.description.order:
                self._read(passes)
        super().seek(state)

    def _read(self, description: IndexedStream) -> None:
        """Read another stream from here on."""
        self._consumer.end(then=self.description.close)
        Source.__init__(self, description, skip_options=self.skip_options)

    def _stands_at(self) -> StreamState:
        is_between = self._ends_passes and self._is_over
        return self.state.moved(self._pass_end) if is_between else super()._stands_at()

    def _reads(self) -> str:
        return self._names("dataset", self._given.value["dataset"])

    def _reconfigure(self, **changed: Any) -> None:
        if self.config.stream_name == SHUFFLE_STREAM:  # whether it is shuffled says anew whether it is stochastic
            changed |= {"stochastic": False, "stream_name": None}
        self.config = replace(self.config, **changed)
        self.stochastic, self.stream_name = self.config.stochastic, self.config.stream_name
        shuffle: Shuffle = "global" if self.config.shuffle else "none"
        order = order_of(len(self), self.config.seed, shuffle, self.config.rounds)
        state = self.state
        self._description = replace(self._description, order=order)
        self._read(self._description)
        self.seek(state)

    def _gather(self, start: Any, size: int) -> dict[str, Any]:
        description = self.describe()
        refuse_amended(self)
        if description.transforms:
            raise TypeError(
                f"get_batch_at is traced by JAX here, and the transforms {list(description.transforms)} run on the "
                "host; iterate a Pipeline (or its scan) over this source, or apply them in the traced function"
            )
        dense = _dense(self.data)
        if not dense:
            raise TypeError(
                f"get_batch_at is traced by JAX here, and all the fields {sorted(self.data)} stay on the host; iterate "
                "a Pipeline over this source instead"
            )
        rows = records_at(description.order, start, size)
        return jax.tree.map(lambda column: column[rows], dense)


class _Table:
    """The rows of the dataset as they are delivered. No part of the module: NNX lets no trace change a module."""

    def __init__(self, reader: DatasetReader) -> None:
        self.reader = reader

    def rows(self, records: Indices) -> Columns:
        found = self.reader.read(records)
        return stack(found) if isinstance(found, list) else found

    @functools.cached_property
    def columns(self) -> dict[str, Any]:
        with jax.ensure_compile_time_eval():  # kept, so it must be arrays, also where a trace asks for it first
            return _delivered(self.rows(np.arange(self.reader.num_records)))


def _delivered(columns: Columns) -> dict[str, Any]:
    """Dense columns on the device; lists in place of object columns; times as they are."""
    return map_leaves(lambda leaf: leaf.tolist() if leaf.dtype == object else leaf, put(columns))


def _dense(data: dict[str, Any]) -> dict[str, Any]:
    """The jax.Arrays among the fields."""
    parts = {key: _dense(value) if isinstance(value, dict) else value for key, value in data.items()}
    return {key: part for key, part in parts.items() if isinstance(part, jax.Array) or (part and type(part) is dict)}
