"""A state sees what a dataset of Grain or torch is made of: what its layers are set to, and the functions they run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pandas as pd
import pytest

from datarax_ray import Pipeline
from datarax_ray.grain import DataLoader
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.formats.random_access import RandomAccessReader
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.data import write_file


class Scale(grain.transforms.Map):
    def __init__(self, by: int) -> None:
        self.by = by

    def map(self, element: Any) -> Any:
        return {"x": element * self.by}


class Noise(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return {"x": element["x"] + rng.integers(9)}


def chain(
    seed: int = 1, by: int = 2, start: int = 0, weight: float = 0.5, size: int = 100, noise: int = 0, least: int = -1
) -> grain.MapDataset:
    first = grain.MapDataset.source(np.arange(size)).shuffle(seed=seed)[start::2].map(Scale(by))
    second = grain.MapDataset.source(list(range(60))).filter(lambda x: x > least).map(Scale(3)).seed(noise)
    return grain.MapDataset.mix([first, second.random_map(Noise())], [weight, 1 - weight])


def pipeline(data: Any) -> Pipeline:
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), data)
    return Pipeline(source=source, batch_size=7, on_host=True)


def state_of(data: Any) -> dict[str, Any]:
    made = pipeline(data)
    made.step()
    return json.loads(json.dumps(made.get_state()))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 2}, r"files\.layers\.3 ShuffleMapDataset: .*seed=1', this pipeline has .*seed=2'"),
        ({"by": 5}, r"files\.functions\.digest: number 0 \(Scale\)"),
        ({"start": 1}, r"files\.layers\.2 SliceMapDataset: .*start=0.*start=1"),
        ({"weight": 0.25}, r"files\.layers\.\d MixedMapDataset|SelectionWithProportionsMap: .*proportions="),
        ({"size": 101}, r"files\.layers\.4 SourceMapDataset: .*source="),
        ({"noise": 7}, r"_WithSeedMapDataset: .*seed_rng_seed=0', .*seed_rng_seed=7'"),
        ({"least": 5}, r"files\.functions\.digest: number 3 \(chain\.<locals>\.<lambda>\)"),
    ],
)
def test_a_chain_that_is_made_otherwise_is_refused_by_what_differs(changed: dict[str, Any], said: str) -> None:
    saved = state_of(chain())
    pipeline(chain()).set_state(saved)
    with pytest.raises(DriftError, match=said):
        pipeline(chain(**changed)).set_state(saved)
    pipeline(chain(**changed)).set_state(saved, allow_drift=["files"])
    assert len(json.dumps(saved)) < 4096


def test_reading_a_chain_changes_nothing_and_so_does_another_process() -> None:
    data = chain()
    before = RandomAccessReader(data).fingerprint()
    assert [data[index] for index in range(len(data))]
    assert RandomAccessReader(data).fingerprint() == before
    said = "from tests.read.test_data_layers import *; print(json.dumps(RandomAccessReader(chain()).fingerprint()))"
    command = [sys.executable, "-c", said]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == json.loads(json.dumps(before))


def test_states_of_before_are_taken(tmp_path) -> None:
    saved = state_of(chain())
    for later in ("layers", "functions"):
        del saved["settings"]["files"][later]
    made = pipeline(chain(seed=2))
    made.set_state(saved)
    path = write_file(tmp_path / "a.array_record", [b"a", b"b"])
    of_files = RandomAccessReader(grain.sources.ArrayRecordDataSource([str(path)])).fingerprint()
    assert of_files.keys() == {"num_records", "repr", "digest"}, "what its own repr tells"


def test_a_chain_of_many_layers_has_a_state_of_constant_size() -> None:
    def deep(last: int) -> grain.MapDataset:
        data = grain.MapDataset.source(np.arange(50))
        for seed in [last, *range(40)]:
            data = data.shuffle(seed=seed)
        return data

    saved = state_of(deep(1))
    assert len(json.dumps(saved)) < 4096
    pipeline(deep(1)).set_state(saved)
    with pytest.raises(DriftError, match=r"files\.layers\.others"):
        pipeline(deep(2)).set_state(saved)


def test_grains_own_loader_over_a_chain_is_refused_likewise() -> None:
    def loader(seed: int) -> Any:
        data = grain.MapDataset.source(np.arange(40)).shuffle(seed=seed)
        sampler = grain.samplers.IndexSampler(40, shuffle=False, num_epochs=1, seed=0)
        return DataLoader(data_source=data, sampler=sampler, operations=[], worker_count=0)

    first = iter(loader(1))
    next(first)
    saved = first.get_state()
    iter(loader(1)).set_state(saved)
    with pytest.raises((DriftError, ValueError), match="ShuffleMapDataset"):
        iter(loader(2)).set_state(saved)


def test_a_split_of_torch_is_told_by_its_indices_and_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is no dependency")
    data = torch.utils.data

    def split(seed: int, first: int = 0, dtype: Any = torch.int64) -> Any:
        rows = data.TensorDataset(torch.arange(first, 40 + first).to(dtype))
        return data.random_split(rows, [30, 10], generator=torch.Generator().manual_seed(seed))[0]

    for dtype in (torch.int64, torch.bfloat16):
        before = RandomAccessReader(split(1, dtype=dtype)).fingerprint()
        assert RandomAccessReader(split(1, dtype=dtype)).fingerprint() == before
        assert RandomAccessReader(split(2, dtype=dtype)).fingerprint() != before
        assert RandomAccessReader(split(1, 1, dtype)).fingerprint() != before
    joined = [data.ConcatDataset([split(1), split(seed)]) for seed in (2, 2, 3)]
    one, same, other = (RandomAccessReader(each).fingerprint() for each in joined)
    assert one == same != other


class Loads:
    """Loads its table with the first element, and keeps what it made."""

    def __init__(self) -> None:
        self.table: Any = None
        self.made: dict[int, int] = {}

    def map(self, index: Any) -> Any:
        if self.table is None:
            self.table = [10, 20, 30]
        return {"x": self.made.setdefault(int(index), self.table[int(index) % 3])}


def test_what_functions_fill_while_they_run_is_no_change() -> None:
    def of() -> Pipeline:
        return pipeline(grain.MapDataset.source(np.arange(40)).map(Loads().map))

    made = of()
    made.step()
    of().set_state(made.get_state())


def test_a_chain_over_a_source_of_this_package_is_told_by_that() -> None:
    def of(size: int, shuffle: bool = False) -> Pipeline:
        config = RandomAccessSourceConfig(num_epochs=1, shuffle=shuffle)
        below = RandomAccessSource(config, {"x": np.arange(size) % 7})
        return pipeline(grain.MapDataset.source(below).shuffle(seed=1))

    saved = of(40).get_state()
    of(40).set_state(saved)
    for other in (of(41), of(40, shuffle=True)):
        with pytest.raises(DriftError):
            other.set_state(saved)


def test_a_table_that_a_layer_holds_is_no_source_though_it_describes_itself() -> None:
    def of(last: int) -> Pipeline:
        return pipeline(grain.MapDataset.source(pd.Series([1, 2, last])).map(as_element))

    saved = of(3).get_state()
    of(3).set_state(saved)
    with pytest.raises(DriftError, match=r"files\.layers\.1 SourceMapDataset"):
        of(4).set_state(saved)


class OnDisk:
    """Rows of a file, as h5py and zarr have them: as an array it is all of the file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index

    def __repr__(self) -> str:
        return f"OnDisk({self.name})"

    def __array__(self, *_: Any) -> np.ndarray:
        raise AssertionError("all of it was read")


def test_rows_of_a_file_are_told_by_its_repr_and_not_read() -> None:
    one, same, other = (
        RandomAccessReader(grain.MapDataset.source(OnDisk(name)).map(as_element)).fingerprint() for name in "aab"
    )
    assert one == same != other


def test_a_chain_that_is_too_deep_is_an_error_where_the_source_is_made() -> None:
    data = grain.MapDataset.source(np.arange(3))
    for _ in range(500):
        data = data.map(as_it_is)
    with pytest.raises(ValueError, match="more layers, one in another, than a state can tell"):
        pipeline(data)


def as_element(value: Any) -> Any:
    return {"x": int(value)}


def as_it_is(element: Any) -> Any:
    return element
