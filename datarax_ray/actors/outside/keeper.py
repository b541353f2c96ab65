"""The thread that tells the head of the cluster of a pool, and asks what the pool is to be.

The head may hang, or be started again: then nothing happens until it answers, and the stream goes on. The thread keeps
no pool: it ends with it, at the latest when it looks for it again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from datarax_ray.actors.exit_reason import first_line
from datarax_ray.actors.outside.head import Head
from datarax_ray.actors.outside.namesakes import PREFIX, Makings
from datarax_ray.actors.outside.scaling import PoolScaler
from datarax_ray.actors.outside.sizing import Entry, PoolSeen, Room, Wish, grown, to_json, under, wish_key

logger = logging.getLogger("datarax_ray")

# A pool that is closed waits so long for its entry to be deleted; one that is left is ignored after sizing.GONE_S.
_END_S = 1.0


class Sized(Protocol):
    """A pool, which says of each what it does (actors.pool.RayPool)."""

    def entry(self) -> Entry: ...

    def renew(self) -> None: ...

    def meet(self, num_drivers: int) -> None: ...

    def leave(self, draining: frozenset[str]) -> None: ...

    def follow(self, wish: Wish) -> None: ...

    def give_up(self) -> None: ...


class Keeper:
    """Looks after one pool, every period_s seconds, in a thread of its own.

    address: of the head.
    node_id: of this program's own node.
    room: what an actor takes, where the pool is to follow the cluster as it grows; None where it is not.
    scaler: says how many actors help, where the program gives a range; else None.
    makings: of a pool that is to be shared by its name, else None.
    """

    def __init__(
        self,
        pool: Sized,
        address: str,
        node_id: str,
        period_s: float,
        room: Room | None,
        scaler: PoolScaler | None,
        makings: Makings | None,
    ) -> None:
        self._address, self._node_id = address, node_id
        self._period_s, self._room, self._scaler, self._makings = period_s, room, scaler, makings
        self._has_ended = threading.Event()
        self._made_in = os.getpid()
        find = weakref.ref(pool)
        self._thread = threading.Thread(target=self._run, args=(find,), name="datarax_ray-keeper", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The pool is closed: the head is told, if it answers."""
        self._has_ended.set()
        if self._made_in == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join(_END_S)

    def _run(self, find: Callable[[], Sized | None]) -> None:
        keys, is_first = [], True
        while not self._has_ended.is_set() and (pool := find()) is not None:
            try:
                pool.renew()
                entry = pool.entry()
                keys = [entry.key, _makings_key(entry)]
                seen, wish = self._exchanged(entry, is_first)
                is_first = False
                pool.meet(len(seen.entries))
                pool.leave(seen.draining)
                if seen.has_left:
                    pool.give_up()
                if wish is not None and wish.token != entry.wish and not self._has_ended.is_set():
                    pool.follow(wish)
            except ConnectionError as error:
                logger.debug("%s; the pool goes on as it is", error)
            except RuntimeError:  # it was closed meanwhile, or Ray shut down: who uses it is told
                break
            except Exception as error:  # of Ray's, which the stream meets as well
                logger.warning("the reader actors cannot be resized: %s", first_line(error))
            del pool
            self._has_ended.wait(self._period_s)
        if keys:
            with contextlib.suppress(ConnectionError), Head(self._address, _END_S) as head:  # or ignored once old
                for key in keys:
                    head.delete(key)

    def _exchanged(self, entry: Entry, is_first: bool) -> tuple[PoolSeen, Wish | None]:
        """What the head knows of the pool, and the wish to follow, once it knows of this driver."""
        with Head(self._address) as head:
            now = time.time()
            if is_first and entry.pool not in PoolSeen.of(head.under(under(entry.pool)), now):
                head.delete(wish_key(entry.pool))  # to a pool that was, by this name: nobody can see this one yet
            head.put(entry.key, to_json(replace(entry, at=now)))
            if is_first and self._makings is not None:
                _tell_of_namesakes(entry, self._makings, head, now)
            seen = PoolSeen.of(head.under(under(entry.pool)), now)[entry.pool]
            # the one is asked only where nobody reads
            has_left = not entry.hosts and head.has_left(self._node_id)
            seen = replace(seen, draining=head.draining(), has_left=has_left)
            wish = self._own_wish(entry, seen, head)
            if wish is None:
                return seen, seen.wish
            head.put(wish_key(entry.pool), to_json(wish))
            return seen, wish

    def _own_wish(self, entry: Entry, seen: PoolSeen, head: Head) -> Wish | None:
        """What this driver makes all of the pool's follow, where it is the one that decides; None for nothing new."""
        token = secrets.token_hex(4)
        if self._room is not None and (num_actors := grown(entry, seen, self._room, head.nodes())) is not None:
            return Wish(num_actors, "cluster", token, "the cluster has room for more")
        decision = None if self._scaler is None else self._scaler.tick(time.monotonic(), entry, seen)
        if decision is not None and decision.num_actors != entry.num_actors:
            return Wish(decision.num_actors, "driver", token, decision.reason)
        if decision is not None:
            logger.info("reader actors: stay %d; %s", entry.num_actors, decision.reason)
        return None


def _makings_key(entry: Entry) -> str:
    return under((entry.namespace, entry.name), PREFIX) + entry.user


def _tell_of_namesakes(entry: Entry, makings: Makings, head: Head, now: float) -> None:
    """Say which drivers have a pool of this name for themselves, and why; of two that begin at once one does."""
    head.put(_makings_key(entry), makings.to_json())
    name = entry.namespace, entry.name
    pools = PoolSeen.of(head.under(under(name)), now)
    others = {each.user: each for pool, seen in pools.items() if pool != entry.pool for each in seen.entries}
    told: dict[bool, list[str]] = {False: [], True: []}
    for key, text in head.under(under(name, PREFIX)).items():
        if other := others.get(key.rpartition("/")[2]):
            told[(other.host, other.pid, other.job_id) == (entry.host, entry.pid, entry.job_id)].append(text)
    if said := makings.said(entry.name, told[False], told[True]):
        logger.warning(said)
