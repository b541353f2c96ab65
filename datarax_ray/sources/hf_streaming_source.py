"""A Hugging Face stream as an NNX source, with the names and signatures of datarax.sources.hf_streaming_source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import nnx

from datarax_ray.plan.arguments import names
from datarax_ray.read.formats.hugging_face import load as hugging_face
from datarax_ray.read.formats.hugging_face.shards import HFShards, Portions
from datarax_ray.sources.base.stream import StreamConfig, StreamSourceModule
from datarax_ray.sources.hf_config import HFConfig, HFNamed


@dataclass(frozen=True, kw_only=True)
class HFStreamingConfig(HFConfig, StreamConfig):
    """How a dataset is streamed; once unless num_epochs is given.

    See HFConfig, StreamConfig and SourceConfig for the other fields.

    streaming: read files as they come, without keeping them; False downloads them first.
    host_keys: columns that become objects on the host, for rows that differ from the first ones.

    on_error skips pictures and audio that do not decode, and errors of transforms. An error of `datasets` itself (a
    corrupt file, a map or filter inside the dataset) ends the shard's iterator, and is raised in its place whatever
    on_error says. Give such a function as a transform instead.

    Raises: ValueError for a value outside its range.

    >>> HFStreamingConfig(name="c4", split="train", streaming=True, shuffle=True).shuffle_buffer_size
    1000
    """

    streaming: bool = False
    host_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "host_keys", names("host_keys", self.host_keys))


class HFStreamingSource(HFNamed, StreamSourceModule[HFStreamingConfig], pytree=False):  # type: ignore[call-arg]
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
        reader = HFShards(found, label, config.host_keys, self.portions, config.on_null)
        super().__init__(config, reader, {"dataset": dataset}, transforms, rngs=rngs, name=name or own_name)

    selected_keys, rejected_keys = property(HFNamed._kept_keys), property(HFNamed._dropped_keys)

    def get_dataset_info(self) -> Any:
        """The datasets.DatasetInfo: features, splits, sizes, licence, as far as known."""
        return self._info

    def __len__(self) -> int:
        """Elements in one epoch, before filters. Raises: TypeError where it is streamed."""
        if self.is_iterable_mode or self.length is None:
            raise TypeError(
                "a stream has no length before it is read to its end, so no len(); its `length` is what the dataset's "
                f"card says of the split: {self.length}"
            )
        return self.length

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
