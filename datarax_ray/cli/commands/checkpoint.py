"""Commands on the saved states of pipelines."""

from __future__ import annotations

from typing import Annotated

import typer

from datarax_ray.cli.commands.options import JsonOption, PipelineArgument
from datarax_ray.cli.screen import Screen, reporting_errors

app = typer.Typer(
    name="checkpoint", help="What saved states of pipelines say, and whether they fit.", no_args_is_help=True
)

StateArgument = Annotated[
    str,
    typer.Argument(metavar="DIR", help="Of a run, whose latest step counts, or of a step.", show_default=False),
]


@app.command("show")
def show_checkpoint(directory: StateArgument, as_json: JsonOption = False) -> None:
    """Show where the stream goes on, and which stream it is.

    \b
    Example:
      datarax-ray checkpoint show run/checkpoints
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.checkpoint import show

        show(directory, screen)


@app.command()
def diff(
    first: StateArgument,
    second: StateArgument,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two states. Exits with 1 where anything does, 2 where there is no such state.

    \b
    Example:
      datarax-ray checkpoint diff run1/checkpoints run2/checkpoints
    """
    with reporting_errors(Screen(as_json), status=2) as screen:
        from datarax_ray.cli.checkpoint import diff

        status = diff(first, second, screen)
    raise typer.Exit(status)


@app.command()
def fits(target: PipelineArgument, directory: StateArgument, as_json: JsonOption = False) -> None:
    """Say whether a pipeline can go on from a state, or every setting that keeps it from that.

    Exits with 0 where it can, 1 where not, 2 where there is no such pipeline or state.

    \b
    Example:
      datarax-ray checkpoint fits train.py:make_pipeline run/checkpoints
    """
    with reporting_errors(Screen(as_json), status=2) as screen:
        from datarax_ray.cli.checkpoint import fits

        status = fits(target, directory, screen)
    raise typer.Exit(status)
