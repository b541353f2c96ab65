"""What actors materialise, and actors that read it: the live stream of one process is the oracle."""

import json

import pytest
from flax import nnx

from datarax_ray import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    MaterializedSource,
    Pipeline,
    RaySource,
    materialize,
)
from tests.data import AddNoise, DropThirds, decode
from tests.resume import assert_equal, comparable, on_host, run_saving

pytestmark = pytest.mark.usefixtures("ray_local")


def test_any_number_of_actors_writes_the_same_and_reads_the_live_stream(files, tmp_path):
    config = ArrayRecordSourceConfig(shuffle=True, num_epochs=2)
    source = ArrayRecordSourceModule(config, files, transforms=[decode, DropThirds(), AddNoise()])
    done = [
        materialize(source, tmp_path / f"{num_actors}" / "out", num_shards=4, num_actors=num_actors)
        for num_actors in (0, 2)
    ]
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name / "out").iterdir()} for name in "02")
    assert one == two
    assert len(one) == 9  # with an index for each of four files, and dataset.json
    assert done[0].components[0].statistics == done[1].components[0].statistics

    with Pipeline(source=source, batch_size=16, rngs=nnx.Rngs(0)) as live:
        batches, states = run_saving(live)
    with RaySource(MaterializedSource(source, tmp_path / "2" / "out"), num_actors=2) as ray_source:
        pipeline = Pipeline(source=ray_source, batch_size=16, rngs=nnx.Rngs(0))
        pipeline.set_state(json.loads(states[3]))  # of the live stream, in the middle of an epoch
        found = [on_host(pipeline.step()) for _ in range(2)]
        state = json.dumps(pipeline.get_state())
        assert_equal(found, batches[3:5])
        assert comparable(state) == comparable(states[5])
    with Pipeline(source=source, batch_size=16, rngs=nnx.Rngs(0)) as live:
        live.set_state(json.loads(state))  # and back
        assert_equal([on_host(batch) for batch in live], batches[5:])
