"""Commands that prove and measure: demo and bench."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from datarax_ray.cli.commands import IMPORTED, PATHS, SOURCE, SeedOption, argument, command, decoders, number

app = typer.Typer()


@command(app, "demo:demo", short="Train, stop halfway, go on with more actors, compare each batch.")
def demo(seed: SeedOption = 0) -> None:
    """Train on handwritten digits, stop halfway, go on with more actors, and prove that no batch changed.

    Runs offline on this machine in well under a minute: a small local Ray, 1,497 packaged images, and a small
    classifier in JAX. Exits with 1 if a single batch differs, or if the classifier has learned nothing.

    \b
    Example:
      datarax-ray demo --seed 1
    """


@command(app, "bench:bench", short="Measure how fast files are read, and what would help.")
def bench(
    paths: Annotated[list[str], argument("PATHS", f"{PATHS} Or {SOURCE} {IMPORTED}")],
    seconds: Annotated[float, typer.Option(min=0.01, metavar="S", help="Seconds for each way to read.")] = 3.0,
    batch_size: Annotated[int, number("Records in a batch.")] = 256,
    num_actors: Annotated[int, number("Measure the fastest shuffle with this many Ray actors as well.", 0)] = 0,
    decoder: Annotated[Any, decoders("How to decode a record; see the list above.")] = "none",
    target: Annotated[
        float | None, typer.Option(min=1e-6, metavar="RATE", help="Records/s that the trainer takes.")
    ] = None,
) -> None:
    """Measure how fast data is read raw, in order and shuffled, and print what would make it faster.

    Raw means: in file order, not decoded. All ways but --num-actors read in this process. Its actors run on the Ray
    cluster of RAY_ADDRESS, else on the cluster of this host, else on a local Ray that ends with this command. Files in
    the system's cache are read from memory, so a first pass over larger data is slower. Elements of different shapes
    (images of many sizes) are decoded and not stacked; the output says so.

    For train.py:NAME the transforms are measured as well, and the slowest is named. A shuffled source keeps its own
    kind of shuffle. Stages of a Pipeline are not run.

    \b
    Examples:
      datarax-ray bench 'data/*.array_record' --decoder DecodeImage --target 5000
      datarax-ray bench data/train.parquet --num-actors 4 --json
      datarax-ray bench train.py:make_pipeline

    \b
    Decoders, as Python writes them:
      DecodeImage                 a JPEG or PNG
      'DecodeImage((224, 224, 3), field="jpg")'
                                  resized, in the field jpg of a tar's elements
      'DecodeRaw("uint8", (8, 8))'
      'DecodeFields({"image": ("uint8", (8, 8)), "label": ("uint8", ())})'
      DecodeMsgpack, DecodeJson, DecodeExample, DecodeAudio, DecodeVideo
      'DecodeExample({"x": FixedLen("float32", (3,)), "tags": VarLen("bytes")})'
      none                        the record's bytes
    """
