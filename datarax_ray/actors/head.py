"""The head of a Ray cluster, and the thread that keeps a pool's entry there.

The head is asked by its gRPC services: each call has a time limit and takes none of Ray's locks.
Ray's public API has neither limit: a head that hangs holds its callers up, and ray.shutdown() in another thread aborts
them. Nor does it have keys that a program may keep at the head, draining nodes or the reason of a process's end. Here
no ray.init is needed, on any host that reaches the head. This is the only module that knows Ray's protocol.
Source: ray/src/ray/protobuf/gcs_service.proto, over Ray's own channel, which knows of its token and of TLS.
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
from types import TracebackType
from typing import Any, Protocol, Self

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2 as messages
from ray.core.generated import gcs_service_pb2_grpc as services
from ray.core.generated.common_pb2 import WorkerExitType
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from datarax_ray.actors.sizing import Entry, Node, PoolSeen, Room, Scaler, Wish, grown, to_json, under, wish_key

logger = logging.getLogger("datarax_ray")

_NAMESPACE = b"datarax_ray"  # of this package's keys
# It answers within a millisecond; a head that restarts takes some seconds.
ANSWER_S = 5.0
# A closed pool waits so long for its entry to be deleted; an entry that is left is ignored after sizing.GONE_S.
_END_S = 1.0


class Head:
    """The head at an address, for a `with` block: a connection that is left open prints that the head has ended.

    Every method raises ConnectionError where no answer comes within timeout_s.
    """

    def __init__(self, address: str, timeout_s: float = ANSWER_S) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        self._channel = init_grpc_channel(self._address)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def put(self, key: str, value: str) -> None:
        """Keep a value under this package's key, for as long as the head lives."""
        fields = {"key": key.encode(), "value": value.encode(), "overwrite": True, "namespace": _NAMESPACE}
        self._call("InternalKV", "InternalKVPut", **fields)

    def under(self, prefix: str) -> dict[str, str]:
        """The values of all keys that begin with the prefix."""
        keys = self._call("InternalKV", "InternalKVKeys", prefix=prefix.encode(), namespace=_NAMESPACE).results
        if not keys:
            return {}
        found = self._call("InternalKV", "InternalKVMultiGet", keys=keys, namespace=_NAMESPACE).results
        return {each.key.decode(): each.value.decode() for each in found}

    def delete(self, key: str) -> None:
        self._call("InternalKV", "InternalKVDel", key=key.encode(), namespace=_NAMESPACE)

    def nodes(self) -> list[Node]:
        """The nodes that are alive."""
        nodes = self._call("NodeInfo", "GetAllNodeInfo").node_info_list
        free = self._call("NodeResourceInfo", "GetAllAvailableResources").resources_list
        free_of = {each.node_id: dict(each.resources_available) for each in free}
        alive = [node for node in nodes if node.state == GcsNodeInfo.ALIVE]
        return [Node(dict(node.resources_total), free_of.get(node.node_id, {}), dict(node.labels)) for node in alive]

    def draining(self) -> frozenset[str]:
        """The ids of nodes that are about to go: preempted, or idle by the word of an autoscaler or operator."""
        found = self._call("NodeResourceInfo", "GetDrainingNodes").draining_nodes
        return frozenset(each.node_id.hex() for each in found)

    def has_left(self, node_id: str) -> bool:
        """Whether the cluster has given up a node: the node ended, or did not answer for too long."""
        return not all(self._call("NodeInfo", "CheckAlive", node_ids=[bytes.fromhex(node_id)]).raylet_alive)

    def ended_jobs(self) -> frozenset[str]:
        """The ids of Ray jobs whose program ended or was killed, as far back as the head keeps them."""
        fields = {"skip_submission_job_info_field": True, "skip_is_running_tasks_field": True}
        found = self._call("JobInfo", "GetAllJobInfo", **fields).job_info_list
        return frozenset(each.job_id.hex() for each in found if each.is_dead)

    def named_actors(self) -> list[tuple[str, str]]:
        """Namespace and name of every named actor that was not ended for good."""
        found = self._call("ActorInfo", "ListNamedActors", all_namespaces=True).named_actors_list
        return [(each.ray_namespace, each.name) for each in found]

    def kill(self, namespace: str, name: str) -> None:
        """End the actor of this name for good, where there is one."""
        found = self._call("ActorInfo", "GetNamedActorInfo", name=name, ray_namespace=namespace).actor_table_data
        if found.actor_id:
            fields = {"actor_id": found.actor_id, "force_kill": True, "no_restart": True}
            self._call("ActorInfo", "KillActorViaGcs", **fields)

    def out_of_memory(self, worker_id: str) -> str | None:
        """Ray's reason for ending a process as its node ran out of memory; None where it did not end it so."""
        found = self._call("WorkerInfo", "GetWorkerInfo", worker_id=bytes.fromhex(worker_id)).worker_table_data
        if found.is_alive or found.exit_type != WorkerExitType.Value("NODE_OUT_OF_MEMORY"):
            return None
        return f"out of memory: {(found.exit_detail.splitlines() or [''])[0]}"[:300]

    def _call(self, service: str, method: str, **fields: Any) -> Any:
        stub = getattr(services, f"{service}GcsServiceStub")(self._channel)
        request = getattr(messages, f"{method}Request")(**fields)
        try:
            return getattr(stub, method)(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            why = error.details() if isinstance(error, grpc.Call) else error
            raise ConnectionError(
                f"the head of the Ray cluster at {self._address} did not answer within {self._timeout_s:g} s: {why}"
            ) from error


class Sized(Protocol):
    """A pool, as its keeper uses it; see actors.pool.RayPool."""

    def entry(self) -> Entry: ...

    def renew(self) -> None: ...

    def meet(self, num_drivers: int) -> None: ...

    def leave(self, draining: frozenset[str]) -> None: ...

    def follow(self, wish: Wish) -> None: ...

    def give_up(self) -> None: ...


class Keeper:
    """Looks after one pool, every period_s seconds, in a thread of its own.

    While the head hangs or restarts, the pool stays as it is and the stream goes on. The thread holds no reference to
    the pool, and ends once the pool is gone.

    address: of the head.
    node_id: of this program's own node.
    room: of one actor, where the pool grows with its cluster; else None.
    scaler: where the program gives a range of actors; else None.
    """

    def __init__(
        self, pool: Sized, address: str, node_id: str, period_s: float, room: Room | None, scaler: Scaler | None
    ) -> None:
        self._address, self._node_id = address, node_id
        self._period_s, self._room, self._scaler = period_s, room, scaler
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

    def _run(self, find: Callable[[], Sized | None]) -> None:
        key, is_first = "", True
        while not self._has_ended.is_set() and (pool := find()) is not None:
            try:
                pool.renew()
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
            wish = self._decide(entry, seen, head)
            if wish is None:
                return seen, seen.wish
            head.put(wish_key(entry.pool), to_json(wish))
            return seen, wish

    def _decide(self, entry: Entry, seen: PoolSeen, head: Head) -> Wish | None:
        """A new wish for all drivers of the pool, where this driver decides; else None."""
        token = secrets.token_hex(4)
        if self._room is not None and (num_actors := grown(entry, seen, self._room, head.nodes())) is not None:
            return Wish(num_actors, "cluster", token, "the cluster has room for more")
        decision = None if self._scaler is None else self._scaler.tick(time.monotonic(), entry, seen)
        if decision is not None and decision.num_actors != entry.num_actors:
            return Wish(decision.num_actors, "driver", token, decision.reason)
        if decision is not None:
            logger.info("reader actors: stay %d; %s", entry.num_actors, decision.reason)
        return None
