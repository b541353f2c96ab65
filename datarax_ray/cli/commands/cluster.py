"""Commands on what runs this on a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datarax_ray.cli.commands.options import JsonOption
from datarax_ray.cli.screen import Screen, reporting_errors

app = typer.Typer(name="cluster", help="What runs this on a real cluster.", no_args_is_help=True)


@app.command()
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to write them to; made if missing.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a training job and what starts, watches and grows its cluster.

    That is: the job with its submit script, manifests for KubeRay, an autoscaler's YAML, a Dockerfile, a SLURM script,
    a Grafana dashboard, and a runbook. They are yours to change. Begin with README.md there.

    \b
    Example:
      datarax-ray cluster init my-cluster
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.cluster import init

        names = init(directory, force)
        screen.answer(
            {"directory": str(directory), "files": list(map(str, names))},
            [f"wrote {len(names)} files to {directory}; begin with {directory / 'README.md'}"],
        )
