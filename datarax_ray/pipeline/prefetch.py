"""Any iterator of host batches, a few of them on the device ahead of use, with the state of what was consumed.

Source: torchdata.nodes, whose Prefetcher counts a snapshot only when its item was delivered.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
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

    iterable: gives dicts of NumPy arrays, nested at will, and does not write to them again; strings and other objects
    stay on the host, jax.Arrays where they are, so that a Pipeline does as well. It is iterated in a thread of its own
    and belongs to the prefetcher; JAX's contexts (jax.enable_x64, jax.default_device) are those that held where the
    first batch was asked for. size: 0 for none ahead.

    Raises: ValueError for a negative size; when a batch is due, what the iterable raised in its place, or what its
    transfer did, as OverflowError for 64-bit values that JAX's 32 bits do not hold: then it is tried again when it is
    asked for again, by the same iterator, or another one where the iterable has a state. RuntimeError from then on
    where that is a generator, which ends with its error.
    """
    return DevicePrefetcher(iterable, whole("size", size, least=0))


@dataclass(frozen=True)
class _Made:
    """A batch on the device, and the iterable's state after it; the last has no batch."""

    batch: Any
    state: Any
    is_last: bool = False


class _HostBatches:
    """One run through an iterable. A batch waits here until it is on the device, so that a transfer may fail."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable
        self._iterator: Iterator[Any] | None = None
        self._waiting: list[Any] = []

    @property
    def has_waiting(self) -> bool:
        """Whether a batch was taken of the iterable, and its transfer failed or is not over."""
        return bool(self._waiting)

    def on_device(self, settings: JaxSettings) -> Generator[_Made, None, None]:
        """What the thread does; it does not know the prefetcher, which ends it when it is dropped."""
        try:
            if self._iterator is None:
                self._iterator = iter(self._iterable)
            elif not self._waiting and getattr(self._iterator, "gi_frame", self) is None:
                raise RuntimeError(
                    f"the generator of {type(self._iterable).__name__} ended with the error before, so what it had "
                    "left is lost, and another one would begin anew, with batches that were consumed. Make a new "
                    "prefetcher to begin anew; to go on behind an error, give it what has get_state and set_state, or "
                    "an iterator whose __next__ can be called again."
                )
            while True:
                if not self._waiting:
                    try:
                        self._waiting.append(next(self._iterator))
                    except StopIteration:
                        break
                with settings.applied():
                    batch = put(self._waiting[0])
                made = _Made(batch, _state_of(self._iterable))
                self._waiting.clear()
                yield made
            yield _Made(None, _state_of(self._iterable), is_last=True)
        finally:
            if not self._waiting:
                self.close()

    def close(self) -> None:
        """Drop the batch that waits, and close a generator that nobody else has."""
        self._waiting.clear()
        if isinstance(self._iterator, Generator) and self._iterator is not self._iterable:
            self._iterator.close()


class DevicePrefetcher(Closing):
    """What prefetch_to_device returns. `for` goes on after the last batch consumed; after the end it begins anew.

    The state is the iterable's after the last batch consumed; those made ahead are not in it.
    """

    def __init__(self, iterable: Iterable[Any], size: int) -> None:
        self._iterable = iterable
        self._size = size
        self._ahead: BackgroundIterator[_Made] | None = None
        self._host: _HostBatches | None = None
        self._consumed: _Made | None = None  # None until the first batch is asked for: then the state is the iterable's
        self._is_closed = False

    def __iter__(self) -> Self:
        if self._consumed is not None and self._consumed.is_last:
            self._consumed = None
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise RuntimeError("the prefetcher is closed, and what it made ahead is gone; set_state opens it again")
        if self._consumed is not None and self._consumed.is_last:
            raise StopIteration
        if self._ahead is None:
            if self._host is None:
                self._consumed = _Made(None, _state_of(self._iterable))
                self._host = _HostBatches(self._iterable)
            self._ahead = BackgroundIterator(self._host.on_device(JaxSettings.of_this_thread()), self._size)
        try:
            made = self._ahead.look()
        except Exception:
            self._end_thread()
            if self._host is not None and not self._host.has_waiting and hasattr(self._iterable, "get_state"):
                self._host = None  # the iterable failed; another iterator goes on where that stands
            raise
        consumed = _Made(None, made.state, made.is_last)
        if made.is_last:
            self._consumed = consumed
            self._stop()
            raise StopIteration
        self._ahead.taken()  # from here on nothing is called: what is interrupted has neither moved nor lost a batch
        self._consumed = consumed
        return made.batch

    def get_state(self) -> Any:
        """The iterable's state as it was after the last batch consumed. Raises: TypeError where it has none."""
        self._check_has("get_state")
        return _state_of(self._iterable) if self._consumed is None else self._consumed.state

    def set_state(self, state: Any) -> None:
        """Drop what was made ahead, and go on from a state.

        Raises: TypeError where the iterable has none; what the iterable raises of this one, and then the next batch is
        still the one behind the last that was consumed.
        """
        self._check_has("set_state")
        self._stop()
        iterable: Any = self._iterable
        try:
            iterable.set_state(state)
        except BaseException:
            if self._consumed is not None and hasattr(iterable, "get_state"):
                iterable.set_state(self._consumed.state)  # it stood behind what was made ahead, which is dropped
            raise
        self._consumed, self._is_closed = None, False

    def close(self) -> None:
        """Wait for the batch that is being made, and close the iterable, if it can be. The state can still be taken."""
        self._is_closed = True
        self._stop()
        close = getattr(self._iterable, "close", None)
        if close is not None:
            close()

    def _check_has(self, method: str) -> None:
        if not callable(getattr(self._iterable, method, None)):
            raise TypeError(f"{type(self._iterable).__name__} has no {method}, so there is no state to resume from")

    def _stop(self) -> None:
        self._end_thread()
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def _end_thread(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close(None)


def _state_of(iterable: Iterable[Any]) -> Any:
    get_state = getattr(iterable, "get_state", None)
    return None if get_state is None else get_state()
