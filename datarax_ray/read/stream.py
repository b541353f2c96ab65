"""A description: everything that decides a stream, as one picklable host-side value.

Sources make it, actors receive it, checkpoints record its settings. It holds no position and no open file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from datarax_ray.plan.arguments import whole
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.interleaved import InterleavedOrder
from datarax_ray.plan.orders.mixture import AnyOrder
from datarax_ray.plan.orders.order import Order
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.plan.partitions import ReadRequest, RunRecords
from datarax_ray.plan.state import Extra
from datarax_ray.read.block import Block, block_at, elements_at, read_block, read_elements
from datarax_ray.read.elements.transforms import OnError, drops_alike, steps
from datarax_ray.read.identity.code import code_fingerprint
from datarax_ray.read.skipped_records import skipped_records_of

_RUN_NBYTES = 256 * 2**10  # a small part of a block
MAX_NAMES = 4  # of files, in a line for people
MAX_RUN_RECORDS = 1024  # more of them make a read no cheaper


class Reader(Protocol):
    """Host-side code that reads records of one source by index. Picklable; opens what it needs when it needs it.

    One with a `cached()` gives a reader of the same records that keeps them in memory (see read.formats.cache).
    """

    @property
    def num_records(self) -> int: ...

    @property
    def mean_nbytes(self) -> int:
        """Stored bytes of a record, on average."""
        ...

    @property
    def broken(self) -> type[Exception]:
        """What `read` raises where a record is broken, rather than the whole source."""
        ...

    def read(self, records: Indices) -> Any:
        """The record at each index, in the order asked: a list, or a dict of columns where they are stored as such."""
        ...

    def locate(self, record: int) -> str:
        """Where a record is, for people."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Plain values that identify the data, of constant size."""
        ...

    def close(self) -> None: ...


class Stream(Protocol):
    """What is known of a stream of any kind before it is read, and how its requests are read. Picklable."""

    @property
    def stop(self) -> int | None:
        """The position after the last, None for an endless stream."""
        ...

    @property
    def order(self) -> AnyOrder | InterleavedOrder:
        """What stands at each position: records, which are read by index, or elements of shards, read forwards."""
        ...

    @property
    def run_records(self) -> RunRecords:
        """Records that one actor should read in a row in file order; of a mixture, those of each component."""
        ...

    @property
    def max_actors(self) -> int | None:
        """How many actors may read it at the same time, None for all."""
        ...

    @property
    def may_drop(self) -> bool:
        """Whether some positions may give no element, or several, so that batches cannot be counted in positions."""
        ...

    @property
    def may_repeat(self) -> bool:
        """Whether some positions may give several elements, so that batches may end inside one."""
        ...

    def drops_alike(self, is_packed: bool) -> bool:
        """Whether an epoch that gives no element shows that none will. is_packed: whether elements become documents."""
        ...

    @property
    def max_skipped(self) -> int | None:
        """The most broken records that may be left out, None for no limit; no part of what the stream is."""
        ...

    @property
    def skipped_path(self) -> str | None:
        """The file that lists them, None for none; no part of what the stream is."""
        ...

    @property
    def num_records(self) -> int:
        """Records in one epoch, before filters. Raises: TypeError where that is not known before they are read."""
        ...

    @property
    def about(self) -> str:
        """What it is a stream of, in a few words for people."""
        ...

    def read(self, request: Any) -> Block:
        """The block that a request of this kind asks for: the same wherever and whenever it is called."""
        ...

    def broken(self, request: Any, ended: str) -> Block:
        """The block of a request whose records cannot be read, because that ends the process; ended: how."""
        ...

    def names(self, request: Any) -> list[str]:
        """Some of the files or shards in which a request's elements are, for people."""
        ...

    def read_at(self, start: int, stop: int, extra: Extra | None = None) -> list[Any]:
        """The elements at positions [start, stop), of the stream whose state has this extra.

        Raises: TypeError where there is no random access.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """What the stream of elements depends on, in plain values of constant size; see plan.fingerprint."""
        ...

    def close(self) -> None:
        """Close what is open; reading opens it again."""
        ...


def check_settings(num_epochs: Any, on_error: Any) -> int:
    """num_epochs as a plain int. Raises: ValueError for what is no number of epochs, or no way to treat errors."""
    epochs = whole("num_epochs", num_epochs, "; -1 for endless")
    if epochs < 1 and epochs != -1:
        raise ValueError(f"num_epochs must be at least 1, or -1 for endless, got {epochs}")
    if not callable(on_error) and on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise', 'skip' or a function of the error, got {on_error!r}")
    return epochs


def on_error_setting(on_error: OnError) -> Any:
    """on_error in plain values, for the settings of a stream."""
    return code_fingerprint((on_error,)) if callable(on_error) else on_error


def run_of(reader: Reader, most: int) -> int:
    """Records that one actor should read in a row: 256 KiB of them, at most `most`.

    Small, so that every chunk has runs for every actor; large enough that a run is one read.
    """
    return max(1, min(most, _RUN_NBYTES // max(1, reader.mean_nbytes)))


def names_of(records: Indices, locate: Callable[[int], str]) -> list[str]:
    """The files of the first of these records, the last, and some between, each once."""
    if not len(records):
        return []
    some = records[np.unique(np.linspace(0, len(records) - 1, MAX_NAMES).astype(int))].tolist()
    return list(dict.fromkeys(name.rpartition("[")[0] or name for name in map(locate, some)))


@dataclass(frozen=True)
class IndexedStream:
    """What a stream is made of.

    num_epochs: passes over the records, -1 for endless. transforms: applied in this order on the host. on_error: what
    becomes of a record that cannot be read, decoded or transformed: "raise", "skip" it and say so, or a function of the
    RecordError that is asked, where it is read, whether to skip it (True) or to raise; what is no Exception, as a
    SystemExit, is raised. max_skipped, skipped_path: for the SkippedRecords of whoever consumes the stream, and no part
    of what it is.
    """

    reader: Reader
    order: Order
    num_epochs: int = -1
    transforms: tuple[Any, ...] = ()
    on_error: OnError = "raise"
    max_skipped: int | None = None
    skipped_path: str | None = None
    max_actors: ClassVar[int | None] = None
    # Taken once: a transform that opens a file or fills a cache when it is first called is still the same one.
    _transforms: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_epochs", check_settings(self.num_epochs, self.on_error))
        skipped_records_of(self)
        steps(self.transforms)
        object.__setattr__(self, "_transforms", code_fingerprint(self.transforms))

    @property
    def run_records(self) -> int:
        """See run_of."""
        return run_of(self.reader, MAX_RUN_RECORDS)

    @property
    def stop(self) -> int | None:
        """The position after the last, None for an endless stream."""
        return None if self.num_epochs == -1 else self.num_epochs * self.order.num_records

    @property
    def may_drop(self) -> bool:
        """Whether some positions may give no element, or several, so that batches cannot be counted in positions."""
        return self.on_error != "raise" or any(step.kind in ("filter", "flat_map") for step in steps(self.transforms))

    @property
    def may_repeat(self) -> bool:
        """Whether some positions may give several elements, so that batches may end inside one."""
        return any(step.kind == "flat_map" for step in steps(self.transforms))

    def drops_alike(self, is_packed: bool) -> bool:
        """See transforms.drops_alike."""
        return drops_alike(steps(self.transforms), self.on_error, is_packed)

    @property
    def num_records(self) -> int:
        """Records in one epoch, before filters."""
        return self.order.num_records

    @property
    def about(self) -> str:
        """What it is a stream of, in a few words for people."""
        return f"num_records={self.num_records}, shuffle={self.order.shuffle!r}"

    def read(self, request: ReadRequest) -> Block:
        """The block that the request asks for; see read_block. What an actor does, for every kind of description."""
        return read_block(self, request)

    def broken(self, request: ReadRequest, ended: str) -> Block:
        """The block of a request whose records end every process that reads them; nothing is read."""
        return block_at(self, *request.select(self.order), request.documents, ended)

    def names(self, request: ReadRequest) -> list[str]:
        """Some of the files in which the request's records are."""
        return names_of(request.select(self.order)[1], self.locate)

    def locate(self, record: int) -> str:
        """Where a record is, for people."""
        return self.reader.locate(record)

    def read_at(self, start: int, stop: int, extra: Extra | None = None) -> list[Any]:
        """The elements at positions [start, stop), not stacked; filtered ones are missing."""
        return read_elements(self, ReadRequest(start, stop))

    def block_at(self, positions: Indices, records: Indices, documents: DocumentSpec | None, ended: str = "") -> Block:
        """The block of single positions, for a mixture that this is a component of; see blocks.block_at."""
        return block_at(self, positions, records, documents, ended)

    def elements_at(self, positions: Indices, records: Indices) -> tuple[list[int], list[Any]]:
        """The elements of single positions, and the position of each; see blocks.elements_at."""
        return elements_at(self, positions, records)

    @property
    def is_managed(self) -> bool:
        """Whether reading enters a context of a user's, which is to be left before the process ends."""
        return getattr(self.reader, "is_managed", False)

    def close(self) -> None:
        """Close files; reading opens them again."""
        self.reader.close()

    def settings(self) -> dict[str, Any]:
        """What the stream of elements depends on, in plain values of constant size; see plan.fingerprint."""
        order: dict[str, Any] = {
            "shuffle": self.order.shuffle,
            "seed": self.order.seed,
            "num_epochs": self.num_epochs,
        }
        if self.order.shuffle != "none":
            order["rounds"] = self.order.rounds
        if self.order.shuffle == "block":
            order["block_size"] = self.order.block_size if self.order.groups is None else self.order.groups.digest
            order["window_blocks"] = self.order.window_blocks
        return {
            "files": self.reader.fingerprint(),
            "order": order,
            "transforms": self._transforms,
            "on_error": on_error_setting(self.on_error),
        }
