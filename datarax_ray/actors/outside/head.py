"""The head of a Ray cluster, asked without Ray's own client: each call has a time limit and takes none of Ray's locks.

So a head that hangs holds nobody up but who asks, and a ray.shutdown() meanwhile cuts nothing. It needs no ray.init.
Source: InternalKVGcsService, NodeInfoGcsService, NodeResourceInfoGcsService, JobInfoGcsService and ActorInfoGcsService
in ray/src/ray/protobuf/gcs_service.proto; with Ray's own channel, which knows of its token and of TLS.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2 as messages
from ray.core.generated import gcs_service_pb2_grpc as services
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from datarax_ray.actors.outside.sizing import Node

# Of the keys that the head keeps for whoever asks, those of this package.
_OURS = b"datarax_ray"
# It answers within a millisecond; one that is being started again takes some seconds.
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
        self._kv = services.InternalKVGcsServiceStub(self._channel)
        self._nodes = services.NodeInfoGcsServiceStub(self._channel)
        self._resources = services.NodeResourceInfoGcsServiceStub(self._channel)
        self._jobs = services.JobInfoGcsServiceStub(self._channel)
        self._actors = services.ActorInfoGcsServiceStub(self._channel)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def put(self, key: str, value: str) -> None:
        """Keep a value under this package's key, for as long as the head lives."""
        request = messages.InternalKVPutRequest(key=key.encode(), value=value.encode(), overwrite=True, namespace=_OURS)
        self._ask(self._kv.InternalKVPut, request)

    def under(self, prefix: str) -> dict[str, str]:
        """The values of all keys that begin so."""
        found = self._ask(
            self._kv.InternalKVKeys, messages.InternalKVKeysRequest(prefix=prefix.encode(), namespace=_OURS)
        )
        if not found.results:
            return {}
        request = messages.InternalKVMultiGetRequest(keys=found.results, namespace=_OURS)
        return {
            each.key.decode(): each.value.decode() for each in self._ask(self._kv.InternalKVMultiGet, request).results
        }

    def delete(self, key: str) -> None:
        self._ask(self._kv.InternalKVDel, messages.InternalKVDelRequest(key=key.encode(), namespace=_OURS))

    def nodes(self) -> list[Node]:
        nodes = self._ask(self._nodes.GetAllNodeInfo, messages.GetAllNodeInfoRequest())
        free = self._ask(self._resources.GetAllAvailableResources, messages.GetAllAvailableResourcesRequest())
        free_of = {each.node_id: dict(each.resources_available) for each in free.resources_list}
        alive = [node for node in nodes.node_info_list if node.state == GcsNodeInfo.ALIVE]
        return [Node(dict(node.resources_total), free_of.get(node.node_id, {}), dict(node.labels)) for node in alive]

    def draining(self) -> frozenset[str]:
        """The ids of the nodes that are about to go: preempted, or idle, as an autoscaler or an operator says."""
        found = self._ask(self._resources.GetDrainingNodes, messages.GetDrainingNodesRequest())
        return frozenset(each.node_id.hex() for each in found.draining_nodes)

    def has_left(self, node_id: str) -> bool:
        """Whether a node that was there is none of the cluster's any more: it ended, or did not answer for too long."""
        found = self._ask(self._nodes.CheckAlive, messages.CheckAliveRequest(node_ids=[bytes.fromhex(node_id)]))
        return not all(found.raylet_alive)

    def ended_jobs(self) -> frozenset[str]:
        """The ids of the Ray jobs whose program has ended, or was killed, as far back as it keeps them."""
        request = messages.GetAllJobInfoRequest(skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
        found = self._ask(self._jobs.GetAllJobInfo, request)
        return frozenset(each.job_id.hex() for each in found.job_info_list if each.is_dead)

    def named_actors(self) -> list[tuple[str, str]]:
        """Namespace and name of every actor that has one, and was not ended for good."""
        found = self._ask(self._actors.ListNamedActors, messages.ListNamedActorsRequest(all_namespaces=True))
        return [(each.ray_namespace, each.name) for each in found.named_actors_list]

    def kill(self, namespace: str, name: str) -> None:
        """End the actor of this name for good, where there is one."""
        found = self._ask(
            self._actors.GetNamedActorInfo, messages.GetNamedActorInfoRequest(name=name, ray_namespace=namespace)
        )
        if found.actor_table_data.actor_id:
            request = messages.KillActorViaGcsRequest(
                actor_id=found.actor_table_data.actor_id, force_kill=True, no_restart=True
            )
            self._ask(self._actors.KillActorViaGcs, request)

    def _ask(self, call: Callable[..., Any], request: Any) -> Any:
        try:
            return call(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            said = error.details() if isinstance(error, grpc.Call) else error
            raise ConnectionError(
                f"the head of the Ray cluster at {self._address} did not answer within {self._timeout_s:g} s: {said}"
            ) from error
