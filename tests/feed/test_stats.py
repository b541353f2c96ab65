"""Where the time goes: seconds are counted once, and the verdict names what the others wait for."""

import dataclasses
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from datarax_ray.actors.recovery import counts_of
from datarax_ray.feed.stats import ActorWork, PipelineStats, Timings
from datarax_ray.feed.timeline import page
from datarax_ray.read.block import Block
from datarax_ray.read.laps import WorkDone

# 101 batches: 1 s for the first, 10 s for the others; four actors that were at work for 40 of their 44 s
BOUND_BY_ACTORS = PipelineStats(
    num_batches=101,
    num_records=10_100,
    first_s=1.0,
    elapsed_s=10.0,
    waited_s=6.0,
    making={"waiting": 9.0, "assembling": 0.5, "placing": 0.5},
    reading={"reading": 8.0, "DecodeImage": 30.0, "stacking": 2.0},
    actors={index: ActorWork(25, 2525, 11 * 2**20, 10.0, 10.0, 0, 606, 1919, 212 * 2**20, 11.0) for index in range(4)},
    num_actors=4,
)


def but(up_s=11.0, busy_s=10.0, **changes):
    work = ActorWork(25, 2525, 11 * 2**20, busy_s, busy_s, up_s=up_s)
    return dataclasses.replace(BOUND_BY_ACTORS, **{"actors": dict.fromkeys(range(4), work), **changes})


@pytest.mark.parametrize(
    ("stats", "verdict"),
    [
        # its own work takes 4 s, in which 100 batches of 40 / 101 s each need 39.6 / 4 / 0.9 = 11.001 actors
        (BOUND_BY_ACTORS, "bound by DecodeImage in the actors (75% of the reading): 8 more actors would keep"),
        (but(waited_s=9.99), "in the actors (75% of the reading): more actors would help"),
        (but(elapsed_s=60.0, at_work_while_waiting=0.9), "(75% of the reading): more actors would help"),
        (but(waited_s=0.1), "bound by the trainer, which waits 1.0% of its time"),
        (
            but(waited_s=0.55, busy_s=0.25, reading={"reading": 1.0}),
            "5.5% of its time. The 4 actors are at work for 2%; 1 would do",
        ),
        (
            but(busy_s=1.0, reading={"reading": 4.0}),
            "from the actors to here: the trainer waits 60% of its time, and whi",
        ),
        (
            but(busy_s=1.0, reading={"reading": 4.0}, num_lost=9),
            "(max_nbytes=). 9 requests were lost with their actors: see timel",
        ),
        (but(making={"waiting": 1.0, "assembling": 7.0, "placing": 2.0}), "assembling batches for 64% of the time"),
        (but(making={"waiting": 1.0, "placing": 9.0}, has_stages=True), "smaller fields, and make the stages cheaper"),
        (but(making={"waiting": 1.0, "placing": 9.0}), "placing batches for 82% of the time: use larger batches"),
        (but(num_running=2, num_actors=8), "in the actors (75% of the reading): 2 of 8 actors run; the oth"),
        (but(up_s=25.0), "the trainer waits 60% of its time, and while it waits the actors are at work for 40%"),
        (but(up_s=25.0, at_work_while_waiting=0.9), "bound by DecodeImage in the actors (75% of the reading): 8 more"),
        (but(at_work_while_waiting=0.4), "and while it waits the actors are at work for 40%"),
        (but(num_actors=0, actors={}), "bound by DecodeImage (75% of the reading), in this process: use RaySource("),
        (but(num_batches=2), "too early to say: 2 batches"),
        (but(elapsed_s=0.25, waited_s=0.2), "too early to say: 101 batches, 0.25 s since the first; ask again after 3"),
    ],
)
def test_the_verdict_names_what_the_others_wait_for(stats, verdict):
    assert verdict in stats.verdict
    assert str(stats).startswith(stats.verdict)


def test_the_documents_show_what_is_printed():
    printed = str(BOUND_BY_ACTORS)
    page = Path(__file__).parents[2] / "docs" / "operations" / "where-the-time-goes.md"
    assert printed in page.read_text()
    shown = []
    BOUND_BY_ACTORS._repr_pretty_(SimpleNamespace(text=shown.append), False)
    assert shown == [str(BOUND_BY_ACTORS)]


def test_what_is_counted_is_what_happened():
    now = [0.0]
    timings = Timings(lambda: now[0], lambda: now[0])
    assert "too early" in str(timings.stats(2))

    def batch(making_s, training_s):
        began = now[0]
        with timings.making.lap("assembling"), timings.making.lap("waiting"):
            now[0] += making_s
        timings.taken(now[0] - began, 10)
        now[0] += training_s

    batch(3.0, 1.0)
    batch(2.0, 1.0)
    batch(0.5, 1.0)
    spent = {"reading": 2.0, "crop": 1.0}
    timings.arrived(1, Block(np.arange(10), {"x": np.zeros((10, 4), np.uint8)}, spent=spent))
    timings.lost(1)
    timings.arrived(1, Block(np.arange(5), None, whole_nbytes=7, spent={"reading": 1.0}))
    assert timings.stats(2) == PipelineStats(
        num_batches=3,
        num_records=30,
        first_s=3.0,
        elapsed_s=4.5,
        waited_s=2.5,
        making={"waiting": 5.5, "assembling": 0.0},
        reading={"reading": 3.0, "crop": 1.0},
        actors={1: ActorWork(2, 15, 47, 4.0, 4.0, up_s=3.0)},
        num_actors=2,
        start_s=5.5,
        num_lost=1,
        at_work_while_waiting=pytest.approx(1.0),
    )


def told(process, num_blocks, read_s, **more):
    return WorkDone(process, num_blocks, 10 * num_blocks, read_s, **more)


def block(done, read_s=1.0):
    return Block(np.arange(10), None, spent={"reading": read_s}, done=done)


def test_what_an_actor_does_for_others_counts_as_its_work():
    timings = Timings(lambda: 0.0, lambda: 9.0)
    timings.arrived(0, block(told("a", 1, 1.0)))
    timings.arrived(0, block(told("a", 4, 6.0, num_retries=2, num_from_memory=30, max_rss_nbytes=5)))
    timings.arrived(0, block(told("a", 3, 5.0, num_retries=1)))  # which was read before the last
    timings.arrived(0, block(told("b", 1, 1.0, num_retries=1, num_from_storage=10, max_rss_nbytes=4)))  # in its place
    timings.arrived(1, block(told("c", 100, 70.0, num_retries=9)))  # which others had before
    timings.arrived(1, block(told("c", 102, 72.0, num_retries=9)))
    assert timings.stats(2).actors == {
        0: ActorWork(4, 40, 0, 4.0, 7.0, 3, num_from_memory=30, num_from_storage=10, max_rss_nbytes=5, up_s=1.0),
        1: ActorWork(2, 20, 0, 2.0, busy_s=3.0, up_s=1.0),
    }
    assert timings.stats(2).actors[0].hits == 0.75


def test_actors_that_several_trainers_share_are_at_work_for_all_of_them():
    half = {index: ActorWork(12, 1262, 2**19, 5.0, busy_s=10.0, up_s=11.0) for index in range(4)}
    of_one = but(reading={"DecodeImage": 20.0}, actors=half, part=0.5)
    assert of_one.at_work == pytest.approx(BOUND_BY_ACTORS.at_work)
    assert "8 more actors would keep" in of_one.verdict
    assert ": 1,000 records/s of all trainers, 500 here" in str(of_one)


@pytest.mark.parametrize("seed", range(60))
def test_verdict_table_timeline_and_metrics_give_the_same_figures(seed: int) -> None:
    """A random run: actors start late, are lost, and have read all before the trainer ends; the trainer pauses."""
    rng = random.Random(seed)
    now = [1000.0]
    timings = Timings(lambda: now[0], lambda: now[0])
    actors, pace, speed = range(rng.randint(1, 4)), rng.choice([0.02, 0.3, 1.0]), rng.uniform(0.05, 1.0)
    up_s: dict[int, float] = {}
    busy_s = dict.fromkeys(actors, 0.0)
    there: set[int] = set()
    back_at = dict.fromkeys(actors, 0)
    waited_s = own_s = 0.0
    num_steps = rng.randint(10, 80)
    for step in range(num_steps):
        took = rng.uniform(0.2, 2.0)
        now[0] += took
        has_read_all = step > num_steps * 0.6 and seed % 2
        for actor in actors:
            read_s = 0.0
            if back_at[actor] <= step and not has_read_all and rng.random() < speed:
                read_s = rng.uniform(0.0, took)
                timings.arrived(actor, Block(np.arange(10), None, spent={"reading": read_s}, read_at=now[0]))
                busy_s[actor] += read_s
            if read_s or actor in there:
                up_s[actor] = up_s.get(actor, 0.0) + (took if actor in there else read_s)
                there.add(actor)
            if actor in there and rng.random() < 0.05:
                timings.lost(actor)
                there.remove(actor)
                back_at[actor] = step + 3
        wait_s = took * pace * rng.random()
        timings.taken(wait_s if step else took, 10)
        waited_s, own_s = waited_s + bool(step) * wait_s, own_s + bool(step) * (took - wait_s)
        if rng.random() < 0.1:
            timings.interrupted()
            now[0] += 50.0
            timings.taken(0.0, 10)
    stats = timings.stats(len(actors))
    assert (stats.waited_s, stats.elapsed_s) == pytest.approx((waited_s, waited_s + own_s))
    assert {actor: work.up_s for actor, work in stats.actors.items()} == pytest.approx(
        up_s,
        abs=4 * timings.timeline.until(now[0]).bin_s,  # a pause may begin and end in the middle of a bin
    )
    assert stats.at_work == pytest.approx(sum(busy_s.values()) / (sum(w.up_s for w in stats.actors.values()) or 1.0))

    table = {int(actor): share for actor, share in re.findall(r"^(\d+) .* s +\d+% +(\d+%) ", str(stats), re.M)}
    assert table == {actor: f"{work.busy_s / work.up_s:.0%}" for actor, work in stats.actors.items()}
    drawn = page(timings.timeline.until(now[0]), stats, "run")
    shares = dict(re.findall(r"<span>([^<]*)</span><svg.*?</svg><span>(\d+%)</span>", drawn))
    assert {actor: shares[f"actor {actor}"] for actor in table} == table
    assert shares.get("all", f"{stats.at_work:.0%}") == f"{stats.at_work:.0%}"
    assert shares["trainer"] == f"{own_s / (own_s + waited_s):.0%}"
    for share in re.findall(r"at work for (\d+%);", stats.verdict):
        assert share == f"{stats.at_work:.0%}"
    counts = counts_of(stats)
    assert counts["trainer", "waiting"] == stats.waited_s
    assert counts.get(("actors", "reading"), 0.0) == pytest.approx(sum(busy_s.values()))
