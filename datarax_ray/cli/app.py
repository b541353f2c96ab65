"""The `datarax-ray` command. A command imports its code when it runs, so help comes at once."""

from __future__ import annotations

import os
from typing import Annotated

import typer

import datarax_ray
from datarax_ray.cli.commands import clusters, datasets, measuring, runs

app = typer.Typer(
    help="One exact stream of training batches from Ray actors to JAX.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich's tables cut the names of options on a narrow screen
    pretty_exceptions_enable=False,  # reporting_errors shows users' errors; any other needs its traceback
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (measuring.app, datasets.app, runs.app, runs.checkpoint, clusters.cluster, clusters.pool):
    app.add_typer(group)  # in the order of help


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"datarax-ray {datarax_ray.__version__}")
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
