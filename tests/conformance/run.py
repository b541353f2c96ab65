"""The cases, each a run of one loader through something that happens, against the same loader without it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.compare import Batches, Difference, compare, joined
from tests.conformance.job import REFUSED, Orders
from tests.conformance.loaders import loader_of
from tests.conformance.loaders.work import Job
from tests.programs import ROOT, Program

_MAX_RESTARTS = 3


@dataclass(frozen=True)
class Size:
    """How much of it. num_records should be a multiple of the batch size times 12, so that no loader has remainders."""

    num_records: int = 1440
    batch_size: int = 24
    event_s: float = 3.0
    timeout_s: float = 240.0


@dataclass(frozen=True)
class Case:
    """What happens. before, after: (readers, trainers) of the run, and from a restart behind step `resize_at` on."""

    name: str
    readers: int = 2
    trainers: int = 1
    then: tuple[int, int] | None = None
    die_at: int | None = None
    events: dict[int, str] = field(default_factory=dict)


RESIZE_AT = 10  # a multiple of Orders.save_every
CASES = [
    Case("the same again"),
    Case("the job is killed between two checkpoints", die_at=12),
    Case("readers are killed", events={2: "kill", 8: "kill"}),
    Case("a reader is frozen for a while", events={2: "freeze"}),
    Case("the files are away for a while", events={2: "away"}),
    Case("goes on with more readers", then=(3, 1)),
    Case("goes on with fewer readers", then=(1, 1)),
    Case("goes on with more trainers", readers=0, trainers=1, then=(0, 2)),
    Case("goes on with fewer trainers", readers=0, trainers=2, then=(0, 1)),
]


class Outcome(NamedTuple):
    """difference: None where there is nothing to compare. restarts: of the job, behind errors. said: by the loader."""

    case: str
    difference: Difference | None
    restarts: int
    said: str

    @property
    def is_the_same(self) -> bool:
        return self.difference is not None and not any(self.difference)


class _Ended(NamedTuple):
    """How the processes of a run ended: 0, REFUSED, another status, or None for one that hung."""

    status: int | None
    said: str


def run(loader: str, size: Size, directory: Path, cases: list[Case], tell: Callable[[Outcome], Any]) -> list[Outcome]:
    """The outcome of each case, told as it is known."""
    data = directory / "data"
    data.mkdir(parents=True)
    loader_of(loader).write(str(data), size.num_records)
    job = Job(str(data), size.num_records, size.batch_size)
    plain: dict[tuple[int, int], Batches | str] = {}
    outcomes = []
    for number, case in enumerate(cases):
        orders = Orders(loader, job, "", event_s=size.event_s)
        key = case.readers, case.trainers
        if key not in plain:  # the run to which nothing happens, with as many readers and trainers
            folder = directory / f"plain-{case.readers}-{case.trainers}"
            ended = _start(replace(orders, folder=str(folder)), *key, size)
            plain[key] = _seen(folder, case.trainers) if ended.status == 0 else _told(ended)
        wanted = plain[key]
        if isinstance(wanted, str):
            outcome = Outcome(case.name, None, 0, wanted)
        else:
            outcome = _outcome(case, replace(orders, folder=str(directory / f"case-{number}")), wanted, size)
        tell(outcome)
        outcomes.append(outcome)
    return outcomes


def _outcome(case: Case, orders: Orders, wanted: Batches, size: Size) -> Outcome:
    """The run of the case: what an operator does is done, the job is started again from the last checkpoint it has."""
    folder = Path(orders.folder)
    stop = RESIZE_AT if case.then else None
    begun = replace(orders, stop=stop, die_at=case.die_at, events=case.events)
    ended = _start(begun, case.readers, case.trainers, size)
    kept = _seen(folder, case.trainers)
    said, restarts = ended.said, 0
    readers, trainers = case.then or (case.readers, case.trainers)
    is_resized = case.then is not None and ended.status == 0
    while is_resized or ended.status != 0:
        if not is_resized and (ended.status == REFUSED or restarts == _MAX_RESTARTS):
            return Outcome(case.name, None, restarts, _told(ended))
        restarts += not is_resized
        is_resized = False
        saved = [int(path.name.split("-")[1]) for path in folder.glob("state-*-0")]
        first = max(saved, default=0)
        # of a job without a state the model's own checkpoint goes on, and the data from its beginning
        model = first if saved else len(kept) - len(kept) % orders.save_every
        kept = kept[:model]
        for trainer in range(trainers):  # any trainer's state is that of the run
            source = folder / f"state-{first}-0"
            if source.exists() and not (own := folder / f"state-{first}-{trainer}").exists():
                own.write_bytes(source.read_bytes())
        for path in folder.glob("batches-*"):
            path.unlink()
        ended = _start(replace(orders, first=first), readers, trainers, size)
        said = said or ended.said
        if ended.status == REFUSED:
            return Outcome(case.name, None, restarts, _told(ended))
        kept += _seen(folder, trainers)
    return Outcome(case.name, compare(wanted, kept), restarts, said)


def _start(orders: Orders, readers: int, trainers: int, size: Size) -> _Ended:
    """Run the job to its end: each trainer in a process, and a session, of its own."""
    folder = Path(orders.folder)
    folder.mkdir(exist_ok=True)
    running = []
    for trainer in range(trainers):
        its = {"readers": readers, "trainer": trainer, "trainers": trainers, "scratch": str(folder / "scratch")}
        mine = replace(orders, job=replace(orders.job, **its))
        path = folder / f"orders-{trainer}.json"
        path.write_text(json.dumps(asdict(mine)))
        (folder / f"said-{trainer}.txt").write_text("")
        env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ROOT}
        running.append(Program(("-m", "tests.conformance.job", path), env, session=True))
    statuses: list[int | None] = []
    try:
        for trainer, program in enumerate(running):
            done = program.wait(size.timeout_s)
            (folder / f"errors-{trainer}.txt").write_text(done.stderr)
            statuses.append(done.returncode)
    except TimeoutError:
        statuses = [None]
    for program in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # what the trainer left behind, and itself
    if (away := Path(f"{orders.job.directory}.away")).exists():  # who was to bring them back has ended
        away.rename(orders.job.directory)
    bad = next((number for number, status in enumerate(statuses) if status != 0), 0)
    return _Ended(statuses[bad], (folder / f"said-{bad}.txt").read_text())


def _seen(folder: Path, trainers: int) -> Batches:
    found = []
    for trainer in range(trainers):
        path = folder / f"batches-{trainer}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found.append([json.loads(line)["rows"] for line in lines])
    return joined(found)


def _told(ended: _Ended) -> str:
    how = {None: "hung", REFUSED: "refused"}.get(ended.status, f"ended with {ended.status}")
    return f"{how}: {ended.said}" if ended.said else how
