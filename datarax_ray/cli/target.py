"""A pipeline of the user's, by the name that a command is given: FILE.py:NAME or module:NAME."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datarax_ray.pipeline import Pipeline


def pipeline_of(target: str) -> Pipeline:
    """The Pipeline of this name, or what the function of this name returns; see _named.

    Raises: ValueError for what is none, with the remedy; what the file itself raises, with a note.
    """
    from datarax_ray.pipeline import Pipeline

    found = _named(target, "pipeline")
    if not isinstance(found, Pipeline):
        raise ValueError(f"{target} is a {type(found).__name__}; it must be a Pipeline, or a function that returns one")
    return found


def source_of(target: str) -> Any:
    """The source of this name, or that of a Pipeline, or what the function of this name returns; see _named.

    Raises: as pipeline_of.
    """
    found = _named(target, "source")
    found = found if hasattr(found, "describe") else getattr(found, "source", found)
    if not hasattr(found, "describe"):
        raise ValueError(
            f"{target} is a {type(found).__name__}; it must be a source or a Pipeline, or a function that returns one"
        )
    return found


def _named(target: str, kind: str) -> Any:
    """What has this name, or what the function of this name returns, called with nothing.

    A file is read as Python reads a script, but for what stands under `if __name__ == "__main__":`, which is not run.
    What it defines is of `__main__`: states that the script saved are of the same code, and actors need no such file.

    Raises: ValueError where there is no such name; what the file itself raises, with a note.
    """
    where, _, name = target.rpartition(":")
    if not names_a_pipeline(target):
        raise ValueError(f"{target!r} names no {kind}; write train.py:make_{kind}, or package.module:make_{kind}")
    try:
        module = _file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:
        error.add_note(f"while {where} was imported to find {name}")
        raise
    found = getattr(module, name, None)
    if found is None:
        have = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise ValueError(f"{where} has no {name}; it has {have or 'no functions'}")
    is_one = not inspect.isclass(found) and (hasattr(found, "describe") or hasattr(found, "source"))
    return found() if callable(found) and not is_one else found


def names_a_pipeline(target: str) -> bool:
    """Whether it is written as one, and is no folder."""
    where, _, name = target.rpartition(":")
    return bool(where) and name.isidentifier() and "://" not in target and not Path(target).is_dir()


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    sys.path.insert(0, str(path.parent.absolute()))  # as Python does for a script
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    had = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # while it runs: a dataclass looks there for what its annotations name
    try:
        spec.loader.exec_module(module)
    finally:
        if had is None:
            sys.modules.pop(path.stem, None)
        else:
            sys.modules[path.stem] = had
    for value in vars(module).values():
        if getattr(value, "__module__", None) == path.stem and hasattr(value, "__qualname__"):
            for part in [value, *(vars(value).values() if isinstance(value, type) else ())]:
                if getattr(part, "__module__", None) == path.stem:
                    line = vars(part).get("__firstlineno__")
                    part.__module__ = "__main__"
                    if line is not None:
                        part.__firstlineno__ = line  # which Python 3.13 forgets of a class, and with it the source
    module.__name__ = "__main__"  # for what its functions define
    sys.modules["__main__"] = module
    return module
