"""The configuration that every source shares. Source: datarax.core.config (StructuralConfig and its base)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Checked once, when made; frozen.

    cacheable: keep records in memory once read. batch_stats_fn: data -> statistics, for compute_statistics.
    precomputed_stats: statistics known already; not together with batch_stats_fn. stochastic, stream_name: whether the
    source draws from a stream of its rngs, and from which; both or neither.

    Raises: ValueError for a combination that contradicts itself.
    """

    cacheable: bool = False
    batch_stats_fn: Callable[[Any], dict[str, Any]] | None = None
    precomputed_stats: dict[str, Any] | None = None
    stochastic: bool = False
    stream_name: str | None = None

    def __post_init__(self) -> None:
        if self.batch_stats_fn is not None and self.precomputed_stats is not None:
            raise ValueError("give batch_stats_fn or precomputed_stats, not both: the second would never be computed")
        if self.stochastic and self.stream_name is None:
            raise ValueError("a stochastic source needs stream_name, the stream of its rngs to draw from")
        if not self.stochastic and self.stream_name is not None:
            raise ValueError(f"stream_name={self.stream_name!r} has no use in a source that is not stochastic")
