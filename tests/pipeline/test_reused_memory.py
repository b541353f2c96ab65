"""Device arrays that show the memory of a batch keep it; see tests/read/test_reused_memory.py."""

import jax
import numpy as np

from datarax_ray.read.reused_memory import ReusedMemory


def test_a_device_array_stays_as_it_is_whatever_comes_after_it():
    memory = ReusedMemory(max_free=2, min_nbytes=1)
    step = jax.jit(lambda x: x * 2)
    placed, results = [], []
    for number in range(40):
        batch = memory.empty((1024, 64), np.dtype("float32"))
        batch[:] = number
        array = jax.device_put(batch)
        del batch
        results.append(step(array))
        if number % 3 == 0:
            placed.append((number, array))
        del array
    for number, result in enumerate(results):
        assert (np.asarray(result) == 2 * number).all()
    for number, array in placed:
        assert (np.asarray(array) == number).all()


def test_an_array_over_several_devices_stays_as_it_is():
    memory = ReusedMemory(max_free=2, min_nbytes=1)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    placed = []
    for number in range(20):
        batch = memory.empty((64, 64), np.dtype("float32"))
        batch[:] = number
        placed.append(jax.make_array_from_callback(batch.shape, sharding, lambda index, batch=batch: batch[index]))
        del batch
    for number, array in enumerate(placed):
        assert (np.asarray(array) == number).all()
