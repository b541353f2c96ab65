"""The gate of a stream: admits actors by the elements that their processes make."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from datarax_ray.actors.actor_set import ActorSet
from datarax_ray.actors.lifecycle import Process
from datarax_ray.actors.starting import Actor
from datarax_ray.feed.sample import Admission

logger = logging.getLogger("datarax_ray")


class Gate:
    """Chooses the actors that may read one stream: their processes make the same elements as the others.

    name: of the stream. An actor that makes other elements goes on with other streams.
    """

    def __init__(self, actors: ActorSet, admission: Admission, name: str) -> None:
        self._actors, self._admission, self._name = actors, admission, name
        self._asked: dict[int, tuple[str, ray.ObjectRef]] = {}  # by actor, the process that is to give a sample
        self._num_ended: Counter[int] = Counter()  # processes of an actor that ended over their samples, in a row
        self._known: dict[str, str] = {}  # of each process, why it may not read; "" where it may
        self._last: tuple[Any, tuple[int, ...]] = None, ()

    @property
    def pings(self) -> list[ray.ObjectRef]:
        """The calls that are not answered; none before their answers can be compared."""
        return [ref for _, ref in self._asked.values()] if self._admission.is_ready else []

    def nodes(self) -> Mapping[int, str]:
        """The nodes of actors that may read."""
        actors = self._actors
        if not self._admission.boxes or (self._last[0] is actors.running and self._last[1] == actors.ready):
            return actors.nodes
        return {i: node for i, node in actors.nodes.items() if self._known.get(actors.running[i].worker_id) == ""}

    def admitted(self) -> tuple[int, ...]:
        """The running actors that may read; asks the others for a sample. Does not wait.

        Raises: RuntimeError where none may; ValueError as Admission.refusal.
        """
        actors = self._actors
        if not self._admission.boxes:
            return actors.ready
        if self._last[0] is actors.running:
            return self._last[1]
        pings = self.pings
        answered = set(ray.wait(pings, num_returns=len(pings), timeout=0)[0]) if pings else set()
        for index, process in actors.running.items():
            actor = actors.actors[index]
            if process.worker_id in self._known:
                continue
            if self._num_ended[index] > 1:  # a transform ends them, and reading says at which record
                self._known[process.worker_id] = ""
            elif index not in self._asked:
                self._asked[index] = process.worker_id, actor.handle.sample.remote(self._name, self._admission.boxes)
            elif self._asked[index][1] in answered:
                self._hear(actor, process)
            else:
                actor.state.is_owed = True  # so that it is pinged, and missed where it is silent
        why_not = {index: self._known.get(process.worker_id) for index, process in actors.running.items()}
        found = tuple(index for index, why in why_not.items() if why == "")
        if why_not and all(why_not.values()):
            raise RuntimeError(
                f"no actor may read this stream; the last: {[*why_not.values()][-1]} If other drivers or streams share "
                "the actors, give this source actors of its own"
            )
        self._last = (None if None in why_not.values() else actors.running), found
        return found

    def _hear(self, actor: Actor, process: Process) -> None:
        """Event: the actor answers with a sample, or its process has ended over it."""
        asked, ref = self._asked.pop(actor.index)
        try:
            worker_id, sample = ray.get(ref)
        except RayError as error:
            self._num_ended[actor.index] += 1
            if asked == process.worker_id:  # else its end was known before
                self._actors.failed(actor, error)
            return
        self._num_ended[actor.index] = 0
        self._known[worker_id] = why = self._admission.refusal(sample, f"{process.node_id[:12]} ({process.host})")
        if why and actor.state.num_failures == 0:  # it may be tried again, and again
            logger.error("reader actor %d is not admitted: %s", actor.index, why)
        if why and worker_id == process.worker_id:
            self._actors.refuse(actor, why)
