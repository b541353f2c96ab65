"""A loop over a pipeline's batches that shows how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from datarax_ray.feed.origins import rows_are_positions
from datarax_ray.pipeline.pipeline import Pipeline
from datarax_ray.plan.arguments import named_arguments
from datarax_ray.record_progress import RecordProgress


@named_arguments
def progress(pipeline: Pipeline, title: str = "training", *, console: Console | None = None) -> Iterator[Any]:
    """The batches of a pipeline, with progress on stderr: records, records/s, and how long the loop waits.

    It is a bar at a terminal or in a notebook, else a line every five seconds. After leaving the loop, the next loop
    goes on, as with `for batch in pipeline`.

    console: another place, Console(quiet=True) for none; DATARAX_RAY_PROGRESS=0 in the environment disables it.

    Example: `for batch in progress(pipeline): ...`
    """
    if not hasattr(pipeline, "stats"):
        raise TypeError(f"progress shows a Pipeline, got {type(pipeline).__name__}")
    description = pipeline.source.describe()
    left = None if description.stop is None else max(0, description.stop - pipeline.position)
    is_counted = rows_are_positions(description, pipeline._options, pipeline._consumer.consumed.state)
    if left and pipeline.drop_remainder and is_counted:
        left -= left % pipeline.batch_size

    def done() -> int:
        """Records passed, where the end is known: nobody knows how many filters will keep."""
        return pipeline._timings.num_records if left is None else pipeline.position

    with RecordProgress(console or Console(stderr=True, highlight=False), title, left) as shown:
        begin = before = done()
        for batch in pipeline:
            now = done()
            shown.advance(now - before, note=f"waits {pipeline._timings.waits:.0%}")
            before = now
            yield batch
        if left is not None and begin + left > before:  # the rest gives no full batch
            shown.advance(begin + left - before)
