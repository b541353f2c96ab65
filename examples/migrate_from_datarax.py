"""How does a datarax program move here? By its imports; names, signatures and what they document are the same.

    from datarax.sources import HFEagerConfig, HFEagerSource      # before
    from datarax.pipeline import Pipeline

What differs: an order in every epoch, exact states, and RaySource(source, num_actors=64) around the source.
"""

import datasets
import jax
import numpy as np
from flax import nnx

from datarax_ray.pipeline import Pipeline
from datarax_ray.sources import HFEagerConfig, HFEagerSource


class Scale(nnx.Module):
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, batch):
        return batch | {"x": batch["x"] * self.factor}


def make():
    dataset = datasets.Dataset.from_dict({"x": np.arange(20, dtype=np.float32)})
    source = HFEagerSource(HFEagerConfig(shuffle=True, seed=42), dataset=dataset, rngs=nnx.Rngs(0))
    return Pipeline(source=source, stages=[Scale(0.5)], batch_size=8, rngs=nnx.Rngs(0))


pipeline = make()
epoch = [batch["x"] for batch in pipeline]
print([batch.shape for batch in epoch], type(epoch[0]).__name__)
assert isinstance(epoch[0], jax.Array)
assert sorted(np.concatenate(epoch).tolist()) == [number / 2 for number in range(20)]

pipeline = make()
pipeline.step()
state = pipeline.get_state()  # a few hundred bytes, where datarax saves the permutation
pipeline = make()
pipeline.set_state(state)
assert np.array_equal(pipeline.step()["x"], epoch[1])
