"""Commands that look at datasets and write them: inspect, convert and preprocess."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from datarax_ray.cli.commands.options import DestinationArgument, JsonOption, SplitOption, number_or_auto, transforms_of
from datarax_ray.cli.screen import Screen, reporting_errors

app = typer.Typer()


@app.command(short_help="Show files, records, sizes, groups and the first elements.")
def inspect(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATHS",
            help="As `load` takes them: files, globs (quoted), directories or URLs of one format, or hf:NAME, or "
            "imagefolder:DIR.",
            show_default=False,
        ),
    ],
    num_elements: Annotated[int, typer.Option(min=0, metavar="N", help="Elements to show.")] = 3,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write the first 64 pictures, side by side.")
    ] = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what lies there: files, records, sizes, groups and whether they hurt, and the first elements.

    Records of ArrayRecord files are decoded by what the first one looks like; the decoder is named.

    \b
    Examples:
      datarax-ray inspect 'data/*.array_record'
      datarax-ray inspect imagefolder:photos --num-elements 1 --sheet photos.png
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.inspect import run

        run(paths, num_elements, screen, sheet=sheet, split=split)


@app.command(short_help="Write a dataset anew, as ArrayRecord or Parquet.")
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="As `load` takes it: a file, glob (quoted), directory or URL of one format, or hf:NAME, or "
            "imagefolder:DIR.",
            show_default=False,
        ),
    ],
    destination: DestinationArgument,
    to: Annotated[
        Literal["array_record", "parquet"],
        typer.Option("--format", metavar="FORMAT", help="array_record or parquet."),
    ] = "array_record",
    group_size: Annotated[
        str,
        typer.Option(metavar="N|auto", help="Records that are compressed together; of Parquet, rows of a row group."),
    ] = "auto",
    num_shards: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Files. Default: of 256 MiB each, before compression.", show_default=False
        ),
    ] = None,
    num_actors: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Files that are written at the same time, by Ray; 0 writes in this process, without Ray. Default: one "
            "per CPU of the cluster but one, and 0 for one file.",
            show_default=False,
        ),
    ] = None,
    decoder: Annotated[
        str, typer.Option(metavar="DECODER", help="What a record is, as of `ingest`; none keeps its bytes.")
    ] = "none",
    split: SplitOption = None,
    on_error: Annotated[
        Literal["raise", "skip"],
        typer.Option(
            metavar="raise|skip", help="What becomes of records that cannot be read; skipped ones are counted."
        ),
    ] = "raise",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, whatever an earlier conversion wrote to DST.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write what lies somewhere, in any format that is read here, as ArrayRecord or Parquet files.

    Records of ArrayRecord and TFRecord keep their bytes. Rows become columns of Parquet, with their types and nulls; in
    ArrayRecord each is a msgpack map, which DecodeMsgpack() reads. Pictures stay as they are encoded. What a format
    cannot hold is refused, by the field's name.

    Files get their names once they are whole, and dataset.json once all are. After Ctrl-C (exit status 130), a SIGTERM
    (143) or a lost host the same command goes on with the files that are missing. The bytes do not depend on
    --num-actors. Exits with 1 where anything cannot be read or written.

    \b
    Examples:
      datarax-ray convert 'tf/train-*.tfrecord' /data/train
      datarax-ray convert s3://bucket/mds/train /data/train --format parquet
      datarax-ray convert hf:ylecun/mnist /data/mnist --format parquet
      datarax-ray convert imagefolder:photos /data/photos
      datarax-ray convert 'logs/*.jsonl' /data/logs --on-error skip
    """
    size = number_or_auto(group_size, "--group-size")
    transforms = transforms_of(decoder)
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.writing.convert import Request, run

        request = Request(
            source=source,
            destination=destination,
            to=to,
            group_size=size,
            num_shards=num_shards,
            num_actors=num_actors,
            transforms=transforms,
            split=split,
            on_error=on_error,
            overwrite=overwrite,
        )
        status = run(request, screen)
    raise typer.Exit(status)


@app.command(short_help="Run transforms once, and write what they make.")
def preprocess(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help="train.py:make_source or package.module:make_source: a source or Pipeline, or a function that returns "
            'one. The file is imported: what it runs belongs under `if __name__ == "__main__":`.',
            show_default=False,
        ),
    ],
    destination: DestinationArgument,
    num_transforms: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many of the first transforms to run. Default: all up to the first random one.",
            show_default=False,
        ),
    ] = None,
    num_actors: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Files that are written at the same time, by Ray; 0 writes in this process, without Ray. Default: one "
            "per CPU of the cluster but one.",
            show_default=False,
        ),
    ] = None,
    num_shards: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Files, of each component. Default: of 256 MiB.", show_default=False),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew in a folder that holds something else of this command.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a source's transforms once, and write what they make: MaterializedSource(source, DST) reads it.

    It is the same stream, with states that fit both, so that a run may go on from what was written in the middle of an
    epoch. Random transforms, stages and packing stay live; a mixture's components go to folders of their own. With
    statistics by field, in DST/report.html too. The progress goes to stderr. After Ctrl-C (exit status 130), a SIGTERM
    (143) or an error (1) the same command goes on.

    What is written of train.py:NAME is for that script as it runs itself; for another one, that imports it, name the
    module.

    \b
    Examples:
      datarax-ray preprocess train.py:make_source /data/tokens
      PYTHONPATH=. datarax-ray preprocess train:make_source /data/tokens
      datarax-ray preprocess train.py:pipeline /data/tokens \\
        --num-transforms 2 --num-actors 64 --json
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.writing.preprocess import Request, run

        request = Request(
            target=spec,
            destination=destination,
            num_transforms=num_transforms,
            num_actors=num_actors,
            num_shards=num_shards,
            overwrite=overwrite,
        )
        status = run(request, screen)
    raise typer.Exit(status)
