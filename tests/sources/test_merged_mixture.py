"""Mixtures with streams in them: the elements of all, each as alone, merged by a plain loop, for any actors and states.

The oracle asks iterators of the sources alone for one element after the other, by the component at each position.
"""

import functools
import json
import operator
from fractions import Fraction
from itertools import islice, pairwise

import datasets
import numpy as np
import pytest
from flax import nnx

from datarax_ray import ConcatThenSplit, FirstFitPack, Pipeline, sources
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.orders.mixture import Mixture
from datarax_ray.plan.weights import WeightSchedule, pieces_of, weights_given
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.hugging_face.shards import Portions
from datarax_ray.read.stream import is_endless
from datarax_ray.sources import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    HFStreamingConfig,
    MixtureSource,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests.data import AddNoise, FailAt, decode, in_memory, write_files
from tests.resume import assert_equal, joined, on_host, run_saving

SHARDS = (20, 3, 0, 9)
WEIGHTS = [5, 3, 2]


class HFStreamingSource(sources.HFStreamingSource, pytree=False):
    """In small portions, so that cursors stand inside a shard."""

    portions = Portions(max_rows=4, elements=4)


class Tag:
    """Says of which source an element is."""

    def __init__(self, source):
        self.source = source

    def map(self, element):
        return {"source": self.source, "index": int(element["index"]), "copy": 0}


class Some:
    """None, one or two of each."""

    def flat_map(self, element):
        return [element | {"copy": copy} for copy in range(element["index"] % 3)]


class NoSevenths:
    def filter(self, element):
        return bool(element["index"] % 7)


class Tokens:
    """A document of 0 to 6 tokens, each telling source, index and place."""

    def map(self, element):
        first = 10_000 * element["source"] + 10 * element["index"]
        return {"tokens": list(range(first, first + element["index"] % 7))}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """JSON lines in files of unequal lengths, one of them with a line that nothing is read of."""
    directory, start, paths = tmp_path_factory.mktemp("shards"), 0, []
    for number, count in enumerate(filter(None, SHARDS)):
        paths.append(directory / f"{number}.jsonl")
        paths[-1].write_text("".join(json.dumps({"index": start + i}) + "\n" for i in range(count)))
        start += count
    return list(map(str, paths))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("records"), (11, 20))


@functools.cache
def opened(paths):
    return datasets.load_dataset("json", data_files=list(paths), split="train", streaming=True)


def stream(shards, number=0, *transforms, noise=True, **config):
    options = {"shuffle": True, "num_epochs": 2, "shuffle_buffer_size": 7, "turn_size": 3, "seed": number} | config
    its = [Tag(number), *transforms, *([AddNoise()] if noise else [])]
    return HFStreamingSource(HFStreamingConfig(**options), dataset=opened(tuple(shards)), transforms=its)


def in_files(records, number, *transforms, noise=True, **config):
    options = ArrayRecordSourceConfig(**{"shuffle_files": True, "seed": number, "num_epochs": -1} | config)
    its = [decode, Tag(number), *transforms, *([AddNoise()] if noise else [])]
    return ArrayRecordSourceModule(options, records, transforms=its)


def numbers(number, count, *transforms, noise=True, **config):
    options = RandomAccessSourceConfig(**{"shuffle": True, "seed": number, "num_epochs": -1} | config)
    its = [Tag(number), *transforms, *([AddNoise()] if noise else [])]
    return RandomAccessSource(options, {"index": np.arange(count)}, transforms=its)


def parts(shards, records, **options):
    """A stream of which filters and flat_maps leave some, files, and a mixture of arrays."""
    inner = MixtureSource([numbers(2, 7, **options), numbers(3, 5, Some(), **options)], [2, 1])
    return [stream(shards, 0, NoSevenths(), Some(), **options), in_files(records, 1, **options), inner]


def merged(components, weights=WEIGHTS, seed=42, size=None):
    """One element after the other, until one is not there. size: of an element, what weights share out."""
    iterators = [iter(component) for component in components]
    position, pieces = 0, [*pieces_of(weights_given(weights)), (10**9, ())]
    for (begin, its), (end, _) in pairwise(pieces):
        given = [0] * len(its)
        while position < end:
            component = int(Mixture(its, seed).place(np.array([position - begin]))[0][0])
            if size is not None:
                component = min((Fraction(given[index], w), index) for index, w in enumerate(its) if w)[1]
            try:
                yield (element := next(iterators[component]))
            except StopIteration:
                return
            given[component] += size(element) if size is not None else 0
            position += 1


def plain(element):
    return {key: np.asarray(value).tolist() for key, value in element.items()}


def make(of, batch_size=6, **options):
    return Pipeline(source=of, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


def rows(batches):
    found = [{key: np.asarray(column).tolist() for key, column in batch.items()} for batch in batches]
    return [dict(zip(batch, row, strict=True)) for batch in found for row in zip(*batch.values(), strict=True)]


MIXTURES = {
    "a stream, files and a mixture": (parts, WEIGHTS),
    "streams": (lambda shards, _, **o: [stream(shards, 0, **o), stream(shards[1:], 1, Some(), **o)], [3, 1]),
    "a mixture of streams in it": (
        lambda shards, records, **o: [
            in_files(records, 1, **o),
            MixtureSource(
                [stream(shards, 0, Some(), num_epochs=-1, **o), numbers(2, 5, NoSevenths(), num_epochs=9, **o)], [2, 1]
            ),
        ],
        [1, 2],
    ),
    "a schedule": (parts, WeightSchedule([(0, [1, 0, 1]), (30, [1, 1, 0]), (60, [2, 1, 1])], num_steps=3)),
}


INDEXED = (lambda _, records, **o: [in_files(records, 1, num_epochs=1, **o), numbers(2, 9, NoSevenths(), **o)], [1, 3])


@pytest.mark.parametrize(("kind", "by"), [*((kind, by) for kind in MIXTURES for by in (None, "index")), ("", "index")])
def test_the_elements_are_those_of_a_plain_loop_from_any_state(kind, by, shards, records):
    components, weights = MIXTURES.get(kind, INDEXED)
    want = list(map(plain, merged(components(shards, records), weights, size=by and operator.itemgetter(by))))
    assert len(want) > 40

    def mixture():
        return MixtureSource(components(shards, records), weights, weights_by=by)

    whole, source = mixture(), mixture()
    assert list(map(plain, whole)) == want
    assert whole.get_batch(3) == {}
    batches, states = run_saving(make(mixture(), 7))
    assert rows(batches) == want
    for count in range(0, len(states), 8):
        pipeline = make(mixture(), 7)
        pipeline.set_state(json.loads(states[count]))
        assert rows(islice(pipeline, 2)) == want[7 * count : 7 * count + 14]
        source.get_batch(20)
        assert plain(next(source)) == want[21 * (count // 8) + 20]  # one by one, in the middle of what was read ahead
        again = mixture()
        again.set_state(json.loads(json.dumps(source.get_state())))
        assert list(map(plain, islice(again, 3))) == want[21 * (count // 8) + 21 :][:3]
        if len(want) < 21 * (count // 8 + 2):
            break


PACKINGS = {"tokens": ConcatThenSplit(5, "tokens"), "documents": FirstFitPack(4, "tokens", too_long="split")}


@pytest.mark.parametrize("kind", [*PACKINGS, *(f"by {kind}" for kind in PACKINGS)])
def test_packed_rows_are_those_of_the_merged_documents(kind, shards, records):
    """Split and empty documents are merged as documents, so the plain list has them split."""
    packing = PACKINGS[kind.removeprefix("by ")]
    by = {"weights_by": "tokens"} if kind.startswith("by ") else {}
    size = (lambda element: len(element["tokens"])) if by else None

    def components(*last):
        return [
            stream(shards, 0, Some(), Tokens(), *last, noise=False),
            in_files(records, 1, Tokens(), *last, noise=False),
        ]

    split = components(Split(4 if "documents" in kind else 100))
    documents = [element["tokens"] for element in merged(split, [2, 1], size=size)]
    flat = in_memory([{"tokens": document} for document in documents])
    want = [on_host(batch) for batch in make(flat, 4, packing=packing)]
    batches, states = run_saving(make(MixtureSource(components(), [2, 1], **by), 4, packing=packing))
    assert_equal(batches, want)
    for number in range(0, len(states), 3):
        resumed = make(MixtureSource(components(), [2, 1], **by), 4, packing=packing)
        resumed.set_state(json.loads(states[number]))
        assert_equal([on_host(batch) for batch in resumed], want[number:])
    pipeline = make(MixtureSource(components(), [2, 1], **by), 4, packing=packing)
    for step in (0, 3):
        for origin in pipeline.locate(step):
            assert origin.places is not None
            token = int(want[step]["tokens"][origin.row, origin.places[0]])
            record = token % 10_000 // 10
            assert_names(origin.record, token // 10_000, record)


class Split:
    """Into documents of so many tokens; of nothing none."""

    def __init__(self, size):
        self.size = size

    def flat_map(self, element):
        tokens = element["tokens"]
        return [element | {"tokens": tokens[i : i + self.size]} for i in range(0, len(tokens), self.size)]


def assert_names(record, source, index):
    """Whether the name is that of this element: of a shard, or of a file."""
    if source == 0:
        lengths = [count for count in SHARDS if count]
        shard = int(record.split("shard ")[1].split(" ")[0])
        assert int(record.rpartition("[")[2][:-1]) + sum(lengths[:shard]) == index, record
    elif source == 1:
        assert int(record.rpartition("[")[2][:-1]) + 11 * ("00001" in record) == index, record


class TestWeights:
    def endless(self, shards, records, weights, **options):
        return MixtureSource(
            [stream(shards, 0, Some(), num_epochs=-1), in_files(records, 1, NoSevenths())],
            weights,
            **{"length": 120} | options,
        )

    @pytest.mark.parametrize("by", [None, "index"])
    def test_those_of_a_running_stream_are_amended_from_a_position_on(self, by, shards, records):
        pipeline = make(self.endless(shards, records, [3, 1], weights_by=by))
        got = [pipeline.step() for _ in range(3)]
        pipeline.amend(weights=[1, 4], at=30)
        state = json.dumps(pipeline.get_state())
        restored = make(self.endless(shards, records, [3, 1], weights_by=by))
        restored.set_state(json.loads(state))
        schedule = WeightSchedule([(0, [3, 1]), (30, [1, 4])])
        size = by and operator.itemgetter(by)
        want = merged(self.endless(shards, records, [1, 1])._sources, schedule, size=size)
        want = list(map(plain, islice(want, 120)))
        assert rows([*got, *restored]) == want
        assert rows(restored.replay(2, 9)) == want[12:54]

    def test_they_need_sources_without_an_end(self, shards, records):
        with pytest.raises(ValueError, match="weights are amended of components without an end"):
            make(MixtureSource(parts(shards, records))).amend(weights=[1, 1, 1])


class TestPlaces:
    def test_a_position_is_sought_replayed_and_located(self, shards, records):
        want = list(map(plain, merged(parts(shards, records))))
        pipeline = make(MixtureSource(parts(shards, records), WEIGHTS))
        batches = [on_host(batch) for batch in pipeline]
        for position in (12, 30, 18, 0):
            pipeline.seek(position)
            assert_equal([on_host(batch) for batch in islice(pipeline, 2)], batches[position // 6 : position // 6 + 2])
        assert rows(pipeline.replay(3, 5)) == want[18:30]
        state = pipeline.get_state()
        for step, since in ((4, None), (1, state)):
            first = 6 * step + (0 if since is None else state["position"])
            for row, origin in enumerate(pipeline.locate(step, since)):
                assert (origin.row, origin.position) == (row, first + row)
                assert_names(origin.record, want[first + row]["source"], want[first + row]["index"])
        pipeline.amend(skip=[range(14, 20), 25])
        rest = [at for at in range(12, len(want)) if not 14 <= at < 20 and at != 25]
        assert rows(pipeline) == [want[at] for at in rest]
        for position in (len(want) + 1, 10_000):
            pipeline.seek(position)
            with pytest.raises(ValueError, match=f"at position {position}, .*the position is behind the end"):
                pipeline.step()

    def test_what_it_has_not_is_said(self, shards, records):
        source = MixtureSource(parts(shards, records), WEIGHTS)
        assert source
        for call in (lambda: len(source), lambda: source[3], lambda: source.get_batch_at(0, 3)):
            with pytest.raises(TypeError, match="a mixture with a stream in it, or with weights_by, has no"):
                call()
        with pytest.raises(TypeError, match="known only by reading"):
            len(make(source))
        endless = MixtureSource([stream(shards, num_epochs=-1), in_files(records, 1)])
        with pytest.raises(TypeError, match="the stream is endless"):
            len(make(endless))
        with pytest.raises(ValueError, match="have no number"):
            make(source).amend(skip=["part-00000.array_record[3]"])
        assert [is_endless(each.describe()) for each in (source, endless)] == [False, True]


class TestStates:
    @pytest.mark.parametrize(
        "change",
        [
            lambda rest: rest["components"].pop(),
            lambda rest: rest["components"][1].update(count=13, position=13),
            lambda rest: rest["components"][0].update(rest={"epoch": 3}),
            lambda rest: rest.update(cursors={}),
        ],
    )
    def test_damaged_ones_are_refused(self, change, shards, records):
        pipeline = make(MixtureSource(parts(shards, records), WEIGHTS), 40)
        pipeline.step()
        state = json.loads(json.dumps(pipeline.get_state()))
        change(state["rest"])
        with pytest.raises(ValueError, match="is not what was written"):
            pipeline.set_state(state)

    def test_other_data_or_weights_of_a_component_are_drift(self, shards, records):
        state = MixtureSource(parts(shards, records), WEIGHTS).get_state()
        with pytest.raises(DriftError, match=r"components\.0\.files"):
            MixtureSource(parts(shards[:2], records), WEIGHTS).set_state(state)
        indexed = MixtureSource([numbers(0, 7), *parts(shards, records)[1:]], WEIGHTS)
        with pytest.raises(DriftError, match=r"mixture\.counts"):
            indexed.set_state(state)


class TestErrors:
    def test_a_component_that_gives_nothing_any_more_is_an_error_and_no_wait(self, shards, records):
        class Nothing:
            def filter(self, element):
                return False

        for nothing in (stream(shards, 1, Nothing(), num_epochs=-1), in_files(records, 1, Nothing())):
            with pytest.raises(RuntimeError, match="no element of") as info:
                list(MixtureSource([stream(shards), nothing]))
            assert "in component 1 of the mixture" in "".join(info.value.__notes__)
            with pytest.raises(RuntimeError, match="no element of") as info:
                list(MixtureSource([stream(shards), MixtureSource([nothing, stream(shards, 2)])]))
            notes = [note.partition(",")[0] for note in info.value.__notes__]
            assert notes == ["in component 0 of the mixture", "in component 1 of the mixture"]

    def test_a_broken_record_is_raised_when_its_element_is_due_or_left_out_and_counted_once(self, shards, records):
        def mixture(*last, **config):
            options = {"noise": False} | config
            return MixtureSource([stream(shards, 0, *last, **options), in_files(records, 1, *last, **options)], [2, 1])

        want = list(map(plain, merged(mixture()._sources, [2, 1])))
        first = next(at for at, row in enumerate(want) if row["index"] == 15)
        failing = mixture(FailAt(15))
        assert list(map(plain, islice(failing, first))) == want[:first]
        with pytest.raises(RecordError, match="cannot divide element 15") as info:
            next(failing)
        assert info.value.position == first
        want = list(map(plain, merged(mixture(FailAt(15), on_error="skip")._sources, [2, 1])))
        pipeline = make(mixture(FailAt(15), on_error="skip"))
        batches, states = run_saving(pipeline)
        assert rows(batches) == want
        assert [skip.where[-4:] for skip in pipeline.skipped].count("[15]") > 1
        for state in states[::8]:
            again = make(mixture(FailAt(15), on_error="skip"))
            again.set_state(json.loads(state))
            assert rows(again) == want[json.loads(state)["position"] :]
            assert again.num_skipped == pipeline.num_skipped


def test_trainers_rows_joined_by_rank_are_the_batch_from_every_state(shards, records):
    batches, states = run_saving(make(MixtureSource(parts(shards, records), WEIGHTS)))

    def rank(number, state):
        pipeline = make(MixtureSource(parts(shards, records), WEIGHTS), process_index=number, process_count=3)
        pipeline.set_state(json.loads(state))
        return list(pipeline)

    for number in range(0, len(states), 7):
        assert_equal(joined([rank(index, states[number]) for index in range(3)]), batches[number:])
