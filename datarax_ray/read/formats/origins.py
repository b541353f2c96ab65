"""Origins: the index beside a written shard. It names the place that each record of the shard was written from.

`_origins-00003-of-00016` belongs to `data-00003-of-00016.array_record`. It is a Parquet file with a row for each run of
names that count on: a whole file is one row. A shard without its index is read as before. Nothing is opened before
somebody asks for an origin.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.errors import Place
from datarax_ray.read.file_contents import head_and_content
from datarax_ray.read.formats.inspecting import SHARD
from datarax_ray.read.formats.remote.clients import is_url, redacted
from datarax_ray.read.formats.remote.ranges import read_small

logger = logging.getLogger("datarax_ray")

INDEX = re.compile(r"_origins-\d{5,}-of-\d{5,}")
_MAX_NBYTES = 2**28  # of an index behind a URL


class Origin(NamedTuple):
    """The names of consecutive records from `first` on: "head[number]tail", where the number counts on.

    number: of the first record; None for one record whose name, the head, has no number.
    """

    first: int
    head: str
    number: int | None = None
    tail: str = ""

    def name(self, record: int) -> str:
        return self.head if self.number is None else f"{self.head}[{self.number + record - self.first}]{self.tail}"


def origins_of(reader: Any, records: Sequence[int] | Indices, keys: Sequence[str] = ()) -> list[Origin]:
    """The runs of the origins of written records.

    records: of the reader, by their number in the shard. keys: of each of them, a name to stand behind the number; ()
        for none.
    """
    records, firsts = np.asarray(records, np.int64), reader.name_firsts
    is_first = np.ones(len(records), bool)
    if len(records) and firsts is not None and not keys:
        begin, end = np.searchsorted(firsts, [records.min(), records.max()], "right").tolist()
        near = firsts[begin - 1 : end]
        if not any(map(reader.origin, near.tolist())):  # else each record has the origin of its origin
            is_first[1:] = (np.diff(records) != 1) | np.isin(records[1:], near)
    found: list[Origin] = []
    for number in np.flatnonzero(is_first).tolist():
        name = reader.origin(int(records[number])) or reader.locate(int(records[number]))
        name += f" ({keys[number]})" if keys else ""
        if found and found[-1].name(number) == name:
            continue
        alone = Origin(number, name)
        place = Place.of(name)
        run = alone if place is None else Origin(number, f"{place.components}{place.path}", place.start, place.tail)
        found.append(run if run.name(number) == name else alone)
    return found


def index_of(shard: str) -> str | None:
    """The name of the index of a shard; None for any other file.

    >>> index_of("a/data-00003-of-00016.parquet"), index_of("a/part-3.parquet")
    ('a/_origins-00003-of-00016', None)
    """
    folder, slash, name = shard.rpartition("/")
    if not SHARD.fullmatch(name):
        return None
    return f"{folder}{slash}_origins-{name.removeprefix('data-').partition('.')[0]}"


def write_index(path: str | os.PathLike[str], origins: Iterable[Origin], nbytes: int, content: str) -> None:
    """Write an index. nbytes, content: of its shard, as `dataset.json` has them; another shard is not told by it."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"first": pa.int64(), "head": pa.string(), "number": pa.int64(), "tail": pa.string()}
    schema = pa.schema(kinds, {"nbytes": str(nbytes), "content": content})
    table = pa.Table.from_pylist([each._asdict() for each in origins], schema)
    # names have long beginnings in common, and numbers count on: 2 to 6 bytes a name
    encodings = dict(zip(kinds, ("DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY") * 2, strict=True))
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, column_encoding=encodings)


def origin_in(shard: str, number: int, nbytes: int) -> str:
    """Where a record of a file was written from, "" where that is not known. nbytes: of the file."""
    index = index_of(shard)
    runs = None if index is None else _opened(shard, index, nbytes)
    if runs is None:
        return ""
    firsts, table = runs
    row = table.slice(int(np.searchsorted(firsts, number, "right")) - 1, 1).to_pylist()[0]
    return Origin(**row).name(number)


@functools.lru_cache(16)  # some 25 MB each, where a shard has a name for each KB
def _opened(shard: str, index: str, nbytes: int) -> tuple[Indices, Any] | None:
    """The first records of all runs, and the runs; None without an index of this very shard."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(pa.BufferReader(read_small(index, _MAX_NBYTES)))
        said = table.schema.metadata
        content = None if is_url(shard) else head_and_content(shard)[1]
        if int(said[b"nbytes"]) != nbytes or content not in (None, said[b"content"].decode()):
            return None
        return table["first"].to_numpy(), table
    except (FileNotFoundError, PermissionError):  # the latter is a bucket's word for a missing file
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:  # origins are lost, and no record
        logger.warning("%s cannot be read, so origins of records are not told: %s", redacted(index), error)
        return None
