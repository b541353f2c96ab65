"""How many actors a pool is to have, as those outside of its program see and say it. Pure: values in, decisions out.

The head of the cluster keeps, of every pool, an entry for each driver that reads with it, and one wish, which all of
these follow. A person made it (`datarax-ray pool resize`), or one of the drivers: with num_actors=None as it saw the
cluster grow, with a range by what all of them have measured (see scaling).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Self, TypeAlias
from urllib.parse import quote, unquote

from datarax_ray.actors.start_quorum import has_labels, num_fitting

# (namespace, name, identity); see Entry.
PoolId: TypeAlias = tuple[str, str, str]
IDENTITY_LEN = 8  # of a digest: it tells apart what one name may be given for
PREFIX = "pool/"
_WISH = "wish"
# Without a word for so long a driver is gone: it speaks every 5 s, but a head that is started again takes a minute.
GONE_S = 90.0


@dataclass(frozen=True)
class Node:
    """A node that is alive: what of each resource it has, what of that is free, and its labels."""

    total: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """num_actors: that a pool is to have, None for what its program says. token: which tells this wish from others."""

    num_actors: int | None
    by: Literal["person", "cluster", "driver"]
    token: str
    reason: str = ""


@dataclass(frozen=True)
class Entry:
    """One driver that reads with a pool.

    namespace, name: of the pool; the name is its program's, or made of its Ray job.
    identity: of what it reads, as one name may be given for two sources.
    user: the driver, as the pool's actors know it.
    program: what its program asks for, in words.
    num_actors: that there are meant to be.
    hosts: how many run, by host.
    wish: the token of that which it follows, "" for none yet.
    max_nbytes: that it may have in flight, beside the others.
    counts: its recoveries by kind.
    at: when this was written, in seconds since 1970.
    least: actors that it can read with.
    scales: whether its program gives a range.
    waited_s: since it began, that its streams have waited for actors.
    read_s: likewise, that actors read for it.
    num_used: likewise, elements that it has.
    """

    namespace: str
    name: str
    identity: str
    user: str
    job_id: str
    host: str
    pid: int
    program: str
    num_actors: int = 0
    hosts: Mapping[str, int] = field(default_factory=dict)
    wish: str = ""
    max_nbytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    at: float = 0.0
    least: int = 1
    scales: bool = False
    waited_s: float = 0.0
    read_s: float = 0.0
    num_used: int = 0

    @property
    def num_running(self) -> int:
        return sum(self.hosts.values())

    @property
    def pool(self) -> PoolId:
        return self.namespace, self.name, self.identity

    @property
    def key(self) -> str:
        return under(self.pool) + self.user


@dataclass(frozen=True)
class PoolSeen:
    """What the head knows of a pool.

    entries: of the drivers that are there.
    wish: None for none.
    actors: Ray's names of those that are shared.
    draining: ids of the cluster's nodes that are about to go.
    has_left: whether the asking program's own node is none of them any more.
    """

    entries: tuple[Entry, ...] = ()
    wish: Wish | None = None
    actors: tuple[str, ...] = ()
    draining: frozenset[str] = frozenset()
    has_left: bool = False

    @property
    def is_asked(self) -> bool:
        """Whether a person says how many actors there are to be."""
        return self.wish is not None and self.wish.by == "person" and self.wish.num_actors is not None

    @classmethod
    def of(
        cls,
        kept: Mapping[str, str],
        now: float,
        named: Iterable[tuple[str, str]] = (),
        ended_jobs: Collection[str] = (),
    ) -> dict[PoolId, Self]:
        """Every pool that somebody reads with, of the head's keys that begin with PREFIX and their values.

        named: namespace and name of each actor that has one; then also pools that are there for drivers to come.
        ended_jobs: whose drivers are gone, also where a killed one spoke just now. What is no entry is left out: other
        releases may write others.
        """
        actors: dict[PoolId, list[str]] = {}
        for namespace, name in sorted(named):
            if (found := pool_of(namespace, name)) is not None:
                actors.setdefault(found, []).append(name)
        entries: dict[PoolId, list[Entry]] = {}
        wishes: dict[PoolId, Wish] = {}
        for key, value in sorted(kept.items()):
            try:
                _, namespace, name, identity, user = key.split("/")
                pool = unquote(namespace), unquote(name), unquote(identity)
                if user == _WISH:
                    wishes[pool] = Wish(**json.loads(value))
                elif now - (entry := Entry(**json.loads(value))).at < GONE_S and entry.job_id not in ended_jobs:
                    entries.setdefault(pool, []).append(entry)
            except (ValueError, TypeError):
                continue
        return {
            pool: cls(tuple(entries.get(pool, ())), wishes.get(pool), tuple(actors.get(pool, ())))
            for pool in sorted({*entries, *actors})
        }


def actor_name(name: str, identity: str, index: int) -> str:
    """Ray's name of a shared actor; identity: of what it reads, a digest."""
    return f"datarax_ray/{name}/{identity}/{index}"


def pool_of(namespace: str, actor_name: str) -> PoolId | None:
    """Of which pool an actor of this name is; None for somebody else's.

    >>> pool_of("team", actor_name("train/1", "0f3a9c5e77", 3))
    ('team', 'train/1', '0f3a9c5e')
    """
    first, _, rest = actor_name.partition("/")
    name, *found = rest.rsplit("/", 2)
    return (namespace, name, found[0][:IDENTITY_LEN]) if first == "datarax_ray" and len(found) == 2 else None


def under(pool: Sequence[str], prefix: str = PREFIX) -> str:
    """What the head's keys of a pool begin with, or of all of a name: (namespace, name)."""
    return prefix + "".join(quote(part, safe="") + "/" for part in pool)


def wish_key(pool: PoolId) -> str:
    return under(pool) + _WISH


def to_json(value: Wish | Entry) -> str:
    return json.dumps(asdict(value))


@dataclass(frozen=True)
class Room:
    """What one actor takes: of each resource, at least one CPU to read with, and the labels of its node."""

    each: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    def grown(self, num_actors: int, nodes: Iterable[Node]) -> int:
        """One per CPU of these nodes but one, as far as there is room for more; never fewer than there are.

        Only room that is there counts: an actor that waited for some would have the autoscaler add a node, which has
        room for more, and so on.

        >>> Room({"CPU": 1}).grown(7, [Node({"CPU": 8}, {"CPU": 1}), Node({"CPU": 8}, {"CPU": 6})])
        14
        """
        eligible = [node for node in nodes if has_labels(node.labels, self.labels)]
        most = int(sum(node.total.get("CPU", 0.0) for node in eligible) / self.each["CPU"]) - 1
        room = sum(num_fitting(node.free, self.each, max(0, most)) for node in eligible)
        return max(num_actors, min(most, num_actors + room))


def grown(entry: Entry, seen: PoolSeen, room: Room, nodes: Iterable[Node]) -> int | None:
    """How many actors a pool is to have because its cluster has grown; None to leave it as it is.

    entry: of the driver that asks. Of those whose program says the same one decides, for all of the pool's; it follows
    the largest, which started when there was room for more, and waits for actors that do not run yet.
    """
    alike = [each for each in (entry, *seen.entries) if each.program == entry.program]
    if seen.is_asked or entry.user != min(each.user for each in alike) or entry.num_running < entry.num_actors:
        return None
    num_actors = room.grown(max(each.num_actors for each in alike), nodes)
    is_known = seen.wish is not None and seen.wish.num_actors == num_actors
    return None if is_known or all(each.num_actors == num_actors for each in alike) else num_actors
