"""The actors of a pool: their lives (see lifecycle), and the calls to Ray that follow.

Ray restarts a killed actor; an actor that Ray gives up is replaced, and an actor that hangs is ended. Ray reports a
loss, or the clock does: no answer to a ping, or too long at one request. Nothing here waits longer than a moment.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

import ray
from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from datarax_ray.actors.connection import Connection
from datarax_ray.actors.head import Head
from datarax_ray.actors.lifecycle import (
    ActorState,
    Ask,
    Bench,
    Command,
    Commands,
    Forget,
    Kill,
    LoseRequests,
    Process,
    Start,
    StartQuorum,
    TellNoStart,
    TellReturn,
)
from datarax_ray.actors.reader_actor import OtherProcessError, whole
from datarax_ray.actors.recovery import Recoveries, Recovery, first_line
from datarax_ray.actors.sizing import LoadBalance
from datarax_ray.actors.starting import (
    Actor,
    ActorOptions,
    let_go,
    remote_class,
    start_actor,
    why_not_running,
)
from datarax_ray.actors.trial import Trial
from datarax_ray.feed.flow import Lost
from datarax_ray.feed.window import Part
from datarax_ray.read.block import Block
from datarax_ray.read.closing import closed
from datarax_ray.read.stream import StreamTraits

logger = logging.getLogger("datarax_ray")

# What Ray raises where an actor is gone through no fault of the task.
ACTOR_GONE = (NodeDiedError, OutOfMemoryError, RayActorError, WorkerCrashedError)
# A wait is this long at most, then somebody looks whether it still makes sense. Ctrl-C and close take no longer.
POLL_S = 0.25
_OPEN: WeakSet[ActorSet] = WeakSet()  # of this program


@dataclass(eq=False)
class InFlight:
    """A request on its way. Times are those of time.monotonic.

    ref: of the answer, or of the block once the answer has named it (is_handed); None if no actor could be asked.
    node: of the actor when it was asked.
    token: the actor knows the request by it.
    outcome: the loss or the block, if known before the stream asks for it.
    look_at: when to look for the block on this node; inf once it was reported, -inf if it is still to be reported.
    waited_since: when the block was first seen to exist while the stream waits for it.
    """

    part: Part
    ref: ray.ObjectRef | None
    node: str = ""
    token: tuple[str, int] | None = None
    outcome: Lost | Block | None = None
    look_at: float = 0.0
    waited_since: float | None = None
    is_handed: bool = False


class ActorSet:
    """The actors with the ids 0 to num_actors - 1, and those that are added.

    Several threads use the set: `held` is for calls to Ray or changes, `lock` for the rest.
    """

    def __init__(
        self,
        num_actors: int,
        options: ActorOptions,
        identity: str,
        connection: Connection,
        *,
        is_managed: bool,
        source: str = "another source",
    ) -> None:
        self.lock = threading.RLock()
        self.is_closed = False
        self.load_balance = LoadBalance()
        self.recoveries = Recoveries()
        self.actors: dict[int, Actor] = {}
        self.running: Mapping[int, Process] = {}  # by id; replaced at each change, as are the next two
        self.ready: tuple[int, ...] = ()  # their ids
        self._nodes: Mapping[int, str] = {}
        self.user = secrets.token_hex(8)  # the name by which actors know this driver
        self._remote_class: Any = None  # of the actors that are added now
        self.given_up = ""  # why no actor will ever start again
        self.pools: WeakSet[Any] = WeakSet()  # the open ones that read with these actors
        self._num_joined = itertools.count(1)
        self._connection, self._options, self._identity, self._is_managed = connection, options, identity, is_managed
        # Ray finds a shared actor by its name, also where another one is to replace it
        limits = options.thresholds
        self._limits = limits if options.name is None else replace(limits, return_s=float("inf"))
        self._bench = Bench()
        self._quorum = StartQuorum(options.start_timeout_s)
        self._has_begun = False
        self._tended_at = 0.0
        self._next_index = 0
        self.source = source
        _OPEN.add(self)
        self.add(num_actors)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For calls of a moment: nobody else changes the actors. Raises: RuntimeError once closed, or Ray shut down."""
        self.check_open()
        with self._connection.held(), self.lock:  # Ray's first, as who shuts it down may close this pool
            self.check_open()
            yield

    def check_open(self) -> None:
        if self.is_closed:
            raise self.closed()

    @staticmethod
    def closed() -> RuntimeError:
        # a Pipeline keeps its own position, and moves none of its source
        return closed("RaySource", "this, or the new Pipeline that of the old one, which closed its source")

    def join(self, traits: StreamTraits, identity: str) -> str:
        """Read another stream as well. Returns its name, the same in all drivers that share streams in one order."""
        self._is_managed = self._is_managed or traits.is_managed
        return f"{identity[:16]}-{next(self._num_joined)}"

    def leave_stream(self, name: str, reader: str) -> None:
        """Have the actors forget a stream and what its reader has asked for; they go on with others."""
        for actor in self.actors.values():
            own = [sent for sent in actor.state.requests if sent.token is not None and sent.token[0] == reader]
            for sent in own:
                self.drop(sent)
            if actor.handle is not None:
                actor.handle.forget.remote([sent.token for sent in own])
                actor.handle.drop.remote(name)

    @property
    def nodes(self) -> Mapping[int, str]:
        """The node of each actor that runs, benched nodes last."""
        now = time.monotonic()
        if self._bench.is_empty(now):
            return self._nodes
        return dict(sorted(self._nodes.items(), key=lambda pair: self._bench.has(pair[1], now)))

    def _see_who_runs(self) -> None:
        """Work out who runs where. Every block needs the answer, and it changes with the actors' lives alone."""
        lives = ((index, actor.state) for index, actor in self.actors.items())
        running = {index: state.process for index, state in lives if state.phase == "running"}
        nodes = {index: process.node_id for index, process in running.items()}
        self.running, self.ready, self._nodes = running, tuple(running), nodes

    def blame(self, node: str, reason: str) -> None:
        lasts_s = self._bench.blame(node, time.monotonic())
        if lasts_s is not None:
            actors = [index for index, at in self.nodes.items() if at == node]
            host = next((self.running[index].host for index in actors), "now without actors")
            self.recoveries.benched(actors, f"{node[:12]} ({host})", reason, lasts_s)

    def leave(self, draining: frozenset[str]) -> None:
        """These nodes are about to go."""
        for node in sorted(self._bench.drain(draining)):
            if actors := [index for index, at in self.nodes.items() if at == node]:
                self.recoveries.drained(actors, f"{node[:12]} ({self.running[actors[0]].host})")

    def look(self, admitted: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        """Look after all actors. Returns the ids to read with: () while none runs, or more are about to.

        admitted: gives those that may read the stream. Raises: RuntimeError where none will run; as `admitted`.
        """
        self.tend()
        ready, now, num_actors = admitted(), time.monotonic(), len(self.actors)
        if ready and self._quorum.has_begun(now, len(ready), num_actors):
            if not self._has_begun and len(ready) < num_actors:
                logger.warning(
                    "%d of %d reader actors have started; the stream begins with them, and others join later: %s",
                    len(ready),
                    num_actors,
                    self._why_not_running(),
                )
            self._has_begun = True
            if self._bench.is_empty(now):
                return ready
            return tuple(index for index in ready if not self._bench.has(self._nodes[index], now)) or ready
        if not ready:
            self._check_start(now)
        self._tended_at = 0.0  # look again soon
        return ()

    def _check_start(self, now: float) -> None:
        """No actor runs: log why, now and then. Raises: RuntimeError where none will run."""
        if self.given_up:
            raise RuntimeError(self.given_up)
        states = [actor.state for actor in self.actors.values()]  # none where a signal's handler has closed the pool
        tries = min((state.num_failures for state in states), default=0)
        why_not = [state.why_not for state in states if state.why_not]
        if why_not and tries >= self._limits.num_failures:
            raise RuntimeError(f"no reader actor can start, each was tried {tries} times; last error: {why_not[-1]}")
        if (waited := self._quorum.waited(now)) is None:
            return
        waited_s, what = waited
        none = f"none of {len(states)} reader actors runs after {waited_s:.0f} s"
        num_silent = sum(state.phase in ("silent", "hung") for state in states)
        why = (
            f"{num_silent} are up and do not answer: a host is paused or cut off, or a mount hangs. An actor that is "
            f"silent for {self._limits.silent_s:.0f} s is ended and replaced"
            if num_silent
            else f"{len(self.ready)} are up and still make the first elements"
            if self.ready
            else self._why_not_running()
        )
        if what == "end":
            raise RuntimeError(f"{none}: {why}. start_timeout_s={self._options.start_timeout_s:g} is over; raise it.")
        logger.warning("%s: %s", none, why)

    def _why_not_running(self) -> str:
        """With other open sources of this program, which may wait for these actors for ever."""
        held = [
            f"{each.source} of this program holds {len(each.ready) * each._options.num_cpus:g} CPU"
            for each in list(_OPEN)
            if each is not self and not each.is_closed and each.ready and each._connection.is_of(self._connection)
        ]
        return why_not_running(self._options, held)

    def resize(self, num_actors: int, reason: str) -> tuple[int, ...]:
        """Have as many actors. Returns the ids of those that were added or removed. Raises: as `remove`."""
        before = len(self.actors)
        changed = self.add(num_actors - before) if num_actors > before else self.remove(before - num_actors)
        self.recoveries.resized(before, num_actors, reason)
        return changed

    def add(self, num_actors: int) -> tuple[int, ...]:
        """Start more actors. Returns their ids: new ones; the lowest of shared actors, as other drivers expect."""
        is_shared = self._options.name is not None
        unused = (i for i in itertools.count(0 if is_shared else self._next_index) if i not in self.actors)
        added = tuple(itertools.islice(unused, num_actors))
        self._next_index = max(self._next_index, *(index + 1 for index in added))
        self._remote_class = remote_class()
        try:
            for index in added:
                self.actors[index] = actor = Actor(index, ActorState(self._limits))
                self._do(actor, actor.state.tick(time.monotonic()))
        finally:
            self._remote_class = None
        return added

    def remove(self, num_actors: int) -> tuple[int, ...]:
        """End actors: first actors that do not run, then the newest. Of shared actors the last, so that drivers agree.

        Returns their ids. Raises: ValueError if no actor would be left.
        """
        if num_actors >= len(self.actors):
            raise ValueError(f"removing {num_actors} of {len(self.actors)} actors would leave none to read")
        is_shared = self._options.name is not None
        by_use = sorted(
            self.actors.values(),
            key=lambda actor: (not is_shared and actor.state.phase == "running", -actor.index),
        )
        removed, ready = by_use[:num_actors], self.ready
        for actor in removed:
            del self.actors[actor.index]
            self.load_balance.forget(actor.index)
            self._do(actor, actor.state.removed("it was removed"))
        self._see_who_runs()
        self._let_go(removed, ready)
        return tuple(sorted(actor.index for actor in removed))

    def close(self) -> None:
        """Kill the actors; named ones live on for other drivers, and end with the last of these."""
        actors, ready = list(self.actors.values()), self.ready
        self.actors.clear()
        self._see_who_runs()
        for actor in actors:
            actor.state.requests.clear()  # nobody waits for them any more
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # another Ray's by now: the actors ended with theirs
                self._let_go(actors, ready)

    def _let_go(self, actors: list[Actor], ready: tuple[int, ...]) -> None:
        user = self.user if self._options.name is not None else None
        managed = ready if self._is_managed else ()
        let_go([actor for actor in actors if actor.handle is not None], user, managed)

    def tend(self) -> None:
        """See, now and then, which actors answer, are silent, hang or are to be started."""
        now = time.monotonic()
        if now - self._tended_at < self._limits.look_s:
            return
        self._tended_at = now
        self._see_who_runs()  # Ctrl-C may have come in between
        pending = [actor.ping for actor in self.actors.values() if actor.ping is not None]
        answered = set(ray.wait(pending, num_returns=len(pending), timeout=0)[0]) if pending else set()
        for actor in list(self.actors.values()):
            self._do(actor, [])
            if actor.ping in answered:
                self._hear(actor)
            else:
                self._do(actor, actor.state.tick(now))

    def refuse(self, actor: Actor, why: str) -> None:
        """Event: it may not read a stream. It is replaced where nobody else reads with it."""
        if self._options.name is None and len(self.pools) < 2:
            commands = actor.state.failed(why, time.monotonic(), is_dead=False)
            actor.state.loss = None  # it was asked for nothing
            self._do(actor, [each for each in commands if not isinstance(each, LoseRequests)])

    def _hear(self, actor: Actor) -> None:
        """Event: it has answered a ping."""
        state = actor.state
        try:
            who = ray.get(actor.ping)
        except Exception as error:  # its class or environment could not be loaded there, or a call in it failed
            self.failed(actor, error)
            return
        process = Process(who["worker_id"], who["pid"], who["node_id"], who["host"])
        why_ended = ""
        if state.phase == "running" and state.process.worker_id != process.worker_id:
            why_ended = self._why_gone(state, "its process has ended, and another process answers")
        timeout_s = self._options.request_timeout_s
        if who["is_trial"]:  # which has its own clock
            timeout_s = Trial(timeout_s).most_s
        self._do(actor, state.answered(process, time.monotonic(), who["at_s"], timeout_s, why_ended))

    def failed(self, actor: Actor, error: Exception) -> None:
        state, now = actor.state, time.monotonic()
        reason = self._why_gone(state, first_line(error)) if state.phase == "running" else _why_no_start(error)
        if isinstance(error, (ActorUnavailableError, OtherProcessError)):
            self._do(actor, state.unavailable(reason, now))
        else:
            self._do(actor, state.failed(reason, now, is_dead=isinstance(error, ACTOR_GONE)))

    def _why_gone(self, state: ActorState, otherwise: str) -> str:
        """Ray tells callers of an actor that "the actor is unavailable", whatever ended its process."""
        # the head may not answer, and then Ray's own exception has to do
        with contextlib.suppress(Exception), Head(ray.get_runtime_context().gcs_address, POLL_S) as head:
            return head.out_of_memory(state.process.worker_id) or otherwise
        return otherwise

    def send(self, actor: Actor, sent: InFlight) -> None:
        self._do(actor, actor.state.sent(sent, time.monotonic()))

    def holder(self, sent: InFlight) -> Actor | None:
        """The actor that has the request; None where it is done, lost or dropped."""
        actor = self.actors.get(sent.part.actor)
        return actor if actor is not None and sent in actor.state.requests else None

    def done(self, sent: InFlight, block: Block, *, is_measured: bool = True) -> None:
        """Event: the block is here. is_measured: whether its time tells the speed of the actor."""
        if (actor := self.holder(sent)) is not None:
            self._do(actor, actor.state.done(sent, time.monotonic()))
            if is_measured and block.read_s:  # or it is a part of what was read before
                self.load_balance.read(actor.index, len(block.positions), block.read_s, self.ready)

    def drop(self, sent: InFlight) -> None:
        """Event: nobody waits for it any more, or its block is lost."""
        if (actor := self.holder(sent)) is not None:
            self._do(actor, actor.state.dropped(sent))

    def _do(self, actor: Actor, commands: Commands) -> None:
        """Carry out commands, and those before that Ctrl-C has interrupted."""
        actor.to_do += commands
        state = actor.state
        if state.asked_at is None:
            actor.ping = None
        if self.running.get(actor.index) != (state.process if state.phase == "running" else None):
            self._see_who_runs()
        while actor.to_do:
            self._carry_out(actor, actor.to_do[0])
            del actor.to_do[:1]

    def _carry_out(self, actor: Actor, command: Command) -> None:
        match command:
            case Start():
                try:
                    its_class = self._remote_class or remote_class()
                    actor.handle = start_actor(actor.index, self._options, self._identity, its_class)
                except Exception as error:
                    actor.to_do.clear()
                    self._do(actor, actor.state.failed(first_line(error), time.monotonic(), is_dead=False))
                    raise
                actor.ping = actor.handle.stats.remote(self.user)
            case Ask():
                actor.ping = actor.handle.stats.remote(self.user)
            case Kill(for_ever):
                with contextlib.suppress(Exception):  # it may be gone
                    ray.kill(actor.handle, no_restart=for_ever)
            case LoseRequests(requests, reason, process):
                # a silent actor may be so by a record: a call that holds the interpreter's lock answers nobody
                actor.num_retried = _lose(requests, reason, was_read=process is not None)
                actor.tokens_lost = tuple(sent.token for sent in requests)
                if process is not None:
                    self.load_balance.forget(actor.index)
                    num_running = len({*self.ready} - {actor.index})
                    self.recoveries.lost(actor.index, str(process), reason, num_running, len(self.actors))
                    self._tended_at = 0.0
            case Forget():
                actor.handle.forget.remote(actor.tokens_lost)
            case TellNoStart(reason):
                logger.warning(
                    "reader actor %d cannot start, and is tried less and less often: %s", actor.index, reason
                )
            case TellReturn(kind, reason, took_s):
                self.recoveries.add(
                    Recovery(kind, actor.index, str(actor.state.process), reason, took_s, actor.num_retried)
                )


def _why_no_start(error: Exception) -> str:
    """Why an actor could not start: the last line of the error says it, where a constructor raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0]} {lines[-1] if len(lines) > 1 else ''}"[:500].rstrip()


def _lose(requests: Sequence[InFlight], reason: str, *, was_read: bool) -> int:
    """Set the outcome of requests in flight: read before, or lost. Returns how many are lost.

    was_read: whether the first lost request, which the actor was reading, may be the reason.
    """
    refs = [sent.ref for sent in requests]
    ended = set(ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]) if refs else set()
    num_lost, deadline = 0, time.monotonic() + POLL_S  # for all of them: the lock is held
    for sent in requests:
        if sent.ref in ended:
            try:
                answer = ray.get(sent.ref, timeout=max(0.0, deadline - time.monotonic()))
                sent.outcome = whole(answer, max(0.0, deadline - time.monotonic()))
                continue
            except Exception:  # an error of its own would come again, and then be raised
                pass
        sent.outcome = Lost(sent.part, reason, was_read=was_read and num_lost == 0)
        num_lost += 1
    return num_lost
