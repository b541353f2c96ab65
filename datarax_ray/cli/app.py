"""The commands and their options. What they do is loaded when one runs, so that help comes at once."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from datarax_ray import __version__
from datarax_ray.cli.screen import err, out, told

app = typer.Typer(
    help="One exact stream of training batches from Ray actors to JAX.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich's tables cut the names of options on a narrow screen
    pretty_exceptions_enable=False,  # `told` says what a user can cause; the rest wants its traceback
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Split = Annotated[str | None, typer.Option(metavar="SPLIT", help="Of hf:NAME; train by default.", show_default=False)]
Destination = Annotated[
    Path, typer.Argument(metavar="DST", help="A folder, empty or new, that all hosts see.", show_default=False)
]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the order and of random transforms; 32 bits.")]


def _transforms(decoder: str) -> tuple[Any, ...]:
    from datarax_ray.cli.decoder_option import parse_decoder

    try:
        return parse_decoder(decoder)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--decoder") from error


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"datarax-ray {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    progress: Annotated[bool, typer.Option(help="Show progress, on stderr.")] = True,
) -> None:
    if not progress:
        os.environ["DATARAX_RAY_PROGRESS"] = "0"


@app.command(short_help="Train, stop halfway, go on with more actors, compare each batch.")
def demo(
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keep the checkpoint here; must be empty or new. Default: a temporary directory, removed at the end.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train on handwritten digits, stop halfway, go on with more actors, and prove that no batch changed.

    Runs offline on this machine in well under a minute: a small local Ray, 1,497 packaged images, and a small
    classifier in JAX. Exits with 1 if a single batch differs, or if the classifier has learned nothing.

    \b
    Example:
      datarax-ray demo --seed 1
    """
    with told(err):
        from datarax_ray.cli.demo import run

        found = run(seed, checkpoint_dir, err if as_json else out)
        if as_json:
            out.print_json(data=found)


@app.command(short_help="Stream ArrayRecord files through Ray actors; say how fast.")
def ingest(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="ArrayRecord files, globs (quoted) or directories, or URLs of these (s3://, gs://, https://), or "
            "'FILE[start:stop]' for some records of one.",
            metavar="PATHS",
            show_default=False,
        ),
    ],
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Records in a batch.")] = 1024,
    num_actors: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Ray actors that read; 0 reads in this process, without Ray. Default: one per CPU of the cluster but "
            "one.",
            show_default=False,
        ),
    ] = None,
    num_epochs: Annotated[
        int, typer.Option(min=-1, metavar="N", help="Passes over all records; -1 goes on until Ctrl-C.")
    ] = 1,
    shuffle: Annotated[
        bool, typer.Option(help="Shuffle all records anew in every epoch, or read in file order.")
    ] = True,
    seed: Seed = 0,
    decoder: Annotated[str, typer.Option(metavar="DECODER", help="What a record is; see the list above.")] = "none",
    max_batches: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this many batches.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Stream ArrayRecord files through Ray actors at full speed, and report how fast that was.

    Batches end in this process's memory as NumPy arrays; JAX is not loaded and no device is used. Actors run on the
    Ray cluster that RAY_ADDRESS names or that runs on this host, else on a local one that ends with this command.
    The progress goes to stderr, the report to stdout. After Ctrl-C or a SIGTERM the report is printed as well, and
    the exit status is 130 or 143.

    \b
    Examples:
      datarax-ray ingest 'data/*.array_record' --num-actors 4
      datarax-ray ingest gs://bucket/train --decoder image:224,224,3 --json

    \b
    Decoders:
      none                       a record is its bytes
      raw:uint8:8,8              one array of this dtype and shape
      'fields:image=uint8:8,8;label=uint8'
                                 arrays one after the other (quotes for the ;)
      msgpack, json              a map
      example                    a tf.train.Example with all its features
      'example:x=float32:3;tags=bytes:*'
                                 with these; * is any number of values
      image, image:224,224,3     a JPEG or PNG, resized where a shape is given
      image:jpg, image:jpg:224,224,3
                                 the same, in the field jpg of a tar's elements
    """
    if num_epochs == 0:
        raise typer.BadParameter(
            "it is 0, which reads nothing; give at least 1, or -1 for endless", param_hint="--num-epochs"
        )
    transforms = _transforms(decoder)
    with told(err):
        from datarax_ray.cli.ingest import Request, run

        request = Request(tuple(paths), batch_size, num_actors, num_epochs, shuffle, seed, transforms, max_batches)
        status = run(request, out, err, as_json)
    raise typer.Exit(status)


@app.command(short_help="Measure how fast files are read, and what would help.")
def bench(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATHS",
            help="As `load` takes them: files, globs (quoted), directories or URLs of one format, or imagefolder:DIR; "
            "or train.py:make_pipeline or package.module:make_pipeline, of a source or Pipeline, or a function that "
            "returns one.",
            show_default=False,
        ),
    ],
    seconds: Annotated[float, typer.Option(min=0.01, metavar="S", help="For each way to read.")] = 3.0,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Records in a batch.")] = 256,
    num_actors: Annotated[
        int, typer.Option(min=0, metavar="N", help="Also the fastest shuffle with so many Ray actors; 0 without Ray.")
    ] = 0,
    decoder: Annotated[str, typer.Option(metavar="DECODER", help="What a record is; as of `ingest`.")] = "none",
    target: Annotated[
        float | None,
        typer.Option(min=1e-6, metavar="RATE", help="Records/s that the trainer takes.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how fast these files are read, raw, in order and shuffled, and say what would make it faster.

    Raw is in file order, records as they are stored, dropped. All ways but the last read in this process; what memory
    holds of the files is read from there, so a first pass over more than that is slower. Ends in this process's memory,
    without a device. Elements that are not alike (images of many sizes) are not stacked, which is said.

    Of train.py:NAME the transforms are measured as well, and what takes the longest is named. Where it is shuffled, it
    is so in its own way. Stages of a Pipeline are not run. What the file runs belongs under
    `if __name__ == "__main__":`.

    \b
    Examples:
      datarax-ray bench 'data/*.array_record' --decoder image --target 5000
      datarax-ray bench data/train.parquet --num-actors 4 --json
      datarax-ray bench train.py:make_pipeline
    """
    transforms = _transforms(decoder)
    with told(err):
        from datarax_ray.cli.bench import Request, run

        run(Request(tuple(paths), seconds, batch_size, num_actors, transforms, target), as_json, out, err)


def _nbytes(text: str) -> float:
    """Bytes, of 4096, 600KB or 1.5MiB."""
    found = re.fullmatch(r"([0-9]+\.?[0-9]*) *([KMGT]?)(I?)B?", str(text).strip().upper())
    if found is None or not float(found[1]):
        raise typer.BadParameter(f"{text!r} is no number of bytes, such as 4096, 600KB or 1.5MiB")
    return float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2] or " ")


def _size(text: str) -> Any:
    """An option that is a number of bytes. Its default is text as well."""
    return typer.Option(metavar="BYTES", help=text, parser=_nbytes)


@app.command(short_help="Say how a cluster would do: waits, memory, requests, cost.")
def simulate(
    rate: Annotated[
        float,
        typer.Option(
            min=1e-6, metavar="RATE", help="Records/s that one actor reads; `bench` says it.", show_default=False
        ),
    ],
    record_size: Annotated[Any, _size("Of a decoded record: 4096, 600KB, 1.5MiB.")],
    need: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            metavar="RATE",
            help="Records/s that all trainers together train on. Default: all that come.",
            show_default=False,
        ),
    ] = None,
    num_actors: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Try each of these. Default: what --need takes at the least, and more until trainers hardly wait.",
            show_default=False,
        ),
    ] = None,
    num_trainers: Annotated[int, typer.Option(min=1, metavar="N", help="Trainers that share the actors.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Records in a batch of all trainers.")] = 1024,
    prefetch: Annotated[int, typer.Option(min=0, metavar="N", help="Batches that a Pipeline makes ahead.")] = 2,
    num_records: Annotated[int, typer.Option(min=1, metavar="N", help="In an epoch.")] = 10**9,
    actors_per_host: Annotated[int, typer.Option(min=1, metavar="N", help="Actors on a CPU host.")] = 32,
    sigma: Annotated[
        float, typer.Option(min=0, max=3, metavar="S", help="Of the lognormal time of a request; 0: all alike.")
    ] = 0.3,
    slow: Annotated[int, typer.Option(min=0, metavar="N", help="Actors that are ten times slower.")] = 0,
    network: Annotated[Any, _size("A second, into a trainer's host.")] = "1.25GB",
    storage: Annotated[Any, _size("A second, from the storage to all actors. Default: no bound.")] = None,
    stored_size: Annotated[Any, _size("Of a record in the storage. Default: as decoded.")] = None,
    object_store: Annotated[Any, _size("Ray's object store on a host.")] = "60GB",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND@S[:WHICH]",
            help="kill, freeze (12 s) or leave: an actor; host: all of a host's end; join: one more. S is the second, "
            "from the beginning. May be given several times.",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[float, typer.Option(min=0, metavar="S", help="Until an actor that ended reads again.")] = 3.0,
    host_price: Annotated[float, typer.Option(min=0, metavar="PRICE", help="Of a CPU host, an hour.")] = 0.0,
    trainer_price: Annotated[float, typer.Option(min=0, metavar="PRICE", help="Of a trainer, an hour.")] = 0.0,
    seconds: Annotated[
        float, typer.Option(min=1, metavar="S", help="That are counted, behind 30 s of beginning.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Say how a cluster would do: how long its trainers wait, its memory, requests and cost.

    The scheduler, the window, and what is done about lost and slow actors are the real ones; actors, storage and
    network are made up of the figures given here. Files are shuffled as a whole. Starts no Ray and reads no file.
    Exits with 1 where trainers that need a rate wait more than 2 % of their time, whatever number of actors was tried.

    \b
    Examples:
      datarax-ray simulate --rate 900 --record-size 150KB --need 4000
      datarax-ray simulate --rate 900 --record-size 150KB --need 20000 \\
        --num-actors 24,32,48 --num-trainers 8 --fault host@60:0 \\
        --host-price 1.5 --trainer-price 12 --json
    """
    from datarax_ray.cli.simulate import Prices, numbers_of, run, scenario_of

    try:
        scenario = scenario_of(
            need=need,
            num_trainers=num_trainers,
            batch_size=batch_size,
            prefetch=prefetch,
            num_records=num_records,
            actors_of_host=actors_per_host,
            sigma=sigma,
            slow=slow,
            measured_s=seconds,
            faults=fault or [],
            record_s=1 / rate,
            record_nbytes=record_size,
            stored_nbytes=stored_size or record_size,
            link_nbytes_per_s=network,
            storage_nbytes_per_s=storage or math.inf,
            store_nbytes=object_store,
            start_s=restart,
        )
        numbers = numbers_of(num_actors, scenario)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with told(err):
        status = run(scenario, numbers, num_actors is None, Prices(host_price, trainer_price), as_json, out, err)
    raise typer.Exit(status)


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
    split: Split = None,
    as_json: Json = False,
) -> None:
    """Show what lies there: files, records, sizes, groups and whether they hurt, and the first elements.

    Records of ArrayRecord files are decoded by what the first one looks like; the decoder is named.

    \b
    Examples:
      datarax-ray inspect 'data/*.array_record'
      datarax-ray inspect imagefolder:photos --num-elements 1 --sheet photos.png
    """
    with told(err):
        from datarax_ray.cli.inspect import run

        run(paths, num_elements, as_json, out, sheet, split)


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
    destination: Destination,
    to: Annotated[str, typer.Option("--format", metavar="FORMAT", help="array_record or parquet.")] = "array_record",
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
    split: Split = None,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="raise|skip", help="What becomes of records that cannot be read; skipped ones are counted."
        ),
    ] = "raise",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, whatever an earlier conversion wrote to DST.")
    ] = False,
    as_json: Json = False,
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
    if to not in ("array_record", "parquet"):
        raise typer.BadParameter(f"{to!r} is no format to write; use array_record or parquet", param_hint="--format")
    if group_size != "auto" and not (group_size.isdecimal() and int(group_size) > 0):
        raise typer.BadParameter(f"{group_size!r} is no number of at least 1, nor auto", param_hint="--group-size")
    if on_error not in ("raise", "skip"):
        raise typer.BadParameter(f"{on_error!r} is neither raise nor skip", param_hint="--on-error")
    transforms = _transforms(decoder)
    with told(err):
        from datarax_ray.cli.writing.convert import Request, run

        size = None if group_size == "auto" else int(group_size)
        request = Request(source, destination, to, size, num_shards, num_actors, transforms, split, on_error, overwrite)
        status = run(request, as_json, out, err)
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
    destination: Destination,
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
    as_json: Json = False,
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
    with told(err):
        from datarax_ray.cli.writing.preprocess import Request, run

        request = Request(spec, destination, num_transforms, num_actors, num_shards, overwrite)
        status = run(request, as_json, out, err)
    raise typer.Exit(status)


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="train.py:make_pipeline or package.module:make_pipeline: a Pipeline, or a function that returns one. The "
        'file is imported: what it runs belongs under `if __name__ == "__main__":`.',
        show_default=False,
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Count batches from the state saved here. Default: from the beginning of the stream.",
        show_default=False,
    ),
]


Of = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="DIR",
        help="Count batches from the beginning of the stream, with what the latest state here says was amended of it.",
        show_default=False,
    ),
]


@app.command(short_help="Say which file and record each row of a batch came from.")
def locate(
    target: Target,
    step: Annotated[int, typer.Option(min=0, metavar="N", help="The batch, counted from 0.")],
    row: Annotated[
        int | None, typer.Option(min=0, metavar="R", help="One row of it alone.", show_default=False)
    ] = None,
    checkpoint: From = None,
    run: Of = None,
    as_json: Json = False,
) -> None:
    """Say which file and record each row of a batch came from: which data fed step N.

    Straight from the order, without reading, where every position gives one row; else the stream is read up to that
    batch. Rows are those of the global batch, whatever the number of trainers; pieces of them where rows are packed.

    \b
    Examples:
      datarax-ray locate train.py:make_pipeline --step 120000
      datarax-ray locate train.py:pipeline --run run/checkpoints --step 9000
      datarax-ray locate train.py:pipeline --checkpoint run/checkpoints \\
        --step 0 --row 7 --json
    """
    with told(err):
        from datarax_ray.cli.replay import locate

        locate(target, step, row, checkpoint, as_json, out, run)


@app.command(short_help="Write batches that a model saw once more.")
def replay(
    target: Target,
    steps: Annotated[str, typer.Option(metavar="A:B", help="The batches from A up to B, counted from 0.")],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help=".npz, .parquet, or .png for a sheet of the pictures in them.", show_default=False
        ),
    ],
    checkpoint: From = None,
    run: Of = None,
    as_json: Json = False,
) -> None:
    """Write batches that a model saw once more, as they were before the pipeline's stages.

    The file has its name once it is whole. Arrays of an .npz are named STEP/FIELD; a .parquet has a row for each row,
    with its step.

    \b
    Examples:
      datarax-ray replay train.py:pipeline --steps 1200:1210 --output a.parquet
      datarax-ray replay train.py:pipeline --checkpoint run/checkpoints \\
        --steps 0:4 --output sheet.png
    """
    first, stop = _range(steps)
    with told(err):
        from datarax_ray.cli.replay import replay

        replay(target, first, stop, output, checkpoint, out, run, as_json)


Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A folder of checkpoints, or FILE.py:NAME of a pipeline.", show_default=False),
]


@app.command("diff", short_help="Say whether two runs saw the same data, or where they differ.")
def diff_runs(
    first: Run,
    second: Run,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Of two pipelines, these batches alone.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether two runs saw the same data, or where they first differ and why.

    Checkpoints are compared by the digests in them (Pipeline(digest=True)); a pipeline makes its batches once more, and
    two of them are compared row by row. Exits with 0 where they are the same, 1 where not, 2 where nothing tells, or
    a run is not there.

    \b
    Examples:
      datarax-ray diff run1/checkpoints run2/checkpoints
      datarax-ray diff run1/checkpoints train.py:make_pipeline
      datarax-ray diff train.py:pipeline old/train.py:pipeline --steps 0:1000
    """
    with told(err, status=2):
        from datarax_ray.cli.diff import diff

        status = diff(first, second, None if steps is None else _range(steps), as_json, out)
    raise typer.Exit(status)


def _range(steps: str) -> tuple[int, int]:
    """The batches [first, stop) of A:B."""
    first, colon, stop = steps.partition(":")
    if not (colon and first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
        raise typer.BadParameter(f"{steps!r} is no A:B with A below B", param_hint="--steps")
    return int(first), int(stop)


checkpoint = typer.Typer(help="What saved states of pipelines say, and whether they fit.", no_args_is_help=True)
app.add_typer(checkpoint, name="checkpoint")

Directory = Annotated[
    str,
    typer.Argument(metavar="DIR", help="Of a run, whose latest step counts, or of a step.", show_default=False),
]


@checkpoint.command("show")
def show_checkpoint(directory: Directory, as_json: Json = False) -> None:
    """Show where the stream goes on, and which stream it is.

    \b
    Example:
      datarax-ray checkpoint show run/checkpoints
    """
    with told(err):
        from datarax_ray.cli.checkpoint import show

        show(directory, as_json, out)


@checkpoint.command()
def diff(
    first: Directory,
    second: Directory,
    as_json: Json = False,
) -> None:
    """Show what differs between two states. Exits with 1 where anything does, 2 where there is no such state.

    \b
    Example:
      datarax-ray checkpoint diff run1/checkpoints run2/checkpoints
    """
    with told(err, status=2):
        from datarax_ray.cli.checkpoint import diff

        status = diff(first, second, as_json, out)
    raise typer.Exit(status)


@checkpoint.command()
def fits(target: Target, directory: Directory, as_json: Json = False) -> None:
    """Say whether a pipeline can go on from a state, or every setting that keeps it from that.

    Exits with 0 where it can, 1 where not, 2 where there is no such pipeline or state.

    \b
    Example:
      datarax-ray checkpoint fits train.py:make_pipeline run/checkpoints
    """
    with told(err, status=2):
        from datarax_ray.cli.checkpoint import fits

        status = fits(target, directory, out, as_json)
    raise typer.Exit(status)


cluster = typer.Typer(help="What runs this on a real cluster.", no_args_is_help=True)
app.add_typer(cluster, name="cluster")


@cluster.command()
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to write them to; made if missing.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a training job and what starts, watches and grows its cluster.

    That is: the job with its submit script, manifests for KubeRay, an autoscaler's YAML, a Dockerfile, a SLURM script,
    a Grafana dashboard, and a runbook. They are yours to change. Begin with README.md there.

    \b
    Example:
      datarax-ray cluster init my-cluster
    """
    with told(err):
        from datarax_ray.cli.cluster import init

        names = init(directory, force)
        if as_json:
            out.print_json(data={"directory": str(directory), "files": list(map(str, names))})
        else:
            out.print(f"wrote {len(names)} files to {directory}; begin with {directory / 'README.md'}", soft_wrap=True)


pool = typer.Typer(help="The reader actors of jobs that run: see, resize, stop them.", no_args_is_help=True)
app.add_typer(pool, name="pool")

Name = Annotated[str, typer.Argument(metavar="NAME", help="As `pool list` shows it.", show_default=False)]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Of the cluster's head. Default: RAY_ADDRESS, else the Ray of this host.",
        show_default=False,
    ),
]


@pool.command("list")
def list_pools(address: Address = None, as_json: Json = False) -> None:
    """List the pools of reader actors that jobs of this cluster read with.

    A RaySource has a pool of its own, named after its Ray job, or with name= shares the one of that name. Those that
    outlive their jobs (linger_s=) are listed as well.

    \b
    Examples:
      datarax-ray pool list
      datarax-ray pool list --json --address 10.0.0.1:6379
    """
    with told(err):
        from datarax_ray.cli.pool import list_pools

        list_pools(address, as_json, out)


@pool.command()
def stop(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Though drivers seem to read with it.")] = False,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """End the actors of a pool that outlives its jobs (RaySource's linger_s=).

    Exits with 1 where no such pool is there, or a job reads with it: it would start the actors again.

    \b
    Example:
      datarax-ray pool stop sweep
    """
    with told(err):
        from datarax_ray.cli.pool import stop

        stop(name, force, address, as_json, out)


@pool.command()
def show(name: Name, address: Address = None, as_json: Json = False) -> None:
    """Show one pool: who reads with it, on which hosts its actors run, and what befell it.

    \b
    Examples:
      datarax-ray pool show train
      datarax-ray pool show 02000000-3fa9 --json
    """
    with told(err):
        from datarax_ray.cli.pool import show

        show(name, address, as_json, out)


@pool.command()
def resize(
    name: Name,
    num_actors: Annotated[
        str, typer.Argument(metavar="N|auto", help="How many, or as many as its program says.", show_default=False)
    ],
    address: Address = None,
    wait_s: Annotated[float, typer.Option(min=0, metavar="S", help="For the job to take it up.")] = 30.0,
    as_json: Json = False,
) -> None:
    """Have a job that runs read with N actors from now on. Its batches stay the same.

    Holds until it is asked for another number, or `auto`: then its program decides again (num_actors=). Exits with 1
    where no such pool is there, or the job has not taken it up in time; it does so as soon as it can.

    \b
    Examples:
      datarax-ray pool resize train 64
      datarax-ray pool resize train auto
    """
    if num_actors != "auto" and not (num_actors.isdecimal() and int(num_actors) > 0):
        raise typer.BadParameter(f"{num_actors!r} is no number of at least 1, nor auto", param_hint="N|auto")
    with told(err):
        from datarax_ray.cli.pool import resize

        resize(name, None if num_actors == "auto" else int(num_actors), address, wait_s, as_json, out)


cache = typer.Typer(help="What is kept on this host's disk of remote files (cache_dir).", no_args_is_help=True)
app.add_typer(cache, name="cache")

CacheDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The cache_dir of a source's config.", show_default=False)
]


@cache.command("show")
def show_cache(
    directory: CacheDirectory,
    as_json: Json = False,
) -> None:
    """Print which files are kept there, how much of each, and whether a process reads it now.

    \b
    Example:
      datarax-ray cache show /mnt/cache
    """
    with told(err):
        from datarax_ray.cli.cache import show

        show(directory, as_json, out)


@cache.command("clear")
def clear_cache(directory: CacheDirectory, as_json: Json = False) -> None:
    """Remove what is kept there, but what a process reads now, and nothing else in the folder.

    \b
    Example:
      datarax-ray cache clear /mnt/cache
    """
    with told(err):
        from datarax_ray.cli.cache import clear

        clear(directory, out, as_json)
