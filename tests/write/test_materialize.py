"""A stream that goes on from what was materialised is the live stream, which is the oracle here."""

import json
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from datarax_ray import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    ConcatThenSplit,
    DecodeMaterialized,
    MaterializedSource,
    MixtureSource,
    Pipeline,
    RandomAccessSource,
    RandomAccessSourceConfig,
    load,
    materialize,
)
from datarax_ray.plan.fingerprint import DriftError
from tests.data import AddNoise, DropThirds, FailAt, decode
from tests.resume import assert_equal, assert_resumes, run_saving


class Repeat:
    """Gives an element as often as its index says, modulo 3."""

    def flat_map(self, element):
        return [element | {"copy": np.int32(copy)} for copy in range(element["index"] % 3)]


class DropFirstCopy:
    def filter(self, element):
        return int(element["copy"]) != 0


class Doubled:
    """Works on columns; what comes of it is columns."""

    def map_columns(self, columns):
        return {"z": columns["values"] * 2, "index": columns["index"].astype(np.int32), "text": columns["name"]}


class Noisy:
    def random_map(self, element, rng):
        return element | {"noise": rng.random(2), "kind": str(type(element["index"]))}


class Placed:
    def map_with_index(self, position, element):
        return element | {"position": position}


def tokens(element):
    return {"tokens": np.arange(element["index"] % 5, dtype=np.int32) + element["index"]}


CHAINS = {
    "decoded": [decode],
    "filtered, then random": [decode, DropThirds(), AddNoise()],
    "several of one, of which some are dropped": [decode, Repeat(), DropFirstCopy(), AddNoise(), Placed()],
    "columns": [decode, Doubled()],
    "columns, then random": [decode, DropThirds(), Doubled(), Noisy()],
    "failures behind random ones": [decode, AddNoise(), FailAt(3, 60)],
    "failures": [decode, Repeat(), FailAt(4, 50, 119), DropThirds(), AddNoise()],
}


def live(files, transforms, **config):
    settings = {"shuffle": True, "num_epochs": 2, "on_error": "skip"} | config
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**settings), files, transforms=transforms)


def pipelines(source, batch_size=7, **options):
    return lambda: Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


def assert_interchangeable(one, other, every=6):
    """Each goes on from the other's states, with the same batches and the same states."""
    with one() as pipeline:
        batches, states = run_saving(pipeline)
        told = pipeline.num_skipped, pipeline.skipped
    with other() as pipeline:
        found, others = run_saving(pipeline)
        assert_equal(found, batches)
        assert list(map(json.loads, others)) == list(map(json.loads, states))
        assert (pipeline.num_skipped, pipeline.skipped) == told
    assert_resumes(lambda _: other(), batches, states, every)
    assert_resumes(lambda _: one(), batches, others, every)


@pytest.mark.parametrize("name", CHAINS)
def test_a_run_moves_from_live_to_materialised_and_back_after_any_batch(files, tmp_path, name):
    source = live(files, CHAINS[name])
    num_transforms = 1 if "behind" in name else None
    done = materialize(source, tmp_path / "out", num_shards=3, num_transforms=num_transforms)
    assert (done.num_records, len(list((tmp_path / "out").glob("*.array_record")))) == (120, 3)
    assert str(done).startswith(f"{tmp_path}/out: ran once: ")
    assert "\n120 records gave " in str(done)
    assert_interchangeable(pipelines(source), pipelines(MaterializedSource(source, tmp_path / "out")))


@pytest.mark.parametrize(
    "order",
    [
        {"shuffle": False},
        {"shuffle_block_size": 8, "seed": 3},
        {"shuffle_block_size": "auto", "num_epochs": 1},
        {"cacheable": True},
    ],
    ids=str,
)
def test_one_folder_serves_every_order(files, tmp_path, order):
    chain = CHAINS["filtered, then random"]
    materialize(live(files, chain), tmp_path / "out")
    source = live(files, chain, **order)
    assert_interchangeable(pipelines(source), pipelines(MaterializedSource(source, tmp_path / "out")), every=9)


def test_mixtures_go_on_with_their_components_materialised(files, tmp_path):
    def half(paths, seed):
        return live(paths, CHAINS["filtered, then random"], seed=seed, num_epochs=-1)

    parts = [half(files[:3], 1), half(files[3:], 2)]
    mixture = MixtureSource(parts, [1, 3], length=200)
    done = materialize(mixture, tmp_path / "out")
    assert [each.statistics.num_records for each in done.components] == [20, 100]
    assert_interchangeable(pipelines(mixture), pipelines(MaterializedSource(mixture, tmp_path / "out")), every=5)
    own = [parts[0], MaterializedSource(parts[1], tmp_path / "out" / "component-1")]
    assert_interchangeable(pipelines(mixture), pipelines(MixtureSource(own, [1, 3], length=200)), every=11)


def test_packing_stays_live(files, tmp_path):
    source = live(files, [decode, tokens])
    materialize(source, tmp_path / "out")
    packed = {"packing": ConcatThenSplit(16, ["tokens"]), "batch_size": 3}
    written = MaterializedSource(source, tmp_path / "out")
    assert_interchangeable(pipelines(source, **packed), pipelines(written, **packed), every=3)


def test_other_transforms_and_other_files_are_refused(files, tmp_path):
    materialize(live(files, [decode, DropThirds()]), tmp_path / "out")
    with pytest.raises(DriftError, match=r"out was written by other transforms: made again, element 5 has another"):
        MaterializedSource(live(files, [decode, FailAt(3)]), tmp_path / "out")
    with pytest.raises(DriftError, match="files.num_records: 120 and 20"):
        MaterializedSource(live(files[:3], [decode, DropThirds()]), tmp_path / "out")
    longer = live(files, [decode, DropThirds(), FailAt(500)])  # what is behind it runs live
    assert_interchangeable(pipelines(longer), pipelines(MaterializedSource(longer, tmp_path / "out")), every=9)


def test_what_cannot_be_run_once_is_refused_by_name(files, tmp_path):
    for transforms, num_transforms, message in (
        ([decode, AddNoise(), DropThirds()], None, "DropThirds could run once.*AddNoise draws.*num_transforms=1"),
        ([Placed()], None, r"no transform to run once: transform Placed is told the position"),
        ([decode, AddNoise()], 2, r"num_transforms=2, and 1 at most can run once: transform AddNoise draws"),
    ):
        with pytest.raises(ValueError, match=message):
            materialize(live(files, transforms), tmp_path / "out", num_transforms=num_transforms)
    assert not (tmp_path / "out").exists()
    source = live(files, [decode, AddNoise(), DropThirds()])
    materialize(source, tmp_path / "out", num_transforms=1)
    assert_interchangeable(pipelines(source), pipelines(MaterializedSource(source, tmp_path / "out")), every=9)


def test_a_value_that_would_not_come_back_is_refused_before_a_file_is_named(tmp_path):
    config = RandomAccessSourceConfig()
    source = RandomAccessSource(config, {"x": np.arange(4)}, transforms=[lambda element: {"x": Path("a")}])
    with pytest.raises(TypeError, match="field 'x' is a PosixPath, which cannot be written"):
        materialize(source, tmp_path / "out")


def test_a_record_that_fails_ends_it_unless_errors_are_skipped(files, tmp_path):
    source = live(files, [decode, FailAt(50)], on_error="raise")
    with pytest.raises(ValueError, match=r"part-00003.array_record\[30\].*cannot divide element 50"):
        materialize(source, tmp_path / "out")


def test_a_folder_that_is_damaged_or_not_whole_is_refused(files, tmp_path):
    source = live(files, [decode])
    with pytest.raises(FileNotFoundError, match="nothing was written"):
        MaterializedSource(source, tmp_path)
    materialize(source, tmp_path / "out", num_shards=2)
    (first, second) = sorted((tmp_path / "out").glob("*.array_record"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(ValueError, match="is not the file that was written"):
        MaterializedSource(source, tmp_path / "out")
    (tmp_path / "out" / "dataset.json").write_text("{}")
    with pytest.raises(ValueError, match="was not written by materialize"):
        MaterializedSource(source, tmp_path / "out")
    with pytest.raises(TypeError, match="given to materialize, got"):
        MaterializedSource(tmp_path, tmp_path / "out")


def test_the_folder_is_a_dataset_of_its_own(files, tmp_path, served):
    chain = [decode, Repeat(), FailAt(7)]
    source = live(files, chain, shuffle=False, num_epochs=1)
    materialize(source, tmp_path / "out")
    want = live(files, [*chain, Noisy()], shuffle=False, num_epochs=1).get_batch(500)
    found = ArrayRecordSourceModule(
        ArrayRecordSourceConfig(num_epochs=1, on_error="skip"),
        tmp_path / "out",
        transforms=[DecodeMaterialized(), Noisy()],
    )
    got = found.get_batch(500)
    assert got["index"].tolist() == want["index"].tolist()
    assert got["kind"].tolist() == want["kind"].tolist()
    ((failure,), *_) = [found.skipped]
    assert "it failed when it was materialised: " in failure.reason
    assert "part-00001.array_record[0]: element 0 of the record: transform FailAt raised ZeroDivis" in failure.reason
    materialize(live(files, [decode, DropThirds()]), tmp_path / "other")
    other = str(tmp_path / "other")
    for place in (Path(other), [other], f"file://{other}", f"{served.url}/other/"):
        loaded = load(place, transforms=[lambda element: {"index": element["index"] + 1}])
        assert loaded.get_batch(500)["index"].tolist() == [n + 1 for n in range(120) if n % 3]


@pytest.mark.parametrize(
    ("name", "has_index", "has_len"),
    [("decoded", True, True), ("filtered, then random", True, False), ("several of one", False, False)],
)
def test_a_dataset_of_its_own_has_elements_by_index_where_each_record_gave_one_at_most(
    files, tmp_path, name, has_index, has_len
):
    chain = (CHAINS | {"several of one": [decode, Repeat()]})[name]
    materialize(live(files, chain), tmp_path / "out")

    def loaded():
        return load(tmp_path / "out", shuffle=True, num_epochs=2, transforms=[Noisy()])

    now, pipeline = loaded(), pipelines(loaded())()
    if has_index:
        assert_equal([now[index] for index in (4, 7)], [now.get_batch_at(index, 1)[0] for index in (4, 7)])
    else:
        with pytest.raises(TypeError, match="with a flat_map an index gives any number of elements"):
            now[3]
    if has_len:
        assert len(pipeline) == len(list(pipeline)) == 35
    else:
        with pytest.raises(TypeError, match="known only by reading"):
            len(pipeline)
