"""The wait for data that is ended for all trainers or for none: whatever comes meanwhile, the state is that of both."""

from __future__ import annotations

import threading

import pytest
from data_wait import DataWait

from datarax_ray import Pipeline
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.cluster.conftest import until

# Two batches to a chunk, and three chunks: nothing of a chunk is given before all of it is read.
BATCH_SIZE, NUM_RECORDS = 8, 48
ALL = [[*range(start, start + BATCH_SIZE)] for start in range(0, NUM_RECORDS, BATCH_SIZE)]


class Gated:
    """Numbers, those from `closed_from` on only once the gate is open."""

    def __init__(self, closed_from):
        self.closed_from, self.gate = closed_from, threading.Event()

    def __len__(self):
        return NUM_RECORDS

    def __getitem__(self, index):
        assert index < self.closed_from or self.gate.wait(60)
        return {"x": index}


class Trainer:
    """One that takes batches in a thread of its own, to the end. step: behind which it is."""

    def __init__(self, closed_from):
        self.numbers, self.wait, self.step = Gated(closed_from), DataWait(), 0
        self.pipeline = make(self.numbers)
        self.seen: list[list[int]] = []
        self.thread = threading.Thread(target=self.train)
        self.thread.start()

    def train(self):
        try:
            while (batch := self.wait.batch(self.pipeline, self.step)) is not None:
                self.seen.append(batch["x"].tolist())
                self.step += 1
        except StopIteration:
            pass


def make(numbers):
    config = RandomAccessSourceConfig(num_epochs=1)
    return Pipeline(source=RandomAccessSource(config, numbers), batch_size=BATCH_SIZE)


def rest(pipeline):
    """What a pipeline gives that goes on from the state of this one."""
    again = make(Gated(NUM_RECORDS))
    again.set_state(pipeline.get_state())
    return [batch["x"].tolist() for batch in again]


@pytest.fixture
def trainers():
    made = []

    def make_all(*closed_from):
        made.extend(Trainer(each) for each in closed_from)
        for trainer in made:
            until(lambda trainer=trainer: trainer.step == trainer.numbers.closed_from // BATCH_SIZE, "the wait")
        return made

    yield make_all
    for trainer in made:
        trainer.numbers.gate.set()
        trainer.thread.join(60)


def held(all_trainers):
    """Phase one: where each waits, once it does. A trainer that has a batch is not at the next at once."""
    return [until(trainer.wait.hold, "a wait to hold") for trainer in all_trainers]


def test_a_wait_for_the_same_batch_is_ended_for_all_behind_the_last_one(trainers):
    waiting = trainers(16, 16)
    assert held(waiting) == [2, 2]
    for trainer in waiting:
        trainer.wait.decide(ends=True)
        for each in waiting:  # the first wait is ended before anything comes, the other perhaps behind that
            each.numbers.gate.set()
        trainer.thread.join(60)
        assert trainer.seen == ALL[:2]
        assert rest(trainer.pipeline) == ALL[2:]


def test_who_waits_for_another_batch_goes_on_and_so_do_all(trainers):
    waiting = trainers(16, 32)
    assert held(waiting) == [2, 4]
    for trainer in waiting:
        trainer.wait.decide(ends=False)
        trainer.numbers.gate.set()
        trainer.thread.join(60)
        assert not trainer.wait.has_ended
        assert trainer.seen == ALL


@pytest.mark.parametrize("ends", [True, False])
def test_a_batch_that_comes_while_the_wait_is_held_is_used_only_if_all_go_on(trainers, ends):
    (trainer,) = trainers(16)
    assert held([trainer]) == [2]
    trainer.numbers.gate.set()
    until(lambda: trainer.pipeline.position == 24, "the batch")
    assert trainer.step == 2
    assert trainer.thread.is_alive()
    trainer.wait.decide(ends=ends)
    trainer.thread.join(60)
    assert trainer.seen == (ALL[:2] if ends else ALL)
    assert rest(trainer.pipeline) == (ALL[2:] if ends else [])


def test_nothing_is_held_where_nobody_waits_and_nothing_is_decided_twice(trainers):
    wait = DataWait()
    assert wait.hold() is None
    wait.decide(ends=True)
    assert not wait.has_ended
    (trainer,) = trainers(16)
    trainer.wait.decide(ends=True)  # it was not asked whether it waits
    assert not trainer.wait.has_ended
    assert held([trainer]) == [2]
    trainer.numbers.gate.set()
    trainer.wait.decide(ends=True)
    trainer.wait.decide(ends=False)
    trainer.thread.join(60)
    assert trainer.wait.has_ended
    assert trainer.seen == ALL[:2]


def test_a_batch_of_the_record_that_the_last_one_is_of_has_come_though_the_position_stays():
    moved, gate = threading.Event(), threading.Event()

    class Fanned:
        position, offset = 7, 0

        def get_state(self):
            return {"position": self.position, "offset": self.offset}

        def step(self):
            self.offset = 8
            moved.set()
            assert gate.wait(60)
            return "batch"

    wait, pipeline, seen = DataWait(), Fanned(), []
    thread = threading.Thread(target=lambda: seen.append(wait.batch(pipeline, 2)))
    thread.start()
    assert moved.wait(60)
    assert wait.hold() is None
    gate.set()
    thread.join(60)
    assert seen == ["batch"]
