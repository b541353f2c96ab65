"""How does text become rows of one length? Documents are packed; a stop in the middle of one loses no token.

The text is Python's own standard library, a byte for a token. Two Ray actors read and tokenise the files.
"""

import sysconfig
from pathlib import Path

import numpy as np

from datarax_ray import ConcatThenSplit, Pipeline, RaySource
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig

PATHS = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-d]*.py"))


def tokenise(path):
    text = Path(path).read_bytes()
    return {"tokens": np.frombuffer(b"\0" + text, np.uint8).astype(np.int32)}  # 0 begins a document


def make(source):
    return Pipeline(source=source, batch_size=8, packing=ConcatThenSplit(seq_len=512, fields="tokens"))


source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1, shuffle=True), PATHS, transforms=[tokenise])
first, rest = [], []
with make(source) as pipeline:
    for batch in pipeline:
        first.append(np.asarray(batch["tokens"]))
        if len(first) == 7:
            break
    state = pipeline.get_state()
print(f"stopped at record {state['position']}, {state['rest']}: row 0 of the next batch begins there")

with RaySource(source, num_actors=2, num_cpus=0.5) as distributed, make(distributed) as pipeline:
    pipeline.set_state(state)
    for batch in pipeline:
        rest.append(np.asarray(batch["tokens"]).reshape(-1))
        num_padded = int((batch["tokens_segment_ids"] == 0).sum())

tokens = np.concatenate([*map(np.ravel, first), *rest])
wanted = np.concatenate([element["tokens"] for element in source.get_batch_at(0, len(PATHS))])
assert tokens[: len(wanted)].tolist() == wanted.tolist()
assert len(tokens) == len(wanted) + num_padded < len(wanted) + 512
print(f"{len(PATHS)} files, {len(wanted):,} tokens: each once, in {len(first) + len(rest)} batches of 8 x 512")
