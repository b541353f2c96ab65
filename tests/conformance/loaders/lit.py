"""LitData, as its documentation has it: chunks, StreamingDataset, StreamingDataLoader and its state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.distributed
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming import Cache

from tests.conformance.loaders.torch_trainers import set_ranks
from tests.conformance.loaders.work import Job, decode, workers


class Numbers(StreamingDataset):
    def __getitem__(self, at: Any) -> np.ndarray:
        return decode(super().__getitem__(at)["record"])


class Loader:
    readers = staticmethod(workers)

    @staticmethod
    def write(directory: str, num_records: int) -> None:
        cache = Cache(directory, chunk_size=num_records // 4)
        for number in range(num_records):
            cache[number] = {"record": np.int64(number).tobytes() + bytes(56)}
        cache.done()
        cache.merge()

    def __init__(self, job: Job) -> None:
        set_ranks(job)
        if job.trainers > 1:
            torch.distributed.init_process_group("gloo")
        dataset = Numbers(job.directory, shuffle=True, seed=job.seed, drop_last=False)
        batch_size = job.batch_size // job.trainers
        self._loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=job.readers)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._loader:
            yield batch.tolist()

    def state(self) -> bytes:
        return json.dumps(self._loader.state_dict()).encode()

    def restore(self, state: bytes) -> None:
        self._loader.load_state_dict(json.loads(state))
