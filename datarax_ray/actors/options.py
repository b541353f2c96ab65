"""How reader actors are made and placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.actors.lifecycle import Thresholds


@dataclass(frozen=True)
class ActorOptions:
    """How actors are made and placed: RaySource's arguments of these names.

    nodes: ids of those that have the data, where these are some: actor i runs on number i % len(nodes), while that is
    there, so that each has one.

    Raises: ValueError for a timeout that is not positive, or linger_s without a name.
    """

    num_cpus: float = 1.0
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
    memory: int | None = None
    name: str | None = None
    linger_s: float | None = None
    start_timeout_s: float = 300.0
    runtime_env: Mapping[str, Any] | None = None
    request_timeout_s: float = 300.0
    thresholds: Thresholds = field(default_factory=Thresholds)
    nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "request_timeout_s", "linger_s"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} must be more than 0, got {value}")
        if self.linger_s is not None and self.name is None:
            raise ValueError(
                f"linger_s={self.linger_s:g} keeps the actors for drivers that come later, who find them by their "
                "name; give a name as well"
            )

    @property
    def reserves(self) -> dict[str, float]:
        """What one actor reserves of each of Ray's resources."""
        each = {"CPU": self.num_cpus, **(self.resources or {})}
        return each if self.memory is None else each | {"memory": self.memory}
