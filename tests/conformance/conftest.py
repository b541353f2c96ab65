"""Leaves out of doctests what needs a loader that is not installed."""

from importlib.util import find_spec

_NEEDS = {"loaders/lit.py": "litdata", "loaders/mosaic.py": "streaming"}
collect_ignore = [path for path, module in _NEEDS.items() if find_spec(module) is None]
