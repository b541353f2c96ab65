"""The Ray shell around a description: it holds a description and answers requests."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError

from datarax_ray.actors.description import Boxed, DescriptionLostError, pickled, unboxed
from datarax_ray.actors.trial import Trial, portable, try_to_read
from datarax_ray.feed.sample import Sample, sampled_within
from datarax_ray.feed.window import DEPTH, TARGET_BLOCK_NBYTES
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.block import Block, digested, timed
from datarax_ray.read.block_cache import BlockCache
from datarax_ray.read.errors import is_of_data
from datarax_ray.read.laps import WorkDone, repeats
from datarax_ray.read.stream import Stream

# glibc's names (malloc.h) and its largest mmap threshold; an actor keeps at most _KEPT_NBYTES that it does not use.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAX_MMAP_THRESHOLD = 32 * 2**20
_KEPT_NBYTES = 256 * 2**20
# What one trainer has in flight from one actor: another that is less than that behind finds everything.
_SHARED_NBYTES = 2 * DEPTH * TARGET_BLOCK_NBYTES

# Ray sends less within the answer (max_direct_call_object_size), so that there is no object to bring.
_MIN_OBJECT_NBYTES = 100 * 1024
# Of reads that nobody waits for: far more than all trainers have on their way to one actor.
_MAX_FORGOTTEN = 10_000
# Of those that are asked for and have not begun: far more than one trainer has on its way to one actor.
_MAX_EXPECTED = 64


@dataclass(frozen=True)
class Handed:
    """A block for several trainers, by reference: one object, which a node fetches once for all of its trainers.

    ref: the actor owns the object, which is lost with it. num_elements, nbytes: of the block.
    """

    ref: ray.ObjectRef
    num_elements: int
    nbytes: int


class OtherProcessError(RuntimeError):
    """The asked process has ended. Ray has started another for the actor, which has not proved itself yet."""


def whole(answer: Any, timeout_s: float) -> Any:
    """The block of an answer, fetched where it is a reference. Raises: GetTimeoutError; Ray's errors of a loss."""
    return ray.get(answer.ref, timeout=timeout_s) if isinstance(answer, Handed) else answer


@dataclass(eq=False)
class _Held:
    """What an actor keeps of one stream. description: once a request has brought it. done: the work for the stream."""

    description: Stream | None = None
    sample: Sample | None = None
    is_sampled: bool = False
    shared: BlockCache = field(default_factory=lambda: BlockCache(_SHARED_NBYTES))
    expected: deque[ReadRequest] = field(default_factory=lambda: deque(maxlen=_MAX_EXPECTED))
    done: WorkDone = field(default_factory=lambda: WorkDone(f"{os.getpid()} {time.time_ns()}", 0, 0, 0.0))

    def counts(self) -> dict[str, int]:
        """See ElementStream.counts."""
        found: dict[str, int] = getattr(self.description, "counts", dict)()
        return found


class ReaderActor:
    """Reads what requests ask for. Holds no position, so it may die and be replaced between any two calls.

    Requests may be of several streams, each with a name: "" for the first, another for each that shares the actors.

    index: its id in the pool.
    """

    def __init__(self, index: int) -> None:
        # A transform may import jax; in an actor it must take no accelerator and no accelerator memory.
        os.environ["JAX_PLATFORMS"] = "cpu"
        keep_freed_memory()
        self._index = index
        self._worker_id: str = ray.get_runtime_context().get_worker_id()
        self._users: set[str] = set()
        self._streams: dict[str, _Held] = {}
        self._reading = threading.Lock()
        self._has_ended = False
        self._forgotten: OrderedDict[Hashable, None] = OrderedDict()
        self._at_since, self._is_trial = math.inf, False  # since when a read goes on
        self._counters = {"num_blocks": 0, "num_elements": 0, "nbytes": 0, "read_s": 0.0}

    def read(
        self,
        boxes: list[Boxed],
        request: ReadRequest,
        trial: Trial | None = None,
        token: Hashable = None,
        name: str = "",
        worker_id: str = "",
    ) -> Block | Handed:
        """The requested block, or a reference to the block; a pure function of the request.

        boxes: a list with the description; the first call unpacks it. An error in a call reaches the caller, where an
            error in the constructor would kill the actor and be retried.
        trial: how to try a request that may end this process; None to read it here.
        token: see forget.
        name: of the stream.
        worker_id: of the process that was admitted; "" for any. Ray keeps requests for an actor that it restarts.

        An error of reading is the block's failure rather than the task's: Ray would print it once for each request in
        flight, and the driver raises it once, when the stream comes to it.

        Raises: DescriptionLostError, OtherProcessError, which say nothing of the data.
        """
        if worker_id not in ("", self._worker_id):
            raise OtherProcessError("its process has ended, and another process answers")
        if token in self._forgotten:
            return Block(np.empty(0, np.int64), None)
        begin = time.perf_counter()
        self._at_since, self._is_trial = begin, trial is not None
        try:
            with self._reading:
                if self._has_ended:
                    raise RuntimeError("this actor has ended")  # nobody waits for it any more
                held = self._held(name)
                if held.description is None:
                    held.description = unboxed(boxes[0])
                while held.expected:
                    held.description.expect(held.expected.popleft())
                make: Any = partial(timed, held.description.read)
                if trial is not None:
                    trying = partial(try_to_read, partial(pickled, boxes[0]), held.description, trial)
                    make = partial(digested, trying)
                answer = held.shared.answer(request, partial(_signed, held, make), _hand)
        except DescriptionLostError:
            raise  # the driver asks again
        except BaseException as error:  # a SystemExit of a data source would end this actor, and the next, and the next
            if not (isinstance(error, Exception) or is_of_data(error)):
                raise
            answer = Block(np.empty(0, np.int64), None, failure=portable(error), failure_position=request.start)
        finally:
            self._at_since = math.inf
        if isinstance(answer, Block) and answer.failure is not None:
            where = f"pid {os.getpid()}, node {ray.util.get_node_ip_address()}"
            answer.failure.add_note(f"in reader actor {self._index} ({where})")
        self._counters["num_blocks"] += 1
        self._counters["num_elements"] += len(answer.positions) if isinstance(answer, Block) else answer.num_elements
        self._counters["nbytes"] += answer.nbytes
        self._counters["read_s"] += time.perf_counter() - begin
        return answer

    def _held(self, name: str) -> _Held:
        return self._streams.get(name) or self._streams.setdefault(name, _Held())  # several threads ask

    @ray.method(concurrency_group="control")
    def stats(self, user: str | None = None) -> dict[str, Any]:
        """The actor's process and its work since the start; answers during a read.

        user: the asking driver, if it reads with this actor.

        at_s: seconds since the current read began, for any driver. is_trial: whether the read runs in a process of its
        own. kept: see ElementStream.counts.
        """
        if user is not None:
            self._users.add(user)
        context, kept = ray.get_runtime_context(), Counter[str]()
        for each in [*self._streams.values()]:
            kept.update(each.counts())
        return {
            "pid": os.getpid(),
            "node_id": context.get_node_id(),
            "host": ray.util.get_node_ip_address(),
            "worker_id": self._worker_id,
            "at_s": max(0.0, time.perf_counter() - self._at_since),
            "is_trial": self._is_trial,
            "max_rss_nbytes": _max_rss_nbytes(),
            **self._counters,
            "kept": dict(kept),
        }

    @ray.method(concurrency_group="sample")
    def sample(self, name: str, boxes: Sequence[Boxed]) -> tuple[str, Sample | None]:
        """The process, and the sample that it makes of a stream (see feed.sample). A ping is answered meanwhile.

        boxes: a list with the description.
        """
        held = self._held(name)
        if not held.is_sampled:
            held.is_sampled = True
            held.sample = sampled_within(lambda: unboxed(boxes[0]))
        return self._worker_id, held.sample

    @ray.method(concurrency_group="control")
    def expect(self, request: ReadRequest, name: str = "") -> None:
        """A request that stands in line: its slow part, fetching bytes, begins with the next read."""
        self._held(name).expected.append(request)

    @ray.method(concurrency_group="control")
    def forget(self, tokens: Sequence[Hashable]) -> None:
        """Nobody waits for these requests any more: a request that has not begun gets an empty block at once.

        This replaces ray.cancel, after which an actor may answer none of its later requests (Ray 2.60).
        """
        self._forgotten.update(dict.fromkeys(tokens))
        while len(self._forgotten) > _MAX_FORGOTTEN:
            self._forgotten.popitem(last=False)

    @ray.method(concurrency_group="control")
    def leave(self, user: str) -> bool:
        """A driver reads with this actor no more. Returns whether it was the last one."""
        self._users.discard(user)
        return not self._users

    @ray.method(concurrency_group="control")
    def end(self) -> None:
        """Leave the data source's context, once the read that runs is over; later requests fail."""
        self._has_ended = True
        for name in [*self._streams]:
            self.drop(name)

    @ray.method(concurrency_group="control")
    def drop(self, name: str) -> None:
        """Close a stream, once the read that runs is over. A later request, of another driver, opens it again."""
        with self._reading:
            if (held := self._streams.pop(name, None)) is not None and held.description is not None:
                held.description.close()


def _signed(held: _Held, make: Callable[[ReadRequest], Block], request: ReadRequest) -> Block:
    """A new block, with the work that this process has done so far for its stream."""
    block, done, kept = make(request), held.done, held.counts()
    held.done = WorkDone(
        done.process,
        done.num_blocks + 1,
        done.num_elements + len(block.positions),
        done.read_s + block.read_s,
        repeats["requests"],
        kept.get("num_from_memory", 0),
        kept.get("num_from_storage", 0),
        _max_rss_nbytes(),
    )
    return replace(block, done=held.done)


def _hand(block: Block) -> Block | Handed:
    """The block as one object for several trainers; the block itself where it is small, or no store has room."""
    if block.nbytes < _MIN_OBJECT_NBYTES:
        return block
    try:
        return Handed(ray.put(block), len(block.positions), block.nbytes)
    except (ObjectStoreFullError, OutOfDiskError):
        return block


def _max_rss_nbytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def keep_freed_memory() -> None:
    """Have malloc keep the memory of a block for the next one.

    By default it goes back to the kernel with every block, and the page faults of taking it anew cost 0.45 ms per MB,
    five times the copy itself. Where there is no glibc, nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_NBYTES)
