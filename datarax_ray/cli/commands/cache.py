"""Commands on what is on a host's disk of remote files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datarax_ray.cli.commands.options import JsonOption
from datarax_ray.cli.screen import Screen, reporting_errors

app = typer.Typer(
    name="cache", help="What is kept on this host's disk of remote files (cache_dir).", no_args_is_help=True
)

CacheArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The cache_dir of a source's config.", show_default=False)
]


@app.command("show")
def show_cache(
    directory: CacheArgument,
    as_json: JsonOption = False,
) -> None:
    """Print which files are kept there, how much of each, and whether a process reads it now.

    \b
    Example:
      datarax-ray cache show /mnt/cache
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.cache import show

        show(directory, screen)


@app.command("clear")
def clear_cache(directory: CacheArgument, as_json: JsonOption = False) -> None:
    """Remove what is kept there, but what a process reads now, and nothing else in the folder.

    \b
    Example:
      datarax-ray cache clear /mnt/cache
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.cache import clear

        clear(directory, screen)
