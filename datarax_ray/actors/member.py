"""One reader actor as the driver knows it: its handle, what it was sent, and when it was last heard of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ray

from datarax_ray.feed.flow import Lost
from datarax_ray.feed.window import Part
from datarax_ray.read.block import Block


@dataclass(eq=False)
class InFlight:
    """A request on its way. ref: what it will answer, None where there was nobody to send it to.

    node: where its actor was then. outcome: the loss or the block, where it is known before anyone asks for it.
    look_at: when to see whether it is on this node, inf once it is. waited_since: when it was first seen to be read
    while the stream waits for it.
    Times are those of time.monotonic.
    """

    part: Part
    ref: ray.ObjectRef | None
    node: str = ""
    outcome: Lost | Block | None = None
    look_at: float = 0.0
    waited_since: float | None = None


@dataclass(frozen=True)
class Loss:
    """What the actor has to come back from: since when, why, and how it will be called when it is back."""

    kind: str
    since: float
    reason: str
    num_retried: int


@dataclass
class Member:
    """One actor of the pool; times are those of time.monotonic.

    user: of the pool, as the actor knows it. ping: a pending call that answers once it runs. is_ready: whether it is
    sent requests. heard_at: its last answer of any kind. progress_at: when a request of its was last seen to end, or
    the first was sent. num_failures: losses and failed starts since it last gave a block. start_at: when to start its
    next process, None for no need. due_at: when another takes its place unless it is back.
    """

    index: int
    handle: Any
    user: str
    ping: ray.ObjectRef | None = None
    pinged_at: float = 0.0
    is_ready: bool = False
    who: dict[str, Any] = field(default_factory=dict)
    sent: dict[ray.ObjectRef, InFlight] = field(default_factory=dict)
    heard_at: float = 0.0
    progress_at: float = 0.0
    num_done: int = 0
    num_failures: int = 0
    start_at: float | None = None
    loss: Loss | None = None
    due_at: float = float("inf")

    @property
    def where(self) -> str:
        return f"pid {self.who['pid']} on node {self.who['node_id'][:12]}" if self.who else "not yet anywhere"

    def pings(self, now: float) -> None:
        self.ping, self.pinged_at = self.handle.stats.remote(self.user), now
