"""How reader actors are made and placed, started, admitted to the streams that share them, and let go."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from datarax_ray.actors.lifecycle import ActorState, Commands, Process, Thresholds
from datarax_ray.actors.reader_actor import ReaderActor
from datarax_ray.actors.readiness import has_labels
from datarax_ray.feed.sample import Admission
from datarax_ray.plan.arguments import positive, whole

logger = logging.getLogger("datarax_ray")

# For a shared actor to answer whether anybody else reads with it, which takes a few ms.
_LEAVE_S = 1.0
# For an actor's read, which aims at 1 s, and for the __exit__ of a user's data source.
_END_S = 5.0
_FORGOTTEN = (
    "the head of the Ray cluster was started again and knows nothing of this program (it keeps its memory in a Redis, "
    "or not at all), so no actor can be started; start this program again, the last state that was saved goes on"
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
    is_sampling: the ping asks for a sample. is_unsampled: its process ended over one, so the next ping asks for none.
    """

    index: int
    state: ActorState
    handle: Any = None
    ping: ray.ObjectRef | None = None
    num_retried: int = 0
    tokens_lost: tuple[Any, ...] = ()
    to_do: Commands = field(default_factory=list)
    is_sampling: bool = False
    is_unsampled: bool = False


def start_actor(index: int, options: ActorOptions, identity: str) -> Any:
    """The handle of a new actor, which Ray starts when it has room; with a name, of the actor that is there.

    identity: of the source. Ray starts the actor again where its process or node is lost, but never runs a request
    twice.

    Raises: RuntimeError where the head of the cluster was started again, and knows nothing of this program.
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
    actor = ray.remote(concurrency_groups={"control": 1, "sample": 1})(ReaderActor)
    try:
        handle = actor.options(**given).remote(index)
    except AuthenticationError as error:
        if "WrongClusterID" not in str(error):
            raise
        # logged too: Ray's own sys.excepthook asks that head as well, and aborts before it prints what was raised
        logger.error(_FORGOTTEN)
        raise RuntimeError(_FORGOTTEN) from None
    if options.name is not None:
        _SHARED.setdefault(handle._actor_id.hex(), handle)  # the first is the one that counts
    return handle


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


class Guests:
    """Chooses the actors that may read a stream which shares them: their processes make the elements that others make.

    An actor that makes other elements does not read this stream; it goes on with the others. name: of the stream.
    """

    def __init__(self, admission: Admission, name: str) -> None:
        self._admission, self._name = admission, name
        self._asked: dict[int, ray.ObjectRef] = {}  # for a sample, by actor, as all here
        self._ended: dict[int, str] = {}  # the process that ended over its sample: later ones are asked for none
        self._known: dict[int, tuple[str, str]] = {}  # the process, and why it may not read, "" where it may
        self._last: tuple[Any, Any, tuple[int, ...]] = None, None, ()

    @property
    def pings(self) -> list[ray.ObjectRef]:
        """The calls that are not answered."""
        return list(self._asked.values())

    def admitted(
        self, ready: tuple[int, ...], running: Mapping[int, Process], actors: Mapping[int, Actor]
    ) -> tuple[int, ...]:
        """Those of the ready actors that may read; asks the others. Does not wait.

        running: replaced at each change. Raises: RuntimeError where none may.
        """
        if not self._admission.boxes or (self._last[0] == ready and self._last[1] is running):
            return self._last[2] if self._admission.boxes else ready
        for index in ready:
            process = running[index]
            if self._known.get(index, ("", ""))[0] == process.worker_id:
                continue
            if self._ended.get(index, process.worker_id) != process.worker_id:
                self._known[index] = process.worker_id, ""
            elif index not in self._asked:
                self._asked[index] = actors[index].handle.sample.remote(self._name, self._admission.boxes)
            elif ray.wait([self._asked[index]], timeout=0)[0]:
                try:
                    worker_id, sample = ray.get(self._asked.pop(index))
                except Exception:  # the actors' own pings tell of it
                    self._ended[index] = process.worker_id
                    continue
                why = self._admission.refusal(sample, f"{process.node_id[:12]} ({process.host})")
                if why:
                    logger.error("reader actor %d does not read a stream that shares it: %s", index, why)
                self._known[index] = worker_id, why
        by_process = {index: self._known.get(index, ("", "")) for index in ready}
        known = {index: why for index, (of, why) in by_process.items() if of == running[index].worker_id}
        found = tuple(index for index, why in known.items() if not why)
        if known and not found and len(known) == len(ready):
            raise RuntimeError(f"no actor may read this stream, which shares them; the last: {[*known.values()][-1]}")
        if len(known) == len(ready):
            self._last = ready, running, found
        return found


@dataclass(frozen=True)
class Holder:
    """Another source of this program, and what it holds of the cluster. source: for people."""

    source: str
    num_actors: int
    num_cpus: float


def why_not_running(options: ActorOptions, num_actors: int = 1, others: Sequence[Holder] = ()) -> str:
    """Why actors do not run yet, for people: their processes are being started, or the cluster has no room.

    num_actors: of the pool. others: open sources of this program, which may wait for these actors for ever.
    """
    labels = dict(options.label_selector or {})
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and has_labels(node["Labels"], labels)]
    each, free = options.reserves, ray.available_resources()
    totals = {name: sum(of.get(name, 0) for of in nodes) for name in each}
    needed = ", ".join(f"{amount:g} {name} of {totals[name]:g}" for name, amount in each.items())
    needed = f"each needs {needed}{f' on nodes with the labels {labels}' if labels else ''}"
    if not labels and all(free.get(name, 0.0) >= amount for name, amount in each.items()):
        return (
            f"the cluster has room for them ({needed}), so their processes are still being started. Where they end at "
            "once, see raylet.out and the workers' files in /tmp/ray/session_latest/logs of a node: a full disk and "
            "runtime_env are the usual reasons"
        )
    holders = _room_for([of.get("CPU", 0.0) for of in nodes], num_actors, options.num_cpus, others)
    holders += "Or RaySource(..., share=) of one reads with the actors of the other. " if holders else ""
    return (
        f"the cluster has no room for all of them ({needed}, {free.get('CPU', 0):g} CPU free"
        f"{' on all nodes' if labels else ''}). {holders}Ask for fewer, close sources that are done, or add nodes"
    )


def _room_for(nodes: Sequence[float], num_actors: int, num_cpus: float, others: Sequence[Holder]) -> str:
    """Who holds the CPUs of these nodes, and the num_cpus with which all have room; "" where no other source holds any.

    >>> _room_for([2.0], 1, 1.0, [Holder("RaySource(train)", 2, 1.0)])
    'RaySource(train) of this program holds 2 CPU: num_cpus=0.66 in each has room for all. '
    """
    others = [each for each in others if each.num_cpus]
    if not others or not num_cpus:
        return ""
    held = ", ".join(f"{each.source} of this program holds {each.num_actors * each.num_cpus:g} CPU" for each in others)
    num_all = num_actors + sum(each.num_actors for each in others)
    percent = math.floor(100 * sum(nodes) / num_all)
    while percent and sum(100 * cpus // percent for cpus in nodes) < num_all:  # an actor lies on one node
        percent -= 1
    return f"{held}: num_cpus={percent / 100:g} in each has room for all. "
