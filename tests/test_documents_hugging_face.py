"""The samples of datarax's document on Hugging Face sources, as they are printed but for the package's name, by value.

Datasets of the hub are local folders of the same names here.
"""

import datasets
import flax.nnx as nnx
import jax
import numpy as np
import pytest

from datarax_ray.pipeline import Pipeline, prefetch_to_device
from datarax_ray.sources import HFEagerSource, HFStreamingSource, from_hf
from datarax_ray.sources.hf_source import HFEagerConfig, HFStreamingConfig
from tests import oracle

N = 50


def saved(name, columns, features=None):
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns, features=features)}).save_to_disk(name)


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hub")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        texts = [f"review {index}" for index in range(N)]
        labels = [index % 2 for index in range(N)]
        saved("imdb", {"text": texts, "label": labels})
        saved("c4", {"text": texts})
        saved("glue", {"sentence": texts, "label": labels, "idx": list(range(N))})
        images = [np.full((4, 4, 3), index, np.uint8) for index in range(N)]
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        saved("mnist", {"image": images, "label": labels}, features)
        yield directory


def as_list(values):
    return values if isinstance(values, list) else np.asarray(values).tolist()


def test_quick_start():
    processed = []

    def process(text, label):
        processed.append((str(text), int(label)))

    config = HFEagerConfig(name="imdb", split="train")
    source = HFEagerSource(config, rngs=nnx.Rngs(0))

    for item in source:
        text = item["text"]
        label = item["label"]
        process(text, label)
    assert processed == [(f"review {index}", index % 2) for index in range(N)]
    for item in source:  # a second loop
        process(item["text"], item["label"])
    assert processed[N:] == processed[:N]


def test_batches_cycle_through_the_epochs():
    source = HFEagerSource(HFEagerConfig(name="imdb", split="train"), rngs=nnx.Rngs(0))
    seen = []
    train_step = seen.append

    batch = source.get_batch(32)
    assert batch["text"].shape == (32,)
    assert batch["label"].shape == (32,)
    assert isinstance(batch["label"], jax.Array)

    for _step in range(20):
        batch = source.get_batch(32)
        train_step(batch)
    assert all(len(batch["text"]) > 0 for batch in seen)
    rows = [str(text) for batch in seen for text in batch["text"]]
    assert rows == [f"review {index % N}" for index in range(32, 32 + len(rows))]


def test_streaming_a_large_dataset():
    processed = []

    def process(item):
        processed.append(str(item["text"]))

    # The guide prints HFEagerConfig and HFEagerSource here, and the reference on the same page no field `streaming` of
    # them: what streams is the other config.
    config = HFStreamingConfig(
        name="c4",  # Common Crawl dataset (800GB+)
        split="train",
        streaming=True,
    )
    source = HFStreamingSource(config)

    for item in source:
        process(item)
    assert processed == [f"review {index}" for index in range(N)]


def test_shuffling():
    # as above: shuffle_buffer_size is a field of the streaming config alone
    config = HFStreamingConfig(
        name="imdb",
        split="train",
        shuffle=True,
        shuffle_buffer_size=10000,  # Buffer for streaming shuffle
        seed=42,
    )
    source = HFStreamingSource(config, rngs=nnx.Rngs(42))
    found = [str(item["text"]) for item in source]
    assert sorted(found) == sorted(f"review {index}" for index in range(N))
    assert found != [f"review {index}" for index in range(N)]

    config = HFEagerConfig(name="imdb", split="train", shuffle=True, seed=42)
    source = HFEagerSource(config, rngs=nnx.Rngs(42))
    assert [str(item["text"]) for item in source] == [f"review {index}" for index in oracle.order(N, 0, 42)]


def test_fields_are_chosen():
    config = HFEagerConfig(
        name="glue",
        split="train",
        include_keys={"sentence", "label"},  # Only these fields
    )
    assert set(next(iter(HFEagerSource(config)))) == {"sentence", "label"}
    config = HFEagerConfig(
        name="imdb",
        split="train",
        exclude_keys={"idx"},  # Everything except idx
    )
    with pytest.warns(UserWarning, match=r"exclude_keys names the columns \['idx'\], which the dataset has not"):
        assert set(next(iter(HFEagerSource(config)))) == {"text", "label"}
    config = HFEagerConfig(name="glue", split="train", exclude_keys={"idx"})
    assert set(next(iter(HFEagerSource(config)))) == {"sentence", "label"}


def test_a_pipeline():
    class Normalize(nnx.Module):
        def __call__(self, batch):
            return batch | {"image": batch["image"] / 255.0}

    class Augment(nnx.Module):
        def __call__(self, batch):
            return batch | {"image": batch["image"][:, ::-1]}

    normalize_op, augment_op = Normalize(), Augment()
    seen = []
    train_step = seen.append

    config = HFEagerConfig(name="mnist", split="train")
    source = HFEagerSource(config)

    pipeline = (
        Pipeline(source=source, stages=[normalize_op, augment_op], batch_size=64, rngs=nnx.Rngs(0)))  # fmt: skip

    for batch in pipeline:
        train_step(batch)
    assert [batch["image"].shape for batch in seen] == [(N, 4, 4, 3)]
    np.testing.assert_allclose(seen[0]["image"][:, 0, 0, 0], np.arange(N) / 255.0, rtol=1e-6)


def test_information(capsys):
    source = HFEagerSource(HFEagerConfig(name="mnist", split="train"))
    info = source.get_dataset_info()
    print(f"IndexedStream: {info.description}")
    print(f"Features: {info.features}")
    print(f"Dataset length: {len(source)}")
    out = capsys.readouterr().out
    assert "Features: {'image': Image(" in out
    assert "Dataset length: 50" in out


def test_the_example_of_the_eager_source():
    processed = []

    def process(image):
        processed.append(image)

    config = HFEagerConfig(name="mnist", split="train", shuffle=True)
    source = HFEagerSource(config, rngs=nnx.Rngs(0))

    for item in source:
        process(item["image"])
    order = oracle.order(N, 0, 42)
    assert [int(image[0, 0, 0]) for image in processed] == order

    batch = source.get_batch(32)  # Stateful
    assert batch["image"].shape == (32, 4, 4, 3)
    batch = source.get_batch(32, key=jax.random.key(0))  # Stateless
    expected = jax.random.permutation(jax.random.key(0), N)[:32].tolist()
    assert as_list(batch["image"][:, 0, 0, 0]) == expected


def test_the_example_of_the_streaming_source():
    seen = []
    train_step = seen.append

    config = HFStreamingConfig(name="mnist", split="train", streaming=True)
    source = HFStreamingSource(config, rngs=nnx.Rngs(0))

    for batch in prefetch_to_device(source, size=2):
        train_step(batch)
    assert [int(batch["image"][0, 0, 0]) for batch in seen] == list(range(N))
    assert all(isinstance(batch["image"], jax.Array) for batch in seen)


def test_the_factory_takes_the_one_that_fits():
    assert isinstance(from_hf("mnist", "train", shuffle=True, rngs=nnx.Rngs(0)), HFEagerSource)
    assert isinstance(from_hf("c4", "train", streaming=True, rngs=nnx.Rngs(0)), HFStreamingSource)
