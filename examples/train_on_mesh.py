"""How do several processes train on one mesh? Each makes the same Pipeline; it reads the rows that its devices hold.

This starts two processes of two CPU devices each, as one JAX job. The batches are global arrays; no process asks
another for data, and the mesh may be laid out in any way.
"""

import os
import socket
import subprocess
import sys

import numpy as np

NUM_PROCESSES = 2


def train(process_index, address):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from datarax_ray import Pipeline, RandomAccessSource, RandomAccessSourceConfig

    jax.distributed.initialize(address, NUM_PROCESSES, process_index)
    data = {"x": np.arange(48, dtype=np.float32)}
    source = RandomAccessSource(RandomAccessSourceConfig(shuffle=True, seed=3, num_epochs=1), data)
    devices = np.array(jax.devices())[::-1]  # in an order that has nothing to do with the processes' ranks
    sharding = NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))
    step = jax.jit(lambda weight, batch: weight + batch["x"].sum())  # stands for a train step

    weight = jnp.zeros(())
    with Pipeline(source=source, batch_size=16, sharding=sharding) as pipeline:
        for batch in pipeline:
            weight = step(weight, batch)
        print(
            f"process {process_index} holds rows {pipeline.rows} of {batch['x'].shape[0]}; sum {float(weight)}",
            flush=True,
        )
    assert float(weight) == sum(range(48))  # every record once, over both processes


if len(sys.argv) == 1:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen([sys.executable, __file__, str(index), address], env=environment)
        for index in range(NUM_PROCESSES)
    ]
    assert [process.wait(timeout=100) for process in processes] == [0] * NUM_PROCESSES
else:
    train(int(sys.argv[1]), sys.argv[2])
