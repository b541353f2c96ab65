"""Commands on the reader actors of jobs that run."""

from __future__ import annotations

from typing import Annotated

import typer

from datarax_ray.cli.commands.options import JsonOption, number_or_auto
from datarax_ray.cli.screen import Screen, reporting_errors

app = typer.Typer(name="pool", help="The reader actors of jobs that run: see, resize, stop them.", no_args_is_help=True)

PoolArgument = Annotated[str, typer.Argument(metavar="NAME", help="As `pool list` shows it.", show_default=False)]
AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Of the cluster's head. Default: RAY_ADDRESS, else the Ray of this host.",
        show_default=False,
    ),
]


@app.command("list")
def list_pools(address: AddressOption = None, as_json: JsonOption = False) -> None:
    """List the pools of reader actors that jobs of this cluster read with.

    A RaySource has a pool of its own, named after its Ray job, or with name= shares the one of that name. Those that
    outlive their jobs (linger_s=) are listed as well.

    \b
    Examples:
      datarax-ray pool list
      datarax-ray pool list --json --address 10.0.0.1:6379
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.pool import list_pools

        list_pools(address, screen)


@app.command()
def stop(
    name: PoolArgument,
    force: Annotated[bool, typer.Option("--force", help="Though drivers seem to read with it.")] = False,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """End the actors of a pool that outlives its jobs (RaySource's linger_s=).

    Exits with 1 where no such pool is there, or a job reads with it: it would start the actors again.

    \b
    Example:
      datarax-ray pool stop sweep
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.pool import stop

        stop(name, address, screen, force=force)


@app.command()
def show(name: PoolArgument, address: AddressOption = None, as_json: JsonOption = False) -> None:
    """Show one pool: who reads with it, on which hosts its actors run, and what befell it.

    \b
    Examples:
      datarax-ray pool show train
      datarax-ray pool show 02000000-3fa9 --json
    """
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.pool import show

        show(name, address, screen)


@app.command()
def resize(
    name: PoolArgument,
    num_actors: Annotated[
        str, typer.Argument(metavar="N|auto", help="How many, or as many as its program says.", show_default=False)
    ],
    address: AddressOption = None,
    wait_s: Annotated[float, typer.Option(min=0, metavar="S", help="For the job to take it up.")] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Have a job that runs read with N actors from now on. Its batches stay the same.

    Holds until it is asked for another number, or `auto`: then its program decides again (num_actors=). Exits with 1
    where no such pool is there, or the job has not taken it up in time; it does so as soon as it can.

    \b
    Examples:
      datarax-ray pool resize train 64
      datarax-ray pool resize train auto
    """
    number = number_or_auto(num_actors, "N|auto")
    with reporting_errors(Screen(as_json)) as screen:
        from datarax_ray.cli.pool import resize

        resize(name, number, address, screen, wait_s=wait_s)
