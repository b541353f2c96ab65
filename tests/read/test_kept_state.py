"""What a transform keeps from element to element is seen in its text, before it runs."""

import collections
import functools
import importlib
import itertools
import logging
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from datarax_ray.read.hazards.kept_state import kept_state
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig

NUMBER = 0


def of_global(element):
    global NUMBER
    NUMBER += 1
    return {"x": NUMBER}


def counting():
    number = 0

    def of_outside(element):
        nonlocal number
        number += 1
        return {"x": number}

    return of_outside


class Counts:
    def __init__(self):
        self.number = 0
        self.number += 1

    def filter(self, element):
        self.number += 1
        return self.number % 2


class Sums:
    def __init__(self):
        self.offset = 1

    def map(self, element):
        total = 0

        def add(value):
            nonlocal total
            total += value

        add(element["x"])
        element["x"] += self.offset
        element["x"] += total
        return element


def of_element(element):
    element.count += 1
    return element


class Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self):
        self.at += 1
        return self.data[self.at - 1]


def of_reader(element):
    return {"x": Bytes(element["x"]).take()}


class HoldsReader:
    def __init__(self):
        self.bytes = Bytes([1])

    def map(self, element):
        return {"x": self.bytes.take()}


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (of_global, "NUMBER"),
        (counting(), "number"),
        (Counts(), "self.number"),
        (functools.partial(of_global), "NUMBER"),
        (HoldsReader(), "self.at"),
        (Sums(), None),
        (of_reader, None),
        (of_element, None),
        (len, None),
    ],
)
def test_a_count_from_element_to_element_is_seen_and_told(transform, said, caplog):
    assert kept_state(transform).get("count") == said
    RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(3)}, transforms=[transform])
    told = f"counts on in {said}, in each process on its own" in caplog.text
    assert told == (said is not None)
    assert ("map_with_index(position, element)" in caplog.text) == told


_SEEN: set[int] = set()


class Once:
    def __init__(self):
        self.seen = set()

    def filter(self, element):
        if element["x"] in self.seen:
            return False
        self.seen.add(element["x"])
        return True


class OnceByName:
    def filter(self, element):
        is_new = element["x"] not in _SEEN
        _SEEN.add(element["x"])
        return is_new


class OnceInParts:
    of_class: ClassVar[set[int]] = set()

    def flat_map(self, element):
        self.of_class.update(element["x"])
        return [element]


class Known:
    def __init__(self):
        self.known = {1, 2}

    def filter(self, element):
        new = set()
        new.add(element["x"])
        return element["x"] in self.known and bool(new)


class Warns:
    def __init__(self):
        self.told = set()

    def map(self, element):
        self.told.add(element["x"])
        return element


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (Once(), "self.seen"),
        (OnceByName(), "_SEEN"),
        (OnceInParts(), "self.of_class"),
        (Known(), None),
        (Warns(), None),
        (of_element, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_set_in_which_a_filter_notes_what_it_has_seen_is_told(transform, said, caplog):
    assert kept_state(transform).get("set") == said
    RandomAccessSource(RandomAccessSourceConfig(), [{"x": 1}], transforms=[transform])
    assert (f"notes in {said} what it has seen" in caplog.text) == (said is not None)


class Moving:
    def __init__(self):
        self.mean = 0.0

    def map(self, e):
        x = e["x"] * 2
        self.mean = 0.9 * self.mean + x
        return {"x": self.mean}


class Grows:
    def __init__(self):
        self.ids = {}

    def map(self, e):
        return {"x": self.ids.setdefault(e["x"], len(self.ids))}


class Last:
    last = None

    def map(self, e):
        difference = e["x"] - (e["x"] if self.last is None else self.last)
        self.last = e["x"]
        return {"x": difference}


class Iterates:
    def __init__(self):
        self.numbers = itertools.count()

    def map(self, e):
        return {"x": next(self.numbers)}


class Queued:
    def __init__(self):
        self.queue = collections.deque(maxlen=4)

    def map(self, e):
        self.queue.append(e["x"])
        return {"x": sum(self.queue)}


class Takes:
    def __init__(self):
        self.left = [*range(100)]

    def map(self, e):
        return {"x": self.left.pop()}


class HeldGenerator:
    rng = None

    def random_map(self, e, rng):
        if self.rng is None:
            self.rng = rng
        return {"x": self.rng.random()}


class Lazy:
    """What it keeps decides nothing of later elements: an open file, what was made for a key, the work at hand."""

    def __init__(self):
        self.words, self.path, self.file, self.made, self.data = None, None, None, {}, b""

    def map(self, e):
        if self.words is None:
            words = Path("words").read_text()
            self.words = words.split()
        if self.path != e["path"]:
            self.file = np.load(e["path"])
            self.path = e["path"]
        key = e["key"]
        self.made[key] = self.made.get(key) or len(key)
        self.made.setdefault(key, key)
        self.made.pop(key, None)
        self.data = e["data"]
        return {"x": self.parse(), "y": list(self.words)}

    def parse(self):
        parts = []
        parts.append(self.data)
        return parts


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (Moving(), "self.mean"),
        (Grows(), "self.ids"),
        (Last(), "self.last"),
        (Iterates(), "self.numbers"),
        (Queued(), "self.queue"),
        (Takes(), "self.left"),
        (HeldGenerator(), "self.rng"),
        (Lazy(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_kept_of_elements_is_seen_and_told(transform, said, caplog):
    assert kept_state(transform).get("value") == said
    RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(4)}, transforms=[transform])
    assert (f"keeps something of its elements in {said}, in each process on its own" in caplog.text) is (
        said is not None
    )


G: list[int] = []
IT = itertools.count()
LAST = {"x": 0}
DQ = collections.deque([0], maxlen=3)
BUF = np.zeros(3)
MODEL = HANDLE = NAME = NAMED = None
CACHE: dict[str, int] = {}
IDS: dict[int, int] = {}
TOLD: set[int] = set()
ERRORS: list[int] = []


def appends(e):
    G.append(1)
    return {"x": len(G)}


def takes_next(e):
    return {"x": next(IT)}


def fills_default(e, seen=[]):  # noqa: B006
    seen.append(e["x"])
    return {"x": len(seen)}


def takes_last(e):
    before = LAST["x"]
    LAST["x"] = e["x"]
    return {"x": before}


def takes_last_by_get(e):
    before, LAST["x"] = LAST.get("x", 0), e["x"]
    return {"x": before}


def fills_forward(e):
    if e["x"]:
        LAST["x"] = e["x"]
    return dict(LAST)


def moves_mean(e):
    DQ.append(e["x"])
    return {"x": np.mean(DQ)}


def rolls(e):
    BUF[:] = np.roll(BUF, 1)
    BUF[0] = e["x"]
    return {"x": BUF.sum()}


def shifts(e):
    BUF[1:] = BUF[:-1]
    return {"x": BUF.sum()}


def adds_into(e):
    np.add(BUF, e["x"], out=BUF)
    return {"x": BUF.copy()}


def appends_for(e):
    G.append(e["x"])
    return len(G)


def calls_helper(e):
    return {"x": appends_for(e)}


class CountsInClass:
    count = 0

    def map(self, e):
        CountsInClass.count += 1
        return {"x": self.count}


class CountsInItsType:
    count = 0

    def map(self, e):
        type(self).count += 1
        return {"x": self.count}


class CountsByMethodOfClass:
    count = 0

    @classmethod
    def counted(cls):
        cls.count += 1
        return cls.count

    def map(self, e):
        return {"x": self.counted()}


class Short:
    def __init__(s):  # noqa: N805
        s.n = 0

    def map(s, e):  # noqa: N805
        s.n = s.n + 1
        return {"x": s.n}


class CountsByKey:
    def __init__(self):
        self.counts = collections.Counter()

    def map(self, e):
        self.counts[e["x"]] += 1
        return {"x": self.counts[e["x"]]}


class CountsByGet:
    def __init__(self):
        self.counts = {}

    def map(self, e):
        counts = self.counts
        counts[e["x"]] = counts.get(e["x"], 0) + 1
        return {"x": counts[e["x"]]}


class NumbersLazily:
    def map(self, e):
        self.__dict__.setdefault("numbers", itertools.count())
        return {"x": next(self.numbers)}


class Groups:
    def __init__(self):
        self.of_key = {}

    def map(self, e):
        self.of_key.setdefault(e["x"], []).append(1)
        return {"x": len(self.of_key[e["x"]])}


class HasSeen:
    def filter(self, e):
        if CACHE.get(e["x"]):
            return False
        CACHE[e["x"]] = True
        return True


class CountsDifferent:
    def __init__(self):
        self.seen = set()

    def map(self, e):
        self.seen.add(e["x"])
        return {"x": len(self.seen)}


def numbers_words(e):
    if e["x"] not in IDS:
        IDS[e["x"]] = len(IDS)
    return {"x": IDS[e["x"]]}


def held_by_closure():
    kept = []

    def map_(e):
        kept.append(e["x"])
        return {"x": sum(kept)}

    return map_


def around(function):
    calls = 0

    @functools.wraps(function)
    def wrapper(e):
        nonlocal calls
        calls += 1
        return function(e) | {"x": calls}

    return wrapper


@around
def decorated(e):
    return e


class Meter:
    def __init__(self):
        self.total = 0

    def update(self, value):
        self.total += value


METER = Meter()


def updates_meter(e):
    METER.update(e["x"])
    return {"x": METER.total}


@pytest.mark.parametrize(
    ("transform", "kind", "said"),
    [
        (appends, "count", "G"),
        (takes_next, "value", "IT"),
        (lambda e: {"x": next(IT)}, "value", "IT"),
        (fills_default, "value", "seen"),
        (takes_last, "value", "LAST"),
        (takes_last_by_get, "value", "LAST"),
        (fills_forward, "value", "LAST"),
        (moves_mean, "value", "DQ"),
        (rolls, "count", "BUF"),
        (shifts, "count", "BUF"),
        (adds_into, "value", "BUF"),
        (calls_helper, "value", "G"),
        (CountsInClass(), "count", "CountsInClass.count"),
        (CountsInItsType(), "count", "self.count"),
        (CountsByMethodOfClass(), "count", "cls.count"),
        (Short(), "count", "s.n"),
        (CountsByKey(), "count", "self.counts"),
        (CountsByGet(), "value", "self.counts"),
        (NumbersLazily(), "value", "self.numbers"),
        (Groups(), "count", "self.of_key"),
        (HasSeen(), "set", "CACHE"),
        (CountsDifferent(), "value", "self.seen"),
        (numbers_words, "count", "IDS"),
        (held_by_closure(), "value", "kept"),
        (decorated, "count", "calls"),
        (updates_meter, "count", "self.total"),
        (functools.partial(lambda seen, e: seen.append(e["x"]), []), "value", "seen"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_every_place_that_outlives_a_call_is_told(transform, kind, said, caplog):
    assert kept_state(transform) == {kind: said}
    RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(4)}, transforms=[transform])
    assert f" in {said}" in caplog.text


def caches(e):
    if e["x"] not in CACHE:
        CACHE[e["x"]] = len(e["x"])
    return {"x": CACHE[e["x"]]}


def caches_by_get(e):
    found = CACHE.get(e["x"])
    if found is None:
        found = CACHE[e["x"]] = len(e["x"])
    return {"x": found}


def caches_by_error(e):
    try:
        return {"x": CACHE[e["x"]]}
    except KeyError:
        CACHE[e["x"]] = len(e["x"])
    return {"x": CACHE[e["x"]]}


@functools.cache
def length(text):
    return len(text)


def caches_by_function(e):
    return {"x": length(e["x"])}


def caches_some(e):
    if e["x"] not in CACHE:
        if len(CACHE) > 100:
            CACHE.pop(next(iter(CACHE)))
        CACHE[e["x"]] = len(e["x"])
    return {"x": CACHE[e["x"]]}


def caches_objects(e):
    found = CACHE[e["x"]]
    if found.name is None:
        found.name = e["x"]
    return {"x": found}


class CachesDecisions:
    def filter(self, e):
        if e["x"] not in CACHE:
            CACHE[e["x"]] = len(e["x"])
        return CACHE[e["x"]] > 1


def opens(e):
    global HANDLE
    if HANDLE is None:
        HANDLE = Path("words").open()  # noqa: SIM115
    HANDLE.seek(e["x"])
    return {"x": HANDLE.read(1)}


def opens_what_is_named(e):
    global HANDLE, NAME
    if e["x"] != NAME:
        HANDLE, NAME = np.load(e["x"]), e["x"]
    return {"x": HANDLE["x"]}


def model(name):
    global MODEL
    if MODEL is None:
        MODEL = str(name)
    return MODEL


def model_at_once(name):
    global MODEL
    if MODEL is not None:
        return MODEL
    MODEL = str(name)
    return MODEL


def loaded(name):
    global NAMED, MODEL
    if name == NAMED:
        return MODEL
    NAMED, MODEL = name, str(name)
    return MODEL


def loads_lazily(e):
    return {"x": model("a") + model_at_once("b") + loaded("c")}


def warns(e):
    if len(TOLD) < 10 and e["x"] not in TOLD:
        TOLD.add(e["x"])
        logging.warning("%s", e["x"])
    return e


def overwrites(e):
    BUF[:] = e["x"]
    BUF[0] += 1
    BUF[1:] = BUF[:-1]
    return {"x": BUF.sum()}


def overwrites_in_parts(e):
    BUF[0], BUF[1] = e["x"], e["x"]
    BUF[2] = e["x"]
    return {"x": BUF.copy()}


def overwrites_by_numpy(e):
    np.add(e["x"], 1, out=BUF)
    BUF.fill(0)
    return {"x": BUF.copy()}


def overwrites_on_both_ways(e):
    if e["x"]:
        BUF[...] = 1
    else:
        BUF.fill(0)
    np.add(BUF, 1, out=BUF)
    return {"x": BUF.copy()}


def appends_to_its_own(e, sizes=(1, 2), out=None):
    parts = []
    out = [] if out is None else out
    for size in sizes:
        parts.append(e["x"] * size)
        out.append(size)
    numbers = itertools.count()
    total = 0
    total += next(numbers)
    by_key = collections.defaultdict(list)
    by_key[e["x"]].append(np.append(parts, 1))
    e["x"] += 1
    e["list"].append(total)
    return {"x": parts, "y": out, "z": by_key}


def starts_anew(e):
    G.clear()
    G.append(e["x"])
    appends_for(e)
    return {"x": sum(G)}


def gives_back(e):
    G.append(e["x"])
    try:
        return {"x": sum(G)}
    finally:
        G.pop()


class Parses:
    """Sets its place at the beginning of each element."""

    def __init__(self):
        self.parts, self.at = [], 0

    def fit(self, elements):
        for element in elements:
            self.words.append(element)

    def map(self, e):
        self.at, self.parts = 0, []
        while self.at < len(e["x"]):
            self.take(e["x"])
        return {"x": self.parts}

    def take(self, data):
        self.parts.append(data[self.at])
        self.at += 1

    @staticmethod
    def total(e):
        e.total += 1


class Converts:
    def __init__(self, table):
        self.table = table

    def map(self, e):
        if isinstance(self.table, list):
            self.table = np.asarray(self.table)
        self.words = getattr(self, "words", None) or Path("words")
        return {"x": self.table[e["x"]]}


class NamedAsOthers:
    """Its attributes have the names of functions and objects of its module."""

    appends, METER = 1, {"update": 2}

    def map(self, e):
        return {"x": self.appends + self.METER["update"]}


def of_table(e, table={"a": 1}, scale=2):  # noqa: B006
    scale *= 2
    return {"x": table.get(e["x"], 0) * scale + len(G) + LAST["x"]}


@pytest.mark.parametrize(
    "transform",
    [
        caches,
        caches_by_get,
        caches_by_error,
        caches_by_function,
        caches_some,
        caches_objects,
        CachesDecisions(),
        opens,
        opens_what_is_named,
        loads_lazily,
        warns,
        overwrites,
        overwrites_in_parts,
        overwrites_by_numpy,
        overwrites_on_both_ways,
        appends_to_its_own,
        starts_anew,
        gives_back,
        Parses(),
        Converts([1]),
        NamedAsOthers(),
        of_table,
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_what_an_element_would_have_made_itself_is_not(transform, caplog):
    assert kept_state(transform) == {}
    RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(4)}, transforms=[transform])
    assert caplog.messages == []


def test_counts_are_seen_in_code_without_a_text():
    """Of what is typed at a prompt, or comes by `python -`, Python keeps none."""
    made = {"__name__": __name__}
    exec(
        compile(
            "def counted(e):\n    global n\n    n += 1\n"
            "class Own:\n    def map(s, e):\n        e.n += 1\n        s.at += 1\n",
            "<stdin>",
            "exec",
        ),
        made,
    )
    assert [kept_state(made["counted"]), kept_state(made["Own"]())] == [{"count": "n"}, {"count": "s.at"}]


def test_a_text_too_deep_to_walk_through_ends_no_source(tmp_path, monkeypatch):
    (tmp_path / "deep_sum.py").write_text(f"def deep(e):\n    return {' + '.join(['1'] * 900)} + e['x']\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert kept_state(importlib.import_module("deep_sum").deep) == {}
