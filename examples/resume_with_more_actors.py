"""How do I stop a run and go on with another number of actors? Save the pipeline beside the model, in one Orbax step.

The checkpoint does not know how many actors there were: what is left comes as if nothing had happened.
"""

import tempfile

import numpy as np
import orbax.checkpoint as ocp

from datarax_ray import Pipeline, RaySource
from datarax_ray.checkpoint import PipelineRestore, PipelineSave
from datarax_ray.cli import digits
from datarax_ray.read.decode import DecodeFields
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule


def make_source():
    config = ArrayRecordSourceConfig(seed=7, shuffle_files=True, num_epochs=2)
    return ArrayRecordSourceModule(config, digits.TRAIN, transforms=[DecodeFields(digits.FIELDS)])


weights = {"w": np.arange(3.0)}  # stands for the model's state

with tempfile.TemporaryDirectory() as directory:
    source = RaySource(make_source(), num_actors=1)
    with Pipeline(source=source, batch_size=100) as pipeline, ocp.CheckpointManager(directory) as manager:
        for _ in range(12):
            pipeline.step()
        manager.save(12, args=ocp.args.Composite(model=ocp.args.StandardSave(weights), data=PipelineSave(pipeline)))

    source = RaySource(make_source(), num_actors=2)
    with Pipeline(source=source, batch_size=100) as pipeline, ocp.CheckpointManager(directory) as manager:
        items = ocp.args.Composite(model=ocp.args.StandardRestore(weights), data=PipelineRestore(pipeline))
        manager.restore(manager.latest_step(), args=items)
        rest = [np.asarray(batch["image"]) for batch in pipeline]

with Pipeline(source=make_source(), batch_size=100) as pipeline:  # the same without Ray, and without a stop
    expected = [np.asarray(batch["image"]) for batch in pipeline]

print(f"{len(expected)} batches: 12 before the stop with 1 actor, {len(rest)} after it with 2 actors")
assert len(rest) == len(expected) - 12 == 18
assert all(np.array_equal(one, other) for one, other in zip(rest, expected[12:], strict=True))
