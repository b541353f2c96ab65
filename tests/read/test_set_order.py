"""Lists of sets of text, told and not told."""

import functools

import pytest

from datarax_ray.read.hazards.set_order import listed_set
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig

KEYS, NUMBERS = {"red", "green"}, {1, 2}


class Picks:
    def __init__(self):
        self.keys = frozenset(KEYS)

    def map(self, element):
        return {"x": [element[key] for key in self.keys]}


class Drops:
    def __init__(self):
        self.keys = frozenset(KEYS)

    def map(self, element):
        for key in self.keys:
            element.pop(key, None)
        return element


def listed(element):
    return {"x": list(KEYS).index("red")}


def joined(element):
    return {"x": ",".join(KEYS - {"blue"})}


def starred(element):
    return {"x": [*KEYS, 1]}


def spelled(element):
    return {"x": [element[key] for key in {"a", "b"}]}


def closing(keys):
    return lambda element: {"x": [element[key] for key in keys]}


def by_argument(element, keys=()):
    return {"x": [element[key] for key in keys]}


def fields(element):
    return {key: element[key] for key in KEYS}


def looked(element):
    return {"x": sum([element[key] for key in KEYS]), "y": sorted([key + "!" for key in KEYS]), "z": "red" in KEYS}


def numbered(element):
    KEYS = [1]  # noqa: N806
    return {"x": list(NUMBERS), "y": list(KEYS)}


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (Picks(), "self.keys"),
        (listed, "KEYS"),
        (joined, "KEYS - {'blue'}"),
        (starred, "KEYS"),
        (spelled, "{'a', 'b'}"),
        (closing(KEYS), "keys"),
        (functools.partial(listed), "KEYS"),
        (Drops(), None),
        (fields, None),
        (looked, None),
        (numbered, None),
        (by_argument, None),
        (closing(NUMBERS), None),
        (print, None),
    ],
)
def test_a_list_of_a_set_of_text_is_told(transform, said, caplog):
    assert listed_set(transform) == said
    RandomAccessSource(RandomAccessSourceConfig(), [{"red": 0, "green": 1}], transforms=[transform])
    assert [f"makes a list of {said}, a set of text" in text for text in caplog.messages] == [True] * bool(said)
