"""How do I mix datasets in fixed proportions, and change these? With MixtureSource, and amend.

Of any first n records each dataset has its share to within 4 records; each goes on through its own epochs, untouched by
the weights of the others.
"""

from collections import Counter

import numpy as np

from datarax_ray import MixtureSource, Pipeline, RandomAccessSource, RandomAccessSourceConfig

SIZES = {"web": 700, "code": 200, "books": 100}


def dataset(kind, size):
    elements = {"kind": np.full(size, list(SIZES).index(kind)), "number": np.arange(size)}
    return RandomAccessSource(RandomAccessSourceConfig(shuffle=True, seed=1), elements)


def make(weights):
    components = [dataset(kind, size) for kind, size in SIZES.items()]
    return Pipeline(source=MixtureSource(components, weights=weights), batch_size=100)


def counted(pipeline, num_batches):
    kinds: Counter[str] = Counter()
    numbers: list[list[int]] = [[], [], []]
    for _ in range(num_batches):
        batch = pipeline.step()
        kinds.update(np.asarray(list(SIZES))[batch["kind"]].tolist())
        for kind, number in zip(batch["kind"].tolist(), batch["number"].tolist(), strict=True):
            numbers[kind].append(number)
    return kinds, numbers


with make(weights=[7, 2, 1]) as pipeline:
    first, seen = counted(pipeline, 5)
    state = pipeline.get_state()
print("weights 7, 2, 1:", dict(first))

with make(weights=[7, 2, 1]) as pipeline:
    pipeline.set_state(state)
    pipeline.amend(weights=[4, 5, 1])  # more code from here on, also for whoever resumes later
    second, rest = counted(pipeline, 2)
print("weights 4, 5, 1:", dict(second))

assert all(abs(first[kind] - 500 * share) <= 4 for kind, share in zip(SIZES, (0.7, 0.2, 0.1), strict=True))
assert all(abs(second[kind] - 200 * share) <= 4 for kind, share in zip(SIZES, (0.4, 0.5, 0.1), strict=True))
code = seen[1] + rest[1]
assert len(set(code[:200])) == min(len(code), 200)  # none repeated within its epoch, though the weights changed
