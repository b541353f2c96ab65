"""Commands that say what runs saw: locate, replay and diff."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datarax_ray.cli.commands.options import JsonOption, PipelineArgument, steps_of
from datarax_ray.cli.screen import Screen, reporting_errors

app = typer.Typer()

CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Count batches from the state saved here. Default: from the beginning of the stream.",
        show_default=False,
    ),
]


AmendedRunOption = Annotated[
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
    target: PipelineArgument,
    step: Annotated[int, typer.Option(min=0, metavar="N", help="The batch, counted from 0.")],
    row: Annotated[
        int | None, typer.Option(min=0, metavar="R", help="One row of it alone.", show_default=False)
    ] = None,
    checkpoint: CheckpointOption = None,
    run: AmendedRunOption = None,
    as_json: JsonOption = False,
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
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.replay import locate

        locate(target, step, screen, row=row, checkpoint=checkpoint, run=run)


@app.command(short_help="Write batches that a model saw once more.")
def replay(
    target: PipelineArgument,
    steps: Annotated[str, typer.Option(metavar="A:B", help="The batches from A up to B, counted from 0.")],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help=".npz, .parquet, or .png for a sheet of the pictures in them.", show_default=False
        ),
    ],
    checkpoint: CheckpointOption = None,
    run: AmendedRunOption = None,
    as_json: JsonOption = False,
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
    first, stop = steps_of(steps)
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.replay import replay

        replay(target, first, stop, output, screen, checkpoint=checkpoint, run=run)


RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A folder of checkpoints, or FILE.py:NAME of a pipeline.", show_default=False),
]


@app.command("diff", short_help="Say whether two runs saw the same data, or where they differ.")
def diff_runs(
    first: RunArgument,
    second: RunArgument,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Of two pipelines, these batches alone.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
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
    with reporting_errors(Screen(as_json), status=2) as screen:
        from datarax_ray.cli.diff import diff

        status = diff(first, second, None if steps is None else steps_of(steps), screen)
    raise typer.Exit(status)
