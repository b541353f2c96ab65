"""What is paid for being sure: rows beside broken ones that are left out, and folders whose shards are compared.

    python -m tests.benchmarks.checks [--rows 90000] [--shards 1000] [--repeats 5]

reads an epoch in one process, whole, with 13 broken places, and with half of the places broken in half of the file
(`on_error="skip"`), in file order and shuffled; the runs of all take turns, and CPU is what is counted. A place is a
row of Parquet and of JSON lines, where a number is null, and a group of 100 records of ArrayRecord, in which a bit is
flipped. Then it makes a source over a folder that `materialize` wrote, with its dataset.json and without.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.benchmarks.options import parsed, spread

GROUP = 100  # records
LINES_NBYTES = 24 * 2**20
HARMS = ("whole", "13 broken", "half of half broken")
ORDERS: dict[str, dict[str, Any]] = {"in file order": {}, "shuffled": {"shuffle": True}}


def broken_places(count: int, harm: str) -> set[int]:
    """None at the beginning: the first rows decide what a column is."""
    few = [count // 4 + index * (count - count // 4) // 13 for index in range(13)]
    return set({"whole": [], "13 broken": few, "half of half broken": range(count // 2, count, 2)}[harm])


def write_parquet(path: Path, num_rows: int, harm: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    broken = broken_places(num_rows, harm)
    ids = [None if row in broken else row for row in range(num_rows)]
    table = pa.table({"id": ids, "text": [f"row {row}" for row in range(num_rows)]})
    parquet.write_table(table, path, 10_000, write_statistics=False)  # which would tell of nulls beforehand


def write_lines(path: Path, num_rows: int, harm: str) -> None:
    broken = broken_places(num_rows, harm)
    text = "-" * (LINES_NBYTES // num_rows)
    rows = ({"id": None if row in broken else row, "text": text} for row in range(num_rows))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_records(path: Path, num_rows: int, harm: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), f"group_size:{GROUP},uncompressed")
    for row in range(num_rows):
        writer.write(b"row %09d of many" % row + b"-" * 100)
    writer.close()
    content = bytearray(path.read_bytes())
    for group in broken_places(num_rows // GROUP, harm):
        content[content.index(b"row %09d" % (GROUP * group)) + 6] ^= 0x40
    path.write_bytes(content)


WRITERS: dict[str, Callable[[Path, int, str], None]] = {
    "Parquet": write_parquet,
    "JSON lines": write_lines,
    "ArrayRecord": write_records,
}


def epoch(kind: str, path: Path, order: str) -> tuple[float, int]:
    """The seconds of CPU of an epoch behind its first batch, and the rows that came."""
    from datarax_ray import (
        ArrayRecordSourceConfig,
        ArrayRecordSourceModule,
        JSONLinesSource,
        JSONLinesSourceConfig,
        ParquetSource,
        ParquetSourceConfig,
    )
    from datarax_ray.feed.stream import StreamOptions

    sources: Mapping[str, Any] = {
        "Parquet": (ParquetSource, ParquetSourceConfig, {"on_null": "error"}),
        "JSON lines": (JSONLinesSource, JSONLinesSourceConfig, {"on_null": "error", "schema_rows": 100}),
        "ArrayRecord": (ArrayRecordSourceModule, ArrayRecordSourceConfig, {}),
    }
    make, config, nulls = sources[kind]
    source = make(config(num_epochs=1, on_error="skip", **nulls, **ORDERS[order]), path)
    batches = source.batches(0, StreamOptions(100))
    num_rows, began = len(next(batches).positions), time.process_time()
    num_rows += sum(len(batch.positions) for batch in batches)
    source.close()
    return time.process_time() - began, num_rows


def as_it_is(element: Any) -> Any:
    return element


def folder_of_shards(folder: Path, num_shards: int) -> None:
    from datarax_ray import RandomAccessSource, RandomAccessSourceConfig, materialize

    data = RandomAccessSource(RandomAccessSourceConfig(), {"id": np.arange(10 * num_shards)}, transforms=[as_it_is])
    materialize(data, folder, num_shards=num_shards)


def start(folder: Path) -> float:
    from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule

    began = time.process_time()
    ArrayRecordSourceModule(ArrayRecordSourceConfig(), folder).close()
    return time.process_time() - began


def _told(what: str, seconds: Sequence[float], beside: Sequence[float]) -> dict[str, Any]:
    ratios = [mine / other for mine, other in zip(seconds, beside, strict=True)]
    print(f"{what}: {median(seconds):.2f} s, ratio {spread(ratios, '.2f')}", flush=True)
    return {"what": what, "seconds": median(seconds), "ratio": median(ratios)}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each kind of files, order and harm, beside whole files, and one for the folder."""
    options = parsed(__doc__, arguments, rows=90_000, shards=1_000, repeats=5)
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for kind, write in WRITERS.items():
            paths = {harm: Path(scratch) / f"{kind} {harm}".replace(" ", "_") for harm in HARMS}
            for harm, path in paths.items():
                write(path, options.rows, harm)
            for order in ORDERS:
                runs = [
                    {harm: epoch(kind, path, order) for harm, path in paths.items()} for _ in range(options.repeats)
                ]
                for harm in HARMS:
                    times = [run[harm][0] for run in runs]
                    line = _told(f"{kind}, {order}, {harm}", times, [run["whole"][0] for run in runs])
                    lines.append(line | {"num_rows": runs[0][harm][1]})
        folder = Path(scratch) / "shards"
        folder_of_shards(folder, options.shards)
        (folder / "dataset.json").rename(folder.with_suffix(".json"))
        bare, checked = [], []
        for _ in range(options.repeats):
            bare.append(start(folder))
            folder.with_suffix(".json").rename(folder / "dataset.json")
            checked.append(start(folder))
            (folder / "dataset.json").rename(folder.with_suffix(".json"))
        lines.append(_told(f"a source over {options.shards:,} shards, compared with dataset.json", checked, bare))
    return lines


if __name__ == "__main__":
    main()
