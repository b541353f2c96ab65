"""datarax_ray: a Pipeline over ArrayRecord files, read by Ray actors, or in the trainer's own process for none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.conformance.loaders.work import Job, decode, files, write_array_records


def element(record: bytes) -> dict[str, Any]:
    return {"number": decode(record)}


class Loader:
    write = staticmethod(write_array_records)

    def __init__(self, job: Job) -> None:
        from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, Pipeline, RaySource

        config = ArrayRecordSourceConfig(seed=job.seed, shuffle_files=True, num_epochs=1)
        source: Any = ArrayRecordSourceModule(config, files(job.directory), transforms=[element])
        self._actors = None
        if job.readers:
            import ray

            ray.init("local", num_cpus=4, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
            source = self._actors = RaySource(source, num_actors=job.readers, num_cpus=0.5)
        self._pipeline = Pipeline(
            source=source,
            batch_size=job.batch_size,
            process_index=job.trainer,
            process_count=job.trainers,
            on_host=True,
        )

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._pipeline:
            yield batch["number"].tolist()

    def state(self) -> bytes:
        return json.dumps(self._pipeline.get_state()).encode()

    def restore(self, state: bytes) -> None:
        self._pipeline.set_state(json.loads(state))

    def readers(self) -> list[int]:
        return [] if self._actors is None else [each["pid"] for each in self._actors.stats().values() if "pid" in each]
