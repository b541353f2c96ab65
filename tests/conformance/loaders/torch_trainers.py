"""What loaders for PyTorch have in common here: their trainers find one another as torchrun has them do."""

from __future__ import annotations

import os

from tests.conformance.loaders.work import Job


def set_ranks(job: Job) -> None:
    """The variables that torchrun sets, on one host; none for a single trainer, who starts without it."""
    if job.trainers > 1:
        found = {"RANK": job.trainer, "LOCAL_RANK": job.trainer, "WORLD_SIZE": job.trainers}
        found |= {"LOCAL_WORLD_SIZE": job.trainers, "MASTER_PORT": 20_000 + os.getppid() % 10_000}
        os.environ |= {name: str(value) for name, value in found.items()} | {"MASTER_ADDR": "127.0.0.1"}
