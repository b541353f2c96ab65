"""Any iterator of host batches, a few of them on the device ahead of use, with the state of what was consumed.

Source: torchdata.nodes, whose Prefetcher counts a snapshot only when its item was delivered.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, Self

from datarax_ray.pipeline.transfer import JaxSettings
from datarax_ray.plan.arguments import named_arguments, whole
from datarax_ray.read.background import BackgroundIterator
from datarax_ray.read.closing import Closing
from datarax_ray.sources.base.device import put


@named_arguments
def prefetch_to_device(iterable: Iterable[Any], size: int = 2) -> DevicePrefetcher:
    """An iterator of the same batches with `size` of them made ahead on the default device.

    iterable: gives dicts of NumPy arrays, nested at will, and does not write to them again. Strings and other objects
        stay on the host, jax.Arrays where they are, so that a Pipeline may be given. A thread iterates it, under the
        contexts of JAX (jax.enable_x64, jax.default_device) that hold where the first batch is asked for.
    size: 0 for none ahead.

    Raises: ValueError for a negative size. When a batch is due, the error of the iterable, or of the transfer (as
    OverflowError for 64-bit values that JAX's 32 bits do not hold); the same error again until set_state.
    """
    return DevicePrefetcher(iterable, whole("size", size, least=0))


@dataclass(frozen=True)
class _Made:
    """A batch on the device, and the iterable's state after it; the last has no batch."""

    batch: Any
    state: Any
    is_last: bool = False


def _on_device(iterable: Iterable[Any], settings: JaxSettings) -> Generator[_Made, None, None]:
    """The work of the thread. It does not know the prefetcher, so that a dropped prefetcher ends it."""
    iterator = iter(iterable)
    try:
        for batch in iterator:
            with settings.applied():
                placed = put(batch)
            yield _Made(placed, _state_of(iterable))
        yield _Made(None, _state_of(iterable), is_last=True)
    finally:
        if isinstance(iterator, Generator) and iterator is not iterable:
            iterator.close()


class DevicePrefetcher(Closing):
    """The iterator of prefetch_to_device. `for` continues after the last batch consumed; after the end it begins anew.

    The state is that of the iterable after the last batch consumed, without the batches made ahead.
    """

    def __init__(self, iterable: Iterable[Any], size: int) -> None:
        self._iterable = iterable
        self._size = size
        self._ahead: BackgroundIterator[_Made] | None = None
        self._consumed: _Made | None = None  # None until the first batch is asked for: then the state is the iterable's
        self._error: Exception | None = None
        self._is_closed = False

    def __iter__(self) -> Self:
        if self._consumed is not None and self._consumed.is_last:
            self._consumed = None
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise RuntimeError("the prefetcher is closed, and what it made ahead is gone; set_state opens it again")
        if self._error is not None:
            raise self._error
        if self._consumed is not None and self._consumed.is_last:
            raise StopIteration
        if self._ahead is None:
            self._consumed = _Made(None, _state_of(self._iterable))
            self._ahead = BackgroundIterator(_on_device(self._iterable, JaxSettings.of_this_thread()), self._size)
        try:
            made = self._ahead.look()
        except Exception as error:
            self._error = error
            self._end_thread()
            raise
        consumed = _Made(None, made.state, made.is_last)
        if made.is_last:
            self._consumed = consumed
            self._end_thread()
            raise StopIteration
        self._ahead.taken()  # from here on nothing is called: an interrupt neither moves nor loses a batch
        self._consumed = consumed
        return made.batch

    def get_state(self) -> Any:
        """The iterable's state after the last batch consumed. Raises: TypeError where the iterable has none."""
        self._check_has("get_state")
        return _state_of(self._iterable) if self._consumed is None else self._consumed.state

    def set_state(self, state: Any) -> None:
        """Drop the batches made ahead, and go on from a state.

        Raises: TypeError where the iterable has none; the iterable's error for this state, which moves nothing.
        """
        self._check_has("set_state")
        self._end_thread()
        iterable: Any = self._iterable
        try:
            iterable.set_state(state)
        except BaseException:
            if self._consumed is not None and hasattr(iterable, "get_state"):
                iterable.set_state(self._consumed.state)  # it stood behind what was made ahead, which is dropped
            raise
        self._consumed, self._error, self._is_closed = None, None, False

    def close(self) -> None:
        """Wait for the batch that is being made, and close the iterable if it can be. The state can still be taken."""
        self._is_closed = True
        self._end_thread()
        close = getattr(self._iterable, "close", None)
        if close is not None:
            close()

    def _check_has(self, method: str) -> None:
        if not callable(getattr(self._iterable, method, None)):
            raise TypeError(f"{type(self._iterable).__name__} has no {method}, so there is no state to resume from")

    def _end_thread(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close(None)


def _state_of(iterable: Iterable[Any]) -> Any:
    get_state = getattr(iterable, "get_state", None)
    return None if get_state is None else get_state()
