"""How do I read records that are tf.train.Example, as TFDS writes them? With DecodeExample; TensorFlow is not needed.

FixedLen features become dense arrays; VarLen ones stay lists on the host, until PadTo makes them one length.
"""

import tempfile
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter

from datarax_ray.read.decode import DecodeExample, FixedLen, PadTo, VarLen
from datarax_ray.read.decode.example import example_class
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule

Example = example_class()  # the message itself; with TensorFlow it is tf.train.Example


def serialized(label: int, tokens: list[int], name: bytes) -> bytes:
    example = Example()
    example.features.feature["label"].int64_list.value.append(label)
    example.features.feature["tokens"].int64_list.value.extend(tokens)
    example.features.feature["name"].bytes_list.value.append(name)
    return example.SerializeToString()


with tempfile.TemporaryDirectory() as directory:
    writer = ArrayRecordWriter(str(Path(directory) / "train.array_record"), "group_size:1")
    writer.write(serialized(3, [10, 11], b"first"))
    writer.write(serialized(5, [12], b"second"))
    writer.close()

    decode = DecodeExample({"label": FixedLen("int32"), "tokens": VarLen("int64"), "name": FixedLen("bytes")})
    source = ArrayRecordSourceModule(
        ArrayRecordSourceConfig(num_epochs=1),
        directory,
        transforms=[decode, PadTo({"tokens": 3}, dtype="int32", mask_suffix="_mask")],
    )
    batch = source.get_batch(2)

print(batch)
assert batch["label"].tolist() == [3, 5]
assert batch["tokens"].tolist() == [[10, 11, 0], [12, 0, 0]]
assert batch["tokens_mask"].tolist() == [[True, True, False], [True, False, False]]
assert batch["name"].tolist() == [b"first", b"second"]
