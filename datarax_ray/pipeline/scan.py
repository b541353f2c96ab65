"""Train steps over a run of batches as one XLA program, which takes every batch from the host when it is due.

Over devices of several processes every step is a program of its own: an ordered callback runs in one process alone, and
lacks the rows of the others.

The first batch is an argument and gives the shapes. The others come through an ordered io_callback with a flag: whether
there is a batch. The loop ends with the first False. The callback never raises, because XLA would turn the error into
another one and fail all later ordered callbacks of the process. Errors are kept, and raised outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

from datarax_ray.feed.consumer import Begin, Consumer
from datarax_ray.pipeline.stages import Stages
from datarax_ray.pipeline.transfer import by_rows, constrain, spans_processes, to_device
from datarax_ray.plan.trainer_rows import TrainerRows
from datarax_ray.read.errors import Skipped
from datarax_ray.sources.base.device import check_callbacks


class FedBatch(NamedTuple):
    """The loop's input for one batch. row_words, start: uint32 (rows, 2) and (2,), see stages.words."""

    columns: Any
    row_words: Any
    start: Any


class Feed:
    """The host's side of one loop: the next `length` batches of a consumer, handed out together or not at all.

    key, begin: of the session that gives them, see Consumer.take.
    taken: called for each batch with the seconds waited for it, and its number of rows.
    too_few: makes the error for a stream with fewer batches.
    error: of the callback, None while there is none.
    """

    def __init__(
        self,
        consumer: Consumer,
        key: Any,
        begin: Begin,
        length: int,
        taken: Callable[[float, int], None],
        too_few: Callable[[int], Exception],
    ) -> None:
        self._consumer = consumer
        self._leg, self._session = consumer.opened(key, begin)
        self._consumed = self._leg.consumed
        self._skipped: list[Skipped] = []
        self._taken, self._too_few = taken, too_few
        self._last: FedBatch | None = None
        self.length = length
        self.num_taken = 0
        self.error: BaseException | None = None

    def take(self) -> FedBatch:
        """The next batch; an error gets a note with its place in the loop."""
        try:
            began = time.perf_counter()
            fed, after = self._session.next()
            self._skipped += after.skipped
            self._consumer.check(self._leg, self._skipped)
            if fed is None:
                raise self._too_few(self.num_taken)
            self._taken(time.perf_counter() - began, after.num_rows)
        except BaseException as error:
            error.add_note(
                f"at batch {self.num_taken} of the {self.length} of this scan, which has changed neither the modules "
                "nor the pipeline's position"
            )
            raise
        self._consumed, self._last = after, fed
        self.num_taken += 1
        return self._last

    def commit(self) -> None:
        """Hand the batches out. Raises: as Consumer.commit; then they are not handed out."""
        self._consumer.commit(self._leg, self._consumed, tuple(self._skipped))

    @property
    def is_committed(self) -> bool:
        """Whether all batches taken are handed out."""
        return self._leg.consumed is self._consumed

    def fail(self) -> None:
        self._leg.fail()

    def callback(self) -> tuple[np.bool_, FedBatch]:
        """(True, the next batch), or False with the last one again."""
        there = False
        if self.num_taken < self.length:
            try:
                self.take()
                there = True
            except BaseException as error:  # also KeyboardInterrupt: raised when the loop has ended
                self.error = error
        assert self._last is not None
        return np.bool_(there), self._last


@dataclass(frozen=True)
class _Program:
    """The key of a compiled loop, beside the shapes."""

    step_fn: Callable[..., Any]
    length: int
    has_carry: bool
    modules: Any  # graphdef
    stages: Any  # graphdef


class Scanner:
    """Runs loops over fed batches, compiled once for each step function, length and shapes."""

    def __init__(self, stages: Stages, sharding: NamedSharding | None, rows: TrainerRows) -> None:
        self._stages = stages
        self._sharding = sharding
        self._rows = rows
        self._feed: Feed | None = None
        self._run = jax.jit(self._trace, static_argnums=0)
        self._run_one = jax.jit(self._trace_one, static_argnums=0)

    def __call__(
        self,
        feed: Feed,
        step_fn: Callable[..., Any],
        modules: tuple[Any, ...],
        carry: Any,
    ) -> tuple[Any, Any]:
        """(carry, stacked outs) after a step for each batch; then they are handed out, and the modules updated."""
        graphdef, state = nnx.split(modules)
        stages_graphdef, stages_state = self._stages.split()
        program = _Program(step_fn, feed.length, carry is not None, graphdef, stages_graphdef)
        run = self._one_by_one if spans_processes(self._sharding) else self._all_in_one
        state, carry, outs = run(feed, program, state, stages_state, carry)
        try:
            feed.commit()
            nnx.update(modules, state)
        except BaseException:
            if feed.is_committed:  # an interrupt came in between: what moved the position changes the modules, too
                nnx.update(modules, state)
            raise
        return carry, outs

    def _all_in_one(self, feed: Feed, program: _Program, state: Any, stages_state: Any, carry: Any) -> Any:
        """(state, carry, outs) after the loop, which asks for its batches itself. Raises: as check_callbacks."""
        check_callbacks()
        columns, row_words, start = feed.take()
        columns = to_device(columns, self._sharding, self._rows, len(row_words))
        row_words = to_device(row_words, by_rows(self._sharding), self._rows, len(row_words))
        first = FedBatch(columns, row_words, start)
        self._feed = feed
        try:
            result = jax.block_until_ready(self._run(program, state, stages_state, carry, first))
        finally:
            self._feed = None
        if feed.error is not None:
            raise feed.error
        return result

    def _one_by_one(self, feed: Feed, program: _Program, state: Any, stages_state: Any, carry: Any) -> Any:
        """The same with a call for each step."""
        outs = None
        for index in range(program.length):
            one = replace(program, length=1)  # not compiled anew for another length
            state, carry, out = self._run_one(one, state, stages_state, carry, feed.take())
            outs = _first_of(program.length, out) if outs is None else _put(outs, out, index)
        return jax.block_until_ready((state, carry, outs))

    def _next(self) -> tuple[np.bool_, FedBatch]:
        assert self._feed is not None
        return self._feed.callback()

    def _trace(self, program: _Program, state: Any, stages_state: Any, carry: Any, first: FedBatch) -> Any:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (jnp.bool_(True), first))

        def fetch() -> tuple[Any, FedBatch]:
            there, (columns, row_words, start) = io_callback(self._next, like, ordered=True)
            columns, row_words = constrain(columns, self._sharding), constrain(row_words, by_rows(self._sharding))
            return there, FedBatch(columns, row_words, start)

        @jax.jit  # so that it is traced once for its outputs' shapes and the loop
        def step(state: Any, carry: Any, fed: FedBatch) -> Any:
            return self._trace_one(program, state, stages_state, carry, fed)

        def body(loop: Any) -> Any:
            index, _, fed, state, carry, outs = loop
            state, carry, out = step(state, carry, fed)
            return (index + 1, *fetch(), state, carry, _put(outs, out, index))

        *_, out = jax.eval_shape(step, state, carry, first)
        outs = jax.tree.map(lambda one: _room_for(program.length, one), out)
        loop = (jnp.int32(0), jnp.bool_(True), first, state, carry, outs)
        return jax.lax.while_loop(lambda loop: loop[1], body, loop)[3:]

    def _trace_one(self, program: _Program, state: Any, stages_state: Any, carry: Any, fed: FedBatch) -> Any:
        """(state, carry, out) after one step."""
        batch = self._stages.apply(program.stages, stages_state, fed.start, fed.row_words, fed.columns)
        # Fused with the train step, the stages could round otherwise than they do in iteration.
        return _step(program, state, carry, jax.lax.optimization_barrier(batch))


@jax.jit
def _put(outs: Any, out: Any, index: Any) -> Any:
    """The stacked outs with this one at its index."""
    return jax.tree.map(lambda to, one: jax.lax.dynamic_update_index_in_dim(to, one, index, 0), outs, out)


@partial(jax.jit, static_argnums=0)
def _first_of(length: int, out: Any) -> Any:
    """Room for `length` outs, made from the first out, so that it lies on the same devices."""
    return jax.tree.map(lambda one: jnp.broadcast_to(one, (length, *one.shape)), out)


def _room_for(length: int, one: jax.ShapeDtypeStruct) -> Any:
    room = jnp.zeros((length, *one.shape), one.dtype)
    if not isinstance(one.sharding, NamedSharding):
        return room
    # on a mesh with explicit axes the layout is a part of the type
    return jax.sharding.reshard(room, NamedSharding(one.sharding.mesh, PartitionSpec(None, *one.sharding.spec)))


def _step(program: _Program, state: Any, carry: Any, batch: Any) -> tuple[Any, Any, Any]:
    """(state, carry, out) after one call of the user's function."""
    modules = nnx.merge(program.modules, state)
    if program.has_carry:
        carry, out = program.step_fn(carry, *modules, batch)
    else:
        out = program.step_fn(*modules, batch)
    graphdef, state = nnx.split(modules)
    if graphdef != program.modules:
        raise ValueError(
            "step_fn adds or removes variables of its modules, or changes one of their fields that is no array, which "
            "a compiled loop cannot do. Call the step once before the scan to make them, or iterate the pipeline."
        )
    return state, carry, out
