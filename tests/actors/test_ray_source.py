"""Promises of RaySource, on real actors: one stream for any topology, exact resume, nothing lost when one is killed."""

from __future__ import annotations

import gc
import io
import itertools
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from flax import nnx

from datarax_ray import Pipeline, RaySource, load
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.actors.source import _default_num_actors
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import ParquetSource, ParquetSourceConfig
from tests import oracle
from tests.clusters import living_actors, store_in_use
from tests.data import (
    AddNoise,
    Called,
    DropThirds,
    FailAt,
    array_records,
    decode,
    loaded_modules,
    record,
    write_file,
    write_files,
)
from tests.resume import assert_equal, on_host, run_saving
from tests.waiting import until, until_all_run

pytestmark = pytest.mark.usefixtures("ray_local")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data's own settings
def test_data_of_ray_data_is_no_path_and_what_to_do_with_it_is_told_without_reading_it() -> None:
    import ray.data  # takes long

    data = ray.data.from_items([{"a": 1}])
    with pytest.raises(TypeError, match="load takes paths, and a MaterializedDataset is none"):
        load(data)
    with pytest.raises(TypeError, match="got a MaterializedDataset of Ray Data"):
        ParquetSource(ParquetSourceConfig(), [data])
    assert living_actors() == {}  # Ray Data has some where it reads


def make(paths: Any, transforms: Any = (decode,), **config: Any) -> Any:
    return array_records(paths, *transforms, **{"num_epochs": 3} | config)


def pipeline(source: Any, batch_size: int = 32, **options: Any) -> Pipeline:
    return Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


def ray_source(source: Any, num_actors: int, **options: Any) -> RaySource:
    return RaySource(source, num_actors=num_actors, num_cpus=0.5, **options)


def pids(source: RaySource) -> dict[int, int]:
    return {index: stats["pid"] for index, stats in source.stats().items()}


class Fills:
    """Gives its own buffer, of more than a request carries."""

    def __init__(self) -> None:
        self.buffer = np.zeros((64, 1024), np.int32)

    def __call__(self, element: dict[str, Any]) -> dict[str, Any]:
        self.buffer[...] = element["index"]
        return {"x": self.buffer}


def test_a_transform_may_write_to_a_large_array_that_it_holds_as_in_one_process(tmp_path: Path) -> None:
    paths = write_files(tmp_path, [12])
    alone = make(paths, [decode, Fills()], num_epochs=1)
    with ray_source(alone, 1) as source, pipeline(source, 4) as read:
        found = [np.asarray(batch["x"]) for batch in read]
    with pipeline(alone, 4) as read:
        for batch, mine in zip(read, found, strict=True):
            assert np.array_equal(batch["x"], mine)


@pytest.mark.parametrize(
    ("counts", "batch_size", "num_actors", "chunk_size", "shuffle"),
    [
        ([2], 3, 2, 1, False),
        ([1, 1, 1, 997], 33, 3, 40, True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ([1], 1, 3, None, False),
                ([1], 1, 3, None, True),
                ([2], 3, 2, 1, True),
                ([3, 0, 7], 4, 5, 1, False),
                ([3, 0, 7], 4, 5, 1, True),
                ([1, 1, 1, 997], 33, 4, 7, True),
                ([1, 1, 1, 997], 33, 4, 7, False),
                ([600, 400], 256, 1, None, False),
                ([600, 400], 256, 1, None, True),
            )
        ),
    ],
)
def test_any_number_of_actors_gives_the_plain_loops_bytes(
    tmp_path: Path, counts: list[int], batch_size: int, num_actors: int, chunk_size: int | None, shuffle: bool
) -> None:
    paths = write_files(tmp_path, counts)
    transforms = [decode, AddNoise()]
    want = oracle.batches(
        oracle.elements(
            oracle.stored(paths), seed=42 if shuffle else None, num_epochs=2, transforms=transforms, rng_seed=42
        ),
        batch_size,
        2 * sum(counts),
    )
    source = make(paths, transforms, shuffle_files=shuffle, num_epochs=2)
    with ray_source(source, num_actors, chunk_size=chunk_size) as distributed:
        got = list(distributed.batches(0, StreamOptions(batch_size)))
    assert [batch.stop for batch in got] == [stop for stop, _ in want]
    for batch, (_, columns) in zip(got, want, strict=True):
        oracle.assert_same(batch.columns, columns)


def test_filters_keep_the_global_order_and_trainers_share_each_batch(files: list[Path]) -> None:
    transforms = [decode, AddNoise(), DropThirds()]
    source = make(files, transforms)
    want = oracle.batches(
        oracle.elements(oracle.stored(files), seed=42, num_epochs=3, transforms=transforms, rng_seed=42), 12, 360
    )
    with ray_source(source, 3, name="shared") as first, ray_source(source, 3, name="shared") as second:
        found = until(lambda: len(there := pids(first)) == 3 and there)  # all are up
        assert found == pids(second)  # one pool of named actors for the trainers of a job
        streams = [
            source.batches(0, StreamOptions(12, process_index=rank, process_count=3))
            for rank, source in enumerate((first, second, first))
        ]
        for (stop, columns), *parts in zip(want, *streams, strict=True):
            assert {part.stop for part in parts} == {stop}
            joined = {key: np.concatenate([part.columns[key] for part in parts]) for key in columns}
            oracle.assert_same(joined, columns)


def test_a_name_that_no_other_driver_can_share_is_told(files: list[Path], caplog: Any) -> None:
    with ray_source(make(files), 1, name="alone"):
        assert "actors named 'alone' are shared by the drivers of one Ray namespace, and this driver has one of" in (
            caplog.text
        )


@pytest.mark.slow  # a Ray job of its own
def test_trainers_that_are_tasks_of_one_ray_job_share_a_namespace(files: list[Path]) -> None:
    @ray.remote(num_cpus=0)
    def trainer(paths: list[Path]) -> tuple[str, list[int]]:
        heard = io.StringIO()
        logging.getLogger("datarax_ray").addHandler(logging.StreamHandler(heard))
        with ray_source(make(paths, num_epochs=1), 1, name="job") as source:
            return heard.getvalue(), source.get_batch(4)["index"].tolist()

    (told, first), (_, second) = ray.get([trainer.remote(files) for _ in range(2)])
    assert first == second == make(files).get_batch(4)["index"].tolist()
    assert "namespace" not in told


def test_restored_after_every_batch_with_fewer_and_more_actors_the_rest_is_the_same(files: list[Path]) -> None:
    source = make(files, [decode, AddNoise(), DropThirds()])
    pools = [source, *(ray_source(source, n) for n in (1, 2, 3))]
    alone = pipeline(source, digest=True)
    with pipeline(pools[2], prefetch=3, digest=True) as saving:
        batches, states = run_saving(saving)
        assert_equal(batches, [on_host(batch) for batch in alone])
        assert json.loads(states[-1])["digest"] == alone.get_state()["digest"]
        assert len(batches) == 8
    choices = itertools.cycle([pools[1], pools[3], pools[0]])
    assert all(len(state.encode()) < 4096 for state in states)
    for number, state in enumerate(states):
        resumed = pipeline(next(choices))
        resumed.set_state(json.loads(state))
        assert_equal([on_host(batch) for batch in resumed], batches[number:])
        resumed.seek(0)
    for pool in pools:
        pool.close()


def test_an_actor_that_will_not_come_back_is_replaced_once(files: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    source = make(files, num_epochs=6)
    want = [on_host(batch) for batch in pipeline(source)]
    with ray_source(source, 2, chunk_size=20) as distributed:
        got = []
        for number, batch in enumerate(pipeline(distributed)):
            got.append(on_host(batch))
            if number == 2:
                ray.kill(distributed._actors._set.actors[0].handle, no_restart=True)
        until_all_run(distributed)
        assert distributed.recoveries.counts == {"replaced": 1}
    assert_equal(got, want)
    assert len([line for line in caplog.messages if "reader actor 0 replaced, " in line]) == 1


def test_a_failing_transform_names_record_position_and_actor_behind_the_batches_before(files: list[Path]) -> None:
    source = make(files, [decode, FailAt(13)], shuffle_files=False)
    said = r"part-00002.array_record\[1\] \(position 13\): transform FailAt"
    with pipeline(ray_source(source, 2, chunk_size=4), batch_size=4) as broken:
        got: list[Any] = []
        with pytest.raises(RecordError, match=said) as info:
            got.extend(batch["index"].tolist() for batch in iter(broken.step, None))
        assert got == np.arange(12).reshape(3, 4).tolist()
        assert broken.position == 12
    notes = "\n".join(info.value.__notes__)
    assert "in reader actor" in notes
    assert "ZeroDivisionError: cannot divide element 13\ngiven index: int, name: str, ragged: list" in notes
    assert notes.splitlines()[1].endswith(", in map")  # of FailAt, and nothing before it


@pytest.mark.parametrize(
    "error",
    [SystemExit, *(pytest.param(error, marks=pytest.mark.slow) for error in (KeyboardInterrupt, GeneratorExit))],
)
def test_a_transform_that_exits_ends_no_actor_and_is_the_error_of_its_record(
    files: list[Path], error: type[BaseException]
) -> None:
    def leave(element: dict[str, Any]) -> dict[str, Any]:
        if element["index"] == 50:
            raise error(0)
        return element

    with ray_source(make(files, [decode, leave], shuffle_files=False, on_error="skip"), 1) as source:
        before, got = until(lambda: pids(source)), []
        said = rf"\[30\] \(position 50\): transform .*leave raised {error.__name__}"
        with pytest.raises(RecordError, match=said) as e:
            got.extend(batch.stop for batch in source.batches(0, StreamOptions(10)))
        assert got == [10, 20, 30, 40, 50]
        assert any("in reader actor" in note for note in e.value.__notes__)
        assert until(lambda: pids(source)) == before  # a busy machine may be late with the answer


class Fetches:
    """A transform that takes something from Ray when it is unpickled, which is lost."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __call__(self, element: dict[str, Any]) -> dict[str, Any]:
        return element

    def __reduce__(self) -> tuple[Any, ...]:
        return _fetch, (self.error,)


def _fetch(error: type[Exception]) -> None:
    raise error(*{ray.exceptions.ActorUnavailableError: ("gone", b"a" * 16)}.get(error, ("ab" * 28, None, "")))


@pytest.mark.parametrize(
    ("error", "nbytes"),
    [
        (ray.exceptions.ActorUnavailableError, 2**20),
        pytest.param(ray.exceptions.ObjectLostError, 0, marks=pytest.mark.slow),
        pytest.param(ray.exceptions.ObjectLostError, 2**20, marks=pytest.mark.slow),
        pytest.param(ray.exceptions.ActorUnavailableError, 0, marks=pytest.mark.slow),
    ],
)
def test_an_error_of_ray_that_the_users_code_raises_is_no_loss_of_ours(
    files: list[Path], error: type[Exception], nbytes: int
) -> None:
    held = partial(identity, bytes(nbytes))  # a large description travels as an object of its own
    patient = Thresholds(answer_s=60.0)  # on a busy machine an actor that starts may answer nobody for 5 s
    with (
        ray_source(make(files, [decode, held, Fetches(error)]), 1, thresholds=patient) as source,
        pytest.raises(ray.exceptions.RayError, match="gone|ababab") as e,
    ):
        next(source.batches(0, StreamOptions(8)))
    assert any("in reader actor" in note for note in e.value.__notes__)
    assert (source.recoveries.num_retried, source.recoveries.num_lost) == (0, 0)


def identity(_: bytes, element: dict[str, Any]) -> dict[str, Any]:
    return element


def test_a_missing_file_on_the_actors_host_is_named(tmp_path: Path) -> None:
    paths = write_files(tmp_path, (5, 5))
    source = make(paths)
    paths[1].unlink()
    with (
        ray_source(source, 1) as distributed,
        pytest.raises(FileNotFoundError, match=r"part-00001.array_record: no such file"),
    ):
        list(pipeline(distributed))


def test_a_file_that_is_cut_while_actors_read_it_ends_the_stream_and_skips_nothing(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.array_record", map(record, range(20_000)))
    whole = shutil.copy(path, tmp_path / "whole.array_record")
    got = []

    def read_on(batches: Iterator[Any], count: int | None) -> None:
        for batch in itertools.islice(batches, count):
            got.append(on_host(batch))

    with ray_source(make(path, on_error="skip"), 2, chunk_size=100) as distributed:
        batches = iter(pipeline(distributed, 100))
        read_on(batches, 3)
        os.truncate(path, 150_000)
        with pytest.raises(ValueError, match=r"a\.array_record (changed while it was read|is not a complete)"):
            read_on(batches, None)
    want = itertools.islice(pipeline(make(whole, on_error="skip"), 100), len(got))
    assert_equal(got, [on_host(batch) for batch in want])


def test_blocks_in_flight_stay_within_the_bound(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (3000, 4096), np.uint8)
    path = write_file(tmp_path / "a.array_record", (row.tobytes() for row in rows), group_size=16)
    source = make(path, (to_array,), num_epochs=-1)
    bound = 4 * 2**20
    with ray_source(source, 2, max_nbytes=bound) as distributed:
        stream = distributed.batches(0, StreamOptions(50))
        seen = [store_in_use() for _ in itertools.islice(stream, 120)]
        until(lambda: (next(stream) and seen.append(store_in_use())) or seen[-1])  # Ray tells it now and then
        seen += [store_in_use() for _ in itertools.islice(stream, 60)]
    assert 0 < max(seen) <= 1.25 * bound  # Ray frees a block up to a second after it is let go


def to_array(stored: bytes) -> dict[str, Any]:
    return {"x": np.frombuffer(stored, np.uint8)}


def test_fewer_actors_than_asked_for_begin_and_the_rest_join(files: list[Path], caplog: Any) -> None:
    source = make(files, num_epochs=4)
    want = [on_host(batch) for batch in pipeline(source)]
    with RaySource(source, num_actors=3, num_cpus=8) as crowded:  # 16 CPUs: two of them fit
        got = [on_host(batch) for batch in pipeline(crowded)]
        assert set(crowded._actors.actors()) < {0, 1, 2}
        assert "others join later: the cluster has no room for all of them (each needs 8 CPU of 16, " in caplog.text
    assert_equal(got, want)


def test_no_room_for_any_actor_is_told_soon_and_then_an_error_that_says_what_there_is(
    files: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        RaySource(make(files), num_actors=1, resources={"tpu_host": 1}, start_timeout_s=2.0) as homeless,
        pytest.raises(RuntimeError, match=r"none of 1 reader actors runs .* no room .*1 CPU of 16, 1 tpu_host of 0, "),
    ):
        next(homeless.batches(0, StreamOptions(8)))
    assert re.search(
        r"none of 1 reader actors runs after 1 s: the cluster has no room for all .*1 tpu_host of 0", caplog.text
    )


def test_a_ray_source_is_a_source_itself_and_its_actors_are_lean(files: list[Path], caplog: Any) -> None:
    source = make(files, num_epochs=1)
    with pytest.raises(TypeError, match="got str"):
        RaySource("train.array_record")
    with ray_source(source, 1) as distributed:
        assert "namespace" not in caplog.text
        with pytest.raises(TypeError, match="is a RaySource already"):
            RaySource(distributed)
        assert len(distributed) == 120
        assert [e["index"] for e in distributed] == [e["index"] for e in source]
        distributed.seek(0)
        assert distributed.get_batch(7)["index"].tolist() == source.copy().get_batch(7)["index"].tolist()
        state = distributed.get_state()
        rest = [e["index"] for e in distributed]
        distributed.set_state(state)
        assert [e["index"] for e in distributed] == rest
        assert distributed.get_batch(7) == {}
        assert [e["index"] for e in distributed.get_batch_at(5, 3)] == [e["index"] for e in source.get_batch_at(5, 3)]
        assert distributed.element_spec()["values"].shape == (5,)
        assert distributed.stats()[0]["max_rss_nbytes"] < 200e6
        modules = ray.get(distributed._actors._set.actors[0].handle.__ray_call__.remote(loaded_modules))
        assert not {"jax", "flax", "orbax", "grain", "datasets"} & set(modules)


@pytest.mark.parametrize("most", [None, pytest.param(1500, marks=pytest.mark.slow)])
def test_cached_partitions_give_the_same_stream_whatever_fits(files: list[Path], most: int | None) -> None:
    want = [on_host(batch) for batch in pipeline(make(files))]
    with ray_source(make(files, cacheable=True, cacheable_nbytes=most), 2) as cached:
        assert_equal([on_host(batch) for batch in pipeline(cached)], want)
        kept = [actor["kept"] for actor in cached.stats().values() if actor["kept"]]  # one that came late read nothing
    assert sum(each["num_from_memory"] + each["num_from_storage"] for each in kept) >= 3 * 120
    assert sum(each["num_from_memory"] for each in kept) > 0
    if most is None:
        assert sum(each["num_kept"] for each in kept) >= 120
    else:
        assert all(each["kept_nbytes"] <= most for each in kept)


def test_a_closed_source_says_so(files: list[Path]) -> None:
    source = ray_source(make(files), 1)
    going = pipeline(source)
    going.step()
    source.close()
    source.close()
    with pytest.raises(RuntimeError, match="this RaySource is closed"):
        list(going)
    with pytest.raises(RuntimeError, match="this RaySource is closed"):
        source.get_batch(3)
    with pytest.raises(RuntimeError, match="this RaySource is closed"):
        source.get_batch_at(0, 3)
    assert going.get_state()["position"] >= 32


def test_load_with_actors_gives_what_it_gives_without(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("x,y\n" + "".join(f"{number},a\n" for number in range(100)))
    alone = [int(element["x"]) for element in load(tmp_path, shuffle=True)]
    assert sorted(alone) == list(range(100))
    with load(tmp_path, shuffle=True, num_actors=1) as source:
        assert [int(element["x"]) for element in source] == alone


@pytest.mark.parametrize(("num_cpus", "num_actors"), [(0.0, 15), (0.25, 15), (1, 15), (4, 3), (16, 1), (64, 1)])
def test_by_default_there_is_an_actor_for_each_cpu_but_one_however_little_it_reserves(
    num_cpus: float, num_actors: int
) -> None:
    assert _default_num_actors(num_cpus) == num_actors  # of 16 CPUs


def test_a_pipeline_that_is_dropped_and_not_closed_ends_its_actors(files: list[Path]) -> None:
    """As where a notebook's cell that makes one is run again: else there would soon be no room for actors."""
    source = ray_source(make(files), 1)
    dropped = pipeline(source)
    dropped.step()
    mine = [stats["pid"] for stats in source.stats().values()]
    assert len(mine) == 1
    del source, dropped
    until(lambda: gc.collect() >= 0 and not any(Path(f"/proc/{pid}").exists() for pid in mine))


def test_trainers_that_share_actors_and_a_filter_have_every_record_read_once(files: list[Path], tmp_path: Path) -> None:
    called = Called(tmp_path / "called")
    source = make(files, [decode, called, DropThirds()])
    want = [[batch.stop, batch.columns["index"].tolist()] for batch in source.batches(0, StreamOptions(12))]
    called.path.unlink()
    options: dict[str, Any] = {"name": "once", "chunk_size": 30}
    with ray_source(source, 2, **options) as first, ray_source(source, 2, **options) as second:
        streams = [
            source.batches(0, StreamOptions(12, process_index=rank, process_count=2))
            for rank, source in enumerate((first, second))
        ]
        got = [
            [parts[0].stop, np.concatenate([part.columns["index"] for part in parts]).tolist()]
            for parts in zip(*streams, strict=True)
        ]
        for handle in first._actors._set.actors.values():
            ray.kill(handle.handle)
    assert got == want
    # 720 where each read for itself; on a busy machine many are late, and asked of the other actor too
    assert 360 <= called.path.stat().st_size < 600


def test_workers_that_are_forked_draw_ids_of_their_own() -> None:
    """Else two that start at once write one object, and one of them ends: see tests/warm_workers.py."""

    class Drawing:
        def ids(self) -> set[str]:
            return {ray.ActorClassID.from_random().hex() for _ in range(1000)}

    actors = [ray.remote(Drawing).options(num_cpus=0.1).remote() for _ in range(2)]
    first, second = ray.get([actor.ids.remote() for actor in actors])
    for actor in actors:
        ray.kill(actor)
    assert not first & second
