"""What source modules of every kind share: a description, and one position that moves with what they give."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import jax
from flax import nnx

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.consumer import Turns
from datarax_ray.feed.source import Source
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.feed.trail import Trail
from datarax_ray.plan.packing import Packing
from datarax_ray.plan.state import StreamState
from datarax_ray.read.closing import Closing
from datarax_ray.read.elements.columns import map_leaves
from datarax_ray.read.errors import Skipped
from datarax_ray.read.skipped_records import SkipOptions
from datarax_ray.read.stream import Stream
from datarax_ray.sources.base.config import SourceConfig
from datarax_ray.sources.base.module import SourceModule
from datarax_ray.sources.base.traced import TracedBatches


class DescribedSourceModule(Closing, SourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of a description. Iteration, `next`, `get_batch` and the state share one position."""

    def __init__(
        self,
        config: SourceConfig,
        description: Stream,
        skip_options: SkipOptions,
        *,
        rngs: nnx.Rngs | None,
        name: str | None,
    ) -> None:
        super().__init__(config, rngs=rngs, name=name)
        self._source = Source(description, skip_options=skip_options)
        self._alone = Turns().alone  # what is given, and what shows it, is one step to other threads
        self._traced = self.traced()

    def describe(self) -> Stream:
        """Everything that decides this stream, as a picklable value: what RaySource sends to its actors."""
        return self._source.description

    @property
    def skip_options(self) -> SkipOptions:
        """What whoever consumes it does about the records that on_error leaves out."""
        return self._source.skip_options

    def batches(
        self, start: int | StreamState, options: StreamOptions
    ) -> Generator[HostBatch, None, tuple[Skipped, ...]]:
        """The batches from a position or state on; does not move this source's own."""
        return self._source.batches(start, options)

    def verify(
        self, state: StreamState | None = None, trail: Trail | None = None, packing: Packing | None = None
    ) -> None:
        """Make the last rows of the restored state again, and compare; the first read does so, too.

        state, trail, packing: of a Pipeline, which has its own. Raises: DriftError where a row is another now, with its
        file, record and field.
        """
        self._source.verify(state, trail, packing)

    def traced(self) -> TracedBatches:
        """What get_batch_at gives under a trace: of this source, and of a RaySource over it, which knows no JAX."""
        return TracedBatches()

    @property
    def skipped(self) -> list[Skipped]:
        """The first 1000 broken records left out since the last seek, with on_error="skip"."""
        return self._source.skipped

    def element_spec(self) -> Any:
        """A jax.ShapeDtypeStruct for each field of an element; dtype object for what stays on the host."""
        return map_leaves(lambda field: jax.ShapeDtypeStruct(field.shape, field.dtype), self._source.element_spec())

    def close(self) -> None:
        """Close files and forget cached records. The state can still be taken; reading opens them again."""
        self._traced.close()
        self._source.close()

    def _count(self, num_elements: int) -> None:
        """Note that so many elements were given."""
        self._operations["applied_count"] += num_elements
        self._operations["skipped_count"] = self._source.num_skipped
