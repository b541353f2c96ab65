"""What goes to a device and what stays on the host; orders and batches at positions that JAX traces.

No value changes on the way. A compiled program fetches a batch at a traced position from the host by an io_callback, as
datarax's Pipeline.step and scan need it. This package's Pipeline does not: its scan takes batches that are made ahead.

Legend: N is the number of records, an offset is a place in its epoch, position = epoch * N + offset.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.nnx.tracers import current_jax_trace  # it stands elsewhere in every other release of JAX
from jax.experimental import io_callback

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.source import Source
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.kinds import FileOrder, GlobalShuffle
from datarax_ray.plan.orders.order import EpochOrder
from datarax_ray.read.closing import Uncopied
from datarax_ray.read.elements.columns import stays_on_host

_NARROW: dict[np.dtype, Any] = {
    np.dtype(np.int64): np.int32,
    np.dtype(np.uint64): np.uint32,
    np.dtype(np.float64): np.float32,
    np.dtype(np.complex128): np.complex64,
}
# Of a thread that has just begun: this module may be imported under a trace.
with ThreadPoolExecutor(1) as _executor:
    _OUTSIDE = _executor.submit(current_jax_trace).result()
# What goes to a device as it is, with JAX's 32 bits and with 64.
_SHORT = frozenset(map(np.dtype, ("?", "i1", "i2", "i4", "u1", "u2", "u4", "f2", "f4", "c8")))
_LONG = _SHORT | _NARROW.keys()
_TOO_WIDE = frozenset({np.dtype(np.longdouble), np.dtype(np.clongdouble)} - _NARROW.keys())


def is_traced() -> bool:
    """Whether JAX traces the caller: the host's work is then done once, and not when the program runs."""
    return bool(current_jax_trace() != _OUTSIDE)


def narrow(columns: Any, path: tuple[Any, ...] = ()) -> Any:
    """Host columns with the dtypes that they will have on the device. path: of the columns, for errors.

    Raises: OverflowError for values that JAX's 32 bits do not hold (jax_enable_x64 is off); TypeError for wider types.
    """
    return _narrowed(columns, path, _LONG if jax.config.read("jax_enable_x64") else _SHORT)


def put(batch: Any) -> Any:
    """Any batch with its NumPy arrays of numbers on the default device, and all else where it is."""
    return jax.tree.map_with_path(_put, batch)


def narrow_dtype(dtype: np.dtype) -> np.dtype | None:
    """The dtype of 32 bits that real numbers of this dtype of 64 have on a device; None where they keep theirs."""
    narrow = None if jax.config.read("jax_enable_x64") or dtype.kind == "c" else _NARROW.get(dtype)
    return None if narrow is None else np.dtype(narrow)


class NarrowError(OverflowError):
    """A value that 32 bits do not hold. row: of it in its array."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


def split_host(columns: Any) -> tuple[Any, Any]:
    """The fields for the device and those that stay on the host, as two dicts (None where there are none).

    >>> split_host({"x": np.zeros(2), "name": np.array(["a", "b"], object)})
    ({'x': array([0., 0.])}, {'name': array(['a', 'b'], dtype=object)})
    """
    if not isinstance(columns, Mapping):
        return (None, columns) if stays_on_host(columns.dtype) else (columns, None)
    if all(isinstance(c, np.ndarray) and (c.dtype in _LONG or not stays_on_host(c.dtype)) for c in columns.values()):
        return dict(columns) or None, None
    parts = {key: split_host(column) for key, column in columns.items()}
    device = {key: part[0] for key, part in parts.items() if part[0] is not None}
    host = {key: part[1] for key, part in parts.items() if part[1] is not None}
    return device or None, host or None


def check_callbacks() -> None:
    """Raise RuntimeError where JAX has no CPU device, by which a compiled program asks the host for its batches."""
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError as error:
        config: Any = jax.config
        platforms = config.jax_platforms
        raise RuntimeError(
            "a compiled program asks the host for its batches, by way of a CPU device of JAX, and there is none with "
            f"JAX_PLATFORMS={platforms}. Set JAX_PLATFORMS={platforms},cpu (the first stays the default), or iterate"
        ) from error


def _put(path: Any, leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray | np.generic) or stays_on_host(leaf.dtype):
        return leaf
    return jax.device_put(_narrow(path, np.asarray(leaf)))


def _narrowed(columns: Any, path: tuple[Any, ...], as_is: Collection[np.dtype]) -> Any:
    if isinstance(columns, np.ndarray) or not isinstance(columns, Mapping):
        return columns if columns.dtype in as_is else _narrow(path, columns)
    # not by JAX's trees, which take ten times as long
    return {key: _narrowed(columns[key], (*path, key), as_is) for key in sorted(columns)}


def _narrow(path: Any, array: np.ndarray) -> np.ndarray:
    """64-bit arrays as 32-bit ones where JAX would make them so, but never with another value in silence."""
    if array.dtype in _TOO_WIDE:
        raise TypeError(
            f"field {_named(path)} is {array.dtype}, which no device has; make it float64 or float32 "
            "(complex128, complex64) in a transform"
        )
    if not array.dtype.isnative:  # as files of another byte order have it; JAX takes no such array
        array = array.astype(array.dtype.newbyteorder("="))
    narrow = _NARROW.get(array.dtype)
    if narrow is None or jax.config.read("jax_enable_x64"):
        return array
    with np.errstate(over="ignore"):
        narrowed: np.ndarray = array.astype(narrow)
    is_integer = array.dtype.kind in "iu"
    changed = narrowed != array if is_integer else np.isfinite(array) & ~np.isfinite(narrowed)
    if changed.any():
        at = tuple(np.argwhere(changed)[0])
        row = int(at[0]) if at else 0
        raise NarrowError(
            f"field {_named(path)}, row {row}: a value of {array.dtype} does not fit "
            f"{narrowed.dtype}: {array[at]}. JAX uses {narrowed.dtype} unless jax_enable_x64 is on. Turn it on, or "
            "convert the field in a transform.",
            row,
        )
    return narrowed


def _named(path: tuple[Any, ...]) -> str:
    """A path of fields, or of JAX's keys, as JAX shows it."""
    return "".join(f"[{key!r}]" if isinstance(key, str) else str(key) for key in path)


_MAX_INT32 = 2**31 - 1


def records_at(order: EpochOrder, start: Any, size: int) -> jax.Array:
    """The records at positions [start, start + size): what order.records gives, as int32 (size,).

    start: an integer scalar, traced or not, >= 0; int32 holds 2**31 positions, int64 (jax_enable_x64) all. The epochs
    run on without end: what ends a stream is not known here.

    A walk through the cipher, without a table: a table of an epoch is as large as its column, and would have to be
    made anew wherever an epoch begins, at a step that the compiled program does not know.

    Raises: NotImplementedError for an order without a traced form, and where N + size is beyond int32.
    """
    n = order.num_records
    if type(order) not in _TRACED:
        raise NotImplementedError(f"a {order.shuffle} order has no traced form; iterate a Pipeline over this source")
    if n + size > _MAX_INT32:
        raise NotImplementedError(f"{n} records are too many for int32 indices; iterate a Pipeline over this source")
    start = jnp.asarray(start)
    epoch, first = (start // n).astype(jnp.uint32), (start % n).astype(jnp.int32)
    rows = first + jnp.arange(size, dtype=jnp.int32)
    offsets = (rows % n).astype(jnp.uint32)
    seeds = np.uint32(order.seed) + epoch + (rows // n).astype(jnp.uint32)  # modulo 2**32, as uint32 is
    return _TRACED[type(order)](order, offsets, seeds).astype(jnp.int32)


def _walk(order: GlobalShuffle, offsets: jax.Array, seeds: jax.Array) -> jax.Array:
    """Encrypt until every value is back below n, as plan.orders.cipher does it."""
    n, keys = order.num_records, cipher.seed_seq(seeds, order.rounds)
    word_bits = cipher.block_bits(n) // 2

    def is_outside(values: jax.Array) -> jax.Array:
        return (values >= np.uint32(n)).any()

    def step(values: jax.Array) -> jax.Array:
        return jnp.where(values < np.uint32(n), values, cipher.encrypt(values, word_bits, keys))

    return jax.lax.while_loop(is_outside, step, cipher.encrypt(offsets, word_bits, keys))


# (order, offsets, the seed of each one's epoch) -> records; uint32 (k,) all
_TRACED: dict[type[EpochOrder], Callable[[Any, jax.Array, jax.Array], jax.Array]] = {
    FileOrder: lambda order, offsets, seeds: offsets,
    GlobalShuffle: _walk,
}


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
