"""A loop over a pipeline's batches that shows how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from datarax_ray.pipeline.pipeline import Pipeline
from datarax_ray.plan.arguments import named_arguments
from datarax_ray.record_progress import RecordProgress


@named_arguments
def progress(pipeline: Pipeline, title: str = "training", *, console: Console | None = None) -> Iterator[Any]:
    """The batches of a pipeline, with a sign of life on stderr: records, records/s, how long the loop waits.

    A bar at a terminal or in a notebook, else a line every five seconds. Leaving the loop is as in `for batch in
    pipeline`: the next one goes on behind the last batch. console: another place, Console(quiet=True) for none;
    DATARAX_RAY_PROGRESS=0 in the environment is for none at all.

    Example: `for batch in progress(pipeline): ...`
    """
    if not hasattr(pipeline, "stats"):
        raise TypeError(f"progress shows a Pipeline, got {type(pipeline).__name__}")
    stop = pipeline.source.describe().stop
    left = None if stop is None else max(0, stop - pipeline.position)
    with RecordProgress(console or Console(stderr=True, highlight=False), title, left) as shown:
        before = pipeline.stats().num_records
        for batch in pipeline:
            stats = pipeline.stats()
            shown.advance(stats.num_records - before, note=f"waits {stats.waits:.0%}")
            before = stats.num_records
            yield batch
