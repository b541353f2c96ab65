"""What streams of the elements of one reader share: so many epochs of an order, put through transforms."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.read.code_digests import code_digests
from datarax_ray.read.elements.transforms import OnError, Step, check_arguments, steps
from datarax_ray.read.stream import StreamTraits, check_on_error, whole_epochs


@dataclass(frozen=True)
class ElementStream:
    """What a stream is made of.

    num_epochs: passes over the records, -1 for endless.
    transforms: applied in this order on the host.
    on_error: what becomes of a record that cannot be read, decoded or transformed: "raise", "skip" it and say so, or a
        function of the RecordError that is asked, where it is read, whether to skip it (True) or to raise; what is no
        Exception, as a SystemExit, is raised.
    """

    reader: Any
    order: Any
    num_epochs: int = -1
    transforms: tuple[Any, ...] = ()
    on_error: OnError = "raise"
    # Taken once: a transform that opens a file or fills a cache when it is first called is still the same one.
    _code: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_epochs", whole_epochs(self.num_epochs))
        check_on_error(self.on_error)
        check_arguments(self.transforms)
        object.__setattr__(self, "_code", code_digests(self.transforms))

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        """The transforms, told apart."""
        return steps(self.transforms)

    @property
    def stop(self) -> int | None:
        """The position after the last, None for an endless stream."""
        return None if self.num_epochs == -1 else self.num_epochs * self.order.cycle

    @property
    def are_cycles_alike(self) -> bool:
        """See EmptyEpochs: the same records in each."""
        return True

    def droppers(self, is_packed: bool) -> list[str]:
        """What may leave nothing of the stream, for people. is_packed: elements become documents."""
        kinds = {step.kind for step in self.steps}
        may_be = {
            "the filters drop everything (as one does that ends without `return`)": "filter" in kinds,
            "flat_map gives nothing": "flat_map" in kinds,
            "every document is empty": is_packed,
            "every record is broken": self.on_error != "raise",
        }
        return [what for what, is_so in may_be.items() if is_so]

    def counts(self) -> dict[str, int]:
        """What is kept in memory in this process, and how often it was of use; {} where nothing is (cacheable=True)."""
        return {}

    @property
    def traits(self) -> StreamTraits:
        return StreamTraits()

    def expect(self, request: Any) -> None:
        """See Stream; a stream of shards reads nothing ahead."""

    def close(self) -> None:
        """Close what is open; reading opens it again."""
        self.reader.close()

    def settings(self) -> dict[str, Any]:
        """What the stream of elements depends on, in plain values of constant size; see plan.fingerprint."""
        return {
            "files": self.reader.fingerprint(),
            # num_epochs third, as in every state that was written
            "order": {"shuffle": None, "seed": None, "num_epochs": self.num_epochs} | self.order.settings(),
            "transforms": self._code,
            "on_error": "function" if callable(self.on_error) else self.on_error,
        }
