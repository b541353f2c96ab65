"""Several trainers: Ray actors, each a process of one JAX job, that share the reader actors of this Ray job.

This process only starts the trainers, passes a stop request on, and fails when one trainer fails: the others would wait
for it for ever, in a collective. restarts.py then runs the job again, and all trainers go on from the newest
checkpoint. If all trainers wait for the same batch when a stop comes, the wait ends and they save, as the batch may
never come.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Sequence
from typing import Any

import ray
from data_wait import DataWait
from stop_request import StopRequest

from datarax_ray.actors.connection import sigterm_kept

_LOOK_S = 0.2  # between two looks at whether a signal has come; a step takes about as long
_MAY_COME_S = 5.0  # for data that is on its way when a stop is asked for, and again, of the minute that a stop gets


class Trainer:
    """One JAX process. The driver sends its stop request while it trains."""

    def __init__(self) -> None:
        self._stop, self._wait = StopRequest(), DataWait()

    def address(self) -> str:
        """host:port for JAX's coordinator, on this node."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def train(self, options: argparse.Namespace, coordinator: str, num_trainers: int, index: int) -> str:
        """Be trainer `index` until the run ends. Returns why it ended."""
        import jax  # in here, with what loads it: the driver of several trainers uses no device
        from training import run

        if num_trainers > 1:
            jax.distributed.initialize(coordinator, num_trainers, index)
        return run(options, self._stop, self._wait)

    @ray.method(concurrency_group="control")
    def stop(self, signal_name: str) -> None:
        self._stop.signal_name = signal_name

    @ray.method(concurrency_group="control")
    def hold(self) -> int | None:
        return self._wait.hold()

    @ray.method(concurrency_group="control")
    def decide(self, ends: bool) -> None:
        self._wait.decide(ends)


def launch(options: argparse.Namespace, stop: StopRequest) -> str:
    """Train in options.num_trainers actors. Returns why they ended. stop: asks them to end.

    Raises: the error that ended a trainer, with its number.
    """
    with sigterm_kept():
        ray.init("auto")
    num_trainers = options.num_trainers
    make = ray.remote(concurrency_groups={"control": 1})(Trainer).options(
        num_cpus=1,
        num_gpus=options.trainer_gpus,
        label_selector=dict(options.trainer_label) or None,
        scheduling_strategy="SPREAD",
    )
    trainers = [make.remote() for _ in range(num_trainers)]
    print(f"starting {num_trainers} trainers; they wait for nodes with room for them", flush=True)
    addresses = [trainer.address.remote() for trainer in trainers]
    while len(ray.wait(addresses, num_returns=num_trainers, timeout=_LOOK_S)[0]) < num_trainers:
        if stop.signal_name is not None:
            return f"stopped by {stop.signal_name} before it began"
    coordinator = ray.get(addresses[0])
    running = {
        trainer.train.remote(options, coordinator, num_trainers, index): index for index, trainer in enumerate(trainers)
    }
    outcome, is_told, wait_ends_at = "", False, 0.0
    while running:
        if stop.signal_name is not None and not is_told:
            for trainer in trainers:
                trainer.stop.remote(stop.signal_name)
            is_told, wait_ends_at = True, time.monotonic() + _MAY_COME_S
        if is_told and len(running) == num_trainers and time.monotonic() > wait_ends_at:
            end_wait(trainers)
            wait_ends_at = time.monotonic() + _MAY_COME_S
        for ended in ray.wait(list(running), timeout=_LOOK_S)[0]:
            index = running.pop(ended)
            try:
                why = ray.get(ended)
            except Exception as error:
                error.add_note(f"this error ended trainer {index} of {num_trainers}")
                raise
            outcome = why if index == 0 else outcome
    return outcome


def end_wait(trainers: Sequence[Any]) -> None:
    """End the trainers' wait for data, if all of them wait for the same batch; see data_wait."""
    asked = [trainer.hold.remote() for trainer in trainers]
    answered, missing = ray.wait(asked, num_returns=len(asked), timeout=_MAY_COME_S)
    steps = {*ray.get(answered), *(None for _ in missing)}
    for trainer in trainers:
        trainer.decide.remote(ends=len(steps) == 1 and None not in steps)
