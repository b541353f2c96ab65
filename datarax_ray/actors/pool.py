"""The pool of reader actors: starts them, sends tickets, receives blocks, and gives the tickets of the lost to others.

Ray brings a killed actor back (max_restarts), but does not run its tickets again (max_task_retries is 0): a ticket is a
pure function, so whoever lives reads it at once, where Ray would wait for the restart, retry without end, and print
each. What is lost is told by Ray, or by the clock: an actor that answers no ping, or sits at one ticket too long.

    starting -> ready -> gone (Ray says so, or silent) -> ready ...       a ready one is sent tickets, another is not

Nothing here waits for longer than a moment while the lock is held: a pool is used by several threads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
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

from datarax_ray.actors.member import Loss, Member, Sent
from datarax_ray.actors.quiet import silence
from datarax_ray.actors.reader_actor import ReaderActor
from datarax_ray.actors.recovery import Recoveries, Recovery
from datarax_ray.feed.pace import Pace
from datarax_ray.feed.stream import Arrived, Lost
from datarax_ray.feed.window import Part
from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.blocks import Block
from datarax_ray.read.description import Described

logger = logging.getLogger("datarax_ray")

# What Ray raises where an actor is gone, or an object, through no fault of the task.
_ACTOR_GONE = (NodeDiedError, OutOfMemoryError, RayActorError, WorkerCrashedError)
_GONE = (*_ACTOR_GONE, ObjectLostError)
# A wait is this long at most, then somebody looks whether it still makes sense. Ctrl-C and close take no longer.
_POLL_S = 0.25
# Between two looks at all actors: a look costs 0.1 ms for each.
_TEND_S = 0.5
# Nothing from an actor that has tickets for so long (parts aim at a second): it is asked whether it is there. No answer
# for _PATIENCE_S: its tickets go to others, at the cost of reading twice where it was only slow. A node that is lost
# without a word is so noticed in 7 s; Ray takes 15 to 40 s.
_QUIET_S = 2.0
_PATIENCE_S = 5.0
# Silent for so long: its process is ended, and Ray starts another. Cut off nodes heal sooner, as a rule, or never.
_SILENT_KILL_S = 60.0
# Starts that fail in a row before it is no accident, and how long to wait before the next: 1, 2, 4 s and so on.
_MAX_START_FAILURES = 3
_MAX_BACKOFF_S = 60.0
# Once one actor reads, the others get this long before the stream starts without them; they join when they are there.
_GATHER_S = 5.0
# An answer that Ray says is there is here: only the copying is waited for.
_FETCH_S = 60.0


@dataclass(frozen=True)
class ActorOptions:
    """How actors are made and placed. num_cpus: that one reserves. resources, label_selector: where it may run.

    name: shares the actors between drivers that give the same name in the same Ray namespace (the trainers of one job).
    start_timeout_s: how long to wait for an actor where none runs. ticket_timeout_s: how long an actor may be at one
    ticket before it is taken for hung, ended and replaced.

    Raises: ValueError for a ticket_timeout_s that is not positive.
    """

    num_cpus: float = 1.0
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
    memory: int | None = None
    name: str | None = None
    start_timeout_s: float = 300.0
    runtime_env: Mapping[str, Any] | None = None
    ticket_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.ticket_timeout_s > 0:
            raise ValueError(f"ticket_timeout_s must be more than 0, got {self.ticket_timeout_s}")


class RayPool:
    """Reader actors with the ids 0 to num_actors - 1, behind the interface that a stream reads through."""

    def __init__(self, description: Described, num_actors: int, options: ActorOptions) -> None:
        self._description: ray.ObjectRef | None = _put(description)
        self._identity = digest(description.settings())
        self._options = options
        self._lock = threading.RLock()
        self._pace = Pace()
        self._is_closed = False
        self._is_gathered = False
        self._tended_at = 0.0
        self._none_since: float | None = None
        self._first_at: float | None = None
        self._why_not = ""
        self.recoveries = Recoveries()
        self._members = {index: self._member(index) for index in range(num_actors)}
        self._next_index = num_actors

    def actors(self) -> tuple[int, ...]:
        """Ids of the actors that run; waits a moment where there are none, and at first a little for all of them.

        Raises: RuntimeError where none runs for start_timeout_s, or none can start; and once the pool is closed.
        """
        with self._lock:
            self._check_open()
            self._tend()
            ready = tuple(index for index, member in self._members.items() if member.is_ready)
            if ready and self._has_gathered(len(ready)):
                self._none_since = None
                return ready
            pings = [member.ping for member in self._members.values() if member.ping is not None]
            if not ready:
                self._check_hope()
            self._tended_at = 0.0
        if pings:
            ray.wait(pings, num_returns=1, timeout=_POLL_S)
        else:
            time.sleep(_POLL_S)
        return ()

    def weights(self) -> dict[int, float]:
        """How much an actor should own of what is even, for those that read much slower or faster than most."""
        return self._pace.weights

    def send(self, part: Part) -> Sent:
        with self._lock:
            self._check_open()
            member = self._members.get(part.actor)
            if member is None or not member.is_ready:
                return Sent(part, None, Lost(part, "its actor has just gone", was_read=False))
            now = time.monotonic()
            if not member.sent:
                member.progress_at = member.heard_at = now
            sent = Sent(part, member.handle.read.remote([self._description], part.ticket))
            member.sent[sent.ref] = sent
            return sent

    def receive(self, sent: Mapping[Part, Sent]) -> Arrived | Lost | None:
        """Wait a moment for one of the parts. What the read raised is raised here; RuntimeError once closed."""
        self._check_open()
        for part, ask in sent.items():
            if ask.outcome is not None:
                return Arrived(part, ask.outcome) if isinstance(ask.outcome, Block) else ask.outcome
        refs = {ask.ref: ask for ask in sent.values()}
        ready, _ = ray.wait(list(refs), num_returns=1, timeout=_POLL_S)
        self._check_open()
        if not ready:
            return None
        ask = refs[ready[0]]
        block = self._fetch(ask)
        if block is None:
            return ask.outcome if isinstance(ask.outcome, Lost) else None
        return Arrived(ask.part, block)

    def lost(self, sent: Mapping[Part, Sent]) -> list[Lost]:
        return [ask.outcome for ask in sent.values() if isinstance(ask.outcome, Lost)]

    def discard(self, sent: Mapping[Part, Sent]) -> None:
        with self._lock:
            for ask in sent.values():
                if ask.ref is not None:
                    for member in self._members.values():
                        member.sent.pop(ask.ref, None)
                    if ray.is_initialized() and not self._is_closed:
                        ray.cancel(ask.ref)  # what has not begun will not; what runs ends by itself and is dropped

    def stats(self) -> dict[int, dict[str, Any]]:
        """What each actor says of itself, by id; those that do not answer within 5 s are missing."""
        with self._lock:
            self._check_open()
            asked = {member.handle.stats.remote(): index for index, member in self._members.items()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_PATIENCE_S)
        found = {}
        for ref in answered:
            with contextlib.suppress(*_GONE, RayTaskError):  # gone: those that do not answer are missing
                found[asked[ref]] = ray.get(ref)
        return dict(sorted(found.items()))

    def add(self, num_actors: int) -> tuple[int, ...]:
        """Start more actors; they take their share of the shards once they run. Returns their ids."""
        with self._lock:
            self._check_open()
            added = tuple(range(self._next_index, self._next_index + num_actors))
            self._next_index += num_actors
            self._members |= {index: self._member(index) for index in added}
            return added

    def remove(self, num_actors: int) -> tuple[int, ...]:
        """End actors, those that do not run first, then the newest; others read what they were at. Returns their ids.

        Raises: ValueError where none would be left.
        """
        with self._lock:
            self._check_open()
            if num_actors >= len(self._members):
                raise ValueError(f"removing {num_actors} of {len(self._members)} actors would leave none to read")
            by_use = sorted(self._members.values(), key=lambda member: (member.is_ready, -member.index))
            for member in by_use[:num_actors]:
                del self._members[member.index]
                self._pace.forget(member.index)
                self._lose_all(member, "it was removed", was_read=False)
                if self._options.name is None:
                    ray.kill(member.handle)
            return tuple(sorted(member.index for member in by_use[:num_actors]))

    def rebalance(self) -> dict[int, float]:
        """Let every actor own as much as it was measured to read, at once. Returns the weights other than 1.0."""
        with self._lock:
            self._pace.settle(self._members)
            return self._pace.weights

    def __len__(self) -> int:
        return len(self._members)

    def close(self) -> None:
        """Kill the actors. Named ones live on for the other drivers and end with the driver that made them."""
        self._is_closed = True  # before the lock: whoever waits stops waiting
        with self._lock:
            members, self._members = self._members, {}
            self._description = None  # frees what it holds in the object store
            for member in members.values():
                member.sent.clear()
                if ray.is_initialized() and self._options.name is None:
                    ray.kill(member.handle)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this RaySource is closed, its actors are gone; make a new one")
        if not ray.is_initialized():  # or the next call would start another Ray, from this thread
            raise RuntimeError("Ray was shut down, and the actors of this RaySource with it; make a new one")

    def _member(self, index: int) -> Member:
        handle = self._start(index)
        return Member(index, handle, handle.stats.remote(), time.monotonic())

    def _start(self, index: int) -> Any:
        options: dict[str, Any] = {
            "num_cpus": self._options.num_cpus,
            "max_restarts": -1,
            "max_task_retries": 0,
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
        return actor.options(**options).remote(index)

    def _has_gathered(self, num_ready: int) -> bool:
        """Whether to begin: all run, or the first has waited long enough for the others."""
        if self._is_gathered:
            return True
        now = time.monotonic()
        self._first_at = now if self._first_at is None else self._first_at
        if num_ready < len(self._members) and now - self._first_at < _GATHER_S:
            return False
        self._is_gathered = True
        if num_ready < len(self._members):
            logger.warning(
                "%d of %d reader actors have started; the stream begins with them, the others join when the "
                "cluster has room (each needs %g CPUs)",
                num_ready,
                len(self._members),
                self._options.num_cpus,
            )
        return True

    def _check_hope(self) -> None:
        """Raise RuntimeError where no actor runs, and none will."""
        now = time.monotonic()
        self._none_since = now if self._none_since is None else self._none_since
        failures = min(member.num_failures for member in self._members.values())
        if self._why_not and failures >= _MAX_START_FAILURES:
            raise RuntimeError(f"no reader actor can start, each was tried {failures} times; the last: {self._why_not}")
        if now - self._none_since > self._options.start_timeout_s:
            raise RuntimeError(self._why_none(now - self._none_since))

    def _why_none(self, waited_s: float) -> str:
        has, free = ray.cluster_resources().get("CPU", 0), ray.available_resources().get("CPU", 0)
        return (
            f"none of {len(self._members)} reader actors runs after {waited_s:.0f} s. Each needs "
            f"{self._options.num_cpus:g} CPUs, resources {dict(self._options.resources or {})} and labels "
            f"{dict(self._options.label_selector or {})}; the cluster has {has:g} CPUs, {free:g} free. "
            "Ask for less, free some, or add nodes."
        )

    def _tend(self) -> None:
        """Look after every actor, now and then: who answers, who is silent, who hangs, who is to be started."""
        now = time.monotonic()
        if now - self._tended_at < _TEND_S:
            return
        self._tended_at = now
        pending = [member.ping for member in self._members.values() if member.ping is not None]
        answered = set(ray.wait(pending, num_returns=len(pending), timeout=0)[0]) if pending else set()
        for member in list(self._members.values()):
            if member.ping in answered:
                self._answered(member, now)
            elif member.ping is not None:
                self._silent(member, now)
            elif member.start_at is not None:
                if now >= member.start_at:
                    member.handle, member.start_at = self._start(member.index), None
                    member.pings(now)
            elif not member.is_ready or (member.sent and now - member.heard_at > _QUIET_S):
                member.pings(now)

    def _answered(self, member: Member, now: float) -> None:
        ping, member.ping = member.ping, None
        try:
            who = ray.get(ping)
        except ActorUnavailableError as error:  # Ray is at it; ask again
            self._gone(member, error)
        except _ACTOR_GONE as error:
            self._gone(member, error)
        except Exception as error:  # its class or environment could not be loaded there, or a call in it failed
            self._fail_start(member, _first_line(error))
        else:
            if member.loss is not None and member.loss.kind == "hung" and who["pid"] == member.who.get("pid"):
                return  # it is being ended, and has answered once more
            member.who = who
            silence(who["node_id"], who["pid"])
            member.heard_at = now
            if not member.is_ready:
                self._returned(member, now)
            self._check_progress(member, now)

    def _returned(self, member: Member, now: float) -> None:
        member.is_ready = True
        member.progress_at = now
        loss, member.loss = member.loss, None
        if loss is not None:
            self.recoveries.add(
                Recovery(loss.kind, member.index, member.where, loss.reason, now - loss.since, loss.num_retried)
            )

    def _silent(self, member: Member, now: float) -> None:
        """Its ping is not answered yet."""
        waited = now - member.pinged_at
        if member.is_ready and waited > _PATIENCE_S:
            self._take(member, "answered", f"it did not answer for {waited:.0f} s")
        elif member.loss is not None and member.loss.kind == "answered" and now - member.loss.since > _SILENT_KILL_S:
            self._kill(member, now, f"it did not answer for {waited:.0f} s")

    def _check_progress(self, member: Member, now: float) -> None:
        """It lives: is it also at work?"""
        if not member.sent:
            return
        done, _ = ray.wait(list(member.sent), num_returns=len(member.sent), timeout=0, fetch_local=False)
        if len(done) != member.num_done or len(done) == len(member.sent):
            member.num_done, member.progress_at = len(done), now
        elif now - member.progress_at > self._options.ticket_timeout_s:
            self._kill(member, now, f"a ticket took longer than ticket_timeout_s={self._options.ticket_timeout_s:g}")

    def _kill(self, member: Member, now: float, reason: str) -> None:
        """End its process; Ray sends SIGKILL after 5 s where it does not go, and starts another."""
        self._take(member, "hung", reason)
        ray.kill(member.handle, no_restart=False)
        member.pings(now)

    def _gone(self, member: Member, error: Exception) -> None:
        """Ray says that the actor is gone. Where it will not come back, another one takes its place."""
        is_dead = not isinstance(error, ActorUnavailableError)
        has_run = bool(member.who)
        self._take(member, "replaced" if is_dead else "restarted", _first_line(error))
        if is_dead and member.start_at is None:
            if not has_run:
                self._fail_start(member, _reason(error))
                return
            member.ping, member.start_at = None, time.monotonic() + _backoff_s(member.num_failures)

    def _fail_start(self, member: Member, reason: str) -> None:
        self._why_not = reason
        if member.num_failures + 1 == _MAX_START_FAILURES:
            logger.warning("reader actor %d cannot start, and is tried less and less often: %s", member.index, reason)
        member.num_failures += 1
        self._take(member, "replaced", reason)
        with contextlib.suppress(Exception):  # dead or not, it is of no use
            ray.kill(member.handle)
        member.ping, member.start_at = None, time.monotonic() + _backoff_s(member.num_failures)

    def _take(self, member: Member, kind: str, reason: str) -> None:
        """Its tickets go to others. Once for a loss, however many of its tickets tell of it."""
        was_ready, member.is_ready = member.is_ready, False
        if member.index in self._members:
            self._pace.forget(member.index)
        num_lost = self._lose_all(member, reason)
        if was_ready:
            self._tended_at = 0.0
            member.num_failures += 1
            member.loss = Loss(kind, time.monotonic(), reason, num_lost)
        elif member.loss is not None:
            kind = member.loss.kind if kind == "restarted" or member.loss.kind == "hung" else kind
            member.loss = Loss(kind, member.loss.since, member.loss.reason, member.loss.num_retried + num_lost)

    def _lose_all(self, member: Member, reason: str, *, was_read: bool = True) -> int:
        """Tell every ticket in flight what became of it: read before, or lost. Returns how many are lost.

        was_read: whether the first of them, which the actor was at, may be why.
        """
        refs = list(member.sent)
        done = set(ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]) if refs else set()
        num_lost = 0
        for ref in refs:
            ask = member.sent.pop(ref)
            if ref in done:
                try:
                    ask.outcome = ray.get(ref, timeout=_POLL_S)
                    continue
                except Exception:  # an error of its own would come again, and then be raised
                    pass
            ask.outcome = Lost(ask.part, f"actor {member.index}: {reason}", was_read=was_read and num_lost == 0)
            num_lost += 1
        member.num_done = 0
        return num_lost

    def _fetch(self, ask: Sent) -> Block | None:
        """The block that has come; None where it is lost, and then the outcome says so."""
        try:
            block: Block = ray.get(ask.ref, timeout=_FETCH_S)
        except Exception as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            with self._lock:
                if ask.outcome is not None:
                    return ask.outcome if isinstance(ask.outcome, Block) else None
                member = self._members.get(ask.part.actor)
                member = member if member is not None and ask.ref in member.sent else None
                if isinstance(cause, _ACTOR_GONE) and member is not None:
                    self._gone(member, cause)
                elif isinstance(cause, (*_GONE, ray.exceptions.GetTimeoutError)):
                    self._lose_one(ask, member, cause)
                else:
                    raise (cause if isinstance(cause, Exception) else error) from None
            return ask.outcome if isinstance(ask.outcome, Block) else None
        with self._lock:
            now = time.monotonic()
            member = self._members.get(ask.part.actor)
            if member is not None and member.sent.pop(ask.ref, None) is not None:
                member.heard_at = member.progress_at = now
                member.num_done = max(0, member.num_done - 1)
                member.num_failures = 0
                ready = [index for index, other in self._members.items() if other.is_ready]
                self._pace.read(member.index, len(block.positions), block.read_s, ready)
        return block

    def _lose_one(self, ask: Sent, member: Member | None, error: Exception) -> None:
        """The actor lives, but what it read is gone: evicted, or with its node."""
        if member is not None:
            member.sent.pop(ask.ref, None)
        ask.outcome = Lost(ask.part, _first_line(error))
        where = member.where if member is not None else "gone"
        self.recoveries.add(Recovery("reread", ask.part.actor, where, _first_line(error), 0.0, 1))


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


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]


def _reason(error: Exception) -> str:
    """Why it could not start: the last line says it, where a constructor raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]} {lines[-1] if len(lines) > 1 else ''}"[:500] if lines else repr(error)


def _backoff_s(num_failures: int) -> float:
    """None after the first loss; then 1, 2, 4 s and so on."""
    return 0.0 if num_failures <= 1 else min(_MAX_BACKOFF_S, 2.0 ** (num_failures - 2))
