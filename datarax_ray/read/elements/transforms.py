"""Transforms: how a transform is recognised, and called.

A transform is a plain callable element -> element, or an object with exactly one of `map(element)`,
`random_map(element, rng)`, `map_with_index(position, element)`, `filter(element)`, `flat_map(element) -> elements`
(Grain's transform classes fit as they are), or one of two methods that work on a whole block: `decode(records) ->
columns`, and `map_columns(columns) -> columns`, which returns a row for each row, made of that row alone. After a
flat_map several elements share a position; an ordinal, from 0 at each position, tells them apart.

A transform may write to its argument, keep it, and reuse its result: elements stay as they were returned (see
read.elements.owning). A `map_columns` that writes to its columns costs a second call, with copies.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from datarax_ray.plan.arguments import ordered
from datarax_ray.plan.plain_values import shown
from datarax_ray.read.code_digests import name_of
from datarax_ray.read.elements.owning import UnfitError, own_items
from datarax_ray.read.errors import RecordError

# The callable decides, where the record is read, whether to skip it.
OnError = Literal["raise", "skip"] | Callable[[RecordError], bool]

BOOLS = (bool, np.bool_)
METHODS = {  # with their arguments
    "map": ("element",),
    "random_map": ("element", "rng"),
    "map_with_index": ("position", "element"),
    "filter": ("element",),
    "flat_map": ("element",),
    "decode": ("records",),
    "map_columns": ("columns",),
}


def skips(on_error: OnError, failure: RecordError) -> bool:
    """Whether on_error skips a failure. Raises: an error of the user's function; TypeError for another answer."""
    if not callable(on_error):
        return on_error == "skip"
    answer: Any = on_error(failure)
    if answer is not None and not isinstance(answer, BOOLS):
        raise TypeError(
            f"on_error returned {shown(answer)}; True skips the record, and with False or None it is an error"
        )
    return bool(answer)


@dataclass(frozen=True)
class Step:
    """A recognised transform. kind: its method; "map" for a plain callable. index: its place in the list."""

    kind: str
    call: Callable[..., Any]
    name: str
    index: int


def steps(transforms: Iterable[Any]) -> tuple[Step, ...]:
    """The transforms as steps.

    Raises: TypeError for an object that is no transform, or is several; ValueError for `decode` after another step.
    """
    found = tuple(_step(transform, index) for index, transform in enumerate(listed(transforms)))
    for step in found[1:]:
        if step.kind == "decode":
            raise ValueError(
                f"transform {step.name} decodes records, so it must be the first; it is number {step.index}"
            )
    return found


def check_arguments(transforms: Any) -> None:
    """Raise TypeError for a transform whose signature does not fit its calls."""
    for transform, step in zip(listed(transforms), steps(transforms), strict=True):
        given = METHODS[step.kind]
        method = getattr(transform, step.kind, None)
        try:
            signature = inspect.signature(method if callable(method) else transform, follow_wrapped=False)
        except (TypeError, ValueError):  # of a builtin, which has none
            continue
        try:
            signature.bind(*given)
        except TypeError:
            of = f"{step.kind} of " if callable(method) else ""
            raise TypeError(
                f"{of}transform {step.name} is called with ({', '.join(given)}), and takes "
                f"({', '.join(signature.parameters)}). Objects with random_map(element, rng) receive random numbers, "
                "and objects with map_with_index(position, element) the position"
            ) from None


def listed(transforms: Any) -> tuple[Any, ...]:
    """The transforms as a tuple; a single transform, which may be iterable too, is a list of one, and None of none.

    Raises: TypeError for any other value.
    """
    if transforms is None:
        return ()
    ordered("transforms", transforms)
    is_text = isinstance(transforms, str | bytes)  # which is iterable, and bytes have a `decode`
    if callable(transforms) or (not is_text and any(hasattr(transforms, method) for method in METHODS)):
        return (transforms,)
    if is_text or not isinstance(transforms, Iterable):
        raise TypeError(f"transforms is one transform or a list of them, got {transforms!r}")
    return tuple(transforms)


def _step(transform: Any, index: int) -> Step:
    if inspect.isclass(transform):
        raise TypeError(f"transform {transform.__name__} is a class; pass an instance of it")
    kinds = [method for method in METHODS if callable(getattr(transform, method, None))]
    if len(kinds) > 1:
        raise TypeError(f"transform {name_of(transform)} has {' and '.join(kinds)}; it must have exactly one of them")
    if kinds == ["flat_map"]:
        return Step("flat_map", functools.partial(_flat_map, transform), name_of(transform), index)
    if kinds:
        return Step(kinds[0], getattr(transform, kinds[0]), name_of(transform), index)
    if any(kind.__module__.partition(".")[0] == "flax" for kind in type(transform).__mro__):  # workers do not import it
        raise TypeError(
            f"transform {name_of(transform)} is a Flax module, which works on batches on the device; give it to the "
            "pipeline, Pipeline(stages=[...])"
        )
    if callable(transform):
        return Step("map", transform, name_of(transform), index)
    raise TypeError(
        f"{transform!r} is no transform: it is neither callable nor has one of {', '.join(METHODS)} as a method"
    )


def _flat_map(transform: Any, element: Any) -> list[Any]:
    held = [transform.flat_map(element)]
    if held[0] is None:
        raise UnfitError("None", ", and flat_map returns an iterable of elements; does it end without `return`?")
    if isinstance(held[0], Mapping | str | bytes):
        raise TypeError(f"flat_map returned a {type(held[0]).__name__}; it returns an iterable of elements, a list say")
    results = own_items(held)
    limit = getattr(transform, "max_fan_out", None)
    if limit is not None and len(results) > limit:
        raise ValueError(f"flat_map returned {len(results)} elements, and its max_fan_out is {limit}; set it higher")
    return results


class Unstacked:
    """Keeps every element on the host, as a list in one field: elements may differ in fields and shapes."""

    def map(self, element: Any) -> dict[str, Any]:
        return {"element": [element]}
