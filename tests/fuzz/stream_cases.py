"""Cases of the random loop over streams: what a stream is made of, drawn from a seed, and the real source of each.

A case is plain values, so that one line of JSON brings it back, and a smaller one is a case with a field replaced.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from datarax_ray import ConcatThenSplit, FirstFitPack, materialize
from datarax_ray.sources import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    HFEagerConfig,
    HFEagerSource,
    HFStreamingConfig,
    HFStreamingSource,
    MaterializedSource,
    MixtureSource,
    ParquetSource,
    ParquetSourceConfig,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests.data import write_file

# One record, fewer than a block, more than a window of 64; none is 4**k + 1, where Grain's order is none.
SIZES = (1, 2, 7, 23, 53, 150)
SEQ_LEN = 8
TURN, BUFFER, NUM_SHARDS = 3, 5, 3
WEIGHTS, NEW_WEIGHTS = (3, 1), (1, 2)


@dataclass(frozen=True)
class Leg:
    """A part of a run: so many trainers and actors, until num_batches were taken (None: to the end)."""

    num_trainers: int
    num_actors: int
    shares: bool
    chunk_size: int | None
    num_batches: int | None


@dataclass(frozen=True)
class Read:
    """What one source is asked for in one process, count times: "batch", of so many elements, or "element", one by one.

    "seek" and "set_state" have it go on from where it stood before as many of these as size says.
    """

    how: str
    size: int
    count: int = 1


@dataclass(frozen=True)
class Case:
    """One stream, and how it is consumed. steps: names in STEPS, in order. reads: of one source, from its beginning.

    skip: [start, stop) of positions that the first leg amends it to leave out. reweighted: the position from which on
    it amends a mixture to have NEW_WEIGHTS. materialized: 0 or 1: every other leg, from the first or the second on, is
    read from where the first transforms were run once and written; None for no leg. has_nulls: whether the table has a
    column m with nulls.
    """

    kind: str
    num_records: int
    shuffle: str
    seed: int
    num_epochs: int
    steps: tuple[str, ...]
    on_error: str
    packing: str | None
    batch_size: int
    ending: str
    legs: tuple[Leg, ...]
    block_size: int = 4
    rounds: int = 8
    cacheable: bool = False
    reads: tuple[Read, ...] = ()
    skip: tuple[tuple[int, int], ...] = ()
    reweighted: int | None = None
    materialized: int | None = None
    has_nulls: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        values = json.loads(text)
        legs = tuple(Leg(**leg) for leg in values.pop("legs"))
        reads = tuple(Read(**read) for read in values.pop("reads", ()))
        skip = tuple((start, stop) for start, stop in values.pop("skip", ()))
        return cls(**values | {"steps": tuple(values["steps"]), "legs": legs, "reads": reads, "skip": skip})


# -- transforms, as users write them ----------------------------------------------------------------------------------


class Decode:
    def map(self, stored: bytes) -> dict[str, Any]:
        return {"x": int(np.frombuffer(stored, "<i8")[0])}


class Scale:
    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return element | {"y": np.array([3 * element["x"] + 1, element["x"]], np.int32), "s": f"r{element['x']}"}


class Noise:
    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return element | {"r": rng.random(2, np.float32)}


class Where:
    def map_with_index(self, index: int, element: dict[str, Any]) -> dict[str, Any]:
        return element | {"p": index % 1009}


class DropThirds:
    def filter(self, element: dict[str, Any]) -> bool:
        return bool(element["x"] % 3 != 1)


class DropByPlace:
    """Another element in every epoch, where Where comes before."""

    def filter(self, element: dict[str, Any]) -> bool:
        return bool(element.get("p", element["x"]) % 4 != 2)


class DropByChance:
    def filter(self, element: dict[str, Any]) -> bool:
        return "r" not in element or bool(element["r"][0] > 0.3)


class Copies:
    """None, one or two of each."""

    def flat_map(self, element: dict[str, Any]) -> list[dict[str, Any]]:
        return [element | {"c": copy} for copy in range(element["x"] % 3)]


class FailSome:
    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        if element["x"] % 13 == 5:
            raise ZeroDivisionError(f"no {element['x']}")
        return element


class Columns:
    def map_columns(self, columns: dict[str, Any]) -> dict[str, Any]:
        return columns | {"z": np.asarray(columns["x"]) * 2}


class OneBuffer:
    """Returns the same array for every element."""

    def __init__(self) -> None:
        self.buffer = np.zeros(3, np.int64)

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        self.buffer[:] = element["x"]
        return element | {"b": self.buffer}


class InPlace:
    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        element["x"] += 1000
        return element


STEPS: dict[str, type] = {
    "scale": Scale,
    "noise": Noise,
    "where": Where,
    "drop": DropThirds,
    "drop by place": DropByPlace,
    "drop by chance": DropByChance,
    "copies": Copies,
    "fail": FailSome,
    "columns": Columns,
    "one buffer": OneBuffer,
    "in place": InPlace,
}


class Tokens:
    """A document of 0 to 10 tokens."""

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        x = element["x"]
        return {"t": np.int32(100 * x) + np.arange(x * 7 % 11, dtype=np.int32)}


def transforms_of(case: Case) -> list[Any]:
    found: list[Any] = [Decode()] if case.kind.startswith("array_record") else []
    found += [STEPS[step]() for step in case.steps]
    return found if case.packing is None else [*found, Tokens()]


def packing_of(case: Case) -> Any:
    if case.packing is None:
        return None
    if case.packing == "concat":
        return ConcatThenSplit(SEQ_LEN, "t", pad_id=-1)
    return FirstFitPack(SEQ_LEN, "t", pad_id=-1, too_long="split" if case.packing == "first fit" else "truncate")


def skip_all(error: Exception) -> bool:
    return True


# -- the real sources -------------------------------------------------------------------------------------------------


class Numbers:
    """A data source of one's own."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": int(index)}

    def __repr__(self) -> str:
        return f"Numbers({self.count})"


def _array_record(directory: Path, case: Case) -> Any:
    group_size = 1 if case.kind.endswith("1") else 4
    folder = directory / f"array_record-{group_size}-{case.num_records}"
    if not folder.exists():
        folder.mkdir(parents=True)
        for number, part in enumerate(_cut(range(case.num_records), 3)):
            if part:
                stored = [np.array([i], "<i8").tobytes() for i in part]
                write_file(folder / f"part-{number}.array_record", stored, group_size)
    config = ArrayRecordSourceConfig(
        shuffle_files=case.shuffle != "none",
        shuffle_block_size=case.block_size if case.shuffle == "block" else None,
        **_common(case),
    )
    return ArrayRecordSourceModule(config, folder, transforms=transforms_of(case))


def _parquet(directory: Path, case: Case) -> Any:
    folder = directory / f"parquet-{case.num_records}-{case.has_nulls}"
    if not folder.exists():
        folder.mkdir(parents=True)
        for number, part in enumerate(_cut(range(case.num_records), 2)):
            if part:
                parquet.write_table(_table_of(part, case), folder / f"part-{number}.parquet", row_group_size=5)
    extra = {"none": {}, "global": {"shuffle_block_size": 1}, "block": {"shuffle_window": 2}}[case.shuffle]
    config = ParquetSourceConfig(shuffle=case.shuffle != "none", **extra, **_common(case))
    return ParquetSource(config, folder, transforms=transforms_of(case))


def _random_access(data: Any) -> Any:
    def make(_: Path, case: Case) -> Any:
        config = RandomAccessSourceConfig(shuffle=case.shuffle != "none", **_common(case))
        return RandomAccessSource(config, data(case.num_records), transforms=transforms_of(case))

    return make


def _table_of(records: Sequence[int], case: Case) -> pa.Table:
    m = {"m": [null_or(record) for record in records]} if case.has_nulls else {}
    return pa.table({"x": np.array(records), **m})


def null_or(record: int) -> int | None:
    return None if record % 5 == 3 else record


def _table(case: Case) -> datasets.Dataset:
    return datasets.Dataset(_table_of(range(case.num_records), case))


def _hf_eager(_: Path, case: Case) -> Any:
    config = HFEagerConfig(shuffle=case.shuffle != "none", **_common(case))
    return HFEagerSource(config, dataset=_table(case), transforms=transforms_of(case))


def _hf_stream(_: Path, case: Case) -> Any:
    common = _common(case)
    del common["rounds"], common["cacheable"], common["cacheable_nbytes"]
    config = HFStreamingConfig(shuffle=case.shuffle != "none", shuffle_buffer_size=BUFFER, turn_size=TURN, **common)
    shards = min(NUM_SHARDS, case.num_records)
    return HFStreamingSource(
        config, dataset=_table(case).to_iterable_dataset(num_shards=shards), transforms=transforms_of(case)
    )


def _mixture(directory: Path, case: Case) -> Any:
    """Two endless components, ended after as many positions as num_epochs of one."""
    return MixtureSource(
        [SOURCES[part.kind](directory, part) for part in components(case)],
        WEIGHTS,
        seed=case.seed,
        length=case.num_epochs * case.num_records,
    )


def _merged(directory: Path, case: Case) -> Any:
    """A stream and files, until one of them is over."""
    parts = [SOURCES[part.kind](directory, part) for part in components(case)]
    return MixtureSource(parts, WEIGHTS, seed=case.seed)


def components(case: Case) -> list[Case]:
    """Those of a mixture: endless, one of them shuffled otherwise and larger; of a merged one the first is a stream."""
    if case.kind == "merged":
        larger = SIZES[(SIZES.index(case.num_records) + 1) % len(SIZES)]
        return [
            replace(case, kind="hf stream"),
            replace(case, kind="array_record 4", num_records=larger, seed=case.seed + 1),
        ]
    one = replace(case, kind="random_access", num_epochs=-1)
    other = replace(
        one,
        kind="array_record 4",
        num_records=SIZES[(SIZES.index(case.num_records) + 1) % len(SIZES)],
        seed=case.seed + 1,
    )
    return [one, other]


SOURCES: dict[str, Any] = {
    "array_record 1": _array_record,
    "array_record 4": _array_record,
    "parquet": _parquet,
    "random_access": _random_access(Numbers),
    "arrays": _random_access(lambda count: {"x": np.arange(count)}),
    "hf eager": _hf_eager,
    "hf stream": _hf_stream,
    "mixture": _mixture,
    "merged": _merged,
}
_WITH_NULLS = ("parquet", "hf eager")
_NO_ROUNDS = ("hf stream", "mixture", "merged")
_IN_BLOCKS = ("array_record 1", "array_record 4", "parquet")


def make_source(directory: Path, case: Case, leg: int = 0) -> Any:
    """The source of a leg: as it is, or as it was materialised, which is to be the same."""
    source = SOURCES[case.kind](directory, case)
    if case.materialized is None or leg % 2 != case.materialized or not (count := _num_once(case)):
        return source
    its = replace(case, legs=(), reads=(), skip=(), reweighted=None, materialized=None)
    folder = directory / f"materialized-{hashlib.sha256(its.to_json().encode()).hexdigest()[:16]}"
    materialize(source, folder, num_transforms=count, num_shards=min(2, case.num_records))
    return MaterializedSource(source, folder)


def _num_once(case: Case) -> int:
    """How many of the first transforms are the same wherever a record stands; 0 where one of them is to fail."""
    if case.kind in ("hf stream", "merged") or ("fail" in case.steps and case.on_error == "raise"):
        return 0
    steps = [*case.steps, *([] if case.packing is None else ["tokens"])]
    count = next((at for at, step in enumerate(steps) if step in ("noise", "where")), len(steps))
    return count + case.kind.startswith("array_record")  # of a mixture, as many of each component


def _common(case: Case) -> dict[str, Any]:
    on_error: Any = skip_all if case.on_error == "callable" else case.on_error
    return {
        "seed": case.seed,
        "num_epochs": case.num_epochs,
        "on_error": on_error,
        "rounds": case.rounds,
        "cacheable": case.cacheable,
        "cacheable_nbytes": (None, 60, 400)[case.seed % 3] if case.cacheable else None,
    }


def _cut(numbers: Sequence[int], count: int) -> Iterable[Sequence[int]]:
    """So many pieces, the last one twice as long; of few numbers some are empty."""
    bounds = [len(numbers) * i // (count + 1) for i in range(count)]
    return [numbers[lo:hi] for lo, hi in zip(bounds, [*bounds[1:], len(numbers)], strict=True)]


# -- drawing ----------------------------------------------------------------------------------------------------------


def draw(rng: random.Random, *, max_actors: int = 6, kinds: Sequence[str] = tuple(SOURCES)) -> Case:
    """A case; every field that has no meaning for its kind has its plainest value."""
    kind = rng.choice(kinds)
    num_records = rng.choice(SIZES)
    shuffle = rng.choice(("none", "global", "global", "block") if kind in _IN_BLOCKS else ("none", "global"))
    packing = rng.choice((None, None, None, "concat", "first fit", "first fit truncated"))
    batch_size = rng.choice((1, 2, 4, 6, 12, 24))
    steps = tuple(rng.sample(sorted(STEPS), rng.choice((0, 1, 1, 2, 3, 4))))
    return Case(
        kind=kind,
        num_records=num_records,
        shuffle=shuffle,
        seed=rng.choice((0, 1, 42, 2**32 - 2)),
        num_epochs=rng.choice((1, 2, 3)),
        steps=steps,
        on_error=rng.choice(("raise", "skip", "skip", "callable")) if "fail" in steps else "raise",
        packing=packing,
        batch_size=batch_size,
        ending=rng.choice(("short", "drop", "pad")),
        legs=draw_legs(rng, batch_size, max_actors),
        block_size=rng.choice((1, 2, 4, 16)) if kind.startswith("array_record") else 4,
        rounds=rng.choice((8, 8, 4)) if shuffle == "global" and kind not in _NO_ROUNDS else 8,
        cacheable=kind not in _NO_ROUNDS and rng.random() < 0.2,
        reads=draw_reads(rng),
        skip=draw_skip(rng, num_records),
        reweighted=rng.choice((None, 0, 1, rng.randrange(2 * num_records))) if kind == "mixture" else None,
        materialized=rng.choice((None, None, 0, 1)),
        has_nulls=kind in _WITH_NULLS and packing is None and rng.random() < 0.5,
    )


def draw_skip(rng: random.Random, num_records: int) -> tuple[tuple[int, int], ...]:
    """In half of the cases none; else up to three ranges, some longer than an epoch, and some behind the end."""
    count = rng.choice((0, 0, 0, 1, 2, 3))
    starts = [rng.randrange(3 * num_records) for _ in range(count)]
    return tuple((start, start + rng.choice((1, 2, 5, num_records + 3))) for start in starts)


def draw_legs(rng: random.Random, batch_size: int, max_actors: int) -> tuple[Leg, ...]:
    """One to four parts; the last goes to the end."""
    count = rng.choice((1, 2, 2, 3, 4))
    return tuple(
        Leg(
            num_trainers=rng.choice([n for n in (1, 1, 2, 3, 4) if batch_size % n == 0]),
            num_actors=rng.randint(1, max_actors),
            shares=rng.random() < 0.5,
            chunk_size=rng.choice((None, None, 1, 5, 16, 100)),
            num_batches=rng.choice((0, 1, 2, 5)) if number < count - 1 else None,
        )
        for number in range(count)
    )


def draw_reads(rng: random.Random) -> tuple[Read, ...]:
    """One to six; the last goes to the end."""
    found = [
        Read(rng.choice(("batch", "batch", "element", "seek", "set_state")), rng.choice((1, 2, 3, 5, 8, 30)))
        for _ in range(rng.randint(0, 5))
    ]
    counted = [replace(read, count=rng.randint(1, 5)) if read.how in ("batch", "element") else read for read in found]
    return (*counted, Read("batch", rng.choice((1, 3, 8, 30)), 10**6))


def smaller(case: Case) -> Iterable[Case]:
    """Cases with a little less in them, for finding what a failure needs."""
    if case.reads:
        yield replace(case, reads=())
        yield replace(case, legs=())
        for index in range(len(case.reads)):
            yield replace(case, reads=case.reads[:index] + case.reads[index + 1 :])
    for index in range(len(case.skip)):
        yield replace(case, skip=case.skip[:index] + case.skip[index + 1 :])
    if case.reweighted is not None:
        yield replace(case, reweighted=None)
    if case.materialized is not None:
        yield replace(case, materialized=None)
    if len(case.legs) > 1:
        yield replace(case, legs=case.legs[-1:])
        yield replace(case, legs=(replace(case.legs[0], num_batches=1), case.legs[-1]))
    for index in range(len(case.steps)):
        yield replace(case, steps=case.steps[:index] + case.steps[index + 1 :])
    plain: dict[str, Any] = {
        "kind": "random_access",
        "shuffle": "none",
        "packing": None,
        "num_epochs": 1,
        "ending": "short",
        "cacheable": False,
        "rounds": 8,
        "seed": 0,
        "on_error": "raise",
        "batch_size": 12,
        "has_nulls": False,
    }
    for name, value in plain.items():
        if getattr(case, name) != value and not (name == "kind" and case.shuffle == "block"):
            yield replace(case, **{name: value})
    for size in SIZES:
        if size < case.num_records:
            yield replace(case, num_records=size)
    for index, leg in enumerate(case.legs):
        for change in ({"num_trainers": 1}, {"shares": False}, {"chunk_size": None}, {"num_actors": 1}):
            less = replace(leg, **change)
            if less != leg:
                yield replace(case, legs=(*case.legs[:index], less, *case.legs[index + 1 :]))
