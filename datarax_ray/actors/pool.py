"""The pool of reader actors: starts them, sends parts, receives blocks, and replaces what dies.

Ray restarts a killed actor and runs its tickets again by itself (max_restarts, max_task_retries: a ticket is a pure
function, so that is correct). What Ray gives up comes back as Lost, from a new actor under the same id.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from datarax_ray.actors.reader_actor import ReaderActor
from datarax_ray.feed.stream import Arrived, Lost
from datarax_ray.feed.window import Part
from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.blocks import Block
from datarax_ray.read.description import Described

logger = logging.getLogger("datarax_ray")

# What Ray raises where a task or its result is gone through no fault of the task.
_GONE = (ActorUnavailableError, NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, WorkerCrashedError)
# Nothing has come for so long: ask whether the actors are there. Ray restarts an actor in 1 to 3 s where it has room.
_PATIENCE_S = 5.0
# Restarts of one actor during one wait. A host that is lost costs one; a record that kills its process costs all.
_MAX_DEATHS = 3
# What a ticket may take to end when the source is closed; closing takes no longer.
_GRACE_S = 2.0
# Once one actor reads, the others get this long before the stream starts without them; they join when they are there.
_GATHER_S = 5.0


@dataclass(frozen=True)
class ActorOptions:
    """How actors are made and placed. num_cpus: that one reserves. resources, label_selector: where it may run.

    name: shares the actors between drivers that give the same name in the same Ray namespace (the trainers of one job).
    start_timeout_s: how long to wait for the first actor.
    """

    num_cpus: float = 1.0
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
    memory: int | None = None
    name: str | None = None
    start_timeout_s: float = 300.0
    runtime_env: Mapping[str, Any] | None = None


@dataclass
class _Member:
    """One actor of the pool. ready: a pending call that answers once it runs; None from then on."""

    handle: Any
    ready: Any


@dataclass(frozen=True)
class _Sent:
    """A ticket on its way: the actor that has it, and what it will answer."""

    member: _Member
    ref: ray.ObjectRef


class RayPool:
    """Reader actors with the ids 0 to num_actors - 1, behind the interface that a stream reads through."""

    def __init__(self, description: Described, num_actors: int, options: ActorOptions) -> None:
        self._description: ray.ObjectRef | None = _put(description)
        self._identity = digest(description.settings())
        self._options = options
        self._members = {index: self._start(index) for index in range(num_actors)}
        self._polled = 0.0
        self._is_closed = False

    def actors(self) -> tuple[int, ...]:
        """Ids of the actors that run; waits for the first, and a little for the others."""
        self._check_open()
        waiting = [member for member in self._members.values() if member.ready is not None]
        if waiting and (len(waiting) == len(self._members) or time.monotonic() - self._polled > 1.0):
            self._gather(waiting)
        return tuple(index for index, member in self._members.items() if member.ready is None)

    def send(self, part: Part) -> _Sent:
        self._check_open()
        member = self._members[part.actor]
        return _Sent(member, member.handle.read.remote([self._description], part.ticket))

    def receive(self, sent: Mapping[Part, _Sent]) -> Arrived | Lost:
        """Wait for one of the parts. What the read raised is raised here; RuntimeError once the pool is closed."""
        parts = {ask.ref: part for part, ask in sent.items()}
        begin = time.monotonic()
        seen: dict[int, set[int]] = {}  # the processes that each actor has had during this wait
        while True:
            ready, _ = ray.wait(list(parts), num_returns=1, timeout=_PATIENCE_S)
            if ready:
                break
            self._check_open()
            actors = {part.actor for part in sent}
            absent = self._absent(actors, seen)
            self._check_deaths(seen, next(iter(sent)))
            if absent:
                return _lost(
                    next(part for part in sent if part.actor in absent),
                    f"its actor has not answered for {_PATIENCE_S:.0f} s",
                )
            first = next(iter(sent)).ticket
            waited = time.monotonic() - begin
            logger.warning(
                "waiting for positions [%d, %d) for %.0f s; actors %s live and read",
                first.start,
                first.stop,
                waited,
                sorted(actors),
            )
        part = parts[ready[0]]
        self._check_open()
        try:
            block: Block = ray.get(ready[0])
        except RayTaskError as error:
            if isinstance(error, _GONE) or isinstance(error.cause, _GONE):
                return self._replace(part, sent[part].member, error)
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except _GONE as error:
            return self._replace(part, sent[part].member, error)
        return Arrived(part, block)

    def discard(self, sent: Mapping[Part, _Sent]) -> None:
        if ray.is_initialized():
            for ask in sent.values():
                ray.cancel(ask.ref)  # what has not begun will not; what runs ends by itself and is dropped

    def stats(self) -> dict[int, dict[str, Any]]:
        """What each actor says of itself, by id; those that do not answer within 5 s are missing."""
        asked = {member.handle.stats.remote(): index for index, member in self._members.items()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_PATIENCE_S)
        return {asked[ref]: ray.get(ref) for ref in answered}

    def close(self) -> None:
        """Kill the actors. Named ones live on for the other drivers and end with the driver that made them."""
        self._is_closed = True
        members, self._members = self._members, {}
        self._description = None  # frees what it holds in the object store
        if not ray.is_initialized() or self._options.name is not None:
            return
        # An actor that is killed in the middle of a ticket makes Ray announce that it will retry.
        idle = [member.handle.drain.remote() for member in members.values() if member.ready is None]
        if idle:
            ray.wait(idle, num_returns=len(idle), timeout=_GRACE_S)
        for member in members.values():
            ray.kill(member.handle)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this RaySource is closed, its actors are gone; make a new one")
        if not ray.is_initialized():  # or the next call would start another Ray, from this thread
            raise RuntimeError("Ray was shut down, and the actors of this RaySource with it; make a new one")

    def _start(self, index: int) -> _Member:
        options: dict[str, Any] = {
            "num_cpus": self._options.num_cpus,
            "max_restarts": -1,
            "max_task_retries": -1,
            "scheduling_strategy": "SPREAD",
        }
        for key in ("resources", "label_selector", "memory", "runtime_env"):
            value = getattr(self._options, key)
            if value is not None:
                options[key] = dict(value) if isinstance(value, Mapping) else value
        if self._options.name is not None:
            # with what it reads in its name: one name for two sources must not serve one the other's records
            name = f"datarax_ray/{self._options.name}/{self._identity}/{index}"
            options |= {"name": name, "get_if_exists": True}
        actor = ray.remote(concurrency_groups={"control": 1})(ReaderActor)
        handle = actor.options(**options).remote(index)
        return _Member(handle, handle.stats.remote())

    def _gather(self, waiting: list[_Member]) -> None:
        """Wait for actors to start: for the first as long as it may take, then _GATHER_S for the others, then not."""
        begin = time.monotonic()
        pending = {member.ready: member for member in waiting}
        first = len(waiting) == len(self._members)
        ready, rest = ray.wait(list(pending), num_returns=1, timeout=self._options.start_timeout_s if first else 0)
        if first and not ready:
            raise RuntimeError(self._why_none(time.monotonic() - begin))
        if first and rest:
            more, rest = ray.wait(rest, num_returns=len(rest), timeout=_GATHER_S)
            ready += more
            if rest:
                logger.warning(
                    "%d of %d reader actors have started; the stream begins with them, the others join when the "
                    "cluster has room (each needs %g CPUs)",
                    len(ready),
                    len(self._members),
                    self._options.num_cpus,
                )
        for ref in ready:
            pending[ref].ready = None
        self._polled = time.monotonic()

    def _why_none(self, waited_s: float) -> str:
        has, free = ray.cluster_resources().get("CPU", 0), ray.available_resources().get("CPU", 0)
        return (
            f"none of {len(self._members)} reader actors runs after {waited_s:.0f} s. Each needs "
            f"{self._options.num_cpus:g} CPUs, resources {dict(self._options.resources or {})} and labels "
            f"{dict(self._options.label_selector or {})}; the cluster has {has:g} CPUs, {free:g} free. "
            "Ask for less, free some, or add nodes."
        )

    def _absent(self, actors: set[int], seen: dict[int, set[int]]) -> set[int]:
        """Which of these actors do not answer; they count as not started until they do. seen: notes who answered."""
        pings = {self._members[index].handle.stats.remote(): index for index in actors}
        answered, silent = ray.wait(list(pings), num_returns=len(pings), timeout=_PATIENCE_S)
        for ref in answered:
            with contextlib.suppress(*_GONE):  # gone again: the wait for its part will tell
                seen.setdefault(pings[ref], set()).add(ray.get(ref)["pid"])
        for ref in silent:
            logger.warning("reader actor %d does not answer; others read for it until it does", pings[ref])
            self._members[pings[ref]].ready = ref
        return {pings[ref] for ref in silent}

    def _check_deaths(self, seen: Mapping[int, set[int]], part: Part) -> None:
        """Raise RuntimeError where an actor is restarted again and again in one wait: Ray itself would never stop."""
        for index, processes in seen.items():
            if len(processes) > _MAX_DEATHS:
                raise RuntimeError(
                    f"reader actor {index} died {len(processes) - 1} times while it read positions "
                    f"[{part.ticket.start}, {part.ticket.stop}); a record or transform there ends its process (memory, "
                    "a crash in C, os._exit). Read these positions in one process (source.get_batch_at) to find it."
                )

    def _replace(self, part: Part, member: _Member, error: Exception) -> Lost:
        """A part did not survive. Where its actor will not come back, put a new one in its place, once."""
        is_dead = isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)
        if is_dead and self._members.get(part.actor) is member:
            logger.warning(
                "reader actor %d is gone, another takes its place: %s", part.actor, str(error).splitlines()[0]
            )
            self._members[part.actor] = self._start(part.actor)
        return _lost(part, f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _put(description: Described) -> ray.ObjectRef:
    """One copy for all actors; on a node they share the arrays in it."""
    try:
        return ray.put(description)
    except TypeError as error:
        error.add_note(
            "The source and its transforms travel to the actors by pickle. Open files, locks and connections do not: "
            "make them where they are first used, in the transform's call."
        )
        raise


def _lost(part: Part, reason: str) -> Lost:
    ticket = part.ticket
    logger.info("positions [%d, %d) of actor %d are asked for again: %s", ticket.start, ticket.stop, part.actor, reason)
    return Lost(part, reason)
