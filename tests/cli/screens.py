"""Screens whose text a test looks at."""

from __future__ import annotations

import io

from rich.console import Console

from datarax_ray.cli.screen import Screen


def screen(as_json: bool = False, width: int = 300) -> Screen:
    """One that is as wide, and prints to memory."""
    out, err = (Console(file=io.StringIO(), width=width) for _ in range(2))
    return Screen(as_json, out, err)


def answer(of: Screen) -> str:
    """What it has printed but progress and errors."""
    assert isinstance(of.out.file, io.StringIO)
    return of.out.file.getvalue()


def errors(of: Screen) -> str:
    """What it has printed of progress and errors."""
    assert isinstance(of.err.file, io.StringIO)
    return of.err.file.getvalue()
