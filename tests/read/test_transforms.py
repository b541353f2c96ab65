"""What counts as a transform, random numbers by position, and failures located."""

import asyncio
import dataclasses
import functools
import pickle
import re
import signal
import threading
from collections import UserDict
from decimal import Decimal

import grain
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from flax import nnx
from grain.experimental import FlatMapTransform as FlatMap
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.read.code_digests import code_digests
from datarax_ray.read.elements.progress import Progress, element_rng
from datarax_ray.read.elements.transforms import check_arguments, listed, steps
from datarax_ray.read.errors import RecordError
from tests.data import in_memory


def run(transforms, elements, *, positions=None, seed=0, on_error="raise"):
    positions = list(range(len(elements))) if positions is None else positions
    progress = Progress(
        list(elements), positions, [100 + p for p in positions], on_error=on_error, locate=lambda r: f"file[{r}]"
    )
    progress.apply(steps(transforms), seed)
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


class Decoder:
    def decode(self, records):
        return np.array(records)


def test_a_transform_alone_is_a_list_of_one_and_none_of_none():
    assert (listed(abs), listed([abs]), listed(None)) == ((abs,), (abs,), ())


@pytest.mark.parametrize(
    ("transforms", "error", "message"),
    [
        ([3], TypeError, "3 is no transform: it is neither callable nor has one of map, random_map"),
        ([None], TypeError, "None is no transform"),
        (["map"], TypeError, "'map' is no transform"),
        ([GrainMap], TypeError, "transform GrainMap is a class; pass an instance"),
        ([Two()], TypeError, "transform Two has map and filter; it must have exactly one"),
        ("abc", TypeError, "transforms is one transform or a list of them, got 'abc'"),
        ([nnx.Dropout(0.5)], TypeError, r"transform Dropout is a Flax module.*give it to .*Pipeline\(stages=\[...\]\)"),
        ([abs, Decoder()], ValueError, "transform Decoder decodes records, so it must be the first; it is number 1"),
        ([grain.transforms.Batch(3)], TypeError, "is no transform"),
    ],
)
def test_what_is_no_transform_is_refused(transforms, error, message):
    with pytest.raises(error, match=message):
        steps(transforms)


class TakesLess:
    def __init__(self, kind):
        setattr(self, kind, lambda: None)


class TakesMore:
    def random_map(self, element, rng, scale):
        return element


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (TakesLess("random_map"), r"random_map of .* with \(element, rng\), and takes \(\)"),
        (TakesMore(), r"random_map of transform TakesMore .*takes \(element, rng, scale\)"),
        (TakesLess("map_with_index"), r"with \(position, element\)"),
        (TakesLess("map_columns"), r"with \(columns\)"),
        (TakesLess("flat_map"), r"with \(element\)"),
        (lambda element, rng: 1, r"transform <lambda> is called with \(element\), and takes \(element, rng\). Obj"),
    ],
)
def test_a_transform_that_takes_more_or_less_than_it_is_given_is_refused_with_what_that_is(transform, message):
    with pytest.raises(TypeError, match=message):
        in_memory({"x": [1]}, transforms=[transform], num_epochs=-1)


def test_one_that_hides_what_it_takes_is_called():
    @functools.wraps(lambda element, other: None)
    def wrapped(*given):
        return given[0]

    check_arguments([wrapped, max, functools.partial(max, 3), np.negative, GrainRandom(), Split(), Decoder().decode])


# Random numbers


def draw(seed, transform, position):
    return element_rng(seed, transform)(position).integers(2**63, size=20).tolist()


@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(0, 2**62))
def test_numbers_depend_on_seed_transform_and_position_alone(seed, transform, position):
    shared = element_rng(seed, transform)
    shared(position + 1).random(3, np.float32)  # an odd number of 32-bit halves is in the buffer now
    assert shared(position).integers(2**63, size=20).tolist() == draw(seed, transform, position)


def test_neighbours_do_not_overlap():
    # Also not shifted against each other: a counter that runs from one position into the next would be.
    seen = {}
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


# One element into many


class Split(FlatMap):
    """n -> n, n - 1, ..., 1 and nothing for 0."""

    max_fan_out = 5

    def flat_map(self, element):
        return range(element, 0, -1)


class Draw:
    def random_map(self, element, rng):
        return element, int(rng.integers(2**60))


def test_a_flat_map_puts_all_that_it_makes_in_the_place_of_its_element():
    made = run([Split()], [2, 0, 3], positions=[10, 11, 12])
    assert made.elements == [2, 1, 3, 2, 1]
    assert made.positions == [10, 10, 12, 12, 12]
    assert made.records == [110, 110, 112, 112, 112]
    assert made.ordinals == [0, 1, 0, 1, 2]


def test_the_elements_of_one_record_differ_in_their_random_numbers_also_after_a_second_flat_map_and_a_filter():
    class Odd:
        def filter(self, element):
            return element % 2

    once = run([Split(), Draw()], [3], positions=[4], seed=7)
    assert once.elements == [(3 - i, int(element_rng(7, 1)(4, i).integers(2**60))) for i in range(3)]
    twice = run([Split(), Odd(), Split(), Draw()], [3], positions=[4], seed=7)
    assert [element for element, _ in twice.elements] == [3, 2, 1, 1]
    assert twice.ordinals == [0, 1, 2, 3]
    assert [number for _, number in twice.elements] == [int(element_rng(7, 3)(4, i).integers(2**60)) for i in range(4)]
    filtered = run([Split(), Odd(), Draw()], [3], positions=[4], seed=7)
    # an element keeps the numbers that it had, whatever a filter does to the others
    assert filtered.elements == [(3, int(element_rng(7, 2)(4, 0).integers(2**60))),
                                 (1, int(element_rng(7, 2)(4, 2).integers(2**60)))]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"a": 1}, "TypeError: flat_map returned a dict; it returns an iterable of elements"),
        ("abc", "TypeError: flat_map returned a str"),
        (3, "TypeError: 'int' object is not iterable"),
        (range(6), "ValueError: flat_map returned 6 elements, and its max_fan_out is 5; set it higher"),
        ((1 // i for i in (1, 0)), "ZeroDivisionError"),
    ],
)
def test_what_a_flat_map_must_not_return_is_a_failure_of_its_record(made, message):
    class Odd:
        max_fan_out = 5

        def flat_map(self, element):
            return made

    progress = run([Odd()], [1], positions=[8])
    assert message in str(progress.failure)
    assert str(progress.failure).startswith("file[108] (position 8): transform ")
    assert run([Odd()], [1], on_error="skip").elements == []


def test_a_failure_inside_a_record_ends_the_block_before_it_and_skipping_leaves_out_one_element():
    progress = run([Split(), fail_at(2)], [1, 3, 1], positions=[5, 6, 7])
    assert (progress.elements, progress.positions, progress.failure.position) == ([10], [5], 6)
    progress = run([Split(), fail_at(2)], [1, 3, 1], positions=[5, 6, 7], on_error="skip")
    assert (progress.elements, progress.positions) == ([10, 30, 10, 10], [5, 6, 6, 7])
    assert [(skip.position, skip.reason.partition(" raised")[0]) for skip in progress.skipped] == [
        (6, "element 1 of the record: transform fail_at.<locals>.transform")
    ]


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


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
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


def raising(error):
    def transform(element):
        if element == 2:
            raise error
        return element

    return transform


class UnsayableError(Exception):
    def __str__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StopIteration(3), "StopIteration: 3"),
        (SystemExit(0), "SystemExit: 0"),
        (GeneratorExit(), "GeneratorExit: "),
        (asyncio.CancelledError(), "CancelledError: "),
        (UnsayableError(), r"UnsayableError: \(no message: its __str__ raised ZeroDivisionError\)"),
    ],
)
def test_whatever_a_transform_raises_is_a_failure_of_its_record_behind_the_good_elements(error, message):
    progress = run([raising(error)], [0, 1, 2, 3], positions=[5, 6, 7, 8])
    assert (progress.elements, progress.positions) == ([0, 1], [5, 6])
    with pytest.raises(RecordError, match=rf"^file\[107\] \(position 7\): transform .*transform raised {message}"):
        raise progress.failure


def test_only_exceptions_are_left_out_and_only_of_them_on_error_is_asked():
    def never(failure):
        raise AssertionError

    for on_error in ("skip", never):
        progress = run([raising(SystemExit())], [2, 3], on_error=on_error)
        assert (progress.elements, progress.skipped) == ([], [])
        assert "raised SystemExit" in str(progress.failure)
    assert run([raising(StopIteration())], [2, 3], on_error="skip").elements == [3]


@pytest.mark.parametrize("second", [KeyError("no"), SystemExit(1), UnsayableError(), "raise", 1, object])
def test_an_on_error_that_raises_or_does_not_decide_is_a_failure_of_its_record(second):
    def on_error(failure):
        if isinstance(second, BaseException):
            raise second
        return second

    progress = run([raising(ValueError("bad"))], [1, 2, 3], on_error=on_error)
    assert (progress.elements, progress.skipped) == ([1], [])
    why = type(second).__name__ if isinstance(second, BaseException) else "TypeError: on_error returned .*; True skips"
    said = rf"file\[101\] .*transform raised ValueError: bad; and on_error raised {why}"
    with pytest.raises(RecordError, match=said):
        raise progress.failure


@pytest.mark.parametrize(("answer", "elements"), [(True, [1, 3]), (np.True_, [1, 3]), (False, [1]), (None, [1])])
def test_an_on_error_says_whether_the_record_is_left_out(answer, elements):
    assert run([raising(ValueError("bad"))], [1, 2, 3], on_error=lambda failure: answer).elements == elements


def test_ctrl_c_in_a_transform_ends_the_program_at_once_and_says_where_it_was():
    def transform(element):
        if element == 2:
            signal.raise_signal(signal.SIGINT)
        return element

    with pytest.raises(KeyboardInterrupt) as caught:
        run([transform], [1, 2, 3], on_error="skip")
    assert caught.value.__notes__[0].startswith("in file[101] (position 1): transform ")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_the_handler_of_a_signal_raises_ends_the_program_whatever_it_met(error):
    def handler(number, frame):
        raise error

    def transform(element):
        signal.raise_signal(signal.SIGUSR1)
        return element

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(error):
            run([transform], [1], on_error="skip")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_keyboard_interrupt_where_no_ctrl_c_can_come_is_the_transforms_own():
    found = []
    thread = threading.Thread(target=lambda: found.append(run([raising(KeyboardInterrupt())], [1, 2]).failure))
    thread.start()
    thread.join()
    assert "transform raised KeyboardInterrupt" in str(found[0])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as Ray's workers are started
    try:
        assert "transform raised KeyboardInterrupt" in str(run([raising(KeyboardInterrupt())], [1, 2]).failure)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


async def nothing():
    pass


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: (i for i in "ab"), "a generator in field 'x', which can be read only once; return a list"),
        (lambda: map(str, "ab"), "a map in field 'x', which can be read only once"),
        (lambda: {"y": [iter("ab")]}, "a str_ascii_iterator in field 'x.y.0', which can be read only once"),
        (lambda: {3, 4}, "a set in field 'x', which has no order, so no two processes see the same; sort it to a list"),
        (lambda: threading.Lock(), "a lock in field 'x', which cannot be copied or sent to another process"),
        (nothing, "a coroutine in field 'x', which can be read only once"),
        (
            lambda: np.ma.masked_array([1, 2], [True, False]),
            "a MaskedArray in field 'x', whose mask would be lost; return its filled",
        ),
    ],
)
def test_what_can_be_no_field_is_a_failure_of_its_record_and_names_the_transform(made, message):
    unclosed = []

    def transform(element):
        if element == 1:
            return {"x": 0}
        unclosed.append(made())
        return {"x": unclosed[-1]}

    progress = run([transform], [1, 2])
    assert progress.elements == [{"x": 0}]
    assert str(progress.failure).startswith("file[101] (position 1): transform ")
    assert f"transform returned {message}" in str(progress.failure)
    assert run([transform], [2, 1], on_error="skip").elements == [{"x": 0}]
    for value in unclosed:
        getattr(value, "close", lambda: None)()


def test_a_generator_in_place_of_an_element_is_told_of_flat_map():
    failure = run([lambda element: (i for i in "ab")], [1]).failure
    assert re.search(r"<lambda> returned a generator, .* with flat_map\(element\) -> list$", str(failure))
    assert str(pickle.loads(pickle.dumps(failure))) == str(failure)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("keep", [lambda e: e["x"] > 1, lambda e: np.int64(e["x"]) > 1])
def test_a_function_that_was_meant_as_a_filter_is_told_so(keep, on_error):
    done = run([keep], [{"x": 1}, {"x": 2}], on_error=on_error)
    with pytest.raises(RecordError, match=r"lambda> returned False, .* an object with filter\(element\) -> bool"):
        raise done.failure
    assert done.elements == []
    assert run([lambda x: not x], [True, False]).elements == [False, True]  # a source of them is one


Point = dataclasses.make_dataclass("Point", ["x"])


class KeepsAll:
    def filter(self, element):
        return True


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda e: [e], r"a list of 1 dict, and .*; return the dict itself, or, .* flat_map\(element\) -> list"),
        (lambda e: pd.DataFrame([e]), "a DataFrame in place of a dict"),
        (lambda e: pd.Series({"a": 1, "b": 0.5}), "a Series in place of a dict"),
        (lambda e: pa.table({"x": [e["x"]]}), "a Table in place of a dict"),
        (lambda e: Point(e["x"]), "a Point in place of a dict"),
        (lambda e: str(e["x"]), "a str in place of a dict, .*; return a dict of them, or {'name': value}"),
        (lambda e: [e["x"]], "a list in place of a dict"),
        (lambda e: Decimal(e["x"]), "a Decimal in place of a dict"),
    ],
)
def test_what_is_returned_in_place_of_a_dict_is_an_error_at_the_first_record(made, message, on_error):
    done = run([made, KeepsAll()], [{"x": 1}, {"x": 2}], on_error=on_error)
    with pytest.raises(RecordError, match=rf"file\[100\] \(position 0\): transform .*lambda> returned {message}"):
        raise done.failure
    assert done.elements == []


@pytest.mark.parametrize(
    ("made", "element"),
    [
        (lambda e: e["x"], {"x": 1}),
        (lambda e: np.array([e["x"]]), {"x": 1}),
        (lambda e: np.array(["a"], object), {"x": 1}),
        (lambda e: UserDict(e), {"x": 1}),
        (lambda e: e.decode(), b"text"),
        (lambda e: [*e], b"text"),
    ],
)
def test_bare_values_stay_what_they_are_and_an_intermediate_result_may_be_anything(made, element):
    assert run([made], [element]).failure is None
    assert run([lambda e: [e], lambda found: found[0]], [element]).elements == [element]


def test_a_transform_that_forgets_its_return_is_told_so():
    def forgets(element):
        element += 1

    class ForgetsToo:
        def flat_map(self, element):
            forgets(element)

    message = r"transform .*forgets returned None; does it end without `return`\?"
    with pytest.raises(RecordError, match=message):
        raise run([forgets], [1]).failure
    with pytest.raises(RecordError, match=r"ForgetsToo returned None, and flat_map .*`return`"):
        raise run([ForgetsToo()], [1]).failure
    assert run([lambda element: element], [None]).elements == [None]  # which a data source may give


def test_filters_drop_by_truth_and_one_that_raises_is_a_failure():
    class Truth:
        def filter(self, element):
            return element

    assert run([Truth()], [0, 1, "", "x", None, np.bool_(False), np.True_]).positions == [1, 3, 6]
    assert "ValueError" in str(run([Truth()], [np.array([True, False])]).failure)


def test_a_transform_from_a_page_has_a_digest_though_its_file_is_no_python(tmp_path):
    """As notebooks and documentation run their blocks: the file at the name of the code is Markdown."""
    page = tmp_path / "page.md"
    page.write_text("\n[A link](page.md#there), and a user's text.\n")
    names = {"__name__": "__main__"}
    exec(compile("\ndef double(element):\n    return 2 * element", str(page), "exec"), names)
    assert code_digests([names["double"]])["names"] == ["double"]
