"""`datarax-ray demo`: train, stop halfway, go on with more actors, and compare every batch with an undisturbed run."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import ray
from flax import nnx
from rich.console import Console

from datarax_ray import Pipeline, RaySource
from datarax_ray.actors.connection import start_local
from datarax_ray.checkpoint import PipelineRestore, PipelineSave
from datarax_ray.cli import digits
from datarax_ray.cli.screen import Screen
from datarax_ray.read.decode import DecodeFields
from datarax_ray.read.elements.row_digests import rows_digest
from datarax_ray.record_progress import RecordProgress
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule

BATCH_SIZE = 64
# Measured with five seeds: 15 epochs of this gradient descent read 98.0 to 98.7 % of the test images right.
NUM_EPOCHS, LEARNING_RATE, MOMENTUM = 15, 0.1, 0.9
MIN_ACCURACY = 0.95
ACTORS_BEFORE, ACTORS_AFTER = 2, 3
# A few megabytes are in flight; Ray's own default is a large part of the machine's memory.
_OBJECT_STORE_NBYTES = 128 * 2**20


class Classifier(nnx.Module):
    """Two convolutions and a linear layer, about 10,000 parameters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.linear = nnx.Linear(4 * 4 * 32, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """image: float32 (batch, 8, 8, 1). Returns logits: float32 (batch, 10)."""
        x = nnx.relu(self.conv1(image))
        x = nnx.max_pool(nnx.relu(self.conv2(x)), (2, 2), (2, 2))
        return self.linear(x.reshape(x.shape[0], -1))


class Training:
    """A classifier and its gradient descent. state: everything that training changes, as a tree that Orbax saves."""

    def __init__(self, seed: int) -> None:
        self.graph, weights = nnx.split(Classifier(nnx.Rngs(seed)))
        self.state: dict[str, Any] = {"weights": weights, "velocity": jax.tree.map(jnp.zeros_like, weights)}

    def step(self, batch: dict[str, jax.Array]) -> jax.Array:
        """Train on one batch. Returns the loss: float32 ()."""
        self.state, loss = _train_step(self.graph, self.state, batch)
        return loss

    def accuracy(self, batch: dict[str, jax.Array]) -> float:
        """The share of the batch's images that are read right."""
        model = nnx.merge(self.graph, self.state["weights"])
        return float((model(batch["image"]).argmax(1) == batch["label"]).mean())


@functools.partial(jax.jit, static_argnums=0)
def _train_step(graph: Any, state: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], jax.Array]:
    def loss_of(weights: Any) -> jax.Array:
        logs = jax.nn.log_softmax(nnx.merge(graph, weights)(batch["image"]))
        return -jnp.take_along_axis(logs, batch["label"][:, None].astype(jnp.int32), 1).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state["weights"])
    velocity = jax.tree.map(lambda old, gradient: MOMENTUM * old + gradient, state["velocity"], gradients)
    weights = jax.tree.map(lambda old, step: old - LEARNING_RATE * step, state["weights"], velocity)
    return {"weights": weights, "velocity": velocity}, loss


def normalize(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """A Pipeline stage: image uint8 (batch, 8, 8), 0 to 16, becomes float32 (batch, 8, 8, 1), 0 to 1."""
    return batch | {"image": batch["image"][..., None].astype(jnp.float32) / 16}


def demo(seed: int, screen: Screen) -> None:
    begin = time.monotonic()
    out = screen.err if screen.as_json else screen.out
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="datarax-ray-demo-")))
        source = train_source(seed)
        num_files = source.describe().reader.fingerprint()["num_files"]
        num_batches = math.ceil(NUM_EPOCHS * len(source) / BATCH_SIZE)
        half = num_batches // 2
        out.print(f"[bold]{len(source):,} handwritten digits[/] in {num_files} ArrayRecord files", markup=True)
        out.print(f"{NUM_EPOCHS} shuffled epochs are {num_batches} batches of {BATCH_SIZE}. Starting a local Ray ...")
        stack.enter_context(local_ray())

        training = Training(seed)
        with pipeline_over(source, ACTORS_BEFORE) as pipeline:
            first = train(training, pipeline, half, out, f"{ACTORS_BEFORE} actors")
            with ocp.CheckpointManager(directory) as manager:
                model = ocp.args.StandardSave(training.state)
                manager.save(half, args=ocp.args.Composite(model=model, data=PipelineSave(pipeline)))
        out.print(f"Stopped after batch {half}: pipeline closed, actors ended. One checkpoint holds")
        nbytes = sum(file.stat().st_size for file in (directory / str(half) / "data").iterdir() if file.is_file())
        out.print(f"the model, its optimizer, and the data's position ({nbytes:,} bytes).")

        training = Training(seed + 1)  # other weights: only the checkpoint can make them right
        with pipeline_over(train_source(seed), ACTORS_AFTER) as pipeline:
            with ocp.CheckpointManager(directory) as manager:
                model = ocp.args.StandardRestore(training.state)
                items = ocp.args.Composite(model=model, data=PipelineRestore(pipeline))
                training.state = manager.restore(manager.latest_step(), args=items)["model"]
            out.print(f"Restored into a new model and a new pipeline, with {ACTORS_AFTER} actors.")
            second = train(training, pipeline, None, out, f"{ACTORS_AFTER} actors")

    out.print("To compare, the same batches in one process, without Ray and without a stop:")
    with Pipeline(source=train_source(seed), stages=[normalize], batch_size=BATCH_SIZE) as pipeline:
        reference = [digest(batch) for batch in pipeline]
    compare(reference[:half], first, 1, f"{ACTORS_BEFORE} actors", out)
    compare(reference[half:], second, half + 1, f"{ACTORS_AFTER} actors", out)
    accuracy = judge(training, out)
    out.print(f"Done in {time.monotonic() - begin:.0f} s.", style="dim")
    screen.answer({"num_batches": num_batches, "num_identical": num_batches, "accuracy": accuracy}, [])


def train_source(seed: int) -> ArrayRecordSourceModule:
    """The training digits, shuffled and randomly shifted, by this seed."""
    config = ArrayRecordSourceConfig(seed=seed, shuffle_files=True, num_epochs=NUM_EPOCHS)
    return ArrayRecordSourceModule(config, digits.TRAIN, transforms=[DecodeFields(digits.FIELDS), digits.RandomShift()])


def pipeline_over(source: ArrayRecordSourceModule, num_actors: int) -> Pipeline:
    return Pipeline(source=RaySource(source, num_actors=num_actors), stages=[normalize], batch_size=BATCH_SIZE)


def train(training: Training, pipeline: Pipeline, num_batches: int | None, out: Console, who: str) -> list[str]:
    digests = []
    with RecordProgress(out, who, pipeline.source.describe().stop, done=pipeline.position) as progress:
        for batch in islice(pipeline, num_batches):
            loss = training.step(batch)
            digests.append(digest(batch))
            progress.advance(len(batch["label"]), note=f"loss {float(loss):.3f}")
    return digests


def digest(batch: dict[str, Any]) -> str:
    """A digest of the names, dtypes, shapes and values of a batch."""
    return rows_digest({name: np.asarray(column) for name, column in batch.items()})


def compare(expected: list[str], found: list[str], number: int, who: str, out: Console) -> None:
    same = sum(one == other for one, other in zip(expected, found, strict=False))
    line = f"batches {number}..{number + len(expected) - 1}: {same} of {len(expected)} identical, read by {who}"
    if same < max(len(expected), len(found)):
        raise RuntimeError(
            f"{line} ({len(found)} came). Every batch should be; please report this with the seed and `pip freeze`."
        )
    out.print(f"[green]ok[/]  {line}", markup=True)


def judge(training: Training, out: Console) -> float:
    config = ArrayRecordSourceConfig(num_epochs=1)
    source = ArrayRecordSourceModule(config, digits.TEST, transforms=[DecodeFields(digits.FIELDS)])
    with Pipeline(source=source, stages=[normalize], batch_size=len(source)) as pipeline:
        accuracy = training.accuracy(pipeline.step())
    line = f"accuracy on {len(source)} test images: {accuracy:.1%}"
    if accuracy < MIN_ACCURACY:
        raise RuntimeError(f"{line}; below {MIN_ACCURACY:.0%} the model was not trained, or not restored.")
    out.print(f"[green]ok[/]  {line}", markup=True)
    return accuracy


@contextlib.contextmanager
def local_ray() -> Iterator[None]:
    start_local(
        "local",
        num_cpus=ACTORS_AFTER,
        object_store_memory=_OBJECT_STORE_NBYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()
