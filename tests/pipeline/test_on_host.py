"""Batches for loops that make their own device arrays: on the host, or row by row as a device asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax_ray import ConcatThenSplit, Pipeline, RaySource
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule, MixtureSource
from tests.data import AddNoise, DropThirds, decode
from tests.resume import assert_equal, assert_resumes, on_host, run_saving


def source(files: Any, *transforms: Any, **config: Any) -> ArrayRecordSourceModule:
    options = {"num_epochs": 2, "shuffle_files": True} | config
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**options), files, transforms=[decode, *transforms])


def make(of: Any, batch_size: int = 50, **options: Any) -> Pipeline:
    return Pipeline(source=of, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


class TestBatches:
    def test_they_are_the_same_rows_as_numpy_arrays_of_their_own_types(self, files: list[Path]) -> None:
        want = [on_host(batch) for batch in make(source(files, AddNoise()))]
        got = list(make(source(files, AddNoise()), on_host=True))
        assert {type(column) for batch in got for column in batch.values()} == {np.ndarray}
        assert got[0]["index"].dtype == np.int64
        as_on_device = [batch | {"index": batch["index"].astype(np.int32)} for batch in got]
        assert_equal(as_on_device, want)

    @pytest.mark.parametrize("options", [{}, {"pad_remainder": True}, {"process_index": 1, "process_count": 2}])
    def test_restored_after_every_batch_the_rest_is_the_same(self, files: list[Path], options: dict[str, Any]) -> None:
        def pipeline() -> Pipeline:
            return make(source(files, AddNoise(), DropThirds()), 18, on_host=True, **options)

        batches, states = run_saving(pipeline())
        assert_resumes(lambda _: pipeline(), batches, states)

    def test_a_state_goes_on_on_the_device_and_back(self, files: list[Path]) -> None:
        on_device, kept = make(source(files)), make(source(files), on_host=True)
        next(iter(on_device))
        kept.set_state(json.loads(json.dumps(on_device.get_state())))
        want = [batch["index"].tolist() for batch in on_device]
        assert [batch["index"].tolist() for batch in kept] == want

    def test_the_rows_say_where_they_belong(self, files: list[Path]) -> None:
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

    def test_stages_and_scan_are_refused(self, files: list[Path]) -> None:
        with pytest.raises(ValueError, match="stages run on the device, .*on_host=True"):
            make(source(files), stages=[lambda batch: batch], on_host=True)
        with pytest.raises(ValueError, match="scan runs on the device, .*on_host=True.*iterate"):
            make(source(files), on_host=True).scan(lambda batch: batch, length=1)


class TestRowsOfABatch:
    @pytest.mark.parametrize("batch_size", [50, 7])
    def test_any_rows_of_any_batch_are_what_iteration_gives(self, files: list[Path], batch_size: int) -> None:
        pipeline = make(source(files, AddNoise()), batch_size)
        want = list(make(source(files, AddNoise()), batch_size, on_host=True))
        rng = np.random.default_rng(batch_size)
        for number in rng.permutation(len(want))[:12].tolist():
            rows = len(want[number]["index"])
            start = int(rng.integers(rows))
            stop = int(rng.integers(start + 1, rows + 1))
            part = {name: column[start:stop] for name, column in want[number].items()}
            assert_equal([pipeline.read_rows(number, start, stop)], [part])
        assert pipeline.position == 0

    def test_a_mixture_too(self, files: list[Path]) -> None:
        def mixed() -> MixtureSource:
            return MixtureSource(
                [source(files[:3], num_epochs=-1), source(files[3:], num_epochs=-1)], [1, 2], length=90
            )

        want = list(make(mixed(), 20, on_host=True))
        for number, batch in enumerate(want):
            assert_equal([make(mixed(), 20).read_rows(number, 1, 3)], [{key: v[1:3] for key, v in batch.items()}])

    @pytest.mark.usefixtures("ray_local")
    def test_the_actors_read_them(self, files: list[Path]) -> None:
        want = list(make(source(files, AddNoise()), on_host=True))
        with make(RaySource(source(files, AddNoise()), num_actors=2, num_cpus=0.5)) as pipeline:
            for number in (3, 0, 4):
                part = {name: column[5:19] for name, column in want[number].items()}
                assert_equal([pipeline.read_rows(number, 5, 19)], [part])

    @pytest.mark.parametrize(
        ("rows", "has"),
        [((0, 3, 3), 50), ((0, -1, 3), 50), ((0, 0, 51), 50), ((4, 0, 41), 40), ((5, 0, 1), 0), ((-1, 0, 1), 0)],
    )
    def test_rows_that_no_batch_has_are_refused(self, files: list[Path], rows: tuple[int, int, int], has: int) -> None:
        with pytest.raises(ValueError, match=f"rows .* of batch {rows[0]} were asked for, which has {has} rows"):
            make(source(files)).read_rows(*rows)

    def test_a_batch_that_is_left_out_has_no_rows(self, files: list[Path]) -> None:
        with pytest.raises(ValueError, match="rows .* of batch 4 were asked for, which has 0 rows"):
            make(source(files), drop_remainder=True).read_rows(4, 0, 1)

    def test_a_closed_pipeline_reads_none(self, files: list[Path]) -> None:
        pipeline = make(source(files))
        pipeline.close()
        with pytest.raises(RuntimeError, match="this Pipeline is closed"):
            pipeline.read_rows(0, 0, 1)

    def test_rows_that_nobody_knows_beforehand_are_refused(self, files: list[Path]) -> None:
        for pipeline in (make(source(files, DropThirds())), make(source(files), packing=ConcatThenSplit(4, "values"))):
            for number in (0, 1000):  # also where the batches of a plain stream would have ended
                with pytest.raises(ValueError, match="known only by reading.*on_host=True"):
                    pipeline.read_rows(number, 0, 1)
