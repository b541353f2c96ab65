"""Mixtures: every source gives what it gives alone, in its share, for any actors, and through changed weights."""

import json
from itertools import islice

import numpy as np
import pytest
from flax import nnx

from datarax_ray import ConcatThenSplit, FirstFitPack, Pipeline, RaySource
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.errors import RecordError, SkippedError
from datarax_ray.sources import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    MixtureSource,
    ParquetSource,
    ParquetSourceConfig,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests.data import AddNoise, Squares, decode, in_memory, write_files
from tests.resume import assert_equal, assert_resumes, on_host, run_saving
from tests.tables import write_tables


class Tag:
    """Says of which source an element is; some sources drop elements, some give several."""

    def __init__(self, source, most=1):
        self.source, self.most = source, most

    def flat_map(self, element):
        count = 1 if self.most == 1 else element["index"] % (self.most + 1)
        return [{"source": self.source, "index": element["index"], "copy": copy} for copy in range(count)]


class Tagged:
    def __init__(self, source):
        self.source = source

    def map(self, element):
        return {"source": self.source, "index": element["index"], "copy": 0}


def component(number, size, transform=None, *, shuffle=True, **config):
    options = RandomAccessSourceConfig(seed=number, shuffle=shuffle, **config)
    return RandomAccessSource(options, Squares(size), transforms=[transform or Tagged(number), AddNoise()])


def in_files(directory, number, **config):
    paths = directory if list(directory.glob("*.array_record")) else write_files(directory, (11, 20))
    return ArrayRecordSourceModule(
        ArrayRecordSourceConfig(seed=number, **config), paths, transforms=[decode, Tagged(number), AddNoise()]
    )


def in_row_groups(directory, number, shuffle=False):
    paths = directory if list(directory.glob("*.parquet")) else write_tables(directory, (20, 33))
    return ParquetSource(
        ParquetSourceConfig(seed=number, shuffle=shuffle), paths, transforms=[Tagged(number), AddNoise()]
    )


MIXTURES = {
    "all shuffled": lambda _: [component(0, 7), component(1, 23), component(2, 50)],
    "file order": lambda directory: [component(0, 7, shuffle=False), in_files(directory, 1)],
    "block order": lambda directory: [
        in_files(directory, 0, shuffle_files=True, shuffle_block_size=4),
        component(1, 9),
        component(2, 5, shuffle=False),
    ],
    "row groups": lambda directory: [in_row_groups(directory, 0), component(1, 9), in_row_groups(directory, 2, True)],
    "flat_map in one": lambda _: [component(0, 7, Tag(0)), component(1, 23, Tag(1, most=3))],
    "mixture in a mixture": lambda _: [MixtureSource([component(0, 7), component(1, 23)], [2, 1]), component(2, 5)],
}
WEIGHTS = {2: (0.75, 0.25), 3: (5, 3, 2)}


def mix(sources, **options):
    return MixtureSource(sources, **({"weights": WEIGHTS[len(sources)], "length": 60} | options))


def make(of, batch_size=7, **options):
    return Pipeline(source=of, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


def plain(element):
    return {key: np.asarray(value).tolist() for key, value in element.items()}


@pytest.mark.parametrize("kind", MIXTURES)
def test_each_source_gives_what_it_gives_alone(kind, tmp_path):
    elements = list(map(plain, mix(MIXTURES[kind](tmp_path), length=300)))
    alone = MIXTURES[kind](tmp_path)
    for source in alone if kind != "mixture in a mixture" else [*alone[0]._sources, alone[1]]:
        number = next(iter(source))["source"]
        source.set_state(source.copy().get_state())
        mine = [element for element in elements if element["source"] == number]
        assert mine == list(map(plain, islice(source, len(mine))))
        assert len(mine) > 15


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "mixture in a mixture")) for kind in MIXTURES]
)
@pytest.mark.usefixtures("ray_local")
def test_any_number_of_actors_gives_the_same_bytes_and_resumes(kind, tmp_path):
    source = mix(MIXTURES[kind](tmp_path))
    batches, states = run_saving(make(source))
    assert max(map(len, states)) < 4096
    assert_resumes(lambda _: make(mix(MIXTURES[kind](tmp_path))), batches, states)
    with RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=9) as distributed:
        assert_equal([on_host(b) for b in make(distributed)], batches)
        resumed = make(distributed)
        resumed.set_state(json.loads(states[4]))
        assert_equal([on_host(b) for b in resumed], batches[4:])


def test_elements_one_by_one_and_at_positions_are_those_of_the_batches():
    source = mix([component(0, 7, Tag(0)), component(1, 23, Tag(1, most=3))])
    elements = list(map(plain, source.copy()))
    assert list(map(plain, source.get_batch_at(0, 60))) == elements
    again = mix([component(0, 7, Tag(0)), component(1, 23, Tag(1, most=3))])
    head = [plain(next(again)) for _ in range(17)]
    restored = source.copy()
    restored.set_state(json.loads(json.dumps(again.get_state())))
    assert head + list(map(plain, restored)) == elements


def test_an_index_reaches_what_the_mixture_gives_and_no_further():
    config = RandomAccessSourceConfig(num_epochs=1)
    sources = [RandomAccessSource(config, {"x": np.arange(n)}) for n in (10, 200)]
    mixture = MixtureSource(sources, weights=[1, 1])  # over before half of the second
    given = [int(element["x"]) for element in mixture.copy()]
    assert len(given) < 100
    assert [int(mixture[index]["x"]) for index in range(-len(given), len(given))] == given * 2
    for index in (len(given), 200, -len(given) - 1):
        with pytest.raises(IndexError, match=f"index {index} is outside an epoch of {len(given)} records"):
            mixture[index]
    said = r"whole number, got slice\(1, 3, None\); one at a time, or get_batch_at\(start, s"
    with pytest.raises(TypeError, match=said):
        mixture[1:3]


class TestEnd:
    def test_it_is_before_the_first_record_that_a_finite_source_has_not_got(self):
        def drawn(**options):
            sources = [component(0, 7, num_epochs=2), component(1, 50)]
            return [element["source"] for element in mix(sources, **options)]

        found = drawn(length=None)
        assert found.count(0) == 14
        endless = [e["source"] for e in islice(mix([component(0, 7), component(1, 50)], length=None), 30)]
        assert endless[: len(found) + 1] == [*found, 0]
        assert drawn(length=10) == found[:10]

    def test_a_source_without_weight_ends_nothing(self):
        sources = [component(0, 7, num_epochs=1), component(1, 5, num_epochs=3)]
        assert [e["source"] for e in mix(sources, weights=[0, 1], length=None)] == [1] * 15


PACKINGS = {"rows": None, "tokens": ConcatThenSplit(5, "tokens"), "documents": FirstFitPack(12, "tokens")}


class Text:
    """index % 5 + 1 tokens, each telling source, index and place."""

    def __init__(self, source):
        self.source = source

    def flat_map(self, element):
        tokens = self.source * 10**6 + element["index"] * 100 + np.arange(element["index"] % 5 + 1)
        return [{"tokens": tokens[:2]}, {"tokens": tokens[2:]}] if len(tokens) > 2 else [{"tokens": tokens}]


class Single:
    """The tokens one by one: elements of one shape."""

    def __init__(self, source):
        self.source = source

    def flat_map(self, element):
        return [{"tokens": token} for each in Text(self.source).flat_map(element) for token in each["tokens"]]


class TestNewWeights:
    def texts(self, transform, **options):
        sources = [
            in_memory(Squares(400), transforms=[transform(n)], seed=n, shuffle=True, num_epochs=-1) for n in range(3)
        ]
        return MixtureSource(sources, **options)

    def test_they_are_refused_with_both_and_the_remedy(self):
        state = make(mix([component(0, 7), component(1, 23)])).get_state()
        other = make(mix([component(0, 7), component(1, 23)], weights=[1, 1]))
        with pytest.raises(DriftError, match=r"mixture.weights: .* with \[3, 1\], this pipeline has \[1, 1\]; .*amend"):
            other.set_state(state)

    @pytest.mark.parametrize("kind", PACKINGS)
    def test_from_any_state_they_hold_from_there_and_nothing_is_repeated_or_lost(self, kind):
        """Twice changed, at every batch: the tokens of each source are a beginning of what it gives alone."""
        packing, transform = PACKINGS[kind], Single if kind == "rows" else Text

        def pipeline():
            return make(self.texts(transform, weights=[1, 2, 4], length=80), 3, packing=packing)

        def tokens(batches):
            out = []
            for batch in map(on_host, batches):
                ids = batch.get("tokens_segment_ids", np.ones(len(batch["tokens"]), int))
                out += batch["tokens"][ids > 0].tolist()
            return out

        alone = [
            [t for e in source.get_batch_at(0, 81) for t in np.ravel(e["tokens"]).tolist()]
            for source in self.texts(transform)._sources
        ]
        first, states = run_saving(pipeline())
        for cut in range(0, len(states), 5):
            middle = pipeline()
            middle.set_state(json.loads(states[cut]))
            middle.amend(weights=[3, 0, 1])
            second = [on_host(b) for b in islice(middle, 3)]
            last = pipeline()
            last.set_state(json.loads(json.dumps(middle.get_state())))
            last.amend(weights=[1, 1, 1])
            third, after = run_saving(last)
            seen = tokens(first[:cut] + second + third)
            for number, wanted in enumerate(alone):
                mine = [token for token in seen if token // 10**6 == number]
                if kind == "documents":  # first fit mixes the documents of a batch
                    assert sorted(mine) == sorted(wanted[: len(mine)])
                else:
                    assert mine == wanted[: len(mine)]
            assert max(map(len, after)) < 4096
            if cut == 5:
                assert_resumes(lambda _: pipeline(), third, after, every=4)


class TestErrors:
    def test_elements_unlike_the_first_are_refused_for_any_actors(self):
        other = in_memory({"index": np.arange(5.0)}, num_epochs=-1)
        first = in_memory({"index": np.arange(5)}, num_epochs=-1)
        pipeline = make(mix([first, other]), 2)
        with pytest.raises(ValueError, match=r"index was \w+ \(\) so far and is \w+ \(\) from position"):
            list(pipeline)

    def test_a_broken_record_names_its_own_place_and_that_in_the_mixture(self):
        class Fail(Tagged):
            def map(self, element):
                if element["index"] == 3:
                    raise KeyError("three")
                return super().map(element)

        def sources(**config):
            return [component(0, 7), component(1, 23, Fail(1), shuffle=False, **config)]

        want = list(map(plain, mix([component(0, 7), component(1, 23, shuffle=False)])))
        failing = next(i for i, e in enumerate(want) if (e["source"], e["index"]) == (1, 3))
        source = mix(sources())
        assert list(map(plain, islice(source, failing))) == want[:failing]
        said = rf"^component 1: Squares\(23\)\[3\] \(position {failing}, 3 of component 1\): .*KeyError"
        with pytest.raises(RecordError, match=said) as info:
            next(source)
        assert info.value.position == failing
        with pytest.raises(RecordError, match=said) as info:
            mix(sources()).get_batch_at(0, 60)
        assert info.value.position == failing
        skipping = mix(sources(on_error="skip"))
        assert list(map(plain, skipping)) == [e for e in want if (e["source"], e["index"]) != (1, 3)]
        assert [(skip.where, skip.position) for skip in skipping.skipped] == [
            ("component 1: Squares(23)[3]", i) for i, e in enumerate(want) if (e["source"], e["index"]) == (1, 3)
        ]

    def test_the_position_that_the_line_of_a_broken_record_says_is_the_one_to_leave_out(self):
        """Of a mixture in a mixture, whose positions are others."""

        class Fail:
            def map(self, element):
                if element["id"] == 203:
                    raise KeyError("bad")
                return element

        def mixture(*transforms):
            data = [{"id": np.arange(first, first + 6)} for first in (0, 100, 200)]
            one, *two = (in_memory(d, transforms=transforms, num_epochs=-1) for d in data)
            return MixtureSource([one, MixtureSource(two)], [1, 2], length=18)

        def ids(batches):
            return [i for batch in batches for i in batch["id"].tolist()]

        want = ids(make(mixture(), 1))
        position, inner = want.index(203), [i for i in want if i >= 100].index(203)
        with make(mixture(Fail()), 1) as pipeline:
            said = rf"arrays\[3\] \(position {position}, {inner} of component 1, 3 of component 1\): transform .*Fail "
            with pytest.raises(RecordError, match="^component 1: component 1: " + said) as info:
                ids(pipeline)
            assert info.value.position == pipeline.position == position
            pipeline.amend(skip=[position])
            assert ids(pipeline) == want[position + 1 :]

    def test_the_smallest_limit_of_skipped_records_holds_and_they_are_listed_in_one_file(self, tmp_path):
        class Fail(Tagged):
            def map(self, element):
                raise KeyError("all")

        listed = tmp_path / "skipped.jsonl"
        bad = component(1, 23, Fail(1), on_error="skip", max_skipped=2, skipped_path=str(listed))
        with pytest.raises(SkippedError, match="max_skipped=2"):
            list(mix([component(0, 7, on_error="skip", max_skipped=100), bad]))
        entries = map(json.loads, listed.read_text().splitlines())
        assert {(*each["components"], each["file"]) for each in entries} == {(1, "Squares(23)")}
        other = component(0, 7, on_error="skip", skipped_path=str(tmp_path / "other.jsonl"))
        with pytest.raises(ValueError, match="give them one skipped_path"):
            mix([other, bad])

    def test_a_source_that_drops_everything_does_not_hide_the_other(self):
        class Nothing:
            def filter(self, element):
                return False

        nothing = in_memory(Squares(3), transforms=[Nothing()], num_epochs=-1)
        assert {e["index"] for e in islice(mix([nothing, component(1, 5)], length=None), 20)} == set(range(5))
        with pytest.raises(RuntimeError, match="no element of the"):
            make(mix([nothing, nothing.copy()], length=None)).step()

    @pytest.mark.parametrize(
        ("sources", "options", "error", "message"),
        [
            ([iter([])], {}, TypeError, "source 0 of the mixture is list_iterator, and a mixture takes"),
            (["a.parquet"], {}, TypeError, r"source 0 of the mixture is str, .*such as load\(path\)"),
            ([component(0, 7)], {"weights": [1, 2]}, ValueError, "got 1 components and 2 weights"),
            ([], {}, ValueError, "weights must be|got 0 components"),
            ([component(0, 7)], {"length": 0}, ValueError, "length must be at least 1"),
            ([component(0, 7)], {"weights": [-1]}, ValueError, "weights must be at least 0"),
            ([component(0, 7)], {"seed": -1}, ValueError, "seed"),
        ],
    )
    def test_what_is_no_mixture_is_refused(self, sources, options, error, message):
        with pytest.raises(error, match=message):
            MixtureSource(sources, **options)

    def test_a_changed_component_is_named_also_among_many(self):
        wanted = {
            3: r"components\.2\.files.*skip or repeat records",
            30: r"components\.2: .*would not continue as it was",
        }
        for count, message in wanted.items():
            state = make(MixtureSource([component(n, 7) for n in range(count)])).get_state()
            assert len(json.dumps(state)) < 4096
            other = [component(n, 7 + (n == 2)) for n in range(count)]
            with pytest.raises(DriftError, match=message):
                make(MixtureSource(other)).set_state(state)
            with pytest.raises(DriftError, match=r"mixture\.seed"):
                make(MixtureSource([component(n, 7) for n in range(count)], seed=1)).set_state(state)


def test_sources_that_are_no_list_are_told_and_a_generator_is_one():
    first, second = (in_memory({"x": np.arange(3)}, num_epochs=-1) for _ in range(2))
    with pytest.raises(TypeError, match=r"a list of them, got one RandomAccessSource; write MixtureSource\(\[a, b\]\)"):
        MixtureSource(first, second)
    assert len(MixtureSource(source for source in (first, second))) == 6


def test_every_run_of_elements_has_each_source_in_its_share():
    sources = [component(0, 7), component(1, 23), component(2, 50)]
    drawn = np.array([element["source"] for element in mix(sources, length=1000)])
    assert np.bincount(drawn).tolist() == [500, 300, 200]
    for number, share in enumerate((0.5, 0.3, 0.2)):
        seen = np.cumsum(drawn == number)
        assert np.abs(seen - share * np.arange(1, 1001)).max() < 2
