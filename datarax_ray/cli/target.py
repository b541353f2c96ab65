"""A pipeline of the user's, by the name that a command is given: FILE.py:NAME or module:NAME."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from datarax_ray.feed.source import source_under
from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.fingerprint import shown

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
    found = source_under(_named(target, "source"))
    if not hasattr(found, "describe"):
        raise ValueError(
            f"{target} is a {type(found).__name__}; it must be a source or a Pipeline, or a function that returns one"
        )
    return found


def _named(target: str, kind: str) -> Any:
    """What has this name, or what the function of this name returns, called with nothing.

    A file is read as Python reads a script, but for what stands under `if __name__ == "__main__":`, which is not run.
    What it defines is of `__main__`: states that the script saved are of the same code, and actors need no such file.
    Its command line has no arguments: those of this command are not its own.

    Raises: ValueError where there is no such name, and where the file ends the program; what the file itself raises,
    with a note.
    """
    where, _, name = target.rpartition(":")
    if not names_a_pipeline(target):
        raise ValueError(f"{target!r} names no {kind}; write train.py:make_{kind}, or package.module:make_{kind}")
    with _without_arguments(where, name):
        try:
            module = _file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        except Exception as error:
            error.add_note(f"while {where} was imported to find {name}")
            raise
        return _made(module, where, name)


@contextlib.contextmanager
def _without_arguments(where: str, name: str) -> Iterator[None]:
    """While code of the user's runs that may look at its command line."""
    before, sys.argv = sys.argv, [where]
    try:
        yield
    except SystemExit as end:
        if end.code == signal.SIGTERM:  # see screen.reporting_errors
            raise
        raise ValueError(
            f"{where} ended the program, with {shown(end.code)}, while {name} was made, without arguments on its "
            'command line: what needs these, or trains, belongs under `if __name__ == "__main__":`'
        ) from end
    finally:
        sys.argv = before


def _made(module: ModuleType, where: str, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        have = [key for key, value in vars(module).items() if not key.startswith("_") and _is_of(module, value)]
        raise ValueError(
            f"{where} has no {name}; it has {', '.join(have) or 'no functions'}.{nearest([name], vars(module))}"
        )
    if not callable(found) or _is_one(found):
        return found
    wanted = [each.name for each in inspect.signature(found).parameters.values() if _is_wanted(each)]
    if wanted:
        raise ValueError(
            f"{where}:{name} is called without arguments, and it wants {', '.join(wanted)}; give them defaults, or "
            "name a function that calls it with yours"
        )
    return found()


def _is_one(value: Any) -> bool:
    """Whether it is a source or pipeline, and not what makes one."""
    return not inspect.isclass(value) and (hasattr(value, "describe") or hasattr(value, "source"))


def _is_of(module: ModuleType, value: Any) -> bool:
    """Whether a name of the module may be meant: what it imports is mostly something else."""
    return _is_one(value) or (callable(value) and getattr(value, "__module__", None) == module.__name__)


def _is_wanted(parameter: inspect.Parameter) -> bool:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in variadic


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
