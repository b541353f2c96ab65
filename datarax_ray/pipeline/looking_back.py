"""Looking back: batches and digests of a stream once more, while the position of the pipeline stays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from datarax_ray.feed.origins import rows_are_positions
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.pipeline.producing import Source
from datarax_ray.plan.position import CountedBatches
from datarax_ray.plan.rolling_digest import RollingDigest
from datarax_ray.plan.state import StreamState
from datarax_ray.read.stream import Stream, is_endless


def num_batches(description: Stream, options: StreamOptions, begin: StreamState) -> int:
    """See Pipeline.num_batches. begin: the beginning of the stream, as it is amended."""
    if is_endless(description):
        raise TypeError("the stream is endless (num_epochs=-1), so it has no number of batches; set num_epochs")
    found = CountedBatches(0, description.stop, options.batch_size, options.drop_remainder).num_batches
    if found is None or not rows_are_positions(description, options, begin):
        raise TypeError(
            "the batches of this stream are known only by reading: there are filters, flat_map, on_error='skip', "
            "packing, a stream, or positions that an amendment skips. Count them as they come"
        )
    return found


def digests(
    source: Source, options: StreamOptions, start: StreamState, digest: RollingDigest
) -> Iterator[tuple[int, int, str]]:
    """See Pipeline.digests. digest: of nothing, from `start` on."""
    is_dropping = options.drop_remainder
    options = replace(options, process_index=0, process_count=1, share=None, digest=True)
    with contextlib.closing(source.batches(start, options)) as batches:
        yield *digest.since, digest.to_json()["sum"]
        for batch in batches:
            start, digest = batch.state, digest.plus(batch.digest)
            yield start.position, start.offset, digest.to_json()["sum"]
    stop = source.describe().stop
    if not is_dropping and stop is not None and start.position != stop:  # what is left gives nothing
        yield stop, 0, digest.to_json()["sum"]
