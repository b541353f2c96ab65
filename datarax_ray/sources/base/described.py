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
from datarax_ray.read.hazards.kept_random import kept_random, read_clock, read_environment, uses_hash
from datarax_ray.read.hazards.kept_state import kept_state
from datarax_ray.read.hazards.set_order import listed_set
from datarax_ray.read.skipped_records import SkipOptions
from datarax_ray.read.stream import Stream
from datarax_ray.sources.base.config import SourceConfig
from datarax_ray.sources.base.module import SourceModule
from datarax_ray.sources.base.traced import TracedBatches

logger = logging.getLogger("datarax_ray")

_OWN = "in each process on its own"
_OTHERS = "with every number of actors, and after a resume"
# What the code of a transform shows that makes it another one elsewhere, or later; and what to write instead.
_WARNINGS = {
    "hash": "uses {}, which Python keys anew in every process for text and bytes (PYTHONHASHSEED): what it decides is "
    "another with every actor, and after a resume. Take zlib.crc32(text.encode()) or hashlib, which are the same "
    "everywhere",
    "list": "makes a list of {0}, a set of text, whose order is another in every process: so it is another with every "
    "actor, and after a resume. Write sorted({0})",
    "count": f"counts on in {{}}, {_OWN}: what is made of that is another {_OTHERS}. Give an object with "
    "map_with_index(position, element), where the position is the element's own",
    "value": f"keeps something of its elements in {{}}, {_OWN}: what is made of that is another {_OTHERS}. Make each "
    "element of its own data alone",
    "set": f"notes in {{}} what it has seen, {_OWN}: what it leaves out is another {_OTHERS}. Drop what comes twice "
    "before the data is written, or decide by the element alone",
    "environment": "reads {}, which is that of their hosts in the actors: where an element holds what is made of it, "
    "that is another there. Give the value to the transform as an argument, or set it for all by "
    "ray.init(runtime_env={{'env_vars': ...}})",
    "clock": "reads {}: where an element holds what is made of it, that is another in every run, and where a record "
    "is read again. Take the time from the data, or where batches are used",
    "random": f"draws from {{}}, which goes on from element to element, {_OWN}: the values are others {_OTHERS}. Give "
    "an object with random_map(element, rng), and draw from that rng, which is keyed by seed and position",
}


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
            for what, said in _seen_in(transform).items():
                if said:
                    logger.warning("%s %s", label, _WARNINGS[what].format(said))
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

    def check_unchanged(self) -> None:
        """Raise ValueError where its transforms hold or read other values than when it was made, and none was used."""
        self._source.check_unchanged()

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


def _seen_in(transform: Any) -> dict[str, str | None]:
    """What the transform's code shows of each of the above, in its own words."""
    kept, listed = {}, None
    with contextlib.suppress(Exception):  # a warning is no reason to fail, whatever the code looks like
        kept, listed = kept_state(transform), listed_set(transform)
    return {
        "hash": "hash()" if uses_hash(transform) else None,
        "list": listed,
        "count": kept.get("count"),
        "value": None if kept.get("count") else kept.get("value"),
        "set": kept.get("set"),
        "environment": read_environment(transform),
        "clock": read_clock(transform),
        "random": kept_random(transform),
    }
