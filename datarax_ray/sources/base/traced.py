"""Sources where JAX traces: the base of modules that run on the host, and batches at traced positions.

The compiled program fetches such a batch from the host by an io_callback, as datarax's Pipeline.step and scan need it.
This package's Pipeline does not: its scan takes batches in that are made ahead.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Generator
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.source import Source
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.read.closing import Uncopied
from datarax_ray.sources.base.device import check_callbacks, is_traced, narrow, split_host


class TracedBatches:
    """The batches of one source at traced positions, always of full size and without the fields that stay on the host.

    A batch that begins where the last one ended is the next of the same stream, which reads ahead where actors do; any
    other begins a new stream. The source's own position does not move.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: Generator[HostBatch, None, Any] | None = None
        self._next: tuple[int, int] | None = None  # position and size of the batch that the stream gives next

    def at(self, source: Source, start: Any, size: int) -> Any:
        """The elements at positions [start, start + size), stacked, in the traced program. Stateless.

        Raises: NotImplementedError where filters hide how many rows that is; TypeError where every field stays on the
        host; RuntimeError where JAX has no CPU device. In the running program, as JAX's own error with this one's text:
        ValueError beyond the end of the stream, and what reading raises.
        """
        description = source.describe()
        refuse_amended(source)
        if not description.yields.is_one_to_one:
            raise NotImplementedError(
                "get_batch_at is traced by JAX here, so every batch has the same shape; behind a filter, a flat_map, "
                "on_error='skip' or in a stream nobody knows how many elements stand at its positions. Iterate instead."
            )
        batch = jax.tree.map(lambda field: np.zeros((1, *field.shape), field.dtype), source.element_spec())
        on_device, _ = split_host(batch)
        if on_device is None:
            raise TypeError(
                "get_batch_at is traced by JAX here, and every field stays on the host (bytes, strings, lists); decode "
                "the records in transforms, DecodeFields for example, or iterate instead"
            )
        fields = narrow(on_device)
        like = jax.tree.map(lambda field: jax.ShapeDtypeStruct((size, *field.shape[1:]), field.dtype), fields)
        check_callbacks()
        return io_callback(lambda at: self._fetch(source, int(at), size), like, start)

    def _fetch(self, source: Source, start: int, size: int) -> Any:
        stop = source.describe().stop
        if start < 0:
            raise ValueError(f"get_batch_at was asked for position {start}; a position of int32 ends at {2**31 - 1}")
        if stop is not None and start + size > stop:
            raise ValueError(
                f"get_batch_at was asked for positions [{start}, {start + size}) of a stream that ends at {stop}, and "
                "a compiled batch cannot be short. Take fewer steps, set num_epochs=-1, or iterate instead."
            )
        with self._lock:
            if self._stream is None or self._next != (start, size):
                self._drop()
                self._stream = source.batches(start, StreamOptions(size))
            try:
                batch = next(self._stream)
            except BaseException:
                self._drop()
                raise
            self._next = (batch.stop, size)
        return narrow(split_host(batch.columns)[0])

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = self._next = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TracedBatches, ()  # a copy has a stream of its own

    def close(self) -> None:
        """End the stream; a later batch begins a new one."""
        with self._lock:
            self._drop()


def refuse_amended(source: Source) -> None:
    """Raise NotImplementedError where what stands at a position was changed, which a compiled program does not know."""
    if source.state.amendments:
        raise NotImplementedError(
            "get_batch_at is traced by JAX here, and this stream was amended, which the compiled program would not "
            f"know: {'; '.join(map(str, source.state.amendments))}. Iterate instead."
        )


class _SignatureOfInit:
    """The arguments of a class, for help(), notebooks and editors: NNX's metaclass answers (*args, **kwargs)."""

    def __get__(self, instance: Any, owner: type[Any]) -> inspect.Signature:
        if instance is not None:  # a call of an instance has other arguments
            raise AttributeError("__signature__")
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class HostModule(NamedArguments, Uncopied):
    """The base, before nnx.Module, of a module that holds files, threads and a position.

    NNX takes modules apart and puts them together again at the border of nnx.jit, where the parts are of the same
    module; to do so elsewhere, as nnx.clone and nnx.merge do, makes another one, and is refused.
    """

    __signature__ = _SignatureOfInit()

    def __str__(self) -> str:
        return repr(self)  # print() of an NNX module shows all of its variables, in dozens of lines

    @classmethod
    def _graph_node_create_empty(cls, node_type: Any) -> Any:
        if not is_traced() and not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            raise node_type._refusal("made by nnx.clone or nnx.merge")
        return object.__new__(node_type)
