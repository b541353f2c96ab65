"""Reading in this process: no actor is asked, and a part of a chunk is read when the stream comes to it."""

from __future__ import annotations

import contextlib
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from datarax_ray.feed.batches import Chunks
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.window import Part, Window
from datarax_ray.read.block import Block, timed
from datarax_ray.read.forked import ThreadLock, lock_of
from datarax_ray.read.stream import Stream


def read_in_process(
    window: Window, description: Stream, timings: Timings | None, cancelled: Callable[[], bool]
) -> Chunks:
    """The chunks of a window, each when it is read; see feed.stream.chunks.

    Raises: ValueError where the files lie on some nodes alone.
    """
    if description.traits.homes is not None:
        raise ValueError(
            "the files lie on some nodes alone (files_on_nodes), and only actors there can read them: give the source "
            "to a RaySource, RaySource(source, num_actors=...)"
        )
    locks, timings = locks_of(description), timings or Timings()
    waiting: deque[Part] = deque()
    blocks: list[Block] = []
    window.reassign((0,))
    while not window.is_finished and not cancelled():
        asked = window.asks()
        waiting += asked
        for part in asked if description.traits.reads_ahead else ():
            description.expect(part.request)
        if window.is_ready:
            yield *window.head_range, blocks
            blocks = []
            window.release()
            continue
        part = waiting.popleft()
        with timings.making.lap("waiting"), held(locks):
            blocks.append(timed(description.read, part.request))
        window.arrived(part, blocks[-1].memory_nbytes, blocks[-1].read_s)
        window.scheduler.arrived(part.request, blocks[-1].learned)
        timings.arrived(0, blocks[-1])


def locks_of(description: Stream) -> Sequence[ThreadLock]:
    """The locks of all objects that read a stream: of its reader, and of the transforms, which may write to arrays.

    Another stream in this process, or who asks for single elements, may use one of the same objects, in another thread.
    The locks come in one order for everybody: otherwise two threads would wait for each other.
    """
    found = {id(part): part for part in _parts(description)}
    return [lock_of(found[key]) for key in sorted(found)]


@contextlib.contextmanager
def held(locks: Sequence[ThreadLock]) -> Iterator[None]:
    """Hold all of them."""
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


def _parts(description: Any) -> Iterator[Any]:
    """The objects that read a stream and the user's objects that transform its elements; of all components."""
    for each in getattr(description, "components", ()):
        yield from _parts(each)
    yield getattr(description, "reader", description)
    for transform in getattr(description, "transforms", ()):  # each access to a method makes another object
        yield transform.__self__ if isinstance(transform, types.MethodType) else transform
