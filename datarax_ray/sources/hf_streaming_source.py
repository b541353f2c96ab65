"""A Hugging Face stream as an NNX source, with the names and signatures of datarax.sources.hf_streaming_source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from flax import nnx

from datarax_ray.plan.arguments import names, whole
from datarax_ray.plan.orders.interleaved import EPOCH_POSITIONS, InterleavedOrder
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.elements.transforms import listed
from datarax_ray.read.formats.hugging_face import load as hugging_face
from datarax_ray.read.formats.hugging_face.shards import HFShards, Portions
from datarax_ray.read.streams.interleaved import InterleavedStream
from datarax_ray.sources.base.indexed import num_rows
from datarax_ray.sources.base.module import Opaque, SourceModule
from datarax_ray.sources.hf_config import HFConfig, HFNamed


@dataclass(frozen=True, kw_only=True)
class HFStreamingConfig(HFConfig):
    """How a dataset is streamed; once unless num_epochs is given.

    See HFConfig and SourceConfig for the other fields.

    streaming: read files as they come, without keeping them; False downloads them first.
    shuffle: in every epoch, shuffle the shards, and windows of shuffle_buffer_size elements within a shard.
    turn_size: elements that a shard gives before the next shard's turn.
    host_keys: columns that become objects on the host, for rows that differ from the first ones.
    max_connections: shards that all actors together read at the same time, so connections to the storage; None for one
        by each actor.

    on_error skips pictures and audio that do not decode, and errors of transforms. An error of `datasets` itself (a
    corrupt file, a map or filter inside the dataset) ends the shard's iterator, and is raised in its place whatever
    on_error says. Give such a function as a transform instead.

    Raises: ValueError for a value outside its range.

    >>> HFStreamingConfig(name="c4", split="train", streaming=True, shuffle=True).shuffle_buffer_size
    1000
    """

    streaming: bool = False
    shuffle_buffer_size: int = 1000
    turn_size: int = 16
    host_keys: tuple[str, ...] = ()
    max_connections: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("shuffle_buffer_size", "turn_size", "max_connections"):
            value = getattr(self, name)
            if value is None and name == "max_connections":
                continue
            object.__setattr__(self, name, whole(name, value))
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        object.__setattr__(self, "host_keys", names("host_keys", self.host_keys))


class HFStreamingSource(HFNamed, SourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of a Hugging Face stream: its shards take turns, and each is read forwards.

    Each epoch begins with set_epoch. The stream is the same in one process and under RaySource. A state resumes at the
    exact element, shuffled or not, by the dataset's own state_dict: a few hundred bytes for each shard, and no data.

    dataset: a built datasets.IterableDataset, with its own steps (map, filter, interleave_datasets, with_format), or a
        Dataset, which is streamed by its files; None to load config.name and config.split.
    transforms: of single elements, applied in the actors; see datarax_ray.read.elements.transforms.
        `trust_remote_code` is never passed on.

    The table of datarax_ray.read.formats.arrow.columns lists the array of each column, as for HFEagerSource. The first
    rows decide; behind a `map`, of a generator and of images, the first 64 elements of at most 16 shards decide. With
    with_format("numpy") the dataset's own arrays stay unchanged.

    Raises: TypeError, ValueError at construction for a dataset without data, or one that cannot resume exactly (one
    shuffled by its own shuffle()); errors of datasets.load_dataset.

    >>> import datasets
    >>> dataset = datasets.Dataset.from_dict({"x": range(6)}).to_iterable_dataset(num_shards=2)
    >>> source = HFStreamingSource(HFStreamingConfig(turn_size=2), dataset=dataset)
    >>> source.get_batch(4), source.get_batch(4), source.get_batch(4)
    ({'x': array([0, 1, 3, 4])}, {'x': array([2, 5])}, {})
    """

    config_type = HFStreamingConfig
    portions: ClassVar[Portions] = Portions()  # of a shard, that are read at a time

    def __init__(
        self,
        config: HFStreamingConfig,
        *,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
        dataset: Any = None,
        transforms: Any = (),
    ) -> None:
        found = config.load("HFStreamingSource", streaming=config.streaming, dataset=dataset)
        self._info = getattr(found, "info", None)
        label, own_name = self._take_names(config, found)
        self.length: int | None = _length(found, self.split_name)
        self.is_iterable_mode = not hugging_face.is_indexed(found)
        if not self.is_iterable_mode:
            found = hugging_face.as_stream(found)
        reader = HFShards(found, label, config.host_keys, self.portions)
        window = config.shuffle_buffer_size if config.shuffle else 1
        order = InterleavedOrder(reader.num_shards, config.turn_size, config.seed, config.shuffle, window)
        description = InterleavedStream(
            reader, order, config.num_passes, listed(transforms), config.on_error, config.max_connections
        )
        super().__init__(config, description, config.skip_options, rngs=rngs, name=name or own_name)
        self._given = Opaque({"dataset": dataset, "transforms": description.transforms})

    @property
    def epoch(self) -> int:
        """The epoch of the next element; at the end of an epoch, the epoch that ends."""
        return self._source.position // EPOCH_POSITIONS

    @property
    def random_order_buffer_depth(self) -> int:
        """Elements that are shuffled among themselves."""
        return int(self.config.shuffle_buffer_size)

    selected_keys, rejected_keys = property(HFNamed._kept_keys), property(HFNamed._dropped_keys)

    def supports_indexed_access(self) -> bool:
        """False: a stream is read in order."""
        return False

    def get_dataset_info(self) -> Any:
        """The datasets.DatasetInfo: features, splits, sizes, licence, as far as known."""
        return self._info

    def reset_cache(self) -> None:
        """Nothing to forget: a stream keeps no elements once they are given, also with cacheable=True."""

    def get_batch_at(self, start: Any, size: int, key: Any = None) -> Any:
        """A stream has no indexed access. Raises: NotImplementedError."""
        raise NotImplementedError(
            f"HFStreamingSource has no indexed access, so no batch of {size} at position {start}: a stream is read in "
            "order. Iterate it, take get_batch from where it stands, or read the dataset whole with HFEagerSource"
        )

    def __len__(self) -> int:
        """Elements in one epoch, before filters. Raises: TypeError where it is streamed."""
        if self.is_iterable_mode or self.length is None:
            raise TypeError(
                "a stream has no length before it is read to its end, so no len(); its `length` is what the dataset's "
                f"card says of the split: {self.length}"
            )
        return self.length

    def __getitem__(self, index: Any) -> Any:
        """A stream has no elements by their numbers. Raises: TypeError."""
        raise TypeError(
            f"HFStreamingSource has no indexed access, so no element {index}: a stream is read in order. Iterate it, "
            "or read the dataset whole with HFEagerSource"
        )

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Self:
        self._source.warn_if_over()
        return self

    def __next__(self) -> Any:
        element = self._source.next_element()
        self._alone(partial(self._count, 1))
        return element

    def get_batch(self, batch_size: int | None = None, key: Any = None, *, size: int | None = None) -> Columns:
        """The next `batch_size` elements, stacked: NumPy arrays of shape (batch_size, ...), fewer at the very end.

        After the end it is {}. size: another name for batch_size. key: accepted for datarax's sake, not used.
        """
        batch = self._source.get_batch(batch_size, size=size)
        self._alone(partial(self._count, num_rows(batch)))
        return batch

    def reset(self, seed: int | None = None) -> None:
        """Begin again with the first epoch. seed: None, or the seed of the config.

        Raises: ValueError for another seed.
        """
        if seed is not None and seed != self.config.seed:
            raise ValueError(f"the source was made with seed={self.config.seed}; copy it for another seed ({seed})")
        self._source.seek(0)

    def get_state(self) -> dict[str, Any]:
        """Where the stream stands and which stream it is, in plain values: some hundred bytes for each shard."""
        state = super().get_state()
        return {**state, "epoch": state["position"] // EPOCH_POSITIONS}

    def __repr__(self) -> str:
        named = self._names("name", self._given.value["dataset"])
        return f"HFStreamingSource({named}, {self.describe()}, seed={self.config.seed}, {self.config.shown_epochs})"


def _length(dataset: Any, split: str | None) -> int | None:
    """Elements of the dataset, where somebody knows."""
    if hugging_face.is_indexed(dataset):
        return len(dataset)
    splits = getattr(getattr(dataset, "info", None), "splits", None)
    found = (splits or {}).get(split or "")
    return None if found is None else found.num_examples or None
