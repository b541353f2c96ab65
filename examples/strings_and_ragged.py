"""What becomes of text, and of lists of different lengths? They stay on the host; numbers go to the device.

A transform is any function of an element, so what the model needs of them can be made into numbers there.
"""

import json
import tempfile
from pathlib import Path

import jax
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from datarax_ray import Pipeline
from datarax_ray.read.decode import DecodeJson
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule


def add_length(element):
    return element | {"length": np.int32(len(element["tokens"]))}


with tempfile.TemporaryDirectory() as directory:
    writer = ArrayRecordWriter(str(Path(directory) / "text.array_record"), "group_size:1")
    for line in ({"text": "hi", "tokens": [4]}, {"text": "there", "tokens": [7, 8, 9]}):
        writer.write(json.dumps(line).encode())
    writer.close()

    source = ArrayRecordSourceModule(
        ArrayRecordSourceConfig(num_epochs=1), directory, transforms=[DecodeJson(), add_length]
    )
    with Pipeline(source=source, batch_size=2) as pipeline:
        batch = pipeline.step()

for name, column in sorted(batch.items()):
    print(f"{name}: {type(column).__name__} {column.dtype} {column.tolist()}")
assert isinstance(batch["length"], jax.Array)
assert batch["length"].tolist() == [1, 3]
assert isinstance(batch["text"], np.ndarray)
assert batch["text"].tolist() == ["hi", "there"]
assert batch["tokens"].tolist() == [[4], [7, 8, 9]]
