"""Grain's ElasticIterator, which is for runs that go on with other numbers of trainers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grain
from grain.experimental import ElasticIterator

from tests.conformance.loaders import grain_data_loader
from tests.conformance.loaders.work import Job, decode, files, write_array_records


class Loader:
    write = staticmethod(write_array_records)
    readers = staticmethod(grain_data_loader.workers)

    def __init__(self, job: Job) -> None:
        source = grain.sources.ArrayRecordDataSource(files(job.directory))
        dataset = grain.MapDataset.source(source).shuffle(seed=job.seed).map(decode)
        workers = grain.MultiprocessingOptions(num_workers=job.readers) if job.readers else None
        shard = grain.sharding.ShardOptions(job.trainer, job.trainers)
        self._iterator = iter(ElasticIterator(dataset, job.batch_size, shard, multiprocessing_options=workers))

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._iterator:
            yield batch.tolist()

    def state(self) -> bytes:
        return json.dumps(self._iterator.get_state()).encode()

    def restore(self, state: bytes) -> None:
        self._iterator.set_state(json.loads(state))
