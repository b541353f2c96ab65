"""The life of an actor by value: every phase by every event; and thousands of lives by chance, on their own clock."""

from __future__ import annotations

import copy
import itertools
import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from datarax_ray.actors.lifecycle import (
    LEADS_TO,
    ActorState,
    Ask,
    Commands,
    Forget,
    Kill,
    LoseRequests,
    Loss,
    Process,
    Start,
    TellNoStart,
    TellReturn,
    Thresholds,
)

# As they are by default, which the times below are written for.
LIMITS = Thresholds(
    quiet_s=2, answer_s=5, silent_s=60, return_s=12, num_failures=3, backoff_s=1, max_backoff_s=60, max_start_s=3600
)
SHARED = replace(LIMITS, return_s=math.inf)
HERE = Process("one", 11, "node a", "host a")
NEXT = Process("two", 22, "node b", "host b")
INF = math.inf

# All at the time 100, and asked since 99 where they are asked.
WAITING = ActorState(LIMITS, due_at=100)
STARTING = ActorState(LIMITS, "starting", asked_at=99, due_at=INF)
RUNNING = ActorState(LIMITS, "running", HERE, ["r", "s"], heard_at=98, due_at=INF)
ASKED = replace(RUNNING, asked_at=99)
SILENT = ActorState(
    LIMITS, "silent", HERE, asked_at=90, num_failures=1, due_at=155, loss=Loss("answered", 95, "no word")
)
LOST = ActorState(LIMITS, "lost", HERE, asked_at=99, num_failures=1, due_at=107, loss=Loss("restarted", 95, "killed"))
HUNG = ActorState(LIMITS, "hung", HERE, asked_at=99, num_failures=1, due_at=155, loss=Loss("hung", 95, "too long"))
GONE = ActorState(LIMITS, "gone", HERE)
RUNS = ActorState(LIMITS, "running", HERE, heard_at=100, due_at=INF)
BOTH = ("r", "s")


DEAD = Loss("replaced", 95, "dead")
TOO_LONG = "a request took longer than the 60 s that request_timeout_s gives it"
SILENCE = "it did not answer for 6 s"
ANOTHER = [TellNoStart("none has come in the 66 s since it was lost"), Kill(True), Start()]
BACK = vars(RUNS) | {"num_failures": 1}


def to(phase, **changes):
    """The changes of an actor that enters a phase without requests: it is pinged there only where asked_at says so."""
    return {"phase": phase, "asked_at": None, "requests": []} | changes


def starting(num_failures, asked_at=99):
    """One that takes the place of another, and has not come in time."""
    return replace(STARTING, asked_at=asked_at, num_failures=num_failures, due_at=160, loss=DEAD)


# before, event and its arguments, what has changed, commands
CASES = [
    # who is to be started
    (WAITING, "tick", (99,), {}, []),
    (WAITING, "tick", (100,), to("starting", asked_at=100, due_at=INF), [Start()]),
    (replace(WAITING, loss=DEAD), "tick", (100,), to("starting", asked_at=100, due_at=160), [Start()]),
    # who starts for the first time waits for room, as long as it takes
    (STARTING, "tick", (10**6,), {}, []),
    (replace(STARTING, asked_at=None), "tick", (100,), {"asked_at": 100}, [Ask()]),
    (STARTING, "answered", (HERE, 100), to("running", process=HERE, heard_at=100), []),
    (STARTING, "unavailable", ("busy", 100), {"asked_at": None}, []),
    *(
        (
            replace(STARTING, num_failures=num),
            "failed",
            given,
            to("waiting", due_at=due_at, why_not="full") | more,
            told,
        )
        for num, given, due_at, more, told in (
            (0, ("full", 100), 100, {"num_failures": 1}, [Kill(True)]),
            (2, ("full", 100), 102, {"num_failures": 3}, [Kill(True), TellNoStart("full")]),
            (5000, ("full", 100, False), 160, {"num_failures": 5001}, [Kill(True)]),
        )
    ),
    # who has run is asked for anew, at longer and longer intervals, in place of the one before, and that is told
    (starting(2), "tick", (161,), {"asked_at": 161, "num_failures": 3, "due_at": 209}, ANOTHER),
    (starting(5, asked_at=None), "tick", (161,), {"asked_at": 161, "num_failures": 6, "due_at": 545}, ANOTHER),
    (starting(5000), "tick", (161,), {"asked_at": 161, "num_failures": 5001, "due_at": 3761}, ANOTHER),
    # who runs is left alone unless it has requests and says nothing
    (RUNNING, "tick", (100,), {}, []),
    (RUNNING, "tick", (100.5,), {"asked_at": 100.5}, [Ask()]),
    (replace(RUNNING, requests=[]), "tick", (10**6,), {}, []),
    (ASKED, "tick", (104,), {}, []),
    (
        *(ASKED, "tick", (105,)),
        to("silent", asked_at=99, num_failures=1, due_at=165, loss=Loss("answered", 105, SILENCE)),
        [LoseRequests(BOTH, SILENCE, HERE)],
    ),
    (RUNNING, "sent", ("t", 100), {"requests": ["r", "s", "t"]}, []),
    (replace(RUNS, heard_at=5), "sent", ("r", 100), {"requests": ["r"], "heard_at": 100}, []),
    (replace(RUNNING, num_failures=4), "done", ("s", 100), {"requests": ["r"], "heard_at": 100, "num_failures": 0}, []),
    (RUNNING, "dropped", ("r",), {"requests": ["s"], "is_owed": True}, []),
    # it lives; is it at work?
    (ASKED, "answered", (HERE, 100, 2, 2), {"asked_at": None, "heard_at": 100}, []),
    (
        *(ASKED, "answered", (HERE, 300, 61, 60)),
        to("hung", heard_at=300, num_failures=1, due_at=360, loss=Loss("hung", 300, TOO_LONG)),
        [LoseRequests(BOTH, TOO_LONG, HERE), Kill(False)],
    ),
    # another process answers: the one before has ended, and nothing had told of it yet
    (
        *(ASKED, "answered", (NEXT, 100, 61, 60, "out of memory")),
        {"process": NEXT, "requests": [], "asked_at": None, "heard_at": 100, "num_failures": 1},
        [LoseRequests(BOTH, "out of memory", HERE), TellReturn("restarted", "out of memory", 0)],
    ),
    (
        *(ASKED, "unavailable", ("killed", 100)),
        to("lost", num_failures=1, due_at=112, loss=Loss("restarted", 100, "killed")),
        [LoseRequests(BOTH, "killed", HERE)],
    ),
    (
        *(RUNNING, "failed", ("dead", 100)),
        to("waiting", num_failures=1, due_at=100, loss=Loss("replaced", 100, "dead")),
        [LoseRequests(BOTH, "dead", HERE)],
    ),
    (
        *(RUNNING, "failed", ("no module", 100, False)),
        to("waiting", num_failures=1, due_at=100, loss=Loss("replaced", 100, "no module"), why_not="no module"),
        [LoseRequests(BOTH, "no module", HERE), Kill(True)],
    ),
    # who was silent is back as it was, or as another process, or is ended after a minute
    (SILENT, "tick", (155,), {}, []),
    (replace(SILENT, asked_at=None), "tick", (155,), {"asked_at": 155}, [Ask()]),
    *(
        (
            *(replace(SILENT, asked_at=asked_at), "tick", (156,)),
            {"phase": "hung", "asked_at": None, "due_at": 216, "loss": Loss("hung", 95, "no word")},
            [Kill(False)],
        )
        for asked_at in (90, None)  # what it was asked has failed at once
    ),
    (SILENT, "answered", (HERE, 100), BACK, [Forget(), TellReturn("answered", "no word", 5)]),
    (SILENT, "answered", (NEXT, 100), BACK | {"process": NEXT}, [TellReturn("restarted", "no word", 5)]),
    (SILENT, "unavailable", ("its node is gone", 100), {"asked_at": None}, []),
    (
        *(SILENT, "failed", ("dead", 100)),
        to("waiting", num_failures=2, due_at=101, loss=Loss("replaced", 95, "no word"), why_not="dead"),
        [Kill(True)],
    ),
    # who was killed comes back, or another is asked for
    (LOST, "tick", (107,), {}, []),
    (replace(LOST, asked_at=None), "tick", (107,), {"asked_at": 107}, [Ask()]),
    *(
        (
            *(replace(LOST, asked_at=asked_at), "tick", (108,)),
            to("starting", asked_at=108, num_failures=2, due_at=132, loss=Loss("replaced", 95, "killed")),
            [Kill(True), Start()],
        )
        for asked_at in (99, None)
    ),
    (replace(LOST, due_at=INF), "tick", (10**6,), {}, []),  # a shared one
    (LOST, "answered", (NEXT, 100), BACK | {"process": NEXT}, [TellReturn("restarted", "killed", 5)]),
    (LOST, "answered", (HERE, 100), BACK, [Forget(), TellReturn("answered", "killed", 5)]),
    (LOST, "unavailable", ("not yet", 100), {"asked_at": None}, []),
    (
        *(LOST, "failed", ("full", 100)),
        to("waiting", num_failures=2, due_at=101, loss=Loss("replaced", 95, "killed"), why_not="full"),
        [Kill(True)],
    ),
    (
        *(replace(LOST, phase="starting", loss=Loss("replaced", 95, "killed")), "answered", (NEXT, 100)),
        BACK | {"process": NEXT},
        [TellReturn("replaced", "killed", 5)],
    ),
    # who hung is another one when it is back, and is called hung whatever comes in between
    (HUNG, "tick", (155,), {}, []),
    (replace(HUNG, asked_at=None), "tick", (100,), {"asked_at": 100}, [Ask()]),
    # where that had no effect another is asked for; a shared one, which would be found by its name, is ended again
    *(
        (
            *(replace(HUNG, asked_at=asked_at), "tick", (156,)),
            to("starting", asked_at=156, num_failures=2, due_at=180),
            [Kill(True), Start()],
        )
        for asked_at in (99, None)
    ),
    (replace(HUNG, limits=SHARED), "tick", (156,), {"asked_at": None, "num_failures": 2, "due_at": 216}, [Kill(False)]),
    (HUNG, "answered", (HERE, 100), {"asked_at": None}, []),
    (HUNG, "answered", (NEXT, 100), BACK | {"process": NEXT}, [TellReturn("hung", "too long", 5)]),
    (HUNG, "unavailable", ("not yet", 100), {"asked_at": None}, []),
    (HUNG, "failed", ("full", 100), to("waiting", num_failures=2, due_at=101, why_not="full"), [Kill(True)]),
    # whoever is removed leaves its requests, and no word of a loss
    *(
        (before, "removed", ("bye",), to("gone"), [LoseRequests(BOTH if before is RUNNING else (), "bye", None)])
        for before in (WAITING, STARTING, RUNNING, SILENT, LOST, HUNG)
    ),
]


@pytest.mark.parametrize(
    ("before", "event", "given", "changes", "commands"),
    CASES,
    ids=[f"{number}-{case[0].phase}-{case[1]}" for number, case in enumerate(CASES)],
)
def test_what_becomes_of_an_actor_and_what_is_done_about_it(
    before: ActorState, event: str, given: tuple[Any, ...], changes: dict[str, Any], commands: Commands
) -> None:
    after = copy.deepcopy(before)
    assert getattr(after, event)(*given) == commands
    assert vars(after) == vars(before) | changes


PHASES = {state.phase: state for state in (WAITING, STARTING, RUNNING, SILENT, LOST, HUNG, GONE)}
GIVEN = {
    "tick": (100,),
    "answered": (HERE, 100),
    "unavailable": ("why", 100),
    "failed": ("why", 100),
    "sent": ("r", 100),
    "done": ("r", 100),
    "dropped": ("r",),
    "removed": ("why",),
}


def test_thresholds_that_would_wait_for_nothing_are_refused():
    with pytest.raises(ValueError, match="return_s must be more than 0, got -1"):
        Thresholds(return_s=-1)


# What Ray and clocks do not do, as one would say it: not derived from the table.
IMPOSSIBLE = {
    *itertools.product(["waiting"], ["answered", "unavailable", "failed"]),
    *itertools.product(["waiting", "starting", "silent", "lost", "hung"], ["sent", "done", "dropped"]),
    *itertools.product(["gone"], GIVEN),
}


@pytest.mark.parametrize(("phase", "event"), sorted(itertools.product(PHASES, GIVEN)))
def test_every_phase_knows_every_event_or_refuses_it_by_name(phase, event):
    state = copy.deepcopy(PHASES[phase])
    assert ((phase, event) in LEADS_TO) != ((phase, event) in IMPOSSIBLE)
    if (phase, event) in LEADS_TO:
        getattr(state, event)(*GIVEN[event])
        assert state.phase in LEADS_TO[phase, event]
    else:
        before = copy.deepcopy(state)
        with pytest.raises(RuntimeError, match=f"a reader actor that is {phase} cannot be told: {event} "):
            getattr(state, event)(*GIVEN[event])
        assert state == before


def test_every_way_that_the_table_names_is_gone_by_a_case_and_no_other():
    gone = set()
    for before, event, given, _, _ in CASES:
        after = copy.deepcopy(before)
        getattr(after, event)(*given)
        gone.add((before.phase, event, after.phase))
    assert gone == {(phase, event, led) for (phase, event), leads in LEADS_TO.items() for led in leads}


# Seconds between two looks; how long everything goes wrong, and how long all then has to be well again: longer than
# the longest back-off, of a start that takes long, behind a cut that is noticed late.
LOOK_S, TROUBLE_S, CALM_S = 0.5, 240.0, 400.0

Ref = tuple[int, int]  # a request, and a number of its own for each time that one is sent


@dataclass
class Host:
    """What Ray and the kernel make of one actor. ready_at: when its next process is up, where it has none."""

    name: str
    worker_id: str = ""  # of its process
    ready_at: float = INF
    will_fail: bool = False  # the start that is under way
    is_dead: bool = False  # Ray will start it no more
    frozen_until: float = 0.0
    cut_until: float = 0.0
    is_deaf: bool = False  # its process lives, and calls of it fail at once
    is_stuck: bool = False  # its next process never comes, and calls fail at once: Ray believes in a node that is gone
    num_lost_kills: int = 0  # so many have no effect
    ends_at: float = INF  # of a process that Ray has asked to
    at_work: dict[Ref, float] = field(default_factory=dict)  # when each ends, one after the other
    at_since: float = 0.0  # when it came to the first of these
    starts: list[float] = field(default_factory=list)  # since it last ran

    def is_silent(self, now):
        return now < max(self.frozen_until, self.cut_until)


class World:
    """Actors, their hosts and the requests of a stream: numbers, and each time one is sent it is a pair of its own.

    What carries out the commands here is ActorSet where there is Ray.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.now = 0.0
        self.actors: dict[int, ActorState] = {}
        self.hosts: dict[int, Host] = {}
        self.waiting: list[int] = []
        self.ended: set[Ref] = set()
        self.failed: dict[Ref, bool] = {}  # what a dead process was at, and whether Ray has given up its actor
        self.answered: list[int] = []
        self.told: set[str] = set()
        self.num_requests = self.num_sent = self.num_lives = self.num_actors = 0
        self.start_s = self.random.choice(
            [0, 0, 100]
        )  # what every start takes beyond the usual, as an environment does
        for _ in range(self.random.randint(1, 4)):
            self.add()

    @property
    def is_calm(self):
        return self.now > TROUBLE_S

    def add(self):
        index, self.num_actors = self.num_actors, self.num_actors + 1
        self.actors[index], self.hosts[index] = ActorState(LIMITS), Host(f"{index}")

    def run(self):
        while self.now < TROUBLE_S + CALM_S:
            self.now += LOOK_S
            if not self.is_calm:
                self.go_wrong()
            for index in list(self.actors):
                self.live(index)
                self.tend(index)
                self.fetch(index)
            self.send()
            in_flight = [ref[0] for state in self.actors.values() for ref in state.requests]
            known = sorted(self.waiting + in_flight + self.answered)
            assert known == list(range(self.num_requests)), "a request is lost, or is there twice"

    def go_wrong(self):
        chance, index = self.random.random(), self.random.choice(list(self.actors))
        host = self.hosts[index]
        if chance < 0.03:
            self.die(host)
        elif chance < 0.04:
            self.die(host, for_ever=True)
        elif chance < 0.06:
            host.frozen_until = self.now + self.random.choice([1, 4, 10, 90])
        elif chance < 0.07:
            host.cut_until = self.now + self.random.choice([3, 20, 60, 90])
        elif chance < 0.08 and host.at_work:  # it never ends what it is at
            host.at_work = dict.fromkeys(host.at_work, INF)
            host.num_lost_kills = self.random.choice([0, 0, 1, 2])
        elif 0.105 < chance < 0.11 and host.worker_id:
            host.is_deaf = True
        elif 0.11 < chance < 0.115 and self.actors[index].phase not in ("waiting", "starting"):
            self.die(host)
            host.is_stuck = True
        elif chance < 0.085 and self.actors[index].requests:  # what it reads for this one is gone
            ref = self.actors[index].requests[0]
            self.do(index, self.actors[index].dropped(ref))
            self.waiting.insert(0, ref[0])
        elif chance < 0.095 and len(self.actors) < 6:
            self.add()
        elif chance < 0.105 and len(self.actors) > 1:
            self.do(index, self.actors[index].removed("it was removed"))
            del self.actors[index]

    def die(self, host, *, for_ever=False):
        self.failed |= dict.fromkeys(host.at_work, for_ever)
        host.at_work, host.worker_id, host.frozen_until, host.ends_at, host.is_deaf = {}, "", 0.0, INF, False
        host.is_dead = host.is_dead or for_ever
        self.start(host)

    def start(self, host):
        host.ready_at = self.now + self.start_s + (self.random.uniform(1, 5) if self.random.random() < 0.9 else 30)
        host.will_fail = not self.is_calm and self.random.random() < 0.4

    def live(self, index):
        """What happens at the host meanwhile."""
        host = self.hosts[index]
        if self.now >= max(host.ends_at, host.cut_until):
            self.die(host)
        if not (host.worker_id or host.is_dead or host.is_stuck) and self.now >= max(host.ready_at, host.cut_until):
            host.is_dead = host.will_fail
            if not host.will_fail:
                self.num_lives += 1
                host.worker_id = f"{host.name} {self.num_lives}"
        if host.worker_id and not host.is_silent(self.now):
            for ref in [ref for ref, ends_at in host.at_work.items() if ends_at <= self.now]:
                del host.at_work[ref]
                host.at_since = self.now
                self.ended.add(ref)

    def tend(self, index):
        state, host = self.actors[index], self.hosts[index]
        if state.asked_at is None or host.cut_until > self.now or (host.worker_id and host.is_silent(self.now)):
            self.do(index, state.tick(self.now))
        elif host.is_dead:
            self.do(index, state.failed("dead", self.now))
        elif host.is_deaf or host.is_stuck:
            self.do(index, state.unavailable("connection refused", self.now))
        elif host.worker_id:
            if state.phase != "hung":
                host.starts.clear()
            process = Process(host.worker_id, index, host.name, host.name)
            at_s = self.now - host.at_since if host.at_work else 0.0
            self.do(index, state.answered(process, self.now, at_s, 30, "another one answers"))
        elif self.random.random() < 0.3:  # else the call waits with Ray for the next process
            self.do(index, state.unavailable("not yet", self.now))
        else:
            self.do(index, state.tick(self.now))

    def fetch(self, index):
        """Take what has come, and see what has failed; now and then late."""
        state = self.actors[index]
        for ref in list(state.requests):
            if ref in self.ended and self.random.random() < 0.7:
                self.deliver(ref)
                self.do(index, state.done(ref, self.now))
            elif ref in self.failed and self.random.random() < 0.2:
                is_dead = self.failed[ref]
                self.do(index, state.failed("dead", self.now) if is_dead else state.unavailable("killed", self.now))
                return

    def deliver(self, ref):
        assert ref[0] not in self.answered, "a request is answered twice"
        self.answered.append(ref[0])

    def send(self):
        while not self.is_calm and len(self.waiting) < 4:
            self.waiting.append(self.num_requests)
            self.num_requests += 1
        for index, state in self.actors.items():
            while state.phase == "running" and len(state.requests) < 4 and self.waiting:
                ref, host = (self.waiting.pop(0), self.num_sent), self.hosts[index]
                self.num_sent += 1
                self.do(index, state.sent(ref, self.now))
                if host.worker_id:
                    host.at_since = host.at_since if host.at_work else self.now
                    begins_at = max(self.now, *host.at_work.values(), host.frozen_until, host.cut_until)
                    host.at_work[ref] = begins_at + self.random.uniform(0.1, 3)
                else:  # nobody is there, and nobody has noticed
                    self.failed[ref] = host.is_dead

    def do(self, index, commands):
        state, host = self.actors[index], self.hosts[index]
        for command in commands:
            match command:
                case Start():
                    self.check_back_off(host)
                    self.hosts[index] = host = Host(host.name, starts=[*host.starts, self.now])
                    self.start(host)
                case Kill(for_ever=True):
                    self.die(host, for_ever=True)
                case Kill() if host.num_lost_kills:
                    host.num_lost_kills -= 1
                case Kill():
                    host.ends_at = self.now + self.random.choice([0, 5])
                case LoseRequests(requests, _, process):
                    assert process is None or process.worker_id
                    for ref in requests:
                        if ref in self.ended:
                            self.deliver(ref)
                        else:
                            self.waiting.insert(0, ref[0])
                case TellReturn(kind, _, took_s):
                    self.told.add(kind)
                    assert took_s >= 0
        assert state.loss is None or state.phase != "running"
        assert not state.requests or state.phase == "running"

    def check_back_off(self, host):
        """Nothing at first, or where it had run; then 1, 2, 4 s and so on."""
        if (num := len(host.starts)) >= 2:
            assert self.now - host.starts[-1] >= min(LIMITS.max_backoff_s, 2.0 ** (num - 2))


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_whatever_happens_no_request_is_lost_or_answered_twice_and_nobody_waits_for_ever(first):
    num_lives, told = 0, set()
    for seed in range(first, first + 25):
        world = World(seed)
        world.run()
        about = f"seed {seed}: {world.actors}"
        assert not world.waiting, about
        assert len(world.answered) == world.num_requests, about
        assert {state.phase for state in world.actors.values()} == {"running"}, about
        num_lives += world.num_lives
        told |= world.told
    assert num_lives > 300
    assert told == {"answered", "restarted", "replaced", "hung"}


def test_one_that_owes_an_answer_that_others_have_given_is_missed_all_the_same():
    state = ActorState(Thresholds())
    state.tick(0.0)
    state.answered(Process("a", 1, "n", "h"), 1.0, 0, math.inf)
    for now in range(10, 20):  # asked again and again for what others read in time
        state.sent("request", float(now))
        state.dropped("request")
        if any(isinstance(command, Ask) for command in state.tick(now + 0.5)):
            break
    assert 12 <= now <= 14
    state.tick(now + 1.0)
    state.tick(now + 6.0)
    assert state.phase == "silent"
    state.answered(Process("a", 1, "n", "h"), now + 7.0, 0, math.inf)
    assert [state.tick(later) for later in (now + 10.0, now + 100.0)] == [[], []]  # it has nothing to do
