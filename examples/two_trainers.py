"""How do several trainers share one stream? Each takes its rows of every global batch; by rank they are the batch.

In a JAX multi-process job process_index and process_count are taken from JAX; here both trainers are in one process.
"""

import numpy as np

from datarax_ray import Pipeline
from datarax_ray.cli import digits
from datarax_ray.read.decode import DecodeFields
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule


def batches(process_index, process_count):
    config = ArrayRecordSourceConfig(seed=1, shuffle_files=True, num_epochs=1)
    source = ArrayRecordSourceModule(config, digits.TRAIN, transforms=[DecodeFields(digits.FIELDS)])
    with Pipeline(  # batch_size is of the global batch, whatever the number of trainers
        source=source, batch_size=128, process_index=process_index, process_count=process_count
    ) as pipeline:
        return [np.asarray(batch["image"]) for batch in pipeline]


whole = batches(0, 1)
trainers = [batches(0, 2), batches(1, 2)]

for k, batch in enumerate(whole):
    assert np.array_equal(np.concatenate([trainer[k] for trainer in trainers]), batch)
print(f"{len(whole)} batches; rows of each trainer: {[len(b) for b in trainers[0]]}, {[len(b) for b in trainers[1]]}")
# The last batch is short, and is split as evenly as it can be.
assert [len(trainer[-1]) for trainer in trainers] == [44, 45]
