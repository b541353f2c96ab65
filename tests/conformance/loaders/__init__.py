"""The loaders: one file for each, which knows how its users set it up.

A loader is a class of this shape; `--loader FILE.py:NAME` takes one that is not here:

    write(directory, num_records)   static: the records 0, 1, 2, ... as it reads them, one number each
    Loader(job)                     a Job says what to deliver; `decode` of loaders.work is the transform of each record
    __iter__()                      the numbers of this trainer's rows, a list for each batch
    state()                         where it goes on, behind the batch that was taken last, as bytes; None: has none
    restore(state)                  before it is iterated
    readers()                       the ids of processes that read for it, to be killed and frozen; [] for none

What it raises in __init__ and restore refuses the case, and is printed.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

# By name: the module here, what it imports, and what has to be installed for that.
LOADERS = {
    "ours": ("ours", "datarax_ray", "datarax-ray"),
    "grain": ("grain_data_loader", "grain", "grain"),
    "grain_elastic": ("grain_elastic", "grain", "grain"),
    "ray_data": ("ray_data", "ray", "ray[data]"),
    "mosaic": ("mosaic", "streaming", "mosaicml-streaming"),
    "litdata": ("lit", "litdata", "litdata"),
}


def loader_of(name: str) -> Any:
    """The class of this name, or FILE.py:NAME. Raises: ValueError for none, ImportError for what is not installed."""
    if ".py:" in name:
        path, _, attribute = name.rpartition(":")
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, attribute)
    if name not in LOADERS:
        raise ValueError(f"--loader is one of {', '.join(LOADERS)}, or FILE.py:NAME of another; got {name!r}")
    module_name, package, distribution = LOADERS[name]
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{package} is not installed: pip install {distribution}")
    return importlib.import_module(f"tests.conformance.loaders.{module_name}").Loader
