"""The base of all indexed source modules: one stream with one position, under datarax's method names.

Source: datarax.core.data_source.DataSourceModule and datarax.sources.array_record_source.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np
from flax import nnx

from datarax_ray.feed.nulls import with_known_nulls
from datarax_ray.feed.source import Source
from datarax_ray.plan.arguments import whole
from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.kinds import WINDOW_BLOCKS, Shuffle, order_of
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.plain_values import shown
from datarax_ray.plan.position import MAX_POSITION, Yields
from datarax_ray.plan.state import StreamState
from datarax_ray.read.elements.transforms import listed
from datarax_ray.read.files.paths import for_people
from datarax_ray.read.formats.cache import cached
from datarax_ray.read.skipped_records import SkipOptions
from datarax_ray.read.stream import Reader, Stream
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.sources.base.config import SourceConfig
from datarax_ray.sources.base.module import Opaque, SourceModule


@dataclass(frozen=True, kw_only=True)
class IndexedSourceConfig(SourceConfig):
    """How records are ordered; see SourceConfig for the other fields.

    rounds: of the permutation's cipher; 4 gives Grain's order bit for bit.
    cacheable_nbytes: limit of what cacheable=True keeps in each reading process, so in each actor; None for no limit.
    shuffle: a new order in every epoch; see each source.

    Raises: ValueError for a value outside its range.
    """

    rounds: int = 8
    cacheable_nbytes: int | None = None
    shuffle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cacheable_nbytes is not None:
            nbytes = whole("cacheable_nbytes", self.cacheable_nbytes, ", or None to keep all")
            if nbytes < 1 or not self.cacheable:
                raise ValueError(
                    f"cacheable_nbytes must be at least 1 and needs cacheable=True, got {nbytes}, "
                    f"cacheable={self.cacheable}"
                )
            object.__setattr__(self, "cacheable_nbytes", nbytes)
        cipher.check(1, seed=self.seed, rounds=self.rounds)


class _PartOfPlace(nnx.Variable[int]):
    """Shows the epoch of a stream, or the index in the epoch.

    move: called with each value that somebody sets, or that NNX takes from a state, as nnx.update does.
    """

    __slots__ = ("_move",)  # no metadata, which a checkpoint of a model would hold

    def __init__(self, move: Callable[[int], None]) -> None:
        super().__init__(0)
        object.__setattr__(self, "_move", move)

    def show(self, value: int) -> None:
        super().set_raw_value(value)

    def set_raw_value(self, value: Any, **kwargs: Any) -> None:
        move = getattr(self, "_move", None)
        if move is None or isinstance(value, jax.core.Tracer):  # a copy, as in a state of NNX
            super().set_raw_value(value, **kwargs)
        elif value != self.get_raw_value():  # nnx.jit gives back what it took, while it puts the source together again
            move(int(value))

    def set_value(self, value: Any, **kwargs: Any) -> None:
        self.set_raw_value(value)

    def update_from_state(self, variable_state: nnx.Variable[int]) -> None:
        self.set_raw_value(variable_state.get_raw_value())


class PositionedSourceModule(SourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of a description whose order is a pure function of the position.

    Iteration, `next`, `get_batch` and the state share one position; setting the value of `current_index` or
    `current_epoch` moves it. `get_batch_at` is stateless. `len` is the records of one epoch.
    """

    def __init__(
        self,
        config: SourceConfig,
        description: Stream,
        skip_options: SkipOptions,
        *,
        rngs: nnx.Rngs | None,
        name: str | None,
    ) -> None:
        super().__init__(config, description, skip_options, rngs=rngs, name=name)
        try:
            total = description.order.num_records
        except TypeError:  # of a mixture of streams: one epoch, of all positions
            total = None
        self.total_records = nnx.Variable(total)
        self._epoch_size = MAX_POSITION + 1 if total is None else total
        me = weakref.proxy(self)  # a source that is dropped ends at once
        self.current_index = _PartOfPlace(lambda index: me._set_place(index=index))
        self.current_epoch = _PartOfPlace(lambda epoch: me._set_place(epoch=epoch))
        self.iterator_initialized = nnx.Variable(False)
        self.prefetch_cache: nnx.Variable = nnx.Variable({})

    def __iter__(self) -> Self:
        self.iterator_initialized.set_value(True)
        return super().__iter__()

    def __getitem__(self, index: int) -> Any:
        """Element `index` of the current epoch's order (of the last epoch at the end); negative from the end.

        Raises: IndexError outside the epoch, or where a filter drops the element; TypeError with a flat_map.
        """
        index = whole("the index of an element", index, "; one at a time, or get_batch_at(start, size) for several")
        n = len(self)
        epoch, stop = self.position // n, self.description.stop
        epoch = epoch if stop is None else min(epoch, (stop - 1) // n)
        count = n if stop is None else min(n, stop - epoch * n)  # a mixture may end within its first epoch
        if not -count <= index < count:
            raise IndexError(f"index {index} is outside an epoch of {count} records")
        if self.describe().yields.may_repeat:
            raise TypeError("with a flat_map an index gives any number of elements; get_batch_at(position, 1) has them")
        found = Source.get_batch_at(self, epoch * n + index % count, 1)
        if not found:
            raise IndexError(f"a filter or on_error='skip' drops the element at index {index}")
        return found[0]

    def get_batch_at(self, start: Any, size: int, key: Any = None) -> Any:
        """The elements at positions [start, start + size), each epoch in its own order; filtered ones are missing.

        Stateless: a list, shorter at the end of the last epoch, and empty after it; with a flat_map, all elements of
        these records. Where JAX traces start (jit, scan, datarax's Pipeline.step), the elements are stacked jax.Arrays,
        which the compiled program fetches from the host; see TracedBatches. key: accepted for datarax's sake, not used.

        Raises: ValueError for a negative start; under a trace, NotImplementedError if filters hide the number of rows,
        and TypeError if every field stays on the host.
        """
        if isinstance(start, jax.core.Tracer):
            return self._traced.at(self, start, size)
        return super().get_batch_at(operator.index(start), size)

    def get_state(self) -> dict[str, Any]:
        """Where the stream stands and which stream it is, in plain values: under 4 KB, never an order or a record."""
        state = self._stands_at()
        epoch, index = divmod(state.position, self._epoch_size)
        return {
            **state.to_json(self.describe().settings()),
            **(self.evidence() if state == self.state else {}),
            "current_index": index,
            "current_epoch": epoch,
            "total_records": self.total_records.get_value(),
            "iterator_initialized": bool(self.iterator_initialized.get_value()),
            "shuffled_indices": None,
            "prefetch_cache": {},
        }

    def set_state(self, state: Mapping[str, Any], allow_drift: tuple[str, ...] = ()) -> None:
        super().set_state(state, allow_drift)
        self.iterator_initialized.set_value(bool(state.get("iterator_initialized", True)))
        self._gave(0)

    def seek(self, position: int | StreamState) -> None:
        """Go on from a position or a state, at no cost. Raises: ValueError for a position outside [0, 2**62]."""
        super().seek(position)
        self._gave(0)

    def _stands_at(self) -> StreamState:
        return self.state

    def _set_place(self, *, epoch: int | None = None, index: int | None = None) -> None:
        """Go on from another epoch, or from another index in the epoch."""
        here = divmod(self.position, self._epoch_size)
        position = (here[0] if epoch is None else epoch) * self._epoch_size + (here[1] if index is None else index)
        if position != self.position:
            self.seek(position)

    def _gave(self, num_elements: int) -> None:
        super()._gave(num_elements)
        epoch, index = divmod(self.position, self._epoch_size)
        self.current_epoch.show(epoch)
        self.current_index.show(index)


class IndexedSourceModule(PositionedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of a reader, in an order that is a pure function of the position; see PositionedSourceModule.

    config.shuffle: one permutation of all records, or of blocks, if block_size or groups is given.
    groups: records that are best read together.
    given: the constructor's arguments by name, for copies.
    decoders: transforms before the user's.
    first_yields: see IndexedStream.
    """

    def __init__(
        self,
        config: IndexedSourceConfig,
        given: dict[str, Any],
        reader: Reader,
        *,
        block_size: int | None = None,
        groups: RecordGroups | None = None,
        window_blocks: int = WINDOW_BLOCKS,
        decoders: tuple[Any, ...] = (),
        first_yields: Yields | None = None,
        transforms: Any,
        rngs: nnx.Rngs | None,
        name: str | None,
    ) -> None:
        types = reader.column_types
        if config.cacheable:
            reader = cached(reader, config.cacheable_nbytes)
        is_in_blocks = block_size is not None or groups is not None
        mode: Shuffle = "none" if not config.shuffle else "block" if is_in_blocks else "global"
        blocks = {"block_size": block_size or 1, "window_blocks": window_blocks} if mode == "block" else {}
        order = order_of(reader.num_records, config.seed, mode, config.rounds, groups=groups, **blocks)
        description = IndexedStream(
            reader, order, config.num_passes, (*decoders, *(own := listed(transforms))), config.on_error, first_yields
        )
        if types is not None:
            description = with_known_nulls(description, types, reader.locate(0))
        self._description = description
        super().__init__(config, self._description, config.skip_options, rngs=rngs, name=name)
        self._given = Opaque(given | {"transforms": own})
        self._reader = reader

    @property
    def shuffled_indices(self) -> np.ndarray | None:
        """The current epoch's order: int64 (num_records,), computed now; None where records are not shuffled."""
        order = self.describe().order
        if not order.is_shuffled:
            return None
        start = self.position // len(self) * len(self)
        return order.records(np.arange(start, start + len(self)))

    def describe(self) -> IndexedStream:
        return self._description

    def reset_cache(self) -> None:
        """Forget the records kept in memory; has an effect only with cacheable=True."""
        if self.config.cacheable:
            self._reader.clear()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._reads()}, num_records={len(self)}, shuffle={self.config.shuffle}, "
            f"seed={self.config.seed}, {self.config.shown_epochs})"
        )

    def _reads(self) -> str:
        """The paths, for the repr."""
        return f"paths={shown(for_people(self._given.value['paths']))}"
