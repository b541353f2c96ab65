"""What source modules of every kind share: a description, and one position that moves with what they give."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any

import jax
from flax import nnx

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.source import Source
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.feed.turns import Turns
from datarax_ray.plan.state import StreamState
from datarax_ray.read.closing import Closing
from datarax_ray.read.elements.columns import map_leaves
from datarax_ray.read.errors import Skipped
from datarax_ray.read.identity.kept_random import kept_random, read_clock, read_environment, uses_hash
from datarax_ray.read.identity.kept_state import kept_state
from datarax_ray.read.identity.set_order import listed_set
from datarax_ray.read.skipped_records import SkipOptions
from datarax_ray.read.stream import Stream
from datarax_ray.sources.base.config import SourceConfig
from datarax_ray.sources.base.module import SourceModule
from datarax_ray.sources.base.traced import TracedBatches

logger = logging.getLogger("datarax_ray")


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
        for transform in getattr(description, "transforms", ()):  # a mixture has none of its own
            label = getattr(transform, "__qualname__", type(transform).__qualname__)
            if uses_hash(transform):
                logger.warning(
                    "%s uses hash(), which Python keys anew in every process for text and bytes (PYTHONHASHSEED): what "
                    "it decides is another with every actor, and after a resume. Take zlib.crc32(text.encode()) or "
                    "hashlib, which are the same everywhere",
                    label,
                )
            kept, listed = {}, None
            with contextlib.suppress(Exception):  # a warning is no reason to fail, whatever the code looks like
                kept, listed = kept_state(transform), listed_set(transform)
            if listed:
                logger.warning(
                    "%s makes a list of %s, a set of text, whose order is another in every process: so it is another "
                    "with every actor, and after a resume. Write sorted(%s)",
                    label,
                    listed,
                    listed,
                )
            if said := kept.get("count"):
                logger.warning(
                    "%s counts on in %s, in each process on its own: what is made of that is another with every number "
                    "of actors, and after a resume. Give an object with map_with_index(position, element), where the "
                    "position is the element's own",
                    label,
                    said,
                )
            elif said := kept.get("value"):
                logger.warning(
                    "%s keeps something of its elements in %s, in each process on its own: what is made of that is "
                    "another with every number of actors, and after a resume. Make each element of its own data alone",
                    label,
                    said,
                )
            if said := kept.get("set"):
                logger.warning(
                    "%s notes in %s what it has seen, in each process on its own: what it leaves out is another with "
                    "every number of actors, and after a resume. Drop what comes twice before the data is written, or "
                    "decide by the element alone",
                    label,
                    said,
                )
            if said := read_environment(transform):
                logger.warning(
                    "%s reads %s, which is that of their hosts in the actors: where an element holds what is made of "
                    "it, that is another there. Give the value to the transform as an argument, or set it for all by "
                    "ray.init(runtime_env={'env_vars': ...})",
                    label,
                    said,
                )
            if said := read_clock(transform):
                logger.warning(
                    "%s reads %s: where an element holds what is made of it, that is another in every run, and where a "
                    "record is read again. Take the time from the data, or where batches are used",
                    label,
                    said,
                )
            if said := kept_random(transform):
                logger.warning(
                    "%s draws from %s, which goes on from element to element, in each process on its own: the values "
                    "are others with every number of actors, and after a resume. Give an object with "
                    "random_map(element, rng), and draw from that rng, which is keyed by seed and position",
                    label,
                    said,
                )
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
