"""Batches for loops that make their own device arrays: on the host, or row by row as a device asks for them."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax_ray import Pipeline
from tests.data import AddNoise, array_records, decode
from tests.resume import assert_equal, on_host


def source(files, *transforms):
    return array_records(files, decode, *transforms)


def make(of, batch_size=50, **options):
    return Pipeline(source=of, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


class TestBatches:
    def test_they_are_the_same_rows_as_numpy_arrays_of_their_own_types(self, files):
        want = [on_host(batch) for batch in make(source(files, AddNoise()))]
        got = list(make(source(files, AddNoise()), on_host=True))
        assert {type(column) for batch in got for column in batch.values()} == {np.ndarray}
        assert got[0]["index"].dtype == np.int64
        as_on_device = [batch | {"index": batch["index"].astype(np.int32)} for batch in got]
        assert_equal(as_on_device, want)

    def test_a_state_goes_on_on_the_device_and_back(self, files):
        on_device, kept = make(source(files)), make(source(files), on_host=True)
        next(iter(on_device))
        kept.set_state(json.loads(json.dumps(on_device.get_state())))
        want = [batch["index"].tolist() for batch in on_device]
        assert [batch["index"].tolist() for batch in kept] == want

    def test_the_rows_say_where_they_belong(self, files):
        whole = next(iter(make(source(files), on_host=True)))
        devices = np.array(jax.devices()[:2])[::-1]
        for options in (
            {"process_index": 1, "process_count": 2},
            {"sharding": NamedSharding(Mesh(devices, ("data",)), P("data"))},
        ):
            pipeline = make(source(files), on_host=True, **options)
            batch = next(iter(pipeline))
            rows = [row for lo, hi in pipeline.rows for row in range(lo, hi)]
            assert batch["index"].tolist() == whole["index"][rows].tolist()

    def test_stages_and_scan_are_refused(self, files):
        with pytest.raises(ValueError, match="stages run on the device, .*on_host=True"):
            make(source(files), stages=[lambda batch: batch], on_host=True)
        with pytest.raises(ValueError, match="scan runs on the device, .*on_host=True.*iterate"):
            make(source(files), on_host=True).scan(lambda batch: batch, length=1)
