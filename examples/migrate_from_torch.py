"""How does a torch Dataset move here? It stays as it is; Pipeline and num_actors take the place of its DataLoader.

    loader = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2, collate_fn=...)      # before

A Dataset is anything with __len__ and __getitem__. Tuples become dicts in a transform, as fields have names here.
"""

import numpy as np

from datarax_ray import Pipeline, RandomAccessSource, RandomAccessSourceConfig

try:
    from torch.utils.data import Dataset  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # torch need not be installed
    Dataset = object  # type: ignore[misc,assignment,unused-ignore]


class Points(Dataset):  # pyright: ignore[reportGeneralTypeIssues]
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return np.full(3, index, np.float32), index % 2


def named(element):
    return {"point": element[0], "label": np.int32(element[1])}


def make():
    config = RandomAccessSourceConfig(shuffle=True, seed=0, num_epochs=2)
    return Pipeline(source=RandomAccessSource(config, Points(), transforms=named), batch_size=4)


with make() as pipeline:  # for 2 workers: RaySource(source, num_actors=2)
    epochs = [batch["point"][:, 0].astype(int).tolist() for batch in pipeline]
    print(epochs)

with make() as pipeline:  # what a DataLoader cannot: go on in the middle of an epoch
    pipeline.step()
    state = pipeline.get_state()
with make() as pipeline:
    pipeline.set_state(state)
    assert [batch["point"][:, 0].astype(int).tolist() for batch in pipeline] == epochs[1:]

rows = [row for batch in epochs for row in batch]
assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
assert rows[:10] != rows[10:]  # each epoch has an order of its own
