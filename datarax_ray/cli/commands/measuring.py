"""Commands that prove and measure: demo, ingest, bench and simulate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from datarax_ray.cli.commands import IMPORTED, PATHS, SeedOption, argument, command, decoders, number, parsed

app = typer.Typer()


@command(app, "demo:demo", short="Train, stop halfway, go on with more actors, compare each batch.")
def demo(
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(help="Keep the checkpoint in this empty or new folder. Default: a temporary folder."),
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Train on handwritten digits, stop halfway, go on with more actors, and prove that no batch changed.

    Runs offline on this machine in well under a minute: a small local Ray, 1,497 packaged images, and a small
    classifier in JAX. Exits with 1 if a single batch differs, or if the classifier has learned nothing.

    \b
    Example:
      datarax-ray demo --seed 1
    """


INGESTED = (
    "ArrayRecord files, globs (quoted), directories, URLs of these (s3://, gs://, https://), or 'FILE[start:stop]' for "
    "some records of one file."
)
READERS = "Ray actors that read; 0 reads in this process, without Ray. Default: one per CPU of the cluster but one."


def _epochs(text: str) -> int:
    """Raises: ValueError for 0 and for what is no number of at least -1."""
    if not re.fullmatch(r"-1|[1-9][0-9]*", text):
        raise ValueError(f"{text!r} is no number of epochs; give at least 1, or -1 for endless")
    return int(text)


@command(app, "ingest:ingest", short="Stream ArrayRecord files through Ray actors; print how fast.")
def ingest(
    paths: Annotated[list[str], argument("PATHS", INGESTED)],
    batch_size: Annotated[int, number("Records in a batch.")] = 1024,
    num_actors: Annotated[int | None, number(READERS, 0)] = None,
    num_epochs: Annotated[Any, parsed(_epochs, "N", "Passes over all records; -1 reads until Ctrl-C.")] = 1,
    shuffle: Annotated[
        bool, typer.Option(help="Shuffle all records anew in every epoch, or read in file order.")
    ] = True,
    seed: SeedOption = 0,
    decoder: Annotated[Any, decoders("How to decode a record; see the list above.")] = "none",
    max_batches: Annotated[int | None, number("Stop after this many batches.")] = None,
) -> None:
    """Stream ArrayRecord files through Ray actors at full speed, and print how fast that was.

    Batches end in this process's memory as NumPy arrays; no device is used. The actors run on the Ray cluster that
    RAY_ADDRESS names, else on the one that runs on this host, else on a local one that ends with this command. Progress
    goes to stderr, the report to stdout. After Ctrl-C or SIGTERM the report is printed too; the exit status is then 130
    or 143.

    \b
    Examples:
      datarax-ray ingest 'data/*.array_record' --num-actors 4
      datarax-ray ingest gs://bucket/train --decoder image:224,224,3 --json

    \b
    Decoders:
      none                       the record's bytes
      raw:uint8:8,8              one array of this dtype and shape
      'fields:image=uint8:8,8;label=uint8'
                                 arrays one after another (quotes for the ;)
      msgpack, json              a map
      example                    a tf.train.Example with all its features
      'example:x=float32:3;tags=bytes:*'
                                 with these features; * is any number of values
      image, image:224,224,3     a JPEG or PNG, resized if a shape is given
      image:jpg, image:jpg:224,224,3
                                 the same, in the field jpg of a tar's elements
    """


BENCHED = (
    f"{PATHS} Or a source, a Pipeline, or a function that returns one: train.py:make_pipeline or "
    f"package.module:make_pipeline. {IMPORTED}"
)


@command(app, "bench:bench", short="Measure how fast files are read, and what would help.")
def bench(
    paths: Annotated[list[str], argument("PATHS", BENCHED)],
    seconds: Annotated[float, typer.Option(min=0.01, metavar="S", help="Seconds for each way to read.")] = 3.0,
    batch_size: Annotated[int, number("Records in a batch.")] = 256,
    num_actors: Annotated[int, number("Measure the fastest shuffle with this many Ray actors as well.", 0)] = 0,
    decoder: Annotated[Any, decoders("How to decode a record, as in `ingest`.")] = "none",
    target: Annotated[
        float | None, typer.Option(min=1e-6, metavar="RATE", help="Records/s that the trainer takes.")
    ] = None,
) -> None:
    """Measure how fast data is read raw, in order and shuffled, and print what would make it faster.

    Raw means: in file order, not decoded. All ways but that of --num-actors read in this process. Files that the
    system's cache holds are read from memory, so a first pass over larger data is slower. Elements of different shapes
    (images of many sizes) are decoded and not stacked; the output says so.

    For train.py:NAME the transforms are measured as well, and the slowest is named. A source that is shuffled keeps its
    own kind of shuffle. Stages of a Pipeline are not run.

    \b
    Examples:
      datarax-ray bench 'data/*.array_record' --decoder image --target 5000
      datarax-ray bench data/train.parquet --num-actors 4 --json
      datarax-ray bench train.py:make_pipeline
    """


def _nbytes(text: str) -> int:
    """Bytes, of 4096, 600KB or 1.5MiB."""
    found = re.fullmatch(r"([0-9]+\.?[0-9]*) *([KMGT]?)(I?)B?", text.strip().upper())
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no number of bytes, such as 4096, 600KB or 1.5MiB")
    return round(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2] or " "))


def _nbytes_option(help: str) -> Any:
    return parsed(_nbytes, "BYTES", help)


def _real(metavar: str, help: str, least: float = 0.0, most: float | None = None) -> Any:
    return typer.Option(min=least, max=most, metavar=metavar, help=help)


TRIED = "Numbers of actors to try. Default: the least that --need takes, and more until trainers hardly wait."
FAULTS = (
    "A fault at second S. kill, freeze (12 s) or leave: an actor; host: all actors of a host; join: one more actor. "
    "May be given several times."
)


@command(app, "simulate:simulate", short="Simulate a cluster: waits, memory, requests.", error_status=2)
def simulate(
    rate: Annotated[float, _real("RATE", "Records/s that one actor reads, as `bench` measures.", 1e-6)],
    record_size: Annotated[Any, _nbytes_option("Size of a decoded record: 4096, 600KB, 1.5MiB.")],
    need: Annotated[
        float | None, _real("RATE", "Records/s that all trainers together train on. Default: as many as come.", 1e-6)
    ] = None,
    num_actors: Annotated[str | None, typer.Option(metavar="N[,N...]", help=TRIED)] = None,
    num_trainers: Annotated[int, number("Trainers that share the actors.")] = 1,
    batch_size: Annotated[int, number("Records in a batch of all trainers.")] = 1024,
    prefetch: Annotated[int, number("Batches that a Pipeline makes ahead.", 0)] = 2,
    num_records: Annotated[int, number("Records in an epoch.")] = 10**9,
    actors_per_host: Annotated[int, number("Actors on a CPU host.")] = 32,
    sigma: Annotated[float, _real("S", "Spread (lognormal) of request times; 0: all alike.", most=3)] = 0.3,
    slow: Annotated[int, number("Actors that are ten times slower.", 0)] = 0,
    network: Annotated[Any, _nbytes_option("Network into a trainer's host, a second.")] = "1.25GB",
    storage: Annotated[Any, _nbytes_option("From the storage to all actors, a second. Default: no bound.")] = None,
    stored_size: Annotated[Any, _nbytes_option("Size of a stored record. Default: as decoded.")] = None,
    object_store: Annotated[Any, _nbytes_option("Ray's object store on a host.")] = "60GB",
    fault: Annotated[list[str] | None, typer.Option(metavar="KIND@S[:WHICH]", help=FAULTS)] = None,
    restart: Annotated[float, _real("S", "Seconds until a lost actor reads again.")] = 3.0,
    seconds: Annotated[float, _real("S", "Seconds to measure, after a warm-up of 30 s.", 1)] = 60.0,
) -> None:
    """Simulate a cluster: how long its trainers wait, its memory and its requests.

    The scheduler, the window and the recovery from lost and slow actors are the real code; actors, storage and network
    are simulated with the figures given here. All records are shuffled. No Ray starts and no file is read. Exits with 1
    if trainers wait more than 2 % of their time with every number of actors that was tried.

    \b
    Examples:
      datarax-ray simulate --rate 900 --record-size 150KB --need 4000
      datarax-ray simulate --rate 900 --record-size 150KB --need 20000 \\
        --num-actors 24,32,48 --num-trainers 8 --fault host@60:0 --json
    """
