"""Lists that a transform's code makes of sets of text, as its text shows before it runs.

Python hashes text anew in every process, so such a list is in another order in each.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Iterator
from typing import Any

from datarax_ray.read.hazards.kept_random import called
from datarax_ray.read.hazards.kept_state import text_of
from datarax_ray.read.identity.users_code import asked, cells

_LISTING = {"list", "tuple", "enumerate", "zip", "iter"}
# What these make of a list is the same in any order.
_ANY_ORDER = {"sorted", "set", "frozenset", "dict", "Counter", "any", "all", "sum", "min", "max", "len"}


def listed_set(transform: Any) -> str | None:
    """The set of text of which the code makes a list ("KEYS"); None where nothing is seen.

    Not told: a loop that only looks at each, a dict of them, whose fields are sorted, and what is sorted at last.
    """
    while isinstance(transform, functools.partial):
        transform = transform.func
    held = asked(asked(transform, "__self__", transform), "__dict__", {})
    for function, _ in called(transform):
        if (text := text_of(function)) is None:
            continue
        outside = function.__globals__ | cells(function)
        found = (node for node in _listed(text) if _is_set_of_text(node, function, outside, held))
        if (node := next(found, None)) is not None:
            return ast.unparse(node)
    return None


def _listed(tree: ast.AST) -> Iterator[ast.AST]:
    """What lists are made of."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if name in _ANY_ORDER:
            continue
        if isinstance(node, ast.ListComp):
            yield from (each.iter for each in node.generators)
        elif isinstance(node, ast.List | ast.Tuple):
            yield from (each.value for each in node.elts if isinstance(each, ast.Starred))
        elif isinstance(node, ast.Call) and (name in _LISTING or name == "join"):
            yield from node.args
        waiting += ast.iter_child_nodes(node)


def _is_set_of_text(node: ast.AST, function: types.FunctionType, outside: dict[str, Any], held: dict[str, Any]) -> bool:
    """Whether it is a set with some text in it, as far as that stands there. held: attributes of the object."""
    if isinstance(node, ast.BinOp):
        return any(_is_set_of_text(side, function, outside, held) for side in (node.left, node.right))
    if isinstance(node, ast.Set):
        return any(isinstance(each, ast.JoinedStr | ast.Constant) and _is_text(each) for each in node.elts)
    value = None
    if isinstance(node, ast.Name) and node.id not in function.__code__.co_varnames:
        value = outside.get(node.id)
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in function.__code__.co_varnames[:1]:
        value = held.get(node.attr)
    is_set = isinstance(value, set | frozenset) and len(value) > 1
    return is_set and any(isinstance(each, str | bytes) for each in value or ())


def _is_text(node: ast.JoinedStr | ast.Constant) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(node.value, str | bytes)
