"""The roster: every reader actor of a pool, whether it is there, and what becomes of its requests where it is not.

    starting -> ready -> gone (Ray says so, or silent, or hung) -> ready ...

Ray brings a killed actor back; one that Ray gives up is replaced, one that hangs is ended. What is lost is told by Ray,
or by the clock: no answer to a ping, or too long at one request. Nothing here waits for longer than a moment.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time

import ray
from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from datarax_ray.actors.bench import Bench
from datarax_ray.actors.exit_reason import OUT_OF_MEMORY, first_line, out_of_memory, why_no_start
from datarax_ray.actors.member import Loss, Member
from datarax_ray.actors.options import ActorOptions
from datarax_ray.actors.ray_log_filter import silence
from datarax_ray.actors.recovery import Recoveries, Recovery
from datarax_ray.actors.start_quorum import StartQuorum
from datarax_ray.actors.starting import let_go, start_actor, when_others_start, why_none
from datarax_ray.actors.trial import Trial
from datarax_ray.feed.flow import Lost
from datarax_ray.feed.load_balance import LoadBalance

logger = logging.getLogger("datarax_ray")

# What Ray raises where an actor is gone through no fault of the task.
ACTOR_GONE = (NodeDiedError, OutOfMemoryError, RayActorError, WorkerCrashedError)
# A wait is this long at most, then somebody looks whether it still makes sense. Ctrl-C and close take no longer.
POLL_S = 0.25
# Between two looks at all actors: a look costs 0.1 ms for each.
_TEND_S = 0.5
# Nothing from an actor that has requests for so long (parts aim at a second): it is asked whether it is there. No
# answer for _PATIENCE_S: its requests go to others, at the cost of reading twice where it was only slow. A node that is
# lost without a word is so noticed in 7 s; Ray takes 15 to 40 s.
_QUIET_S = 2.0
_PATIENCE_S = 5.0
# Ray brings an actor back in 1 to 5 s, but takes up to 40 s to call a node dead, and brings none back from it before:
# then a new one is asked for, elsewhere.
_RETURN_S = 12.0
# Silent for so long: its process is ended, and Ray starts another. Cut off nodes heal sooner, as a rule, or never.
_SILENT_KILL_S = 60.0
# Starts that fail in a row before it is no accident, and how long to wait before the next: 1, 2, 4 s and so on.
_MAX_START_FAILURES = 3
_MAX_BACKOFF_S = 60.0


class Roster:
    """The actors with the ids 0 to num_actors - 1, and those that are added. `lock` is held for every call."""

    def __init__(self, num_actors: int, options: ActorOptions, identity: str, *, is_managed: bool) -> None:
        self.lock = threading.RLock()
        self.load_balance = LoadBalance()
        self.recoveries = Recoveries()
        self._bench = Bench()
        self._options = options
        self._identity = identity
        self._is_managed = is_managed
        self._quorum = StartQuorum(options.start_timeout_s)
        self._has_begun = False
        self._tended_at = 0.0
        self._why_not = ""
        self._user = secrets.token_hex(8)
        self.members: dict[int, Member] = {}
        self._next_index = 0
        self.add(num_actors)

    @property
    def request_timeout_s(self) -> float:
        """How long an actor may be at one request."""
        return self._options.request_timeout_s

    @property
    def ready(self) -> tuple[int, ...]:
        """Ids of those that are sent requests."""
        return tuple(index for index, member in self.members.items() if member.is_ready)

    @property
    def nodes(self) -> dict[int, str]:
        """Where each of them is, those of benched nodes last."""
        now = time.monotonic()
        found = {index: self.members[index].who["node_id"] for index in self.ready}
        return dict(sorted(found.items(), key=lambda pair: self._bench.has(pair[1], now)))

    def blame(self, node: str, reason: str) -> None:
        """The node failed at what another one could read."""
        lasts_s = self._bench.blame(node, time.monotonic())
        if lasts_s is not None:
            actors = [index for index, at in self.nodes.items() if at == node]
            host = next((self.members[index].who["host"] for index in actors), "now without actors")
            self.recoveries.benched(actors, f"{node[:12]} ({host})", reason, lasts_s)

    def look(self) -> tuple[int, ...]:
        """Look after all, and give the ids of those to read with: () while none runs, or more are about to.

        Raises: RuntimeError where none will run.
        """
        self.tend()
        now, ready = time.monotonic(), self.ready
        if ready and self._quorum.has_begun(now, len(ready), len(self.members)):
            self._begin(len(ready))
            return tuple(index for index in ready if not self._is_benched(index, now)) or ready
        if not ready:
            self._check_hope(now)
        self._tended_at = 0.0  # look again soon
        return ()

    def _is_benched(self, index: int, now: float) -> bool:
        return self._bench.has(self.members[index].who["node_id"], now)

    def _begin(self, num_ready: int) -> None:
        if not self._has_begun and num_ready < len(self.members):
            logger.warning(
                "%d of %d reader actors have started; the stream begins with them, the others join %s",
                num_ready,
                len(self.members),
                when_others_start(len(self.members), self._options),
            )
        self._has_begun = True

    def _check_hope(self, now: float) -> None:
        """Raise RuntimeError where no actor runs, and none will."""
        failures = min(member.num_failures for member in self.members.values())
        if self._why_not and failures >= _MAX_START_FAILURES:
            raise RuntimeError(f"no reader actor can start, each was tried {failures} times; the last: {self._why_not}")
        if (waited_s := self._quorum.waited_s(now)) is not None:
            raise RuntimeError(why_none(len(self.members), waited_s, self._options))

    def add(self, num_actors: int) -> tuple[int, ...]:
        """Start so many more. Returns their ids."""
        added = tuple(range(self._next_index, self._next_index + num_actors))
        self._next_index += num_actors
        for index in added:
            self.members[index] = Member(index, start_actor(index, self._options, self._identity), self._user)
            self.members[index].pings(time.monotonic())
        return added

    def remove(self, num_actors: int) -> tuple[int, ...]:
        """End so many, those that do not run first, then the newest. Returns their ids."""
        if num_actors >= len(self.members):
            raise ValueError(f"removing {num_actors} of {len(self.members)} actors would leave none to read")
        by_use = sorted(self.members.values(), key=lambda member: (member.is_ready, -member.index))
        for member in by_use[:num_actors]:
            del self.members[member.index]
            self.load_balance.forget(member.index)
            self._lose_all(member, "it was removed", was_read=False)
        self._let_go(by_use[:num_actors])
        return tuple(sorted(member.index for member in by_use[:num_actors]))

    def close(self) -> None:
        """Kill them; named ones live on for the other pools, and end with the last of these."""
        members = list(self.members.values())
        self.members.clear()
        for member in members:
            member.sent.clear()
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # of a Ray that was shut down since, and they with it
                self._let_go(members)

    def _let_go(self, members: list[Member]) -> None:
        let_go(members, are_shared=self._options.name is not None, are_managed=self._is_managed)

    def tend(self) -> None:
        """Look after every actor, now and then: who answers, who is silent, who hangs, who is to be started."""
        now = time.monotonic()
        if now - self._tended_at < _TEND_S:
            return
        self._tended_at = now
        pending = [member.ping for member in self.members.values() if member.ping is not None]
        answered = set(ray.wait(pending, num_returns=len(pending), timeout=0)[0]) if pending else set()
        for member in list(self.members.values()):
            if member.ping in answered:
                self._answered(member, now)
            elif member.ping is not None:
                self._silent(member, now)
            elif member.start_at is not None:
                if now >= member.start_at:
                    member.handle, member.start_at = start_actor(member.index, self._options, self._identity), None
                    member.due_at = now + _MAX_BACKOFF_S
                    member.pings(now)
            elif not member.is_ready or (member.sent and now - member.heard_at > _QUIET_S):
                member.pings(now)

    def _answered(self, member: Member, now: float) -> None:
        ping, member.ping = member.ping, None
        try:
            who = ray.get(ping)
        except ActorUnavailableError as error:  # Ray is at it; ask again
            self.gone(member, error)
        except ACTOR_GONE as error:
            self.gone(member, error)
        except Exception as error:  # its class or environment could not be loaded there, or a call in it failed
            self._fail_start(member, first_line(error))
        else:
            if member.loss is not None and member.loss.kind == "hung" and who["pid"] == member.who.get("pid"):
                return  # it is being ended, and has answered once more
            is_same = who["worker_id"] == member.who.get("worker_id")
            if member.is_ready and not is_same:  # lost and back, before any of its requests told of it
                reason = out_of_memory(member.who["worker_id"], POLL_S)
                self._take(member, "restarted", reason or "its process has ended, and another process answers")
            member.who = who
            silence(who["node_id"], who["pid"])
            member.heard_at = now
            if not member.is_ready:
                self._returned(member, now, is_same)
            self._check_progress(member, now)

    def _returned(self, member: Member, now: float, is_same: bool) -> None:
        """It reads again. is_same: in the process that it was lost in."""
        member.is_ready = True
        member.progress_at = now
        self._why_not = ""
        loss, member.loss = member.loss, None
        if loss is not None:
            kind = loss.kind
            if kind in ("answered", "restarted"):  # a host that is cut off is silent at first, and may then be given up
                kind = "answered" if is_same else "restarted"
            self.recoveries.add(
                Recovery(kind, member.index, member.where, loss.reason, now - loss.since, loss.num_retried)
            )

    def _silent(self, member: Member, now: float) -> None:
        """Its ping is not answered yet."""
        waited = now - member.pinged_at
        if member.is_ready and waited > _PATIENCE_S:
            self._take(member, "answered", f"it did not answer for {waited:.0f} s")
        elif member.loss is not None and member.loss.kind == "answered" and now - member.loss.since > _SILENT_KILL_S:
            self._kill(member, now, f"it did not answer for {waited:.0f} s")
        elif member.loss is not None and now > member.due_at and self._options.name is None:
            self._replace(member, now)

    def _replace(self, member: Member, now: float) -> None:
        """It does not come back: Ray waits for a node that it believes to be there, or for room. Ask for a new one."""
        with contextlib.suppress(Exception):  # whatever is left of it must not come back under the same id
            ray.kill(member.handle)
        self._take(member, "replaced", "it did not come back")
        member.num_failures += 1
        member.due_at = now + min(_MAX_BACKOFF_S, _RETURN_S * 2.0 ** (member.num_failures - 1))
        member.handle = start_actor(member.index, self._options, self._identity)
        member.pings(now)

    def _check_progress(self, member: Member, now: float) -> None:
        """It lives: is it also at work?"""
        if not member.sent:
            return
        done, _ = ray.wait(list(member.sent), num_returns=len(member.sent), timeout=0, fetch_local=False)
        if len(done) != member.num_done or len(done) == len(member.sent):
            member.num_done, member.progress_at = len(done), now
        elif now - member.progress_at > self._may_take_s(member):
            self._kill(member, now, f"a request took longer than request_timeout_s={self._options.request_timeout_s:g}")

    def _may_take_s(self, member: Member) -> float:
        """How long the member may be at one request; one that is tried apart has its own clock."""
        is_trying = any(ask.part.is_trial for ask in member.sent.values())
        return Trial(self.request_timeout_s).most_s if is_trying else self.request_timeout_s

    def _kill(self, member: Member, now: float, reason: str) -> None:
        """End its process; Ray sends SIGKILL after 5 s where it does not go, and starts another."""
        self._take(member, "hung", reason)
        ray.kill(member.handle, no_restart=False)
        member.pings(now)

    def gone(self, member: Member, error: Exception) -> None:
        """Ray says that the actor is gone. Where it will not come back, another one takes its place."""
        is_dead = not isinstance(error, ActorUnavailableError)
        if is_dead and not member.is_ready and member.start_at is None:  # for the first time, or again
            self._fail_start(member, why_no_start(error))
            return
        self._take(member, "replaced" if is_dead else "restarted", self._why_gone(member, error))
        if is_dead and member.start_at is None:
            member.ping, member.start_at = None, time.monotonic() + _backoff_s(member.num_failures)

    def _why_gone(self, member: Member, error: Exception) -> str:
        worker_id = member.who.get("worker_id") if member.is_ready else None
        return (worker_id and out_of_memory(worker_id, POLL_S)) or first_line(error)

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
        """Its requests go to others. Once for a loss, however many of its requests tell of it."""
        was_ready, member.is_ready = member.is_ready, False
        if member.index in self.members:
            self.load_balance.forget(member.index)
        # who is only silent may be so by what it reads: a call that holds the interpreter's lock answers no ping either
        num_lost = self._lose_all(member, reason)
        if was_ready:
            self.recoveries.lost(member.index, member.where, reason, len(self.ready), len(self.members))
            self._tended_at = 0.0
            member.num_failures += 1
            member.loss = Loss(kind, time.monotonic(), reason, num_lost)
            # one that is silent has its own time, and one that is being ended is on its way
            member.due_at = time.monotonic() + (_RETURN_S if kind == "restarted" else float("inf"))
        elif member.loss is not None:
            kind = member.loss.kind if kind == "restarted" or member.loss.kind == "hung" else kind
            member.loss = Loss(kind, member.loss.since, member.loss.reason, member.loss.num_retried + num_lost)

    def _lose_all(self, member: Member, reason: str, *, was_read: bool = True) -> int:
        """Tell every request in flight what became of it: read before, or lost. Returns how many are lost.

        was_read: whether the first of them, which the actor was at, may be why.
        """
        refs = list(member.sent)
        done = set(ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]) if refs else set()
        num_lost = 0
        for ref in refs:
            ask = member.sent.pop(ref)
            if ref in done:
                try:
                    ask.outcome = ray.get(ref, timeout=POLL_S)
                    continue
                except Exception:  # an error of its own would come again, and then be raised
                    pass
            was_at_it = was_read and num_lost == 0
            ask.outcome = Lost(ask.part, reason, was_read=was_at_it, for_memory=reason.startswith(OUT_OF_MEMORY))
            num_lost += 1
        member.num_done = 0
        return num_lost


def _backoff_s(num_failures: int) -> float:
    """None after the first loss; then 1, 2, 4 s and so on."""
    return 0.0 if num_failures <= 1 else min(_MAX_BACKOFF_S, 2.0 ** (num_failures - 2))
