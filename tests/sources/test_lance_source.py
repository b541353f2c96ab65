"""LanceSource: rows of one version of a dataset, and what a state makes of later versions."""

import datetime
import json
import pickle
import subprocess
import sys

import lance
import numpy as np
import pyarrow as pa
import pytest

from datarax_ray import LanceSource, LanceSourceConfig, Pipeline, RaySource, load
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.formats.lance import LanceReader
from tests import oracle
from tests.resume import assert_resumes, run_saving

N = 30


def table(start, stop):
    numbers = np.arange(start, stop)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 2).astype(np.float32)), 2)
    return pa.table({"x": numbers, "text": [f"row {number}" for number in numbers], "vector": vectors})


def write(path, start=0, stop=N, mode="create"):
    return lance.write_dataset(table(start, stop), path, mode=mode, max_rows_per_file=8)


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "data.lance")
    return tmp_path / "data.lance"


def make(path, **config):
    return LanceSource(LanceSourceConfig(**{"num_epochs": 1} | config), path)


def numbers(source):
    return [int(element["x"]) for element in source]


def test_rows_come_as_columns_in_order_and_shuffled_as_a_whole(path):
    batch = make(path).get_batch(2)
    assert (batch["x"].tolist(), batch["text"].tolist()) == ([0, 1], ["row 0", "row 1"])
    assert (batch["vector"].dtype, batch["vector"].tolist()) == (np.float32, [[0, 0], [1, 1]])
    assert numbers(make(path)) == list(range(N))
    want = [index for epoch in range(2) for index in oracle.order(N, epoch, 5)]
    assert numbers(make(path, shuffle=True, seed=5, num_epochs=2)) == want
    assert list(make(path, columns=["x"]).get_batch(1)) == ["x"]


def test_load_and_messages_know_it(path):
    assert numbers(load(path)) == list(range(N))
    with pytest.raises(ValueError, match=r"is no Lance dataset, a folder NAME\.lance or the URL of one"):
        make(path.parent)


def test_two_actors_give_the_batches_of_one_process_and_every_state_resumes(path, ray_local):
    def pipeline(num_actors):
        source = make(path, shuffle=True, num_epochs=2)
        return Pipeline(source=RaySource(source, num_actors=num_actors) if num_actors else source, batch_size=7)

    with pipeline(0) as one:
        batches, states = run_saving(one)
    with pipeline(2) as two:
        assert run_saving(two)[1] == states
    assert_resumes(lambda number: pipeline(2 if number == 4 else 0), batches, states, every=2)


def test_a_stream_goes_on_at_its_version_and_so_does_a_copy(path):
    source = make(path)
    assert numbers([next(source) for _ in range(3)]) == [0, 1, 2]
    write(path, N, N + 9, "append")
    assert numbers(source) == list(range(3, N))
    assert (len(source.copy()), source.copy().config.version, len(make(path))) == (N, 1, N + 9)
    assert pickle.loads(pickle.dumps(source.describe())).locate(3) == f"{path}@1[3]"


def compact(path):
    assert lance.dataset(path).optimize.compact_files().files_removed


CHANGES = {
    "append": lambda path: write(path, N, N + 9, "append"),
    "compaction": compact,
    "deletion": lambda path: lance.dataset(path).delete("x = 4"),
    "overwrite": lambda path: write(path, 0, N, "overwrite"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_state_of_an_older_version_is_refused_and_the_remedy_resumes_it(path, change):
    source = make(path, shuffle=True)
    source.get_batch(11)
    state = json.loads(json.dumps(source.get_state()))
    assert len(json.dumps(state)) < 2048
    want = numbers(source)
    change(path)
    with pytest.raises(DriftError, match=r"files\.version: .* with 1, .* has \d.*: set version= of the source's"):
        make(path, shuffle=True).set_state(state)
    again = make(path, shuffle=True, version=1)
    again.set_state(state)
    assert numbers(again) == want


def test_another_dataset_of_the_same_version_is_drift_and_a_moved_one_is_not(path, tmp_path):
    state = make(path).get_state()
    path.rename(tmp_path / "moved.lance")
    make(tmp_path / "moved.lance").set_state(state)
    write(path)
    with pytest.raises(DriftError, match=r"files\.digest"):
        make(path).set_state(state)


def test_a_version_that_was_cleaned_up_is_named_with_those_that_are_there(path):
    source = make(path)
    write(path, mode="overwrite")
    lance.dataset(path).cleanup_old_versions(datetime.timedelta(0))
    with pytest.raises(ValueError, match=r"data\.lance has no version 1 any more, only \[2\]: it was cleaned up"):
        make(path, version=1)
    with pytest.raises(ValueError, match="has no version 1 any more"):
        next(source)


def test_columns_and_versions_that_are_none_are_refused_by_name(path):
    with pytest.raises(ValueError, match=r"columns names \['txt'\], and .* has .*'text'"):
        make(path, columns=["txt"])
    with pytest.raises(TypeError, match="version is a whole number"):
        make(path, version="latest")


def test_a_reader_opens_nothing_until_it_reads_and_loads_no_jax(path, tmp_path):
    reader = LanceReader.of(path)
    stored = tmp_path / "reader"
    stored.write_bytes(pickle.dumps(reader))
    assert len(stored.read_bytes()) < 4096
    code = (
        f"import pickle, sys; reader = pickle.load(open({str(stored)!r}, 'rb')); assert 'lance' not in sys.modules\n"
        "import numpy as np; assert reader.read(np.array([7, 7, 0]))['x'].tolist() == [7, 7, 0]\n"
        "assert 'jax' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
