"""What counts as a transform, random numbers by position, and failures located."""

import functools

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datarax_ray.read.errors import RecordError
from datarax_ray.read.transforms import Progress, element_rng, steps


def run(transforms, elements, *, positions=None, seed=0, on_error="raise") -> Progress:
    positions = list(range(len(elements))) if positions is None else positions
    progress = Progress(
        elements, positions, [100 + p for p in positions], on_error=on_error, locate=lambda r: f"file[{r}]"
    )
    for step in steps(transforms):
        progress.apply(step, seed)
    return progress


class GrainMap(grain.transforms.Map):
    def map(self, element):
        return element + 1


class GrainRandom(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return element + int(rng.integers(1000))


class GrainIndex(grain.transforms.MapWithIndex):
    def map_with_index(self, index, element):
        return element, index


class GrainFilter(grain.transforms.Filter):
    def filter(self, element):
        return element % 2 == 0


def test_grains_transforms_fit_as_they_are():
    assert run([GrainMap()], [1, 2]).elements == [2, 3]
    assert run([GrainIndex()], [5, 6], positions=[10**12, 10**12 + 1]).elements == [(5, 10**12), (6, 10**12 + 1)]
    kept = run([GrainFilter(), GrainMap()], [1, 2, 3, 4])
    assert (kept.elements, kept.positions, kept.records) == ([3, 5], [1, 3], [101, 103])
    rng = np.random.Generator(
        np.random.Philox(key=np.array([7, 0], np.uint64), counter=np.array([0, 0, 3, 0], np.uint64))
    )
    assert run([GrainRandom()], [0], positions=[3], seed=7).elements == [int(rng.integers(1000))]


def test_a_transform_is_any_callable():
    class Adder:
        def __call__(self, element):
            return element + 1

        def method(self, element):
            return element * 2

    made = [lambda e: e + 1, functools.partial(max, 3), np.negative, Adder(), Adder().method, abs]
    assert run(made, [1, 5]).elements == [4, 10]


class Two:
    def map(self, element):
        return element

    def filter(self, element):
        return True


class Flat:
    def flat_map(self, element):
        return [element]


class Decoder:
    def decode(self, records):
        return np.array(records)


@pytest.mark.parametrize(
    ("transforms", "error", "message"),
    [
        ([3], TypeError, "3 is no transform: it is neither callable nor has one of map, random_map"),
        ([None], TypeError, "None is no transform"),
        (["map"], TypeError, "'map' is no transform"),
        ([GrainMap], TypeError, "transform GrainMap is a class; pass an instance"),
        ([Two()], TypeError, "transform Two has map and filter; it must have exactly one"),
        ([Flat()], TypeError, "transform Flat has flat_map, which is not supported yet"),
        (len, TypeError, r"transforms is a list of transforms.*write \[len\]"),
        ("abc", TypeError, "transforms is a list of transforms"),
        ([abs, Decoder()], ValueError, "transform Decoder decodes records, so it must be the first; it is number 1"),
        ([grain.transforms.Batch(3)], TypeError, "is no transform"),
    ],
)
def test_what_is_no_transform_is_refused(transforms, error, message):
    with pytest.raises(error, match=message):
        steps(transforms)


def test_no_transforms_are_none():
    assert steps([]) == steps(()) == ()


# Random numbers


def draw(seed, transform, position):
    return element_rng(seed, transform)(position).integers(2**63, size=20).tolist()


@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(0, 2**62))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_numbers_depend_on_seed_transform_and_position_alone(seed, transform, position):
    shared = element_rng(seed, transform)
    shared(position + 1).random(3, np.float32)  # an odd number of 32-bit halves is in the buffer now
    assert shared(position).integers(2**63, size=20).tolist() == draw(seed, transform, position)


def test_neighbours_do_not_overlap():
    # Also not shifted against each other: a counter that runs from one position into the next would be.
    seen: dict[int, tuple] = {}
    for seed in (0, 1, 2, 2**32 - 1):
        for transform in (0, 1, 2):
            for position in (0, 1, 2, 3, 2**32, 2**32 + 1, 2**62):
                for value in draw(seed, transform, position):
                    assert seen.setdefault(value, (seed, transform, position)) == (seed, transform, position)
    assert len(seen) == 4 * 3 * 7 * 20


def test_a_transforms_number_is_its_place_in_the_list():
    class Noise:
        def random_map(self, element, rng):
            return [*element, int(rng.integers(2**60))]

    (one, two), (three, four) = run([Noise(), Noise()], [[], []], positions=[4, 9], seed=3).elements
    assert one == element_rng(3, 0)(4).integers(2**60)
    assert two == element_rng(3, 1)(4).integers(2**60)
    assert len({one, two, three, four}) == 4


def test_numbers_do_not_depend_on_which_elements_are_read_together():
    class Noise:
        def random_map(self, element, rng):
            return rng.random(element, dtype=np.float32).tolist()

    sizes = [3, 1, 0, 5, 2]
    together = run([Noise()], sizes).elements
    alone = [run([Noise()], [size], positions=[p]).elements[0] for p, size in enumerate(sizes)]
    assert together == alone


# Failures


def fail_at(*bad):
    def transform(element):
        if element in bad:
            raise KeyError(f"no {element}")
        return element * 10

    return transform


def test_a_failure_names_transform_file_record_position_and_cause_and_keeps_what_is_before():
    progress = run([fail_at(2, 3)], [0, 1, 2, 3], positions=[50, 51, 52, 53])
    assert isinstance(progress.failure, RecordError)
    assert str(progress.failure) == (
        "file[152] (position 52): transform fail_at.<locals>.transform raised KeyError: 'no 2'"
    )
    assert progress.failure.position == 52
    assert "Traceback" in progress.failure.__notes__[0]
    assert (progress.elements, progress.positions) == ([0, 10], [50, 51])


def test_of_two_failing_transforms_the_first_position_counts():
    progress = run([fail_at(3), fail_at(10)], [0, 1, 2, 3])
    assert progress.failure.position == 1
    assert progress.elements == [0]


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_skipped_elements_leave_the_others_in_place(bad, late):
    progress = run([fail_at(*bad), fail_at(*(10 * i for i in late))], list(range(10)), on_error="skip")
    kept = [i for i in range(10) if i not in bad | late]
    assert (progress.elements, progress.positions, progress.records) == (
        [100 * i for i in kept],
        kept,
        [100 + i for i in kept],
    )
    assert sorted(skip.position for skip in progress.skipped) == sorted(bad | late)
    assert progress.failure is None


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit, KeyboardInterrupt])
def test_a_stop_iteration_is_a_failure_and_an_interrupt_is_none(error):
    def transform(element):
        raise error

    if issubclass(error, Exception):
        assert "StopIteration" in str(run([transform], [1]).failure)
    else:
        with pytest.raises(error):
            run([transform], [1], on_error="skip")


def test_a_filter_that_raises_is_a_failure_not_a_drop():
    class Bad:
        def filter(self, element):
            return np.array([True, False])

    assert "ValueError" in str(run([Bad()], [1]).failure)


def test_filters_drop_by_truth():
    class Truth:
        def filter(self, element):
            return element

    assert run([Truth()], [0, 1, "", "x", None, np.bool_(False), np.True_]).positions == [1, 3, 6]
