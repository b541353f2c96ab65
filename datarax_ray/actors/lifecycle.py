"""The life of a reader actor, and which actors a stream asks: events go in, commands come out.

`TABLE` says which phase may follow which. Nothing here waits, reads a clock or talks to Ray; times are in seconds of
any clock.

A running actor gets requests and answers them; an actor that leaves this phase loses its requests. In any other phase
the actor is pinged again and again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Literal, ParamSpec

Phase = Literal["waiting", "starting", "running", "silent", "lost", "hung", "gone"]

# The phases that an event may lead to, by phase; "-" where the event cannot happen.
#   waiting   to be started, now or after a while
#   starting  asked of Ray, no answer yet
#   silent    seems to live, and does not answer
#   lost      its process is gone, and Ray starts another
#   hung      its process is being ended, and Ray starts another
TABLE = """
phase     answered      unavailable  failed   tick              removed  sent     done     dropped
waiting   -             -            -        waiting|starting  gone     -        -        -
starting  running       starting     waiting  starting          gone     -        -        -
running   running|hung  lost         waiting  running|silent    gone     running  running  running
silent    running       silent       waiting  silent|hung       gone     -        -        -
lost      running       lost         waiting  lost|starting     gone     -        -        -
hung      running|hung  hung         waiting  hung|starting     gone     -        -        -
gone      -             -            -        -                 -        -        -        -
"""
_EVENTS, *_ROWS = (line.split() for line in TABLE.strip().splitlines())
LEADS_TO = {
    (row[0], event): tuple(cell.split("|"))
    for row in _ROWS
    for event, cell in zip(_EVENTS[1:], row[1:], strict=True)
    if cell != "-"
}


@dataclass(frozen=True)
class Thresholds:
    """Waits, in seconds, and numbers of tries.

    quiet_s: an actor with requests that is quiet for longer is pinged; parts aim at a second.
    answer_s: an actor that does not answer a ping for longer loses its requests to other actors. If it was only slow,
        they are read twice. A node that vanishes is noticed in 7 s; Ray takes 15 to 40 s.
    silent_s: then Ray ends the process and starts another. If that has no effect for as long again, as on a process
        that waits for a filesystem, another actor is started.
    fetch_s: a finished block that does not arrive for longer is read again; Ray would look for a lost block for ever.
    return_s: Ray restarts a process in 1 to 5 s, but notices a lost node only after up to 40 s. After return_s another
        actor is started elsewhere; inf for never.
    num_failures: so many failed starts in a row are no accident, and are reported.
    backoff_s, max_backoff_s: the wait before the start after the second failure; it doubles up to the maximum.
    max_start_s: a replacement has twice return_s to start, the next one twice as long, up to this: nodes take minutes.
    look_s: between two looks at all actors; a look costs 0.1 ms for an actor.
    scale_s: between two decisions on the number of actors, where num_actors is a range.
    ask_head_s: between two visits to the head of the cluster; a visit takes a few ms.

    Raises: ValueError for a value that is not positive.
    """

    quiet_s: float = 2.0
    answer_s: float = 5.0
    silent_s: float = 60.0
    fetch_s: float = 30.0
    return_s: float = 12.0
    num_failures: int = 3
    backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    scale_s: float = 10.0
    ask_head_s: float = 5.0
    max_start_s: float = 3600.0
    look_s: float = 0.5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be more than 0, got {value}")

    def between_starts_s(self, num_failures: int) -> float:
        """The wait before the next start."""
        return min(self.max_backoff_s, _doubled(self.backoff_s, num_failures - 2)) if num_failures > 1 else 0.0

    def to_start_s(self, num_failures: int) -> float:
        """The time that a replacement has to start; inf where there is none."""
        return max(self.return_s, min(self.max_start_s, _doubled(self.return_s, num_failures - 1)))


def _doubled(seconds: float, num_times: int) -> float:
    return seconds * 2.0 ** min(num_times, 60)  # a float overflows after 1023


@dataclass(frozen=True)
class Process:
    """The process of an actor. worker_id: Ray's id of it; "" for none."""

    worker_id: str = ""
    pid: int = 0
    node_id: str = ""
    host: str = ""

    def __str__(self) -> str:
        return f"pid {self.pid} on node {self.node_id[:12]}" if self.worker_id else "not yet anywhere"


@dataclass(frozen=True)
class Loss:
    """An actor's loss, until it runs again. kind: see recovery.Recovery."""

    kind: str
    since: float
    reason: str


@dataclass(frozen=True)
class Start:
    """Ask Ray for a new actor, and the actor whether it is there."""


@dataclass(frozen=True)
class Ask:
    """Ask the actor whether it is there; earlier questions do not count any more."""


@dataclass(frozen=True)
class Kill:
    """End its process. for_ever: have Ray start no other."""

    for_ever: bool


@dataclass(frozen=True)
class LoseRequests:
    """Give its unfinished requests to others. process: the lost one; None where the actor was removed."""

    requests: tuple[Any, ...]
    reason: str
    process: Process | None


@dataclass(frozen=True)
class Forget:
    """Tell the actor to skip the requests from before its loss, which others have by now."""


@dataclass(frozen=True)
class TellNoStart:
    reason: str


@dataclass(frozen=True)
class TellReturn:
    kind: str
    reason: str
    took_s: float


Command = Start | Ask | Kill | LoseRequests | Forget | TellNoStart | TellReturn
Commands = list[Command]


_P = ParamSpec("_P")


def _event(method: Callable[Concatenate[ActorState, _P], Commands]) -> Callable[Concatenate[ActorState, _P], Commands]:
    """Raises RuntimeError where the event cannot happen in this phase."""

    @functools.wraps(method)
    def checked(state: ActorState, *args: _P.args, **kwargs: _P.kwargs) -> Commands:
        leads_to = LEADS_TO.get((state.phase, method.__name__))
        if leads_to is None:
            raise RuntimeError(
                f"a reader actor that is {state.phase} cannot be told: {method.__name__} {args}; {state}"
            )
        commands = method(state, *args, **kwargs)
        assert state.phase in leads_to, f"{method.__name__} {args} has led to {state}"
        return commands

    return checked


@dataclass
class ActorState:
    """One actor. `now` and the fields that end in _at are times of any clock.

    process: the last that answered, or nobody.
    requests: sent and not done, in order.
    asked_at: when the open ping was sent; None without one.
    heard_at: the last answer of any kind.
    is_owed: the actor was sent a request since, and nobody waits for it any more: others have read it.
    num_failures: losses and failed starts since a request was done.
    due_at: when patience with the phase ends.
    loss: until the actor runs again.
    why_not: why the actor could not start, "" once it runs.
    """

    limits: Thresholds
    phase: Phase = "waiting"
    process: Process = Process()
    requests: list[Any] = field(default_factory=list)
    asked_at: float | None = None
    heard_at: float = 0.0
    is_owed: bool = False
    num_failures: int = 0
    due_at: float = -math.inf
    loss: Loss | None = None
    why_not: str = ""

    @_event
    def tick(self, now: float) -> Commands:
        if self.phase == "waiting":
            return self._start(now, at_least_s=self.limits.max_backoff_s) if now >= self.due_at else []
        if self.phase != "running" and now > self.due_at:  # also where what it is asked fails at once, again and again
            return self._lose_patience(now)
        if self.asked_at is None:
            if self.phase == "running" and not (
                (self.requests or self.is_owed) and now - self.heard_at > self.limits.quiet_s
            ):
                return []
            self.asked_at = now
            return [Ask()]
        asked_at = self.asked_at
        if self.phase == "running" and now - asked_at > self.limits.answer_s:
            why = f"it did not answer for {now - asked_at:.0f} s"
            commands = self._leave("silent", "answered", why, now, self.limits.silent_s)
            self.asked_at = asked_at  # it may answer yet
            return commands
        return []

    @_event
    def answered(
        self, process: Process, now: float, at_s: float = 0.0, may_take_s: float = math.inf, why_ended: str = ""
    ) -> Commands:
        """The actor answers a ping. at_s: time at its current request, of any pool. may_take_s: limit of that time.

        why_ended: the reason of the last process's end, if this is another process.
        """
        commands: Commands = []
        is_same = process.worker_id == self.process.worker_id
        self.asked_at = None
        if self.phase == "hung" and is_same:  # it is being ended, and has answered once more
            return []
        if self.phase == "running" and is_same:
            self.heard_at, self.is_owed = now, False
            if at_s > may_take_s:
                return self._kill(
                    f"a request took longer than the {may_take_s:g} s that request_timeout_s gives it", now
                )
            return []
        if self.phase == "running":  # lost and back, before any of its requests told of it
            commands = self._leave("lost", "restarted", why_ended, now)
        if self.loss is not None:
            kind = self.loss.kind
            if kind in ("answered", "restarted"):  # a host that is cut off is silent at first, and may then be given up
                kind = "answered" if is_same else "restarted"
            if is_same:
                commands.append(Forget())
            commands.append(TellReturn(kind, self.loss.reason, now - self.loss.since))
        self.phase, self.process, self.loss, self.why_not = "running", process, None, ""
        self.heard_at, self.is_owed, self.due_at = now, False, math.inf
        return commands

    @_event
    def unavailable(self, reason: str, now: float) -> Commands:
        """A call of the actor failed: its process is gone, and Ray starts another, which is pinged."""
        if self.phase == "running":
            return self._leave("lost", "restarted", reason, now, self.limits.return_s)
        self.asked_at = None
        return []

    @_event
    def failed(self, reason: str, now: float, is_dead: bool = True) -> Commands:
        """A start or a call of the actor failed for good. is_dead: Ray gave it up; otherwise it is of no use."""
        is_no_start = self.phase != "running" or not is_dead
        commands = self._leave("waiting", "replaced", reason, now, wait_s=0.0)
        if is_no_start:
            self.why_not = reason
            commands.append(Kill(for_ever=True))
            if self.num_failures == self.limits.num_failures:
                commands.append(TellNoStart(reason))
        self.due_at += self.limits.between_starts_s(self.num_failures)
        return commands

    @_event
    def sent(self, request: Any, now: float) -> Commands:
        if not (self.requests or self.is_owed):
            self.heard_at = now
        self.requests.append(request)
        return []

    @_event
    def done(self, request: Any, now: float) -> Commands:
        self.requests.remove(request)
        self.heard_at, self.num_failures, self.is_owed = now, 0, False
        return []

    @_event
    def dropped(self, request: Any) -> Commands:
        """Nobody waits for the request any more, or what it answered is lost."""
        self.requests.remove(request)
        self.is_owed = True
        return []

    @_event
    def removed(self, reason: str) -> Commands:
        lost, self.requests, self.phase, self.asked_at = tuple(self.requests), [], "gone", None
        return [LoseRequests(lost, reason, None)]

    def _start(self, now: float, at_least_s: float = 0.0) -> Commands:
        # who has never run stands in line for room; who has run is there again in time, or asked for elsewhere
        wait_s = math.inf if self.loss is None else max(at_least_s, self.limits.to_start_s(self.num_failures))
        self.phase, self.asked_at, self.due_at = "starting", now, now + wait_s
        return [Start()]

    def _lose_patience(self, now: float) -> Commands:
        if self.phase == "silent" or math.isinf(self.limits.return_s):
            return self._kill("it did not answer", now)
        # Ray waits for a node that it believes to be there, or for room; what is left must not come back under its id
        commands: Commands = []
        if self.phase == "starting" and self.loss is not None:
            commands = [TellNoStart(f"none has come in the {now - self.loss.since:.0f} s since it was lost")]
        self._leave("starting", "replaced", "it did not come back", now)
        return [*commands, Kill(for_ever=True), *self._start(now)]

    def _kill(self, reason: str, now: float) -> Commands:
        """End its process; Ray sends SIGKILL after 5 s where it does not go, and starts another."""
        return [*self._leave("hung", "hung", reason, now, self.limits.silent_s), Kill(for_ever=False)]

    def _leave(self, phase: Phase, kind: str, reason: str, now: float, wait_s: float = math.inf) -> Commands:
        """Enter another phase than running. Until the actor runs again this is one loss; a hang stays a hang."""
        commands: Commands = []
        if self.phase == "running":
            commands = [LoseRequests(tuple(self.requests), reason, self.process)]
            self.loss = Loss(kind, now, reason)
        elif self.loss is not None and self.loss.kind != "hung":
            self.loss = replace(self.loss, kind=kind)
        if self.phase != "silent" or kind != "hung":  # that is one failure
            self.num_failures += 1
        self.phase, self.requests, self.asked_at, self.due_at = phase, [], None, now + wait_s
        return commands


# Once one actor reads, the others get this long before the stream begins without them; they join when they run.
GATHER_S = 5.0
# After so long without an actor the log says why: processes start in less.
_LOG_AFTER_S = 10.0
# A mount comes back in seconds or hours; to find out costs one request that is read twice.
_FIRST_STAY_S, _LONGEST_STAY_S = 30.0, 1800.0


class StartQuorum:
    """Decides when to begin with the actors that run, and when to give up where none runs for start_timeout_s."""

    def __init__(self, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._is_over = False
        self._first_at: float | None = None
        self._none_since: float | None = None
        self._asked_at = -math.inf
        self._is_logged = False

    def has_begun(self, now: float, num_ready: int, num_actors: int) -> bool:
        """Whether to read: all actors run, or the first has waited GATHER_S for the others; then ever after."""
        self._none_since = None
        self._first_at = now if self._first_at is None else self._first_at
        self._is_over = self._is_over or num_ready == num_actors or now - self._first_at >= GATHER_S
        return self._is_over

    def waited(self, now: float) -> tuple[float, Literal["log", "end"]] | None:
        """Event: no actor runs. The time since then, once it is worth a log line, and once it is too long.

        After "end" the wait begins anew.
        """
        if self._none_since is None or now - self._asked_at > GATHER_S:  # nobody waited meanwhile
            self._none_since, self._is_logged = now, False
        self._asked_at = now
        waited_s = now - self._none_since
        if waited_s > self._start_timeout_s:
            self._none_since = None
            return waited_s, "end"
        if self._is_logged or waited_s < min(_LOG_AFTER_S, self._start_timeout_s / 2):
            return None
        self._is_logged = True
        return waited_s, "log"


@dataclass(frozen=True)
class _Stay:
    until: float
    lasts_s: float


class Bench:
    """The nodes without new requests: that drain, or for a while, the next time twice as long, that failed alone."""

    def __init__(self, first_s: float = _FIRST_STAY_S, most_s: float = _LONGEST_STAY_S) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._stays: dict[str, _Stay] = {}
        self._draining: frozenset[str] = frozenset()

    def blame(self, node: str, now: float) -> float | None:
        """Event: the node failed where another did not. Returns how long it is benched, None if it is already.

        A node that did well for as long as its last stay begins with the first one again.
        """
        last = self._stays.get(node)
        if last is not None and now < last.until:
            return None
        is_again = last is not None and now < last.until + last.lasts_s
        lasts_s = min(self._most_s, 2 * last.lasts_s) if last is not None and is_again else self._first_s
        self._stays[node] = _Stay(now + lasts_s, lasts_s)
        return lasts_s

    def drain(self, nodes: frozenset[str]) -> frozenset[str]:
        """Event: exactly these nodes are about to go. Returns the nodes that are new among them."""
        new, self._draining = nodes - self._draining, nodes
        return new

    def is_empty(self, now: float) -> bool:
        return not self._draining and all(now >= stay.until for stay in self._stays.values())

    def has(self, node: str, now: float) -> bool:
        return node in self._draining or (node in self._stays and now < self._stays[node].until)
