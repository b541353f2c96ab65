"""A driver's part in a pool, as the other drivers and the head of the cluster see it: entry, share of bytes, size."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import ray

from datarax_ray.actors.actor_set import ActorSet
from datarax_ray.actors.connection import START_AGAIN, WHY_RAYLET_ENDED
from datarax_ray.actors.head import Head
from datarax_ray.actors.recovery import Measures
from datarax_ray.actors.sizing import IDENTITY_LEN, Entry, PoolSeen, Scaler, Wish, to_json, under, wish_key
from datarax_ray.actors.starting import ActorOptions
from datarax_ray.feed.window import Bound

logger = logging.getLogger("datarax_ray")

# A closed pool waits so long for its entry to be deleted; an entry that is left is ignored after sizing.GONE_S.
_END_S = 1.0
_GIVEN_UP = (
    "the head of the Ray cluster has given up the node of this program, {}, and no actor can start for it any more: "
    f"the node's raylet has ended ({WHY_RAYLET_ENDED}), or the head has not heard from the node for too long, or the "
    f"head was started again. {START_AGAIN}"
)


class Membership:
    """Keeps the driver's entry at the head, by a thread, and follows what the head says of the pool.

    bound: on the bytes in flight, of all drivers of the pool.
    num_actors: that the driver begins with.
    scaler: chooses the number of actors where the program gives a range.

    The counts waited_s, read_s and num_used (see Entry) change under the lock of the actors. While the head hangs or
    restarts, the pool stays as it is and the stream goes on.
    """

    def __init__(
        self,
        actors: ActorSet,
        options: ActorOptions,
        identity: str,
        bound: Bound,
        num_actors: int,
        scaler: Scaler | None,
    ) -> None:
        self.waited_s, self.read_s, self.num_used = 0.0, 0.0, 0
        self.measures = Measures()
        self._actors, self._bound, self._scaler = actors, bound, scaler
        self._begun_with = scaler.most if scaler else num_actors
        self._num_trainers = self._num_drivers = 1
        self._program = None if scaler is not None else num_actors
        self._wish: Wish | None = None
        context = ray.get_runtime_context()
        self._address, self._node_id, job_id = context.gcs_address, context.get_node_id(), context.get_job_id()
        self._entry = Entry(
            namespace=context.namespace,
            name=options.name or f"{job_id}-{actors.user[:4]}",
            identity=identity[:IDENTITY_LEN],
            user=actors.user,
            job_id=job_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            program=f"{num_actors} to {scaler.most}" if scaler else str(num_actors),
            scales=scaler is not None,
        )
        self._is_first = True
        self._has_ended = threading.Event()
        limits = options.thresholds
        period_s = limits.ask_head_s if scaler is None else min(limits.ask_head_s, limits.scale_s)
        args = weakref.ref(self), self._has_ended, period_s, self._address, self._entry.key
        self._thread = threading.Thread(target=_keep, args=args, name="datarax_ray-keeper", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The pool's name; see `datarax-ray pool list`."""
        return self._entry.name

    @property
    def max_nbytes(self) -> int:
        """The bytes that this driver's streams may have in flight, were it alone; `allowance` says its part."""
        return self._bound.of_each(self._begun_with)

    def allowance(self) -> float:
        """The driver's part of max_nbytes; over 1.0 where the bound follows the actors, and some were added."""
        num_drivers = max(self._num_trainers, self._num_drivers)
        num_actors = max(self._begun_with, len(self._actors.actors))
        return self._bound.of_each(num_actors, num_drivers) / self.max_nbytes

    def expect(self, num_trainers: int) -> None:
        """As many drivers of this job read with the actors, or will."""
        self._num_trainers = max(self._num_trainers, num_trainers)

    def tend(self) -> None:
        """Write the entry at the head, and follow what it knows. Raises: ConnectionError; RuntimeError once closed."""
        self.measures.report()
        entry, now = self._entry_now(), time.time()
        with Head(self._address) as head:
            if self._is_first:
                self._begin(head, entry, now)
                self._is_first = False
            head.put(entry.key, to_json(replace(entry, at=now)))
            seen = PoolSeen.of(head.under(under(entry.pool)), now)[entry.pool]
            draining = head.draining()
            has_left = not entry.hosts and head.has_left(self._node_id)  # one more call, only where no actor runs
            if (wish := self._decide(entry, seen)) is not None:
                head.put(wish_key(entry.pool), to_json(wish))
        self._num_drivers = len(seen.entries)
        with self._actors.lock:
            self._actors.leave(draining)
        if has_left and not self._actors.given_up:
            why = _GIVEN_UP.format(f"{self._node_id[:12]} ({entry.host})")
            logger.error(why)  # as well as raised: Ray's sys.excepthook may abort before that is printed
            self._actors.given_up = why
        wish = wish or seen.wish
        if wish is not None and wish.token != entry.wish and not self._has_ended.is_set():
            self._follow(wish)

    def end(self) -> None:
        """The pool is closed: delete its entry, if the head answers."""
        self._has_ended.set()
        if self._entry.pid == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join(_END_S)

    def _entry_now(self) -> Entry:
        """The driver's entry as of now. Raises: RuntimeError once the pool is closed."""
        self._actors.check_open()
        with self._actors.lock:
            running = Counter(process.host for process in self._actors.running.values())
            return replace(
                self._entry,
                num_actors=len(self._actors.actors),
                hosts=dict(running),
                wish="" if self._wish is None else self._wish.token,
                max_nbytes=int(self.max_nbytes * self.allowance()),
                counts=dict(self._actors.recoveries.counts),
                waited_s=self.waited_s,
                read_s=self.read_s,
                num_used=self.num_used,
            )

    def _begin(self, head: Head, entry: Entry, now: float) -> None:
        """Delete the wish of an earlier pool of this name, and log drivers whose actors are not these."""
        named = PoolSeen.of(head.under(under(entry.pool[:2])), now)
        if entry.pool not in named:
            head.delete(wish_key(entry.pool))
        if others := sum(len(seen.entries) for pool, seen in named.items() if pool != entry.pool):
            logger.info(
                "%d other drivers have actors named %r for other data, order or transforms. This driver's actors are "
                "not shared with them; `datarax-ray pool list` shows both pools",
                others,
                entry.name,
            )

    def _decide(self, entry: Entry, seen: PoolSeen) -> Wish | None:
        """A new wish for all drivers of the pool, where this driver decides; else None."""
        decision = None if self._scaler is None else self._scaler.tick(time.monotonic(), entry, seen)
        if decision is not None and decision.num_actors != entry.num_actors:
            return Wish(decision.num_actors, "driver", secrets.token_hex(4), decision.reason)
        if decision is not None:
            logger.info("reader actors: stay %d; %s", entry.num_actors, decision.reason)
        return None

    def _follow(self, wish: Wish) -> None:
        """Have as many actors as the wish says, else as the program does."""
        with self._actors.held():
            self._wish = wish
            num_actors = wish.num_actors or self._program or len(self._actors.actors)
            if num_actors != len(self._actors.actors):
                self._actors.resize(num_actors, wish.reason)


def _keep(
    find: Callable[[], Membership | None], has_ended: threading.Event, period_s: float, address: str, key: str
) -> None:
    """Tend one membership, in a thread that holds no reference to it and ends with it; then delete its entry."""
    while not has_ended.is_set() and (membership := find()) is not None:
        try:
            membership.tend()
        except ConnectionError as error:
            logger.debug("%s; the pool goes on as it is", error)
        except RuntimeError:  # the pool was closed or Ray shut down, which the stream reports
            break
        except Exception as error:  # Ray's, which the stream meets as well
            logger.warning("the reader actors cannot be resized: %s: %s", type(error).__name__, error)
        del membership
        has_ended.wait(period_s)
    with contextlib.suppress(ConnectionError), Head(address, _END_S) as head:
        head.delete(key)
