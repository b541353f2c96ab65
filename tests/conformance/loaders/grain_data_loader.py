"""Grain's DataLoader, as its documentation has it: an IndexSampler, worker processes, the iterator's own state."""

from __future__ import annotations

from collections.abc import Iterator

import grain
import numpy as np
from absl import flags

from tests.conformance.loaders.work import Job, decode, files, workers, write_array_records

# Grain's worker processes read absl's flags, which a script without absl.app.run never parses (grain #1355).
flags.FLAGS.mark_as_parsed()


class Decode(grain.transforms.Map):
    def map(self, element: bytes) -> np.ndarray:
        return decode(element)


class Loader:
    write = staticmethod(write_array_records)
    readers = staticmethod(workers)

    def __init__(self, job: Job) -> None:
        source = grain.sources.ArrayRecordDataSource(files(job.directory))
        shard = grain.sharding.ShardOptions(job.trainer, job.trainers, drop_remainder=True)
        loader = grain.DataLoader(
            data_source=source,
            sampler=grain.samplers.IndexSampler(len(source), shard, shuffle=True, num_epochs=1, seed=job.seed),
            operations=[Decode(), grain.transforms.Batch(job.batch_size // job.trainers)],
            worker_count=job.readers,
        )
        self._iterator = iter(loader)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._iterator:
            yield batch.tolist()

    def state(self) -> bytes:
        found: bytes = self._iterator.get_state()
        return found

    def restore(self, state: bytes) -> None:
        self._iterator.set_state(state)
