"""Changes to a running stream: what was given stays, what comes is that of a plain loop, whoever reads or resumes."""

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import jax
import numpy as np
import pytest
from flax import nnx

from datarax_ray import ConcatThenSplit, FirstFitPack, Pipeline, RaySource, load
from datarax_ray.checkpoint import PipelineRestore, PipelineSave
from datarax_ray.plan.evidence import RollingDigest, added
from datarax_ray.plan.state import BEGIN
from datarax_ray.plan.weights import WeightSchedule
from datarax_ray.read.streams.amending import amended_state
from datarax_ray.sources import (
    HFEagerConfig,
    HFEagerSource,
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests import oracle
from tests.data import AddNoise, Copies, DropThirds, Tokens, array_records, decode
from tests.resume import assert_equal, assert_resumes, joined, on_host, run_saving

N, SEED = 120, 5


def numbers(element):
    """What of an element a device holds, as it does."""
    found = {name: element[name] for name in ("index", "copy") if name in element}
    return {name: np.int32(value) for name, value in found.items()} | {
        name: element[name] for name in ("noise",) if name in element
    }


def of_files(files, *transforms, num_epochs=2, **config):
    transforms = transforms or (decode, AddNoise(), numbers)
    return array_records(files, *transforms, seed=SEED, num_epochs=num_epochs, **config)


def make(source, batch_size=8, **options):
    return Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


def take(pipeline, count):
    return [on_host(batch) for batch in islice(pipeline, count)]


def left(pipeline):
    return [on_host(batch) for batch in pipeline]


def amended(make_source, batches=3, batch_size=8, options=None, **change):
    """A pipeline that has given so many batches, and is changed then."""
    pipeline = make(make_source, batch_size, **(options or {}))
    take(pipeline, batches)
    pipeline.amend(**change)
    return pipeline


def in_batches(elements, size):
    rows = list(elements)
    parts = [rows[at : at + size] for at in range(0, len(rows), size)]
    return [{name: np.stack([row[name] for row in part]) for name in part[0]} for part in parts]


def order_of_epochs(num_epochs):
    return [record for epoch in range(num_epochs) for record in oracle.order(N, epoch, SEED)]


SKIPPED = [range(30, 47), 60, (100, 131), 239]
GONE = {*range(30, 47), 60, *range(100, 131), 239}


class TestSkip:
    def test_what_comes_is_a_plain_loop_without_these_positions_and_every_state_resumes(self, files):
        transforms = [decode, AddNoise(), numbers]
        plain = list(
            oracle.elements(oracle.stored(files), seed=SEED, num_epochs=2, transforms=transforms, rng_seed=SEED)
        )
        pipeline = make(of_files(files))
        assert_equal(take(pipeline, 3), in_batches([e for p, e in plain[:24]], 8))
        before = json.dumps(pipeline.get_state())
        pipeline.amend(skip=SKIPPED, why="a loss spike")
        assert pipeline.position == 24
        batches, states = run_saving(pipeline)
        assert_equal(batches, in_batches([e for p, e in plain if p >= 24 and p not in GONE], 8))
        assert_resumes(lambda _: make(of_files(files)), batches, states, every=3)
        assert max(map(len, states)) < 4096
        assert {json.dumps(json.loads(state)["rest"]) for state in states} == {
            '{"amendments": [{"at": 30, "positions": [[30, 47], [60, 61], [100, 131], [239, 240]], '
            '"why": "a loss spike"}]}'
        }
        assert "rest" not in json.loads(before)

    @pytest.mark.parametrize("case", ["filter", "flat_map", "file order", "tokens", "documents", "digest"])
    def test_with_whatever_else_makes_the_batches(self, files, case):
        """Each element of the rest is what that position gives alone."""
        transforms = {
            "filter": [decode, DropThirds(), AddNoise(), numbers],
            "flat_map": [decode, Copies(), AddNoise(), numbers],
        }
        options = {"tokens": {"packing": ConcatThenSplit(16, "x")}, "digest": {"digest": True}}.get(
            case, {"packing": FirstFitPack(16, "x")} if case == "documents" else {}
        )
        mine = [decode, Tokens()] if "packing" in options else transforms.get(case, [])
        source = of_files(files, *mine, shuffle_files=case != "file order")
        pipeline = make(source, 4, **options)
        take(pipeline, 1 if "packing" in options else 3)
        start, offset = (json.loads(json.dumps(pipeline.get_state())).get("rest", {}), pipeline.position)
        inside = next(iter(start.values()), 0)
        pipeline.amend(skip=SKIPPED)
        batches, states = run_saving(pipeline)
        alone = {p: source.get_batch_at(p, 1) for p in range(offset, 2 * N) if p not in GONE}
        if "packing" not in options:
            rest = [e for p, found in alone.items() for e in (found[inside:] if p == offset else found)]
            assert_equal(batches, in_batches(rest, 4))
        else:
            tokens = [e["x"] for found in alone.values() for e in found]
            if case == "tokens":
                tokens[0] = tokens[0][inside:]
            want = np.concatenate(tokens).tolist()
            got = [t for b in batches for t in b["x"][b["x_segment_ids"] > 0].tolist()]
            assert (got if case == "tokens" else sorted(got)) == (want if case == "tokens" else sorted(want))
        assert_resumes(lambda _: make(source, 4, **options), batches, states, every=7)

    @pytest.mark.usefixtures("ray_local")
    @pytest.mark.parametrize(
        "case", ["filter", *(pytest.param(case, marks=pytest.mark.slow) for case in ("positions", "records", "tokens"))]
    )
    def test_any_actors_and_trainers_give_the_same(self, files, case):
        options = {"packing": ConcatThenSplit(16, "x")} if case == "tokens" else {}
        mine = {"tokens": [decode, Tokens()], "filter": [decode, DropThirds(), AddNoise(), numbers]}
        transforms = mine.get(case, [])
        want = amended(of_files(files, *transforms), 1, options=options, skip=SKIPPED, every_epoch=case == "records")
        state = json.dumps(want.get_state())
        batches, states = run_saving(want)
        with RaySource(of_files(files, *transforms), num_actors=2, num_cpus=0.5, chunk_size=11) as source:
            got = amended(source, 1, options=options, skip=SKIPPED, every_epoch=case == "records")
            assert json.dumps(got.get_state()) == state
            assert run_saving(got) == (_Same(batches), states)
        shared = {"num_actors": 3, "num_cpus": 0.5, "chunk_size": 16, "name": f"amended-{case}"}
        sources = [RaySource(of_files(files, *transforms), **shared) for _ in range(2)]
        trainers = [make(each, process_index=r, process_count=2, **options) for r, each in enumerate(sources)]
        for each in trainers:
            each.set_state(json.loads(states[1]))
        assert_equal(joined([left(each) for each in trainers]), batches[1:])
        for each in sources:
            each.close()

    def test_a_record_is_left_out_in_every_epoch_and_a_position_in_one(self, files):
        order = order_of_epochs(3)
        source = of_files(files, decode, numbers, num_epochs=3)
        for every_epoch in (False, True):
            pipeline = amended(source, 0, skip=[range(24, 32)], every_epoch=every_epoch)
            seen = [index for batch in left(pipeline) for index in batch["index"].tolist()]
            gone = {order[p] for p in range(24, 32)}
            assert seen == [r for p, r in enumerate(order) if not (r in gone if every_epoch else 24 <= p < 32)]

    def test_records_are_named_as_errors_name_them(self, files):
        source = of_files(files, decode, numbers)
        with make(source) as pipeline:
            told = [origin.record for origin in pipeline.locate(20)]
            indices = next(iter(pipeline.replay(20, 21)))["index"].tolist()
            pipeline.amend(skip=[*told, f"{files[1].name}[3:5]"])
            first = sum(range(0))
            starts = np.cumsum([0, *(source._reader.files[i].num_records for i in range(len(files)))]).tolist()
            gone = {*indices, *range(starts[1] + 3, starts[1] + 5)}
            seen = [index for batch in pipeline for index in np.asarray(batch["index"]).tolist()]
            assert seen == [r for r in order_of_epochs(2)[first:] if r not in gone]
            with pytest.raises(ValueError, match=r"nowhere\[3\]: .* of this name, and 0 of this file\. `locate` names"):
                pipeline.amend(skip=["nowhere[3]"])
            count = source._reader.files[0].num_records
            said = rf"\[100000\]: the source has 0 of the 1 records of this name, and {count} of this file"
            with pytest.raises(ValueError, match=said):
                pipeline.amend(skip=[f"{files[0].name}[100000]"])
            with pytest.raises(ValueError, match="a record is named by its place in a file"):
                pipeline.amend(skip=["part"])

    def test_what_was_given_already_cannot_be_left_out(self, files):
        with make(of_files(files)) as pipeline:
            take(pipeline, 3)
            with pytest.raises(ValueError, match="position 23 was delivered already, and the next is 24"):
                pipeline.amend(skip=[23, 24])
            assert pipeline.amendments == ()
            with pytest.raises(ValueError, match="say what is to change"):
                pipeline.amend()
            with pytest.raises(TypeError, match=r"skip is a list, got 'part-0\[3\]'"):
                pipeline.amend(skip="part-0[3]")
            with pytest.raises(TypeError, match=r"skip is a list of positions, .*, got 50; write \[50\]"):
                pipeline.amend(skip=50)
            for beyond, first in (([240], 240), ([range(200, 241)], 240), ([(300, 302)], 300)):
                with pytest.raises(ValueError, match=f"position {first} is beyond the end: .* positions 0 to 239"):
                    pipeline.amend(skip=beyond)
            with pytest.raises(TypeError, match="takes no argument 'skips'. Did you mean 'skip'"):
                pipeline.amend(skips=[1])
            with pytest.raises(ValueError, match="this stream is no mixture, so it has none"):
                pipeline.amend(weights=[1, 2])
            with pytest.raises(ValueError, match="a text of at most 200 characters"):
                pipeline.amend(skip=[99], why="x" * 201)

    def test_who_says_it_again_after_a_restart_changes_nothing(self, files):
        pipeline = amended(of_files(files), skip=SKIPPED, why="first")
        take(pipeline, 9)
        state = pipeline.get_state()
        restarted = make(of_files(files))
        restarted.set_state(json.loads(json.dumps(state)))
        restarted.amend(skip=SKIPPED, why="first")
        assert restarted.get_state() == state
        assert_equal(left(restarted), left(pipeline))

    def test_a_state_says_what_was_changed_and_one_without_ends_it_with_a_word(self, files, caplog):
        pipeline = make(of_files(files))
        take(pipeline, 2)
        state = pipeline.get_state()
        want = left(pipeline)
        pipeline = amended(of_files(files), skip=SKIPPED)
        assert [str(each) for each in pipeline.amendments] == [
            "from position 30 on: skips positions [30, 47), [60, 61), [100, 131) and more, 50 in all"
        ]
        assert not caplog.records
        pipeline.set_state(state)
        assert_equal(left(pipeline), want)
        assert [r.message for r in caplog.records if r.levelno == logging.WARNING][:1] == [
            "the amendments of this pipeline (from position 30 on: skips positions [30, 47), [60, 61), [100, 131) "
            "and more, 50 in all) are not in the state, and so are gone; call amend again"
        ]

    def test_seek_locate_and_replay_are_of_the_amended_stream(self, files):
        whole = [b["index"].tolist() for b in left(make(of_files(files)))]
        pipeline = amended(of_files(files), skip=SKIPPED)
        state, batches = pipeline.get_state(), left(pipeline)
        assert_equal(list(pipeline.replay(2, 5, state)), batches[2:5])
        for step in (0, 2, 9):
            positions = [origin.position for origin in pipeline.locate(step, state)]
            assert not GONE & set(positions)
            assert [whole[p // 8][p % 8] for p in positions] == batches[step]["index"].tolist()
        pipeline.seek(24)
        assert_equal(left(pipeline), batches)
        assert [index for step in range(3) for index in next(pipeline.replay(step, step + 1))["index"].tolist()] == [
            index for batch in whole[:3] for index in batch
        ]
        with pytest.raises(TypeError, match="positions that an amendment skips"):
            len(pipeline)

    def test_the_digest_is_the_same_up_to_there_and_of_what_was_consumed_from_there(self, files):
        plain = make(of_files(files), digest=True)
        pipeline = make(of_files(files), digest=True)
        take(plain, 3), take(pipeline, 3)
        pipeline.amend(skip=SKIPPED)
        assert pipeline.get_state()["digest"] == plain.get_state()["digest"]
        left(plain), left(pipeline)
        assert pipeline.get_state()["digest"]["sum"] != plain.get_state()["digest"]["sum"]
        *_, (_, _, last) = pipeline.digests(pipeline.get_state())
        assert last == pipeline.get_state()["digest"]["sum"]
        state = json.loads(json.dumps(pipeline.get_state()))
        ranks = [make(of_files(files), digest=True, process_index=r, process_count=2) for r in range(2)]
        for rank in ranks:
            take(rank, 3)
            rank.amend(skip=SKIPPED)
            left(rank)
        whole = added(RollingDigest.from_json(rank.get_state()["digest"]) for rank in ranks)
        assert whole is not None
        assert whole.to_json() == state["digest"]

    def test_a_source_alone_goes_on_from_such_a_state(self, files):
        pipeline = amended(of_files(files), skip=SKIPPED)
        state = json.loads(json.dumps(pipeline.get_state()))
        state["settings"] = of_files(files).get_state()["settings"]
        source = of_files(files)
        source.set_state(state)
        ahead = [
            [int(e["index"]) for e in each] for each in (source.get_batch_at(44, 6), source.copy().get_batch_at(47, 3))
        ]
        assert ahead[0] == ahead[1]
        first = [next(source) for _ in range(10)]
        assert source.get_state()["rest"] == state["rest"]
        rest = [int(e["index"]) for e in (*first, *source)]
        assert rest == [index for batch in left(pipeline) for index in batch["index"].tolist()]
        with pytest.raises(NotImplementedError, match=r"this stream was amended, .* skips positions \[30, 47\)"):
            jax.jit(lambda start: source.get_batch_at(start, 4))(0)


class _Same(list[Any]):
    """Batches that equal others byte for byte."""

    def __eq__(self, other):
        assert isinstance(other, list)
        assert_equal(other, list(self))
        return True

    __hash__ = None


class TestStreams:
    def source(self, *transforms):
        dataset = datasets.Dataset.from_dict({"index": list(range(90))}).to_iterable_dataset(num_shards=3)
        config = HFStreamingConfig(shuffle=True, num_epochs=2, shuffle_buffer_size=7, turn_size=2)
        return HFStreamingSource(config, dataset=dataset, transforms=transforms)

    @pytest.mark.usefixtures("ray_local")
    def test_positions_of_one_epoch_are_left_out_for_any_actors(self):
        plain = make(self.source(), 5)
        take(plain, 2)
        gone = {3, 4, 5, 60, 61, 100}
        change = {"skip": [plain.locate(number // 5, plain.get_state())[number % 5] for number in sorted(gone)]}
        rest = [index for batch in left(plain) for index in batch["index"].tolist()]
        pipeline = amended(self.source(), 2, 5, **change)
        batches, states = run_saving(pipeline)
        seen = [index for batch in batches for index in batch["index"].tolist()]
        assert seen == [index for number, index in enumerate(rest) if number not in gone]
        assert_resumes(lambda _: make(self.source(), 5), batches, states, every=5)
        with RaySource(self.source(), num_actors=2, num_cpus=0.5) as distributed:
            resumed = make(distributed, 5)
            resumed.set_state(json.loads(states[3]))
            assert_equal(left(resumed), batches[3:])

    def test_records_and_weights_are_refused_with_the_remedy(self):
        pipeline = make(self.source(), 5)
        with pytest.raises(ValueError, match="every_epoch=True .* give the positions of each epoch, as locate"):
            pipeline.amend(skip=[3], every_epoch=True)
        with pytest.raises(ValueError, match="records of a stream of shards have no number; give their positions"):
            pipeline.amend(skip=["dataset[3]"])
        with pytest.raises(ValueError, match="is no mixture"):
            pipeline.amend(weights=[1])


def component(number, size, *transforms):
    options = RandomAccessSourceConfig(seed=number, shuffle=True)
    data = {"index": np.arange(size, dtype=np.int32), "source": np.full(size, number, np.int32)}
    return RandomAccessSource(options, data, transforms=[*transforms, AddNoise()])


def mixture(weights=(3, 1, 0), length=200, *transforms):
    sources = [component(number, size, *transforms) for number, size in enumerate((31, 50, 13))]
    return MixtureSource(sources, weights, length=length)


def alone(number, count):
    """The first elements that a source gives without the mixture."""
    return mixture()._sources[number].get_batch_at(0, count)


def assert_each_goes_on(batches):
    """Every source gives what it gives alone, one after the other. Returns the source of each row."""
    drawn = np.concatenate([batch["source"] for batch in batches])
    for number in range(3):
        its = drawn == number
        want = alone(number, int(its.sum()))
        assert np.concatenate([b["index"] for b in batches])[its].tolist() == [int(e["index"]) for e in want]
        assert np.concatenate([b["noise"] for b in batches])[its].tolist() == [e["noise"].tolist() for e in want]
    return drawn


LINEAR = WeightSchedule([(0, [1, 0, 0]), (80, [0, 1, 1])], num_steps=8)


class TestWeights:
    def test_a_schedule_is_a_function_of_the_position(self):
        batches, states = run_saving(make(mixture(LINEAR)))
        drawn = assert_each_goes_on(batches)
        for step in range(8):
            counts = np.bincount(drawn[10 * step : 10 * step + 10], minlength=3)
            assert np.abs(counts - 10 * np.array([8 - step, step / 2, step / 2]) / 8).max() < 2
        assert np.bincount(drawn[80:]).tolist() == [0, 60, 60]
        assert_resumes(lambda _: make(mixture(LINEAR)), batches, states, every=6)
        assert json.loads(states[3])["settings"]["mixture"]["weights"] == {
            "points": [[0, [1, 0, 0]], [80, [0, 1, 1]]],
            "num_steps": 8,
        }
        with pytest.raises(ValueError, match=r"mixture.weights"):
            make(mixture()).set_state(json.loads(states[3]))

    @pytest.mark.parametrize("weights", [(1, 1, 2), LINEAR])
    def test_they_hold_from_a_position_on_and_nothing_is_repeated_or_lost(self, weights):
        first = take(make(mixture()), 4)
        pipeline = amended(mixture(), 4, weights=weights)
        batches, states = run_saving(pipeline)
        drawn = assert_each_goes_on(first + batches)
        fresh = np.concatenate([b["source"] for b in left(make(mixture(weights, 168)))])
        assert drawn[32:].tolist() == fresh.tolist()
        assert_resumes(lambda _: make(mixture()), batches, states, every=5)
        assert max(map(len, states)) < 4096

    def test_ahead_of_time_twice_and_with_positions_left_out(self):
        pipeline = amended(mixture(), 2, weights=[1, 1, 1], at=40, why="stage two")
        pipeline.amend(weights=LINEAR, at=100)
        pipeline.amend(skip=[range(60, 70)])
        before = take(make(mixture()), 2)
        batches, states = run_saving(pipeline)
        assert len(batches) == (200 - 16 - 10 + 7) // 8
        whole = amended(mixture(), 2, weights=[1, 1, 1], at=40)
        whole.amend(weights=LINEAR, at=100)
        assert_each_goes_on(before + (whole_batches := left(whole)))
        rows = [i for b in whole_batches for i in zip(b["source"].tolist(), b["index"].tolist(), strict=True)]
        seen = [i for b in batches for i in zip(b["source"].tolist(), b["index"].tolist(), strict=True)]
        assert seen == [row for number, row in enumerate(rows) if not 60 <= number + 16 < 70]
        assert_resumes(lambda _: make(mixture()), batches, states, every=6)
        assert [str(each) for each in pipeline.amendments][:1] == ["from position 40 on: weights [1, 1, 1] (stage two)"]

    def test_in_the_middle_of_a_record_it_is_given_to_its_end(self):
        class Thrice:
            def flat_map(self, element):
                return [element | {"copy": np.int64(copy)} for copy in range(3)]

        def of_copies():
            return mixture((3, 1, 0), 60, Thrice())

        whole = take(make(of_copies(), 4), 5)
        pipeline = amended(of_copies(), 5, 4, weights=[0, 1, 1])  # behind 20 elements: two of position 6
        assert pipeline.position == 6
        with pytest.raises(ValueError, match="position 6 was delivered already, and the next is 7"):
            pipeline.amend(skip=[6])
        rest, states = run_saving(pipeline)
        rows = [r for b in whole + rest for r in zip(b["source"].tolist(), b["copy"].tolist(), strict=True)]
        assert [copy for _, copy in rows] == [0, 1, 2] * 60
        assert {source for source, _ in rows[21:]} == {1, 2}
        assert_resumes(lambda _: make(of_copies(), 4), rest, states, every=6)

    @pytest.mark.parametrize("weights", [(3, 1, 1), LINEAR])
    def test_a_record_of_one_source_is_left_out_wherever_it_comes(self, weights):
        def rows(batches):
            return [row for b in batches for row in zip(b["source"].tolist(), b["index"].tolist(), strict=True)]

        whole = rows(left(make(mixture(weights))))
        pipeline = make(mixture(weights))
        pipeline.amend(skip=[*pipeline.locate(0)[:3], range(50, 60)], every_epoch=True)
        gone = {*whole[:3], *whole[50:60]}
        assert rows(left(pipeline)) == [row for row in whole if row not in gone]
        pipeline = make(mixture(weights))
        pipeline.amend(skip=["component 0: arrays[7]", "component 2: arrays[3:5]"])
        gone = {(0, 7), (2, 3), (2, 4)}
        assert rows(left(pipeline)) == [row for row in whole if row not in gone]

    def test_what_means_nothing_is_refused(self):
        pipeline = make(mixture())
        take(pipeline, 2)
        for weights, error, message in (
            ([1, 2], ValueError, "the mixture has 3 sources, and 2 weights were given"),
            ({0: 1}, TypeError, "weights is a list of numbers"),
            ([0, 0, 0], ValueError, "at least 0, and one of them more"),
        ):
            with pytest.raises(error, match=message):
                pipeline.amend(weights=weights)
        with pytest.raises(ValueError, match="position 3 was delivered already"):
            pipeline.amend(weights=[1, 1, 1], at=3)
        finite = MixtureSource([component(0, 7), RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), range(9))])
        with pytest.raises(ValueError, match=r"components without an end, and \[1\] have one"):
            make(finite).amend(weights=[1, 2])

    def test_a_schedule_ends_where_a_finite_source_has_no_more(self):
        def drawn(weights):
            options = RandomAccessSourceConfig(num_epochs=1)
            sources = [
                RandomAccessSource(options, {"source": np.full(size, number)}) for number, size in enumerate((9, 40))
            ]
            return [int(element["source"]) for element in MixtureSource(sources, weights)]

        ends = drawn(WeightSchedule([(0, [1, 1]), (10, [0, 1])]))
        assert ends.count(0) == 5
        assert len(ends) == 5 + 40
        assert drawn(WeightSchedule([(0, [0, 1]), (10, [1, 1])])).count(0) == 9

    @pytest.mark.usefixtures("ray_local")
    def test_actors_and_trainers_go_by_them(self) -> None:
        pipeline = amended(mixture(), 4, weights=[1, 1, 2])
        pipeline.amend(weights=LINEAR, at=90)
        batches, states = run_saving(pipeline)
        with RaySource(mixture(), num_actors=2, num_cpus=0.5, chunk_size=7) as source:
            got = amended(source, 4, weights=[1, 1, 2])
            got.amend(weights=LINEAR, at=90)
            assert run_saving(got) == (_Same(batches), states)
            ranks = [make(source, process_index=rank, process_count=4) for rank in range(4)]
            for rank in ranks:
                rank.set_state(json.loads(states[2]))
            assert_equal(joined([left(rank) for rank in ranks]), batches[2:])

    def test_random_access_seek_and_replay_go_by_those_of_each_position(self) -> None:
        first = take(make(mixture()), 4)
        pipeline = amended(mixture(), 4, weights=[1, 1, 2])
        batches = left(pipeline)
        pipeline.seek(0)
        assert_equal(left(pipeline), first + batches)
        assert_equal(list(pipeline.replay(3, 6)), (first + batches)[3:6])


class TestNamesOfFiles:
    """Of two files of one name, in two folders; the state that is said of them, by value."""

    @pytest.fixture
    def stream(self, tmp_path):
        for folder, count in (("a/day1", 20), ("b/day1", 12)):
            (tmp_path / folder).mkdir(parents=True)
            (tmp_path / folder / "part-0.jsonl").write_text("".join(f'{{"id": {i}}}\n' for i in range(count)))
        return load([str(tmp_path / each / "part-0.jsonl") for each in ("a/day1", "b/day1")]).describe()

    def records(self, stream, name):
        return [each.records for each in amended_state(stream, BEGIN, skip=[name]).amendments]

    def test_a_name_that_several_have_is_refused_with_one_that_tells_them_apart(self, stream, tmp_path):
        for name in ("part-0.jsonl[3]", "day1/part-0.jsonl[3]"):
            said = rf"2 files, such as {tmp_path}/a/day1/part-0.jsonl and {tmp_path}/b/day1/part-0.jsonl; give"
            with pytest.raises(ValueError, match=said):
                self.records(stream, name)
        assert self.records(stream, "a/day1/part-0.jsonl[3:20]") == [((3, 20),)]
        assert self.records(stream, "b/day1/part-0.jsonl[3]") == [((23, 24),)]
        assert self.records(stream, f"{tmp_path}/b/day1/part-0.jsonl[3:12]") == [((23, 32),)]  # as `locate` has it

    @pytest.mark.parametrize("name", ["arrays", "dataset"])
    def test_of_data_in_no_file_no_other_component_s_record_is_left_out(self, name: str) -> None:
        def part(ids: range) -> Any:
            if name == "arrays":
                return RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), {"id": np.array(ids)})
            return HFEagerSource(HFEagerConfig(num_epochs=1), dataset=datasets.Dataset.from_dict({"id": ids}))

        def ids(pipeline: Pipeline) -> list[int]:
            return [i for batch in left(pipeline) for i in batch["id"].tolist()]

        def mixture() -> Pipeline:
            return make(MixtureSource([part(range(6)), part(range(100, 106))]), 4)

        whole, pipeline = ids(mixture()), mixture()
        told = [origin.record for origin in pipeline.locate(1)]
        assert told == [f"component {i // 100}: {name}[{i % 100}]" for i in whole[4:8]]
        with pytest.raises(ValueError, match=f"2 files, such as component 0: {name} and component 1: {name};"):
            pipeline.amend(skip=[f"{name}[3]"])
        pipeline.amend(skip=[f"component 1: {name}[3]"])
        assert ids(pipeline) == [i for i in whole if i != 103]


class TestCheckpoint:
    def test_it_is_in_the_step_of_the_model_and_trainers_must_agree(self, files: list[Path], tmp_path: Path) -> None:
        import orbax.checkpoint as ocp

        pipeline = amended(of_files(files), skip=SKIPPED)
        with ocp.CheckpointManager((tmp_path / "run").absolute()) as manager:
            manager.save(1, args=ocp.args.Composite(data=PipelineSave(pipeline)))
            manager.wait_until_finished()
            resumed = make(of_files(files))
            manager.restore(1, args=ocp.args.Composite(data=PipelineRestore(resumed)))
        assert resumed.amendments == pipeline.amendments
        assert_equal(left(resumed), left(pipeline))
