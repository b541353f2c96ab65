"""Where the text of a module is, found as by an import, without importing anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

from datarax_ray.read.identity.users_code import asked


def file_of(name: str) -> str | None:
    """The file with the text of the module of this name; None where there is none, or it is no text.

    Imports none of the packages that it is in, unlike importlib.util.find_spec.
    """
    file: str | None = None
    path: Sequence[str] | None = None  # of the part of the name so far
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        part = ".".join(parts[:count])
        if (module := sys.modules.get(part)) is not None:
            held = asked(module, "__dict__") or {}
            file, path = held.get("__file__"), held.get("__path__")
        elif not parts[count - 1] or (count > 1 and path is None):
            return None
        elif (spec := _spec(part, path)) is not None:
            file, path = spec.origin, spec.submodule_search_locations
        else:  # within packages that are not imported a folder without __init__.py has no spec
            folders = [os.path.join(each, parts[count - 1]) for each in path or ()]
            file, path = None, [each for each in folders if os.path.isdir(each)] or None
    return file if isinstance(file, str) and file.endswith(".py") else None


def is_package(file: str) -> bool:
    return os.path.basename(file) == "__init__.py"


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    try:
        finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
        return next((spec for find in finders if (spec := find(name, path)) is not None), None)
    except Exception:  # of a finder's own; a namespace within one that is not imported raises KeyError (Python 3.11)
        return None
