"""Commands on clusters: the files that run one, and the reader actors that run there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

import datarax_ray
from datarax_ray.cli.commands import PATHS, argument, command, number_or_auto
from datarax_ray.cli.screen import Screen

_SOURCE = "source.py"  # of the job
cluster = typer.Typer(name="cluster", help="Files for running on a real cluster.", no_args_is_help=True)
pool = typer.Typer(name="pool", help="The reader actors of running jobs: list, resize.", no_args_is_help=True)


@command(cluster)
def init(
    directory: Annotated[Path, argument("DIR", "Folder to write to; created if missing.")],
    screen: Screen,
    data: Annotated[str | None, typer.Argument(metavar="[DATA]", help=f"Your data, for source.py. {PATHS}")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a training job, and the files that start, watch and grow its cluster.

    With DATA, source.py of the job reads this data: images with labels, tokens, or text. For other data the command
    says what to write into source.py.

    The folder gets the job with its submit script, manifests for KubeRay, an autoscaler's YAML, a Dockerfile, a SLURM
    script, a Grafana dashboard, and a runbook. Change the files as you like. Begin with README.md in the folder.

    \b
    Examples:
      datarax-ray cluster init my-cluster
      datarax-ray cluster init flowers imagefolder:photos
    """
    package = Path(datarax_ray.__file__).parent
    installed = package / "cluster"
    source = installed if installed.is_dir() else package.parent / "cluster"  # of a checkout
    names = sorted(
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    if not force and (there := [str(name) for name in names if (directory / name).exists()]):
        raise FileExistsError(
            f"{directory} has {', '.join(there)} already, and changes there would be lost; give another folder, or "
            "--force to overwrite them"
        )
    text: str = ""
    facts: dict[str, Any] = {}
    if data is not None:
        from datarax_ray.cli.job_source import source_for  # in here: it imports the sources, and help must come at once

        text, facts = source_for(data, (source / _SOURCE).read_text())
    for name in names:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, target)  # with the mode: scripts stay executable
    if text:
        (directory / _SOURCE).write_text(text)
    screen.answer(
        {"directory": str(directory), "files": list(map(str, names))} | facts,
        [
            *(f"{name}: {fact}" for name, fact in facts.items() if fact),
            f"wrote {len(names)} files to {directory}; begin with {directory / ('README.md' if not text else _SOURCE)}",
        ],
    )


PoolArgument = Annotated[str, argument("NAME", "NAME, or NAME/IDENTITY, as `pool list` shows it.")]
AddressOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The cluster's head. Default: RAY_ADDRESS, else the Ray of this host."),
]


@command(pool, "pool:list_pools", name="list")
def list_pools(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only the pools of this name.")] = None,
    address: AddressOption = None,
) -> None:
    """List the pools of reader actors, each with the jobs that read with it, the hosts of its actors, and its losses.

    A RaySource has a pool of its own, named after its Ray job; sources with the same name= share one.

    \b
    Examples:
      datarax-ray pool list
      datarax-ray pool list train --json --address 10.0.0.1:6379
    """


@command(pool, "pool:resize")
def resize(
    name: PoolArgument,
    num_actors: Annotated[
        str,
        typer.Argument(
            metavar="N|auto",
            parser=number_or_auto,
            help="Number of actors; auto: the number that the job's program asks for.",
        ),
    ],
    address: AddressOption = None,
    wait_s: Annotated[float, typer.Option(min=0, metavar="S", help="Seconds to wait for the job.")] = 30.0,
) -> None:
    """Resize the pool of a running job. Its batches stay the same.

    The size holds until the next resize; `auto` returns the decision to the job's program (num_actors=). Exits with 1
    if there is no such pool, or if the job has not answered in time; the job then resizes as soon as it can.

    \b
    Examples:
      datarax-ray pool resize train 64
      datarax-ray pool resize train auto
    """
