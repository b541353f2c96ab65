"""Makes the prepared dataset beside this file with TensorFlow Datasets itself.

In an environment of its own: `pip install tensorflow-datasets tensorflow-cpu array_record`, then `python make.py`.
"""

import json
import pathlib
import shutil

import numpy as np
import tensorflow_datasets as tfds

HERE = pathlib.Path(__file__).parent


class Small(tfds.core.GeneratorBasedBuilder):
    """11 training and 4 test examples with one feature of every common kind."""

    VERSION = tfds.core.Version("1.2.3")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "id": np.int64,
                    "label": tfds.features.ClassLabel(names=["cat", "dog", "owl"]),
                    "image": tfds.features.Image(shape=(4, 3, 3), encoding_format="png"),
                    "vector": tfds.features.Tensor(shape=(3,), dtype=np.float32),
                    "matrix": tfds.features.Tensor(shape=(2, 2), dtype=np.int32),
                    "flag": np.bool_,
                    "small": tfds.features.Scalar(dtype=np.uint8),
                    "wide": tfds.features.Tensor(shape=(2,), dtype=np.float64),
                    "text": tfds.features.Text(),
                    "tokens": tfds.features.Sequence(np.int32),
                    "words": tfds.features.Sequence(tfds.features.Text()),
                    "points": tfds.features.Sequence({"x": np.float32, "name": tfds.features.Text()}),
                    "nested": {"a": np.int64, "b": {"c": tfds.features.Tensor(shape=(2,), dtype=np.int64)}},
                    "zipped": tfds.features.Tensor(shape=(4,), dtype=np.uint16, encoding="zlib"),
                    "ragged": tfds.features.Sequence(tfds.features.Sequence(np.int64)),
                    "fixed_seq": tfds.features.Sequence(np.float32, length=2),
                    "photos": tfds.features.Sequence(tfds.features.Image(shape=(2, 2, 1), encoding_format="png")),
                    "dynamic": tfds.features.Tensor(shape=(None, None), dtype=np.int32, encoding="zlib"),
                    "huge": np.uint64,
                    "box": tfds.features.BBoxFeature(),
                    "both": tfds.features.Translation(languages=["de", "en"]),
                    "unknown": tfds.features.Tensor(shape=(None, 2), dtype=np.int64),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 11), "test": self._generate_examples(100, 104)}

    def _generate_examples(self, start, stop):
        for i in range(start, stop):
            yield (
                i,
                {
                    "id": i,
                    "label": i % 3,
                    "image": np.full((4, 3, 3), i, np.uint8),
                    "vector": np.array([i, i / 2, -i], np.float32),
                    "matrix": np.array([[i, i + 1], [i + 2, i + 3]], np.int32),
                    "flag": i % 2 == 0,
                    "small": i % 256,
                    "wide": np.array([i / 3, 1e300]),
                    "text": f"text {i} ä",
                    "tokens": list(range(i % 4)),
                    "words": [f"w{j}" for j in range(i % 3)],
                    "points": [{"x": float(j), "name": f"p{j}"} for j in range(i % 3)],
                    "nested": {"a": -i, "b": {"c": [i, 2 * i]}},
                    "zipped": np.array([i, 0, 0, 65535], np.uint16),
                    "ragged": [list(range(j)) for j in range(i % 3)],
                    "fixed_seq": [i / 2, 1.0],
                    "photos": [np.full((2, 2, 1), j, np.uint8) for j in range(i % 3)],
                    "dynamic": np.full((i % 2, 3), i, np.int32),
                    "huge": 2**64 - 1 - i,
                    "box": tfds.features.BBox(0.0, 0.25, 0.5, 1.0),
                    "both": {"de": f"d{i}", "en": f"e{i}"},
                    "unknown": np.arange(2 * (i % 3)).reshape(-1, 2),
                },
            )


SPLITS = [
    "train", "test", "all", "train+test", "train[:80%]", "train[80%:]", "train[-20%:]", "train[10%:50%]", "train[:3]",
    "train[3:9]", "train[-4:]", "train[:50%]+test[1:]", "train[33%:66%]", "train[1shard]", "train[:1shard]", "train[7]",
    "train[-1]", "train[4:4]", "train[10:100]", "test+train", "train[50:80%]", "train[:5.5%]", "train[-1shard:]",
    "train[:-1shard]", "train[1shard:2shard]", "train[:101%]", "train[:]", "train[::2]", "train [:3]", "dev", "all[:3]",
    "train[1_0:]", "train + test[:1]",
]  # fmt: skip


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [plain(item) for item in value]
    array = np.asarray(value)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": array.tolist()}


def instructions(builder, split):
    try:
        found = builder.info.splits[split].file_instructions
    except Exception as error:
        return type(error).__name__
    return [[pathlib.Path(i.filename).name, i.skip, i.take, i.examples_in_shard] for i in found]


if __name__ == "__main__":
    shutil.rmtree(HERE / "small", ignore_errors=True)
    builder = Small(data_dir=str(HERE), file_format="array_record")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
    builder = tfds.builder("small", data_dir=str(HERE))
    elements = {split: [plain(e) for e in builder.as_data_source(split)] for split in ("train", "test")}
    expected = {"elements": elements, "splits": {split: instructions(builder, split) for split in SPLITS}}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False))
