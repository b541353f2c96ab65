"""What an argument must be where Python would take something else for it. Each answers the argument in a plain type."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

# Arguments of torch's and Grain's loaders, and of other places here, with what is said in their stead.
_ACTORS = "Ray actors do that here: RaySource(source, num_actors=4), or load(path, num_actors=4)."
_AHEAD = "Pipeline(prefetch=2) has so many batches on the device ahead of use."
_BATCHES = "Pipeline(source=..., batch_size=..., drop_remainder=True) makes the batches, the short last one left out."
_DATA = (
    "Pipeline(source=...) takes a source: RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), data) makes one "
    "of a dataset."
)
_ORDER = "The source has the order: shuffle=True, seed=... and num_epochs=... are of its config, and of load."
_SAMPLED = (
    f"{_ORDER} MixtureSource(sources, weights=[...]) draws by weight: of a source for each class, balanced classes."
)
_TRANSFORMS = (
    "The source has the transforms: RandomAccessSource(config, data, transforms=[...]), load(path, transforms=[...])."
)
_STACKED = "Elements are dicts, and are stacked by field; make them alike in a transform of the source, as by PadTo."
_MESH = "Pipeline(sharding=NamedSharding(mesh, PartitionSpec('data'))) puts batches on a mesh."
_NO_BUFFER = "The shuffle is of all records and has no buffer: shuffle=True."
_ELSEWHERE = {
    **dict.fromkeys(("num_actors", "num_workers", "worker_count", "num_parallel_calls"), _ACTORS),
    **dict.fromkeys(("pin_memory", "prefetch_factor", "prefetch_buffer_size", "worker_buffer_size"), _AHEAD),
    **dict.fromkeys(("batch_size", "drop_last", "drop_remainder"), _BATCHES),
    **dict.fromkeys(("dataset", "data_source"), _DATA),
    **dict.fromkeys(("shuffle", "seed", "num_epochs", "generator"), _ORDER),
    "sampler": _SAMPLED,
    **dict.fromkeys(("sep", "separator"), "CSVSource(CSVSourceConfig(delimiter=';', num_epochs=1), paths) takes it."),
    **dict.fromkeys(("transform", "transforms", "transformations", "operations", "map_fn"), _TRANSFORMS),
    **dict.fromkeys(("collate_fn", "padded_shapes"), _STACKED),
    **dict.fromkeys(("mesh", "devices"), _MESH),
    **dict.fromkeys(("shuffle_buffer", "shuffle_buffer_size", "buffer_size", "local_shuffle_buffer_size"), _NO_BUFFER),
    "worker_init_fn": f"{_ACTORS} What one needs a transform makes when it is first called there.",
}
# Methods of torch's, TensorFlow's, Grain's, Ray's and Hugging Face's datasets.
_METHODS = {
    **dict.fromkeys(("map", "filter", "flat_map", "map_batches", "random_map", "apply"), _TRANSFORMS),
    **dict.fromkeys(("batch", "iter_batches", "iter_torch_batches", "padded_batch"), _BATCHES),
    **dict.fromkeys(("shuffle", "repeat", "set_epoch", "random_shuffle"), _ORDER),
    **dict.fromkeys(("take", "skip", "head", "limit"), "itertools.islice(it, 10) gives the first ten."),
    **dict.fromkeys(("state_dict", "load_state_dict"), "get_state() and set_state(state) are the names here."),
    **dict.fromkeys(("with_sharding", "shard"), _MESH),
    **dict.fromkeys(
        ("to_iter_dataset", "as_numpy_iterator", "iter_rows"), "Iterate over it itself: for element in it."
    ),
    **dict.fromkeys(("prefetch_to_device", "mp_prefetch"), _AHEAD),
}


def no_attribute(owner: Any, name: str) -> AttributeError:
    """The error for an attribute that there is not, with what is here in its stead where it is a method of others."""
    hint = f". {_METHODS[name]}" if name in _METHODS else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner)


def whole(name: str, value: Any, remedy: str = "", *, least: int | None = None) -> int:
    """The number as a plain int: NumPy's are not JSON, and a state holds them.

    remedy: the end of the sentence. Raises: TypeError for anything else; ValueError for less than `least`.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)  # True is a slip for another argument
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"{name} is a whole number, got {value!r}{remedy}")
    if least is not None and found < least:
        raise ValueError(f"{name} must be at least {least}, got {found}")
    return found


def positive(name: str, value: Any) -> None:
    """Raise TypeError for what is no number, as text from a file of settings; ValueError unless it is more than 0.

    >>> positive("timeout_s", 0.5)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} is a number, got {value!r}")
    if not value > 0:
        raise ValueError(f"{name} must be more than 0, got {value}")


def names(name: str, value: Any) -> tuple[str, ...]:
    """The names as a tuple. Raises: TypeError for what is no list of them, as one name alone: its letters are no names.

    >>> names("columns", ["a", "b"])
    ('a', 'b')
    """
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        value = tuple(value)
        if all(isinstance(item, str) for item in value):
            return value
        value = list(value)
    remedy = f"; write [{value!r}]" if isinstance(value, str) else ""
    raise TypeError(f"{name} is a list of names, got {value!r}{remedy}")


def ordered(name: str, value: Any) -> None:
    """Raise TypeError for a set, where the order counts: each process hashes text anew, and would take another order.

    >>> ordered("weights", [0.7, 0.3])
    """
    if isinstance(value, set | frozenset):
        raise TypeError(f"{name} is a {type(value).__name__}, which has no order; give a list")


def mapping(name: str, value: Any, key: str) -> None:
    """Raise TypeError unless this is a dict by names. key: what the names are of."""
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name} is a dict by {key}, got {value!r}")


def nearest(unknown: Iterable[str], known: Iterable[str]) -> str:
    """A question for who mistyped names, with a space before it; "" where nothing is near.

    >>> nearest(["lable"], ["image", "label"])
    " Did you mean 'label'?"
    """
    known = list(known)
    found = [match for name in unknown for match in difflib.get_close_matches(name, known, 1)]
    return f" Did you mean {' and '.join(map(repr, found))}?" if found else ""


def flag(name: str, value: Any) -> bool:
    """The claim as a plain bool. Raises: TypeError for anything else: the text "false", of a file of settings, is true
    to Python, and 1000 is tf.data's buffer.

    >>> flag("shuffle", np.bool_(False))
    False
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} is True or False, got {value!r}")


def check_names(
    called: Callable[..., Any],
    given: Iterable[str],
    num_unnamed: int = 0,
    chosen: Callable[[], tuple[str, str]] = lambda: ("", ""),
) -> None:
    """Raise TypeError unless this takes arguments of these names, with the one that may be meant, or all that it takes;
    or so many without a name, with the names that it wants.

    chosen: the name of what a function that makes several sources would call, and the data that it would give, as one
    writes it; the name is "" where nothing tells.

    Python says so much of functions from 3.13 on, and of classes with a metaclass, as NNX's, of none.
    """
    if not given and not num_unnamed:
        return
    parameters = inspect.signature(called).parameters.values()
    kinds = [each.kind for each in parameters]
    most = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    if num_unnamed > most and inspect.Parameter.VAR_POSITIONAL not in kinds:
        needed = [each.name for each in parameters if each.default is each.empty]
        named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        others = [name for name in named if name not in ("rngs", "name", *needed)][: max(0, num_unnamed - len(needed))]
        wanted = ", ".join(f"{name}=..." for name in (*needed, *others))
        raise TypeError(
            f"{called.__name__} takes {most or 'no'} argument{'' if most == 1 else 's'} without a name, got "
            f"{num_unnamed}; write "
            f"{called.__name__}({wanted or '...'})"
        )
    if any(each.kind == each.VAR_KEYWORD for each in parameters):  # whoever gets them knows what they may be
        return
    known = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    if unknown := [name for name in given if name not in known]:
        near = [name for name in known if not name.startswith("exclude_") or any("excl" in each for each in unknown)]
        remedy = _told(unknown, getattr(called, "instead_of", {})) or _taken_beside(called, unknown, chosen)
        remedy = remedy or _told(unknown, _ELSEWHERE) or nearest(unknown, near)
        remedy = remedy or f" It takes {', '.join(known) or 'none'}"
        raise TypeError(f"{called.__name__} takes no argument {' and '.join(map(repr, unknown))}.{remedy}")


def lacks_arguments(called: Callable[..., Any], num_given: int) -> bool:
    """Whether this needs more arguments than so many without a name; False where nobody knows.

    >>> lacks_arguments(lambda carry, batch: carry, 1), lacks_arguments(lambda batch: batch, 1)
    (True, False)
    """
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.default is each.empty and each.kind in kinds for each in parameters) > num_given


def _told(names: Iterable[str], texts: Mapping[str, str]) -> str:
    """What is said of these names, each thing once, with a space before it; "" for nothing."""
    return "".join(f" {text}" for text in dict.fromkeys(texts[name] for name in names if name in texts))


def _taken_beside(called: Callable[..., Any], names: Sequence[str], chosen: Callable[[], tuple[str, str]]) -> str:
    """Of a source, which of these its config takes, and the other way round, with a space before it; "" for none. Of a
    function that makes sources, the chosen one's call if it takes them all, else which do, with the first one's call.
    Of what makes sources there are classes, and functions whose names begin with from_.
    """
    scope = vars(sys.modules[called.__module__])
    if not inspect.isclass(called):
        takers = {}
        for config in [value for name, value in scope.items() if name.endswith("SourceConfig")]:
            about = config.__name__.removesuffix("Config")
            source = scope[about] if about in scope else scope[f"{about}Module"]
            by_config, by_source = (
                [name for name in names if name in inspect.signature(each).parameters] for each in (config, source)
            )
            if {*by_config, *by_source} == {*names}:
                given = ", ".join([*(f"{name}=..." for name in by_config), "num_epochs=1"])  # theirs is endless
                more = "".join(f", {name}=..." for name in by_source if name not in by_config)
                takers[source.__name__] = f"{source.__name__}({config.__name__}({given}), {{}}{more})"
        for maker in [value for name, value in scope.items() if name.startswith("from_")]:
            if {*names} <= {*inspect.signature(maker).parameters}:
                given = "".join(f", {name}=..." for name in names)
                takers[maker.__name__] = f"{maker.__name__}({{}}{given}, num_epochs=1)"
        if not takers:
            return ""
        name, data = chosen()
        if name in takers:
            return f" {takers[name].format(data)} takes it"
        call, *others = takers.values()
        also = f", and so {'do' if len(others) > 1 else 'does'} {', '.join([*takers][1:])}"
        also += f"; print({called.__name__}(...)) says which it is here"
        return f" {call.format('...')} takes it{also * bool(others)}"
    about = called.__name__.removesuffix("Config").removesuffix("Module")
    for other in (scope.get(about + suffix) for suffix in ("Config", "", "Module")):
        if inspect.isclass(other) and other is not called:
            taken = [name for name in names if name in inspect.signature(other).parameters]
            if taken:
                return f" {other.__name__} takes {'it' if len(taken) == 1 else ' and '.join(map(repr, taken))}"
    return ""


class NamedArguments:
    """The base of classes that people make: a misspelt argument is answered with the name that may be meant.

    A plain base: NNX modules have a metaclass.

    >>> class Crop(NamedArguments):
    ...     def __init__(self, size, padding=0): ...
    >>> Crop(8, paddin=2)
    Traceback (most recent call last):
    TypeError: Crop takes no argument 'paddin'. Did you mean 'padding'?
    """

    def __new__(cls, *args: Any, **named: Any) -> Self:
        check_names(cls, named, len(args))
        return super().__new__(cls)


def named_arguments(
    function: Callable[_P, _Result], chosen: Callable[..., tuple[str, str]] = lambda *args, **named: ("", "")
) -> Callable[_P, _Result]:
    """The same of a function that people call. chosen: as of check_names, by what it was called with."""

    @functools.wraps(function)
    def call(*args: _P.args, **named: _P.kwargs) -> _Result:
        check_names(function, named, chosen=lambda: chosen(*args, **named))
        return function(*args, **named)

    return call
