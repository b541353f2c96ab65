"""Faults, injected for real into the actors and nodes of a RaySource on a cluster of several raylets.

Each injects one fault and returns; what must be undone later (a frozen process goes on) is, by a thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

from ray.cluster_utils import Cluster

from datarax_ray import RaySource

RESOURCE = "reader_host"
# What a frozen process stays frozen for: longer than the 10 s after which its requests go to others.
_FROZEN_S = 12.0
_SLOW_S = 4.0


class Chaos:
    """The faults that a cluster of preemptible hosts sees. actors_per_node: how many have room on one."""

    def __init__(self, cluster: Cluster, source: RaySource, seed: int, actors_per_node: int, frozen_s: float) -> None:
        self.cluster = cluster
        self.source = source
        self.random = random.Random(seed)
        self._actors_per_node = actors_per_node
        self._frozen_s = frozen_s
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self.kinds: dict[str, Callable[[], None]] = {
            "actor killed (SIGKILL)": self.kill,
            "actor frozen (SIGSTOP)": self.freeze,
            "actor slow": self.slow,
            "actor exits (as out of memory)": self.exit,
            "actor ended, no restart left": self.end,
            "node lost without grace": self.lose_node,
            "node joined": self.add_node,
            "actors added": self.add_actors,
            "actors removed": self.remove_actors,
            "rebalanced": self.rebalance,
        }

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self, seconds: float | None = None) -> None:
        pid = self._signal(signal.SIGSTOP)

        def thaw() -> None:
            self._over.wait(self._frozen_s if seconds is None else seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        self._start(thaw)

    def slow(self) -> None:
        """A host that gives the actor a fifth of a core for a while."""
        pid = self._pid()

        def hamper() -> None:
            with contextlib.suppress(ProcessLookupError):
                for _ in range(int(_SLOW_S / 0.25)):
                    os.kill(pid, signal.SIGSTOP)
                    self._over.wait(0.2)
                    os.kill(pid, signal.SIGCONT)
                    if self._over.wait(0.05):
                        return

        self._start(hamper)

    def exit(self) -> None:
        self._actor().handle.__ray_call__.remote(lambda _: os._exit(137))

    def end(self) -> None:
        import ray

        ray.kill(self._actor().handle, no_restart=True)

    def lose_node(self) -> None:
        """A node is gone between two packets, with its actors and with what they have read and nobody has fetched."""
        nodes = self.cluster.worker_nodes
        if len(nodes) < 2:
            self.add_node()
        self.cluster.remove_node(self.random.choice(list(nodes)), allow_graceful=False)

    def add_node(self) -> None:
        self.cluster.add_node(num_cpus=1, resources={RESOURCE: self._actors_per_node}, object_store_memory=80 * 2**20)

    def add_actors(self) -> None:
        self.source.add_actors(self.random.choice([1, 2]))

    def remove_actors(self) -> None:
        self.source.remove_actors(min(2, self.source.num_actors - 1) or 1) if self.source.num_actors > 1 else None

    def rebalance(self) -> None:
        self.source.rebalance()

    def close(self) -> None:
        """Undo what is not undone."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _start(self, run: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def _actor(self) -> Any:
        running = [actor for actor in list(self.source._actors._set.actors.values()) if actor.state.process.pid]
        return self.random.choice(running)

    def _pid(self) -> int:
        return int(self._actor().state.process.pid)

    def _signal(self, number: signal.Signals) -> int:
        pid = self._pid()
        with contextlib.suppress(ProcessLookupError):  # it had gone before, by another fault
            os.kill(pid, number)
        return pid
