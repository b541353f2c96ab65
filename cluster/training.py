"""One trainer, from its checkpoint to the end: the only process of the job, or one of a JAX job's."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import source
from data_wait import DataWait
from etils import epath
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from learner import Learner, evaluate, learn
from only_job import RefusedError, only_job
from report import Report, progress
from stop_request import StopRequest
from stream_log import StreamLog

from datarax_ray import Pipeline, RaySource
from datarax_ray.checkpoint import PipelineRestore, PipelineSave
from datarax_ray.plan.fingerprint import DriftError

_LOOK_S = 0.2  # between two looks at whether a signal has come
_MAY_COME_S = 5.0  # for data that is on its way when a stop is asked for, of the minute or less that a stop gets
_STATUS = re.compile(r"([A-Z_]+): ")  # at the beginning of TensorStore's errors, which are ValueErrors of all causes
_LASTING = ("DATA_LOSS", "NOT_FOUND", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE")
_MAX_TO_KEEP = 3  # steps: the newest, and two to go back to should a disk spoil it


def run(options: argparse.Namespace, stop: StopRequest, wait: DataWait | None = None) -> str:
    """Resume and train, as the only process or as one of a JAX job's. Returns why the training ended.

    stop: asks for the end. wait: lets others end the wait for data; None if this is the only process.
    """
    logging.basicConfig()
    logging.getLogger("datarax_ray").setLevel(logging.INFO)  # which cluster it attached to, what was lost and retried
    is_first = jax.process_index() == 0
    with contextlib.ExitStack() as stack:
        if is_first:
            stack.enter_context(only_job(options.checkpoint_dir, stop))
        manager = stack.enter_context(checkpoints(options.checkpoint_dir))
        pipeline = stack.enter_context(make_pipeline(options))
        evaluation = make_evaluation(options, pipeline)
        if evaluation is not None:
            stack.enter_context(evaluation)
        learner = make_learner(pipeline, options.seed)
        step = restore(manager, learner, pipeline)
        if is_first and step is None:
            print(f"no checkpoint in {options.checkpoint_dir}: starting anew", flush=True)
        elif is_first:
            where = f"position {pipeline.position}) of {options.checkpoint_dir}"
            print(f"resumed from step {step} ({where}", flush=True)
        log = stack.enter_context(StreamLog(_own(options.stream_log), step or 0)) if options.stream_log else None
        shown = progress(_num_steps(pipeline), options.log_every) if is_first else contextlib.nullcontext(None)
        report = stack.enter_context(shown)
        if wait is None:
            wait = stack.enter_context(ended_by(stop))
        return train(learner, pipeline, evaluation, manager, step or 0, options, stop, wait, report, log)


def train(
    learner: Learner,
    pipeline: Pipeline,
    evaluation: Pipeline | None,
    manager: ocp.CheckpointManager,
    step: int,
    options: argparse.Namespace,
    stop: StopRequest,
    wait: DataWait,
    report: Report | None,
    log: StreamLog | None,
) -> str:
    """Consume, learn, save. Returns why the training ended. After an error nothing is saved: the batch may be half
    learned.
    """
    last = math.inf if options.steps is None else step + options.steps
    saved = step
    why = f"stopped after --steps {options.steps}"
    while step < last:
        if (signal_name := agreed(stop, step, options.stop_every)) is not None:
            why = f"stopped by {signal_name}"
            break
        begin = time.perf_counter()
        try:
            batch = wait.batch(pipeline, step)
        except StopIteration:
            why = "complete"
            break
        if batch is None:
            why = f"stopped by {stop.signal_name}, as no data came,"
            break
        waited_s = time.perf_counter() - begin
        loss = learn(learner, batch)
        step += 1
        if log is not None:
            log.append(step, pipeline.position, float(loss), {name: own_rows(batch[name]) for name in batch})
        if step % options.checkpoint_every == 0:
            _check(loss, step, saved)
            save(manager, step, learner, pipeline, log)
            saved = step
        if report is not None:
            report.waited(waited_s)
            report.step(step, pipeline, loss)
        if evaluation is not None and step % options.evaluate_every == 0:
            found = evaluated(learner, evaluation, step, options, stop, wait)
            if found is None:
                why = f"stopped by {stop.signal_name}, as no data came,"
                break
            if report is not None:
                report.show(step, f"step {step}: {found}")
    if step != saved:
        _check(loss, step, saved)
        save(manager, step, learner, pipeline, log)
    manager.wait_until_finished()
    kept = "none" if (latest := manager.latest_step()) is None else f"step {latest}"
    return f"{why} at step {step} (position {pipeline.position}); {kept} is saved"


def evaluated(
    learner: Learner, evaluation: Pipeline, step: int, options: argparse.Namespace, stop: StopRequest, wait: DataWait
) -> str | None:
    """The mean loss of all rows, in words; None if a stop has ended the wait for rows."""
    evaluation.seek(0)
    total, num_rows = 0.0, 0
    for number in itertools.count():
        if agreed(stop, number, options.stop_every):
            break
        try:
            batch = wait.batch(evaluation, step)
        except StopIteration:
            return f"evaluation loss {total / max(1, num_rows):.4f} of {num_rows:,} rows"
        if batch is None:
            return None
        rows = len(next(iter(batch.values())))
        total, num_rows = total + float(evaluate(learner, batch)) * rows, num_rows + rows
    return "the evaluation was stopped"


def _check(loss: jax.Array, step: int, saved: int) -> None:
    """Raise RefusedError for a loss that is not finite, before the model is saved."""
    if not math.isfinite(float(loss)):
        raise RefusedError(
            f"the loss of step {step} is {float(loss)}, so it is not saved: a label or token is negative, or not "
            f"below NUM_CLASSES ({source.NUM_CLASSES}) of source.py, or the learning rate of learner.py is too high. "
            f"Correct it and run the job again: it goes on from step {saved}"
        )


def agreed(stop: StopRequest, step: int, stop_every: int) -> str | None:
    """The signal to stop for, the same in every process: a process alone would wait for the others for ever.

    Several processes agree before each step that `stop_every` divides; an agreement takes milliseconds.
    """
    if jax.process_count() == 1:
        return stop.signal_name
    if step % stop_every:
        return None
    number = signal.Signals[stop.signal_name] if stop.signal_name else 0
    latest = int(multihost_utils.process_allgather(np.int32(number)).max())
    return signal.Signals(latest).name if latest else None


@contextlib.contextmanager
def ended_by(stop: StopRequest) -> Iterator[DataWait]:
    """Within the block a stop ends a wait for data, so that the model is saved even if readers are gone or hang."""
    is_over, wait = threading.Event(), DataWait()

    def look() -> None:
        while stop.signal_name is None:
            if is_over.wait(_LOOK_S):
                return
        while not is_over.wait(_MAY_COME_S):
            wait.decide(ends=wait.hold() is not None)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield wait
    finally:
        is_over.set()
        looking.join()


def own_rows(array: Any) -> np.ndarray:
    """The rows of a batch's field on this process's devices, in the order of the batch."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable:
        return np.asarray(array)
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def make_pipeline(options: argparse.Namespace) -> Pipeline:
    """The pipeline over the data of source.py, read by --num-actors Ray actors, or in this process if 0.

    Several processes divide the rows of each batch over all of their devices, and share the actors.
    """
    if not (options.data or source.TRAIN):
        raise RefusedError("there is no data: give --data, or write source.py by `datarax-ray cluster init DIR DATA`")
    train: Any = source.make_source(options.data, options.seed, options.num_epochs)
    if options.num_actors != 0:
        _by_value()
        labels = dict(options.actor_label) or None
        name = None if jax.process_count() == 1 else "readers"
        train = RaySource(train, num_actors=options.num_actors, label_selector=labels, name=name)
    return _pipeline(train, options, drop_remainder=options.drop_remainder)


def make_evaluation(options: argparse.Namespace, pipeline: Pipeline) -> Pipeline | None:
    """The pipeline for the evaluation, read by the actors of the training; None for no evaluation."""
    evaluation: Any = source.make_evaluation()
    train: Any = pipeline.source
    if evaluation is None:
        return None
    if options.num_actors != 0:
        evaluation = RaySource(evaluation, share=train)
    return _pipeline(evaluation, options, drop_remainder=jax.process_count() > 1)


def _pipeline(of: Any, options: argparse.Namespace, *, drop_remainder: bool) -> Pipeline:
    return Pipeline(
        source=of,
        stages=source.stages(),
        batch_size=options.batch_size,
        packing=source.PACKING,
        sharding=None if jax.process_count() == 1 else NamedSharding(_mesh(), PartitionSpec("rows")),
        drop_remainder=drop_remainder,
    )


def _by_value() -> None:
    """Send functions of source.py by value: actors need not find the file, nor load JAX with it."""
    import ray  # in here, as a run with --num-actors 0 does without

    ray.cloudpickle.register_pickle_by_value(source)


def make_learner(pipeline: Pipeline, seed: int) -> Learner:
    """The learner for the fields of the data, the same in every process."""
    train: Any = pipeline.source
    learner = Learner(train.element_spec(), source.NUM_CLASSES, seed)
    if jax.process_count() > 1:
        values = jax.tree.map(np.asarray, nnx.state(learner))
        nnx.update(learner, jax.device_put(values, NamedSharding(_mesh(), PartitionSpec())))
    return learner


def checkpoints(directory: epath.Path) -> ocp.CheckpointManager:
    """Steps in `directory`, saved while training goes on. An unfinished step does not count, and is removed."""
    options = ocp.CheckpointManagerOptions(max_to_keep=_MAX_TO_KEEP, cleanup_tmp_directories=True)
    return ocp.CheckpointManager(directory, options=options)


def save(
    manager: ocp.CheckpointManager, step: int, learner: Learner, pipeline: Pipeline, log: StreamLog | None
) -> None:
    """Begin to save one step: the model, the optimizer, and the position after the last learned batch."""
    if log is not None:
        log.sync()
    state = ocp.args.StandardSave(nnx.state(learner))
    manager.save(step, args=ocp.args.Composite(model=state, data=PipelineSave(pipeline)))


def restore(manager: ocp.CheckpointManager, learner: Learner, pipeline: Pipeline) -> int | None:
    """Bring learner and pipeline back to the newest complete step. Returns the step, None if there is none.

    Raises: DriftError if the checkpoint belongs to other data, seed or batch size; RefusedError if it is damaged, or of
    another model or a newer release; Orbax's errors if storage fails for a while.
    """
    step = manager.latest_step()
    if step is None:
        return None
    shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, nnx.state(learner))
    args = ocp.args.Composite(model=ocp.args.StandardRestore(shapes), data=PipelineRestore(pipeline))
    try:
        restored = manager.restore(step, args=args)
    except Exception as error:
        error.add_note(f"while restoring step {step} of {manager.directory}")
        if isinstance(error, DriftError) or not _lasts(error):
            raise
        earlier = max((each for each in manager.all_steps() if each < step), default=None)
        raise RefusedError(
            f"step {step} of {manager.directory} cannot be restored ({type(error).__name__}: {error}). If it is "
            f"damaged, rename {manager.directory / str(step)} to {step}.damaged and run the job again: the job "
            + ("starts anew, as no earlier step is kept" if earlier is None else f"goes on from step {earlier}")
        ) from error
    nnx.update(learner, restored.model)
    return step


def _lasts(error: BaseException) -> bool:
    """Whether an error of restoring would come again. Orbax raises many classes for files that are cut or missing."""
    while error.__cause__ is not None:
        error = error.__cause__
    code = _STATUS.match(str(error))
    return isinstance(error, ValueError | KeyError | FileNotFoundError) and (code is None or code[1] in _LASTING)


def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("rows",))


def _own(path: str) -> str:
    """The log's path for this process: `path`, or with its process_index before the suffix if there are several."""
    stem, suffix = os.path.splitext(path)
    return path if jax.process_count() == 1 else f"{stem}-{jax.process_index()}{suffix}"


def _num_steps(pipeline: Pipeline) -> int | None:
    stop = pipeline.source.describe().stop
    return None if stop is None else -(-stop // pipeline.batch_size)
