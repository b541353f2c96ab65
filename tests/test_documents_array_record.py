"""The samples of datarax's documents on ArrayRecord, as they are printed but for file and package names, by value."""

import itertools

import numpy as np
import pytest
from flax import nnx

from datarax_ray.pipeline import Pipeline
from datarax_ray.read.decode import DecodeRaw
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests import oracle
from tests.data import record, write_file

N = 60
STORED = [record(index) for index in range(N)]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "data.riegeli", STORED)
    write_file(tmp_path / "data-00000.riegeli", STORED[:20])
    write_file(tmp_path / "data-00001.riegeli", STORED[20:])


def indices(batches):
    return [int(row[0]) for batch in batches for row in batch["data"]]


def test_a_config():
    config = ArrayRecordSourceConfig(seed=42, num_epochs=10, shuffle_files=True)
    assert (config.seed, config.num_epochs, config.shuffle_files) == (42, 10, True)
    default = ArrayRecordSourceConfig()
    assert (default.seed, default.num_epochs, default.shuffle_files) == (42, -1, False)
    flags = (default.cacheable, default.stochastic, default.stream_name, default.local_files_only)
    assert flags == (False, False, None, False)


def test_sources_of_a_file_a_glob_and_a_list():
    source = ArrayRecordSourceModule(ArrayRecordSourceConfig(seed=42), paths="data.riegeli", rngs=nnx.Rngs(0))
    assert list(itertools.islice(source, 2 * N)) == 2 * STORED

    source = ArrayRecordSourceModule(
        ArrayRecordSourceConfig(seed=42, shuffle_files=True), paths="data-*.riegeli", rngs=nnx.Rngs(0)
    )
    order = [index for epoch in range(2) for index in oracle.order(N, epoch, 42)]
    assert list(itertools.islice(source, 2 * N)) == [STORED[index] for index in order]

    source = ArrayRecordSourceModule(
        ArrayRecordSourceConfig(num_epochs=10), paths=["data-00000.riegeli", "data-00001.riegeli"], rngs=nnx.Rngs(0)
    )
    assert list(source) == 10 * STORED


# The documents give no way from a record's bytes to batch['data'], and datarax's Pipeline has none. Here transforms are
# it; DecodeRaw's field is called "data" unless another name is given.
DECODE = [DecodeRaw("int32", (5,))]


def test_a_pipeline(capsys):
    source = ArrayRecordSourceModule(
        ArrayRecordSourceConfig(num_epochs=10), paths="data.riegeli", transforms=DECODE, rngs=nnx.Rngs(0)
    )
    pipeline = Pipeline(source=source, stages=[], batch_size=32, rngs=nnx.Rngs(0))
    seen = []
    for batch in pipeline:
        seen.append(batch)
        print(f"Batch shape: {batch['data'].shape}")
    assert capsys.readouterr().out == "Batch shape: (32, 5)\n" * 18 + "Batch shape: (24, 5)\n"
    assert indices(seen) == 10 * list(range(N))


def test_steps_of_an_endless_source():
    seen = []
    train_step, max_steps = seen.append, 7

    config = ArrayRecordSourceConfig(num_epochs=-1)
    source = ArrayRecordSourceModule(config, paths="data.riegeli", transforms=DECODE, rngs=nnx.Rngs(0))

    step = 0
    for batch in Pipeline(source=source, stages=[], batch_size=32, rngs=nnx.Rngs(0)):
        train_step(batch)
        step += 1  # noqa: SIM113  as it is printed
        if step >= max_steps:
            break
    assert indices(seen) == [position % N for position in range(7 * 32)]


def test_a_state_goes_on_at_the_very_record():
    config = ArrayRecordSourceConfig(seed=42, shuffle_files=True)
    source = ArrayRecordSourceModule(config, "data.riegeli")
    assert len(list(itertools.islice(source, N + 7))) == N + 7

    state = source.get_state()
    assert (state["current_index"], state["current_epoch"]) == (7, 1)
    # the two of the documents that hold an order or records are there and stay empty: a state has constant size
    assert (state["shuffled_indices"], state["prefetch_cache"]) == (None, {})

    expected = list(itertools.islice(source, 10))
    source.set_state(state)
    assert list(itertools.islice(source, 10)) == expected  # a `for` goes on, as `next` does
    other = ArrayRecordSourceModule(config, "data.riegeli")
    other.set_state(state)
    assert list(itertools.islice(other, 10)) == expected


def test_the_attributes_and_methods_of_the_reference():
    config = ArrayRecordSourceConfig(
        cacheable=False,
        batch_stats_fn=lambda data: {"mean": float(np.mean(data))},
        precomputed_stats=None,
        stochastic=True,
        stream_name="shuffle",
        seed=42,
        num_epochs=-1,
        shuffle_files=False,
        local_files_only=True,
    )
    rngs = nnx.Rngs(shuffle=0)
    source = ArrayRecordSourceModule(config, "data.riegeli", rngs=rngs, name="train")
    assert (source.config, source.rngs, source.name) == (config, rngs, "train")
    assert (source.stochastic, source.stream_name) == (True, "shuffle")
    assert [source.grain_source[index] for index in (0, 7)] == [STORED[0], STORED[7]]
    found = (source.current_index, source.current_epoch, source.total_records, source.prefetch_cache)
    assert [variable.get_value() for variable in found] == [0, 0, N, {}]
    assert source.iterator_initialized.get_value() is False
    assert source.shuffled_indices is None

    assert source.get_batch_at(58, 4) == [STORED[index] for index in (58, 59, 0, 1)]  # wraps, into the next epoch
    assert source.current_index.get_value() == 0
    assert next(source) == STORED[0]
    assert source.get_operation_stats() == {"applied_count": 1, "skipped_count": 0}
    source.reset_operation_stats()
    assert source.get_operation_stats() == {"applied_count": 0, "skipped_count": 0}
    assert source.compute_statistics([1.0, 3.0]) == source.get_statistics() == {"mean": 2.0}
    source.set_statistics({"mean": 0.0})
    assert source.get_statistics() == {"mean": 0.0}
    source.reset_statistics()
    assert source.get_statistics() is None
    source.reset_cache()
    assert source.requires_rng_streams() == ["shuffle"]
    source.ensure_rng_streams(["shuffle"])
    with pytest.raises(ValueError, match="shuffle"):
        source.ensure_rng_streams(["params"])
    assert next(source.clone()) == STORED[1]
    with pytest.raises(NotImplementedError):
        source.process(None)


def test_copies():
    module = ArrayRecordSourceModule(ArrayRecordSourceConfig(), "data.riegeli", name="old_name")
    # The reference prints this for the class that all modules share, with a config that has no field of a source's.
    new_config = ArrayRecordSourceConfig(cacheable=True)
    new_module = module.copy(config=new_config)
    assert (new_module.config, new_module.name) == (new_config, "old_name")
    renamed = module.copy(name="new_name")
    assert (renamed.config, renamed.name) == (module.config, "new_name")
    assert next(new_module) == next(renamed) == STORED[0]
