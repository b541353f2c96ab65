"""One trainer of a run, in a process of its own: takes batches, notes them, saves states, and lets things happen to it.

python -m tests.conformance.job ORDERS.json
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.loaders import loader_of
from tests.conformance.loaders.work import Job

REFUSED = 77  # the exit status where the loader refuses what is asked of it
_STEP_S = 0.02  # what a step of training takes


@dataclass(frozen=True)
class Orders:
    """What happens to a trainer.

    folder: of its states and notes. first: the number of its first step. save_every: steps between two states. stop:
    the step to end before, None for the end of the data. die_at: it is killed behind this step. events: behind which
    step what happens: "kill" (a reader, by SIGKILL), "freeze" (one, for event_s), "away" (its files, for event_s).
    """

    loader: str
    job: Job
    folder: str
    first: int = 0
    save_every: int = 5
    stop: int | None = None
    die_at: int | None = None
    events: dict[int, str] = field(default_factory=dict)
    event_s: float = 2.0

    @property
    def notes(self) -> Path:
        return Path(self.folder) / f"batches-{self.job.trainer}.jsonl"

    def say(self, error: Exception | str) -> None:
        """Note for the table what the loader raised."""
        told = error if isinstance(error, str) else f"{type(error).__name__}: {error}".splitlines()[0]
        Path(self.folder, f"said-{self.job.trainer}.txt").write_text(told)

    def state(self, step: int) -> Path:
        """Of one trainer, before this step."""
        return Path(self.folder) / f"state-{step}-{self.job.trainer}"


def run(orders: Orders) -> int:
    """Train to the end, or to what happens. Returns the exit status, unless that comes from elsewhere."""
    try:
        loader = loader_of(orders.loader)(orders.job)
        if orders.first and (state := orders.state(orders.first)).exists():
            loader.restore(state.read_bytes())
        batches = iter(loader)
        rows = next(batches, None)
    except Exception as error:
        orders.say(error)
        return REFUSED
    step, timers = orders.first, list[threading.Timer]()
    try:
        with orders.notes.open("a") as notes:
            while rows is not None:
                notes.write(json.dumps({"step": step, "rows": rows}) + "\n")
                notes.flush()
                step += 1
                if step % orders.save_every == 0 and (found := loader.state()) is not None:
                    scratch = orders.state(step).with_suffix(".tmp")
                    scratch.write_bytes(found)
                    scratch.replace(orders.state(step))
                if step - 1 == orders.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if event := orders.events.get(step - 1):
                    timers += happen(event, loader.readers(), orders)
                if step == orders.stop:
                    break
                time.sleep(_STEP_S)
                rows = next(batches, None)
    except Exception as error:
        orders.say(error)
        return 1
    for timer in timers:
        timer.join()
    os._exit(0)  # what threads and processes of a loader do at the end is not asked here


def happen(event: str, readers: list[int], orders: Orders) -> list[threading.Timer]:
    """Let it happen. Returns what ends it."""
    directory = Path(orders.job.directory)
    if event == "away":
        away = directory.with_name(f"{directory.name}.away")
        directory.rename(away)
        then = lambda: away.rename(directory)  # noqa: E731
    else:
        if not readers:
            orders.say("no reader was there")
            return []
        reader = random.Random(orders.job.seed).choice(readers)
        os.kill(reader, signal.SIGKILL if event == "kill" else signal.SIGSTOP)
        then = lambda: os.kill(reader, signal.SIGCONT)  # noqa: E731
    if event == "kill":
        return []
    timer = threading.Timer(orders.event_s, then)
    timer.start()
    return [timer]


if __name__ == "__main__":
    said = json.loads(Path(sys.argv[1]).read_text())
    events = {int(step): event for step, event in said.pop("events").items()}
    sys.exit(run(Orders(**said | {"job": Job(**said["job"]), "events": events})))
