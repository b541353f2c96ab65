"""How reader actors are made and placed, and the call that makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from datarax_ray.actors.reader_actor import ReaderActor


@dataclass(frozen=True)
class ActorOptions:
    """How actors are made and placed. num_cpus: that one reserves. resources, label_selector: where it may run.

    name: shares the actors between drivers that give the same name in the same Ray namespace (the trainers of one job);
    they end with the last of these, or with the driver that made them, from which the others recover.
    start_timeout_s: how long to wait for an actor where none runs. ticket_timeout_s: how long an actor may be at one
    ticket before it is taken for hung, ended and replaced.

    Raises: ValueError for a timeout that is not positive.
    """

    num_cpus: float = 1.0
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
    memory: int | None = None
    name: str | None = None
    start_timeout_s: float = 300.0
    runtime_env: Mapping[str, Any] | None = None
    ticket_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "ticket_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, got {getattr(self, name)}")


def start_actor(index: int, options: ActorOptions, identity: str) -> Any:
    """The handle of a new actor, which Ray starts when it has room; with a name, of the one that is there.

    identity: of what it reads. Ray starts it again where its process or node is lost, but never runs a ticket twice.
    """
    given: dict[str, Any] = {
        "num_cpus": options.num_cpus,
        "max_restarts": -1,
        "max_task_retries": 0,
        "scheduling_strategy": "SPREAD",
    }
    for key in ("resources", "label_selector", "memory", "runtime_env"):
        value = getattr(options, key)
        if value is not None:
            given[key] = dict(value) if isinstance(value, Mapping) else value
    if options.name is not None:
        # with what it reads in its name: one name for two sources must not serve one the other's records
        name = f"datarax_ray/{options.name}/{identity}/{index}"
        given |= {"name": name, "get_if_exists": True}
    actor = ray.remote(concurrency_groups={"control": 1})(ReaderActor)
    return actor.options(**given).remote(index)
