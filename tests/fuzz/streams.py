"""Random streams in bulk, each against a plain loop: `python -m tests.fuzz.streams --configs 2000 --seed 1`.

A case is a source, an order, transforms, packing and a run of legs: so many trainers and actors read on from the last
state, which went through JSON, until the next save. In one process, actors are copies of the source that answer in any
order, lose what they were asked and come and go; with --ray they are real ones, killed and joined meanwhile. Beside
that, one source is read on in batches of other sizes and one by one, and goes back, without another being made. Some
legs are read from where `materialize` wrote what the first transforms make, and go on from a live one's state.

`--case '{...}'` runs one case again; a failing one is made smaller and printed so. The exit code is 1 where any
differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from datarax_ray import Pipeline
from datarax_ray.feed.flow import Arrived, Lost, Pool
from datarax_ray.feed.source import Source
from datarax_ray.read.block import Block
from datarax_ray.read.block_cache import BlockCache
from datarax_ray.read.errors import RecordError
from tests.fuzz import stream_oracle
from tests.fuzz.stream_cases import NEW_WEIGHTS, SOURCES, Case, Leg, Read, draw, make_source, packing_of, smaller

# A case takes some 20 ms in one process; one that waits for so long waits for ever.
HANG_S = 120.0
# A long run over real actors is ended when there is no time left: what it did until then is known.
SAY_EVERY_S = 60.0


class Actors:
    """Stand-ins for reader actors: each has a copy of the source that came by pickle, and keeps shared blocks."""

    def __init__(self, description: Any) -> None:
        self._pickled = cloudpickle.dumps(description)
        self._made: dict[int, tuple[Any, BlockCache]] = {}
        self._lock = threading.Lock()  # trainers ask from threads of their own

    def read(self, actor: int, request: Any) -> Any:
        with self._lock:
            if actor not in self._made:
                self._made[actor] = pickle.loads(self._pickled), BlockCache(2**20)
            description, shared = self._made[actor]
            return shared.answer(request, description.read)

    def lose(self, actor: int) -> None:
        with self._lock:
            self._made.pop(actor, None)


class TangledPool(Pool):
    """Answers in any order, loses parts, and changes its actors all the time; see feed.flow.Pool.

    Actors stand on two nodes in turns. In half of the pools the second one lacks the data now and then.
    """

    def __init__(self, actors: Actors, num_actors: int, seed: int) -> None:
        self._actors = actors
        self._num_actors = num_actors
        self._random = random.Random(seed)
        self._running = list(range(num_actors))
        self._fails = 0.3 * self._random.randrange(2)

    def actors(self) -> tuple[int, ...]:
        if self._random.random() < 0.2:
            count = self._random.randint(0, self._num_actors)
            self._running = sorted(self._random.sample(range(self._num_actors), count))
            if self._fails and 0 not in self._running:  # somebody has the data
                self._running.insert(0, 0)
        return tuple(self._running)

    def nodes(self) -> dict[int, str]:
        return {actor: _node(actor) for actor in self._running}

    def blame(self, node: str, reason: str) -> None:
        assert (node, self._fails > 0) == (_node(1), True), f"{node} is blamed: {reason}"

    def allowance(self) -> float:
        return self._random.choice((0.001, 0.5, 1.0))

    def weights(self) -> dict[int, float]:
        return {actor: self._random.choice([0.5, 2.0]) for actor in self._running[::2]}

    def receive(self, sent: Any) -> Any:
        if self._random.random() < 0.1:
            return None
        part = self._random.choice(list(sent))
        if part.attempt < 2 and self._random.random() < 0.2:
            self._actors.lose(part.actor)
            return Lost(part, "lost on purpose")
        node = _node(part.actor)
        if node == _node(1) and self._random.random() < self._fails:
            failure = FileNotFoundError("no such mount")
            return Arrived(part, Block(np.empty(0, np.int64), None, (), failure, part.request.start), node)
        return Arrived(part, self._actors.read(part.actor, part.request), node)

    def lost(self, sent: Any) -> list[Any]:
        if self._random.random() < 0.9:
            return []
        return [Lost(part, "all at once", was_read=False) for part in sent]

    def ended(self, sent: Any) -> list[Any]:
        return [part for part in sent if self._random.random() < 0.1]  # which may be lost yet


def _node(actor: int) -> str:
    return f"node {actor % 2}"


class Tangled(Source):
    """A source over a tangled pool, with a leg's options, as RaySource has them."""

    def __init__(self, source: Any, actors: Actors, leg: Leg, seed: int) -> None:
        super().__init__(source.describe(), TangledPool(actors, leg.num_actors, seed))
        self._leg = leg

    def _bounded(self, options: Any) -> Any:
        return replace(options, chunk_size=self._leg.chunk_size, shares_actors=self._leg.shares)


class InProcess:
    """Where legs run in this process, over tangled pools. num_batches: that came so far, of all cases."""

    num_batches = 0

    def trainers(self, case: Case, leg: Leg, make: Callable[[], Any], seed: int, stack: ExitStack) -> list[Any]:
        actors = Actors(make().describe())
        return [Tangled(make(), actors, leg, seed + rank) for rank in range(leg.num_trainers)]

    def disturb(self, source: Any, rng: random.Random) -> None:
        self.num_batches += 1


class OnRay:
    """Where legs run over real actors, some of which are killed, added and removed."""

    def __init__(self) -> None:
        self._number = 0
        self.num_batches = 0

    def trainers(self, case: Case, leg: Leg, make: Callable[[], Any], seed: int, stack: ExitStack) -> list[Any]:
        from datarax_ray import RaySource

        self._number += 1
        name = f"fuzz-{os.getpid()}-{self._number}" if leg.shares and leg.num_trainers > 1 else None
        count = min(leg.num_actors, 3)
        source = make()
        return [
            stack.enter_context(
                RaySource(source, num_actors=count, num_cpus=0.01, chunk_size=leg.chunk_size, name=name)
            )
            for _ in range(leg.num_trainers)
        ]

    def disturb(self, source: Any, rng: random.Random) -> None:
        self.num_batches += 1
        what = rng.random()
        if what < 0.15:
            running = list(source.stats().values())
            if running:
                os.kill(rng.choice(running)["pid"], signal.SIGKILL)
        elif what < 0.2:
            source.add_actors(1)
        elif what < 0.25 and source.num_actors > 1:
            source.remove_actors(1)


def check(case: Case, directory: Path, where: Any) -> None:
    """Run the case. Raises: AssertionError, or whatever the stream raises, where it is not the plain loop's."""
    make = partial(make_source, directory, case)
    want = stream_oracle.wanted(case, getattr(make().describe().order, "records", None))
    if want.is_empty:
        return  # that a stream of nothing may be an error has tests of its own
    if case.reads:
        alone = replace(case, batch_size=1, ending="short", packing=None, skip=(), reweighted=None)
        _check_reads(alone, directory, where)
    states: list[str] = []
    taken = 0
    for number, leg in enumerate(case.legs):
        rng = random.Random(f"{case.seed} {number}")
        with ExitStack() as stack:
            its = partial(make_source, directory, case, number)
            sources = where.trainers(case, leg, its, rng.randrange(2**32), stack)
            pipelines = [
                stack.enter_context(_pipeline(case, source, rank, leg.num_trainers))
                for rank, source in enumerate(sources)
            ]
            if states:
                for pipeline in pipelines:
                    pipeline.set_state(json.loads(states[-1]))
            elif case.skip or case.reweighted is not None:
                stop = pipelines[0].source.describe().stop
                skip = [(a, b if stop is None else min(b, stop)) for a, b in case.skip if stop is None or a < stop]
                weights = None if case.reweighted is None else NEW_WEIGHTS
                for pipeline in pipelines if skip or weights else ():  # what is behind the end is refused
                    pipeline.amend(skip=skip, weights=weights, at=case.reweighted)
            taken, is_over = _run_leg(case, leg, want, taken, sources, pipelines, where, rng, stack)
            if is_over and want.failed_at is not None:
                return
            saved = [pipeline.get_state() for pipeline in pipelines]
            found = {
                json.dumps(state | {"evidence": None}, sort_keys=True) for state in saved
            }  # of each one's own rows
            assert len(found) == 1, f"trainers have other states after leg {number}: {found}"
            states.append(json.dumps(rng.choice(saved), sort_keys=True))
            assert len(states[-1]) < 4096
            if is_over:
                _assert_end(case, want, taken, pipelines[0])
                return


def _check_reads(case: Case, directory: Path, where: Any) -> None:
    """One source is read on in batches of other sizes and one by one, and goes back, without another being made.

    case: whose batches are of one row.
    """
    make = partial(make_source, directory, case)
    want = stream_oracle.wanted(case, getattr(make().describe().order, "records", None))
    if want.is_empty:
        return
    rng = random.Random(f"{case.seed} reads")
    leg = replace(case.legs[0], num_trainers=1) if case.legs else Leg(1, 2, False, None, None)
    with ExitStack() as stack:
        (source,) = where.trainers(case, leg, make, rng.randrange(2**32), stack)
        stack.callback(source.close)
        taken, has_jumped = 0, False
        stood = [(0, source.position, json.dumps(source.get_state()))]
        for read in case.reads:
            if read.how in ("seek", "set_state"):
                taken, position, state = stood[-1 - read.size % len(stood)]
                if read.how == "seek" and "offset" not in json.loads(state).get("rest", {}):
                    source.seek(position)
                else:
                    source.set_state(json.loads(state))
                has_jumped = True
                continue
            for _ in range(read.count):
                size = 1 if read.how == "element" else read.size
                got = _read(source, read)
                rows = want.batches[taken : taken + size]
                if len(rows) < size and want.failed_at is not None:
                    assert isinstance(got, RecordError), f"{read} behind {taken} gives {got}, and no error"
                    assert got.position == want.failed_at
                    break
                assert not isinstance(got, RecordError), f"{read} behind {taken} raised {got!r}"
                assert (got is None) == (not rows), f"{read} behind {taken} of {len(want.batches)}: {got}"
                if got is None:
                    break
                columns = {key: [row[key][0] for row, _ in rows] for key in rows[0][0]}
                _assert_batch(case, got, columns, len(rows), 0, 1, taken)
                taken += len(rows)
                stood.append((taken, source.position, json.dumps(source.get_state())))
                where.disturb(source, rng)
        is_at_end = taken == len(want.batches) and want.failed_at is None
        assert not is_at_end or has_jumped or source.num_skipped == want.num_skipped, (
            f"num_skipped is {source.num_skipped}, not {want.num_skipped}"
        )


def _read(source: Any, read: Read) -> Any:
    """Columns of what is asked for; None at the end."""
    try:
        if read.how == "batch":
            return source.get_batch(read.size) or None
        return {key: [value] for key, value in source.next_element().items()}
    except StopIteration:
        return None
    except RecordError as error:
        return error


def _pipeline(case: Case, source: Any, rank: int, count: int) -> Pipeline:
    return Pipeline(
        source=source,
        batch_size=case.batch_size,
        packing=packing_of(case),
        drop_remainder=case.ending == "drop",
        pad_remainder=case.ending == "pad",
        process_index=rank,
        process_count=count,
    )


def _run_leg(
    case: Case,
    leg: Leg,
    want: Any,
    taken: int,
    sources: list[Any],
    pipelines: list[Pipeline],
    where: Any,
    rng: random.Random,
    stack: ExitStack,
) -> tuple[int, bool]:
    """(batches taken so far, whether the stream is over) after a leg, in which all trainers step together."""
    pool = stack.enter_context(ThreadPoolExecutor(len(pipelines)))
    done = 0
    while leg.num_batches is None or done < leg.num_batches:
        steps = [pool.submit(_step, pipeline) for pipeline in pipelines]
        got = [step.result(timeout=HANG_S) for step in steps]
        ends = [each for each in got if not isinstance(each, dict)]
        if ends and taken == len(want.batches) and _raise_alone(want, ends):
            return taken, True
        if ends:
            assert len(ends) == len(got), f"trainers differ at batch {taken}: {[type(each) for each in got]}"
            assert taken == len(want.batches), f"the stream ends after {taken} batches of {len(want.batches)}: {got[0]}"
            if want.failed_at is None:
                assert all(each is None for each in got), f"raised at the end: {got}"
            else:
                assert all(isinstance(each, RecordError) for each in got), f"an error of other kind: {got}"
                assert {each.position for each in got} == {want.failed_at}
            return taken, True
        assert taken < len(want.batches), f"a batch more than the {len(want.batches)}: {got[0]}"
        for rank, part in enumerate(got):
            _assert_batch(case, part, *want.batches[taken], rank, len(got), taken)
        taken, done = taken + 1, done + 1
        where.disturb(sources[rng.randrange(len(sources))], rng)
    return taken, False


def _raise_alone(want: Any, ends: list[Any]) -> bool:
    """Whether these met broken records, one of them the first; who reads its own rows learns of no other's."""
    return (
        want.failed_at is not None
        and all(isinstance(each, RecordError) for each in ends)
        and min(each.position for each in ends) == want.failed_at
    )


def _step(pipeline: Pipeline) -> Any:
    try:
        return pipeline.step()
    except StopIteration:
        return None
    except RecordError as error:
        return error


def _assert_batch(case: Case, got: Any, columns: Any, num_rows: int, rank: int, count: int, number: int) -> None:
    total = len(next(iter(columns.values())))
    lo, hi = rank * total // count, (rank + 1) * total // count
    got = dict(got)
    if case.ending == "pad":
        mask = np.asarray(got.pop("valid_mask"))
        assert mask.tolist() == [row < num_rows for row in range(lo, hi)], f"valid_mask of batch {number}"
    assert sorted(got) == sorted(columns), f"fields of batch {number}"
    for key, values in columns.items():
        column = np.asarray(got[key])
        mine = values[lo:hi][: max(0, num_rows - lo)]
        assert len(column) == hi - lo, f"{key} of batch {number}, trainer {rank}: {len(column)} rows, not {hi - lo}"
        for row, value in enumerate(mine):
            assert np.array_equal(column[row], value), (
                f"{key} in row {lo + row} of batch {number}, trainer {rank} of {count}: {column[row]!r}, not {value!r}"
            )


def _assert_end(case: Case, want: Any, taken: int, pipeline: Pipeline) -> None:
    if want.failed_at is None:
        assert pipeline.num_skipped == want.num_skipped or case.ending == "drop", (
            f"num_skipped is {pipeline.num_skipped}, not {want.num_skipped}"
        )


def outcome(case: Case, directory: Path, where: Any) -> str | None:
    """None where all is right; else what is wrong."""
    found: list[str | None] = []

    def run() -> None:
        try:
            check(case, directory, where)
        except BaseException:
            found.append(traceback.format_exc())
        else:
            found.append(None)

    # a thread, so that a stream that waits for ever is a failure and not the end of the loop
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    seen = -1
    while not found and seen != where.num_batches:  # hundreds of batches with actors killed take minutes
        seen = where.num_batches
        thread.join(HANG_S)
    return found[0] if found else f"no batch within {HANG_S:g} s"


def shrink(case: Case, directory: Path, where: Any, *, seconds: float = 60.0) -> Case:
    """A smaller case that fails too."""
    end = time.monotonic() + seconds
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for less in smaller(case):
            if time.monotonic() > end:
                return case
            if outcome(less, directory, where) is not None:
                case, is_smaller = less, True
                break
    return case


def cases(seed: int, kinds: list[str]) -> Iterator[tuple[int, Case]]:
    number = seed
    while True:
        yield number, draw(random.Random(f"streams {number}"), kinds=kinds)
        number += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next ones follow it")
    parser.add_argument("--kind", action="append", choices=sorted(SOURCES))
    parser.add_argument("--ray", action="store_true", help="over real actors")
    parser.add_argument("--case", type=Case.from_json)
    parser.add_argument(
        "--without", action="append", default=[], help="leave out cases with this step, kind or packing"
    )
    parser.add_argument("--max-failures", type=int, default=10)
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    logging.getLogger("datarax_ray").setLevel(
        logging.CRITICAL
    )  # skipped records and lost actors are what is meant here
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        directory = Path(scratch)
        where: Any = InProcess()
        if args.ray:
            from tests.clusters import LocalRay  # its workers are forked, which is most of the time of killed actors

            local = LocalRay()
            stack.callback(local.end)
            local.begin()
            where = OnRay()
        if args.case:
            wrong = outcome(args.case, directory, where)
            print(wrong or "equal")
            return int(wrong is not None)
        return _loop(args, directory, where)


def _loop(args: argparse.Namespace, directory: Path, where: Any) -> int:
    begin = time.monotonic()
    counts: Counter[str] = Counter()
    num_failed, said = 0, begin
    print(f"seed {args.seed}, {args.configs} configurations", flush=True)
    for number, case in cases(args.seed, args.kind or sorted(SOURCES)):
        if number - args.seed == args.configs or num_failed == args.max_failures:
            break
        if {*case.steps, case.kind, case.packing} & set(args.without):
            continue
        wrong = outcome(case, directory, where)
        counts[case.kind] += 1
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            print(f"{counts.total():,} configurations, {where.num_batches:,} batches, {said - begin:.0f} s", flush=True)
        if wrong is not None:
            num_failed += 1
            less = shrink(case, directory, where)
            print(
                f"\ncase {number} differs:\n{outcome(less, directory, where) or wrong}\n--case '{less.to_json()}'",
                flush=True,
            )
    total, took = sum(counts.values()), time.monotonic() - begin
    print(
        f"{total:,} configurations, differences: {num_failed}; {took:.0f} s; "
        + ", ".join(f"{k} {n:,}" for k, n in sorted(counts.items()))
    )
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
