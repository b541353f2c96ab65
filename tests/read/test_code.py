"""The fingerprint changes with what a transform does, and with nothing else."""

import ast
import collections
import contextlib
import copy
import decimal
import functools
import gc
import hashlib
import importlib
import importlib.util
import io
import json
import linecache
import os
import pathlib
import re
import struct
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import weakref
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from datarax_ray.plan.fingerprint import DriftError, check_drift
from datarax_ray.read.decode import DecodeRaw, PadTo
from datarax_ray.read.identity import telling
from datarax_ray.read.identity.code import code_fingerprint, value_digest
from datarax_ray.read.identity.sampled_rows import hash_array
from datarax_ray.read.identity.users_code import parsed


def fingerprint(*transforms) -> str:
    return code_fingerprint(transforms)["digest"]


def of_text(tmp_path, text: str, name: str, get: str = "f") -> str:
    """The fingerprint of the function f, or of an instance of the class `get`, in a module of this text."""
    path = tmp_path / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # inspect finds a class only in a module that is known
    try:
        spec.loader.exec_module(made)
        return fingerprint(getattr(made, get) if get == "f" else getattr(made, get)())
    finally:
        del sys.modules[name]


FUNCTION = """
def f(e, scale=2):
    return e * scale
"""


def test_comments_docstrings_layout_and_module_change_nothing(tmp_path):
    base = of_text(tmp_path, FUNCTION, "a1")
    commented = '''
    # above
    def f(
        e,
        scale=2,  # why
    ):
        """What it does."""

        return (e   *   scale)  # how
    '''
    assert of_text(tmp_path, commented, "a2") == base
    (tmp_path / "elsewhere").mkdir()
    assert of_text(tmp_path / "elsewhere", FUNCTION, "another_name") == base


@pytest.mark.parametrize(
    "changed",
    [
        "def f(e, scale=3):\n    return e * scale",
        "def f(e, scale=2):\n    return e + scale",
        "def f(e, s=2):\n    return e * s",
    ],
)
def test_code_and_defaults_change_it(tmp_path, changed):
    assert of_text(tmp_path, FUNCTION, "b1") != of_text(tmp_path, changed, "b2")


CLASS = """
class Base:
    def map(self, e):
        return e + 1

class T(Base):
    def filter_nothing(self):
        "doc"
"""


def test_a_class_changes_with_its_methods_and_those_it_inherits_and_not_with_its_comments(tmp_path):
    base = of_text(tmp_path, CLASS, "c1", "T")
    assert of_text(tmp_path, CLASS.replace('"doc"', '"other doc"  # and more'), "c2", "T") == base
    assert of_text(tmp_path, CLASS.replace("filter_nothing", "filter_little"), "c3", "T") != base
    assert of_text(tmp_path, CLASS.replace("e + 1", "e + 2"), "c4", "T") != base


def closure(value):
    def f(e):
        return e + value

    return f


class Holder:
    def __init__(self, value):
        self.value = value

    def map(self, element):
        return element

    def other(self, element):
        return element


class EpochGroups:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def map(self, element):
        return element


class Named(Holder):
    def fingerprint(self):
        return "always"


VALUES = [
    None,
    0,
    1,
    True,
    1.5,
    float("nan"),
    1j,
    "a",
    b"a",
    (),
    (1,),
    ("1",),
    [[1], 2],
    {"a": 1},
    {"a": 2},
    {1, 2},
    {1, 3},
    frozenset("ab"),
    slice(1, 2),
    range(3),
    np.float32(1),
    np.float64(1),
    np.arange(3),
    np.arange(3, dtype=np.int32),
    np.arange(3).reshape(3, 1),
    np.array(["a", None], object),
    np.array(["b", None], object),
    np.dtype("int8"),
    re.compile("a"),
    re.compile("b"),
    re.compile("a", re.IGNORECASE),
    collections.deque([1]),
    collections.deque([2]),
    decimal.Decimal("1.1"),
    decimal.Decimal("1.2"),
    pathlib.Path("/a"),
    pathlib.Path("/b"),
    len,
    abs,
    np.add,
    np.subtract,
    functools.partial(max, 1),
    functools.partial(max, 2),
    functools.partial(min, 1),
    functools.partial(max, key=len),
    Holder(1),
    Holder(2),
    EpochGroups(1),
    EpochGroups(2),
    Holder,
    EpochGroups,
    Holder(1).map,
    Holder(1).other,
    Holder(2).map,
]


@pytest.mark.parametrize("wrap", [Holder, EpochGroups, closure, lambda value: functools.partial(max, value)])
def test_every_value_that_a_transform_holds_counts(wrap):
    found = [fingerprint(wrap(value)) for value in VALUES]
    same = [(VALUES[i], VALUES[j]) for i in range(len(found)) for j in range(i) if found[i] == found[j]]
    assert same == []


def test_equal_values_made_anew_are_the_same():
    def make():
        text = "".join(["a", "b"])
        return Holder(
            [np.arange(3), re.compile("x" * 2), pathlib.Path("/a/b"), {text: EpochGroups(1)}, np.array([text], object)]
        )

    left, right = make(), make()
    hash(right.value[2])  # a path keeps its hash, which differs between processes
    assert fingerprint(left) == fingerprint(right)


def test_transforms_themselves_and_their_order_count():
    kinds = [len, abs, np.negative, np.sign, functools.partial(max, 1), Holder(1), Holder(1).map, closure(1)]
    assert len({fingerprint(kind) for kind in kinds}) == len(kinds)
    assert fingerprint(len, abs) != fingerprint(abs, len)
    assert fingerprint(len) != fingerprint(len, len)
    assert fingerprint() != fingerprint(len)


def test_lambdas_on_one_line_are_told_apart():
    one, two = lambda e: e + 1, lambda e: e + 2
    assert fingerprint(one) != fingerprint(two)
    assert fingerprint(lambda e: e + 1) == fingerprint(one)


def test_what_is_nested_in_a_lambda_counts():
    assert fingerprint(lambda e: [x * 2 for x in e]) != fingerprint(lambda e: [x * 3 for x in e])
    assert fingerprint(lambda e: (lambda y: y + 1)(e)) != fingerprint(lambda e: (lambda y: y + 2)(e))
    assert fingerprint(lambda e: e.upper()) != fingerprint(lambda e: e.lower())


def test_a_fingerprint_is_the_same_in_every_process():
    # Sets of strings have another order in each, and hashes other values.
    program = """
    import functools, pathlib, random, re, sys, numpy as np
    from datarax_ray.read.identity.code import code_fingerprint
    class T:
        def __init__(self, value): self.value = value
        def map(self, e): return e
    def logged(f):
        @functools.wraps(f)
        def around(e): return f(e) * 2
        return around
    def scaled(f):
        @functools.wraps(f)
        def around(e): return f(e) / 3
        return around
    def f0(e): return e
    def f1(e): return e + 1
    def f2(e): return e + 2
    def f3(e): return e + 3
    functions = [f0, f1, f2, f3]
    random.Random(sys.argv[1]).shuffle(functions)  # these have other addresses in each, and so hashes
    steps = {logged(f) if f in (f0, f1) else scaled(f) for f in functions}
    path = pathlib.Path("/a"); hash(path)
    f = lambda e: e in {"a", "b", "c", "d", "e"}
    held = [{"a", "b", "c", "d"}, frozenset("abcd"), path, re.compile("x"), np.array(["a", "b"], object)]
    print(code_fingerprint([f, T(held)])["digest"], code_fingerprint([T(steps), T([[[[[[[steps]]]]]]])]))
    """
    found = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), seed],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


class _Fitted:
    """As scikit-learn's vectorizers are, which look whether what they were fitted with is still the same object."""

    def __init__(self, words, number=7):
        self.words = words
        self._words_id = id(words)
        self.number = number

    def map(self, element):
        return element


def test_the_address_of_what_an_object_holds_is_no_part_of_it():
    one, other = _Fitted(["a", "b"]), _Fitted(["a", "b"])
    assert one._words_id != other._words_id
    assert code_fingerprint([one]) == code_fingerprint([other])
    assert code_fingerprint([one]) != code_fingerprint([_Fitted(["a", "b"], number=8)])


def test_a_script_that_reads_libraries_alone_is_the_same_where_it_is_imported(tmp_path):
    program = """
    import json
    {imported} as xp
    from datarax_ray.read.identity.code import code_fingerprint
    def f(e): return xp.sqrt(e)
    def found(): return json.dumps({{"transforms": code_fingerprint([f])}})
    if __name__ == "__main__":
        import other, script
        print(json.dumps([found(), script.found(), other.found()]))
    """
    for name, imported in {"script": "import cmath", "other": "import math"}.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(program.format(imported=imported)))
    env = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, tmp_path / "script.py"], env=env, capture_output=True, check=True, text=True)
    as_script, imported, other = map(json.loads, json.loads(run.stdout))
    assert check_drift(as_script, imported) == []
    with pytest.raises(DriftError, match=r"transforms.libraries: .* stands for another library"):
        check_drift(as_script, other)
    earlier = {"transforms": {name: value for name, value in as_script["transforms"].items() if name != "libraries"}}
    earlier["transforms"]["told"] = 2
    assert check_drift(earlier, as_script) == []
    with pytest.raises(DriftError, match=r"transforms.modules: .* stands for another library"):
        check_drift(earlier, other)


# Cells of a notebook: of what they define in __main__ Python finds the text of functions alone, by the cell's name.
CELLS = '''
import functools, linecache, sys
from datarax_ray.read.identity.code import code_fingerprint, read_digests

def digest(text, number=[0]):
    number[0] += 1
    name = f"<ipython-input-{number[0]}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), globals())
    return code_fingerprint([C()])["digest"], read_digests(C, "__main__")[0]

CELL = """
import dataclasses, functools
class Base:
    def shift(self): return 1
@dataclasses.dataclass
class C(Base):
    table = {"a": (1, 2.0), "b": {3}}
    size: int = 2
    class Inner:
        def one(self): return 11
    @staticmethod
    def same(x): return x
    @functools.cached_property
    def half(self): return 0.5
    @property
    def twice(self): return 22
    @functools.lru_cache
    def slow(self, x): return x * x
    def map(self, e): return e * self.half
"""
first = digest(CELL)
assert digest(CELL) == first
assert digest("# a word" + CELL.replace("return 22", "return  22  # so")) == first
for old, new in {"shift(self): return 1": "shift(self): return 2", "return 11": "return 12", '"a"': '"z"', "2.0": "2.5",
                 "{3}": "{4}", "int = 2": "int = 3", "x): return x\\n    @": "x): return -x\\n    @", "0.5": "0.25",
                 "return 22": "return 23", "x * x": "x + x", "e * self": "e + self", "def map": "def to"}.items():
    assert CELL.count(old) == 1, old
    changed = digest(CELL.replace(old, new))
    assert changed[0] != first[0], old
    assert changed[1] != first[1] or "shift" in old, old
print("told apart")
'''


def test_a_class_of_a_notebook_is_told_by_what_is_in_it():
    run = subprocess.run([sys.executable, "-c", CELLS], capture_output=True, text=True, check=False)
    assert run.stdout == "told apart\n", run.stderr


def test_what_autoreload_puts_into_a_function_or_class_is_seen(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "reloaded_in_place.py"
    path.write_text("class C:\n    def map(self, e):\n        return e\n\n\ndef f(e):\n    return e\n")
    module = importlib.import_module(path.stem)
    function, cls = module.f, module.C
    before = fingerprint(function), fingerprint(cls())
    path.write_text(path.read_text().replace("return e", "return -e"))
    assert (fingerprint(function), fingerprint(cls())) == before  # a file that is edited is not what runs
    found: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), found)
    function.__code__, cls.map.__code__ = found["f"].__code__, found["C"].map.__code__
    assert all(now != then for now, then in zip((fingerprint(function), fingerprint(cls())), before, strict=True))


def test_no_function_is_kept_with_what_it_closes_over():
    table = np.zeros(10)

    def look(e):
        return e + table

    fingerprint(look)
    seen = weakref.ref(look)
    del look
    gc.collect()
    assert seen() is None


@contextlib.contextmanager
def shallow():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def test_code_of_any_site_packages_is_a_librarys_and_what_has_no_end_is_refused_with_the_remedy(tmp_path, monkeypatch):
    chain = (
        'class A{0}:\n    def map(self, e):\n        return held{1}["one"].map(e)\n\n\nheld{0} = {{"one": A{0}()}}\n'
    )
    text = "".join(chain.format(number, number + 1) for number in range(60)) + "held60 = None\n"
    for folder in ("site-packages", "mine"):
        path = tmp_path / folder / f"without_end_{folder[0]}.py"
        path.parent.mkdir()
        path.write_text(text)
        monkeypatch.syspath_prepend(path.parent)
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    held = importlib.import_module("without_end_s").A0()
    assert fingerprint(held) == fingerprint(held)
    with (
        shallow(),
        pytest.raises(ValueError, match=r"what A0 read and hold leads on without end.*fingerprint\(\) -> str"),
    ):
        fingerprint(importlib.import_module("without_end_m").A0())


class Chain:
    def __init__(self, *parts, **named):
        self.parts = parts
        self.__dict__.update(named)

    def map(self, element):
        return element


def composed(*parts):
    return lambda element: [each(element) for each in parts]


def in_itself(by):
    found = [{"by": [by]}]
    found.append({"again": [[[[found]]]]})
    return Chain(found)


DEEP = [
    lambda by: Chain([Chain([Chain([Chain((0, by))])])]),
    lambda by: composed(composed(composed(lambda element: element * by))),
    lambda by: functools.partial(map, [functools.partial(map, [functools.partial(map, [[by]])])]),
    lambda by: Chain(cfg=Chain(data=Chain(train=Chain(aug=Chain(color=Chain(by=by, names={"a", "b", "c", (by,)})))))),
    lambda by: functools.reduce(lambda inner, letter: {letter: inner}, "a long word in a trie", by),
    lambda by: Chain([[[[[[in_itself(by)]]]]]]),
    lambda by: Chain([[[[[[[np.arange(by)]]]]]]]),
]


@pytest.mark.parametrize("make", DEEP)
def test_what_lies_deep_in_a_transform_counts_and_older_states_do_not_say_it(make):
    first, again, other = (code_fingerprint([make(by)]) for by in (2, 2, 3))
    assert first == again != other
    saved, older = {"transforms": first}, {"transforms": {name: first[name] for name in first if name != "deep"}}
    with pytest.raises(DriftError, match="lies deep|made differently"):
        check_drift(saved, {"transforms": other})
    check_drift(older, {"transforms": first})


def test_what_lies_deep_is_told_alike_in_every_process():
    script = "from tests.read.test_code import *; print([code_fingerprint([make(2)]) for make in DEEP])"
    found = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "PATH": ""}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{[code_fingerprint([make(2)]) for make in DEEP]}\n"}


class View(collections.abc.Mapping):
    """A part of a graph, made anew each time."""

    def __init__(self, graph, at):
        self.graph, self.at = graph, at

    def __getitem__(self, name):
        return View(self.graph, name)

    def __iter__(self):
        return iter(self.graph[self.at])

    def __len__(self):
        return len(self.graph[self.at])


def test_what_makes_its_parts_anew_ends(monkeypatch):
    monkeypatch.setattr(telling, "MAX_PARTS", 1000)  # 2**64 of them
    views = [View({"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}, "a") for _ in range(2)]
    assert code_fingerprint([Chain(views[0])]) == code_fingerprint([Chain(views[1])])


def test_of_what_is_long_as_much_is_told_as_is_asked_for():
    with pytest.raises(telling.LongError):
        code_fingerprint([Chain([[*range(3), [[]] * 100]])], most=100)
    with pytest.raises(telling.LongError):
        code_fingerprint([Chain(np.zeros(2**20))], most=1000)
    assert code_fingerprint([Chain([1, 2])], most=100) == code_fingerprint([Chain([1, 2])])


def test_cycles_end():
    held = Holder(None)
    held.value = [held, {"again": held}]
    assert fingerprint(held) == fingerprint(held)

    def recursive(e):
        return recursive(e)

    fingerprint(recursive)


def test_what_cannot_be_pickled_is_no_setting():
    assert fingerprint(Holder(threading.Lock())) == fingerprint(Holder(threading.Lock()))


def test_an_object_may_say_its_own_fingerprint():
    assert fingerprint(Named(1)) == fingerprint(Named(2))


def test_this_packages_decoders_count_by_their_settings():
    assert fingerprint(DecodeRaw("int32", 5)) == fingerprint(DecodeRaw(np.int32, (5,)))
    different = [DecodeRaw("int32", 5), DecodeRaw("int32", 6), DecodeRaw("int16", 5), DecodeRaw("int32", 5, field="x")]
    assert len({fingerprint(d) for d in different}) == 4
    assert fingerprint(PadTo({"a": 3})) != fingerprint(PadTo({"a": 4}))


def test_names_are_for_people_and_few():
    assert code_fingerprint([len, Holder(1), closure(1)])["names"] == ["len", "Holder", "closure.<locals>.f"]
    names = code_fingerprint([len] * 50)["names"]
    assert names == ["len"] * 20 + ["and 30 more"]


class Refuses:
    def __init__(self, error: type[Exception], added: int) -> None:
        self.error = error
        self.added = added

    def __getstate__(self) -> object:
        raise self.error("this is not to be pickled")


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_attributes_of_what_refuses_pickle_are_seen(error: type[Exception]) -> None:
    assert code_fingerprint([Refuses(error, 1)]) == code_fingerprint([Refuses(error, 1)])
    assert code_fingerprint([Refuses(error, 1)]) != code_fingerprint([Refuses(error, 2)])


@pytest.mark.parametrize("digested", [code_fingerprint, value_digest])
def test_threads_fingerprint_one_class_at_once(digested):
    """Python's parser is not made for that (python/cpython#106905), and a class is written to when it is looked at."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for _ in range(10):
                transforms = [many_methods()()]
                found = list(threads.map(digested, [transforms] * 8))
                assert found == found[:1] * 8
    finally:
        sys.setswitchinterval(before)


def many_methods() -> type:
    """A class that nobody has looked at."""

    class Many:
        def map(self, element):
            return self.first(element) + self.second(element)

        def first(self, element):
            return np.abs(element)

        def second(self, element):
            return np.sqrt(element)

    return Many


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.arange(200_000)[::-3],
        np.broadcast_to(np.arange(3), (70_000, 3)),
        np.asfortranarray(np.arange(600).reshape(20, 30)),
        np.float32(1.5),
        np.array(3),
        np.array([], np.int16),
        np.zeros((0, 3)),
        np.array(["2020-01-01", "NaT"], "datetime64[D]"),
        np.array([b"", b""], "S0"),
        np.array(["a", "bc"]),
        np.array([(1, 2.5)], [("a", "i1"), ("b", "f8")])[["b"]],
        np.arange(5).astype(ml_dtypes.bfloat16),
        np.arange(3, dtype=">i4"),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_an_array_counts_by_its_elements_in_their_order(array):
    assert hash_array(array) == hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.mark.parametrize("make", [lambda table: table, lambda table: table[:, ::2], lambda table: table.T])
def test_a_large_array_is_not_copied_to_be_looked_at(make):
    table = Holder(make(np.zeros((1000, 4000))))
    fingerprint(Holder(1))
    tracemalloc.start()
    try:
        fingerprint(table)
        assert tracemalloc.get_traced_memory()[1] < table.value.nbytes / 8
    finally:
        tracemalloc.stop()


def test_a_file_whose_text_is_another_programs_by_now_is_told_by_its_bytecode(tmp_path, monkeypatch):
    """Edited while it is in use: at the function's line a text begins that does not end, which Python cannot part."""
    path = tmp_path / "edited_meanwhile.py"
    path.write_text("CACHE = {}\n\n\ndef double(x):\n    CACHE[x] = 2 * x\n    return CACHE[x]\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("edited_meanwhile")
    path.write_text("# 1\n# 2\n# 3\nx = '''text\nwithout an end\n")
    linecache.checkcache(str(path))
    assert code_fingerprint([module.double]) == code_fingerprint([module.double])


class Holds:
    def __init__(self, held: Any) -> None:
        self.held = held

    def map(self, element: Any) -> Any:
        return element


class Scaled(dict[str, int]):
    scale = 1


class Word(str):
    weight = 1.0


class Mode(IntEnum):
    ONE = 1


class Other(IntEnum):
    UN = 1


def with_attribute(value: Any, name: str, of: Any) -> Any:
    setattr(value, name, of)
    return value


def plus(x: Any, y: Any = 1) -> Any:
    return x + y


def minus(x: Any, y: Any = 1) -> Any:
    return x - y


# Two values of which earlier releases told the same, and code makes something else.
UNSAID: dict[str, Callable[[], tuple[Any, Any]]] = {
    "index of a Series": lambda: (pd.Series([1, 2], index=["a", "b"]), pd.Series([1, 2], index=["b", "a"])),
    "name of a Series": lambda: (pd.Series([1], name="a"), pd.Series([1], name="b")),
    "columns of a DataFrame": lambda: (pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]})),
    "order of categories": lambda: (pd.Categorical(["a"], ["a", "b"]), pd.Categorical(["a"], ["b", "a"])),
    "ordered categories": lambda: (pd.Categorical(["a"]), pd.Categorical(["a"], ordered=True)),
    "columns of a Table": lambda: (pa.table({"a": [1]}), pa.table({"b": [1]})),
    "mask": lambda: (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "vectorize": lambda: (np.vectorize(lambda x: x + 1), np.vectorize(lambda x: x + 2)),
    "otypes": lambda: (np.vectorize(plus, otypes="f"), np.vectorize(plus, otypes="d")),
    "frompyfunc": lambda: (np.frompyfunc(lambda x: x + 1, 1, 1), np.frompyfunc(lambda x: x + 2, 1, 1)),
    "cmp_to_key": lambda: (functools.cmp_to_key(plus), functools.cmp_to_key(minus)),
    "method of a ufunc": lambda: (np.maximum.reduce, np.minimum.reduce),
    "default factory": lambda: (defaultdict(int), defaultdict(list)),
    "attribute of a dict": lambda: (Scaled(a=1), with_attribute(Scaled(a=1), "scale", 2)),
    "attribute of a str": lambda: (Word("a"), with_attribute(Word("a"), "weight", 2.0)),
    "enum": lambda: (Mode.ONE, Other.UN),
    "Struct": lambda: (struct.Struct("<H"), struct.Struct(">H")),
    "memoryview": lambda: (memoryview(b"a"), memoryview(b"b")),
    "view": lambda: ({"a": 1}.keys(), {"b": 1}.keys()),
    "tuple": lambda: ([0, 1], (0, 1)),
}


@pytest.mark.parametrize("name", UNSAID)
def test_what_earlier_releases_left_out_of_what_a_transform_holds_is_told_beside_it(name: str) -> None:
    one, other = UNSAID[name]()
    assert code_fingerprint([Holds(one)]) == code_fingerprint([Holds(copied(one))])

    def settings(value: Any) -> dict[str, Any]:
        return {"transforms": code_fingerprint([Holds(value)])}

    check_drift(settings(one), settings(one))
    with pytest.raises(DriftError, match=r"transforms\.(objects|kinds|bound)"):
        check_drift(settings(one), settings(other))
    of_earlier = {"transforms": {key: settings(one)["transforms"][key] for key in ("names", "digest", "held")}}
    check_drift(of_earlier, settings(other))


def copied(value: Any) -> Any:
    """Another object of the same, where there may be one."""
    with contextlib.suppress(Exception):
        return copy.deepcopy(value)
    return value


def test_a_file_in_memory_is_the_same_however_often_it_was_looked_at() -> None:
    for file in (io.BytesIO(b"abc"), io.StringIO("abc")):
        assert code_fingerprint([Holds(file)]) == code_fingerprint([Holds(file)])


def test_text_is_parsed_again_where_a_parser_in_another_thread_spoils_it(monkeypatch):
    """Python 3.11 has one count of levels for all threads, and a SystemError where two parse at once."""
    real, tries = ast.parse, iter([SystemError("AST constructor recursion depth mismatch")] * 2)

    def spoiled(*given):
        if (error := next(tries, None)) is not None:
            raise error
        return real(*given)

    monkeypatch.setattr(ast, "parse", spoiled)
    assert ast.unparse(parsed("x  =  1")) == "x = 1"
    tries = iter([SystemError("of another kind")] * 99)
    with pytest.raises(SystemError, match="of another kind"):
        parsed("x = 1")
