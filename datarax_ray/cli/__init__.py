"""The `datarax-ray` command. Importing this loads nothing: reader actors import it too, on their way to the digits."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of this process; ends with SystemExit."""
    from datarax_ray.cli.app import app  # in here for the reason above

    app(prog_name="datarax-ray")
