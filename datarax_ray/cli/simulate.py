"""`datarax-ray simulate`: what a cluster would do for its trainers, by the code that decides there."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from datarax_ray.cli.screen import Screen
from datarax_ray.simulate.scenario import Fault, Found, Scenario
from datarax_ray.simulate.scenario import run as run_scenario
from datarax_ray.simulate.world import Costs

# Of its time, a trainer that waits less hardly waits.
HARDLY = 0.02
# Of the fewest actors that can read what is needed; tried one after the other, until trainers hardly wait.
_TRIED = 1.0, 1.1, 1.25, 1.5, 2.0
_WARM_S = 30.0
# Of the wait of the fewest actors: where the most of them wait longer, more have not helped.
_HELPED = 0.8
# A driver that computes for more of its time cannot be faster; the simulation's costs are not known better.
_BUSY_DRIVER = 0.9


@dataclass(frozen=True)
class Prices:
    """Of a CPU host and of a trainer, an hour; 0 where nobody says."""

    host: float
    trainer: float


@dataclass(frozen=True)
class Outcome:
    """What came of a number of actors. found: its rate and wait as in the long run. per_hour: what hosts and trainers
    cost together, per_million: for so many records (inf where none came), waiting_per_hour: what trainers cost while
    they wait.
    """

    num_actors: int
    num_hosts: int
    found: Found
    per_hour: float
    per_million: float
    waiting_per_hour: float


def scenario_of(*, faults: Sequence[str], **options: Any) -> Scenario:
    """The cluster that is described, of one actor. options: fields of Scenario, and of its Costs.

    Raises: ValueError for a fault that is none.
    """
    costs = Costs(**{each.name: options.pop(each.name) for each in fields(Costs) if each.name in options})
    return Scenario("", 1, faults=tuple(map(_fault, faults)), costs=costs, warm_s=_WARM_S, **options)


def _fault(text: str) -> Fault:
    found = re.fullmatch(r"(kill|freeze|leave|host|join)@([0-9]+\.?[0-9]*)(?::([0-9]+))?", text)
    if found is None:
        raise ValueError(
            f"{text!r} is no fault; write kill@60:3 (actor 3, at 60 s), freeze@60:3, leave@60:3, host@60:0 or join@60"
        )
    return Fault(float(found[2]), found[1], int(found[3] or 0))


def numbers_of(text: str | None, scenario: Scenario) -> list[int]:
    """How many actors to try: those given, else from what the need takes at the least.

    Raises: ValueError where nothing says how many, or a fault is of an actor that is not there.
    """
    if text is not None:
        if not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", text):
            raise ValueError(f"{text!r} is no number of actors, nor several, such as 8,16,32")
        numbers = sorted({int(number) for number in text.split(",")})
    elif scenario.need is None:
        raise ValueError("nothing says how many actors there are: give --num-actors, or --need, of which it follows")
    else:
        least = scenario.need * scenario.costs.record_s + 0.9 * scenario.slow
        numbers = sorted({math.ceil(least * factor) for factor in _TRIED})
    for fault in scenario.faults:
        first = fault.actor * (scenario.actors_of_host if fault.kind == "host" else 1)
        if fault.kind != "join" and first >= numbers[0]:
            raise ValueError(f"{fault.kind}@{fault.at_s:g}:{fault.actor}: {numbers[0]} actors, from 0, have none such")
    return numbers


def run(
    scenario: Scenario,
    numbers: Iterable[int],
    prices: Prices,
    screen: Screen,
    *,
    ends_early: bool,
) -> int:
    """Try the numbers of actors, print what came of them, and return the exit status: 1 where trainers wait with all.

    ends_early: as soon as they hardly wait. What was tried before an interrupt is printed, too.
    """
    outcomes: list[Outcome] = []
    try:
        with Progress(TextColumn("{task.description}"), BarColumn(), console=screen.err, transient=True) as shown:
            for number in numbers:
                task = shown.add_task(f"{number} actors", total=scenario.warm_s + scenario.measured_s)
                found = run_scenario(
                    dataclasses.replace(scenario, num_actors=number),
                    lambda at, task=task: shown.update(task, completed=at),  # type: ignore[misc]
                )
                shown.remove_task(task)
                outcomes.append(outcome_of(scenario, number, found, prices))
                if ends_early and outcomes[-1].found.wait < HARDLY:
                    break
    finally:
        if outcomes:
            said = advice(scenario, outcomes, prices)
            tried = [asdict(outcome, dict_factory=_finite) for outcome in outcomes]
            screen.answer({"tried": tried, "advice": said}, _lines(scenario, outcomes, prices, said))
    return int(scenario.need is not None and all(each.found.wait >= HARDLY for each in outcomes))


def outcome_of(scenario: Scenario, num_actors: int, found: Found, prices: Prices) -> Outcome:
    """What came of it, in money too.

    What was read ahead before the time that is counted comes in it as well: in a short one more than is read.
    """
    could = _most_per_s(scenario, num_actors)
    waits = max(found.wait, 1 - could / (scenario.need or could))
    found = dataclasses.replace(found, records_per_s=min(found.records_per_s, could), wait=waits)
    num_hosts = math.ceil(num_actors / scenario.actors_of_host)
    of_trainers = scenario.num_trainers * prices.trainer
    per_hour = num_hosts * prices.host + of_trainers
    per_million = per_hour / 3600 / found.records_per_s * 1e6 if found.records_per_s else math.inf
    return Outcome(num_actors, num_hosts, found, per_hour, per_million, found.wait * of_trainers)


def _lines(scenario: Scenario, outcomes: list[Outcome], prices: Prices, said: list[str]) -> Iterator[RenderableType]:
    has_need, has_prices = scenario.need is not None, bool(prices.host or prices.trainer)
    names = ["actors", "records/s", *(["waits", "longest"] if has_need else []), "GB in\nflight", "requests\n/s"]
    names += ["driver's\nCPU", *(["price\nan hour", "price\nof 10⁶"] if has_prices else [])]
    table = Table(box=None, padding=(0, 0, 0, 2))
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for outcome in outcomes:
        found = outcome.found
        table.add_row(
            f"{outcome.num_actors:,}",
            f"{found.records_per_s:,.0f}",
            *([f"{found.wait:.1%}", f"{found.longest_s:.1f} s"] if has_need else []),
            f"{found.nbytes / 1e9:.1f}",
            f"{found.requests_per_s:.0f}",
            f"{found.driver:.0%}",
            *([f"{outcome.per_hour:,.2f}", f"{outcome.per_million:,.2f}"] if has_prices else []),
        )
    yield table
    if scenario.num_trainers > 1:
        yield "in flight, requests and CPU are those of one trainer, the others have as much"
    yield from said


def _finite(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """With None for what JSON has no number for."""
    return {name: None if value == math.inf else value for name, value in items}


def advice(scenario: Scenario, outcomes: list[Outcome], prices: Prices) -> list[str]:
    """What follows from what was tried, in words."""
    said = []
    most, rate = outcomes[-1], outcomes[-1].found.records_per_s
    enough = next((each for each in outcomes if each.found.wait < HARDLY), None)
    if scenario.need is None:
        part = rate / _most_per_s(scenario, most.num_actors)
        said.append(f"{_actors(most.num_actors)}: {rate:,.0f} records/s, {part:.0%} of what they could read")
    elif enough is not None:
        hosts = "1 host" if enough.num_hosts == 1 else f"{enough.num_hosts:,} hosts"
        waits = f"trainers wait {enough.found.wait:.1%} of their time"
        said.append(f"enough: {_actors(enough.num_actors)} on {hosts}; {waits}")
    else:
        waits = f"with {_actors(most.num_actors)} trainers wait {most.found.wait:.0%} of their time"
        said.append(f"{waits}: {_bound(scenario, outcomes)}")
    if scenario.need is not None and enough is not None and prices.trainer:
        said.append(
            f"waiting costs {enough.waiting_per_hour:,.2f} an hour then, hosts {enough.num_hosts * prices.host:,.2f}"
        )
    if len(outcomes) > 1 and (prices.host or prices.trainer):
        best = min(outcomes, key=lambda each: each.per_million)
        said.append(f"the cheapest for a million records: {_actors(best.num_actors)}, {best.per_million:,.2f}")
    if scenario.faults:
        longest = max(outcomes, key=lambda each: each.found.longest_s)
        said.append(
            f"the longest wait through the faults: {longest.found.longest_s:.1f} s, with {_actors(longest.num_actors)}"
        )
    lasts = f"{scenario.num_records / rate / 3600:,.1f} h" if rate else "no end"
    return [*said, f"an epoch of {scenario.num_records:,} records takes {lasts} with {_actors(most.num_actors)}"]


def _actors(number: int) -> str:
    return "1 actor" if number == 1 else f"{number:,} actors"


def _most_per_s(scenario: Scenario, num_actors: int) -> float:
    """Records a second that so many actors can have read and brought, with those that join them."""
    num_joined = sum(fault.kind == "join" for fault in scenario.faults)
    return dataclasses.replace(scenario, num_actors=num_actors + num_joined).most_per_s


def _bound(scenario: Scenario, outcomes: list[Outcome]) -> str:
    """Why trainers wait with the last of these: the first thing that gives less than they need."""
    first, outcome = outcomes[0], outcomes[-1]
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
    asking_s, batch_s = outcome.num_actors * costs.request_s, scenario.global_batch_size / need
    if 2 * found.requests_per_s * (asking_s - scenario.prefetch * batch_s) > found.wait * outcome.num_actors:
        ahead_s, enough = scenario.prefetch * batch_s, math.ceil(asking_s / batch_s)
        return (
            f"for each chunk a trainer's process asks {_actors(outcome.num_actors)} and takes their answers, "
            f"{1e3 * asking_s:,.0f} ms without a batch, and those made ahead last {1e3 * ahead_s:,.0f} ms; more actors "
            f"do not help: make {enough:,} ahead (--prefetch, Pipeline's prefetch=), or larger ones (--batch-size)"
        )
    if scenario.faults:
        return f"they lose that to the faults, {found.longest_s:.1f} s at once at most"
    if len(outcomes) == 1:
        return "requests take too unevenly long; to see whether more actors help, try some (--num-actors)"
    if found.wait < _HELPED * first.found.wait:
        return "requests take too unevenly long for so few; more actors would help"
    return f"more actors than {first.num_actors:,} do not help; these are idle for {found.idle:.0%} of their time"
