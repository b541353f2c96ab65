"""get_batch_at where JAX traces the position: the rows of the plain loop, or an error that says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests import oracle
from tests.data import DropThirds, decode, in_memory, write_files

N = 53


@pytest.fixture
def paths(tmp_path):
    return write_files(tmp_path, (20, 33))


def make(paths, *transforms, num_epochs=2):
    config = ArrayRecordSourceConfig(seed=3, shuffle_files=True, num_epochs=num_epochs)
    return ArrayRecordSourceModule(config, paths, transforms=transforms)


def test_under_jit_they_are_the_streams_in_any_order_and_in_a_scan(paths):
    expected = np.array([i for epoch in range(2) for i in oracle.order(N, epoch, 3)], np.int32)
    with make(paths, decode) as source:
        fetch = jax.jit(lambda start: source.get_batch_at(start, 10))
        for start in (0, 10, 20, 50, 7, 17, 96, 0):
            batch = fetch(start)
            assert sorted(batch) == ["index", "values"]  # the name and the list stay on the host
            assert batch["values"].dtype == np.int32
            assert batch["index"].tolist() == batch["values"][:, 0].tolist() == expected[start : start + 10].tolist()
        assert source.get_state()["position"] == 0
        assert [element["index"] for element in source.get_batch_at(jnp.int32(7), 2)] == expected[7:9].tolist()
        _, found = jax.lax.scan(lambda start, _: (start + 10, fetch(start)["index"]), jnp.int32(0), length=10)
        assert found.ravel().tolist() == expected[:100].tolist()


@pytest.mark.parametrize("duplicate", [lambda source: source.copy(), lambda source: source.clone()])
def test_a_copy_of_a_source_reads_for_itself(paths, duplicate):
    source = make(paths, decode)
    fetch = jax.jit(lambda start: source.get_batch_at(start, 2)["index"])
    assert fetch(4).tolist() == oracle.order(N, 0, 3)[4:6]
    again = duplicate(source)
    assert next(again)["index"] == oracle.order(N, 0, 3)[0]
    assert jax.jit(lambda start: again.get_batch_at(start, 2)["index"])(4).tolist() == oracle.order(N, 0, 3)[4:6]


def test_beyond_the_end_and_below_zero_is_an_error_and_the_next_call_works(paths):
    with make(paths, decode) as source:
        fetch = jax.jit(lambda start: source.get_batch_at(start, 10)["index"])
        for start, message in ((97, r"positions \[97, 107\) of a stream that ends at 106"), (-3, "position -3")):
            with pytest.raises(jax.errors.JaxRuntimeError, match=message):
                fetch(start).block_until_ready()
        assert fetch(0).tolist() == oracle.order(N, 0, 3)[:10]


def test_what_cannot_be_compiled_is_refused_when_it_is_traced(paths):
    with pytest.raises(NotImplementedError, match="behind a filter.* Iterate instead"):
        jax.jit(lambda start: make(paths, decode, DropThirds()).get_batch_at(start, 10))(0)
    with pytest.raises(TypeError, match="every field stays on the host"):
        jax.jit(lambda start: make(paths).get_batch_at(start, 10))(0)


def test_without_a_cpu_device_it_is_refused_when_it_is_traced(paths, monkeypatch):
    def of_cuda_alone(backend):
        raise RuntimeError(f"Unknown backend {backend}. Available backends are ['cuda']")

    monkeypatch.setattr(jax, "local_devices", of_cuda_alone)
    with make(paths, decode) as source, pytest.raises(RuntimeError, match="Set JAX_PLATFORMS=cpu,cpu"):
        jax.jit(lambda start: source.get_batch_at(start, 10))(0)


def test_arrays_of_64_bits_come_as_jax_has_them():
    source = in_memory({"x": np.arange(7), "y": np.arange(7) / 2}, num_epochs=-1)
    batch = jax.jit(lambda start: source.get_batch_at(start, 3))(6)
    assert {name: (value.tolist(), str(value.dtype)) for name, value in batch.items()} == {
        "x": ([6, 0, 1], "int32"),
        "y": ([3.0, 0.0, 0.5], "float32"),
    }
