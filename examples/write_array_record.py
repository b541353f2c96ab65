"""How do I write ArrayRecord files for this? With array_record's writer, one file per shard, records of bytes.

group_size is how many records are compressed together: 1 for few large records, hundreds for many small ones.
"""

import tempfile
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from datarax_ray.read.decode import DecodeFields
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule

NUM_SHARDS, RECORDS_PER_SHARD = 3, 100

with tempfile.TemporaryDirectory() as directory:
    for shard in range(NUM_SHARDS):
        path = Path(directory) / f"train-{shard:05d}-of-{NUM_SHARDS:05d}.array_record"
        writer = ArrayRecordWriter(str(path), "group_size:64")
        for index in range(shard * RECORDS_PER_SHARD, (shard + 1) * RECORDS_PER_SHARD):
            tokens = np.arange(index, index + 4, dtype=np.int32)
            writer.write(tokens.tobytes() + np.float32(index / 2).tobytes())
        writer.close()  # writes the index; a file without it is refused, by name, when the source is made

    source = ArrayRecordSourceModule(
        ArrayRecordSourceConfig(num_epochs=1),
        directory,  # or a glob, or a list of paths
        transforms=[DecodeFields({"tokens": ("int32", (4,)), "weight": ("float32", ())})],
    )
    batch = source.get_batch(len(source))

print(f"{len(source)} records: tokens {batch['tokens'].dtype} {batch['tokens'].shape}")
assert batch["tokens"][:, 0].tolist() == list(range(300))
assert batch["weight"].tolist() == [index / 2 for index in range(300)]
