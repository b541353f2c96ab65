"""How reader actors are made and placed, started, and let go."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from datarax_ray.actors.lifecycle import ActorState, Commands, Thresholds
from datarax_ray.actors.reader_actor import ReaderActor
from datarax_ray.plan.arguments import positive, whole

logger = logging.getLogger("datarax_ray")

# For a shared actor to answer whether anybody else reads with it, which takes a few ms.
_LEAVE_S = 1.0
# For an actor's read, which aims at 1 s, and for the __exit__ of a user's data source.
_END_S = 5.0
_FORGOTTEN = (
    "the head of the Ray cluster was started again and does not know this program (only a head with a Redis remembers "
    "programs), so no actor can be started. Start this program again: it continues from the last saved state"
)

# The handles of shared actors that this process started, by id. Ray ends an actor with the handle that started it,
# whoever reads with it: handles found by a name do not count (_ray_weak_ref). So the handle outlives its pool.
_SHARED: dict[str, Any] = {}


@dataclass(frozen=True)
class ActorOptions:
    """How actors are made and placed: RaySource's arguments of these names.

    Raises: ValueError for a timeout that is not positive; TypeError for other types.
    """

    num_cpus: float = 1.0
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
    memory: int | None = None
    name: str | None = None
    start_timeout_s: float = 300.0
    runtime_env: Mapping[str, Any] | None = None
    request_timeout_s: float = 300.0
    thresholds: Thresholds = field(default_factory=Thresholds)
    strict: bool = False

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "request_timeout_s"):
            positive(name, getattr(self, name))
        if self.num_cpus != 0:
            positive("num_cpus", self.num_cpus)
        if self.memory is not None:
            whole("memory", self.memory, ", in bytes", least=0)
        if self.name is not None and not isinstance(self.name, str):
            raise TypeError(f"name is a text, by which other drivers find the actors, got {self.name!r}")

    @property
    def reserves(self) -> dict[str, float]:
        """The amount of each of Ray's resources that one actor reserves."""
        each = {"CPU": self.num_cpus, **(self.resources or {})}
        return each if self.memory is None else each | {"memory": self.memory}


@dataclass
class Actor:
    """One actor of a pool.

    handle: Ray's. ping: a call that a running actor answers, while state.asked_at is set.
    num_retried, tokens_lost: the number and the tokens of the requests that the last loss took.
    to_do: commands still to be carried out.
    """

    index: int
    state: ActorState
    handle: Any = None
    ping: ray.ObjectRef | None = None
    num_retried: int = 0
    tokens_lost: tuple[Any, ...] = ()
    to_do: Commands = field(default_factory=list)


def start_actor(index: int, options: ActorOptions, identity: str, remote_class: Any) -> Any:
    """The handle of a new actor, which Ray starts when it has room; with a name, of the actor that is there.

    identity: of the source. remote_class: see there. Ray starts a lost actor again, and runs no request twice.

    Raises: RuntimeError if the head of the cluster was started again, and does not know this program.
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
        # with the source's identity: two sources of one name must not get each other's records
        given |= {"name": f"datarax_ray/{options.name}/{identity}/{index}", "get_if_exists": True}
    try:
        handle = remote_class.options(**given).remote(index)
    except AuthenticationError as error:
        if "WrongClusterID" not in str(error):
            raise
        # logged too: Ray's own sys.excepthook asks that head as well, and aborts before it prints what was raised
        logger.error(_FORGOTTEN)
        raise RuntimeError(_FORGOTTEN) from None
    if options.name is not None:
        _SHARED.setdefault(handle._actor_id.hex(), handle)  # the first is the one that counts
    return handle


def remote_class() -> Any:
    """ReaderActor as Ray starts it, for actors that start together.

    Ray sends a new class to the head (30 to 80 ms): a head that was started again, and does not know this program,
    answers that by an error. Without it nothing is ever said (tests/pipeline/test_killed_driver.py).
    """
    return ray.remote(concurrency_groups={"control": 1, "sample": 1})(ReaderActor)


def let_go(actors: Sequence[Actor], user: str | None, managed: Collection[int]) -> None:
    """Kill these actors, but for shared ones that other drivers read with.

    user: this driver's id for shared actors; None where they are not shared.
    managed: ids of actors in a user's context manager, which they first leave, where that takes less than _END_S.
    """
    asked = {actor.index: actor.handle.leave.remote(user) for actor in actors if user is not None}
    answered = set(ray.wait(list(asked.values()), num_returns=len(asked), timeout=_LEAVE_S)[0]) if asked else set()
    free: list[Actor] = []
    for actor in actors:
        ref = asked.get(actor.index)
        # an actor that has never answered serves nobody yet, and must not start when everybody has left
        is_free = ref is None or (ref not in answered and not actor.state.process.worker_id)
        if ref in answered:
            with contextlib.suppress(Exception):  # gone by itself
                is_free = ray.get(ref)
        if is_free:
            free.append(actor)
    if ends := [actor.handle.end.remote() for actor in free if actor.index in managed]:
        ray.wait(ends, num_returns=len(ends), timeout=_END_S)
    for actor in free:
        ray.kill(actor.handle)
        _SHARED.pop(actor.handle._actor_id.hex(), None)


def why_not_running(options: ActorOptions, held: Sequence[str]) -> str:
    """Why actors do not run yet, for people: their processes are being started, or the cluster has no room.

    held: by other sources of this program, in words.
    """
    labels, each = dict(options.label_selector or {}), options.reserves
    free, totals = ray.available_resources(), ray.cluster_resources()
    needed = ", ".join(f"{amount:g} {name} of {totals.get(name, 0):g}" for name, amount in each.items())
    needed = f"each needs {needed}{f', on nodes with the labels {labels}' if labels else ''}"
    if not labels and all(free.get(name, 0.0) >= amount for name, amount in each.items()):
        return (
            f"the cluster has room for them ({needed}), so their processes are still being started. If they end at "
            "once, see raylet.out and the workers' files in /tmp/ray/session_latest/logs of a node: a full disk and "
            "runtime_env are the usual reasons"
        )
    remedy = f"{', '.join(held)}; with RaySource(..., share=) one source reads with its actors. " if held else ""
    return (
        f"the cluster has no room for all of them ({needed}, {free.get('CPU', 0):g} CPU free"
        f"{' on all nodes' if labels else ''}). {remedy}Ask for fewer or smaller ones (num_actors=, num_cpus=), close "
        "sources that are done, or add nodes"
    )
