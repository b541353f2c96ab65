"""The pool of reader actors, as a stream sees it: sends requests, receives blocks, reports losses.

Ray restarts a killed actor (max_restarts) but does not run its requests again (max_task_retries is 0). A request is a
pure function, so a live actor reads it at once; Ray would wait for the restart, retry without end, and print every
retry. Several threads use a pool; none waits longer than a moment while it holds the lock of the actors.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, ObjectStoreFullError, OutOfDiskError, RayTaskError

from datarax_ray.actors.actor_set import ACTOR_GONE, POLL_S, ActorSet, InFlight
from datarax_ray.actors.connection import RAY_LOCK, Connection
from datarax_ray.actors.description import Boxed, DescriptionLostError, boxed, unboxed
from datarax_ray.actors.gate import Gate
from datarax_ray.actors.membership import Membership
from datarax_ray.actors.reader_actor import Handed, OtherProcessError, whole
from datarax_ray.actors.recovery import Recoveries, Recovery, first_line
from datarax_ray.actors.sizing import Scaler
from datarax_ray.actors.starting import ActorOptions
from datarax_ray.actors.trial import Trial
from datarax_ray.feed.flow import Arrived, Lost, Pool
from datarax_ray.feed.sample import Admission
from datarax_ray.feed.window import Bound, Part
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.block import Block
from datarax_ray.read.stream import Stream

logger = logging.getLogger("datarax_ray")

# The time in which live actors answer.
_ANSWER_S = 5.0
# A look at 64 parts in flight takes 0.2 ms; bringing 16 MB from another node 15 ms and more.
_LOOK_EVERY_S = 0.02
# A wait costs 0.5 us for each part in it, and parts come one by one: of many parts, several are awaited at a time.
_WAITS_OF_CHUNK = 32


class RayPool(Pool):
    """Reader actors with the ids 0 to num_actors - 1, behind the interface that a stream reads through.

    bound: of all drivers that read with them.
    scaler: chooses the number of actors, where the program gives a range.

    `sharing` makes a pool over the same actors for another stream. They end with the last of these pools.
    """

    _is_closed = False

    def __init__(
        self,
        description: Stream,
        num_actors: int,
        options: ActorOptions,
        bound: Bound,
        scaler: Scaler | None = None,
    ) -> None:
        self._options, self._connection, self._counter = options, Connection(), itertools.count()
        self._name = ""
        identity, traits = digest(description.settings()), description.traits
        self._set = ActorSet(  # first: the actors' processes start while the description is pickled
            num_actors,
            options,
            identity,
            self._connection,
            is_managed=traits.is_managed,
            source=f"RaySource(num_actors={num_actors}, {description})",
        )
        try:
            self._gate = Gate(self._set, self._begin(description, strict=options.strict), "")
        except BaseException:
            self._set.is_closed = True
            self._set.close()
            raise
        self._lock = self._set.lock
        self._set.pools.add(self)
        self.membership = Membership(self._set, options, identity, bound, num_actors, scaler)

    def sharing(self, description: Stream, *, strict: bool) -> RayPool:
        """A pool that reads another stream with these actors. Raises: RuntimeError once closed."""
        with self._held():
            pool = copy.copy(self)
            pool._name = self._set.join(description.traits, digest(description.settings()))
            pool._gate = Gate(self._set, pool._begin(description, strict=strict), pool._name)
            self._set.pools.add(pool)
        return pool

    def _begin(self, description: Stream, *, strict: bool) -> Admission:
        """Set up the part of the pool that depends on the stream."""
        traits, box = description.traits, boxed(description)
        self._description: Boxed | None = box
        self._reads_ahead = traits.reads_ahead
        return Admission() if traits.is_managed else Admission([box], partial(self._copied, box), strict=strict)

    def _copied(self, box: Boxed) -> Stream:
        """The description as actors have it: arrays of a large one lie in the object store."""
        with self._connection.held():
            found = box if isinstance(box, bytes) else ray.get(box)
        return unboxed(found) if isinstance(found, bytes) else found

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """As ActorSet.held. Raises: RuntimeError once this pool is closed."""
        self.check_open()
        with self._set.held():
            self.check_open()
            yield

    @property
    def recoveries(self) -> Recoveries:
        return self._set.recoveries

    def actors(self) -> tuple[int, ...]:
        """Ids of the actors that run; waits a moment where there are none, and at first a little for all of them.

        Raises: RuntimeError where none runs for start_timeout_s, or none can start; and once the pool is closed.
        """
        with self._held():
            if ready := self._set.look(self._gate.admitted):
                return ready
            pings = [actor.ping for actor in self._set.actors.values() if actor.ping is not None]
            pings += self._gate.pings
        if pings:
            with self._connection.waiting():
                ray.wait(pings, num_returns=1, timeout=POLL_S)
        else:
            time.sleep(POLL_S)
        return ()

    def allowance(self) -> float:
        return self.membership.allowance() / max(1, len(self._set.pools))

    def stalled(self, said: str) -> None:
        self.recoveries.stalled(said)

    def nodes(self) -> Mapping[int, str]:
        with self._lock:
            return self._gate.nodes()

    def blame(self, node: str, reason: str) -> None:
        """A request failed on the node and succeeded on another: its actors get no requests for a while."""
        with self._lock:
            self._set.blame(node, reason)

    def weights(self) -> Mapping[int, float]:
        """The weights of actors that read much slower or faster than most; 1.0 would be an even share."""
        return self._set.load_balance.weights

    def send(self, part: Part) -> InFlight:
        with self._held():
            actor = self._set.actors.get(part.actor)
            if actor is None or actor.state.phase != "running":
                return InFlight(part, None, outcome=Lost(part, "its actor has just gone", was_read=False))
            trial = Trial(self._options.request_timeout_s) if part.is_trial else None
            token = (self._reader, next(self._counter))
            sharing = part.request.wanted.sharing
            is_whole = sharing is None or isinstance(sharing.part, str)  # or it is read already
            if self._reads_ahead and is_whole and trial is None and actor.state.requests:
                actor.handle.expect.remote(part.request, self._name)
            process = actor.state.process
            ask = actor.handle.read.remote
            ref = ask([self._description], part.request, trial, token, self._name, process.worker_id)
            now = time.monotonic()
            sent = InFlight(part, ref, process.node_id, token=token, look_at=now + _LOOK_EVERY_S)
            self._set.send(actor, sent)
            return sent

    def receive(self, sent: Mapping[Part, InFlight]) -> Arrived | Lost | None:
        """Wait a moment for one of the parts. Raises: the errors of the read; RuntimeError once closed."""
        self.check_open()
        known = None
        for part, ask in sent.items():
            if ask.outcome is not None:
                return Arrived(part, ask.outcome, ask.node) if isinstance(ask.outcome, Block) else ask.outcome
            if math.isinf(ask.look_at):
                known = ask
        began = time.monotonic()
        with self._connection.waiting():
            refs: dict[Any, InFlight] = {} if known is None else {known.ref: known}
            ready, _ = ray.wait(list(refs), timeout=0) if refs else ([], None)
            if not ready:
                refs = {ask.ref: ask for ask in sent.values()}
                ready, _ = ray.wait(list(refs), num_returns=1 + len(refs) // _WAITS_OF_CHUNK, timeout=POLL_S)
        with self._lock:
            self.membership.waited_s += time.monotonic() - began
        self.check_open()
        if not ready:
            return self._missing(refs)
        ask, *others = (refs[ref] for ref in ready)
        for other in others:
            other.look_at = -math.inf  # it is received the next time; or its copy is, and `ended` tells of this one
        if self._is_elsewhere(ask):
            return None
        block = self._fetch(ask)
        if block is None:
            return ask.outcome if isinstance(ask.outcome, Lost) else None
        return Arrived(ask.part, block, ask.node)

    def lost(self, sent: Mapping[Part, InFlight]) -> list[Lost]:
        return [ask.outcome for ask in sent.values() if isinstance(ask.outcome, Lost)]

    def ended(self, sent: Mapping[Part, InFlight]) -> list[Part]:
        """The parts whose blocks are on this node now. Fetches blocks from other nodes while the stream waits.

        Ray fetches an object that is waited for, and continues after the wait. It fetches an unfinished object only if
        it is waited for again.
        """
        now = time.monotonic()
        due = {ask.ref: ask for ask in sent.values() if ask.ref is not None and now >= ask.look_at}
        ended = []
        if due:
            with self._connection.held():
                here, away = ray.wait(list(due), num_returns=len(due), timeout=0)
            for ref in away:
                due[ref].look_at = now + _LOOK_EVERY_S
            for ref in here:
                if not self._is_elsewhere(due[ref]):
                    due[ref].look_at = math.inf
                    ended.append(due[ref].part)
        return ended

    def used(self, block: Block) -> None:
        with self._lock:
            self.membership.num_used += len(block.positions)

    def discard(self, sent: Mapping[Part, InFlight]) -> None:
        if self._is_closed or self._connection.is_forked:  # at exit closed, and half of Python may be gone
            return
        with RAY_LOCK, self._lock:
            is_there = not self._is_closed and self._connection.is_there
            tokens: defaultdict[int, list[Any]] = defaultdict(list)
            for ask in sent.values():
                if ask.ref is not None:
                    self._set.drop(ask)
                    tokens[ask.part.actor].append(ask.token)
            for index, found in tokens.items():
                if is_there and (actor := self._set.actors.get(index)) is not None and actor.handle is not None:
                    actor.handle.forget.remote(found)  # what runs ends by itself and is dropped

    def stats(self) -> dict[int, dict[str, Any]]:
        """The stats of every actor by id; an actor that does not answer within 5 s is missing."""
        with self._held():
            there = {index: actor.handle for index, actor in self._set.actors.items() if actor.handle is not None}
            asked = {handle.stats.remote(): index for index, handle in there.items()}
        with self._connection.waiting():
            answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
        found = {}
        with self._connection.held():
            for ref in answered:
                with contextlib.suppress(*ACTOR_GONE, RayTaskError):  # gone by now: not among those that answer
                    found[asked[ref]] = ray.get(ref)
        return dict(sorted(found.items()))

    def resize(self, more: int, reason: str) -> tuple[int, ...]:
        """Add `more` actors, or remove them if negative; see ActorSet.resize."""
        with self._held():
            return self._set.resize(len(self) + more, reason)

    def rebalance(self) -> dict[int, float]:
        """Let every actor own as much as it was measured to read, at once. Returns the weights other than 1.0."""
        with self._lock:
            self._set.load_balance.settle(self._set.actors)
            return dict(self._set.load_balance.weights)

    @property
    def num_running(self) -> int:
        """How many run now, as far as is known."""
        return len(self._set.ready)

    def __len__(self) -> int:
        return len(self._set.actors)

    @property
    def _reader(self) -> str:
        """The name of this driver and stream among all that ask the actors."""
        return f"{self._set.user} {self._name}"

    def close(self) -> None:
        """Kill the actors, if no other pool reads with them. Named ones live on for other drivers, and end with the
        last of these.
        """
        if self._connection.is_forked:
            return
        self._is_closed = True  # before the locks: whoever waits stops waiting
        with RAY_LOCK, self._lock:
            self._description = None  # frees what it holds in the object store
            self._set.pools.discard(self)
            if self._set.pools:
                if self._connection.is_there:
                    self._set.leave_stream(self._name, self._reader)
                return
            self._set.is_closed = True
            self._set.close()
        self.membership.end()

    def check_open(self) -> None:
        """Raise RuntimeError once closed."""
        if self._is_closed:
            raise self._set.closed()
        self._set.check_open()

    def _is_elsewhere(self, ask: InFlight) -> bool:
        """Whether the answer is only a reference to the block, as for several trainers; the block is then awaited."""
        sharing = ask.part.request.wanted.sharing
        if ask.is_handed or sharing is None or sharing.num_equal == 1:
            return False
        try:
            with self._connection.held():
                answer = ray.get(ask.ref, timeout=POLL_S)
        except Exception:  # it is said when it is fetched
            return False
        if not isinstance(answer, Handed):
            return False
        ask.ref, ask.is_handed, ask.look_at = answer.ref, True, 0.0
        return True

    def _fetch(self, ask: InFlight) -> Block | None:
        """The block that has come; None where it is lost, and then the outcome says so."""
        try:
            with self._connection.waiting():
                fetch_s = self._options.thresholds.fetch_s
                block: Block = whole(ray.get(ask.ref, timeout=fetch_s), fetch_s)
        except Exception as error:
            # An error that the actor itself raised may have any of Ray's classes, and says nothing about the actor.
            is_task = isinstance(error, RayTaskError)
            cause = error.cause if isinstance(error, RayTaskError) else error
            is_lost = isinstance(cause, DescriptionLostError if is_task else (ObjectLostError, GetTimeoutError))
            is_gone = isinstance(cause, OtherProcessError) if is_task else isinstance(error, ACTOR_GONE)
            with self._held():
                if ask.outcome is not None:
                    return ask.outcome if isinstance(ask.outcome, Block) else None
                actor = self._set.holder(ask)
                if is_gone and actor is not None:
                    self._set.failed(actor, cause)
                elif is_gone or is_lost:
                    self._lose_one(ask, first_line(cause))
                elif isinstance(cause, (ObjectStoreFullError, OutOfDiskError)):
                    raise RuntimeError(_no_room(ask.part, cause)) from None
                else:
                    raise (cause if isinstance(cause, Exception) else error) from None
            return ask.outcome if isinstance(ask.outcome, Block) else None
        with self._lock:
            self._set.done(ask, block, is_measured=not self._name)  # records of two streams differ in cost
            self.membership.read_s += block.read_s
        return block

    def _missing(self, asks: Mapping[ray.ObjectRef, InFlight]) -> Lost | None:
        """A part that was read long ago and has not come."""
        now, fetch_s = time.monotonic(), self._options.thresholds.fetch_s
        with self._connection.held():
            done, _ = ray.wait(list(asks), num_returns=len(asks), timeout=0, fetch_local=False)
        for ref in done:
            ask = asks[ref]
            ask.waited_since = now if ask.waited_since is None else ask.waited_since
            if now - ask.waited_since > fetch_s:
                with self._lock:
                    if ask.outcome is None:
                        self._lose_one(ask, f"it was read, and did not come within {fetch_s:g} s")
                return ask.outcome if isinstance(ask.outcome, Lost) else None
        return None

    def _lose_one(self, ask: InFlight, reason: str) -> None:
        """Event: the actor lives, but its block is gone: evicted, or lost with its node or its disk."""
        self._set.drop(ask)
        ask.outcome = Lost(ask.part, reason)
        actor = self._set.actors.get(ask.part.actor)
        where = str(actor.state.process) if actor is not None else "gone"
        self._set.recoveries.add(Recovery("reread", ask.part.actor, where, reason, num_retried=1))


def _no_room(part: Part, error: Exception) -> str:
    return (
        f"the block of positions [{part.request.start}, {part.request.stop}) fits nowhere on the node of reader actor "
        f"{part.actor}: its object store is full, and Ray may not put more on its disk ({first_line(error)}). Lower "
        "RaySource's max_nbytes (of all blocks in flight), free disk for Ray to spill to, or give the nodes a larger "
        "object_store_memory; `ray memory` lists all objects in the store. The last saved state goes on."
    )
