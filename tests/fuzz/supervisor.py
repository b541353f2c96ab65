"""Runs jobs in workers, starts a new one after a crash or a hang, and lays the blame on the mutant it was at."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz import outcomes
from tests.fuzz.targets import make

Job = tuple[str, str, int]  # target, kind of mutation, seed

# A mutant takes milliseconds; a machine that is busy with other things may take thousands of them.
HANG_S = 60.0
_START_S = 240.0  # a target's imports and files, on such a machine
_AHEAD = 64  # jobs in the pipe, so that a worker does not wait for us


@dataclass
class Report:
    """Counts by target, kind and outcome, and what broke a promise, each with the job that shows it again."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    broken: list[tuple[Job, str, str]] = field(default_factory=list)

    def add(self, job: Job, outcome: str, detail: str) -> None:
        self.counts[job[0], job[1], outcome] += 1
        if outcome in outcomes.BROKEN:
            self.broken.append((job, outcome, detail))

    @property
    def total(self) -> int:
        return self.counts.total()


def jobs(names: Iterable[str], seeds: Iterable[int], scratch: Path) -> Iterator[Job]:
    """Every kind of every target, with one seed after the other."""
    kinds = {name: make(name, scratch).kinds for name in names}
    for seed in seeds:
        for name, found in kinds.items():
            yield from ((name, kind, seed) for kind in found)


def run(todo: Iterable[Job], directory: Path, hang_s: float = HANG_S) -> Report:
    """The outcomes of all jobs. hang_s: how long a mutant may take."""
    report = Report()
    waiting = iter(todo)
    backlog: list[Job] = []
    while True:
        backlog += itertools.islice(waiting, max(0, _AHEAD - len(backlog)))
        if not backlog:
            return report
        backlog = _one_worker(itertools.chain(backlog, waiting), directory, report, hang_s)


def _one_worker(todo: Iterator[Job], directory: Path, report: Report, hang_s: float) -> list[Job]:
    """Feed one worker until the jobs or the worker end; returns the jobs that it was sent and did not begin."""
    with open(directory / "stderr.txt", "wb") as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
    answers: queue.Queue[Any] = queue.Queue()
    reader = threading.Thread(target=_listen, args=(worker, answers), daemon=True)
    reader.start()
    sent: list[Job] = []
    at: Job | None = None
    try:
        while True:
            for job in itertools.islice(todo, max(0, _AHEAD - len(sent))):
                sent.append(job)
                _send(worker, job)
            if not sent:
                return []
            try:
                answer = answers.get(timeout=hang_s if at else _START_S)
            except queue.Empty:
                report.add(sent.pop(0), outcomes.HANG, f"no answer in {hang_s:.0f} s")
                return sent
            if answer is None:
                code = worker.wait()
                assert at is not None, f"a worker ended before its first mutant: {_tail(directory)}"
                report.add(sent.pop(0), outcomes.CRASH, f"exit code {code}: {_tail(directory)}")
                return sent
            if answer[0] == "begin":
                at = (answer[1], answer[2], answer[3])
                assert at == sent[0]
            else:
                report.add(sent.pop(0), answer[1], answer[2])
    finally:
        worker.kill()
        worker.wait()
        reader.join()
        for pipe in (worker.stdin, worker.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what it was sent and did not read
                pipe.close()


def _tail(directory: Path) -> str:
    return (directory / "stderr.txt").read_text(errors="replace")[-600:]


def _send(worker: subprocess.Popen[bytes], job: Job) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it crashed: the reader tells
        worker.stdin.write(json.dumps(job).encode() + b"\n")
        worker.stdin.flush()


def _listen(worker: subprocess.Popen[bytes], answers: queue.Queue[Any]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        answers.put(json.loads(line))
    answers.put(None)
