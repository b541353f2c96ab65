"""The `datarax-ray` command. Importing this loads nothing: reader actors import it too, on their way to the digits."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of this process; ends with SystemExit."""
    if not sys.stdout.isatty():
        os.environ.setdefault("COLUMNS", "200")  # of a pipe or a log: else 80, which cuts the names of fields
    from datarax_ray.cli.app import app  # in here for the reason above

    app(prog_name="datarax-ray")
