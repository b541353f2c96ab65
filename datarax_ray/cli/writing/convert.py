"""`datarax-ray convert`: what lies somewhere, in any format that is read here, as shards of ArrayRecord or Parquet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datarax_ray import load
from datarax_ray.cli.screen import Screen, tell_stopped
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.read.decode import DecodeMsgpack
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.image_folder import ImageFolder
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.formats.random_access import RandomAccessReader
from datarax_ray.read.formats.sniff import IMAGES, record_format
from datarax_ray.read.identity.sampled_rows import spread
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.sources import from_hf
from datarax_ray.sources.kinds import kind_of, split_of
from datarax_ray.write.conversion import Conversion, EncodedImages, To, conversion_of
from datarax_ray.write.manifest import Manifest
from datarax_ray.write.shards import folder_of, num_shards_for, write_dataset

_MAX_LOOKED_AT = 1000  # records whose files are looked up


@dataclass(frozen=True)
class Request:
    """What to write, and how. group_size, num_shards, num_actors: None to choose. split: of a Hugging Face dataset."""

    source: str
    destination: Path
    to: To
    group_size: int | None
    num_shards: int | None
    num_actors: int | None
    transforms: tuple[Any, ...]
    split: str | None
    on_error: str
    overwrite: bool


def run(request: Request, screen: Screen) -> int:
    """Write, then print what was written. Returns the exit status."""
    begin = time.perf_counter()
    folder_of(request.destination)  # before anything is opened
    reader, about = _reader_of(request)
    with contextlib.closing(reader):
        _check_apart(reader, request.destination)
        found = conversion_of(
            reader,
            request.to,
            group_size=request.group_size,
            on_error=request.on_error,
            transforms=request.transforms,
            about=about,
        )
        num_shards = request.num_shards or num_shards_for(found.num_records, found.mean_nbytes)
        num_actors = 0 if request.num_actors is None and num_shards == 1 else request.num_actors
        try:
            written = write_dataset(
                found.read,
                found.num_records,
                request.destination,
                found.format,
                made_from=found.made_from,
                num_shards=num_shards,
                num_actors=num_actors,
                overwrite=request.overwrite,
                console=screen.err,
                title="convert",
            )
        except (KeyboardInterrupt, SystemExit) as end:
            return tell_stopped(end, screen.err)
    _report(request, written, found, time.perf_counter() - begin, screen)
    return 0


def _reader_of(request: Request) -> tuple[Any, dict[str, Any]]:
    """What reads the records as they are stored, and what these do not say themselves."""
    kind, name = kind_of(request.source, request.split)
    if kind == "imagefolder":
        folder = ImageFolder(name)
        return RandomAccessReader(EncodedImages(folder)), {"class_names": list(folder.class_names)}
    # of a dataset all: a stream of shards cannot be cut into runs of records
    source = from_hf(name, split_of(name, request.split), eager=True) if kind == "hf" else load(request.source)
    stream = source.describe()
    assert isinstance(stream, IndexedStream)
    return stream.reader, {}


def _check_apart(reader: Any, destination: Path) -> None:
    """Raise ValueError where what is read lies where it is to be written: to begin anew there would remove it."""
    folder = destination.resolve()
    places = {
        reader.locate(record).rpartition("[")[0] for record in spread(reader.num_records, _MAX_LOOKED_AT).tolist()
    }
    inside = next((place for place in sorted(places) if Path(place).resolve().parent == folder), None)
    if inside is not None:
        raise ValueError(f"{inside} is read from {destination}, where its conversion is to be written; write elsewhere")


def _decoders_of(folder: Path, written: Manifest, made: Conversion) -> list[str]:
    """What makes values of the records that were written, as it stands in transforms; images by the first record."""
    records = DecodeMsgpack(arrays=made.arrays) if made.arrays else DecodeMsgpack()
    arrays = f"arrays={dict(made.arrays)}" if made.arrays else ""
    said = [f"DecodeMsgpack({arrays})"] if made.encoding else []
    path = next((folder / shard.name for shard in written.shards if shard.num_records), None)
    if path is None:
        return said
    try:
        kind: Any = ParquetReader if written.settings["format"]["name"] == "Parquet" else ArrayRecordReader
        with contextlib.closing(kind.of(path)) as reader:
            stream = IndexedStream(reader, order_of(reader.num_records), 1, (records,) if made.encoding else ())
            (element,) = stream.read_at(0, 1)
    except Exception:  # what a source does not take, as nulls, it says to who reads it
        return said
    fields = element.items() if isinstance(element, Mapping) else ()
    files = {name: value.get("bytes") if isinstance(value, Mapping) else value for name, value in fields}
    images = [name for name, file in files.items() if isinstance(file, bytes) and record_format(file) in IMAGES]
    return said + [f"DecodeImage(field={name!r})" for name in images]


def _report(request: Request, written: Manifest, made: Conversion, elapsed_s: float, screen: Screen) -> None:
    format = written.settings["format"]
    num_skipped = sum((shard.said or {}).get("num_skipped", 0) for shard in written.shards)
    data = {
        "destination": str(request.destination),
        "format": format["name"],
        "group_size": format["group_size"],
        "encoding": made.encoding,
        "num_records": written.num_records,
        "num_skipped": num_skipped,
        "num_shards": len(written.shards),
        "nbytes": written.nbytes,
        "elapsed_s": round(elapsed_s, 3),
    }
    screen.answer(data, _lines(request.destination, written, made, num_skipped, elapsed_s))


def _lines(destination: Path, written: Manifest, made: Conversion, num_skipped: int, elapsed_s: float) -> Iterator[str]:
    format = written.settings["format"]
    files = "file" if len(written.shards) == 1 else "files"
    yield (
        f"{destination}: {written.num_records:,} records in {len(written.shards):,} {files} of {format['name']}, "
        f"{written.nbytes / 1e6:,.1f} MB, {elapsed_s:,.1f} s"
    )
    if num_skipped:
        skipped = [where for shard in written.shards for where in (shard.said or {}).get("skipped", ())]
        more = f" and {num_skipped - len(skipped[:5])} more" if num_skipped > len(skipped[:5]) else ""
        yield f"left out: {num_skipped:,} records that cannot be read: {', '.join(skipped[:5])}{more}"
    decoders = _decoders_of(destination, written, made)
    decode = f", transforms=[{', '.join(decoders)}]" if decoders else ""
    yield f"read it by: load({str(destination)!r}{decode})"
    if made.encoding and len(decoders) == 1:
        yield (
            "nulls stay None in these records, for a transform to fill in; written by --format parquet, fill_nulls= of "
            "ParquetSourceConfig does that"
        )
    if format["name"] == "ArrayRecord" and format["group_size"] > 1:
        yield (
            f'groups of {format["group_size"]} records: shuffle_block_size="auto" decodes each once in an epoch; for '
            "a shuffle of single records write --group-size 1"
        )
