"""check: read all of a source's data once, and report what a run over it would meet."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from rich.console import Console

from datarax_ray.feed.source import source_under
from datarax_ray.feed.stream import StreamOptions, chunks
from datarax_ray.plan.arguments import named_arguments, whole
from datarax_ray.plan.orders.kinds import FileOrder
from datarax_ray.plan.plain_values import shown
from datarax_ray.plan.position import pieces
from datarax_ray.plan.state import BEGIN
from datarax_ray.read.block import Block, block_of
from datarax_ray.read.decode import DecodeImage
from datarax_ray.read.elements.columns import FieldSpec, leaves, spec
from datarax_ray.read.files.sniff import DECODERS, picture_in, record_format
from datarax_ray.read.formats.hugging_face.dataset import DatasetReader
from datarax_ray.read.formats.random_access import ArraysReader, RandomAccessReader
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.record_progress import RecordProgress
from datarax_ray.write.statistics import FieldStatistics, Moments, Statistics, fields_of_columns

_NUM_TASKS = 64  # of all records: progress is shown when a task ends
_MIN_TASK_RECORDS = 2**12  # each task opens files
_MAX_FAULTS, _MAX_NAMES = 20, 3  # kinds of faults, and records that are named for each
_MAX_SPECS = 8  # of one field
_IN_MEMORY = (RandomAccessReader, ArraysReader, DatasetReader)  # a copy for each thread would be one of the data
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Fault:
    """Records that cannot be used, for reasons that differ in numbers alone.

    reason: of the first record. count: of records. first: the names of the first ones.
    """

    reason: str
    count: int
    first: tuple[str, ...]

    def __add__(self, other: Fault) -> Fault:
        return Fault(self.reason, self.count + other.count, (self.first + other.first)[:_MAX_NAMES])


@dataclass(frozen=True)
class Pictures:
    """Encoded pictures of one field, PNG or JPEG. height, width: in pixels."""

    height: Moments
    width: Moments

    def __add__(self, other: Pictures) -> Pictures:
        return Pictures(self.height + other.height, self.width + other.width)

    def __str__(self) -> str:
        return f"{self.height.count:,} of {_span(self.height)} × {_span(self.width)} pixels"


@dataclass(frozen=True)
class Seen:
    """What records hold. Records of several runs add up, in file order.

    statistics: of the elements that the records give.
    faults: by the reason without its numbers, at most 20.
    specs: for each field, its dtypes and shapes in a batch, at most 8, each with the first record that has it.
    pictures: by field.
    """

    statistics: Statistics = field(default_factory=Statistics)
    faults: Mapping[str, Fault] = field(default_factory=dict)
    specs: Mapping[str, Mapping[FieldSpec, str]] = field(default_factory=dict)
    pictures: Mapping[str, Pictures] = field(default_factory=dict)

    def __add__(self, other: Seen) -> Seen:
        specs: dict[str, dict[FieldSpec, str]] = {}
        for kinds in (self.specs, other.specs):
            for name, found in kinds.items():
                known = specs.setdefault(name, {})
                known.update({kind: where for kind, where in list(found.items())[:_MAX_SPECS] if kind not in known})
        return Seen(
            self.statistics + other.statistics,
            dict(list(_added(self.faults, other.faults).items())[:_MAX_FAULTS]),
            specs,
            _added(self.pictures, other.pictures),
        )


@dataclass(frozen=True)
class Problem:
    """Something that a run meets in the data.

    is_fatal: whether the run ends there with the source's present settings.
    what: the records or the field, and what is odd about them.
    remedy: the setting or transform that reads them; "" where the message of a fault has its own.
    """

    is_fatal: bool
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


@dataclass(frozen=True)
class Component:
    """The result for a source, or for one component of a mixture. name: "" for a source."""

    name: str
    seen: Seen
    problems: tuple[Problem, ...]

    @property
    def batch(self) -> dict[str, str]:
        """The dtype and shape of each field of one element in a batch, or "objects on the host"."""
        return {name: " or ".join(map(_described, kinds)) for name, kinds in self.seen.specs.items()}

    @property
    def device_nbytes(self) -> int:
        """Bytes of one element's arrays, without what stays on the host."""
        first = [next(iter(kinds)) for kinds in self.seen.specs.values()]
        return sum(each.dtype.itemsize * math.prod(each.shape) for each in first if each.dtype != object)


@dataclass(frozen=True)
class Checked:
    """The result of check. components: one for each component of a mixture, in their order; else one."""

    components: tuple[Component, ...]

    @property
    def is_fit(self) -> bool:
        """Whether a run gets through all of the data without an error."""
        return not any(problem.is_fatal for each in self.components for problem in each.problems)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        parts = []
        for each in self.components:
            seen = {
                "faults": list(map(asdict, each.seen.faults.values())),
                "pictures": {name: asdict(of) for name, of in each.seen.pictures.items()},
                "batch": each.batch,
            }
            parts.append(
                {"name": each.name, "problems": list(map(asdict, each.problems))}
                | each.seen.statistics.to_json()
                | seen
            )
        return {"is_fit": self.is_fit, "components": parts}


@named_arguments
def check(source: Any, *, num_actors: int | None = 0, num_threads: int = 2, console: Console | None = None) -> Checked:
    """Read all of a source's data once, and report what a run over it would meet.

    The result has counts, statistics of each field, the records that cannot be read, decoded or transformed, the
    dtypes and shapes of a batch, and the sizes of encoded pictures, each of which is decoded. Problems that would end a
    run come first, each with the setting that reads such data. Nothing is written.

    source: a source, a mixture (each component by itself), or a Pipeline or RaySource over one. Its transforms run.
    num_actors: Ray tasks that read at the same time; 0 for this process, without Ray; None for one per CPU of the
        cluster but one. A stream of shards is read in this process.
    num_threads: of this process, where it reads.
    console: shows the progress; None for no progress.

    Raises: TypeError for what is no source; OSError where files are gone.

    >>> import numpy as np
    >>> from datarax_ray import RandomAccessSource, RandomAccessSourceConfig, check
    >>> source = RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(4), "name": ["a", "b", None, "d"]})
    >>> found = check(source)
    >>> found.is_fit, found.components[0].batch
    (True, {'name': 'objects on the host', 'x': 'int64 ()'})
    """
    from datarax_ray.sources.base.device import narrow_dtype  # here, as hosts that look do without JAX

    narrow = (lambda dtype: None) if getattr(source, "on_host", False) else narrow_dtype
    source = source_under(source)
    if not callable(getattr(source, "describe", None)):
        raise TypeError(f"check takes a source, or a Pipeline over one, got {shown(source)}")
    whole("num_threads", num_threads, least=1)
    streams = _components(source.describe())
    total = sum(stream.order.num_records for _, stream in streams if isinstance(stream, IndexedStream))
    found = []
    with RecordProgress(console or Console(quiet=True), "check", total or None) as progress:
        for name, stream in streams:
            is_skipping = stream.on_error != "raise"
            stream = replace(stream, num_epochs=1, on_error="skip")
            parts = _parts(stream, num_actors, num_threads)
            seen = Seen()
            for part in parts:
                seen += part
                progress.advance(part.statistics.num_records)
            found.append(Component(name, seen, tuple(problems(seen, is_skipping=is_skipping, narrow=narrow))))
    return Checked(tuple(found))


def decoder_of(record: Any) -> Any:
    """The decoder that the record's first bytes ask for; None where they name none, and for what is no bytes."""
    import datarax_ray

    name = DECODERS.get(record_format(record) or "") if isinstance(record, bytes) else None
    return None if name is None else getattr(datarax_ray, name)()


# Reading.


def _components(stream: Any, name: str = "") -> list[tuple[str, Any]]:
    parts = getattr(stream, "components", None)
    if parts is None:
        return [(name, stream)]
    prefix = f"{name}, " if name else ""
    return [each for k, part in enumerate(parts) for each in _components(part, f"{prefix}component {k}")]


def _parts(stream: Any, num_actors: int | None, num_threads: int) -> Iterator[Seen]:
    """What runs of records hold, in file order."""
    if not isinstance(stream, IndexedStream):
        yield from _forwards(stream)
        return
    count = stream.order.num_records
    stream = replace(stream, order=FileOrder(count, stream.order.seed))
    cuts = _cuts(count, stream.reader.groups.starts if stream.reader.traits.keeps_groups else None)
    if num_actors != 0:
        from datarax_ray.actors.hosts import on_hosts  # here, as this process alone must do without Ray

        waiting: dict[int, Seen] = {}
        due = 0
        for index, seen in on_hosts(functools.partial(look, stream), cuts, num_actors):
            waiting[index] = seen
            while due in waiting:
                yield waiting.pop(due)
                due += 1
        return
    if len(cuts) == 1 or num_threads == 1 or isinstance(stream.reader, _IN_MEMORY):
        yield from (look(stream, cut) for cut in cuts)
        return
    from ray import cloudpickle  # here: it takes what people define in a script, and help must come at once

    pickled = cloudpickle.dumps(stream)

    def apart(cut: tuple[int, int]) -> Seen:
        own: IndexedStream = cloudpickle.loads(pickled)  # a reader answers one thread at a time
        with closing(own):
            return look(own, cut)

    with ThreadPoolExecutor(num_threads) as pool:
        yield from pool.map(apart, cuts)


def _cuts(num_records: int, starts: Any) -> list[tuple[int, int]]:
    """Runs of all records, for a task each. starts: of groups, which decode as a whole; None for single records.

    >>> _cuts(10_000, np.array([0, 9_000, 10_000]))
    [(0, 9000), (9000, 10000)]
    """
    cuts = pieces(0, num_records, max(1, min(_NUM_TASKS, num_records // _MIN_TASK_RECORDS)))
    if starts is None:
        return cuts
    ends = np.unique(starts[np.searchsorted(starts, [stop for _, stop in cuts])]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def look(stream: IndexedStream, cut: tuple[int, int]) -> Seen:
    """What the records [start, stop) of a stream in file order hold."""
    seen = Seen()
    for records, progress, columns in stream.in_runs(*cut):
        statistics = Statistics.of(len(records), progress, columns)  # first: a block takes the elements
        seen += _seen(statistics, block_of(progress, columns, None), stream.name)
    return seen


def _forwards(stream: Any) -> Iterator[Seen]:
    """The same of a stream of shards, which has no record by number."""
    found = chunks(stream, None, BEGIN, StreamOptions(batch_size=256))
    with closing(found):
        for start, stop, blocks in found:
            for block in blocks:
                fields = {} if block.columns is None else fields_of_columns(block.columns)
                statistics = Statistics(0, len(block.positions), 0, len(block.skipped), fields)
                yield _seen(statistics, block, lambda position: stream.locations(np.array([position]))[0])
            yield Seen(Statistics(stop - start))


def _seen(statistics: Statistics, block: Block, locate: Callable[[int], str]) -> Seen:
    """What one block holds. locate: gives the name of the record at a position."""
    faults: dict[str, Fault] = {}
    pictures: dict[str, Pictures] = {}

    def add(reason: str, where: str) -> None:
        key = _NUMBER.sub("#", reason)
        fault = Fault(reason, 1, (where,))
        faults[key] = faults[key] + fault if key in faults else fault

    for skip in block.skipped:
        add(skip.reason, skip.where)
    if block.failure is not None:  # the elements do not stack
        add(str(block.failure).partition("): ")[2], locate(block.failure_position))
    if block.columns is None:
        return Seen(statistics, faults)
    first = locate(int(block.positions[0]))
    specs = {_name(path): {kind: first} for path, kind in leaves(spec(block.columns))}
    for path, column in leaves(block.columns):
        pictures_in = map(picture_in, column) if column.dtype == object else ()
        for row in (row for row, file in enumerate(pictures_in) if file is not None):
            try:
                shape = DecodeImage().map({"image": column[row]})["image"].shape
            except ValueError as error:
                add(f"field {_name(path)!r}: {error}", locate(int(block.positions[row])))
            else:
                of = Pictures(*(Moments.of(np.array([side])) for side in shape[:2]))
                pictures = _added(pictures, {_name(path): of})
    return Seen(statistics, faults, specs, pictures)


# Deciding.


def problems(
    seen: Seen, *, is_skipping: bool, narrow: Callable[[np.dtype], np.dtype | None] = lambda dtype: None
) -> list[Problem]:
    """What a run meets, fatal problems first.

    is_skipping: whether the source's on_error skips broken records. narrow: the dtype of 32 bits that a dtype has on
    the device; None where it keeps its own.
    """
    found = [*_problems(seen, is_skipping), *_too_wide(seen, narrow)]
    return sorted(found, key=lambda problem: not problem.is_fatal)


def _too_wide(seen: Seen, narrow: Callable[[np.dtype], np.dtype | None]) -> Iterator[Problem]:
    for name, kinds in seen.specs.items():
        of = seen.statistics.fields.get(name, FieldStatistics()).numbers
        for short in {narrow(kind.dtype) for kind in kinds}:
            if short is None or of.least is None or of.most is None:
                continue
            limits: Any = np.iinfo(short) if short.kind in "iu" else np.finfo(short)
            odd = next(
                (value for value in (of.most, of.least) if not float(limits.min) <= value <= float(limits.max)), None
            )
            if odd is not None:
                yield Problem(
                    True,
                    f"field {name!r} has the value {odd:,}, and on the device {short}, which does not hold it",
                    "turn jax_enable_x64 on, convert the field in a transform, or keep batches on the host "
                    "(Pipeline(on_host=True))",
                )


def _problems(seen: Seen, is_skipping: bool) -> Iterator[Problem]:
    statistics = seen.statistics
    if not statistics.num_elements:
        yield Problem(True, f"{statistics.num_records:,} records give no element")
    for fault in seen.faults.values():
        names = ", ".join(fault.first)
        more = ", ..." if fault.count > len(fault.first) else ""
        yield Problem(not is_skipping, f"{fault.count:,} broken records ({names}{more}): {fault.reason}")
    for name, kinds in seen.specs.items():
        if len(kinds) > 1:
            parts = ", ".join(f"{_described(kind)} from {where} on" for kind, where in kinds.items())
            yield Problem(True, f"field {name!r} is {parts}", "make every element alike in a transform")
    for name, of in statistics.fields.items():
        if of.count < statistics.num_elements:
            missing = statistics.num_elements - of.count
            what = f"field {name!r} is missing in {missing:,} of {statistics.num_elements:,} elements"
            yield Problem(True, what, "give every element the same fields in a transform")
        yield from _field_problems(name, of)
    for name, pictures in seen.pictures.items():
        if any(side.least != side.most for side in (pictures.height, pictures.width)):
            remedy = f"DecodeImage((height, width, 3), field={name!r}) gives pictures of one size"
            yield Problem(False, f"field {name!r} has pictures of several sizes, {pictures}", remedy)


def _field_problems(name: str, of: FieldStatistics) -> Iterator[Problem]:
    if of.num_null:
        yield Problem(
            False,
            f"field {name!r} is null in {of.num_null:,} of {of.count:,} elements, so it stays on the host as objects",
            f"on_null={{{name!r}: value}} puts a value there",
        )
    least, most = of.shape_least, of.shape_most
    if least and most and least != most:
        spans = " × ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(least, most, strict=True))
        yield Problem(
            False,
            f"field {name!r} has arrays of {spans}, so it stays on the host",
            f"PadTo({{{name!r}: {tuple(most)}}}) makes a dense array of it",
        )


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, **{key: one[key] + value if key in one else value for key, value in other.items()}}


def _name(path: tuple[str, ...]) -> str:
    return ".".join(path) or "element"


def _described(kind: FieldSpec) -> str:
    return "objects on the host" if kind.dtype == object else f"{kind.dtype} {kind.shape}"


def _span(of: Moments) -> str:
    return f"{of.least:,}" if of.least == of.most else f"{of.least:,}–{of.most:,}"
