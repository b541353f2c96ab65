"""Commands on runs: locate, replay, diff, and the saved states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from datarax_ray.cli.commands import PipelineArgument, argument, command, number, parsed

app = typer.Typer()
checkpoint = typer.Typer(name="checkpoint", help="Show and check saved states.", no_args_is_help=True)

CheckpointOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Count batches from the state saved here. Default: from the beginning of the stream."
    ),
]
RunOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Count batches from the beginning of the stream, with the amendments of the latest state saved here.",
    ),
]
RunArgument = Annotated[str, argument("RUN", "A folder of checkpoints, or FILE.py:NAME of a pipeline.")]
StateArgument = Annotated[str, argument("DIR", "Folder of a step, or of a run: then its latest step.")]


def _steps(text: str) -> tuple[int, int]:
    """The batches [first, stop) of A:B. Raises: ValueError for another text."""
    first, colon, stop = text.partition(":")
    if not (colon and first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
        raise ValueError(f"{text!r} is no A:B with A below B")
    return int(first), int(stop)


@command(app, "replay:locate", short="Print which file and record each row of a batch came from.")
def locate(
    target: PipelineArgument,
    step: Annotated[int, number("The batch, counted from 0.", 0)],
    row: Annotated[int | None, typer.Option(min=0, metavar="R", help="Only this row.")] = None,
    checkpoint: CheckpointOption = None,
    run: RunOption = None,
) -> None:
    """Print which file and record each row of a batch came from: the data that fed step N.

    If every position gives one row, nothing is read; otherwise the stream is read up to this batch. The rows are those
    of the global batch, for any number of trainers. For packed rows, each piece of a document is listed.

    \b
    Examples:
      datarax-ray locate train.py:make_pipeline --step 120000
      datarax-ray locate train.py:pipeline --run run/checkpoints --step 9000
      datarax-ray locate train.py:pipeline --checkpoint run/checkpoints \\
        --step 0 --row 7 --json
    """


@command(app, "replay:replay", short="Write batches that a model saw once more.")
def replay(
    target: PipelineArgument,
    steps: Annotated[Any, parsed(_steps, "A:B", "The batches from A up to B, counted from 0.")],
    output: Annotated[
        Path, typer.Option(metavar="FILE", help=".npz, .parquet, or .png for a sheet of the batches' pictures.")
    ],
    checkpoint: CheckpointOption = None,
    run: RunOption = None,
) -> None:
    """Write batches that a model saw to a file, as they were before the pipeline's stages.

    The file gets its name when it is complete. An .npz has an array STEP/FIELD for each batch and field. A .parquet has
    the fields, and the columns step, row, and record: the file and record that the row was made of.

    \b
    Examples:
      datarax-ray replay train.py:pipeline --steps 1200:1210 --output a.parquet
      datarax-ray replay train.py:pipeline --checkpoint run/checkpoints \\
        --steps 0:4 --output sheet.png
    """


@command(app, "diff:diff", short="Compare the data of two runs; print where they differ.", error_status=2)
def diff(
    first: RunArgument,
    second: RunArgument,
    steps: Annotated[Any, parsed(_steps, "A:B", "Compare only these batches of two pipelines.")] = None,
) -> None:
    """Compare the data that two runs saw, and print where and why they first differ.

    Checkpoints are compared by their digests (Pipeline(digest=True)); for a pipeline the batches are made again. Two
    pipelines are compared row by row. Exits with 0 if the data is the same, 1 if it differs, 2 if the digests cannot
    tell or a run is missing.

    \b
    Examples:
      datarax-ray diff run1/checkpoints run2/checkpoints
      datarax-ray diff run1/checkpoints train.py:make_pipeline
      datarax-ray diff train.py:pipeline old/train.py:pipeline --steps 0:1000
    """


@command(checkpoint, "checkpoint:show")
def show_state(
    directory: StateArgument, all: Annotated[bool, typer.Option("--all", help="Also show the digests.")] = False
) -> None:
    """Show a saved state: the position where the stream goes on, its epoch, batches and amendments, and its settings.

    \b
    Example:
      datarax-ray checkpoint show run/checkpoints
    """


@command(checkpoint, "checkpoint:fits", error_status=2)
def check_state(target: PipelineArgument, directory: StateArgument) -> None:
    """Check whether a pipeline can go on from a saved state, and print every setting that differs.

    Exits with 0 if it can, 1 if not, 2 if there is no such pipeline or state.

    \b
    Example:
      datarax-ray checkpoint fits train.py:make_pipeline run/checkpoints
    """
