"""Commands on datasets: inspect, check, convert, preprocess."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from datarax_ray.cli.commands import (
    IMPORTED,
    PATHS,
    SOURCE,
    DestinationArgument,
    OverwriteOption,
    SplitOption,
    WritersOption,
    argument,
    command,
    decoders,
    number,
    number_or_auto,
    parsed,
)

app = typer.Typer()


@command(app, "inspect:inspect", short="Show files, records, sizes, groups and the first elements.")
def inspect(
    paths: Annotated[list[str], argument("PATHS", f"{PATHS} Or {SOURCE}")],
    num_elements: Annotated[int, number("Elements to show.", 0)] = 3,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write the first 64 pictures, side by side.")
    ] = None,
    decoder: Annotated[
        Any, decoders("How to decode a record, as in `bench`. Default: by the first bytes of the first record.")
    ] = None,
    split: SplitOption = None,
) -> None:
    """Show a dataset: its files, records, sizes, compressed groups, and the first elements.

    Records of ArrayRecord files are decoded if the first one looks like a known encoding; the decoder is named.

    \b
    Examples:
      datarax-ray inspect 'data/*.array_record'
      datarax-ray inspect imagefolder:photos --num-elements 1 --sheet photos.png
    """


@command(app, "check:check", short="Read everything once, and report what a run would meet.")
def check(
    paths: Annotated[list[str], argument("PATHS", f"{PATHS} Or {SOURCE}")],
    decoder: Annotated[
        Any, decoders("How to decode a record, as in `bench`. Default: by the first bytes of the first record.")
    ] = None,
    num_actors: Annotated[int, number("Ray actors that read; 0 reads in this process, without Ray.", 0)] = 0,
    split: SplitOption = None,
) -> None:
    """Read all of a dataset once: count its records, find the broken ones, and show each field's types, nulls, lengths
    and values, the sizes of pictures, and the dtypes and shapes of a batch.

    Problems are listed with the setting or transform that reads such data. The exit status is 1 where a run over the
    data would end early.

    \b
    Examples:
      datarax-ray check 'data/part-*.parquet'
      datarax-ray check imagefolder:photos --json
      datarax-ray check train.py:make_source --num-actors 32
    """


@command(app, "writing:convert", short="Write a dataset as ArrayRecord or Parquet.")
def convert(
    source: Annotated[str, argument("SRC", PATHS)],
    destination: DestinationArgument,
    to: Annotated[
        Literal["array_record", "parquet"], typer.Option("--format", metavar="FORMAT", help="array_record or parquet.")
    ] = "array_record",
    group_size: Annotated[
        Any, parsed(number_or_auto, "N|auto", "Records compressed together; for Parquet, rows of a row group.")
    ] = "auto",
    num_shards: Annotated[int | None, number("Files to write. Default: 256 MiB each, uncompressed.")] = None,
    num_actors: WritersOption = None,
    decoder: Annotated[Any, decoders("How to decode a record, as in `bench`; none keeps its bytes.")] = "none",
    split: SplitOption = None,
    on_error: Annotated[
        Literal["raise", "skip"],
        typer.Option(metavar="raise|skip", help="Stop at a record that cannot be read, or skip and count it."),
    ] = "raise",
    check: Annotated[
        bool, typer.Option("--check", help="Decode pictures, members of tar files and records, to find broken ones.")
    ] = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Write a dataset, of any format that `load` reads, as ArrayRecord or Parquet files.

    Records of ArrayRecord and TFRecord keep their bytes. Rows become columns of Parquet, with their types and nulls; in
    ArrayRecord each row is a msgpack map, which DecodeMsgpack() reads. Pictures stay encoded; with --check each is
    decoded, and --on-error treats a broken one. A field that the format cannot hold is refused by name.

    An index beside each file keeps where every record came from; locate, replay and errors name it.

    Each file gets its name when it is complete, and dataset.json is written last. After Ctrl-C (exit status 130),
    SIGTERM (143) or a lost host, run the command again to write the missing files. The bytes do not depend on
    --num-actors. A single file is written in this process.

    \b
    Examples:
      datarax-ray convert 'tf/train-*.tfrecord' /data/train
      datarax-ray convert s3://bucket/mds/train /data/train --format parquet
      datarax-ray convert hf:ylecun/mnist /data/mnist --format parquet
      datarax-ray convert imagefolder:photos /data/photos --check --on-error skip
      datarax-ray convert 'logs/*.jsonl' /data/logs --on-error skip
    """


@command(app, "writing:preprocess", short="Run transforms once, and write their elements.")
def preprocess(
    spec: Annotated[str, argument("SPEC", f"Name of {SOURCE} {IMPORTED}")],
    destination: DestinationArgument,
    num_transforms: Annotated[
        int | None, number("Run the first N transforms. Default: all before the first random one.")
    ] = None,
    num_actors: WritersOption = None,
    num_shards: Annotated[int | None, number("Files of each component. Default: 256 MiB each.")] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Run a source's transforms once and write their elements; MaterializedSource(source, DST) reads them.

    The stream and its states stay the same, so a run may switch to the written elements in the middle of an epoch.
    Random transforms, stages and packing still run in training. Each component of a mixture gets a folder. The output
    and DST/dataset.json have statistics of each field. After Ctrl-C (exit status 130), SIGTERM (143) or an error (1),
    run the command again to write the missing files.

    \b
    Examples:
      datarax-ray preprocess train.py:make_source /data/tokens
      datarax-ray preprocess train.py:pipeline /data/tokens \\
        --num-transforms 2 --num-actors 64 --json
    """
