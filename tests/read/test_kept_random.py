"""What a transform draws from that goes on between elements is seen in its code, before it runs."""

import datetime
import functools
import logging
import os
import random
import secrets
import time
import uuid
from datetime import date
from random import uniform

import numpy as np
import pytest
from scipy.stats import qmc

from datarax_ray.read.hazards.kept_random import kept_random, read_clock, read_environment, uses_hash
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig

RNG = np.random.default_rng(0)
SAMPLER = qmc.Halton(1)  # an object of a library that holds a generator, as a pipeline of Albumentations does


def of_module(element):
    return {"x": element["x"] + random.random()}


def of_numpy(element):
    return {"x": [np.random.randint(3) for _ in range(2)]}


def of_name(element):
    return {"x": uniform(0, 1)}


def of_made_once(element):
    return {"x": RNG.normal()}


def of_chance(element):
    return {"x": np.random.default_rng().random()}


def of_import_inside(element):
    import random as chance
    from random import choice

    return {"x": choice([0, 1])} if element else chance.random()


def of_uuid(element):
    return {"x": uuid.uuid4().int}


def of_system(element):
    from os import urandom

    return {"x": urandom(1)[0] + os.urandom(1)[0]}


def of_secrets(element):
    return {"x": secrets.randbelow(3)}


def of_another(element):
    return of_module(element)


def of_library(element):
    return {"x": SAMPLER.random()}


class HoldsSampler:
    def __init__(self):
        self.sampler = qmc.Halton(1)

    def map(self, element):
        return {"x": self.sampler.random()}


def of_cell(rng):
    return lambda element: {"x": rng.random()}


class Held:
    def __init__(self):
        self.rng = random.Random(0)

    def __call__(self, element):
        return {"x": self.rng.random()}


class Inherits(Held):
    pass


class Maps:
    def map(self, element):
        return {"x": np.random.rand()}


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (of_module, "random.random"),
        (of_numpy, "np.random.randint"),
        (of_name, "uniform"),
        (of_made_once, "RNG.normal"),
        (of_chance, "np.random.default_rng()"),
        (of_import_inside, "random.choice"),
        (of_another, "random.random"),
        (of_uuid, "uuid.uuid4"),
        (of_system, "os.urandom"),
        (of_secrets, "secrets.randbelow"),
        (of_library, "SAMPLER.random"),
        (HoldsSampler(), "self.sampler.random"),
        (of_cell(RNG), "rng.random"),
        (Held(), "self.rng.random"),
        (Held().__call__, "self.rng.random"),
        (Inherits(), "self.rng.random"),
        (Maps(), "np.random.rand"),
        (lambda element: {"x": random.random()}, "random.random"),
        (functools.partial(of_numpy), "np.random.randint"),
    ],
)
def test_what_goes_on_between_elements_is_seen(transform, said):
    assert kept_random(transform) == said


class RandomMap:
    def __init__(self):
        self.table = np.random.default_rng(0).permutation(4)
        self.offset = random.random()

    def random_map(self, element, rng):
        return {"x": self.table[rng.integers(4)] + rng.random()}


def seeded(element):
    random.seed(element["x"])
    return {"x": random.random()}


def library_seeded(element):
    SAMPLER.set_random_seed(element["x"])  # Albumentations' name for it
    return {"x": SAMPLER.random()}


class SetAnew:
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, element):
        self.rng.bit_generator.state = np.random.PCG64(element["x"]).state
        return {"x": self.rng.random()}


Nameless = type("Nameless", (), {})
Nameless.__module__ = None  # as protobuf's, and what exec makes


def with_constants(element, shape=()):
    return {"x": np.zeros(()), "y": [*shape, *()], "z": (1, 2), "kind": Nameless}


def keyed(element):
    return {"x": np.random.default_rng(element["x"]).random() + random.Random(element["x"]).random()}


def of_annotation(element, rng: np.random.Generator | None = None):
    return {"x": isinstance(rng, np.random.Generator)}


class Config(dict):
    __getattr__ = dict.__getitem__  # KeyError where there is none


def of_config(config):
    return lambda element: {"x": element["x"] * config.scale}


@pytest.mark.parametrize(
    "transform",
    [
        RandomMap(),
        SetAnew(),
        seeded,
        library_seeded,
        with_constants,
        keyed,
        of_annotation,
        of_config(Config(scale=2)),
        len,
        np.asarray,
        dict,
    ],
)
def test_what_each_element_decides_is_not(transform):
    assert kept_random(transform) is None


@pytest.mark.parametrize(("transform", "count"), [(of_numpy, 1), (RandomMap(), 0)])
def test_it_is_said_once_when_a_source_is_made(transform, count, caplog):
    with caplog.at_level(logging.WARNING, "datarax_ray"):
        source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), {"x": np.arange(3)}, transforms=transform)
        source.get_batch(2)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == count
    assert all(text.startswith("of_numpy draws from np.random.randint, which goes on") for text in said)
    assert all("random_map(element, rng)" in text for text in said)


class Augmented:
    """As a PyTorch dataset is often written."""

    def __init__(self, *, is_drawn=True, held=None):
        self.offset, self.is_drawn, self.held = random.random(), is_drawn, held

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"x": self.jittered(index)}

    def jittered(self, index):
        return index + np.random.normal()

    def split(self):
        return random.sample(range(4), 2)


class Plain(Augmented):
    def jittered(self, index):
        return index + self.offset


class Held(Plain):
    def jittered(self, index):
        return index + self.held.normal()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Augmented(), "Augmented draws from np.random.normal where an index is asked for, which goes on"),
        (Held(held=np.random.default_rng(0)), "Held draws from self.held.normal where an index is asked for"),
        (Plain(), None),  # what it draws from where it is made, or split, is no matter
        ([{"x": 1}], None),
    ],
)
def test_a_dataset_that_draws_for_each_index_is_told_of_too(data, said, caplog):
    """One that augments in __getitem__ is another dataset in every process, and after a resume."""
    with caplog.at_level(logging.WARNING, "datarax_ray"):
        RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), data)
    assert len(caplog.records) == (said is not None)
    assert said is None or (said in caplog.text and "random_map(element, rng)" in caplog.text)


def of_hash(element):
    return hash(element["key"]) % 10


class Split:
    def filter(self, element):
        return of_hash(element) < 9


class Key:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)


class Looks:
    def map(self, element):
        return {"x": {Key(element["key"]): 1}[Key(element["key"])]}


@pytest.mark.parametrize(
    ("transform", "uses"), [(of_hash, True), (Split(), True), (Looks(), False), (of_uuid, False), (len, False)]
)
def test_the_hash_of_text_is_seen_where_it_decides_something(transform, uses, caplog):
    assert uses_hash(transform) == uses
    RandomAccessSource(RandomAccessSourceConfig(), {"key": np.arange(3)}, transforms=[transform])
    assert ("uses hash(), which Python keys anew" in caplog.text) == uses


class Stamped:
    def map(self, element):
        return element | {"x": datetime.datetime.now().timestamp()}


class Scaled:
    def __init__(self):
        self.by = int(os.environ.get("SCALE", "1"))

    def map(self, element):
        return element | {"x": element["x"] * self.by}


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda element: {"x": os.environ["HOME"]}, "os.environ"),
        (lambda element: {"x": os.getenv("HOME")}, "os.getenv"),
        (Scaled(), None),
        (lambda element: {"x": os.sep}, None),
    ],
)
def test_the_environment_is_seen_and_told(transform, said, caplog):
    assert read_environment(transform) == said
    RandomAccessSource(RandomAccessSourceConfig(), [{"x": 0}], transforms=[transform])
    assert [f"reads {said}, which is that of their hosts" in text for text in caplog.messages] == [True] * bool(said)


class Timed:
    def map(self, element):
        begin = time.perf_counter()
        return element | {"day": datetime.date(2026, 1, 2) - element["day"]} if begin else element


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda element: {"x": time.time()}, "time.time"),
        (lambda element: {"x": [time.time_ns()]}, "time.time_ns"),
        (lambda element: {"x": date.today().day}, "date.today"),
        (Stamped(), "datetime.datetime.now"),
        (Timed(), None),
    ],
)
def test_the_time_of_day_is_seen_and_told(transform, said, caplog):
    assert read_clock(transform) == said
    RandomAccessSource(RandomAccessSourceConfig(), [{"x": 0}], transforms=[transform])
    assert [f"reads {said}: where an element holds" in message for message in caplog.messages] == [True] * bool(said)
