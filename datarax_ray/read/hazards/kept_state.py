"""What a transform keeps from element to element, as the text of its code shows before it runs.

A place outlives a call: a global, what a closure or a partial holds, a mutable default, an attribute of a class, or of
an object that stays. What is counted there, or kept of one element for another, differs between processes: so the
values are others with another number of actors, and after a resume.

Not told is what an element finds as it would have made it: what is noted under its key (a cache), opened or loaded
once, given back at the end (try, finally), or overwritten as a whole before it is read (a buffer).
"""

from __future__ import annotations

import ast
import collections
import dis
import functools
import inspect
import re
import types
from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence, MutableSet
from itertools import pairwise
from typing import Any, Literal, TypeGuard

import numpy as np

from datarax_ray.read.hazards.kept_random import called, reached_methods
from datarax_ray.read.identity.loads import wrappers
from datarax_ray.read.identity.users_code import asked, cells, code_objects, defaults, inner, is_users, parsed

Kind = Literal["count", "value", "set"]
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_ENTERED = {"map", "random_map", "map_with_index", "filter", "flat_map", "decode", "map_columns", "__call__"}
_MUTABLE = (MutableSequence, MutableMapping, MutableSet, Iterator, np.ndarray)
_ADDING = {"append", "appendleft", "extend", "extendleft", "insert"}
_TAKING = {"pop", "popleft"}
_OF_FIRST = {"next", "heappush", "heappop", "heappushpop", "heapreplace"}  # functions that change their first argument
_ANEW = {"clear", "fill", "reset", "seek"}
# These run where an object is made, or a class; and the one of two undoes what the other does.
_BESIDE = {"__new__", "__init_subclass__", "__set_name__", "__post_init__", "__del__", "__enter__", "__exit__"}
_BESIDE |= {"__getstate__", "__setstate__", "__reduce__"}
_UNDOING = {"pop", "clear", "reset", "remove", "discard"}
_BINDING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.withitem)
_KEYED = r"\[[^-\d'\"]"  # in a path: made[key], and neither LAST['x'] nor BUF[-1]
_SILENT = {"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG", "SWAP"}
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def kept_state(transform: Any) -> dict[Kind, str]:
    """The first place of each kind, as the code has it: where it counts ("self.n"), keeps something of its elements
    (a mean that moves, an iterator), and the set in which a filter or flat_map notes what it has seen.
    """
    given: dict[str, Any] = {}
    while isinstance(transform, functools.partial):
        names = asked(asked(transform.func, "__code__"), "co_varnames", ())
        given = dict(zip(names, transform.args, strict=False)) | transform.keywords | given
        transform = transform.func
    leaves_out = any(callable(asked(transform, method)) for method in ("filter", "flat_map"))
    staying = _staying(transform)
    entered = {*_ENTERED, asked(transform, "__name__")}
    found: dict[Kind, str] = {}
    anew: set[str] = set()
    around = wrappers(transform if isinstance(transform, types.FunctionType) else type(transform))
    functions = _used([*{function: None for function, _ in called(transform)}, *around], staying, entered)
    for function in sorted(functions, key=lambda each: each.__name__ not in entered):
        kept = _Kept(function, staying.get(_owner(function)), given if function is transform else {})
        kept.is_entered, kept.leaves_out, kept.anew = function.__name__ in entered, leaves_out, set(anew)
        try:
            for kind, said in kept.told():
                found.setdefault(kind, said)
        except RecursionError:  # a sum of a thousand terms, say; what it keeps is not told
            continue
        anew |= kept.anew if kept.is_entered else set()  # so do its helpers find it
    return found


def _owner(function: types.FunctionType) -> tuple[str, str]:
    return function.__module__, function.__qualname__.rpartition(".")[0]


def _staying(transform: Any) -> dict[tuple[str, str], Any]:
    """The transform and what its attributes hold, by module and name of their classes; others have an object for each
    element: one that reads its bytes, say, and counts them.
    """
    transform = asked(transform, "__self__", transform)  # of a bound method
    kept = [*asked(transform, "__dict__", {}).values(), transform]
    return {(base.__module__, base.__qualname__): value for value in kept for base in type(value).__mro__}


def _used(
    functions: list[types.FunctionType], staying: dict[tuple[str, str], Any], entered: set[str]
) -> list[types.FunctionType]:
    """Those that run for an element, by the names that they load; with the methods of users' objects at module level,
    or in a closure, which stay, too.
    """
    names, used = set(entered), list[types.FunctionType]()
    waiting = [each for each in functions if each.__name__ not in _BESIDE]
    while live := [
        each
        for each in waiting
        if _owner(each) not in staying or each.__name__.startswith("__") or each.__name__ in names
    ]:
        waiting = [each for each in waiting if each not in live]
        used += live
        for function in live:
            loaded = {name for code in code_objects(function.__code__) for name in code.co_names}
            names |= loaded
            steps = (step for code in code_objects(function.__code__) for step in dis.get_instructions(code))
            of_module = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"}
            outside = [*cells(function).values(), *(function.__globals__.get(name) for name in of_module)]
            for value in map(inner, outside):
                kind, more = type(value), list[types.FunctionType]()
                if isinstance(value, types.FunctionType) and is_users(value):
                    more = [value]
                elif is_users(kind) and (kind.__module__, kind.__qualname__) not in staying:
                    staying.update({(base.__module__, base.__qualname__): value for base in kind.__mro__})
                    more = reached_methods(kind, [*loaded, "__call__"])
                waiting += [each for each in more if each not in used and each not in waiting]
    return used


@functools.lru_cache(maxsize=64)
def _texts(text: str) -> dict[tuple[int, str], list[_Function]]:
    """The functions in a file's text, by their first line and name."""
    found: dict[tuple[int, str], list[_Function]] = {}
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line = min(each.lineno for each in (node, *node.decorator_list))
            found.setdefault((line, node.name), []).append(node)
        elif isinstance(node, ast.Lambda):
            found.setdefault((node.lineno, "<lambda>"), []).append(node)
    return found


def text_of(function: types.FunctionType) -> _Function | None:
    """The function as it stands in its file; None where that is not known."""
    code = function.__code__
    try:
        nodes = _texts("".join(inspect.findsource(function)[0]))[code.co_firstlineno, code.co_name]
    except (OSError, TypeError, ValueError, SyntaxError, KeyError):  # typed at a prompt, or made by a program
        return None
    at = {*code.co_positions()}
    known = {name for each in code_objects(code) for name in (*each.co_varnames, *each.co_freevars, *each.co_names)}
    for node in nodes:
        body = node.body if isinstance(node, ast.Lambda) else None
        is_there = body is None or (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset) in at
        if is_there and all(each.id in known for each in ast.walk(node) if _is_stored(each)):
            return node
    return None


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


class _Kept(ast.NodeVisitor):
    """Goes through the text of a function, as it runs, and notes what it does to places that outlive a call.

    A place is said by its path: "G", "self.n", "LAST['x']", "self.made[key]". anew: those that were overwritten as a
    whole by now, on every way. names: the places that local names stand for. loads: each read of a place, with what
    was anew then, and whether it was within a condition.
    """

    is_entered = leaves_out = False

    def __init__(self, function: types.FunctionType, owner: Any, given: dict[str, Any]) -> None:
        self.code = code = function.__code__
        self.node = text_of(function)
        codes = [*code_objects(code)]
        self.local = {name for each in codes for name in (*each.co_varnames, *each.co_cellvars)} - {*code.co_freevars}
        held = {name: value for name, value in (defaults(function) | given).items() if isinstance(value, _MUTABLE)}
        self.outside = {**function.__globals__, **cells(function), **held}
        self.names = {name: name for name in held}
        self.first = ""
        if owner is not None and code.co_argcount and not _is_static(owner, function.__name__):
            self.first = code.co_varnames[0]
            self.names[self.first] = "self"
            self.outside[self.first] = owner
        num_arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        self.of_element = {*code.co_varnames[:num_arguments]} - {self.first, *held, *given}
        self.anew: set[str] = set()
        self.loads: list[tuple[str, frozenset[str], bool]] = []
        self.found: list[tuple[Kind, str]] = []
        self.assigned: list[str] = []
        self.noted: list[str] = []
        self.undone: set[str] = set()
        self.guarded: set[str] = set()
        self.is_branch = self.is_test = self.is_other = False

    def told(self) -> Iterator[tuple[Kind, str]]:
        """(kind, place), as the text has it; after a walk through it."""
        if self.node is None:
            yield from (("count", said) for said in self._counted())
            return
        self._follow_elements(self.node)
        for each in (part for node in ast.walk(self.node) if isinstance(node, ast.Try) for part in node.finalbody):
            self.undone |= {path for node in ast.walk(each) if (path := self._undone(node))}
        body: Iterable[ast.AST] = [self.node.body] if isinstance(self.node, ast.Lambda) else self.node.body
        for step in body:
            self.visit(step)
        for path in self.assigned:
            if any(_overlap(path, load) and not _covers(anew, path) for load, anew, _ in self.loads):
                self.found.append(("value", path))
        for path in self.noted:
            if any(path == load and not is_test for load, _, is_test in self.loads):
                self.found.append(("value", path))
        for kind, path in self.found:
            if path not in self.undone:
                said = path.partition("[")[0]
                yield kind, self.first + said.removeprefix("self") if said.startswith("self.") else said

    def _counted(self) -> Iterator[str]:
        """Where code without a text adds to a place: typed at a prompt, say."""
        for code in code_objects(self.code):
            steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
            for before, step in pairwise(steps):
                if before.opname != "BINARY_OP" or not before.argrepr.endswith("="):
                    continue
                if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and step.argval not in self.local):
                    yield step.argval
                threes = zip(steps, steps[1:], steps[2:], strict=False)  # self, twice, and its attribute
                twice = {
                    three[2].argval for three in threes if three[0].argval == self.first and three[1].opname == "COPY"
                }
                if self.first and step.opname == "STORE_ATTR" and step.argval in twice:
                    yield f"{self.first}.{step.argval}"

    def _undone(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _UNDOING:
            return self._place(node.func.value)
        return self._place(node.target) if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Sub) else None

    def _follow_elements(self, tree: ast.AST) -> None:
        bound: list[tuple[ast.AST, list[str]]] = []
        for node in ast.walk(tree):
            if isinstance(node, _BINDING):
                parts = vars(node)
                value = parts.get("context_expr") or parts.get("iter") or parts["value"]
                targets = parts.get("targets") or [parts.get("target") or parts.get("optional_vars")]
                names = (each for target in targets if target is not None for each in ast.walk(target))
                stored = [each.id for each in names if _is_stored(each)]
                if stored and value is not None:
                    bound.append((value, stored))
        for value, stored in 2 * bound:  # twice: a name in a loop may come after its use
            if self._is_made(value):
                self.of_element.update(stored)

    def _is_made(self, *nodes: ast.AST) -> bool:
        """Whether it is made of the element."""
        names = (each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
        return not self.of_element.isdisjoint(names)

    def _held(self, node: ast.AST) -> Any:
        """What stands there now, without running anything; None where that is not known."""
        if isinstance(node, ast.Name):
            return self.outside.get(node.id) if node.id in self.names or node.id not in self.local else None
        if isinstance(node, ast.Attribute) and (owner := self._held(node.value)) is not None:
            return inspect.getattr_static(owner, node.attr, None)
        return None

    def _place(self, node: ast.AST) -> str | None:
        """The path of a place that outlives the call; None for all else."""
        value = self._held(node)
        if isinstance(value, types.ModuleType) and not is_users(value):
            return None
        if isinstance(node, ast.Name):
            is_outside = node.id not in self.local and (node.id in self.outside or not isinstance(node.ctx, ast.Load))
            return self.names.get(node.id, node.id if is_outside else None)
        if isinstance(node, ast.Attribute):
            return f"{path}.{node.attr}" if (path := self._place(node.value)) else None
        if isinstance(node, ast.Subscript):
            path = self._place(node.value)
            return f"{path}[{ast.unparse(node.slice)}]" if path and not _is_whole(node) else path
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type" and node.args:
            return self._place(node.args[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            path = self._place(node.func.value) if node.func.attr in ("get", "setdefault") else None
            return f"{path}[{ast.unparse(node.args[0])}]" if path else None
        return None

    def _tell(self, kind: Kind, path: str) -> None:
        if not _covers(self.anew, path):
            self.found.append((kind, path))

    def _load(self, path: str) -> None:
        if path != "self" and not _covers(self.anew, path):
            self.loads.append((path, frozenset(self.anew), self.is_test))

    def _own(self, begin: int, path: str) -> list[str]:
        return [load for load, *_ in self.loads[begin:] if _overlap(path, load)]

    def _branch(self, nodes: Iterable[ast.AST], **flags: Any) -> set[str]:
        """What is anew at the end of a way that not every element takes."""
        before = {name: getattr(self, name) for name in ("is_branch", *flags)}, self.anew, dict(self.names)
        self.anew = set(self.anew)
        vars(self).update(flags, is_branch=True)
        for node in nodes:
            self.visit(node)
        anew, (kept, self.anew, self.names) = self.anew, before
        vars(self).update(kept)
        return anew

    def visit_If(self, node: ast.If | ast.IfExp | ast.While) -> None:
        begin = len(self.loads)
        self.is_test, before = True, self.is_test
        self.visit(node.test)
        self.is_test = before
        others = (each for each in ast.walk(node.test) if isinstance(each, ast.Compare))
        is_other = any(isinstance(each.ops[0], ast.NotEq) and any(map(self._place, _sides(each))) for each in others)
        asked_of = {load for load, *_ in self.loads[begin:]}
        body, otherwise = ([each] if isinstance(each, ast.AST) else each for each in (node.body, node.orelse))
        flags = {"guarded": self.guarded | asked_of, "is_other": self.is_other or is_other}
        ways = [self._branch(body, **flags), self._branch(otherwise, **flags)]
        if isinstance(body[-1], _LEAVING):
            self.guarded = self.guarded | {load for load, *_ in self.loads[begin:]}
            ways = ways[1:]
        if not isinstance(node, ast.While):
            self.anew = set.intersection(*ways)

    visit_IfExp = visit_While = visit_If  # noqa: N815 (ast's names)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._branch([*node.body, *node.orelse])

    visit_AsyncFor = visit_For  # noqa: N815 (ast's names)

    def visit_Try(self, node: ast.Try) -> None:
        begin = len(self.loads)
        for each in node.body:
            self.visit(each)
        guarded = self.guarded | {load for load, *_ in self.loads[begin:]}
        for handler in node.handlers:
            self._branch(handler.body, guarded=guarded)
        for each in (*node.orelse, *node.finalbody):
            self.visit(each)

    def visit_Compare(self, node: ast.Compare) -> None:
        """What is asked for another value, or for a key in it, is not taken as what it was."""
        for side in _sides(node):
            is_key = isinstance(node.ops[0], ast.In | ast.NotIn) and side is not node.left
            if not ((is_key or isinstance(node.ops[0], ast.NotEq)) and self._place(side)):
                self.visit(side)

    def visit_Assign(self, node: ast.Assign) -> None:
        begin = len(self.loads)
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, node.value, begin)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._assign(node.target, node.value, len(self.loads))

    def _assign(self, target: ast.expr, value: ast.expr, begin: int) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            for position, each in enumerate(target.elts):
                self._assign(each, parts[position] if parts else value, begin)
            return
        if isinstance(target, ast.Name) and target.id in self.local:
            self.names.pop(target.id, None)
            if (path := self._place(value)) is not None:
                self.names[target.id] = path
            return
        if (path := self._place(target)) is None or _covers(self.anew, path):
            return
        key = target.slice if isinstance(target, ast.Subscript) and not _is_whole(target) else None
        is_slice = key is not None and any(isinstance(each, ast.Slice) for each in ast.walk(key))
        if is_slice and isinstance(target, ast.Subscript):
            path = self._place(target.value) or path
        own = self._own(begin, path)
        chosen = [each for each in _choices(value) if self._place(each) == self._place(target)]
        is_sum = any(isinstance(node, ast.BinOp) for node in ast.walk(value))
        is_made = self._is_made(value)
        if len(own) > len(chosen):
            if is_made or is_sum or isinstance(target, ast.Subscript) or not self.is_branch:
                self._tell("value" if is_made else "count", path)
        elif re.search(_KEYED, path):
            if self.leaves_out and isinstance(value, ast.Constant) and not is_slice:
                self._tell("set", path)
        elif is_made and not is_slice and not self.is_other and (self.is_entered or path not in self.guarded):
            self.assigned.append(path)
        if not is_slice:
            self.anew.add(path)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        is_local = isinstance(node.target, ast.Name) and node.target.id in self.local
        is_changed = not is_local or isinstance(self._held(node.target), list | np.ndarray)
        if is_changed and (path := self._place(node.target)) is not None:
            self._tell("count", path)

    def visit_Delete(self, node: ast.Delete) -> None:
        whole = (each for each in node.targets if isinstance(each, ast.Subscript) and _is_whole(each))
        self.anew |= {path for each in whole if (path := self._place(each)) is not None}

    def visit_Name(self, node: ast.Name | ast.Attribute | ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load) and (path := self._place(node)) is not None:
            self._load(path)
        else:
            self.generic_visit(node)

    visit_Attribute = visit_Subscript = visit_Name  # noqa: N815 (ast's names)

    def visit_Call(self, node: ast.Call) -> None:
        begin = len(self.loads)
        for each in (*node.args, *node.keywords):
            self.visit(each)
        kind: Kind = "value" if self._is_made(*node.args) else "count"
        method = node.func.attr if isinstance(node.func, ast.Attribute) else asked(node.func, "id", "")
        first = self._place(node.args[0]) if node.args else None
        if method in _OF_FIRST and first is not None and first != "self":
            self._tell("value", first)
        for written in (each.value for each in node.keywords if each.arg == "out"):
            if (path := self._place(written)) is not None:
                if len(self._own(begin, path)) > 1:  # beside out=
                    self._tell(kind, path)
                self.anew.add(path)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        path, held = self._place(owner), self._held(owner)
        if owner is node.func or path in (None, "self") or isinstance(held, types.ModuleType):
            self.visit(owner)
            return
        assert path is not None
        if method in _ANEW:
            self.anew.add(path)
        elif method in _ADDING:
            self._tell(kind, path)
        elif method == "__next__" or (method in _TAKING and not node.args):
            self._tell("value", path)
        elif method in ("add", "update") and isinstance(held, set):
            if self.leaves_out:
                self._tell("set", path)
            elif not _covers(self.anew, path):
                self.noted.append(path)
        elif method == "update" and isinstance(held, collections.Counter):
            self._tell(kind, path)
        elif method == "setdefault" and path in self._own(begin, path):
            self._tell("value", path)
        elif method != "setdefault":
            self._load(self._place(node) or path)


def _is_static(owner: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(owner, name, None), staticmethod)


def _sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def _is_whole(node: ast.Subscript) -> bool:
    """Whether it is all of an array: x[:], x[...]."""
    return ast.unparse(node.slice) in (":", "...")


def _choices(node: ast.expr) -> list[ast.expr]:
    """What an expression is one of: `a or b`, `a if c else b`."""
    if isinstance(node, ast.BoolOp):
        return [each for value in node.values for each in _choices(value)]
    if isinstance(node, ast.IfExp):
        return [*_choices(node.body), *_choices(node.orelse)]
    return [node]


def _covers(wholes: Iterable[str], path: str) -> bool:
    return any(path == whole or path.startswith((f"{whole}.", f"{whole}[")) for whole in wholes)


def _overlap(one: str, other: str) -> bool:
    return _covers([one], other) or _covers([other], one)
