"""The head of a Ray cluster, by its gRPC services: every call has a time limit and takes none of Ray's locks.

Ray's public API has no time limit: a head that hangs stops its callers, and ray.shutdown() in another thread aborts
them. It also has no keys of a program at the head, no draining nodes, and no reason of a process's end. Here no
ray.init is needed, on any host that reaches the head. Only this module knows Ray's protocol.
Source: ray/src/ray/protobuf/gcs_service.proto, over Ray's own channel, which knows of its token and of TLS.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2 as messages
from ray.core.generated import gcs_service_pb2_grpc as services
from ray.core.generated.common_pb2 import WorkerExitType

_NAMESPACE = b"datarax_ray"  # of this package's keys
# It answers within a millisecond; a head that restarts takes some seconds.
ANSWER_S = 5.0


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

    def out_of_memory(self, worker_id: str) -> str | None:
        """Ray's reason, if it ended a process because the node ran out of memory; else None."""
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
