"""The commands as people type them, a module for each group; here is what several commands share."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from datarax_ray.cli.screen import Screen, reporting_errors

PATHS = "Files, globs (quoted), directories or URLs of one format, hf:NAME, or imagefolder:DIR."
IMPORTED = 'The file is imported, so code that trains belongs under `if __name__ == "__main__":`.'
SOURCE = "a source, a Pipeline, or a function that returns one: train.py:make_source or package.module:make_source."
_TARGET = "A Pipeline, or a function that returns one: train.py:make_pipeline or package.module:make_pipeline."
_WRITERS = (
    "Ray actors, each of which writes one file at a time; 0 writes in this process, without Ray. Default: one per CPU "
    "of the cluster but one."
)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


def number(help: str, least: int = 1) -> Any:
    return typer.Option(min=least, metavar="N", help=help)


def parsed(parse: Callable[[str], Any], metavar: str, help: str) -> Any:
    """An option whose text `parse` turns into a value; people see the text of its ValueError."""

    def convert(text: Any) -> Any:
        try:
            return parse(str(text))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return typer.Option(metavar=metavar, help=help, parser=convert)


def decoders(help: str) -> Any:
    return parsed(_transforms, "DECODER", help)


def _transforms(decoder: str) -> tuple[Any, ...]:
    from datarax_ray.cli.arguments import parse_decoder  # in here: it imports NumPy, and help must come at once

    return parse_decoder(decoder)


def number_or_auto(text: str) -> int | None:
    """N of at least 1; None for auto. Raises: BadParameter for another text."""
    if text != "auto" and not (text.isdecimal() and int(text) > 0):
        raise typer.BadParameter(f"{text!r} is no number of at least 1, nor auto")
    return None if text == "auto" else int(text)


PipelineArgument = Annotated[str, argument("TARGET", f"{_TARGET} {IMPORTED}")]
DestinationArgument = Annotated[Path, argument("DST", "An empty or new folder that all hosts see.")]
SplitOption = Annotated[str | None, typer.Option(metavar="SPLIT", help="Split of hf:NAME. Default: train.")]
SeedOption = Annotated[int, typer.Option(metavar="N", help="Seed of the order and of random transforms, 32 bits.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier command wrote to DST.")]
WritersOption = Annotated[int | None, number(_WRITERS, 0)]
_JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def command(
    app: typer.Typer,
    runs: str | None = None,
    *,
    name: str | None = None,
    short: str | None = None,
    error_status: int = 1,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a command of `app`: its arguments and help are the function's, with the option --json added.

    runs: MODULE:FUNCTION in datarax_ray.cli, imported when the command runs; None for the declared function itself. It
        gets the arguments by name, and the Screen as `screen`. Its result is the exit status, None for 0.
    name: of the command; by default the name of the function that runs.
    error_status: the exit status after an error that becomes a message.
    """

    def declare(declared: Callable[..., Any]) -> Callable[..., Any]:
        module, _, function = (runs or "").partition(":")
        parameters = inspect.signature(declared, eval_str=True).parameters.values()
        as_json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_JsonOption)

        def run(*, as_json: bool, **arguments: Any) -> None:
            with reporting_errors(Screen(as_json), error_status) as screen:
                found = getattr(importlib.import_module(f"datarax_ray.cli.{module}"), function) if runs else declared
                status = found(**arguments, screen=screen)
            raise typer.Exit(status or 0)

        run.__doc__ = declared.__doc__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*(each for each in parameters if each.name != "screen"), as_json]
        )
        app.command(name or function or declared.__name__, short_help=short)(run)
        return declared

    return declare
