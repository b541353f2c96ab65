"""The base of all sources of shards that are read forwards: their settings, and one position for everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from flax import nnx

from datarax_ray.feed.nulls import with_known_nulls
from datarax_ray.plan.arguments import whole
from datarax_ray.plan.orders.interleaved import EPOCH_POSITIONS, InterleavedOrder
from datarax_ray.read.elements.transforms import listed
from datarax_ray.read.streams.interleaved import InterleavedStream
from datarax_ray.read.streams.open_shards import ShardReader
from datarax_ray.sources.base.config import SourceConfig
from datarax_ray.sources.base.module import Opaque, SourceModule


@dataclass(frozen=True, kw_only=True)
class StreamConfig(SourceConfig):
    """How shards that are read forwards take turns; see SourceConfig for the other fields.

    shuffle: in every epoch, shuffle the shards, and windows of elements within a shard.
    shuffle_buffer_size: elements in such a window; all are in memory.
    turn_size: elements that a shard gives before the next shard's turn.
    max_connections: shards that all actors together read at the same time, so connections to the storage; None for one
        by each actor. Not counted: each actor's first elements, when it starts.
    """

    shuffle: bool = False
    shuffle_buffer_size: int = 1000
    turn_size: int = 16
    max_connections: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("shuffle_buffer_size", "turn_size", "max_connections"):
            if (value := getattr(self, name)) is not None or name != "max_connections":
                object.__setattr__(self, name, whole(name, value, least=1))


Config = TypeVar("Config", bound=StreamConfig)


class StreamSourceModule(SourceModule, Generic[Config], pytree=False):  # type: ignore[call-arg]
    """The elements of shards that take turns, each read forwards; iteration, batches and the state share one position.

    given: the constructor's arguments by name, for copies, without transforms.
    """

    instead_of_stream: ClassVar[str] = "read the dataset whole with HFEagerSource"  # in errors

    def __init__(
        self,
        config: Config,
        reader: ShardReader,
        given: dict[str, Any],
        transforms: Any,
        *,
        rngs: nnx.Rngs | None,
        name: str | None,
    ) -> None:
        window = config.shuffle_buffer_size if config.shuffle else 1
        order = InterleavedOrder(reader.num_shards, config.turn_size, config.seed, config.shuffle, window)
        description = InterleavedStream(
            reader, order, config.num_passes, listed(transforms), config.on_error, config.max_connections
        )
        if (types := reader.column_types) is not None:
            description = with_known_nulls(description, types, reader.locate(0, 0))
        super().__init__(config, description, config.skip_options, rngs=rngs, name=name)
        self._given = Opaque(given | {"transforms": description.transforms})

    @property
    def epoch(self) -> int:
        """The epoch of the next element; at the end of an epoch, the epoch that ends."""
        return self.position // EPOCH_POSITIONS

    @property
    def random_order_buffer_depth(self) -> int:
        """Elements that are shuffled among themselves."""
        return int(self.config.shuffle_buffer_size)

    def reset_cache(self) -> None:
        """Nothing to forget: a stream keeps no elements once they are given, also with cacheable=True."""

    def get_batch_at(self, start: Any, size: int, key: Any = None) -> Any:
        """A stream has no indexed access. Raises: NotImplementedError."""
        raise NotImplementedError(
            f"{type(self).__name__} has no indexed access, so no batch of {size} at position {start}: a stream is "
            f"read in order. Iterate it, take get_batch from where it stands, or {self.instead_of_stream}"
        )

    def __getitem__(self, index: Any) -> Any:
        """A stream has no elements by their numbers. Raises: TypeError."""
        raise TypeError(
            f"{type(self).__name__} has no indexed access, so no element {index}: a stream is read in order. Iterate "
            f"it, or {self.instead_of_stream}"
        )

    def __len__(self) -> int:
        """Raises: TypeError: how many elements there are is known once they were read."""
        raise TypeError(f"a stream has no length before it is read to its end, so no len(); {self.instead_of_stream}")

    def __bool__(self) -> bool:
        return True

    def reset(self, seed: int | None = None) -> None:
        """Begin again with the first epoch. Raises: ValueError for another seed than the config's."""
        if seed is not None and seed != self.config.seed:
            raise ValueError(f"the source was made with seed={self.config.seed}; copy it for another seed ({seed})")
        self.seek(0)

    def get_state(self) -> dict[str, Any]:
        """Where the stream stands and which stream it is, in plain values: some hundred bytes for each shard."""
        state = super().get_state()
        return {**state, "epoch": state["position"] // EPOCH_POSITIONS}
