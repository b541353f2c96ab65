"""`datarax-ray simulate`: how a cluster would serve its trainers, by the code that decides on a real one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from datarax_ray.cli.screen import Screen
from datarax_ray.simulate.pool import Costs
from datarax_ray.simulate.scenario import Fault, Found, Scenario
from datarax_ray.simulate.scenario import run as run_scenario

# A trainer that waits for less of its time hardly waits.
HARDLY = 0.02
# Numbers of actors to try, as multiples of the fewest that can read enough, until trainers hardly wait.
_TRIED = 1.0, 1.1, 1.25, 1.5, 2.0
_WARM_S = 30.0
# If the most actors still wait for more than this part of the wait of the fewest, more actors do not help.
_HELPED = 0.8
# A driver that computes for more of its time is at its limit; the simulation's costs are no more exact than this.
_BUSY_DRIVER = 0.9


@dataclass(frozen=True)
class Outcome:
    """The result for a number of actors. found: the figures, with the rate and wait of a long run."""

    num_actors: int
    num_hosts: int
    found: Found


def simulate(
    *,
    rate: float,
    record_size: int,
    num_actors: str | None,
    actors_per_host: int,
    network: int,
    storage: int | None,
    stored_size: int | None,
    object_store: int,
    fault: list[str] | None,
    restart: float,
    seconds: float,
    screen: Screen,
    **options: Any,
) -> int:
    """Simulate the cluster of these options, which are those of the command; see run. options: fields of Scenario.

    Raises: ValueError for options that do not fit together.
    """
    costs = Costs(
        record_s=1 / rate,
        record_nbytes=record_size,
        stored_nbytes=stored_size or record_size,
        link_nbytes_per_s=network,
        storage_nbytes_per_s=storage or math.inf,
        store_nbytes=object_store,
        start_s=restart,
    )
    faults = tuple(map(fault_of, fault or []))
    options |= {"actors_of_host": actors_per_host, "faults": faults, "warm_s": _WARM_S, "measured_s": seconds}
    scenario = Scenario("", num_actors=1, costs=costs, **options)
    return run(scenario, numbers_of(num_actors, scenario), screen, ends_early=num_actors is None)


def fault_of(text: str) -> Fault:
    """A fault of KIND@SECOND:WHICH. Raises: ValueError for another text."""
    found = re.fullmatch(r"(kill|freeze|leave|host|join)@([0-9]+\.?[0-9]*)(?::([0-9]+))?", text)
    if found is None:
        raise ValueError(
            f"{text!r} is no fault; write kill@60:3 (actor 3, at 60 s), freeze@60:3, leave@60:3, host@60:0 or join@60"
        )
    return Fault(float(found[2]), found[1], int(found[3] or 0))


def numbers_of(text: str | None, scenario: Scenario) -> list[int]:
    """The numbers of actors to try: those of the text, else upwards from the fewest that can read what is needed.

    Raises: ValueError where neither is given, and for a fault of an actor that does not exist.
    """
    if text is not None:
        if not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", text):
            raise ValueError(f"{text!r} is no number of actors, nor several, such as 8,16,32")
        numbers = sorted({int(number) for number in text.split(",")})
    elif scenario.need is None:
        raise ValueError("the number of actors is unknown: give --num-actors, or --need to derive it")
    else:
        least = scenario.need * scenario.costs.record_s + 0.9 * scenario.slow
        numbers = sorted({math.ceil(least * factor) for factor in _TRIED})
    for fault in scenario.faults:
        first = fault.actor * (scenario.actors_of_host if fault.kind == "host" else 1)
        if fault.kind != "join" and first >= numbers[0]:
            raise ValueError(
                f"{fault.kind}@{fault.at_s:g}:{fault.actor} names none of {numbers[0]} actors; they count from 0"
            )
    return numbers


def run(scenario: Scenario, numbers: Iterable[int], screen: Screen, *, ends_early: bool) -> int:
    """Try the numbers of actors and print the outcomes, even after an interrupt.

    ends_early: stop at the first number with which trainers hardly wait.
    Returns the exit status: 1 where trainers wait with every number.
    """
    outcomes: list[Outcome] = []
    try:
        with Progress(TextColumn("{task.description}"), BarColumn(), console=screen.err, transient=True) as shown:
            for number in numbers:
                task = shown.add_task(f"{number} actors", total=scenario.warm_s + scenario.measured_s)
                found = run_scenario(
                    replace(scenario, num_actors=number),
                    lambda at, task=task: shown.update(task, completed=at),  # type: ignore[misc]
                )
                shown.remove_task(task)
                outcomes.append(outcome_of(scenario, number, found))
                if ends_early and outcomes[-1].found.wait < HARDLY:
                    break
    finally:
        if outcomes:
            lines = advice(scenario, outcomes)
            tried = [asdict(outcome, dict_factory=_finite) for outcome in outcomes]
            screen.answer({"tried": tried, "advice": lines}, _report(scenario, outcomes, lines))
    return int(scenario.need is not None and all(each.found.wait >= HARDLY for each in outcomes))


def outcome_of(scenario: Scenario, num_actors: int, found: Found) -> Outcome:
    """The outcome of a long run: records that were read before the measured time do not count into its rate."""
    could = _most_per_s(scenario, num_actors)
    wait = max(found.wait, 1 - could / (scenario.need or could))
    found = replace(found, records_per_s=min(found.records_per_s, could), wait=wait)
    return Outcome(num_actors, math.ceil(num_actors / scenario.actors_of_host), found)


def _report(scenario: Scenario, outcomes: list[Outcome], lines: list[str]) -> Iterator[RenderableType]:
    waits = ["waits", "longest"] if scenario.need is not None else []
    names = ["actors", "hosts", "records/s", *waits, "GB in\nflight", "requests\n/s", "driver's\nCPU"]
    table = Table(box=None, padding=(0, 0, 0, 2))
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for outcome in outcomes:
        found = outcome.found
        table.add_row(
            f"{outcome.num_actors:,}",
            f"{outcome.num_hosts:,}",
            f"{found.records_per_s:,.0f}",
            *([f"{found.wait:.1%}", f"{found.longest_s:.1f} s"] if waits else []),
            f"{found.nbytes / 1e9:.1f}",
            f"{found.requests_per_s:.0f}",
            f"{found.driver:.0%}",
        )
    yield table
    if scenario.num_trainers > 1:
        yield "bytes in flight, requests and CPU are those of one trainer"
    yield from lines


def _finite(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dict with None for infinity, which JSON cannot hold."""
    return {name: None if value == math.inf else value for name, value in items}


def advice(scenario: Scenario, outcomes: list[Outcome]) -> list[str]:
    """The number of actors that is enough, or why none is."""
    most, rate = outcomes[-1], outcomes[-1].found.records_per_s
    enough = next((each for each in outcomes if each.found.wait < HARDLY), None)
    lines = []
    if scenario.need is None:
        part = rate / _most_per_s(scenario, most.num_actors)
        lines.append(f"{_actors(most.num_actors)}: {rate:,.0f} records/s, {part:.0%} of what they could read")
    elif enough is None:
        waits = f"with {_actors(most.num_actors)} trainers wait {most.found.wait:.0%} of their time"
        lines.append(f"{waits}: {_bottleneck(scenario, outcomes)}")
    else:
        hosts = "1 host" if enough.num_hosts == 1 else f"{enough.num_hosts:,} hosts"
        waits = f"trainers wait {enough.found.wait:.1%} of their time"
        lines.append(f"enough: {_actors(enough.num_actors)} on {hosts}; {waits}")
    if scenario.faults:
        longest = max(outcomes, key=lambda each: each.found.longest_s)
        lines.append(
            f"the longest wait through the faults: {longest.found.longest_s:.1f} s, with {_actors(longest.num_actors)}"
        )
    lasts = f"{scenario.num_records / rate / 3600:,.1f} h" if rate else "no end"
    return [*lines, f"an epoch of {scenario.num_records:,} records takes {lasts} with {_actors(most.num_actors)}"]


def _actors(number: int) -> str:
    return "1 actor" if number == 1 else f"{number:,} actors"


def _most_per_s(scenario: Scenario, num_actors: int) -> float:
    """The records a second that this many actors, and those that join them, can read and transfer."""
    num_joined = sum(fault.kind == "join" for fault in scenario.faults)
    return replace(scenario, num_actors=num_actors + num_joined).most_per_s


def _bottleneck(scenario: Scenario, outcomes: list[Outcome]) -> str:
    """Why trainers wait with the most actors: the first limit on the way that is below their need."""
    outcome = outcomes[-1]
    costs, need, found = scenario.costs, scenario.need or 0.0, outcome.found
    stored = costs.storage_nbytes_per_s / costs.stored_nbytes
    network = scenario.num_trainers * costs.link_nbytes_per_s / costs.record_nbytes
    could = _most_per_s(scenario, outcome.num_actors)
    if stored < need:
        return f"the storage gives {stored:,.0f} records/s; more actors do not help"
    if network < need:
        return f"the network brings {network:,.0f} records/s to the trainers' hosts"
    if could < need:
        return f"these actors read {could:,.0f} records/s at most"
    if found.driver * need > _BUSY_DRIVER * found.records_per_s:  # at the rate that is needed
        return "a trainer's process has no CPU left; let several trainers share the rows, or make records smaller"
    asking_s, ahead_s = outcome.num_actors * costs.request_s, scenario.prefetch * scenario.global_batch_size / need
    if 2 * found.requests_per_s * (asking_s - ahead_s) > found.wait * outcome.num_actors:
        return (
            f"requests to {_actors(outcome.num_actors)} take {1e3 * asking_s:,.0f} ms, and the batches made ahead last "
            f"{1e3 * ahead_s:,.0f} ms; make more (--prefetch, Pipeline's prefetch=) or larger ones (--batch-size)"
        )
    if scenario.faults:
        return f"the faults cost that time, at most {found.longest_s:.1f} s at once"
    if len(outcomes) > 1 and found.wait > _HELPED * outcomes[0].found.wait:
        idle = f"these are idle for {found.idle:.0%} of their time"
        return f"more actors than {outcomes[0].num_actors:,} do not help; {idle}"
    return "some requests take much longer than others; try more actors (--num-actors)"
