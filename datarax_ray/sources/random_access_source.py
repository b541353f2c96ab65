"""Anything with `__len__` and `__getitem__`, or a dict of arrays, as an NNX source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flax import nnx

from datarax_ray.read.formats.random_access import ArraysReader, RandomAccessReader
from datarax_ray.read.stream import Reader
from datarax_ray.sources.base.indexed import IndexedSourceConfig, IndexedSourceModule


@dataclass(frozen=True, kw_only=True)
class RandomAccessSourceConfig(IndexedSourceConfig):
    """How a data source is read; endless unless num_epochs is given. See IndexedSourceConfig for the other fields.

    shuffle: one permutation over all elements in every epoch.
    """


class RandomAccessSource(IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of a Grain data source, a PyTorch or map-style Hugging Face dataset, one's own class, or arrays.

    data: an object with `__len__` and `__getitem__` (and `__getitems__` for many at once), or a (nested) dict of NumPy
        or JAX arrays of one length, whose rows are the elements.
    transforms: as of ArrayRecordSourceModule.

    A state identifies data by length, repr and, for arrays, lists and Hugging Face datasets, some rows spread over the
    data. Data that differ in other rows alone count as the same.

    Raises: TypeError or ValueError at construction for data without an index, without rows, or with arrays of different
    lengths.

    >>> import numpy as np
    >>> config = RandomAccessSourceConfig(num_epochs=1)
    >>> source = RandomAccessSource(config, {"x": np.arange(4), "y": np.arange(4) * 10})
    >>> source.get_batch(3)
    {'x': array([0, 1, 2]), 'y': array([ 0, 10, 20])}
    """

    config_type = RandomAccessSourceConfig

    def __init__(
        self,
        config: RandomAccessSourceConfig,
        data: Any,
        *,
        transforms: Any = (),
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        reader: Reader = ArraysReader(data) if isinstance(data, Mapping) else RandomAccessReader(data)
        super().__init__(config, {"data": data}, reader, transforms=transforms, rngs=rngs, name=name)

    def _reads(self) -> str:
        data = self._given.value["data"]
        return f"data={sorted(data)}" if isinstance(data, Mapping) else f"data={type(data).__name__}"
