"""A DataLoader's iterator: what it gives, and a state in Grain's style, for Grain's own Orbax handler."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import grain

from datarax_ray.grain.engine.outputs import Address, Outputs
from datarax_ray.grain.engine.transform_chain import Item

if TYPE_CHECKING:
    from datarax_ray.grain.loader import Chunks, DataLoader


class DataLoaderIterator(grain.DataLoaderIterator):
    """Elements or batches from an address that moves with what was handed out.

    A subclass, so that isinstance, Grain's CheckpointHandler and Orbax's save and load take it for what it is; nothing
    of Grain's iterator runs.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._address = loader.start()
        self._open: tuple[Chunks, Outputs] | None = None
        self._first: Future[tuple[Item, Address] | None] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next output. After an error the same is tried again. Raises: RecordError, naming operation and record."""
        try:
            made = self._next() if self._first is None else self._first.result()
        except BaseException:
            self._drop()
            raise
        self._first = None
        if made is None:
            raise StopIteration
        item, self._address = made
        return item.data

    def get_state(self) -> bytes:
        """Where the iterator stands and of which loader, as JSON: under 4 KB, for any number of actors."""
        return json.dumps(self._loader.state_at(self._address), indent=4).encode()

    def set_state(self, state: bytes, allow_drift: tuple[str, ...] = ()) -> None:
        """Go on from a state of this loader, or of grain.DataLoader with worker_count=0.

        allow_drift: settings that may differ on purpose, as "batch_size".

        Raises: DriftError where it belongs to another stream; ValueError or TypeError where it is no state.
        """
        try:
            found = json.loads(state.decode())
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"the state is no JSON ({error}); restore an earlier checkpoint") from error
        address = self._loader.address_in(found, allow_drift)
        self._drop()
        self._address = address

    def start_prefetch(self) -> None:
        """Begin to make the next output now, in the background; the first time, once the actors were started.

        Calling it again changes nothing. Raises: RuntimeError where the loader is closed; what starting actors raises.
        """
        if self._first is None:
            # not in the thread, which ends with this output: a local Ray ends with the thread that starts it
            self._open = self._open or self._loader.open(self._address)
            worker = ThreadPoolExecutor(1, thread_name_prefix="datarax_ray-prefetch")
            self._first = worker.submit(self._next)
            worker.shutdown(wait=False)

    def close(self) -> None:
        """Stop reading. The state stays, and the next output is read again."""
        self._drop()

    def __str__(self) -> str:
        return f"DataLoaderIterator(state={self.get_state().decode()})"

    def _next(self) -> tuple[Item, Address] | None:
        if self._open is None:
            self._open = self._loader.open(self._address)
        return next(self._open[1], None)

    def _drop(self) -> None:
        if self._first is not None:
            self._first.exception()  # waits: it uses what is closed here
            self._first = None
        if self._open is not None:
            self._open[0].close()
            self._open = None
