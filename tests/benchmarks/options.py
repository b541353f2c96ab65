"""The options of a benchmark, and its figures as words. Imports nothing that a peer's environment may lack."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

CACHE_DIR = Path(tempfile.gettempdir()) / "datarax_ray-benchmarks"  # of datasets that are written once


def parsed(doc: str | None, arguments: Sequence[str] | None, **defaults: Any) -> argparse.Namespace:
    """The options of a program with this docstring, which --help shows.

    defaults: by name, of --two-words as two_words: a value, whose type it has; False for a flag; a list for values
    between commas; a type for an option that is None where it is not given.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = "--" + name.replace("_", "-")
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(option, type=default)
        elif isinstance(default, list):
            parts = _parts_of(type(default[0]))
            parser.add_argument(option, type=parts, default=default, help=f"default: {','.join(map(str, default))}")
        else:
            parser.add_argument(option, type=type(default), default=default, help=f"default: {default}")
    return parser.parse_args(arguments)


def _parts_of(kind: type) -> Any:
    return lambda text: [kind(part) for part in text.split(",")]


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """The median, with the least and the largest."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
