"""Which actors may feed the stream: those that make the first elements as the driver and the other actors make them.

A cluster goes wrong so: another image library on one host, an old checkout, a missing package, a value that the program
has set in the driver alone. Each shows in a few elements; see feed.sample.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from datarax_ray.feed.sample import REMEDY, Sample, sampled_within
from datarax_ray.read.stream import Stream

logger = logging.getLogger("datarax_ray")

_DRIVER_S = 30.0  # a transform that takes longer in the driver is compared among actors alone


class Admission:
    """Compares the sample of each new process with that of the driver; where it has none, with that of the first actor.

    boxes: the description, as requests carry it; () where samples are not compared.
    description: a copy for the driver's own sample, made in a thread while actors start. None for none.
    strict: a transform that is no function of its element is an error.
    """

    def __init__(
        self, boxes: Sequence[Any] = (), description: Callable[[], Stream] | None = None, *, strict: bool = False
    ) -> None:
        self.boxes = boxes
        self.num_admitted = 0
        self._strict = strict
        self._reference: tuple[Sample, str] | None = None
        self._reported: set[str] = set()
        if description is not None:
            threading.Thread(target=self._make_own, args=(description,), daemon=True).start()

    def _make_own(self, description: Callable[[], Stream]) -> None:
        if (own := sampled_within(description, _DRIVER_S, is_again=False)) is not None:
            self._reference = own, "the driver"

    def refusal(self, sample: Sample | None, where: str) -> str:
        """Why the process of this sample must not read; "" where it may. where: its node.

        Raises: ValueError for a transform that is no function of its element, with strict=True.
        """
        if sample is None:
            return ""
        if sample.impure and sample.impure not in self._reported:
            self._reported.add(sample.impure)
            said = f"{sample.impure}. {REMEDY}"
            if self._strict:
                raise ValueError(said)
            logger.warning("%s", said)
        if self._reference is None:
            self._reference = sample, f"node {where}"
        reference, there = self._reference
        other = "" if sample.impure else reference.differing(sample)
        if not other:
            self.num_admitted += 1
            return ""
        names = sorted({*reference.releases, *sample.releases})
        here = [(name, reference.releases.get(name, "none"), sample.releases.get(name, "none")) for name in names]
        unlike = ", ".join(f"{name} {old} and {new}" for name, old, new in here if old != new)
        releases = f"Releases there and here: {unlike}" if unlike else "The releases of libraries are the same"
        return (
            f"it makes other bytes than {there}: {other} differs on node {where}. It could read other data, so it "
            f"reads nothing. {releases}. Install the same code and libraries on all nodes, and give values that the "
            "program sets to the transform as arguments."
        )
