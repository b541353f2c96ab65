"""How reader actors are made and placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.actors.lifecycle import Thresholds


@dataclass(frozen=True)
class ActorOptions:
    """How actors are made and placed. num_cpus: that one reserves. resources, label_selector: where it may run.

    name: shares the actors between drivers that give the same name in the same Ray namespace (the trainers of one job);
    they end with the last of these, or with the driver that made them, from which the others recover.
    start_timeout_s: how long to wait for an actor where none runs. request_timeout_s: how long an actor may be at one
    request before it is taken for hung, ended and replaced. thresholds: how patient to be with actors otherwise.

    Raises: ValueError for a timeout that is not positive.
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

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "request_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, got {getattr(self, name)}")
