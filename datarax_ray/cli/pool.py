"""`datarax-ray pool`: the pools of reader actors of a cluster, by the records that its head keeps. Starts no Ray."""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import socket
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

from ray._private.authentication import authentication_token_setup

from datarax_ray.actors.connection import START_OR_NAME, cluster_here
from datarax_ray.actors.head import Head
from datarax_ray.actors.sizing import PREFIX, PoolId, PoolSeen, Wish, to_json, wish_key
from datarax_ray.cli.screen import Screen

logger = logging.getLogger("datarax_ray")

_LOOK_S = 0.5


def list_pools(name: str | None, address: str | None, screen: Screen) -> None:
    with head_at(address) as head:
        pools = _pools(head)
    facts = [_facts(*each) for each in (pools.items() if name is None else _named(name, pools))]
    lines = [line for each in facts for line in _lines(each)]
    screen.answer(facts, lines or ["the cluster has no pool of reader actors"])


def resize(name: str, num_actors: int | None, address: str | None, screen: Screen, *, wait_s: float = 30.0) -> None:
    reason = f"{getpass.getuser()} on {socket.gethostname()} asked for it"
    wish = Wish(num_actors, "person", secrets.token_hex(4), reason)
    with head_at(address) as head:
        found = _named(name, _pools(head))
        if len(found) > 1:
            names = ", ".join(f"{pool[1]}/{pool[2]} (namespace {pool[0]})" for pool, _ in found)
            raise ValueError(f"several pools are named {name!r}; give one of these: {names}")
        ((pool, before),) = found
        head.put(wish_key(pool), to_json(wish))
        deadline = time.monotonic() + wait_s
        while True:
            seen = _pools(head).get(pool, PoolSeen())
            if not seen.entries:
                raise RuntimeError(f"{name!r} was not resized: its job ended meanwhile ({_drivers(before)})")
            late = PoolSeen(tuple(entry for entry in seen.entries if entry.wish != wish.token))
            if not late.entries:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{_drivers(late)} of {name!r} did not answer within {wait_s:g} s; the pool is resized as soon as "
                    "it reaches the head of the cluster"
                )
            time.sleep(_LOOK_S)
    facts = _facts(pool, seen)
    size = f"{_facts(pool, before)['num_actors']} -> {facts['num_actors']}"
    screen.answer(facts, [f"{facts['name']}: {size} reader actors; {facts['num_running']} run"])


def head_at(address: str | None) -> Head:
    """The head of the cluster at an address, else of RAY_ADDRESS, else of this host; the log names it.

    Raises: ConnectionError where no Ray, or several, run here; ValueError for an address of a Ray Client, and for
    "local", a Ray that a program starts for itself.
    """
    given = address or os.environ.get("RAY_ADDRESS", "")
    if "://" in given or given == "local":
        where = "--address" if address else "RAY_ADDRESS"
        raise ValueError(f"{where}={given} is no address of a head; give HOST:PORT, usually port 6379, or auto")
    if given in ("", "auto"):
        given = cluster_here(of_programs=True) or ""
        if not given:
            raise ConnectionError(f"no Ray runs on this host: {START_OR_NAME}, with --address or RAY_ADDRESS")
    # as ray.init does where it connects
    authentication_token_setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    authentication_token_setup.ensure_token_if_auth_enabled(create_token_if_missing=False)
    logger.info("the Ray cluster at %s", given)
    return Head(given)


def _pools(head: Head) -> dict[PoolId, PoolSeen]:
    return PoolSeen.of(head.under(PREFIX), time.time(), head.ended_jobs())


def _named(name: str, pools: dict[PoolId, PoolSeen]) -> list[tuple[PoolId, PoolSeen]]:
    """The pools of a NAME, or the pool of a NAME/IDENTITY. Raises: ValueError where there is none."""
    found = [(pool, seen) for pool, seen in pools.items() if name in (pool[1], f"{pool[1]}/{pool[2]}")]
    if not found:
        names = ", ".join(sorted({pool[1] for pool in pools})) or "none"
        raise ValueError(f"no pool is named {name!r} here; the names are: {names}")
    return found


def _facts(pool: PoolId, seen: PoolSeen) -> dict[str, Any]:
    """A pool in plain values. Its drivers agree except for moments, so the first one's entry stands for all."""
    namespace, name, identity = pool
    first = seen.entries[0]
    counts: Counter[str] = Counter()
    for entry in seen.entries:
        counts.update(entry.counts)
    return {
        "name": name,
        "identity": identity,
        "namespace": namespace,
        "program": first.program,
        "num_actors": first.num_actors,
        "num_running": first.num_running,
        "hosts": dict(first.hosts),
        "asked": None if seen.wish is None else asdict(seen.wish),
        "counts": dict(counts),
        "drivers": [
            {"host": each.host, "pid": each.pid, "job_id": each.job_id, "max_nbytes": each.max_nbytes}
            for each in seen.entries
        ],
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"{facts['name']}/{facts['identity']}: {facts['num_running']} of {facts['num_actors']} reader actors run"]
    lines.append(f"  its program asks for {facts['program']}")
    if asked := facts["asked"]:
        number = asked["num_actors"]
        asks = f"a {asked['by']} asks for {number}" if number is not None else "the program decides again"
        lines.append(f"  {asks}: {asked['reason']}")
    lines += [f"  on {host}: {num_running}" for host, num_running in sorted(facts["hosts"].items())]
    for driver in facts["drivers"]:
        room = f"{driver['max_nbytes'] / 2**20:,.1f} MiB in flight at most"
        lines.append(f"  read by process {driver['pid']} of {driver['host']}, Ray job {driver['job_id']}, {room}")
    return lines + [f"  {kind}: {number}" for kind, number in sorted(facts["counts"].items())]


def _drivers(seen: PoolSeen) -> str:
    return ", ".join(f"process {entry.pid} of {entry.host}" for entry in seen.entries)
