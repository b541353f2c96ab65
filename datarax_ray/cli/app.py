"""The `datarax-ray` command, put together. What commands do is loaded when one runs, so that help comes at once."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from datarax_ray import __version__
from datarax_ray.cli.commands import cache, checkpoint, cluster, datasets, measuring, pool, runs

app = typer.Typer(
    help="One exact stream of training batches from Ray actors to JAX.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich's tables cut the names of options on a narrow screen
    pretty_exceptions_enable=False,  # reporting_errors says what a user can cause; the rest wants its traceback
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (measuring, datasets, runs, checkpoint, cluster, pool, cache):  # in the order of help
    app.add_typer(group.app)


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
