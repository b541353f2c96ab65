"""How do I train by `ray job submit`, and go on after a stop? As with any script: it joins the cluster that runs it.

    ray job submit --working-dir examples -- python submit_job.py --checkpoint-dir /ckpt/run --steps 100
    ray job submit --working-dir examples -- python submit_job.py --checkpoint-dir /ckpt/run --steps 200 --num-actors 8

The second goes on at step 101, with other actors. Data and checkpoints are under paths that every node sees.
`datarax-ray cluster init` writes a larger job: saved when it is stopped, run again when it fails, of several trainers.
"""

import argparse
import tempfile

import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx

from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, DecodeFields, Pipeline, RaySource
from datarax_ray.checkpoint import PipelineRestore, PipelineSave
from datarax_ray.cli import digits

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint-dir", default=tempfile.mkdtemp())
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--num-actors", type=int, default=2)
arguments = parser.parse_args()

config = ArrayRecordSourceConfig(shuffle=True, seed=1)  # endless
reader = ArrayRecordSourceModule(config, digits.TRAIN, transforms=[DecodeFields(digits.FIELDS), digits.RandomShift()])
source = RaySource(reader, num_actors=arguments.num_actors, num_cpus=0.5)

model = nnx.Linear(64, 10, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(3e-2), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, batch):
    def loss_of(model):
        logits = model(batch["image"].reshape(-1, 64).astype(jnp.float32) / 16)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"].astype(jnp.int32)).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def items(model_as, data_as):
    """What one step of the checkpoint holds, to be saved or restored."""
    return ocp.args.Composite(model=model_as(nnx.to_pure_dict(nnx.state((model, optimizer)))), data=data_as(pipeline))


with Pipeline(source=source, batch_size=64) as pipeline, ocp.CheckpointManager(arguments.checkpoint_dir) as manager:
    done = manager.latest_step() or 0
    if done:
        saved = manager.restore(done, args=items(ocp.args.StandardRestore, PipelineRestore))
        state = nnx.state((model, optimizer))
        nnx.replace_by_pure_dict(state, saved["model"])
        nnx.update((model, optimizer), state)
    for step in range(done + 1, arguments.steps + 1):
        loss = train_step(model, optimizer, pipeline.step())
        print(f"step {step}: loss {loss:.6f}, at record {pipeline.position}", flush=True)
        if step % 10 == 0 or step == arguments.steps:
            manager.save(step, args=items(ocp.args.StandardSave, PipelineSave))
    print(f"trained steps {done + 1} to {arguments.steps}")
