"""Stages under one cached jit: pure functions of (batch, position).

A stage is an NNX module or a callable, batch -> batch. A stage with a parameter `keys` gets a PRNG key for every row,
made from the row's global position. An NNX module that draws from its own Rngs (nnx.Dropout) has them set for each
batch from the batch's position. It draws for all rows at once, so it is refused where a trainer holds only some of the
rows. A stage with a true attribute `needs_all_rows` is refused there as well. The numbers depend on the position alone,
and the state needs none of them.

An operator of datarax is a stage too. With one input it is called as datarax's Pipeline does, by
`_apply_on_raw(data, states, stats, global_indices)` with the states of the operators before it. It gives the same
numbers as there, keyed by its own base key and the row's global position modulo 2**32.
Source: datarax.pipeline.pipeline, datarax.core.operator.
"""

from __future__ import annotations

import dis
import functools
import graphlib
import inspect
import itertools
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from datarax_ray.plan.arguments import ordered
from datarax_ray.read.code_digests import code_digests
from datarax_ray.read.elements.columns import given_note, leaves
from datarax_ray.sources.base.device import HostModule

_KEYS = ". For random numbers name a parameter `keys`: it gets a PRNG key for each row, made from its global position"


@dataclass(frozen=True)
class StageGraph:
    """Stages in an order in which they can run.

    nodes: stage by name, in that order.
    edges: by name, the stages whose outputs it takes, () for the source's batch.
    sink: the stage whose output is the batch; None without stages.
    """

    nodes: dict[str, Any]
    edges: dict[str, tuple[str, ...]]
    sink: str | None

    @classmethod
    def of(
        cls,
        stages: Sequence[Any] | Any | None,
        nodes: Mapping[str, Any] | None,
        edges: Mapping[str, Sequence[str]] | None,
        sink: str | None,
    ) -> StageGraph:
        """The graph of a user's stages: a chain, one stage alone, or any acyclic graph.

        edges: the predecessors of each node; a node without any takes the source's batch.

        Raises: TypeError for other stages; ValueError for an unknown name, a cycle, or an unused output.
        """
        if stages is not None and (nodes is not None or edges is not None or sink is not None):
            raise ValueError("give stages, or nodes, edges and sink, not both")
        if nodes is None:
            ordered("stages", stages)
            if callable(stages):  # a module, too
                stages = [stages]
            if stages is not None and (isinstance(stages, str) or not isinstance(stages, Iterable)):
                raise TypeError(f"stages is one stage or a list of them, got {stages!r}")
            nodes = {f"{index}_{type(stage).__name__}": stage for index, stage in enumerate(stages or ())}
            edges = {name: (before,) for before, name in itertools.pairwise(nodes)}
            sink = next(reversed(nodes), None)
            if sink is None:
                return cls({}, {}, None)
        if sink is None:
            raise ValueError("a graph of stages needs sink, the name of the node whose output is the batch")
        given = edges or {}
        predecessors = {name: tuple(given.get(name, ())) for name in nodes}
        named = {sink, *given, *(p for before in predecessors.values() for p in before)}
        if unknown := sorted(named - nodes.keys()):
            raise ValueError(f"edges and sink name {unknown}, the nodes are {sorted(nodes)}")
        try:
            order = list(graphlib.TopologicalSorter(predecessors).static_order())
        except graphlib.CycleError as error:
            raise ValueError(f"the stages wait for one another in a cycle: {' <- '.join(error.args[1])}") from error
        used = {sink, *(p for before in predecessors.values() for p in before)}
        if unused := sorted(nodes.keys() - used):
            raise ValueError(f"nothing uses the output of {unused}; remove these nodes, or connect them to {sink!r}")
        return cls({name: nodes[name] for name in order}, predecessors, sink)

    def run(self, call: Any, batch: Any) -> Any:
        """The sink's output, with `call(name, inputs)` for every stage in order."""
        outputs: dict[str, Any] = {}
        for name in self.nodes:
            outputs[name] = call(name, [outputs[p] for p in self.edges[name]] or [batch])
        return batch if self.sink is None else outputs[self.sink]


class Stages:
    """A graph of stages, compiled once per shape of batch.

    base_key: what random numbers start from; None without stages.
    kept: a field of the batch that is put back where the stages left it out.
    has_all_rows: whether a batch has all rows of the global one.
    """

    def __init__(
        self, graph: StageGraph, base_key: jax.Array | None, kept: str | None = None, *, has_all_rows: bool = True
    ) -> None:
        for name, stage in graph.nodes.items():
            if inspect.isclass(stage) or not callable(stage):
                raise TypeError(f"stage {name} is {stage!r}; a stage is an nnx.Module or a function, batch -> batch")
            _check_parameters(name, stage, max(1, len(graph.edges[name])))
            _check_outside(name, stage)
            if not has_all_rows and getattr(stage, "needs_all_rows", False):
                raise ValueError(
                    f"stage {_label(name, stage)} mixes rows of a batch. This trainer, one of several by rank, has "
                    "only some of the rows, and its result would differ from that of one trainer. Give the Pipeline a "
                    "sharding over all processes, or apply the stage in the train step"
                )
        self.graph = graph
        self._base_key = base_key
        self._kept = kept
        self._has_all_rows = has_all_rows
        # jit sees modules as pytrees of their variables; functions are part of the program
        self._modules = {name: stage for name, stage in graph.nodes.items() if isinstance(stage, nnx.Module)}
        self._takes_keys = {name: _takes_keys(stage) for name, stage in graph.nodes.items()}
        # Taken once: a stage that fills a cache when it is first called is still the same one.
        self._code = code_digests(graph.nodes.values())
        self.apply = jax.jit(self._trace, static_argnums=0)

    @property
    def has_modules(self) -> bool:
        """Whether any stage is a module: what that holds may change between two batches."""
        return bool(self._modules)

    def shared_with(self, modules: Any) -> list[str]:
        """The variables that stages have in common with these modules, random ones left out, by their paths there."""
        mine = {id(value) for _, value in nnx.iter_graph(self._modules) if isinstance(value, nnx.Variable)}
        return [
            ".".join(map(str, path))
            for path, value in nnx.iter_graph(modules)
            if id(value) in mine and not isinstance(value, nnx.RngState)
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """The names and code of the stages, to inform; and the key, where a stage draws random numbers."""
        settings: dict[str, Any] = dict(self._code)
        draws = (jax.tree.leaves(nnx.state(module, nnx.RngState)) for module in self._modules.values())
        if self._base_key is not None and (any(self._takes_keys.values()) or any(draws)):
            settings["key"] = np.asarray(jax.random.key_data(self._base_key)).tobytes().hex()
        return settings

    def __call__(self, batch: Any, start: int, row_words: Any, beside: tuple[str, ...] = ()) -> Any:
        """The sink's output. batch: device arrays. start: its first position; row_words: `words` of its rows'.

        beside: fields on the host that pass by the stages, and are put beside the output.

        Raises: ValueError where that has rows of other numbers than these; what a stage raises.
        """
        if not self.graph.nodes:
            return batch
        return self.apply(*self.split(beside), words(np.int64(start)), row_words, batch)

    def split(self, beside: tuple[str, ...] = ()) -> tuple[Any, Any]:
        """The first arguments of `apply`: the part of the program, and the variables and keys. beside: as of a call."""
        graphdef, *state = nnx.split(nnx.Dict(self._modules), nnx.RngKey, nnx.RngCount, ...)
        return _Program(graphdef, beside), (*state, self._base_key)

    def _trace(self, program: _Program, state: Any, start: Any, row_words: Any, batch: Any) -> Any:
        keys, counts, rest, base_key = state
        keys = jax.tree.map(lambda key: _fold(key, start), keys)
        counts = jax.tree.map(jnp.zeros_like, counts)
        before, zeros = map(jax.tree.leaves, (rest, counts))  # taken now: merged modules write into these variables
        modules = nnx.merge(program.graphdef, keys, counts, rest)
        states: Any = {}

        def call(name: str, inputs: list[Any]) -> Any:
            nonlocal states
            stage = modules[name] if name in self._modules else self.graph.nodes[name]
            keys = {"keys": jax.vmap(_fold, (None, 0))(base_key, row_words)} if self._takes_keys[name] else {}
            try:
                if _is_operator(stage) and len(inputs) == 1:
                    found, states = stage._apply_on_raw(inputs[0], states, None, row_words[:, 1])
                else:
                    found = stage(*inputs, **keys)
            except Exception as error:
                parts = [f"in stage {_label(name, stage)}", *(given_note(batch, error) for batch in inputs)]
                error.add_note(", ".join(parts))
                raise
            if found is None:  # a tree without leaves to JAX, and the end of the stream to who iterates
                raise TypeError(
                    f"stage {_label(name, stage)} returned None, which is no batch; does it end without `return`?"
                )
            return found

        out = self.graph.run(call, batch)
        _refuse_changes(before, nnx.split(modules, nnx.RngState, ...)[2])
        if not self._has_all_rows:
            self._refuse_draws(modules, zeros)
        out = out if self._kept is None else _keep(self._kept, batch, out)
        self._check_rows(batch, out, len(row_words), program.beside)
        return out

    def _refuse_draws(self, modules: Any, zeros: Sequence[Any]) -> None:
        """Raise ValueError where a module has drawn from Rngs of its own. zeros: their counts before."""
        for name in self._modules:
            counts = jax.tree.leaves(nnx.state(modules[name], nnx.RngCount))
            if any(all(count is not zero for zero in zeros) for count in counts):
                raise ValueError(
                    f"stage {_label(name, self.graph.nodes[name])} draws from Rngs of its own, for all rows of a batch "
                    "at once. Trainers by rank have different rows, and all would draw the same numbers for them. Let "
                    "the stage name a parameter `keys`, a PRNG key for each row; give the Pipeline a sharding over "
                    "all processes; or apply the module in the train step"
                )

    def _check_rows(self, batch: Any, out: Any, num_rows: int, beside: Sequence[str]) -> None:
        """Raise ValueError where rows of `out` would stand beside other records' rows in fields that pass by.

        A field with another layout (rows in groups, the time first) has as many values as before.
        """
        given, found = _shapes(batch), _shapes(out)
        passing = [name for name in beside if name not in found]
        if self._kept is not None and found.get(self._kept, ())[:1] == (num_rows,):
            passing.append(self._kept)
        for name, shape in found.items() if passing else ():
            is_other = shape[:1] not in ((), (num_rows,)) and name in given
            if is_other and math.prod(shape) != math.prod(given[name]):
                others = ", ".join(map(repr, passing))
                raise ValueError(
                    f"the stages give {shape[0]} rows of {name!r} for a batch of {num_rows}, and {others} pass by the "
                    f"stages with {num_rows}, so each row would stand beside another record's. Filter in a transform, "
                    "an object with filter(element); mark rows in place of dropping them; give the field another name; "
                    "or drop the fields that pass by in a transform"
                )


@dataclass(frozen=True)
class _Program:
    """jit's static argument: equal ones are one program, also where a setting in the graphdef is a dict.

    beside: the fields that pass by the stages; where they are other ones, rows are to be checked again.
    """

    graphdef: Any
    beside: tuple[str, ...] = ()

    def __hash__(self) -> int:
        try:
            return hash(self.graphdef)
        except TypeError:
            return 0


def _is_operator(stage: Any) -> bool:
    return callable(getattr(stage, "_apply_on_raw", None))


def _shapes(batch: Any) -> dict[str, tuple[int, ...]]:
    """Of each field of a batch, by its path."""
    return {".".join(path): tuple(getattr(array, "shape", ())) for path, array in leaves(batch)}


def _keep(name: str, batch: Any, out: Any) -> Any:
    if not isinstance(out, Mapping):
        raise ValueError(
            f"the stages return {type(out).__name__}, so there is no dict to carry the field {name!r}; return a dict"
        )
    return {name: batch[name], **out} if name in batch else out


def _refuse_changes(before: list[Any], after: Any) -> None:
    """Raise ValueError for a stage that writes to itself: its batches would depend on batches that no state records."""
    now = jax.tree.leaves_with_path(after)
    changed = [jax.tree_util.keystr(path) for (path, leaf), old in zip(now, before, strict=False) if leaf is not old]
    if changed or len(now) != len(before):
        raise ValueError(
            f"a stage changes its own variables ({', '.join(changed) or 'new ones'}) while a batch is made, so later "
            "batches would depend on earlier ones and could not be resumed. Make it a function of its batch (with "
            "normalisation, use running averages: module.eval()), or apply it in the train step. nnx.jit around a "
            "method writes all variables back: remove nnx.jit, as a Pipeline compiles its stages itself."
        )


def _label(name: str, stage: Any) -> str:
    """Its number in a list, or its name in a graph, and what it is."""
    return (
        f"{name.removesuffix(f'_{type(stage).__name__}')} ({getattr(stage, '__qualname__', type(stage).__qualname__)})"
    )


def _check_parameters(name: str, stage: Any, num_inputs: int) -> None:
    """Raise TypeError for a stage that asks for more, or takes less, than it will be given."""
    if _is_operator(stage) and num_inputs == 1:
        return
    if (signature := _signature(stage)) is None:
        return
    keys = {"keys": None} if "keys" in signature.parameters else {}
    try:
        signature.bind(*[None] * num_inputs, **keys)
    except TypeError as error:
        given = "the batch" if num_inputs == 1 else f"the {num_inputs} batches that its edges name"
        hint = "" if keys or signature.parameters.keys().isdisjoint(("key", "rng", "rngs")) else _KEYS
        raise TypeError(f"stage {_label(name, stage)} is called with {given}: {error}{hint}") from None


def _check_outside(name: str, stage: Any) -> None:
    """Raise TypeError for a function that uses an nnx.Module from outside."""
    outside = {} if isinstance(stage, nnx.Module) else _outside(stage)
    if modules := [each for each, value in outside.items() if any(map(_is_module, jax.tree.leaves(value, _is_module)))]:
        raise TypeError(
            f"stage {_label(name, stage)} uses the nnx.Module {', '.join(modules)} from outside. Its present values "
            "would be constants of the compiled program, and later changes would be ignored. Give the module itself "
            "as a stage, or make it a part of an nnx.Module that is a stage"
        )


def _is_module(value: Any) -> bool:
    return isinstance(value, nnx.Module) and not isinstance(value, HostModule)


def _outside(stage: Any) -> dict[str, Any]:
    """The values that a function takes from its closure, globals and object, and the arguments of a partial."""
    if isinstance(stage, functools.partial):
        return {f"args[{i}]": value for i, value in enumerate(stage.args)} | stage.keywords | _outside(stage.func)
    if hasattr(stage, "__wrapped__"):  # by functools.wraps or jax.jit
        return _outside(stage.__wrapped__)
    owner = getattr(stage, "__self__", None)
    if not isinstance(stage, types.FunctionType | types.MethodType):
        owner, stage = stage, type(stage).__call__
    function = getattr(stage, "__func__", stage)
    if not isinstance(function, types.FunctionType):  # it is written in C
        return {}
    code = function.__code__
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
    fields = {f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items() if name in code.co_names}
    return {"self": owner} | fields | held | {name: function.__globals__.get(name) for name in names}


def _takes_keys(stage: Any) -> bool:
    return (signature := _signature(stage)) is not None and "keys" in signature.parameters


def _signature(stage: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(stage)
    except (TypeError, ValueError):  # of a builtin, which has none
        return None


def words(positions: Any) -> np.ndarray:
    """int64 positions (...) as uint32 (..., 2), high word first: JAX may be limited to 32 bits."""
    positions = np.asarray(positions, np.int64)
    return np.stack([positions >> 32, positions & 0xFFFFFFFF], axis=-1).astype(np.uint32)


def _fold(key: Any, pair: Any) -> Any:
    return jax.random.fold_in(jax.random.fold_in(key, pair[0]), pair[1])
