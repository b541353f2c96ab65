"""Why the process of an actor ended, where Ray knows more than it tells.

Whoever waits for an actor that Ray starts again is told "the actor is unavailable", whatever became of it. That Ray
itself ended it, because the memory of its node ran out, is written in the head's table of processes.
Source: WorkerInfoGcsService in ray/src/ray/protobuf/gcs_service.proto; its user in Ray,
ray/dashboard/modules/task_events/task_event_manager.py. Not ray._private.state, which ends the program where the head
answers with an error.
"""

from __future__ import annotations

import os

import ray


def out_of_memory(worker_id: str, timeout_s: float) -> str | None:
    """What Ray says of the memory that ended this process; None where that was not why, or is not known in time."""
    try:
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated.common_pb2 import WorkerExitType
        from ray.core.generated.gcs_service_pb2 import GetWorkerInfoRequest
        from ray.core.generated.gcs_service_pb2_grpc import WorkerInfoGcsServiceStub

        with init_grpc_channel(ray.get_runtime_context().gcs_address) as channel:
            request = GetWorkerInfoRequest(worker_id=bytes.fromhex(worker_id))
            found = WorkerInfoGcsServiceStub(channel).GetWorkerInfo(request, timeout=timeout_s).worker_table_data
        if found.is_alive or found.exit_type != WorkerExitType.Value("NODE_OUT_OF_MEMORY"):
            return None
        return f"out of memory: {found.exit_detail.splitlines()[0]}"[:300]
    except Exception:  # the head does not answer, or this Ray has none of these names: its own exception has to do
        return None


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]


def why_no_start(error: Exception) -> str:
    """Why an actor could not start: the last line says it, where a constructor raised."""
    if "it was cancelled before it started" in str(error) and os.environ.get("RAY_AUTH_MODE") == "token":
        return (
            f"{first_line(error)} Ray cancelled it: so does one that was started without a token with the actors of a "
            "program that sends one. Attach to it by its address, host:port, and without RAY_AUTH_MODE=token; or start "
            "it anew, which finds the token"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]} {lines[-1] if len(lines) > 1 else ''}"[:500] if lines else repr(error)
