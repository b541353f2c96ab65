"""Ready augmentations: the same bytes in one process, over actors, after a resume, padded and on a mesh."""

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from datarax_ray import (
    ColorJitter,
    Mixup,
    Pipeline,
    RandomAccessSource,
    RandomAccessSourceConfig,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    RaySource,
)
from tests.resume import assert_equal, assert_resumes, on_host, run_saving

PHOTOS = np.random.default_rng(0).integers(0, 256, (22, 40, 36, 3), np.uint8)
ALL = (RandomResizedCrop(24), RandomFlip(), RandomCrop(24, padding=4), ColorJitter(0.4, 0.4, 0.4, 0.1))


def source(*transforms, labels=None):
    labels = np.arange(22) % 5 if labels is None else labels
    config = RandomAccessSourceConfig(shuffle=True, seed=3, num_epochs=2)
    return RandomAccessSource(config, {"image": PHOTOS, "label": labels}, transforms=transforms)


def make(of, **options):
    return Pipeline(**{"source": of, "batch_size": 8, "stages": [Mixup(5)], "rngs": nnx.Rngs(1)} | options)


def test_augmented_batches_are_the_same_for_any_actors_and_after_a_resume(ray_local):
    batches, states = run_saving(make(source(*ALL)))
    assert len({image.tobytes() for batch in batches for image in batch["image"]}) == 44  # no two epochs are alike
    with make(RaySource(source(*ALL), num_actors=2)) as over_two:
        assert_equal(list(map(on_host, over_two)), batches)

    def resumed(number):
        return make(RaySource(source(*ALL), num_actors=1) if number == 3 else source(*ALL))

    assert_resumes(resumed, batches, states, every=3)


def test_each_row_is_mixed_with_the_row_before_it():
    plain, mixed = ([*map(on_host, make(source(), stages=s))] for s in ([], [Mixup(5)]))
    for before, after in zip(plain, mixed, strict=True):
        others = np.roll(np.arange(len(before["label"])), 1)
        labels = np.eye(5)[before["label"]]
        # The share, read off the image where the two differ most.
        images = before["image"].astype(float)
        differences = (images - images[others]).reshape(len(images), -1)
        at = np.abs(differences).argmax(axis=1)
        rows = np.arange(len(at))
        from_other = after["image"].reshape(len(at), -1)[rows, at] - images[others].reshape(len(at), -1)[rows, at]
        shares = (from_other / differences[rows, at])[:, None]
        assert after["image"].dtype == after["label"].dtype == np.float32
        np.testing.assert_allclose(after["label"], shares * labels + (1 - shares) * labels[others], atol=1e-4)
        s = shares[..., None, None]
        np.testing.assert_allclose(after["image"], s * images + (1 - s) * images[others], atol=0.02)


def test_shares_have_the_beta_distribution():
    for alpha in (0.3, 4.0):
        keys = jax.random.split(jax.random.key(0), 4000)
        batch = {"image": np.arange(4000, dtype=np.float32) % 2, "label": np.arange(4000, dtype=np.int32) % 2}
        shares = np.array(jax.jit(Mixup(2, alpha))(batch, keys)["image"])
        shares[::2] = 1 - shares[::2]  # rows of 0 show the other's share
        assert abs(shares.mean() - 0.5) < 0.03
        assert abs(shares.var() - 1 / (4 * (2 * alpha + 1))) < 0.01


def test_on_a_mesh_and_padded_the_rows_of_data_are_the_same():
    plain = [*map(on_host, make(source()))]
    mesh = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("data",)), PartitionSpec("data"))
    sharded = [*map(on_host, make(source(), sharding=mesh, pad_remainder=True))]
    for batch, want in zip(sharded, plain, strict=True):
        mask = batch.pop("valid_mask")
        for name, rows in want.items():
            np.testing.assert_allclose(batch[name][mask], rows, rtol=1e-6)
    assert mask.sum() == 4


def test_labels_that_are_shares_are_mixed_again_and_floats_keep_their_dtype():
    shares = np.random.default_rng(0).dirichlet(np.ones(5), 22).astype(np.float16)
    half = source(lambda element: element | {"image": element["image"].astype(np.float16)}, labels=shares)
    batch = on_host(make(half, stages=[Mixup()]).step())
    assert (batch["image"].dtype, batch["label"].dtype) == (np.float16, np.float16)
    np.testing.assert_allclose(batch["label"].sum(axis=1), 1, atol=0.01)


def test_a_label_that_is_no_class_is_nan_in_its_row_and_the_next():
    batch = {"image": np.zeros((4, 2), np.float32), "label": np.array([0, 9, 1, -1])}
    made = Mixup(2)(batch, jax.random.split(jax.random.key(0), 4))
    assert np.isnan(made["label"]).all(axis=1).tolist() == [True] * 4
    made = Mixup(2)(batch | {"label": np.array([0, 1, 1, 1])}, jax.random.split(jax.random.key(0), 4))
    assert not np.isnan(made["label"]).any()


@pytest.mark.parametrize(
    ("stage", "options", "message"),
    [
        (lambda: Mixup(0), {}, "num_classes must be at least 1"),
        (lambda: Mixup(5, 0), {}, "alpha must be more than 0"),
        (lambda: Mixup(5, label="y"), {}, "there is no field 'y'; the element has 'image', 'label'"),
        (lambda: Mixup(), {}, r"labels are int32 \(8,\); .* num_classes=10, .* and num_classes is None"),
        (lambda: Mixup(5, label="image"), {}, r"labels are uint8 \(8, 40, 36, 3\); .* num_classes is 5"),
        (lambda: Mixup(5), {"process_index": 0, "process_count": 2}, r"0 \(Mixup\) mixes rows .* by rank"),
    ],
)
def test_what_cannot_be_mixed_is_refused(stage, options, message):
    with pytest.raises(ValueError, match=message):
        make(source(), stages=[stage()], **options).step()
