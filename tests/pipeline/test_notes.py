"""What an error in a stage or a transform says beside its own text: where it was raised, and of what."""

import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from datarax_ray import Pipeline, RandomAccessSource, RandomAccessSourceConfig


def elements(count=8):
    return [{"image": np.ones((2, 3), np.float32), "label": np.int32(3), "text": "a"} for _ in range(count)]


def make(*transforms, **options):
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), elements(), transforms=transforms)
    return Pipeline(source=source, batch_size=4, rngs=nnx.Rngs(0), **options)


def raised(pipeline, kind):
    """The notes of the error that the first batch raises, and the functions that its traceback leads through."""
    with pytest.raises(kind) as caught:
        next(iter(pipeline))
    frames = traceback.extract_tb(caught.value.__traceback__)
    return "\n".join(caught.value.__notes__), [frame.name for frame in frames if frame.name != "step"]


def scaled(batch):
    return batch | {"image": column(batch) * 2}


def column(batch):
    return batch["imgae"]


def test_an_error_in_a_stage_says_which_stage_what_it_was_given_and_what_it_does_not_see():
    notes, frames = raised(make(stages=[scaled]), KeyError)
    assert "in stage 0 (scaled), given image: float32 (4, 2, 3), label: int32 (4,)." in notes
    assert "Did you mean 'image'?" in notes
    assert "on the host, where stages do not see them: text; turn them into numbers in a transform" in notes
    assert frames == ["raised", "__next__", "scaled", "column"]


def test_so_does_one_behind_another_stage_in_a_graph_and_in_a_scan():
    def halved(batch):
        return {"half": batch["image"] / 2}

    pipeline = make(nodes={"a": halved, "b": scaled}, edges={"b": ["a"]}, sink="b")
    notes, _ = raised(pipeline, KeyError)
    assert "in stage b (scaled), given half: float32 (4, 2, 3)" in notes
    with pytest.raises(KeyError) as caught:
        make(stages=[scaled]).scan(lambda batch: batch["label"].sum(), length=2)
    assert "in stage 0 (scaled), given image: float32 (4, 2, 3)" in "\n".join(caught.value.__notes__)


def test_the_traceback_is_whole_where_jax_s_is():
    before = getattr(jax.config, "jax_traceback_filtering")  # noqa: B009
    jax.config.update("jax_traceback_filtering", "off")
    try:
        _, frames = raised(make(stages=[scaled]), KeyError)
    finally:
        jax.config.update("jax_traceback_filtering", before)
    assert {"finish", "scaled"} <= set(frames)


def test_what_a_stage_asks_for_and_nobody_gives_is_told_when_the_pipeline_is_made():
    def noisy(batch, key):
        return batch

    with pytest.raises(TypeError, match=r"stage 0 \(.*noisy\) .* 'key'. .* a parameter `keys`: it gets a PRNG"):
        make(stages=[noisy])
    with pytest.raises(TypeError, match=r"stage 0 \(.*\) is called with the batch: too many positional"):
        make(stages=[lambda: None])
    with pytest.raises(TypeError, match=r"stage both .* is called with the 2 batches that its edges name: too many"):
        make(nodes={"a": scaled, "b": scaled, "both": scaled}, edges={"both": ["a", "b"]}, sink="both")

    class Optional(nnx.Module):
        def __call__(self, batch, *, rngs=None, keys):
            return batch | {"x": jnp.ones(len(keys))}

    assert next(iter(make(stages=[Optional()])))["x"].shape == (4,)


def shifted(element):
    return {"x": looked_up(element)}


def looked_up(element):
    return element["lable"]


def test_an_error_in_a_transform_shows_the_element_and_begins_at_the_user_s_line():
    notes, frames = raised(make(shifted), ValueError)
    begin = notes.index("Traceback")
    assert notes[begin:].splitlines()[1].endswith("in shifted")
    assert "given image: float32 (2, 3), label: int32 (), text: str. Did you mean 'label'?" in notes
    assert frames == ["raised", "__next__"]


class Columns:
    def map_columns(self, columns):
        return {"x": columns["images"]}


def test_one_that_maps_columns_shows_these():
    notes, _ = raised(make(Columns()), ValueError)
    assert "given image: float32 (1, 2, 3), label: int32 (1,), text: object (1,). Did you mean 'image'?" in notes
