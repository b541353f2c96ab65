"""Copies of what holds a position, and JAX's traces over it: they have one of their own, or are refused and say so."""

import copy
import pickle

import datasets
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.feed.source import Source
from datarax_ray.sources import (
    HFEagerConfig,
    HFEagerSource,
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests.programs import python

N = 20


class Scale(nnx.Module):
    def __init__(self):
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, batch):
        return {"x": batch["x"] * self.scale[...]}


def arrays():
    return RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), {"x": np.arange(N, dtype=np.float32)})


def dataset():
    return datasets.Dataset.from_dict({"x": np.arange(N, dtype=np.float32)})


def pipeline():
    return Pipeline(source=arrays(), batch_size=4, stages=[Scale()], rngs=nnx.Rngs(0))


SOURCES = {
    "arrays": arrays,
    "eager": lambda: HFEagerSource(HFEagerConfig(num_epochs=1), dataset=dataset()),
    "stream": lambda: HFStreamingSource(
        HFStreamingConfig(num_epochs=1), dataset=dataset().to_iterable_dataset(num_shards=2)
    ),
    "mixture": lambda: MixtureSource([arrays(), arrays()], length=N),
}
HOLDERS = {"pipeline": pipeline, "host source": lambda: Source(arrays().describe()), **SOURCES}
WAYS = {"copy.copy": copy.copy, "copy.deepcopy": copy.deepcopy, "pickle": pickle.dumps}
NNX_WAYS = {"nnx.clone": nnx.clone, "nnx.merge": lambda module: nnx.merge(*nnx.split(module))}


def begun(make):
    """One that reads ahead."""
    holder = make()
    holder.step() if isinstance(holder, Pipeline) else next(iter(holder))
    return holder


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", HOLDERS)
def test_a_copy_is_refused_with_what_to_do_instead(kind, way):
    holder = begun(HOLDERS[kind])
    with pytest.raises(TypeError, match=r"cannot be (copied|pickled): .* one position.*(set_state|clone\(\))"):
        WAYS[way](holder)
    with pytest.raises(TypeError, match="cannot be"):
        WAYS[way]({"nested": [holder]}) if way != "copy.copy" else copy.copy(holder)


@pytest.mark.parametrize("way", NNX_WAYS)
@pytest.mark.parametrize("kind", [kind for kind in HOLDERS if kind != "host source"])
def test_so_is_one_by_nnx_and_the_original_skips_nothing(kind, way):
    holder = begun(HOLDERS[kind])
    with pytest.raises(TypeError, match=r"cannot be made by nnx\.clone or nnx\.merge: both would move one position"):
        NNX_WAYS[way](holder)
    left = [np.asarray(batch["x"]).ravel().tolist() for batch in holder]
    whole = [np.asarray(batch["x"]).ravel().tolist() for batch in HOLDERS[kind]()]
    assert left == whole[1:]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_sources_own_clone_goes_on_from_its_state_alone(kind):
    source = begun(SOURCES[kind])
    clone = source.clone()
    left = [float(element["x"]) for element in clone]
    assert [float(element["x"]) for element in source] == left
    assert len(left) == N - 1


@pytest.mark.parametrize("kind", [kind for kind in HOLDERS if kind != "host source"])
def test_a_models_checkpoint_of_it_holds_no_data(kind):
    holder = HOLDERS[kind]()
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(nnx.state(holder)) if not isinstance(leaf, str)]
    assert max(sizes, default=0) <= 1
    assert "x" not in str(nnx.state(holder)).replace("index", "").replace("prefix", "")


class TestTraces:
    @pytest.mark.parametrize(
        "call",
        [
            lambda p: nnx.jit(lambda p: p.step())(p),
            lambda p: nnx.jit(lambda: p.step())(),
            lambda p: jax.jit(lambda: p.step())(),
            lambda p: jax.grad(lambda x: (p.step()["x"] * x).sum())(1.0),
            lambda p: nnx.jit(lambda p: next(iter(p)))(p),
            lambda p: nnx.jit(lambda p: p.scan(lambda batch: batch["x"], length=2))(p),
        ],
        ids=["nnx.jit", "nnx.jit of a closure", "jax.jit", "jax.grad", "iteration", "scan"],
    )
    def test_a_step_under_one_says_what_to_do_and_changes_nothing(self, call):
        going = begun(pipeline)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"a constant of the compiled program.*Call step\(\) outside.*scan"):
                call(going)
        assert [batch["x"].tolist() for batch in going] == [list(range(start, start + 4)) for start in range(4, N, 4)]

    def test_a_module_that_holds_a_pipeline_passes_through_and_is_compiled_once(self):
        class Trainer(nnx.Module):
            def __init__(self):
                self.pipeline = nnx.data(pipeline())
                self.weight = nnx.Param(jnp.zeros(()))

        traces = []

        @nnx.jit
        def train(trainer, batch):
            traces.append(1)
            trainer.weight[...] += batch["x"].sum()

        trainer = Trainer()
        for _ in range(N // 4):
            train(trainer, trainer.pipeline.step())
        assert float(trainer.weight[...]) == sum(range(N))
        assert trainer.pipeline.position == N
        assert len(traces) == 1


def test_a_closed_pipeline_says_so_and_gives_its_state():
    going = begun(pipeline)
    going.close()
    state = going.get_state()
    uses = (
        going.step,
        lambda: next(iter(going)),
        lambda: going.scan(lambda batch: batch, length=1),
        lambda: going.locate(0),
        lambda: going.replay(0, 1),
        lambda: going.digests(state),
        lambda: going.amend(skip=[1]),
    )
    for use in uses:
        with pytest.raises(RuntimeError, match=r"this Pipeline is closed; make a new one.*set_state\(old.get_state"):
            use()
    resumed = pipeline()
    resumed.set_state(going.get_state())
    assert resumed.step()["x"].tolist() == [4, 5, 6, 7]
    going.close()


EXITS = """
import numpy as np
from datarax_ray import Pipeline
from datarax_ray.pipeline.prefetch import prefetch_to_device
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
source = RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(99)})
pipeline = Pipeline(source=source, batch_size=4)
pipeline.step()
class Cycle: pass
cycle = Cycle(); cycle.me = cycle; cycle.pipeline = pipeline
prefetched = prefetch_to_device(Pipeline(source=source.copy(), batch_size=4))
next(prefetched)
import builtins
builtins.kept = (pipeline, prefetched)
print("done")
"""


def test_a_program_that_ends_with_one_open_says_nothing():
    done = python("-c", EXITS)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
