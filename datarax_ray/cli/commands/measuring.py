"""Commands that show how it works and how fast: demo, ingest, bench and simulate."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from datarax_ray.cli.commands.options import JsonOption, SeedOption, transforms_of
from datarax_ray.cli.screen import Screen, reporting_errors

app = typer.Typer()


@app.command(short_help="Train, stop halfway, go on with more actors, compare each batch.")
def demo(
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keep the checkpoint here; must be empty or new. Default: a temporary directory, removed at the end.",
            show_default=False,
        ),
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Train on handwritten digits, stop halfway, go on with more actors, and prove that no batch changed.

    Runs offline on this machine in well under a minute: a small local Ray, 1,497 packaged images, and a small
    classifier in JAX. Exits with 1 if a single batch differs, or if the classifier has learned nothing.

    \b
    Example:
      datarax-ray demo --seed 1
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.demo import run

        run(seed, checkpoint_dir, screen)


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
    seed: SeedOption = 0,
    decoder: Annotated[str, typer.Option(metavar="DECODER", help="What a record is; see the list above.")] = "none",
    max_batches: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this many batches.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
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
    transforms = transforms_of(decoder)
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.ingest import Request, run

        request = Request(
            paths=tuple(paths),
            batch_size=batch_size,
            num_actors=num_actors,
            num_epochs=num_epochs,
            shuffle=shuffle,
            seed=seed,
            transforms=transforms,
            max_batches=max_batches,
        )
        status = run(request, screen)
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
    as_json: JsonOption = False,
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
    transforms = transforms_of(decoder)
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.bench import Request, run

        request = Request(
            paths=tuple(paths),
            seconds=seconds,
            batch_size=batch_size,
            num_actors=num_actors,
            transforms=transforms,
            target=target,
        )
        run(request, screen)


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
    as_json: JsonOption = False,
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
    with reporting_errors(Screen(as_json)) as screen:
        status = run(scenario, numbers, Prices(host_price, trainer_price), screen, ends_early=num_actors is None)
    raise typer.Exit(status)
