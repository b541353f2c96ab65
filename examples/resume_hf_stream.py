"""Does a shuffled Hugging Face stream go on exactly where it stopped? Yes: no element is lost, and none comes twice.

The state holds positions and the stream's own state, no data. Here the stream is numbers in four shards; by name it is
HFStreamingSource(HFStreamingConfig(name="allenai/c4", split="train", streaming=True, shuffle=True)).
"""

import datasets

from datarax_ray import HFStreamingConfig, HFStreamingSource, Pipeline


def make():
    stream = datasets.Dataset.from_dict({"number": range(120)}).to_iterable_dataset(num_shards=4)
    stream = stream.filter(lambda row: row["number"] % 3 > 0)  # of the dataset's own; it is resumed as well
    config = HFStreamingConfig(streaming=True, shuffle=True, shuffle_buffer_size=16, seed=5, num_epochs=2)
    return Pipeline(source=HFStreamingSource(config, dataset=stream), batch_size=10)


with make() as pipeline:
    whole = [batch["number"].tolist() for batch in pipeline]

with make() as pipeline:
    before = [pipeline.step()["number"].tolist() for _ in range(5)]
    state = pipeline.get_state()

with make() as pipeline:  # another program, later
    pipeline.set_state(state)
    after = [batch["number"].tolist() for batch in pipeline]

print(f"{len(whole)} batches; {len(before)} before the stop and {len(after)} after it")
assert before + after == whole
assert sorted(number for batch in whole for number in batch) == sorted(2 * [n for n in range(120) if n % 3])
