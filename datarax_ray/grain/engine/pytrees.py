"""Elements of any kind on their way to the driver: as arrays where all are alike, otherwise as a list.

An element is a tree of dicts, lists, tuples, named tuples and None with leaves. If all elements of a block have one
tree, and leaves of one type, dtype and shape, the block is one array for each leaf, and a batch copies rows. Other
elements (ragged arrays, own objects) travel as a list. Either way elements keep their types, and their arrays are
writable.

Source for trees and leaves: jax.tree_util, by which Grain batches.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import is_host_only, nbytes, nbytes_of

# A tree is nested tuples, which compare: ("leaf", kind, dtype, shape), ("none",), ("dict", keys, trees),
# ("list", trees), (class, trees) of a tuple or named tuple.
Tree = tuple[Any, ...]
_NUMBERS: dict[type, type] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


class _UnlikeError(Exception):
    """Arrays cannot hold these elements without changing a type."""


class ObjectList:
    """A list of any Python objects. It pickles in one piece, so small arrays share a buffer and stay writable."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return sum(map(nbytes_of, self.values))

    def element(self, row: int) -> Any:
        return self.values[row]

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _unbox, (pickle.dumps(self.values, pickle.HIGHEST_PROTOCOL),)
        except Exception:  # a class of __main__, say: the pickler around this one may know how (cloudpickle does)
            return ObjectList, (self.values,)


def _unbox(data: bytes) -> ObjectList:
    return ObjectList(pickle.loads(data))


@dataclass(frozen=True)
class Stacked:
    """`count` like elements. leaves: an array (count, ...) for each leaf of the tree, in its order."""

    count: int
    tree: Tree
    leaves: tuple[NDArray, ...]

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        return sum(map(nbytes, self.leaves))

    def element(self, row: int) -> Any:
        """One element, with copies of its arrays, which are writable and keep no block in memory."""
        kinds = _kinds(self.tree)
        return _assemble(self.tree, (_take(leaf, kind, row) for leaf, kind in zip(self.leaves, kinds, strict=True)))


@dataclass(frozen=True)
class Elements:
    """The elements of a block. indices, rngs: of each element, where operations on batches need them."""

    values: Stacked | ObjectList
    indices: Indices | None = None
    rngs: ObjectList | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", self.values.nbytes)  # taken once: an ObjectList is counted one by one


def gather(elements: list[Any]) -> Stacked | ObjectList:
    """The elements, at least one, as arrays if all are alike.

    >>> gather([{"x": 1}, {"x": 2}]).leaves
    (array([1, 2]),)
    >>> type(gather([{"x": 1}, {"x": 2.0}])).__name__
    'ObjectList'
    """
    try:
        leaves: list[Any] = []
        tree = _describe(elements[0], leaves)
        columns = [[leaf] for leaf in leaves]
        for element in elements[1:]:
            leaves = []
            if _describe(element, leaves) != tree:
                raise _UnlikeError
            for column, leaf in zip(columns, leaves, strict=True):
                column.append(leaf)
        return Stacked(len(elements), tree, tuple(map(_column, columns, _kinds(tree))))
    except _UnlikeError:
        return ObjectList(elements)


def batch(parts: Sequence[tuple[Stacked | ObjectList, int, int]]) -> Any:
    """Rows [lo, hi) of each part, stacked as by Grain: new arrays (rows, ...) in the elements' tree.

    Returns NotImplemented where elements are not all alike, for Grain's own function to decide.
    """
    first = parts[0][0]
    if not isinstance(first, Stacked):
        return NotImplemented
    like = [part for part, _, _ in parts if isinstance(part, Stacked) and part.tree == first.tree]
    if len(like) < len(parts):
        return NotImplemented
    leaves = (
        _join([part.leaves[number][lo:hi] for part, (_, lo, hi) in zip(like, parts, strict=True)])
        for number in range(len(first.leaves))
    )
    return _assemble(first.tree, leaves, in_order=True)


def _describe(value: Any, leaves: list[Any]) -> Tree:
    """The value's tree; appends its leaves. Raises: _UnlikeError for a leaf that would change in an array."""
    cls = type(value)
    if value is None:
        return ("none",)
    if cls is dict:
        return ("dict", _keys(value), tuple(_describe(part, leaves) for part in value.values()))
    if cls is list:
        return ("list", tuple(_describe(part, leaves) for part in value))
    if cls is tuple or (isinstance(value, tuple) and hasattr(cls, "_fields")):
        return (cls, tuple(_describe(part, leaves) for part in value))
    leaves.append(value)
    if cls in _NUMBERS:
        return ("leaf", cls, None, ())
    if cls is str or cls is bytes:
        return ("leaf", object, None, ())
    if cls is np.ndarray or isinstance(value, np.generic):
        if is_host_only(value.dtype) or not value.dtype.isnative:
            raise _UnlikeError
        return ("leaf", np.ndarray if cls is np.ndarray else np.generic, value.dtype, value.shape)
    raise _UnlikeError


def _keys(value: dict[Any, Any]) -> tuple[Any, ...]:
    try:
        sorted(value)
    except TypeError:  # jax sorts them, and says so
        raise _UnlikeError from None
    return tuple(value)


def _kinds(tree: Tree) -> list[Any]:
    """The kind of each leaf: a Python number's type, object for text, np.ndarray, or np.generic for NumPy scalars."""
    if tree[0] == "leaf":
        return [tree[1]]
    return [kind for part in (tree[-1] if len(tree) > 1 else ()) for kind in _kinds(part)]


def _column(values: list[Any], kind: Any) -> NDArray:
    if kind is np.ndarray:
        return np.stack(values)
    if kind is object:
        return np.fromiter(values, object, len(values))
    try:
        return np.array(values, _NUMBERS.get(kind) or values[0].dtype)
    except OverflowError:  # an int of more than 64 bits
        raise _UnlikeError from None


def _take(leaf: NDArray, kind: Any, row: int) -> Any:
    if kind is np.ndarray:
        return np.array(leaf[row])
    return leaf[row].item() if kind in _NUMBERS else leaf[row]


def _join(slices: list[NDArray]) -> NDArray:
    if slices[0].dtype == object:  # text; only now is its width known
        return np.stack([value for part in slices for value in part])
    return np.concatenate(slices)


def _assemble(tree: Tree, leaves: Iterator[Any], in_order: bool = False) -> Any:
    """The value of a tree, from its leaves in order. in_order: sort the keys of dicts, as jax does."""
    if tree[0] == "leaf":
        return next(leaves)
    if tree[0] == "none":
        return None
    parts = [_assemble(part, leaves, in_order) for part in tree[-1]]
    if tree[0] == "dict":
        made = dict(zip(tree[1], parts, strict=True))
        return {key: made[key] for key in sorted(made)} if in_order else made
    if tree[0] == "list":
        return parts
    return tuple(parts) if tree[0] is tuple else tree[0](*parts)
