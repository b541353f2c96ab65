"""A DataLoader's iterator: what it gives, and a state in Grain's style, for Grain's own Orbax handler."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol, Self

import grain

from datarax_ray.feed.consumer import Consumed, Consumer, Delivery, Reading
from datarax_ray.plan.state import StreamState
from datarax_ray.read.background import BackgroundIterator


class Loader(Protocol):
    """What an iterator needs of its loader."""

    def begin(self, consumed: Consumed) -> Generator[Delivery, None, None]: ...

    def check_open(self) -> None: ...

    def to_json(self, state: StreamState) -> dict[str, Any]: ...

    def from_json(self, state: Any, allow_drift: tuple[str, ...] = ()) -> StreamState: ...


class _Outputs(Reading):
    """Outputs as they are asked for. The next may be made before, in a thread of its own."""

    _ahead: BackgroundIterator[Delivery] | None = None

    @property
    def is_waiting(self) -> bool:
        return self._ahead is not None and self._ahead.is_waiting

    def start(self) -> None:
        """Begin to make the next one."""
        if self._ahead is None:
            self._ahead = BackgroundIterator((next(outputs) for outputs in [self._deliveries]), 0)
            self.next = self._made
        self._ahead.begin()

    def _made(self) -> Delivery:
        assert self._ahead is not None
        made = self._ahead.next()
        self._ahead, self.next = None, self._deliveries.__next__
        return made

    def close(self, timeout_s: float | None, then: Callable[[], None] | None = None) -> None:
        end = partial(super().close, timeout_s, then)
        if self._ahead is None:
            end()
        else:
            self._ahead.close(timeout_s, end)  # behind what it makes, which uses what is closed here


class DataLoaderIterator(grain.DataLoaderIterator):
    """Elements or batches from an address that moves with what was handed out.

    A subclass, so that isinstance, Grain's CheckpointHandler and Orbax's save and load take it for what it is; nothing
    of Grain's iterator runs.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._consumer = Consumer()  # operations' errors are raised: none is left out
        self._outputs: _Outputs | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next output. After an error the same is tried again. Threads may share the iterator.

        Raises: RecordError, naming operation and record; RuntimeError where the loader is closed.
        """
        return self._consumer.alone(self._take)

    def get_state(self) -> bytes:
        """Where the iterator stands and of which loader, as JSON: under 4 KB, for any number of actors."""
        return json.dumps(self._loader.to_json(self._consumer.consumed.state), indent=4).encode()

    def set_state(self, state: bytes, allow_drift: tuple[str, ...] = ()) -> None:
        """Go on from a state of this loader, or of grain.DataLoader with worker_count=0.

        allow_drift: settings that may differ on purpose, as "batch_size".

        Raises: DriftError where it belongs to another stream; ValueError or TypeError where it is no state.
        """
        try:
            found = json.loads(state.decode())
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"the state is no JSON ({error}); restore an earlier checkpoint") from error
        self._consumer.go_to(Consumed(self._loader.from_json(found, allow_drift)))

    def start_prefetch(self) -> None:
        """Begin to make the next output now, in the background; the first time, once the actors were started.

        Calling it again changes nothing. Raises: RuntimeError where the loader is closed; what starting actors raises.
        """
        # begun here, not in the thread, which ends with this output: a local Ray ends with the thread that starts it
        self._loader.check_open()
        self._consumer.alone(self._start)

    def close(self) -> None:
        """Stop reading. The state stays, and the next output is read again."""
        self._consumer.end()

    def __str__(self) -> str:
        return f"DataLoaderIterator(state={self.get_state().decode()})"

    def _start(self) -> None:
        self._consumer.opened("outputs", self._begin)
        assert self._outputs is not None
        self._outputs.start()

    def _take(self) -> Any:
        if not self._consumer.consumed.is_end:  # what was seen to end has, whoever closes
            self._loader.check_open()
        return self._consumer.take("outputs", self._begin)

    def _begin(self, consumed: Consumed) -> _Outputs:
        self._outputs = _Outputs(self._loader.begin(consumed))
        return self._outputs
