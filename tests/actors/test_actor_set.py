"""Actors where Ctrl-C or a signal's handler comes in between; what Ray would be told is noted in its place."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import cast

import pytest
import ray

from datarax_ray.actors import actor_set as actor_set_module
from datarax_ray.actors.actor_set import ActorSet, InFlight
from datarax_ray.actors.connection import Connection
from datarax_ray.actors.lifecycle import Kill, Process, Start, Thresholds
from datarax_ray.actors.starting import ActorOptions
from datarax_ray.feed.window import Part
from datarax_ray.plan.partitions import ReadRequest

HANDLE = SimpleNamespace(stats=SimpleNamespace(remote=lambda *_: None))


def look(actors):
    return actors.look(lambda: actors.ready)  # all are admitted


class Told:
    """What Ray was told, each for the first time interrupted."""

    def __init__(self):
        self.calls: list[str] = []

    def start(self, *_):
        self.interrupted_once("start")
        return HANDLE

    def kill(self, handle, no_restart):
        assert handle is HANDLE
        self.interrupted_once("kill for ever" if no_restart else "kill")

    def interrupted_once(self, name):
        self.calls.append(name)
        if self.calls.count(name) == 1:
            raise KeyboardInterrupt


@pytest.fixture
def actors(monkeypatch):
    monkeypatch.setattr(actor_set_module, "start_actor", lambda *_: HANDLE)
    options, connection = ActorOptions(thresholds=Thresholds(look_s=1e-9)), cast("Connection", None)
    return ActorSet(1, options, "", connection, is_managed=False)


def test_what_an_interrupt_has_kept_from_being_done_is_done_at_the_next_look(actors, monkeypatch):
    told = Told()
    monkeypatch.setattr(actor_set_module, "start_actor", told.start)
    monkeypatch.setattr(ray, "kill", told.kill)
    with pytest.raises(KeyboardInterrupt):
        actors.add(1)
    assert actors.actors[1].handle is None
    actors.tend()
    assert actors.actors[1].handle is HANDLE
    with pytest.raises(KeyboardInterrupt):
        actors._do(actors.actors[1], [Kill(for_ever=True), Start()])
    for _ in range(3):
        actors.tend()
    assert told.calls == ["start", "start", "kill for ever", "kill for ever", "start"]


def test_actors_that_start_together_are_of_one_class_which_is_sent_once(actors, monkeypatch):
    classes, started = itertools.count(), []
    monkeypatch.setattr(actor_set_module, "remote_class", lambda: f"class {next(classes)}")
    monkeypatch.setattr(actor_set_module, "start_actor", lambda *given: started.append(given[-1]) or HANDLE)
    actors.add(3)
    actors.add(2)
    actors._do(actors.actors[1], [Start()])  # in place of a lost one
    assert started == ["class 0"] * 3 + ["class 1"] * 2 + ["class 2"]


def test_who_answers_again_leaves_out_what_others_were_asked_for_since(actors, monkeypatch):
    forgotten = []
    actor, process = actors.actors[0], Process("w", 1, "a", "a")
    actor.handle = SimpleNamespace(**vars(HANDLE), forget=SimpleNamespace(remote=forgotten.append))
    monkeypatch.setattr(ray, "wait", lambda refs, **_: ([], refs))
    actors._do(actor, actor.state.answered(process, 0.0))
    for number in range(2):
        actors.send(actor, InFlight(Part(0, number, 0, ReadRequest(0, 8)), None, token=("user", number)))
    asked_at = actor.state.heard_at + 3.0
    for now in (asked_at, asked_at + 6.0):
        actors._do(actor, actor.state.tick(now))
    assert (actor.state.phase, forgotten) == ("silent", [])
    actors._do(actor, actor.state.answered(process, asked_at + 7.0))
    assert forgotten == [(("user", 0), ("user", 1))]


def test_who_is_up_and_silent_is_not_said_to_be_starting(actors, monkeypatch, caplog):
    monkeypatch.setattr(ray, "wait", lambda refs, **_: ([], refs))
    monkeypatch.setattr(ActorSet, "tend", lambda self: None)
    actor = actors.actors[0]
    actors._do(actor, actor.state.answered(Process("w", 1, "a", "a"), 0.0))
    actors.send(actor, InFlight(Part(0, 0, 0, ReadRequest(0, 8)), None, token=("user", 0)))
    for now in (actor.state.heard_at + 3.0, actor.state.heard_at + 9.0):
        actors._do(actor, actor.state.tick(now))
    monkeypatch.setattr(actors._quorum, "waited", lambda _: (10.0, "log"))
    assert look(actors) == ()
    assert "none of 1 reader actors runs after 10 s: 1 are up and do not answer" in caplog.text
    assert "An actor that is silent for 60 s is ended" in caplog.text
    monkeypatch.setattr(actors._quorum, "waited", lambda _: (300.0, "end"))
    with pytest.raises(RuntimeError, match="after 300 s: 1 are up and do not answer"):
        look(actors)


def test_who_looks_while_a_handler_closes_finds_nobody(actors, monkeypatch):
    monkeypatch.setattr(ActorSet, "tend", lambda self: self.actors.clear())  # close() does, and tells Ray
    assert look(actors) == ()


def test_who_is_asked_is_worked_out_when_a_life_changes_and_not_for_every_block(actors, monkeypatch):
    monkeypatch.setattr(ActorSet, "tend", lambda self: None)
    monkeypatch.setattr(actor_set_module, "let_go", lambda *_, **__: None)
    actors.add(3)
    for index, node in ((2, "b"), (0, "a"), (3, "b"), (1, "a")):
        state = actors.actors[index].state
        actors._do(actors.actors[index], state.answered(Process(f"w{index}", index, node, node), 0.0))
    assert look(actors) == actors.ready == (0, 1, 2, 3)
    assert actors.nodes == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert look(actors) is look(actors)
    assert actors.nodes is actors.nodes
    actors.blame("a", "its mount is gone")
    assert look(actors) == (2, 3)
    assert list(actors.nodes) == [2, 3, 0, 1]
    actors._do(actors.actors[3], actors.actors[3].state.unavailable("its process has ended", 1.0))
    assert look(actors) == (2,)
    actors.blame("b", "its mount is gone")
    assert look(actors) == (0, 1, 2), "all are benched, and somebody must read"
    actors.remove(3)  # that which does not run, then the newest
    assert look(actors) == actors.ready == (0,)
    assert actors.running == {0: Process("w0", 0, "a", "a")}
    actors.close()
    assert actors.ready == ()
