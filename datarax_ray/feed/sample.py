"""A sample: the first elements of a stream, made in one process, to compare processes and transforms.

Every reader makes the same bytes of a record, or it must not feed the stream: another image library on one host, an old
checkout, or a value that only the driver has set shows in a few elements. And a transform that is no function of its
element shows when the same elements are made twice.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

import numpy as np

from datarax_ray.feed.trail import digested, of_blocks
from datarax_ray.plan.evidence import RowsDigested
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.position import MAX_POSITION
from datarax_ray.plan.state import StreamState
from datarax_ray.read.block import Block
from datarax_ray.read.code_digests import name_of
from datarax_ray.read.stream import Stream, held, transforms_of

logger = logging.getLogger("datarax_ray")

MAX_ELEMENTS, MAX_S = 8, 0.2
MAX_WAIT_S = 30.0  # for the first elements of a process, whose transforms may load models first
_LIBRARIES = ("numpy", "opencv-python-headless", "opencv-python", "pillow", "datarax-ray")

REMEDY = (
    "The stream then depends on which process makes it, and in which order. Draw random numbers in random_map(element, "
    "rng); count by the position in map_with_index(position, element); put text of a set in order by sorted(...). "
    "Otherwise make each element of its own data alone"
)


@dataclass(frozen=True)
class Sample:
    """The digests of the first elements, and the difference when they were made again.

    impure: the transform that made another element the second time, in words; "" for none.
    releases: of Python and of libraries that decode.
    """

    rows: RowsDigested
    impure: str = ""
    releases: dict[str, str] = field(default_factory=dict)

    def differing(self, other: Sample) -> str:
        """The first element and field in which another process's sample differs; "" for none."""
        count = min(len(self.rows), len(other.rows))
        one, two = self.rows.part(0, count), other.rows.part(0, count)
        if one.positions.tolist() != two.positions.tolist():
            return "choice of elements"
        kinds, names = [], sorted({*one.fields, *two.fields})
        for name in names if count else ():
            kind, other_kind = one.kinds.get(name, "missing"), two.kinds.get(name, "missing")
            # the kind is of one row, and rows of one field may have several shapes; digests are of dtype and shape, too
            if kind != other_kind and all(one.of(name) != two.of(name)):
                kinds.append(f"field {name!r}, {kind} and {other_kind},")
        if kinds:
            return "; ".join(kinds)
        for row in range(count):
            for name in names:
                if one.of(name)[row] != two.of(name)[row]:
                    return f"{f'field {name!r} of the ' if name else ''}element at position {one.positions[row]}"
        return ""


def sampled(description: Stream, *, is_again: bool = True, seconds: float = MAX_S) -> Sample | None:
    """The sample that this process makes; None if nothing can be made here: the stream itself will report why.

    is_again: whether to make the elements twice, the second time in reverse.
    """
    try:
        rows = _made(description, seconds)
        if rows is None:
            return None
        # without transforms, data in an order of records is still of objects whose items may be random
        can_change = transforms_of(description) or hasattr(description.order, "records")
        impure = _impurity(description, rows, seconds) if is_again and can_change else ""
    except Exception:  # a missing file, a broken record: named when the stream comes to it
        return None
    return Sample(rows, impure, releases())


def sampled_within(
    description: Callable[[], Stream], seconds: float = MAX_WAIT_S, *, is_again: bool = True
) -> Sample | None:
    """The sample of a description, made in a thread; None, with a warning, if it takes longer than `seconds`."""
    found: list[Sample | None] = []

    def make() -> None:
        # it may not unpickle here, which the first read says
        with contextlib.suppress(Exception), contextlib.closing(description()) as stream:
            found.append(sampled(stream, is_again=is_again))

    with contextlib.suppress(RuntimeError):  # the interpreter ends
        thread = threading.Thread(target=make, name="datarax_ray-sample", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            logger.warning(
                "process %d on host %s makes no element within %g s, so its elements are not compared with those of "
                "other processes",
                os.getpid(),
                socket.gethostname(),
                seconds,
            )
    return found[0] if found else None


@functools.cache  # reading what is installed takes some milliseconds
def releases() -> dict[str, str]:
    """The releases of Python and of the libraries that decode here."""
    found = {"python": sys.version.split()[0]}
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _made(description: Stream, seconds: float) -> RowsDigested | None:
    """The first elements that are made within `seconds`, at least one if there are any."""
    parts: list[Any] = []
    until = time.monotonic() + seconds
    with contextlib.suppress(RuntimeError):  # nothing is kept
        for blocks in _first_blocks(description, until):
            parts += of_blocks(blocks)
            count = sum(len(part.positions) for part in parts)
            if count >= MAX_ELEMENTS or time.monotonic() > until or any(block.failure for block in blocks):
                break
    return digested(parts).part(0, MAX_ELEMENTS) if parts else None


def _first_blocks(description: Stream, until: float) -> Iterator[list[Block]]:
    """The blocks of the first positions; each block has twice as many as the last, if time is left for them."""
    if not hasattr(description.order, "records"):  # a stream of shards is read forwards
        # in here: other actors load none of this, a fifth of what they would load before they can start
        from datarax_ray.feed.stream import StreamOptions, chunks

        with contextlib.closing(chunks(description, None, StreamState(), StreamOptions(1, chunk_size=1))) as stream:
            yield from (blocks for _, _, blocks in stream)
        return
    start, size, most = 0, 1, MAX_ELEMENTS
    while (stop := min(start + size, MAX_POSITION if description.stop is None else description.stop)) > start:
        begin = time.monotonic()
        block = _read(description, start, stop)
        if block.failure is not None and size > 1:  # perhaps they do not stack
            size = most = 1
            continue
        yield [block]
        now = time.monotonic()
        due = MAX_ELEMENTS - stop if stop < MAX_ELEMENTS else most  # more only where elements are dropped
        start, size = stop, max(1, min(2 * size, most, due, int(size * (until - now) / max(now - begin, 1e-6))))


def _read(description: Stream, start: int, stop: int) -> Block:
    with held(description):
        return description.read(ReadRequest(start, stop))


def _change_again(description: Stream, rows: RowsDigested, seconds: float) -> str:
    """Make the elements again, the last one first, while there is time. Returns what differs, "" for none."""
    if not hasattr(description.order, "records"):
        again = _made(description, seconds)
        return Sample(rows).differing(Sample(again or RowsDigested.none()))
    parts: list[Any] = []
    until = time.monotonic() + seconds
    tried = []
    for position in reversed(list(dict.fromkeys(rows.positions.tolist()))):
        tried.append(position)
        parts += of_blocks([_read(description, position, position + 1)])
        if time.monotonic() > until:
            break
    first, again = rows.at(np.isin(rows.positions, tried)), digested(parts)
    if len(rows) == MAX_ELEMENTS:  # the last record may give more than the sample has of it
        again = again.part(0, len(first))
    return Sample(first).differing(Sample(again)) if len(first) == len(again) else "choice of elements"


def _impurity(description: Any, rows: RowsDigested, seconds: float) -> str:
    """The transform, or the data, that made another element the second time, and the element; "" for none."""
    where = _change_again(description, rows, seconds)
    if not where:
        return ""
    transforms = transforms_of(description)
    name = f"one of the transforms {', '.join(map(name_of, transforms))}" if transforms else "the dataset"
    for count in range(len(transforms) + 1) if getattr(description, "transforms", None) else ():
        shorter = replace(description, transforms=tuple(transforms[:count]))
        made = _made(shorter, seconds)
        if made is None or _change_again(shorter, made, seconds):
            name = f"transform {name_of(transforms[count - 1])}" if count else "the dataset"
            break
    return f"{name} made another {where} when it was made again"


class Admission:
    """Compares the sample of each new process with the driver's; if the driver has none, with the first actor's.

    boxes: the description, as requests carry it; () if samples are not compared.
    description: a copy for the driver's own sample, made in a thread while actors start; for MAX_WAIT_S, no actor is
        admitted before. None for none.
    strict: a transform that is no function of its element is an error.
    """

    def __init__(
        self, boxes: Sequence[Any] = (), description: Callable[[], Stream] | None = None, *, strict: bool = False
    ) -> None:
        self.boxes = boxes
        self._strict = strict
        self._reference: tuple[Sample, str] | None = None
        self._reported: set[str] = set()
        self._own = threading.Thread(target=self._make_own, args=(description,), daemon=True)
        if description is not None:
            self._own.start()

    @property
    def is_ready(self) -> bool:
        """Whether samples can be compared: the driver has made its own, or makes none."""
        return not self._own.is_alive()

    def _make_own(self, description: Callable[[], Stream] | None) -> None:
        if description is not None and (own := sampled_within(description, is_again=False)) is not None:
            self._reference = own, "the driver"

    def refusal(self, sample: Sample | None, where: str) -> str:
        """Why the process of this sample must not read; "" if it may. where: its node.

        Raises: ValueError for a transform that is no function of its element, with strict=True.
        """
        if sample is None:
            return ""
        if sample.impure and sample.impure not in self._reported:
            self._reported.add(sample.impure)
            said = f"{sample.impure}. {REMEDY}"
            if self._strict:
                raise ValueError(said)
            logger.warning("%s", said)
        if self._reference is None:
            self._reference = sample, f"node {where}"
        reference, there = self._reference
        other = "" if sample.impure else reference.differing(sample)
        if not other:
            return ""
        names = sorted({*reference.releases, *sample.releases})
        here = [(name, reference.releases.get(name, "none"), sample.releases.get(name, "none")) for name in names]
        unlike = ", ".join(f"{name} {old} and {new}" for name, old, new in here if old != new)
        releases = f"Releases there and here: {unlike}" if unlike else "The releases of libraries are the same"
        return (
            f"it makes other bytes than {there}: {other} differs on node {where}. It could read other data, so it "
            f"reads nothing. {releases}. Install the same code and libraries on all nodes, and give values that the "
            "program sets to the transform as arguments."
        )
