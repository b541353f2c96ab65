"""Transforms that take batches of another stream, which is read with an object that is theirs, too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from datarax_ray import Pipeline, prefetch_to_device
from datarax_ray.read.errors import DeadlockError
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.data import Squares


class Halved:
    """A transform that two streams have."""

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return element | {"half": np.float32(element["index"] / 2)}


class Paired:
    """Adds what another stream gives next."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self.make = make
        self.others: Iterator[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        self.others = self.others or self.make()
        return element | {"other": np.asarray(next(self.others)["index"])[0]}


def pipeline(transforms: list[Any], n: int = 40, **options: Any) -> Pipeline:
    config = RandomAccessSourceConfig(num_epochs=1, **options)
    return Pipeline(source=RandomAccessSource(config, Squares(n), transforms=transforms), batch_size=2, on_host=True)


def in_a_thread_of_its_own(take: Callable[[], None], timeout_s: float = 20) -> None:
    """Fails where it would wait for ever."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            take()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    assert not thread.is_alive(), "it waits for ever"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("ahead", [lambda made: made, prefetch_to_device])
def test_streams_that_would_wait_for_one_another_for_ever_are_an_error_with_the_remedy(
    ahead: Callable[[Any], Any], on_error: Any
) -> None:
    """The transform that takes has the shared one's lock; the thread that makes what it takes waits for that."""
    shared = Halved()
    other = pipeline([shared])
    going = pipeline([shared, Paired(lambda: iter(ahead(other)))], on_error=on_error)
    with pytest.raises(DeadlockError, match=r"Halved.*copy\.deepcopy"):
        in_a_thread_of_its_own(lambda: list(going))
    assert going.num_skipped == 0


def test_streams_with_transforms_of_their_own_take_from_one_another() -> None:
    going = pipeline([Halved(), Paired(lambda: iter(pipeline([Halved()], 200)))])
    found: list[Any] = []
    in_a_thread_of_its_own(lambda: found.extend(going))
    assert np.concatenate([batch["other"] for batch in found]).tolist() == list(range(0, 80, 2))
