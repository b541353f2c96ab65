"""`datarax-ray cache`: what is kept on a host's disk of files behind URLs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table

from datarax_ray.cli.screen import Screen
from datarax_ray.read.formats.remote import disk_cache


def show(directory: Path, screen: Screen) -> None:
    """Print what a cache has. Raises: FileNotFoundError for what is no cache."""
    kept = disk_cache.kept_in(directory.expanduser())
    table = Table("file", "kept MB", "is read", box=box.SIMPLE)
    for each in kept:
        table.add_row(each.url, f"{each.held_nbytes / 1e6:,.1f}", "yes" if each.is_in_use else "")
    line = f"{len(kept)} files take {sum(each.nbytes for each in kept) / 1e6:,.1f} MB of the disk"
    screen.answer([asdict(each) for each in kept], [table, line] if kept else [line])


def clear(directory: Path, screen: Screen) -> None:
    """Remove what nobody reads. Raises: FileNotFoundError for what is no cache."""
    freed, num_in_use = disk_cache.clear(directory.expanduser())
    stays = f"; {num_in_use} files stay, which are read now" if num_in_use else ""
    screen.answer({"freed_nbytes": freed, "num_in_use": num_in_use}, [f"{freed / 1e6:,.1f} MB are free now{stays}"])
