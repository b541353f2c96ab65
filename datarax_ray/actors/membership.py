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
from datarax_ray.actors.sizing import (
    IDENTITY_LEN,
    Entry,
    PoolSeen,
    Scaler,
    Wish,
    to_json,
    under,
    wish_key,
)
from datarax_ray.actors.starting import ActorOptions
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.window import Bound

logger = logging.getLogger("datarax_ray")

# A closed pool waits so long for its entry to be deleted; an entry that is left is ignored after sizing.GONE_S.
_END_S = 1.0
_GIVEN_UP = (
    "the head of the Ray cluster has given up the node of this program, {}, and no actor can start for it any more: "
    f"either the node's raylet has ended ({WHY_RAYLET_ENDED}), or the head has not heard of it for too long, or was "
    f"itself started again. {START_AGAIN}"
)


class Membership:
    """Keeps the driver's entry at the head, by a thread, and follows what the head says of the pool.

    bound: on the bytes in flight, of all drivers of the pool.
    num_actors: that the driver begins with.
    scaler: chooses the number of actors where the program gives a range.

    The counts waited_s, read_s and num_used (see Entry) change under the lock of the actors.
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
        self._actors, self._bound = actors, bound
        self._begun_with = scaler.most if scaler else num_actors
        self._num_trainers = self._num_drivers = 1
        self._program = None if scaler is not None else num_actors
        self._wish: Wish | None = None
        self.measures = Measures()
        limits = options.thresholds
        context = ray.get_runtime_context()
        job_id = context.get_job_id()
        self._entry = Entry(
            namespace=context.namespace,
            name=options.name or f"{job_id}-{actors.user[:4]}",
            identity=identity[:IDENTITY_LEN],
            user=actors.user,
            job_id=job_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            program=f"{num_actors} to {scaler.most}" if scaler else str(num_actors),
            least=max(1, len(options.nodes)),
            scales=scaler is not None,
        )
        period_s = limits.ask_head_s if scaler is None else min(limits.ask_head_s, limits.scale_s)
        self._keeper = Keeper(self, context.gcs_address, context.get_node_id(), period_s, scaler)

    @property
    def name(self) -> str:
        """The pool's name; see `datarax-ray pool list`."""
        return self._entry.name

    def entry(self) -> Entry:
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

    def measure(self, timings: Timings) -> None:
        """Report these counts of a stream to Prometheus, now and then."""
        self.measures.follow(timings)

    @property
    def max_nbytes(self) -> int:
        """The bytes that this driver's streams may have in flight, were it alone; `allowance` says its part."""
        return self._bound.of_each(self._begun_with)

    def allowance(self) -> float:
        """The driver's part of max_nbytes; over 1.0 where the bound follows the actors, and some were added."""
        num_drivers = max(self._num_trainers, self._num_drivers)
        num_actors = max(self._begun_with, len(self._actors.actors))
        return self._bound.allowance(num_actors, num_drivers, self._begun_with)

    def expect(self, num_trainers: int) -> None:
        """As many drivers of this job read with the actors, or will."""
        self._num_trainers = max(self._num_trainers, num_trainers)

    def meet(self, num_drivers: int) -> None:
        """As many drivers read with the actors now, of whatever job."""
        self._num_drivers = num_drivers

    def leave(self, draining: frozenset[str]) -> None:
        """Ask nothing more of these nodes, which are about to go; their actors read what they were asked for."""
        with self._actors.lock:
            self._actors.leave(draining)

    def follow(self, wish: Wish) -> None:
        """Have as many actors as the wish says, else as the program does."""
        with self._actors.held():
            self._wish = wish
            num_actors = wish.num_actors or self._program or len(self._actors.actors)
            if num_actors != len(self._actors.actors):
                self._actors.resize(num_actors, wish.reason)

    def give_up(self) -> None:
        """Start no actor any more: the head has given up the node of this program."""
        if not self._actors.given_up:
            why = _GIVEN_UP.format(f"{ray.get_runtime_context().get_node_id()[:12]} ({self._entry.host})")
            logger.error(why)  # as well as raised: Ray's sys.excepthook may abort before that is printed
            self._actors.given_up = why

    def end(self) -> None:
        """The pool is closed."""
        self._keeper.end()


class Keeper:
    """Looks after one membership, every period_s seconds, in a thread of its own.

    While the head hangs or restarts, the pool stays as it is and the stream goes on. The thread holds no reference to
    the pool, and ends once the pool is gone.

    address: of the head.
    node_id: of this program's own node.
    scaler: where the program gives a range of actors; else None.
    """

    def __init__(self, pool: Membership, address: str, node_id: str, period_s: float, scaler: Scaler | None) -> None:
        self._address, self._node_id = address, node_id
        self._period_s, self._scaler = period_s, scaler
        self._has_ended = threading.Event()
        self._made_in = os.getpid()
        find = weakref.ref(pool)
        self._thread = threading.Thread(target=self._run, args=(find,), name="datarax_ray-keeper", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The pool is closed: delete its entry, if the head answers."""
        self._has_ended.set()
        if self._made_in == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join(_END_S)

    def _run(self, find: Callable[[], Membership | None]) -> None:
        key, is_first = "", True
        while not self._has_ended.is_set() and (pool := find()) is not None:
            try:
                pool.measures.report()
                entry = pool.entry()
                key = entry.key
                seen, wish = self._exchange(entry, is_first)
                is_first = False
                pool.meet(len(seen.entries))
                pool.leave(seen.draining)
                if seen.has_left:
                    pool.give_up()
                if wish is not None and wish.token != entry.wish and not self._has_ended.is_set():
                    pool.follow(wish)
            except ConnectionError as error:
                logger.debug("%s; the pool goes on as it is", error)
            except RuntimeError:  # the pool was closed or Ray shut down, which the stream reports
                break
            except Exception as error:  # Ray's, which the stream meets as well
                logger.warning("the reader actors cannot be resized: %s: %s", type(error).__name__, error)
            del pool
            self._has_ended.wait(self._period_s)
        if key:
            with contextlib.suppress(ConnectionError), Head(self._address, _END_S) as head:
                head.delete(key)

    def _exchange(self, entry: Entry, is_first: bool) -> tuple[PoolSeen, Wish | None]:
        """Write the entry. Returns the pool as the head knows it then, and the wish to follow."""
        with Head(self._address) as head:
            now = time.time()
            if is_first:
                named = PoolSeen.of(head.under(under(entry.pool[:2])), now)
                if entry.pool not in named:
                    head.delete(wish_key(entry.pool))  # left by an earlier pool of this name
                if others := sum(len(seen.entries) for pool, seen in named.items() if pool != entry.pool):
                    logger.info(
                        "%d other drivers have actors named %r for other data, order or transforms, and do not share "
                        "those of this one; `datarax-ray pool list` shows both",
                        others,
                        entry.name,
                    )
            head.put(entry.key, to_json(replace(entry, at=now)))
            seen = PoolSeen.of(head.under(under(entry.pool)), now)[entry.pool]
            has_left = not entry.hosts and head.has_left(self._node_id)  # one more call, only where no actor runs
            seen = replace(seen, draining=head.draining(), has_left=has_left)
            wish = self._decide(entry, seen)
            if wish is None:
                return seen, seen.wish
            head.put(wish_key(entry.pool), to_json(wish))
            return seen, wish

    def _decide(self, entry: Entry, seen: PoolSeen) -> Wish | None:
        """A new wish for all drivers of the pool, where this driver decides; else None."""
        decision = None if self._scaler is None else self._scaler.tick(time.monotonic(), entry, seen)
        if decision is not None and decision.num_actors != entry.num_actors:
            return Wish(decision.num_actors, "driver", secrets.token_hex(4), decision.reason)
        if decision is not None:
            logger.info("reader actors: stay %d; %s", entry.num_actors, decision.reason)
        return None
