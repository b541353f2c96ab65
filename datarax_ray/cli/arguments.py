"""Pipelines, sources and decoders, by the text that a command is given for them."""

from __future__ import annotations

import ast
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
from datarax_ray.loading import KINDS, kind_of, load, source_of_files
from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.plain_values import shown
from datarax_ray.read import decode

if TYPE_CHECKING:
    from datarax_ray.pipeline import Pipeline

_DECODERS = [name for name in decode.__all__ if name.startswith("Decode")]


def pipeline_of(target: str) -> Pipeline:
    """The Pipeline of this name, or the result of the function of this name; see _named.

    Raises: ValueError for another object, with the remedy; what the file itself raises, with a note.
    """
    from datarax_ray.pipeline import Pipeline

    found = _named(target, "pipeline")
    if not isinstance(found, Pipeline):
        raise ValueError(f"{target} is a {type(found).__name__}; it must be a Pipeline, or a function that returns one")
    return found


def source_of(target: str) -> Any:
    """The source of this name, that of a Pipeline, or the result of the function of this name; see _named.

    Raises: as pipeline_of.
    """
    found = source_under(_named(target, "source"))
    if not hasattr(found, "describe"):
        raise ValueError(
            f"{target} is a {type(found).__name__}; it must be a source or a Pipeline, or a function that returns one"
        )
    return found


def source_at(paths: list[str], split: str | None, decoder: tuple[Any, ...] | None, **of_tar: Any) -> Any:
    """The source that `load` makes of PATHS, or the source of one TARGET. of_tar: config of tar files.

    Raises: ValueError for a decoder or a split of a TARGET; as load and source_of.
    """
    of: Any = paths if len(paths) > 1 else paths[0]
    if isinstance(of, str) and names_a_pipeline(of):
        if decoder or split:
            raise ValueError(f"{of} has data and transforms of its own; leave out --decoder and --split")
        return source_of(of)
    if of_tar and kind_of(of, split)[0] is None:
        return source_of_files(of, {"num_epochs": 1}, decoder or (), **of_tar)
    return load(of, split=split, transforms=decoder or ())


def names_a_pipeline(target: str) -> bool:
    """Whether a text has the form FILE.py:NAME or module:NAME, or lacks the name alone, and is no data of `load`."""
    where, _, name = target.rpartition(":")
    is_named = bool(where) and name.isidentifier() and where not in KINDS and "://" not in target
    return (is_named or target.endswith(".py")) and not Path(target).is_dir()


def _named(target: str, kind: str) -> Any:
    """The object of this name, or the result of the function of this name, which is called without arguments.

    Raises: ValueError where there is no such name, and where the file ends the program; what the file itself raises,
    with a note.
    """
    where, _, name = target.rpartition(":")
    if not (where and name.isidentifier()):
        raise ValueError(f"{target!r} names no {kind}; write train.py:make_{kind}, or package.module:make_{kind}")
    with _without_arguments(where, name):
        try:
            module = _script(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        except Exception as error:
            error.add_note(f"while {where} was imported to find {name}")
            raise
        if (found := getattr(module, name, None)) is None:
            have = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
            raise ValueError(
                f"{where} has no {name}; it has {', '.join(have) or 'no functions'}.{nearest([name], vars(module))}"
            )
        if not inspect.isroutine(found):
            return found
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise ValueError(
                f"{where}:{name} is called without arguments: {error}; give its arguments defaults, or name a function "
                "that calls it"
            ) from None
        return found()


@contextlib.contextmanager
def _without_arguments(where: str, name: str) -> Iterator[None]:
    """Hide the command's own arguments from the user's code."""
    before, sys.argv = sys.argv, [where]
    try:
        yield
    except SystemExit as end:
        if end.code == signal.SIGTERM:  # see screen.reporting_errors
            raise
        raise ValueError(
            f"{where} ended the program, with {shown(end.code)}, while {name} was made, without arguments on its "
            'command line: code that needs them, or trains, belongs under `if __name__ == "__main__":`'
        ) from end
    finally:
        sys.argv = before


def _script(path: Path) -> ModuleType:
    """Run a file as Python runs a script, except for its code under `if __name__ == "__main__":`.

    Actors get its definitions by value, as they may lack the file.
    """
    from ray import cloudpickle  # in here: the decoders do without Ray

    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    sys.path.insert(0, str(path.parent.absolute()))  # as Python does for a script
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)  # a name that no library has
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks there for the names in its annotations
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


def parse_decoder(text: str) -> tuple[Any, ...]:
    """The transforms for a source: a decoder as Python writes it, with plain arguments; () for "none".

    Raises: ValueError for another text, with examples.

    >>> parse_decoder("DecodeRaw('uint8', (8, 8))")
    (DecodeRaw(dtype='uint8', shape=(8, 8), field='data'),)
    >>> parse_decoder("DecodeImage"), parse_decoder("none")
    ((DecodeImage(shape=None, field='image'),), ())
    """
    if text.strip() == "none":
        return ()
    try:
        found = _value(ast.parse(text.strip(), mode="eval").body)
        if type(found).__name__ not in _DECODERS:
            raise ValueError(f"it is none of {', '.join(_DECODERS)}")
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(
            f"{text!r} names no decoder: {error}; write none, DecodeImage or \"DecodeRaw('uint8', (8, 8))\", say"
        ) from error
    return (found,)


def _value(node: ast.expr) -> Any:
    """The value of plain literals, and of calls of names in read.decode. Nothing else is run."""
    match node:
        case ast.Name(name) if name in decode.__all__:
            return getattr(decode, name)()
        case ast.Call(ast.Name(name), args, keywords) if name in decode.__all__:
            named: dict[Any, Any] = {each.arg: _value(each.value) for each in keywords}
            return getattr(decode, name)(*map(_value, args), **named)
        case ast.Dict(keys, values) if None not in keys:
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Name() | ast.Call():
            raise ValueError(f"{ast.unparse(node)} is none of {', '.join(_DECODERS)}")
    return ast.literal_eval(node)
