"""Homes: files that lie on some nodes alone, and the owners of their records.

The order does not depend on homes, so the stream is the same as with all files in one directory. Only ownership follows
homes: a partition holds records of one home, and its owner runs on a node of that home.

Legend: a home is a set of nodes that have the same files; a share is the partitions of one home.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import EpochOrder, Order, Partitioning, RunRecords
from datarax_ray.plan.partitions import assign

# Partitions of a home, for the actors of one host.
_MIN_SHARE = 16


@dataclass(frozen=True)
class Homes:
    """The homes of records.

    starts: the first record of each stretch of records of one home, ascending from 0.
    home: of each stretch, an index in `nodes`.
    nodes: of each home, the ids of its nodes.
    names: of each home, some of its files, for people.
    """

    starts: tuple[int, ...]
    home: tuple[int, ...]
    nodes: tuple[frozenset[str], ...]
    names: tuple[tuple[str, ...], ...]

    def of(self, records: Indices) -> Indices:
        """The home of each record. records: int64 (k,). Returns int64 (k,)."""
        return np.array(self.home, np.int64)[np.searchsorted(self.starts, records, "right") - 1]

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """The nodes with any record, sorted."""
        return tuple(sorted(frozenset().union(*self.nodes)))

    def without(self, nodes: frozenset[str]) -> list[int]:
        return [home for home, has in enumerate(self.nodes) if not has & nodes]


class HomeQuorum:
    """Decides whether the running actors reach all files. Times are of any clock.

    timeout_s: how long a home may have no actor.
    """

    def __init__(self, homes: Homes, timeout_s: float) -> None:
        self._homes = homes
        self._timeout_s = timeout_s
        self._missing_since: float | None = None

    def missing(self, nodes: frozenset[str]) -> list[int]:
        """Event: actors run on these nodes. Returns the homes without an actor."""
        missing = self._homes.without(nodes)
        if not missing:
            self._missing_since = None
        return missing

    def check(self, missing: list[int], alive: frozenset[str], now: float) -> None:
        """Event: these homes have no actor, and these nodes are alive.

        Raises: RuntimeError where all nodes of a home are gone, or a home has had no actor for too long.
        """
        self._missing_since = now if self._missing_since is None else self._missing_since
        gone = [home for home in missing if not self._homes.nodes[home] & alive]
        if gone or now - self._missing_since > self._timeout_s:
            home = (gone or missing)[0]
            files = ", ".join(self._homes.names[home])
            nodes = ", ".join(node[:12] for node in sorted(self._homes.nodes[home]))
            state = "gone" if gone else f"without a running actor for {self._timeout_s:g} s"
            raise RuntimeError(
                f"{files} (and perhaps more) are on node {nodes} alone, which is {state}: nobody can read them, and "
                "the stream stops. Bring the node back with its files, or copy them to another node, start again with "
                "files_on_nodes(...), and restore the last state"
            )


@dataclass(frozen=True)
class HomedOrder(Order):
    """An order whose partitions each hold records of one home; every home has as many, one home after the other."""

    order: EpochOrder
    homes: Homes

    @property
    def num_records(self) -> int:  # type: ignore[override]
        return self.order.num_records

    @property
    def seed(self) -> int:  # type: ignore[override]
        return self.order.seed

    @property
    def shortest_epoch(self) -> int:
        return self.order.shortest_epoch

    @property
    def cycle(self) -> int:
        return self.order.cycle

    def records(self, positions: Indices) -> Indices:
        return self.order.records(positions)

    def settings(self) -> dict[str, Any]:
        return self.order.settings()

    @property
    def home_nodes(self) -> tuple[frozenset[str], ...]:
        return self.homes.nodes

    def partitioning(self, run_records: RunRecords) -> Partitioning:
        """Every home divides its runs over partitions of its own."""
        part = self.order.partitioning(run_records)
        num_homes = len(self.homes.nodes)
        each = max(_MIN_SHARE, part.num_partitions // num_homes)
        return replace(part, num_partitions=num_homes * each)

    def partitions_of(self, partitioning: Partitioning, records: Indices) -> Indices:
        share = _share(partitioning, self.homes.nodes)
        return self.homes.of(records) * share.num_partitions + self.order.partitions_of(share, records)


def _share(partitioning: Partitioning, homes: Sequence[frozenset[str]]) -> Partitioning:
    """The partitioning of one home: home h has the h-th run of as many partitions."""
    return replace(partitioning, num_partitions=partitioning.num_partitions // len(homes))


def assign_at_home(
    partitioning: Partitioning,
    homes: Sequence[frozenset[str]],
    nodes: Mapping[int, str],
    actors: Sequence[int],
    before: Sequence[int] = (),
    weights: Mapping[int, float] | None = None,
) -> tuple[int, ...] | None:
    """The owner of every partition (see plan.partitions.assign), on a node of its home; None where a home has no actor.

    homes: the nodes of each home. nodes: the node of each actor.

    >>> part = Partitioning(1, 4, is_dealt=False)
    >>> assign_at_home(part, [frozenset("a"), frozenset("ab")], {7: "a", 8: "b"}, [7, 8])
    (7, 7, 7, 8)
    >>> assign_at_home(part, [frozenset("a"), frozenset("c")], {7: "a", 8: "b"}, [7, 8]) is None
    True
    """
    share, owners = _share(partitioning, homes), list[int]()
    each = share.num_partitions
    for home, has in enumerate(homes):
        local = [actor for actor in actors if nodes.get(actor, "") in has]
        if not local:
            return None
        mine = {actor: weight for actor, weight in (weights or {}).items() if actor in local} or None
        owners += assign(share, local, before[home * each : (home + 1) * each], mine)
    return tuple(owners)


def by_home(partitioning: Partitioning, homes: Sequence[frozenset[str]], partitions: Sequence[int]) -> list[list[int]]:
    """Partitions, ascending, cut where another home begins: another node may have only one of two homes.

    >>> by_home(Partitioning(1, 4, is_dealt=False), [frozenset("a"), frozenset("ab")], [0, 1, 3])
    [[0, 1], [3]]
    """
    each = _share(partitioning, homes).num_partitions
    return [list(found) for _, found in itertools.groupby(partitions, lambda partition: partition // each)]


def may_read(request: Any, homes: Sequence[frozenset[str]], node: str) -> bool:
    """Whether a node has all records of a HomedOrder's request."""
    each = _share(request.partitioning, homes).num_partitions
    return all(node in homes[partition // each] for partition in request.partitions)
