"""The base of all source modules: a description, one position, statistics, copies and rngs, with datarax's names.

Source: datarax.core.module.DataraxModule and datarax.core.data_source.DataSourceModule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Self

import jax
from flax import nnx

from datarax_ray.feed.source import Source
from datarax_ray.read.closing import Closing
from datarax_ray.read.elements.columns import Batch, map_leaves
from datarax_ray.read.skipped_records import SkipOptions
from datarax_ray.read.stream import Stream
from datarax_ray.sources.base.config import SHUFFLE_STREAM, SourceConfig, check_given
from datarax_ray.sources.base.device import HostModule, TracedBatches


class Opaque:
    """Hides a value from NNX: arrays in an attribute of a module would be a part of the model's state."""

    def __init__(self, value: Any) -> None:
        self.value = value


class SourceModule(Source, Closing, HostModule, nnx.Module, pytree=False):  # type: ignore[call-arg]
    """A source of a description, as an NNX module. It holds host state (files, positions) and is no pytree.

    Raises: ValueError for a stochastic config without rngs, or without the stream that it names.
    """

    _given: Any  # an Opaque of the arguments that a copy is made with, by name; without config, rngs and name
    instead = "Use its own clone(), or copy() for one at the beginning; RaySource(source) sends it to actors."

    config: Any
    config_type: ClassVar[type[Any]]  # of what `config`, the first argument, must be

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Checks the config before __init__. A user's own class over one of these may take something else first."""
        check_given(cls, args, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        config: SourceConfig,
        description: Stream,
        skip_options: SkipOptions,
        *,
        rngs: nnx.Rngs | None,
        name: str | None,
    ) -> None:
        if config.stochastic and rngs is None and config.stream_name != SHUFFLE_STREAM:
            raise ValueError(f"a stochastic source draws from rngs.{config.stream_name}; pass rngs")
        self.config = config
        self.rngs = rngs
        self.name = name
        self.stochastic = config.stochastic
        self.stream_name = config.stream_name
        self._statistics: dict[str, Any] | None = config.precomputed_stats
        self._operations = {"applied_count": 0, "skipped_count": 0}
        Source.__init__(self, description, skip_options=skip_options)
        self._traced = self.traced()

    def get_batch(  # type: ignore[override]
        self, batch_size: int | None = None, key: Any = None, *, size: int | None = None
    ) -> Batch:
        """The next `batch_size` elements, stacked: NumPy arrays of shape (batch_size, ...), fewer at the very end.

        After the end it is {}. size: another name for batch_size. key: accepted for datarax's sake, not used.
        """
        return super().get_batch(batch_size, size=size)

    def supports_indexed_access(self) -> bool:
        """False: datarax's Pipeline iterates by get_batch, to the end of the last epoch. get_batch_at may work, too."""
        return False

    def traced(self) -> TracedBatches:
        """The get_batch_at of a traced program: of this source, and of a RaySource over it, which knows no JAX."""
        return TracedBatches()

    def element_spec(self) -> Any:
        """A jax.ShapeDtypeStruct for each field of an element; dtype object for a field that stays on the host."""
        return map_leaves(lambda field: jax.ShapeDtypeStruct(field.shape, field.dtype), super().element_spec())

    def close(self) -> None:
        """Close files and forget cached records. The state can still be taken; reading opens them again."""
        self._traced.close()
        super().close()

    def _gave(self, num_elements: int) -> None:
        self._operations["applied_count"] += num_elements
        self._operations["skipped_count"] = self.num_skipped

    def get_operation_stats(self) -> dict[str, int]:
        """{"applied_count": elements given, "skipped_count": broken records left out}."""
        return dict(self._operations)

    def reset_operation_stats(self) -> None:
        """Set both counts to 0."""
        self._operations = dict.fromkeys(self._operations, 0)

    def compute_statistics(self, data: Any) -> dict[str, Any] | None:
        """batch_stats_fn(data), kept for get_statistics; None without a batch_stats_fn."""
        if self.config.batch_stats_fn is None:
            return None
        self._statistics = self.config.batch_stats_fn(data)
        return self._statistics

    def get_statistics(self) -> dict[str, Any] | None:
        """The statistics that were computed or set last, at first the precomputed ones; None after a reset."""
        return self._statistics

    def set_statistics(self, stats: dict[str, Any]) -> None:
        """Use these statistics from now on."""
        self._statistics = stats

    def reset_statistics(self) -> None:
        """Forget all statistics, the precomputed ones too."""
        self._statistics = None

    def requires_rng_streams(self) -> list[str] | None:
        """The streams of rngs that the source draws from, None if it draws from none."""
        return None if self.stream_name is None else [self.stream_name]

    def ensure_rng_streams(self, stream_names: Iterable[str]) -> None:
        """Raise ValueError unless every stream that the source needs is among these."""
        available = list(stream_names)
        missing = [name for name in self.requires_rng_streams() or [] if name not in available]
        if missing:
            raise ValueError(f"the source draws from the rng streams {missing}, and there are only {available}")

    def process(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        """Sources have no input to process. Raises: NotImplementedError."""
        raise NotImplementedError(f"{type(self).__name__} is a source: iterate it, or give it to a Pipeline")

    def __call__(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        return self.process(input, *args, **kwargs)

    def clone(self) -> Self:
        """An independent source with the same state."""
        copied = self.copy()
        copied.set_state(self.get_state())
        copied._statistics = self._statistics
        copied._operations = dict(self._operations)
        return copied

    def copy(self, *, config: Any = None, rngs: nnx.Rngs | None = None, name: str | None = None) -> Self:
        """The same source from its beginning, with what is given here changed."""
        config = config or replace(self.config)
        return type(self)(config, **self._given.value, rngs=rngs or self.rngs, name=name or self.name)
