"""The progress of the training: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from datarax_ray import Pipeline, PipelineStats


@dataclass
class Report:
    """Calls `show(step, line)` every log_every steps: records/s, loss and share of waiting since the last line."""

    show: Callable[[int, str], None]
    log_every: int
    num_records: int | None = None
    since: float = 0.0
    waited_s: float = 0.0

    def waited(self, seconds: float) -> None:
        self.waited_s += seconds

    def step(self, step: int, pipeline: Pipeline, loss: jax.Array) -> None:
        if self.num_records is None:  # the first step compiles and waits for the actors, and would spoil the rates
            self._begin(pipeline.stats().num_records)
        elif step % self.log_every == 0:
            value = float(loss)  # waits for the device, so that the time is that of all the work
            elapsed = time.perf_counter() - self.since
            stats = pipeline.stats()  # positions of streams have gaps, and those of batches by length move by pools
            rate, share = (stats.num_records - self.num_records) / elapsed, self.waited_s / elapsed
            line = f"step {step}: {rate:,.0f} records/s, loss {value:.4f}, {share:.0%} waiting for data"
            self.show(step, f"{line}{_reached(stats)}")
            self._begin(stats.num_records)

    def _begin(self, num_records: int) -> None:
        self.num_records, self.since, self.waited_s = num_records, time.perf_counter(), 0.0


def _reached(stats: PipelineStats) -> str:
    """The epoch; of a mixture the share of each component, beside its weight."""
    if stats.components:
        return "; " + ", ".join(f"{achieved:.1%} of {wanted:.1%}" for achieved, wanted in stats.proportions)
    return f", epoch {stats.epoch}" if stats.epoch else ""


@contextlib.contextmanager
def progress(num_steps: int | None, log_every: int) -> Iterator[Report]:
    """A bar on a terminal; elsewhere, as in the log of a Ray job, a line each time. num_steps: None if endless."""
    if not sys.stdout.isatty():
        yield Report(lambda step, line: print(line, flush=True), log_every)
        return
    with Progress(BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")) as bar:
        task = bar.add_task("", total=num_steps)
        yield Report(lambda step, line: bar.update(task, completed=step, description=line), log_every)
