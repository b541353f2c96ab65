"""A sample names the transform that is no function of its element, and tells two processes apart by their bytes."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from datarax_ray import RandomAccessSource, RandomAccessSourceConfig
from datarax_ray.feed.sample import MAX_ELEMENTS, sampled, sampled_within
from datarax_ray.feed.source import Source
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.read.formats.random_access import ArraysReader
from datarax_ray.read.streams.indexed import IndexedStream


class Double:
    def map(self, element):
        return {"x": element["x"] * 2}


class Noise:
    """As random transforms are to be written."""

    def random_map(self, element, rng):
        return element | {"noise": rng.random()}


class Several:
    def flat_map(self, element):
        return [element | {"copy": copy} for copy in range(int(element["x"]) % 4)]


class Draw:
    def map(self, element):
        return element | {"drawn": np.random.rand()}


class Count:
    def __init__(self):
        self.numbers = count()

    def map(self, element):
        return element | {"number": next(self.numbers)}


class OnlyOnce:
    def __init__(self):
        self.seen = set()

    def filter(self, element):
        is_new = int(element["x"]) not in self.seen
        self.seen.add(int(element["x"]))
        return is_new


class Ragged:
    """As tokens of documents: each element has a shape of its own."""

    def map(self, element):
        return {"tokens": np.arange(int(element["x"]))}


class Broken:
    def map(self, element):
        raise ValueError("no")


def stream(*transforms, num_records=50) -> IndexedStream:
    reader = ArraysReader({"x": np.arange(num_records)})
    return IndexedStream(reader, order_of(num_records, 1, "global"), 2, transforms)


@pytest.mark.parametrize("transforms", [(Double(),), (Noise(), Double()), (), (Several(),), (Ragged(),)])
def test_functions_of_their_element_are_taken(transforms):
    sample = sampled(stream(*transforms))
    assert sample is not None
    assert (len(sample.rows), sample.impure) == (MAX_ELEMENTS, "")
    assert {"python", "numpy", "datarax-ray"} <= sample.releases.keys()


@pytest.mark.parametrize(
    ("transforms", "said"),
    [
        ((Double(), Draw()), "transform Draw made another field 'drawn' of the element at position"),
        ((Count(), Double(), Draw()), "transform Count made another field"),
        ((Double(), OnlyOnce()), "transform OnlyOnce made another choice of elements"),
    ],
)
def test_the_transform_that_makes_another_element_the_second_time_is_named(transforms, said):
    if isinstance(transforms[0], Count):  # what stands behind it hides nothing
        transforms = (transforms[0], Noise())
    assert said in sampled(stream(*transforms)).impure


class Drawn:
    """A dataset whose items are random, as those of torch with augmentations are."""

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return {"x": np.random.rand()}


@pytest.mark.parametrize("transforms", [(), (Double(),)])
def test_a_dataset_that_gives_another_item_the_second_time_is_named(transforms):
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), Drawn(), transforms=list(transforms))
    assert sampled(source.describe()).impure.startswith("the dataset made another field 'x' of the element at position")


def test_a_process_that_makes_other_bytes_differs_in_a_field_of_an_element():
    one, other = sampled(stream(Double())), sampled(stream(Double(), Double()))
    assert one.differing(one) == ""
    assert one.differing(other) == "field 'x' of the element at position 0"
    assert one.differing(sampled(stream(Noise()))) == "field 'noise', missing and float64 (),"


class Slow:
    def map(self, element):
        time.sleep(0.03)
        return element


class Nested:
    """A field that is None, a number or a list in some rows, and a dict in others."""

    def map(self, element):
        i = int(element["x"])
        return {"y": [None, {"a": i}, {"a": i, "b": [i]}, [i], {}][i % 4]}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_field_that_is_a_dict_in_some_rows_alone_is_the_same_in_a_shorter_sample(on_error):
    def made(*transforms, seconds=5.0):
        return sampled(replace(stream(*transforms), on_error=on_error), seconds=seconds)

    one, two = made(Nested()), made(Nested(), Slow(), seconds=0.01)
    assert 1 <= len(two.rows) < len(one.rows)
    assert (one.impure, two.impure) == ("", "")
    assert one.differing(two) == two.differing(one) == ""


def test_a_stream_that_cannot_begin_has_no_sample():
    assert sampled(stream(Broken())) is None


def test_a_transform_that_hangs_is_not_waited_for(caplog):
    begun, goes_on = threading.Event(), threading.Event()

    def hang(element):
        if not begun.is_set():
            begun.set()
            goes_on.wait(60)
        return element

    begin = time.monotonic()
    assert sampled_within(lambda: stream(hang), 0.05) is None
    assert time.monotonic() - begin < 10
    assert "no element within 0.05 s, so its elements are not compared" in caplog.text
    goes_on.set()
    assert len(Source(stream(hang, num_records=4)).get_batch(4)["x"]) == 4


def test_a_source_in_one_process_warns_once_before_its_first_element(caplog: pytest.LogCaptureFixture):
    source = Source(stream(Double(), Draw()))
    with caplog.at_level(logging.WARNING):
        source.get_batch(3)
        source.seek(0)
        source.get_batch(3)
    (line,) = caplog.messages
    assert line.startswith("transform Draw made another field 'drawn'")
    assert "random_map(element, rng)" in line
