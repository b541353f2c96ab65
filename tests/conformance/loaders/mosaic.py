"""MosaicML Streaming, as its documentation has it: a remote folder, a local one, StreamingDataLoader and its state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from tests.conformance.loaders.torch_trainers import set_ranks
from tests.conformance.loaders.work import Job, decode, workers


class Numbers(StreamingDataset):
    def __getitem__(self, at: Any) -> np.ndarray:
        return decode(super().__getitem__(at)["record"])


class Loader:
    readers = staticmethod(workers)

    @staticmethod
    def write(directory: str, num_records: int) -> None:
        quarter = 1000 + num_records // 4 * (64 + 4 + 4)  # bytes, so that there are four shards
        with MDSWriter(out=directory, columns={"record": "bytes"}, size_limit=quarter) as writer:
            for number in range(num_records):
                writer.write({"record": np.int64(number).tobytes() + bytes(56)})

    def __init__(self, job: Job) -> None:
        set_ranks(job)
        clean_stale_shared_memory()  # of a job that was killed, as its documentation says
        batch_size = job.batch_size // job.trainers
        dataset = Numbers(
            remote=job.directory, local=job.scratch, shuffle=True, shuffle_seed=job.seed, batch_size=batch_size
        )
        self._loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=job.readers)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._loader:
            yield batch.tolist()

    def state(self) -> bytes | None:
        found = self._loader.state_dict()
        return None if found is None else json.dumps(found).encode()

    def restore(self, state: bytes) -> None:
        self._loader.load_state_dict(json.loads(state))
