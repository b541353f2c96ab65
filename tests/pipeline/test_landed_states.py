"""States of each kind of stream as version 1 wrote them: they load for ever, and the remaining rows follow.

landed_states.json holds, for each kind, the saved state and the remaining rows. It is never rewritten: a new kind is
added to it. The digests of files that a library wrote, and of the text of transforms, depend on a release, so these are
taken from today's state.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import grain.python as grain
import numpy as np
import pytest

import datarax_ray.grain as ours
from datarax_ray import ConcatThenSplit, FirstFitPack, Pipeline, sources
from datarax_ray.read.formats.hugging_face.shards import Portions
from datarax_ray.sources import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    CSVSource,
    CSVSourceConfig,
    HFEagerConfig,
    HFEagerSource,
    HFStreamingConfig,
    JSONLinesSource,
    JSONLinesSourceConfig,
    MixtureSource,
    ParquetSource,
    ParquetSourceConfig,
    RandomAccessSource,
    RandomAccessSourceConfig,
    WebDatasetSource,
    WebDatasetSourceConfig,
)
from tests.data import Squares, record, write_file
from tests.tables import write_tables

PINNED: dict[str, Any] = json.loads(Path(__file__).with_name("landed_states.json").read_text())
N = 53


def number(element: Any) -> dict[str, Any]:
    """An element of its index alone, whatever the source gives."""
    return {"index": int(np.frombuffer(element, "<i4")[0] if isinstance(element, bytes) else element["index"])}


class Document:
    """As many tokens as the index says, modulo 11."""

    def map(self, element: Any) -> dict[str, Any]:
        index = number(element)["index"]
        return {"tokens": index * 100 + np.arange(index % 11, dtype=np.int32)}


class Thrice:
    def flat_map(self, element: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"index": element["index"], "copy": copy} for copy in range(3)]


class FailOnFives:
    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        if element["index"] % 5 == 0:
            raise ValueError("a multiple of five")
        return element


def array_records(directory: Path, *transforms: Any, **config: Any) -> ArrayRecordSourceModule:
    """Uncompressed files: their bytes depend on no compressor's release."""
    for part, (start, stop) in enumerate([(0, 20), (20, N)]):
        write_file(directory / f"part-{part}.array_record", map(record, range(start, stop)), 4, "uncompressed")
    options = {"num_epochs": 2} | config
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**options), directory, transforms=transforms or [number])


def random_access(*transforms: Any, size: int = N, **config: Any) -> RandomAccessSource:
    options = RandomAccessSourceConfig(**({"num_epochs": 2, "shuffle": True} | config))
    return RandomAccessSource(options, Squares(size), transforms=transforms or [number])


class HFStreamingSource(sources.HFStreamingSource, pytree=False):
    """In small portions, so that cursors stand inside a shard."""

    portions = Portions(max_rows=16, elements=16)


def stream(*transforms: Any) -> HFStreamingSource:
    """Three shards of unequal lengths, in windows of 5 elements; states stand in the middle of one."""
    data = datasets.Dataset.from_dict({"index": list(range(400))}).to_iterable_dataset(num_shards=3)
    config = HFStreamingConfig(shuffle=True, turn_size=2, shuffle_buffer_size=5, num_epochs=1)
    return HFStreamingSource(config, dataset=data, transforms=transforms or [number])


def mixture(*transforms: Any, weights: list[int]) -> MixtureSource:
    components = [random_access(*transforms, size=size, num_epochs=-1, seed=size) for size in (7, 23, 50)]
    return MixtureSource(components, weights, length=90)


def texts(directory: Path, suffix: str) -> Path:
    """Two files of several blocks, or tars, of the numbers below N."""
    for part, (start, stop) in enumerate([(0, 20), (20, N)]):
        path, width = directory / f"part-{part}{suffix}", 400
        if suffix == ".csv":
            path.write_text("index,text\n" + "".join(f'{i},"{"x" * width}\n"\n' for i in range(start, stop)))
        elif suffix == ".jsonl":
            path.write_text("".join(f'{{"index": {i}, "text": "{"x" * width}"}}\n' for i in range(start, stop)))
        else:
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
                for i in range(start, stop):
                    info = tarfile.TarInfo(f"{i}.index.cls")
                    info.size = len(str(i))
                    tar.addfile(info, io.BytesIO(str(i).encode()))
    return directory


def of_tar(element: dict[str, Any]) -> dict[str, Any]:
    return {"index": element["index.cls"]}


def piped(source: Any, batch_size: int = 7, **options: Any) -> Pipeline:
    return Pipeline(source=source, batch_size=batch_size, prefetch=0, **options)


CONCAT, FIRST_FIT = ConcatThenSplit(8, "tokens", pad_id=-1), FirstFitPack(4, "tokens", pad_id=-1, too_long="split")
# For each kind: what makes the pipeline, in a directory of its own. The state was taken after 4 batches.
KINDS: dict[str, Callable[[Path], Pipeline]] = {
    "file order": lambda d: piped(array_records(d)),
    "global order": lambda d: piped(array_records(d, shuffle_files=True, seed=42)),
    "block order": lambda d: piped(array_records(d, shuffle_files=True, seed=42, shuffle_block_size=4)),
    "blocks of groups": lambda d: piped(array_records(d, shuffle_files=True, seed=42, shuffle_block_size="auto")),
    "skipped records": lambda d: piped(array_records(d, number, FailOnFives(), on_error="skip", max_skipped=30)),
    "flat_map": lambda d: piped(array_records(d, number, Thrice(), shuffle_files=True)),
    "concat": lambda d: piped(array_records(d, Document(), shuffle_files=True), 3, packing=CONCAT),
    "first fit": lambda d: piped(array_records(d, Document(), shuffle_files=True), 2, packing=FIRST_FIT),
    "concat in a mixture": lambda d: piped(mixture(Document(), weights=[1, 2, 4]), 3, packing=CONCAT),
    "mixture": lambda d: piped(mixture(weights=[1, 2, 4])),
    "stream": lambda d: piped(stream(), 50),
    "stream with flat_map": lambda d: piped(stream(number, Thrice()), 50),
    "packed stream": lambda d: piped(stream(Document()), 30, packing=CONCAT),
    "parquet": lambda d: piped(ParquetSource(ParquetSourceConfig(num_epochs=2), write_tables(d, (20, N - 20)))),
    "parquet in blocks": lambda d: piped(
        ParquetSource(ParquetSourceConfig(shuffle=True, num_epochs=2), write_tables(d, (20, N - 20)))
    ),
    "csv": lambda d: piped(CSVSource(CSVSourceConfig(num_epochs=2), texts(d, ".csv"))),
    "csv in blocks": lambda d: piped(CSVSource(CSVSourceConfig(num_epochs=2, shuffle=True), texts(d, ".csv"))),
    "json lines in blocks": lambda d: piped(
        JSONLinesSource(JSONLinesSourceConfig(num_epochs=2, shuffle=True), texts(d, ".jsonl"))
    ),
    "tar": lambda d: piped(
        WebDatasetSource(WebDatasetSourceConfig(num_epochs=2, shuffle=True), texts(d, ".tar"), transforms=[of_tar])
    ),
    "tar in blocks": lambda d: piped(
        WebDatasetSource(
            WebDatasetSourceConfig(num_epochs=2, shuffle=True, shuffle_block_size=3),
            texts(d, ".tar"),
            transforms=[of_tar],
        )
    ),
    "hugging face": lambda d: piped(
        HFEagerSource(
            HFEagerConfig(shuffle=True, num_epochs=2), dataset=datasets.Dataset.from_dict({"index": list(range(N))})
        )
    ),
    "random access": lambda d: piped(random_access()),
}
STATES_WITH = {  # what must be in the pinned ones, so that they show what they are meant to
    "skipped records": ("statistics", "num_skipped"),
    "flat_map": ("rest", "offset"),
    "concat": ("rest", "token_offset"),
    "first fit": ("rest", "document_offset"),
    "concat in a mixture": ("rest", "token_offset"),
    "stream": ("rest", "cursors", "0", "state"),
    "stream with flat_map": ("rest", "offset"),
    "packed stream": ("rest", "token_offset"),
}


def rows(batches: Iterator[Any]) -> list[list[Any]]:
    """Of each batch, the index or the tokens of every row, and which copy of it."""
    keys = ("index", "copy", "tokens")
    return [[np.asarray(batch[key]).tolist() for key in keys if key in batch] for batch in batches]


def flat(plain: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(plain, dict) or not plain:
        return {prefix: plain}
    return {path: value for key, inner in plain.items() for path, value in flat(inner, f"{prefix}/{key}").items()}


def is_of_a_release(path: str, kind: str) -> bool:
    is_of_ours = "array_records" in KINDS[kind].__code__.co_names if kind in KINDS else False
    return path.endswith("/transforms/code") or ("/files/" in path and not is_of_ours)


def made_with(state: dict[str, Any], current: dict[str, Any], kind: str) -> dict[str, Any]:
    """The state as if today's releases had written what depends on them."""
    values, now = flat(state), flat(current)
    result: dict[str, Any] = {}
    for path, value in values.items():
        *parents, last = path[1:].split("/")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = now[path] if is_of_a_release(path, kind) and path in now else value
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_a_landed_state_is_written_and_loads_and_exactly_what_was_left_follows(kind: str, tmp_path: Path) -> None:
    pipeline, left = KINDS[kind](tmp_path), PINNED[kind]["left"]
    landed = made_with(PINNED[kind]["state"], pipeline.get_state(), kind)
    place = landed
    for key in STATES_WITH.get(kind, ()):
        place = place[key]
    assert place not in (None, 0, {})
    for _ in range(4):
        pipeline.step()
    today = json.loads(json.dumps(pipeline.get_state()))
    assert rows(pipeline) == left
    pipeline.set_state(landed)
    assert pipeline.num_skipped == landed["statistics"]["num_skipped"]
    assert rows(pipeline) == left
    state = made_with(PINNED[kind]["state"], today, kind)
    for one in (today, state):  # how far shards are known to be, beside where they stand, depends on the size of chunks
        one.get("rest", {}).pop("cursors", None)
    for key in ("version", "position", "rest", "statistics", "evidence"):
        assert today.get(key) == state.get(key), key
    assert flat(today["settings"]).items() >= flat(state["settings"]).items()


# Whole states that are no pipeline's


def test_a_state_of_a_source_loads_in_the_middle_of_a_flat_map() -> None:
    source = random_access(number, Thrice())
    elements = list(islice(source, 40))
    pinned = PINNED["source"]
    again = random_access(number, Thrice())
    again.set_state(made_with(pinned["state"], again.get_state(), "source"))
    assert [[int(e["index"]), e["copy"]] for e in again] == pinned["left"]
    assert [[int(e["index"]), e["copy"]] for e in source] == pinned["left"]
    assert len(elements) == 40


class Repeat(grain.experimental.FlatMapTransform):
    max_fan_out = 3

    def flat_map(self, element: int) -> list[int]:
        return [element] * 3


def loader() -> ours.DataLoader:
    sampler = grain.IndexSampler(10, grain.NoSharding(), True, 2, 5)
    return ours.DataLoader(data_source=grain.RangeDataSource(0, 10, 1), sampler=sampler, operations=[Repeat()])


def test_a_state_of_a_grain_loader_loads_in_the_middle_of_a_flat_map() -> None:
    iterator, again, pinned = iter(loader()), iter(loader()), PINNED["grain"]
    for _ in range(7):
        next(iterator)
    state = made_with(pinned["state"], json.loads(again.get_state()), "grain")
    assert state["rest"] == {"offsets": [1]}
    found = json.loads(iterator.get_state())
    assert found == state
    again.set_state(json.dumps(state).encode())
    assert [int(x) for x in again] == [int(x) for x in iterator] == pinned["left"]
