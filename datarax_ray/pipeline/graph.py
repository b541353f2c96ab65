"""The graph of stages: their order, and the inputs of each. Nothing here imports JAX."""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datarax_ray.plan.arguments import ordered


@dataclass(frozen=True)
class StageGraph:
    """Stages in an order in which they can run.

    nodes: stage by name, in that order.
    edges: by name, the stages whose outputs it takes, () for the source's batch.
    sink: the stage whose output is the batch; None without stages.
    """

    nodes: dict[str, Any]
    edges: dict[str, tuple[str, ...]]
    sink: str | None

    @classmethod
    def of(
        cls,
        stages: Sequence[Any] | Any | None,
        nodes: Mapping[str, Any] | None,
        edges: Mapping[str, Sequence[str]] | None,
        sink: str | None,
    ) -> StageGraph:
        """The graph of a user's stages: a chain, one stage alone, or any acyclic graph.

        edges: the predecessors of each node; a node without any takes the source's batch.

        Raises: TypeError for other stages; ValueError for an unknown name, a cycle, or an unused output.
        """
        if stages is not None and (nodes is not None or edges is not None or sink is not None):
            raise ValueError("give stages, or nodes, edges and sink, not both")
        if nodes is None:
            ordered("stages", stages)
            if callable(stages):  # a module, too
                stages = [stages]
            if stages is not None and (isinstance(stages, str) or not isinstance(stages, Iterable)):
                raise TypeError(f"stages is one stage or a list of them, got {stages!r}")
            nodes = {f"{index}_{type(stage).__name__}": stage for index, stage in enumerate(stages or ())}
            edges = {name: (before,) for before, name in itertools.pairwise(nodes)}
            sink = next(reversed(nodes), None)
            if sink is None:
                return cls({}, {}, None)
        if sink is None:
            raise ValueError("a graph of stages needs sink, the name of the node whose output is the batch")
        given = edges or {}
        predecessors = {name: tuple(given.get(name, ())) for name in nodes}
        named = {sink, *given, *(p for before in predecessors.values() for p in before)}
        if unknown := sorted(named - nodes.keys()):
            raise ValueError(f"edges and sink name {unknown}, the nodes are {sorted(nodes)}")
        try:
            order = list(graphlib.TopologicalSorter(predecessors).static_order())
        except graphlib.CycleError as error:
            raise ValueError(f"the stages wait for one another in a cycle: {' <- '.join(error.args[1])}") from error
        used = {sink, *(p for before in predecessors.values() for p in before)}
        if unused := sorted(nodes.keys() - used):
            raise ValueError(f"nothing uses the output of {unused}; remove these nodes, or connect them to {sink!r}")
        return cls({name: nodes[name] for name in order}, predecessors, sink)

    def run(self, call: Any, batch: Any) -> Any:
        """The sink's output, with `call(name, inputs)` for every stage in order."""
        outputs: dict[str, Any] = {}
        for name in self.nodes:
            outputs[name] = call(name, [outputs[p] for p in self.edges[name]] or [batch])
        return batch if self.sink is None else outputs[self.sink]
