"""Options and arguments that several commands have, and how their text is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
SplitOption = Annotated[
    str | None, typer.Option(metavar="SPLIT", help="Of hf:NAME; train by default.", show_default=False)
]
DestinationArgument = Annotated[
    Path, typer.Argument(metavar="DST", help="A folder, empty or new, that all hosts see.", show_default=False)
]
SeedOption = Annotated[int, typer.Option(metavar="N", help="Of the order and of random transforms; 32 bits.")]
PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="train.py:make_pipeline or package.module:make_pipeline: a Pipeline, or a function that returns one. The "
        'file is imported: what it runs belongs under `if __name__ == "__main__":`.',
        show_default=False,
    ),
]


def transforms_of(decoder: str) -> tuple[Any, ...]:
    from datarax_ray.cli.decoder_option import parse_decoder

    try:
        return parse_decoder(decoder)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--decoder") from error


def number_or_auto(text: str, option: str) -> int | None:
    """N of at least 1; None for auto."""
    if text != "auto" and not (text.isdecimal() and int(text) > 0):
        raise typer.BadParameter(f"{text!r} is no number of at least 1, nor auto", param_hint=option)
    return None if text == "auto" else int(text)


def steps_of(steps: str) -> tuple[int, int]:
    """The batches [first, stop) of A:B."""
    first, colon, stop = steps.partition(":")
    if not (colon and first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
        raise typer.BadParameter(f"{steps!r} is no A:B with A below B", param_hint="--steps")
    return int(first), int(stop)
