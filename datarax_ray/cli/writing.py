"""`datarax-ray convert` and `datarax-ray preprocess`: datasets and elements written as files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType

from datarax_ray.cli.arguments import source_of
from datarax_ray.cli.check import field_table
from datarax_ray.cli.screen import Screen
from datarax_ray.loading import kind_of, source_of_files, split_of
from datarax_ray.read.decode import DecodeMsgpack
from datarax_ray.read.files.sniff import picture_in
from datarax_ray.read.formats.image_folder import EncodedImages
from datarax_ray.read.formats.random_access import RandomAccessReader
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.sources import TextStreamSource, from_hf
from datarax_ray.write.conversion import Conversion, To, conversion_of
from datarax_ray.write.manifest import Manifest
from datarax_ray.write.materialize import Materialized, materialize
from datarax_ray.write.shards import folder_of, num_shards_for, write_dataset

_MAX_LOOKED_AT = 1000  # records whose files are looked up
_MAX_SKIPPED = 5  # that are printed


def convert(
    source: str,
    destination: Path,
    screen: Screen,
    *,
    to: To = "array_record",
    group_size: int | None = None,
    num_shards: int | None = None,
    num_actors: int | None = None,
    decoder: tuple[Any, ...] = (),
    split: str | None = None,
    on_error: str = "raise",
    check: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a dataset in another format, and print a summary.

    group_size, num_shards, num_actors: None to choose. decoder: transforms. split: of a Hugging Face dataset. check:
    see conversion_of.
    """
    begin = time.perf_counter()
    folder_of(destination)  # checked before anything is opened
    reader, about = _reader_of(source, split)
    with contextlib.closing(reader):
        _check_apart(reader, destination)
        conversion = conversion_of(
            reader, to, group_size=group_size, on_error=on_error, transforms=decoder, check=check, about=about
        )
        num_shards = num_shards or num_shards_for(conversion.num_records, conversion.mean_nbytes)
        written = write_dataset(
            conversion.read,
            conversion.num_records,
            destination,
            conversion.format,
            made_from=conversion.made_from,
            num_shards=num_shards,
            num_actors=0 if num_actors is None and num_shards == 1 else num_actors,
            overwrite=overwrite,
            console=screen.err,
            title="convert",
        )
    elapsed_s = time.perf_counter() - begin
    format = written.settings["format"]
    facts = {
        "destination": str(destination),
        "format": format["name"],
        "group_size": format["group_size"],
        "encoding": conversion.encoding,
        "checked": conversion.made_from.get("check"),
        "num_records": written.num_records,
        "num_skipped": sum((shard.said or {}).get("num_skipped", 0) for shard in written.shards),
        "num_shards": len(written.shards),
        "nbytes": written.nbytes,
        "elapsed_s": round(elapsed_s, 3),
    }
    screen.answer(facts, _summary(destination, written, conversion, facts["num_skipped"], elapsed_s))


def _reader_of(source: str, split: str | None) -> tuple[Any, dict[str, Any]]:
    """A reader of the records as they are stored, and facts that the records do not hold."""
    kind, name = kind_of(source, split)
    if kind == "imagefolder":
        folder = EncodedImages(name)
        return RandomAccessReader(folder), {"class_names": list(folder.class_names)}
    # what a sample lacks is null, and nulls stay what they are
    if kind == "hf":  # eager: a stream of shards cannot be cut into runs of records
        opened = from_hf(name, split_of(name, split), eager=True, on_null="host")
    else:
        opened = source_of_files(source, {"num_epochs": 1}, missing="none", on_null="host")
    if isinstance(opened, TextStreamSource):
        return opened.indexed(), {}
    stream = opened.describe()
    assert isinstance(stream, IndexedStream)
    return stream.reader, {}


def _check_apart(reader: Any, destination: Path) -> None:
    """Raise ValueError if the destination holds files of the source: --overwrite would remove them."""
    numbers = np.linspace(0, reader.num_records - 1, min(reader.num_records, _MAX_LOOKED_AT), dtype=int)
    places = {reader.locate(record).rpartition("[")[0] for record in numbers.tolist()}
    inside = [place for place in sorted(places) if Path(place).resolve().parent == destination.resolve()]
    if inside:
        raise ValueError(f"{destination} holds {inside[0]}, a file of the source; write to another folder")


def _summary(
    destination: Path, written: Manifest, conversion: Conversion, num_skipped: int, elapsed_s: float
) -> Iterator[str]:
    format = written.settings["format"]
    files = "file" if len(written.shards) == 1 else "files"
    yield (
        f"{destination}: {written.num_records:,} records in {len(written.shards):,} {files} of {format['name']}, "
        f"{written.nbytes / 1e6:,.1f} MB, {elapsed_s:,.1f} s"
    )
    if checked := conversion.made_from.get("check"):
        yield f"checked by decoding: {checked}"
    if num_skipped:
        skipped = [where for shard in written.shards for where in (shard.said or {}).get("skipped", ())][:_MAX_SKIPPED]
        more = f" and {num_skipped - len(skipped)} more" if num_skipped > len(skipped) else ""
        yield f"skipped: {num_skipped:,} records that cannot be read: {', '.join(skipped)}{more}"
    decoders = _decoders_of(destination, conversion)
    transforms = f", transforms=[{', '.join(decoders)}]" if decoders else ""
    yield f"read it by: load({str(destination)!r}{transforms})"
    if format["name"] == "ArrayRecord" and format["group_size"] > 1:
        yield (
            f'groups of {format["group_size"]} records: shuffle_block_size="auto" decodes each once in an epoch; for '
            "a shuffle of single records write --group-size 1"
        )


def _decoders_of(folder: Path, conversion: Conversion) -> list[str]:
    """The transforms that decode the written records, as code; DecodeImage by the first record's fields."""
    decoders = [DecodeMsgpack()] if conversion.encoding else []
    found = ["DecodeMsgpack()"] if conversion.encoding else []
    try:
        with contextlib.closing(source_of_files(folder, {"num_epochs": 1}, decoders, on_null="host")) as source:
            element = next(iter(source), None)
    except Exception:  # the source raises it again, for instance for nulls, when somebody reads the files
        return found
    fields = element.items() if isinstance(element, Mapping) else ()
    return found + [f"DecodeImage(field={name!r})" for name, value in fields if picture_in(value) is not None]


def preprocess(
    spec: str,
    destination: Path,
    screen: Screen,
    *,
    num_transforms: int | None = None,
    num_actors: int | None = None,
    num_shards: int | None = None,
    overwrite: bool = False,
) -> None:
    begin = time.perf_counter()
    done = materialize(
        source_of(spec),
        destination,
        num_transforms=num_transforms,
        num_actors=num_actors,
        num_shards=num_shards,
        overwrite=overwrite,
        console=screen.err,
    )
    elapsed_s = time.perf_counter() - begin
    screen.answer(done.to_json() | {"elapsed_s": round(elapsed_s, 3)}, _statistics(done, elapsed_s))


def _statistics(done: Materialized, elapsed_s: float) -> Iterator[RenderableType]:
    for component in done.components:
        yield str(component)
        yield field_table(component.statistics)
    yield f"{done.num_records:,} records in {elapsed_s:,.1f} s"
    yield f"read it by: MaterializedSource(source, {done.path!r})"
