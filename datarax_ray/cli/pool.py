"""`datarax-ray pool`: the pools of reader actors of a cluster, by what its head keeps of them. Starts no Ray."""

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

from ray._private import services
from ray._private.authentication import authentication_token_setup
from rich import box
from rich.table import Table

from datarax_ray.actors.head import Head
from datarax_ray.actors.sizing import PREFIX, Entry, PoolId, PoolSeen, Wish, to_json, wish_key
from datarax_ray.cli.screen import Screen

logger = logging.getLogger("datarax_ray")

_LOOK_S = 0.5


def list_pools(address: str | None, screen: Screen) -> None:
    """Print every pool of the cluster."""
    with head_at(address) as head:
        pools = _seen(head)
    screen.answer(
        [_told(pool, seen) for pool, seen in pools.items()],
        [_table(pools) if pools else "no pool of reader actors is here"],
    )


def show(name: str, address: str | None, screen: Screen) -> None:
    """Print one pool. Raises: ValueError where there is not one of this name."""
    with head_at(address) as head:
        pool = _found(name, _seen(head))
    told = _told(*pool)
    screen.answer(told, _lines(told))


def resize(name: str, num_actors: int | None, address: str | None, screen: Screen, *, wait_s: float = 30.0) -> None:
    """Ask a pool to be as large as that, None for what its program says, and wait for its drivers to take it up.

    Raises: ValueError where there is not one of this name, or it cannot read with so few; TimeoutError where they do
    not; RuntimeError where they end before.
    """
    reason = f"{getpass.getuser()} on {socket.gethostname()} asked for it"
    wish = Wish(num_actors, "person", secrets.token_hex(4), reason)
    with head_at(address) as head:
        pool, before = _found(name, _seen(head))
        if not before.entries:
            raise ValueError(
                f"nobody reads with {name!r} now; the next job that does says how many actors it is to have"
            )
        least = max(entry.least for entry in before.entries)
        if num_actors is not None and num_actors < least:
            raise ValueError(
                f"{name!r} cannot read with {num_actors}: its files lie on {least} nodes, each of which needs an actor "
                f"of its own; give at least {least}"
            )
        head.put(wish_key(pool), to_json(wish))
        deadline = time.monotonic() + wait_s
        while True:
            seen = _seen(head).get(pool, PoolSeen())
            if not seen.entries:
                gone = _drivers(list(before.entries))
                raise RuntimeError(f"{name!r} was not resized: its job ended meanwhile ({gone})")
            late = [entry for entry in seen.entries if entry.wish != wish.token]
            if not late:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{_drivers(late)} of {name!r} did not take this up within {wait_s:g} s, and will as soon as it "
                    "reaches the head of the cluster"
                )
            time.sleep(_LOOK_S)
    told = _told(pool, seen)
    size = f"{_told(pool, before)['num_actors']} -> {told['num_actors']}"
    screen.answer(told, [f"{told['name']}: {size} reader actors; {told['num_running']} run"])


def stop(name: str, address: str | None, screen: Screen, *, force: bool = False) -> None:
    """End a pool that outlives its drivers. Raises: ValueError where there is none, or some read with it."""
    with head_at(address) as head:
        pool, seen = _found(name, _seen(head))
        if seen.entries and not force:
            raise ValueError(
                f"{_drivers(list(seen.entries))} would lose the actors of {name!r}, and start others; end these jobs "
                "before, or --force where they were killed just now"
            )
        if not seen.actors:
            raise ValueError(f"{name!r} ends with its job, as it has no name of its own that others share; end the job")
        for actor in seen.actors:
            head.kill(pool[0], actor)
    data = {"name": pool[1], "namespace": pool[0], "num_ended": len(seen.actors)}
    screen.answer(data, [f"{pool[1]}: {len(seen.actors)} reader actors ended"])


def head_at(address: str | None) -> Head:
    """The head of the cluster at an address, of RAY_ADDRESS, or of this host; the log says which.

    Raises: ConnectionError where none runs here, or several; ValueError for an address of a Ray Client, and for
    "local", which is a Ray that nobody has started yet.
    """
    given = address or os.environ.get("RAY_ADDRESS", "")
    if "://" in given:
        raise ValueError(f"{given} is no address of a head; give HOST:PORT, 6379 as a rule: --address HOST:PORT")
    if given == "local":
        raise ValueError(
            f"{'--address' if address else 'RAY_ADDRESS'}=local is a Ray that a program starts for itself, and no "
            "cluster that runs; leave it out for the one of this host, or give its head: --address HOST:PORT"
        )
    if given in ("", "auto"):
        given = services.canonicalize_bootstrap_address_or_die(None)
    # as ray.init does where it connects
    authentication_token_setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    authentication_token_setup.ensure_token_if_auth_enabled(create_token_if_missing=False)
    logger.info("the Ray cluster at %s", given)
    return Head(given)


def _seen(head: Head) -> dict[PoolId, PoolSeen]:
    return PoolSeen.of(head.under(PREFIX), time.time(), head.named_actors(), head.ended_jobs())


def _found(name: str, pools: dict[PoolId, PoolSeen]) -> tuple[PoolId, PoolSeen]:
    """The pool that a person means by NAME, or by NAME/IDENTITY where several have the name."""
    found = [(pool, seen) for pool, seen in pools.items() if name in (pool[1], f"{pool[1]}/{pool[2]}")]
    if not found:
        names = ", ".join(sorted({pool[1] for pool in pools})) or "none at all"
        raise ValueError(f"no pool is named {name!r} here; there is {names}")
    if len(found) > 1:
        names = ", ".join(f"{pool[1]}/{pool[2]} (namespace {pool[0]})" for pool, _ in found)
        raise ValueError(f"several pools are named {name!r}, of which this may mean any: {names}; give one of these")
    return found[0]


def _told(pool: PoolId, seen: PoolSeen) -> dict[str, Any]:
    """A pool in plain values. Its drivers agree but for moments; the first one's word is taken where they do not."""
    namespace, name, identity = pool
    nobody = Entry(*pool, user="", job_id="", host="", pid=0, program="", num_actors=len(seen.actors))
    first = seen.entries[0] if seen.entries else nobody
    counts: Counter[str] = Counter()
    for entry in seen.entries:
        counts.update(entry.counts)
    return {
        "name": name,
        "identity": identity,
        "namespace": namespace,
        "program": first.program,
        "num_actors": first.num_actors,
        "num_running": first.num_running if seen.entries else len(seen.actors),
        "hosts": dict(first.hosts),
        "asked": None if seen.wish is None else asdict(seen.wish),
        "counts": dict(counts),
        "drivers": [
            {"host": each.host, "pid": each.pid, "job_id": each.job_id, "max_nbytes": each.max_nbytes}
            for each in seen.entries
        ],
    }


def _table(pools: dict[PoolId, PoolSeen]) -> Table:
    """Every pool in a row; name/identity, which the other commands take, where several have one name."""
    table = Table("name", "actors", "running", "asked for by", "drivers", "namespace", box=box.SIMPLE)
    times = Counter(name for _, name, _ in pools)
    for pool, seen in pools.items():
        told, (namespace, name, identity) = _told(pool, seen), pool
        asked = told["asked"]
        by = f"program: {told['program']}" if told["drivers"] else "nobody"
        if asked and asked["num_actors"] is not None:
            by = f"{asked['by']}: {asked['num_actors']}"
        shown = name if times[name] == 1 else f"{name}/{identity}"
        row = shown, told["num_actors"], told["num_running"], by, len(seen.entries), namespace
        table.add_row(*map(str, row))
    return table


def _lines(told: dict[str, Any]) -> list[str]:
    """What `show` prints of a pool."""
    lines = [f"{told['name']}: {told['num_running']} of {told['num_actors']} reader actors run"]
    lines.append(f"  its program asks for {told['program']}" if told["drivers"] else "  nobody reads with it")
    if asked := told["asked"]:
        number = asked["num_actors"]
        asks = f"{number} is asked for by a {asked['by']}" if number is not None else "which holds again"
        lines.append(f"  {asks}: {asked['reason']}")
    lines += [f"  on {host}: {num_running}" for host, num_running in sorted(told["hosts"].items())]
    for driver in told["drivers"]:
        room = f"{driver['max_nbytes'] / 2**20:,.1f} MiB in flight at most"
        lines.append(f"  read by process {driver['pid']} of {driver['host']}, Ray job {driver['job_id']}, {room}")
    return lines + [f"  {kind}: {number}" for kind, number in sorted(told["counts"].items())]


def _drivers(entries: list[Entry]) -> str:
    return ", ".join(f"process {entry.pid} of {entry.host}" for entry in entries)
