"""The fingerprint sees what a transform uses in its own package: code and data, and nothing of libraries."""

import contextlib
import importlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from datarax_ray.plan.fingerprint import DriftError, check_drift
from datarax_ray.plan.fingerprint import digest as digest_of
from datarax_ray.read.identity import telling
from datarax_ray.read.identity.code import code_fingerprint
from datarax_ray.read.identity.referenced_globals import used_by

MODULE = """
import functools
import json
from . import other
from .other import twice as doubled

SCALE = 2
TABLE = {"a": [1, 2]}
_CACHE = {}
UNUSED = 1
huge = list(range(20_000))


def f(e):
    return Adder().add(scaled(e)) + other.far(e) + [TABLE["a"] for _ in range(1)][0][0]


def scaled(e):
    return doubled(e) * SCALE + huge[0]


def unused(e):
    return e


@functools.lru_cache
def cached(e):
    _CACHE[e] = e
    return remembered(e)


def remembered(e):
    return other.deep(e) + len(_CACHE)


class Adder:
    def add(self, e):
        return e + other.OFFSET


class Uses:
    def map(self, e):
        return cached(e)


def goes_round(e):
    return comes_back(e - 1) if e else 0


def comes_back(e):
    return goes_round(e)


def writes(e):
    return json.dumps(e)
"""
OTHER = """
OFFSET = 1


def twice(e):
    return 2 * e


def far(e):
    return deep(e)


def deep(e):
    return e
"""


def digest(tmp_path, get: str = "f", module: str = MODULE, other: str = OTHER) -> str:
    """The digest of what a package of these two modules holds by a name."""
    return found(tmp_path, get, module, other)["digest"]


def found(tmp_path, get: str, module: str, other: str = OTHER) -> dict:
    """The fingerprint of it."""
    package = tmp_path / "package_of_a_user"
    package.mkdir(parents=True, exist_ok=True)
    for name, text in {"__init__": "", "steps": module, "other": other}.items():
        (package / f"{name}.py").write_text(textwrap.dedent(text))
    sys.path.insert(0, str(tmp_path))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        importlib.invalidate_caches()
        made = getattr(importlib.import_module("package_of_a_user.steps"), get)
        return code_fingerprint([made() if isinstance(made, type) else made])
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(tmp_path))
        for name in [name for name in sys.modules if name.startswith("package_of_a_user")]:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "other"),
    [
        (("SCALE = 2", "SCALE = 3"), None),
        (("[1, 2]", "[1, 3]"), None),
        (("doubled(e) *", "doubled(e) +"), None),
        (("range(20_000)", "range(20_001)"), None),
        (None, ("OFFSET = 1", "OFFSET = 2")),
        (None, ("2 * e", "3 * e")),
        (None, ("def deep(e):\n    return e", "def deep(e):\n    return -e")),
    ],
)
def test_what_a_function_uses_counts_however_far_it_is(tmp_path, module, other):
    base = digest(tmp_path / "a")
    changed = digest(tmp_path / "b", "f", MODULE.replace(*(module or ("", ""))), OTHER.replace(*(other or ("", ""))))
    assert changed != base


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNUSED = 1", "UNUSED = 2"),
        ("def unused(e):\n    return e", "def unused(e):\n    return 2 * e"),
        ("def scaled(e):\n", "# what it does\ndef scaled(e):\n    '''Scaled.'''\n\n"),
        ("_CACHE = {}", "_CACHE = {1: 1}"),
    ],
)
@pytest.mark.parametrize("get", ["f", "Uses"])
def test_what_it_does_not_use_comments_and_what_it_writes_to_change_nothing(tmp_path, get, old, new):
    assert digest(tmp_path / "a", get) == digest(tmp_path / "b", get, MODULE.replace(old, new))


def test_methods_are_followed_through_caches(tmp_path):
    changed = OTHER.replace("def deep(e):\n    return e", "def deep(e):\n    return -e")
    assert digest(tmp_path / "a", "Uses") != digest(tmp_path / "b", "Uses", other=changed)


def test_functions_that_call_each_other_end(tmp_path):
    assert digest(tmp_path, "goes_round") != digest(tmp_path, "comes_back")


def test_libraries_and_this_package_are_not_followed(tmp_path):
    import json

    import numpy as np

    from datarax_ray.read.decode import DecodeJson

    assert [used_by(code).reached for code in (json.dumps, np.fft.fft, DecodeJson)] == [[], [], []]
    assert digest(tmp_path, "writes")


DECORATED = """
import functools
from .other import twice


def logged(function):
    @functools.wraps(function)
    def around(e):
        return near(function(e) + 1)

    return around


def near(e):
    return twice(e)


@logged
def f(e):
    return e


@functools.cache
@logged
def cached(e):
    return e


def uses(e):
    return f(e)


class Method:
    @logged
    def map(self, e):
        return e


class Inherits(Method):
    pass


class Static:
    @staticmethod
    @logged
    def map(e):
        return e


class Uses:
    def map(self, e):
        return f(e)


class Held:
    def __init__(self):
        self.functions = [logged(twice)]

    def map(self, e):
        return self.functions[0](e)


around_a_library = logged(len)


def plain(e):
    return e
"""


@pytest.mark.parametrize(
    "get", ["f", "cached", "uses", "Method", "Inherits", "Static", "Uses", "Held", "around_a_library"]
)
@pytest.mark.parametrize(
    ("old", "new"),
    [("function(e) + 1", "function(e) + 2"), ("return twice(e)", "return -twice(e)"), ("2 * e", "3 * e")],
    ids=["body", "what it uses", "what that uses"],
)
def test_what_a_decorator_does_counts_beside_the_digest_that_earlier_states_have(tmp_path, get, old, new):
    base = found(tmp_path / "a", get, DECORATED)
    changed = found(tmp_path / "b", get, DECORATED.replace(old, new), OTHER.replace(old, new))
    assert base["wrappers"] != changed["wrappers"]
    again = found(tmp_path / "c", get, DECORATED.replace("return near", "# what it does\n        return near"))
    assert again == base
    assert "wrappers" not in found(tmp_path / "d", "plain", DECORATED)


METHODS = """
import functools

FACTOR = 2


def times(by):
    def around(f):
        WRAP
        def wrapper(self, e):
            return f(self, e) * by + 1
        return wrapper
    return around


class Base:
    def help(self, e):
        return e


class H(Base):
    @times(FACTOR)
    def map(self, e):
        return super().help(self.gain(e))

    @property
    def size(self):
        return 1

    def gain(self, e, by=FACTOR):
        return e

    class Inner:
        def go(self, e):
            return e


class Other:
    def gain(self, e):
        return 5


def other(self, e=None, k=3):
    return k


def made(by):
    def gain(self, e):
        return e * by
    return gain


def class_of(by, function=other):
    class Made:
        def map(self, e):
            return function(e, by)
    return Made


h = H()
"""


@pytest.mark.parametrize("wrap", ["pass", "@functools.wraps(f)"])
@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("FACTOR = 2", "FACTOR = 3", ""),
        ("* by + 1", "* by + 2", ""),
        ("", "", "H.gain = other"),
        ("", "", "H.gain = Other.gain"),
        ("", "", "H.gain = lambda self, e: e"),
        ("", "", "H.gain = made(2)"),
        ("", "", "H.gain = staticmethod(sum)\nH.gain = staticmethod(made(1))"),
        ("", "", "H.gain = functools.partialmethod(other, k=9)"),
        ("", "", "H.size = property(other)"),
        ("", "", "Base.help = other"),
        ("k=3", "k=4", "H.gain = other"),
        ("return k", "return -k", "H.gain = other"),
        ("", "", "H.gain.__defaults__ = (7,)"),
        ("", "", "H.Inner.go = other"),
        ("", "", "H.Inner.go.__code__ = Other.gain.__code__"),
    ],
)
def test_methods_that_a_decorator_made_or_that_were_set_count(
    tmp_path, wrap: str, old: str, new: str, change: str
) -> None:
    text = METHODS.replace("WRAP\n", f"{wrap}\n")
    base = text + (change if old else "")
    assert found(tmp_path / "a", "h", base) == found(tmp_path / "b", "h", base)
    changed = found(tmp_path / "c", "h", (text.replace(old, new) if old else text) + change)
    before = found(tmp_path / "d", "h", text if change and not old else base)
    assert changed != before
    assert changed["digest"] == before["digest"], "which states of earlier releases have"


BESIDE = """
OFFSET = 3
COUNTS = {}


class Gain:
    by = 5

    def of(self, e):
        COUNTS[e] = 1
        return e * self.by


def scale(e):
    return e * 2 + Gain().of(e) + OFFSET


def unused(e):
    return e
"""


@pytest.mark.parametrize(
    "how",
    [
        "from beside import scale\ndef f(e):\n    return scale(e)",
        "import beside as b\ndef f(e):\n    return b.scale(e)",
        "import beside\nclass f:\n    def map(self, e):\n        return beside.scale(e)",
        "import beside\ndef h(e):\n    return beside.scale(e)\ndef f(e):\n    return h(e)",
    ],
)
def test_modules_beside_the_transforms_count(tmp_path, how: str) -> None:
    """As those of a script's own folder, which are of no package."""

    def told(name: str, text: str) -> dict:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "beside.py").write_text(text)
        (folder / "script.py").write_text(how)
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            importlib.invalidate_caches()
            made = importlib.import_module("script").f
            return code_fingerprint([made() if isinstance(made, type) else made])
        finally:
            sys.dont_write_bytecode = before
            sys.path.remove(str(folder))
            del sys.modules["script"], sys.modules["beside"]

    base = told("base", BESIDE)
    for number, (old, new) in enumerate(
        [("e * 2", "e * 3"), ("e * self.by", "e * -self.by"), ("OFFSET = 3", "OFFSET = 4"), ("by = 5", "by = 6")]
    ):
        changed = told(f"changed{number}", BESIDE.replace(old, new))
        assert changed["bound"] != base["bound"]
        assert changed["digest"] == base["digest"], "which states of earlier releases have"
        with pytest.raises(DriftError, match=r"transforms\.bound\."):
            check_drift({"transforms": base}, {"transforms": changed})
    assert told("unused", BESIDE.replace("return e\n", "return -e\n").replace("COUNTS = {}", "COUNTS = {1: 2}")) == base


def test_what_a_class_that_a_function_makes_holds_counts(tmp_path) -> None:
    made = ["class_of(2)()", "class_of(3)()", "class_of(2, made)()", "class_of(2, Other)()"]
    each = [
        found(tmp_path / str(index), "h", f"{METHODS.replace('WRAP', '')}h = {text}") for index, text in enumerate(made)
    ]
    assert len({str(one["bound"]) for one in each}) == len(made)
    assert len({one["digest"] for one in each}) == 1


def test_what_methods_hold_by_a_decorator_is_told_apart(tmp_path) -> None:
    first, second = (
        found(tmp_path / str(by), "h", f"{METHODS.replace('WRAP', 'pass')}H.gain = made({by})") for by in (2, 3)
    )
    assert [name for name in first["bound"] if first["bound"][name] != second["bound"][name]] == [
        "package_of_a_user.steps.H.gain.by"
    ]


SETTINGS = """
import argparse
import functools
from dataclasses import dataclass
from types import SimpleNamespace

SCALE = 2
args = argparse.Namespace(scale=2, output="a")
nested = SimpleNamespace(data=SimpleNamespace(scale=2))


@dataclass(slots=True)
class Config:
    scale: int = 0
    cache: object = None

    @property
    def scaled(self):
        raise AssertionError("looking runs nothing")


class Dynamic:
    def __getattr__(self, name):
        if name in {"scale": 2}:
            return {"scale": 2}[name]
        raise AttributeError(name)


class Dict(dict):
    __getattr__ = dict.__getitem__


class Static:
    pass


Static.scale = 2
config = Config(2)
dynamic = Dynamic()
dict_with_attributes = Dict(scale=2)


def times(n):
    def multiply(e):
        return e * n

    return multiply


def default(e, n=SCALE):
    return e * n


twice = times(2)


class Times:
    def __init__(self, n):
        self.n = n

    def __call__(self, e):
        return e * self.n


called = Times(2)
partly = functools.partial(default, n=2)


def of_args(e):
    return e * args.scale


def of_nested(e):
    return e * nested.data.scale


def of_config(e):
    return e * config.scale


def of_dynamic(e):
    return e * dynamic.scale


def of_dict(e):
    return e * dict_with_attributes.scale


def of_static(e):
    return e * Static.scale


def of_closure(e):
    return twice(e)


def of_default(e):
    return default(e)


def of_object(e):
    return called(e)


def of_partial(e):
    return partly(e)


class OfArgs:
    def map(self, e):
        return e * args.scale


def caches(e):
    config.cache = e
    config.cache.append(e)
    return config.cache, config.scaled


def calls_itself(e):
    return back(e)


def closes_over(function):
    def back(e):
        return function(e)

    return back


back = closes_over(calls_itself)


def remembering():
    table = {}
    gone = 1
    del gone

    def remembered(e, last={}):
        table[e] = last["e"] = e
        return gone if e is None else table

    return remembered


remembered = remembering()


def remembers(e):
    return remembered(e)


class Logger:
    def __init__(self, every):
        self.count, self.last, self.every, self.seen = 0, 1.5, every, {"a", "b"}

    def __call__(self, e):
        self.last += 1
        self.note(e)

    def note(self, e):
        self.count += self.every
        self.seen.add(e)


log = Logger(2)
stats = Logger(2)


def logs(e):
    log(e)
    stats.note(e)
    return e if stats.count % 100 else None


def fill():
    log(1)
    stats.note(2)
    other.numbers.count += 1
    counted(3)


def counting():
    number = 0

    def count(e):
        nonlocal number
        number += 1

    return count


counted = counting()


def of_nonlocal(e):
    return counted(e)


def of_module(e):
    other.numbers.count += 1
    return other.numbers.count
"""
COUNTED = (
    OTHER
    + """
from types import SimpleNamespace

numbers = SimpleNamespace(count=0)
"""
)


@pytest.mark.parametrize("get", ["logs", "of_nonlocal", "of_module"])
def test_what_objects_write_to_themselves_does_not_count(tmp_path, get):
    module = SETTINGS.replace("import argparse", "import argparse\nfrom . import other")
    base = found(tmp_path / "a", get, module, COUNTED)
    assert found(tmp_path / "b", get, f"{module}\n\nfill()\n", COUNTED) == base
    if get == "logs":
        changed = found(tmp_path / "c", get, module.replace("log = Logger(2)", "log = Logger(3)"), COUNTED)
        assert changed["used"] != base["used"]


def test_a_set_of_functions_and_of_sets_is_the_same_in_every_process(tmp_path):
    module = f"{SETTINGS}\n\nargs.scale = {{times, default, frozenset('abc')}}\n"
    assert found(tmp_path / "a", "of_args", module) == found(tmp_path / "b", "of_args", module)


STRANGE = """
import inspect


class Config:
    def __init__(self, **items):
        self.__dict__["items"] = items

    def __getattr__(self, name):
        return self.__dict__["items"][name]  # KeyError


class Tensor:
    def __init__(self, *values):
        self.values, self.shape = values, (len(values),)

    def __array__(self, *args, **named):
        raise RuntimeError("Can't call numpy() on a tensor that requires grad")


class Model:
    def __init__(self, *values):
        self.weights = Tensor(*values)

    def __call__(self, e):
        return e


config = Config(scale=2)
model = Model(1, 2)


def scaled(e, by=config, n=1):
    return e


scaled.__signature__ = inspect.Signature()


def f(e):
    return model(scaled(e * config.scale))
"""


def test_objects_that_answer_no_question_are_told_all_the_same(tmp_path):
    base = found(tmp_path / "a", "f", STRANGE)
    for number, (old, new) in enumerate([("scale=2", "scale=3"), ("Model(1, 2)", "Model(1, 3)"), ("n=1", "n=2")]):
        assert found(tmp_path / str(number), "f", STRANGE.replace(old, new))["used"] != base["used"]
    assert found(tmp_path / "b", "f", STRANGE) == base


@pytest.mark.parametrize(
    "get",
    [
        "of_args",
        "of_nested",
        "of_config",
        "of_dynamic",
        "of_static",
        "of_closure",
        "of_default",
        "of_object",
        "of_partial",
        "OfArgs",
    ],
)
def test_settings_that_a_transform_reads_of_objects_closures_and_defaults_count(tmp_path, get):
    changed = (
        SETTINGS.replace("scale=2", "scale=3")
        .replace("Config(2)", "Config(3)")
        .replace('{"scale": 2}', '{"scale": 3}')
        .replace("Static.scale = 2", "Static.scale = 3")
        .replace("times(2)", "times(3)")
        .replace("Times(2)", "Times(3)")
        .replace("n=2)", "n=3)")
        .replace("SCALE = 2", "SCALE = 3")
    )
    base, other = found(tmp_path / "a", get, SETTINGS), found(tmp_path / "b", get, changed)
    assert base["digest"] == other["digest"]  # which the states of earlier releases have
    assert base["used"] != other["used"]
    unread = SETTINGS.replace('output="a"', 'output="b"')
    assert found(tmp_path / "c", get, unread) == base
    with pytest.raises(DriftError, match=r"transforms\.used\..*Set the old value"):
        check_drift({"transforms": base}, {"transforms": other})
    check_drift({"transforms": {name: value for name, value in base.items() if name != "used"}}, {"transforms": other})


def test_what_it_writes_to_of_objects_does_not_count_and_looking_runs_nothing(tmp_path):
    assert "used" not in found(tmp_path / "a", "caches", SETTINGS)
    filled = SETTINGS.replace("table = {}", "table = {1: 1}").replace("last={}", "last={2: 2}")
    base, other = found(tmp_path / "b", "remembers", SETTINGS), found(tmp_path / "c", "remembers", filled)
    assert base.get("used") == other.get("used")


def test_functions_that_close_over_each_other_end(tmp_path):
    assert found(tmp_path, "calls_itself", SETTINGS)["used"]


def test_a_dict_that_has_its_items_as_attributes_is_data(tmp_path):
    changed = SETTINGS.replace("Dict(scale=2)", "Dict(scale=3)")
    assert found(tmp_path / "a", "of_dict", SETTINGS)["digest"] != found(tmp_path / "b", "of_dict", changed)["digest"]


LATER = """
import datetime
import re
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from . import other

pattern, price, part, day = re.compile("a+"), Decimal("1.5"), Fraction(1, 3), datetime.date(2026, 1, 2)
here, words = Path(__file__).parent, Path("/data/words")


class Mode(Enum):
    FAST = 1
    FINE = 2


@dataclass(frozen=True)
class Config:
    scale: int = 2
    output: str = "a"
    scratch: Path = Path("/tmp/a")


config, holder, mode = Config(), SimpleNamespace(pattern=pattern, scratch=Path("/tmp/a")), Mode.FAST
began = datetime.datetime(2026, 1, 2, 3, 4)


def times(e, config):
    return e * config.scale


def of_pattern(e):
    return pattern.sub("", e)


def of_price(e):
    return e * price


def of_part(e):
    return e * part


def of_day(e):
    return (day - e).days


def of_mode(e):
    return mode is Mode.FINE


def of_words(e):
    return words / e


def of_here(e):
    return here / e


def of_began(e):
    return began - e


def of_scratch(e):
    return holder.scratch / e


def of_held(e):
    return holder.pattern.sub("", e)


def of_config(e):
    return times(e, config)


def of_one_field(e):
    return e * config.scale


def of_module(e):
    return other.limit - e


class Base:
    scale = 2
    root = str(here)


class OfClassScratch:
    def map(self, e):
        return self.scratch / e


OfClassScratch.scratch = Path("/tmp/a")


class OfRoot(Base):
    def map(self, e):
        return self.root + e


class OfClass(Base):
    def map(self, e):
        return e * self.scale


class Overrides(OfClass):
    scale = 2


class Sets(Base):
    def map(self, e):
        self.scale += 1
        return self.scale


def unread(e):
    return e
"""
LATER_OTHER = """
import datetime

OFFSET = 1
limit = datetime.timedelta(1)


def twice(e):
    return e
"""
KINDS = ["pattern", "price", "part", "mode", "held", "config", "module"]


@pytest.mark.parametrize("get", [*(f"of_{kind}" for kind in KINDS), "OfClass", "Overrides"])
def test_settings_of_more_types_and_attributes_of_the_class_count(tmp_path, get):
    changed = (
        LATER.replace('"a+"', '"b+"')
        .replace('"1.5"', '"1.6"')
        .replace("1, 3)", "1, 4)")
        .replace("2026, 1, 2", "2026, 1, 3")
        .replace(", Mode.FAST", ", Mode.FINE")
        .replace("/data/words", "/data/other")
        .replace("config, holder, mode = Config()", "config, holder, mode = Config(3)")
    )
    changed = f"{changed}\n\nBase.scale = Overrides.scale = 3\n"
    base = found(tmp_path / "a", get, LATER, LATER_OTHER)
    other = found(tmp_path / "b", get, changed, LATER_OTHER.replace("delta(1)", "delta(2)"))
    assert base["digest"] == other["digest"], "which the states of earlier releases have"
    assert base["settings"] != other["settings"]
    assert found(tmp_path / "c", get, LATER, LATER_OTHER) == base
    with pytest.raises(DriftError, match=r"transforms\.settings\..*Set the old value"):
        check_drift({"transforms": base}, {"transforms": other})
    earlier = {name: value for name, value in base.items() if name != "settings"}
    check_drift({"transforms": earlier}, {"transforms": other})


@pytest.mark.parametrize("get", ["of_day", "of_began", "of_words", "of_scratch", "of_config", "OfClassScratch"])
def test_paths_and_times_that_are_others_on_every_host_and_day_are_told_of_and_not_refused(tmp_path, get):
    changed = (
        LATER.replace("2026, 1, 2", "2026, 1, 3").replace("/data/words", "/data/other").replace("/tmp/a", "/tmp/b")
    )
    base, other = found(tmp_path / "a", get, LATER, LATER_OTHER), found(tmp_path / "b", get, changed, LATER_OTHER)
    assert base["places"] != other["places"]
    assert {**base, "places": 0} == {**other, "places": 0}
    (name,) = base["places"]
    (said,) = check_drift({"transforms": base}, {"transforms": other})
    assert said.startswith(f"transforms.places.{name}: the checkpoint was written with ")
    assert check_drift({"transforms": base}, {"transforms": base}) == []
    unread = found(tmp_path / "c", "unread", LATER, LATER_OTHER)
    assert len(check_drift({"transforms": unread | {"places": base["places"]}}, {"transforms": unread})) == 1
    # a state of when they were settings
    earlier = {key: value for key, value in base.items() if key != "places"} | {"settings": base["places"]}
    if get != "of_config":
        assert check_drift({"transforms": earlier}, {"transforms": base}) == []
        assert len(check_drift({"transforms": earlier}, {"transforms": other})) == 1


@pytest.mark.parametrize("get", ["of_one_field", "Sets", "unread"])
def test_what_is_not_read_whole_or_is_written_to_is_no_setting(tmp_path, get):
    assert "settings" not in found(tmp_path, get, LATER, LATER_OTHER)


@pytest.mark.parametrize("get", ["of_here", "OfRoot"])
def test_a_path_to_the_code_is_the_same_in_another_folder(tmp_path, get):
    assert found(tmp_path / "a", get, LATER, LATER_OTHER) == found(tmp_path / "b", get, LATER, LATER_OTHER)


# As they were before byte code was read in one place: states hold them.
PINNED = {
    "f": "7c56e35f5511ddae",
    "Uses": "5f8cb2a17e50b27c",
    "goes_round": "c8c66e56a8d5fa23",
    "uses": "a9fdfbdd78cf1f9c",
    "Held": "b3e661eb3ae15c5d",
    "of_nested": "abb6cc30c291f2db",
    "of_dict": "8c9725440d041448",
    "of_static": "3b64598890993daa",
    "of_closure": "6c855eaf5894f2b2",
    "of_default": "b6e9aaa030f3fc2d",
    "of_object": "f7c4a1a68915ff51",
    "of_partial": "97faf06f9fa8a51a",
    "OfArgs": "0e8ff970cd56674d",
    "caches": "61f7f5af5a1dc04a",
    "logs": "8fdefe42bff7c800",  # without stats, of which a method alone is called
    "of_pattern": "f8130da673444d95",
    "of_mode": "6735228b24a5e9a4",
    "of_held": "c0a463dfc00fc09d",
    "of_config": "46f7696072e652ce",
    "of_module": "263d6ceb1f5accdb",
    "OfClass": "585a605b77f0bab3",
    "Overrides": "222e191613231bbc",
    "Sets": "9423e80ffb25e94b",
}
MODULES = {"f Uses goes_round": MODULE, "uses Held": DECORATED}
MODULES |= {"of_nested of_dict of_static of_closure of_default of_object of_partial OfArgs caches logs": SETTINGS}
MODULES |= {"of_pattern of_mode of_held of_config of_module OfClass Overrides Sets": LATER}


@pytest.mark.parametrize(("get", "module"), [(name, text) for names, text in MODULES.items() for name in names.split()])
def test_fingerprints_are_those_that_states_hold(tmp_path, get, module):
    other = LATER_OTHER if module is LATER else OTHER
    fingerprint = found(tmp_path, get, module, other)
    for later in ("bound", "kinds", "modules", "libraries", "tables", "objects", "unsaid", "parts", "told", "rest"):
        fingerprint.pop(later, None)
    assert digest_of(fingerprint) == PINNED[get]


BOUND = """
import array
import functools
import struct
from collections import ChainMap, deque
from math import floor as rounded
from types import MappingProxyType
from zoneinfo import ZoneInfo

import numpy as np


class Tokens:
    def __init__(self, lower, path):
        self.lower, self.path, self.count = lower, path, 0

    @property
    def kind(self):
        return self.lower

    def encode(self, e):
        self.count += 1
        return self.joined(e) if self.lower else e

    def joined(self, e):
        return e + self.path

    def unread(self, e):
        return e


tokens, reduced, most, cut, ids = Tokens(1, "a"), np.mean, max, slice(0, 1), range(3)
queue, chain, table, numbers = deque([1, 2]), ChainMap({1: 2}), MappingProxyType({1: 2}), array.array("d", [1])
packed, zone, raw = struct.Struct("<i"), ZoneInfo("UTC"), bytearray(b"ab")


@np.vectorize
def doubled(x):
    return x * 2


@functools.singledispatch
def kinds(e):
    return e


@kinds.register
def _(e: float):
    return e * 5


def of_method(e): return tokens.encode(e)
def of_property(e): return tokens.kind
def of_reduced(e): return reduced(e)
def of_most(e): return most(e)
def of_rounded(e): return rounded(e)
def of_cut(e): return e[cut]
def of_ids(e): return ids
def of_queue(e): return queue[0]
def of_chain(e): return chain[e]
def of_table(e): return table[e]
def of_numbers(e): return numbers[e]
def of_raw(e): return raw[e]
def of_packed(e): return packed.pack(e)
def of_zone(e): return zone
def of_doubled(e): return doubled(e)
def of_kinds(e): return kinds(e)
def of_nothing(e): return tokens.unread(e)


class OfMethod:
    def map(self, e):
        return tokens.encode(e)
"""
BOUND_CHANGES = {
    "of_method": ('Tokens(1, "a")', 'Tokens(0, "a")'),
    "of_method ": ("e + self.path", "self.path + e"),
    "OfMethod": ('Tokens(1, "a")', 'Tokens(1, "b")'),
    "of_property": ('Tokens(1, "a")', 'Tokens(0, "a")'),
    "of_reduced": ("np.mean", "np.sum"),
    "of_most": ("max, slice", "min, slice"),
    "of_rounded": ("floor as", "ceil as"),
    "of_cut": ("slice(0, 1)", "slice(0, 2)"),
    "of_ids": ("range(3)", "range(4)"),
    "of_queue": ("[1, 2]", "[1, 3]"),
    "of_chain": ("ChainMap({1: 2})", "ChainMap({1: 3})"),
    "of_table": ("Type({1: 2})", "Type({1: 3})"),
    "of_numbers": ('"d", [1]', '"d", [2]'),
    "of_raw": ('b"ab"', 'b"ac"'),
    "of_packed": ('"<i"', '">i"'),
    "of_zone": ('"UTC"', '"Europe/Rome"'),
    "of_doubled": ("x * 2", "x * 3"),
    "of_kinds": ("e * 5", "e * 6"),
}


@pytest.mark.parametrize("case", BOUND_CHANGES)
def test_what_names_stand_for_counts(tmp_path, case):
    get = case.strip()
    base = found(tmp_path / "a", get, BOUND)
    other = found(tmp_path / "b", get, BOUND.replace(*BOUND_CHANGES[case]))
    assert {**base, "bound": 0} == {**other, "bound": 0}, "which the states of earlier releases have"
    assert base["bound"] != other["bound"]
    assert found(tmp_path / "c", get, BOUND) == base
    with pytest.raises(DriftError, match=r"transforms\.bound\..*Set the old value"):
        check_drift({"transforms": base}, {"transforms": other})
    earlier = {name: value for name, value in base.items() if name != "bound"}
    check_drift({"transforms": earlier}, {"transforms": other})


def test_what_a_method_does_not_read_or_counts_itself_does_not_count(tmp_path):
    base = found(tmp_path / "a", "of_nothing", BOUND)
    assert found(tmp_path / "b", "of_nothing", BOUND.replace('Tokens(1, "a")', 'Tokens(0, "b")')) == base
    counted = found(tmp_path / "c", "of_method", f"{BOUND}\n\ntokens.encode('e')\n")
    assert counted == found(tmp_path / "d", "of_method", BOUND)


AROUND = """
import operator
import uuid
from dataclasses import dataclass

import jax.numpy as jnp

STEP = 1


class Tokenizer:
    def __init__(self, unk):
        self.unk = unk

    def encode(self, e):
        return self.shifted(e) + self.unk

    def shifted(self, e):
        return e + STEP


class Plus:
    def __init__(self, inside):
        functools.update_wrapper(self, inside)

    def __call__(self, e):
        return self.__wrapped__(e) + 1


@dataclass(frozen=True)
class Config:
    scale: int = 2

    def apply(self, e):
        return e * self.scale


class Vocabulary(dict):
    def __missing__(self, word):
        return 7


class Looks:
    def __init__(self, words):
        self.words = words

    def map(self, e):
        return self.words[e]


LOOKS = Looks(Vocabulary(the=1))


class Shift:
    def __get__(self, owner, kind=None):
        return 1


class Shifts:
    shift = Shift()

    def map(self, e):
        return e + self.shift


import functools

encode = Tokenizer(unk=1).encode
CONFIG = Config()
WEIGHTS = jnp.arange(3.0) + 1
GET = operator.itemgetter("x")
SPACE = uuid.UUID(int=1)


@Plus
def double(e):
    return 2 * e


def work(config, e):
    return config.apply(e)


def f(e):
    return encode(e), double(e), work(CONFIG, e), WEIGHTS[0], GET(e), SPACE
"""


@pytest.mark.parametrize(
    ("get", "part", "old", "new"),
    [
        ("f", "bound", "unk=1", "unk=2"),
        ("f", "bound", "self.shifted(e) +", "self.shifted(e) -"),
        ("f", "bound", "return e + STEP", "return e - STEP"),
        ("f", "wrappers", "__wrapped__(e) + 1", "__wrapped__(e) + 2"),
        ("f", "bound", "e * self.scale", "e + self.scale"),
        ("f", "bound", "arange(3.0) + 1", "arange(3.0) + 2"),
        ("f", "bound", 'itemgetter("x")', 'itemgetter("y")'),
        ("f", "bound", "UUID(int=1)", "UUID(int=2)"),
        ("Shifts", "bound", "return 1", "return 2"),
        ("LOOKS", "bound", "return 7", "return 8"),
    ],
)
def test_bound_methods_objects_around_functions_descriptors_and_containers_count(tmp_path, get, part, old, new):
    assert AROUND.count(old) == 1
    first, other = found(tmp_path / "a", get, AROUND), found(tmp_path / "b", get, AROUND.replace(old, new))
    assert first[part] != other[part]
    later = {part: 0, "unsaid": 0, "beneath": 0, "rest": 0}
    assert {**first, **later} == {**other, **later}, "as states of earlier releases have it"
    assert found(tmp_path / "c", get, AROUND) == first


BEHIND = """
from dataclasses import dataclass

STOP = 2
FAR = 3


def norm(e):
    return e + FAR


def convert(e):
    return e + 11


def halved(e):
    return e / 22


class Base:
    SIZE = 4


class Tokenizer(Base):
    KIND = 5

    def __init__(self, offset):
        self.offset = offset
        self.count = 0

    def encode(self, e):
        self.count += 1
        return norm(e) * STOP + self.KIND + self.SIZE + self.offset

    @classmethod
    def of_class(cls, e):
        return e * cls.KIND + cls.helper(e)

    @staticmethod
    def helper(e):
        return convert(e) + 33

    def unused(self, e):
        return halved(e) + 44


@dataclass(frozen=True)
class Config:
    scale: int = 2

    def apply(self, e):
        return convert(e) * self.scale


class Shift:
    def __get__(self, owner, kind=None):
        return convert(1)


class Shifts:
    shift = Shift()

    def map(self, e):
        return e + self.shift


tokenizer = Tokenizer(6)
encode = tokenizer.encode
of_class = Tokenizer.of_class
CONFIG = Config()


def work(config, e):
    return config.apply(e)


def by_name(e):
    return tokenizer.encode(e)


def bound(e):
    return encode(e)


def bound_to_class(e):
    return of_class(e)


def handed_on(e):
    return work(CONFIG, e)


def direct(e):
    return CONFIG.apply(e)
"""


@pytest.mark.parametrize(
    ("get", "olds"),
    [
        ("by_name", ["STOP = 2", "FAR = 3", "SIZE = 4", "KIND = 5", "Tokenizer(6)", "e + FAR"]),
        ("bound", ["STOP = 2", "FAR = 3", "SIZE = 4", "KIND = 5", "Tokenizer(6)", "e + FAR"]),
        ("bound_to_class", ["KIND = 5", "e + 11", "+ 33", "e * cls.KIND"]),
        ("handed_on", ["e + 11", "scale: int = 2"]),
        ("direct", ["e + 11", "scale: int = 2"]),
        ("Shifts", ["e + 11"]),
    ],
)
def test_what_methods_of_objects_and_descriptors_use_counts_however_far_it_is(tmp_path, get, olds):
    first = found(tmp_path / "a", get, BEHIND)
    for number, old in enumerate(olds):
        assert BEHIND.count(old) == 1
        changed = BEHIND.replace(old, old.replace("e ", "1 + e ") if old[0] == "e" else old.translate(NEXT))
        assert found(tmp_path / f"b{number}", get, changed) != first, old
    moved = BEHIND.replace("STOP = 2", "# moved\n\nSTOP = 2").replace("def unused", "def unused_now")
    assert found(tmp_path / "c", get, moved.replace("e / 22", "e / 23").replace("+ 44", "+ 45")) == first


NEXT = str.maketrans("123456", "234567")


def test_an_object_at_module_level_that_was_used_is_the_same(tmp_path):
    used = found(tmp_path / "a", "by_name", f"{BEHIND}\n\ntokenizer.encode(1)\n")
    assert used == found(tmp_path / "b", "by_name", BEHIND)


def test_an_nnx_module_is_the_same_once_it_went_through_jit():
    """nnx.jit gives its attributes back in the order of their names."""

    class Scales(nnx.Module):
        def __init__(self):
            self.z = 1
            self.inner = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

    module = Scales()
    before = code_fingerprint([module])
    nnx.jit(lambda module, x: module.inner(x))(module, np.ones((1, 3), np.float32))
    assert code_fingerprint([module]) == before
    module.z = 2
    assert code_fingerprint([module]) != before


APART = """
import math as m
import re

import numpy as np

table = np.arange(16).reshape(4, 4)
place = (0, 1)
look = {0: 5, 1: 6}.get
words = {f"w{i}": i for i in range(10_001)}
stops = set(range(10_001))
listed = [*range(10_001)]


class Held:
    def __init__(self):
        self.sub, self.take = re.compile("4").sub, table.take

    def map(self, e):
        return self.sub("9", e)


class Pairs:
    def __init__(self):
        self.pairs = {1: 2}

    def map(self, e):
        return self.pairs[e]


def of_closure():
    get = "a,b".split
    return lambda e: get(e)


split = of_closure()
def of_place(e): return table[place]
def of_look(e): return look(e)
def of_alias(e): return m.sqrt(e)
def of_words(e): return words[e]
def of_stops(e): return e in stops
def of_listed(e): return listed[e]
"""
APART_CHANGES = {
    "Held": ('compile("4")', 'compile("5")', "bound"),
    "Held ": ("arange(16)", "arange(1, 17)", "bound"),
    "Pairs": ("{1: 2}", "[[1, 2]]", "kinds"),
    "split": ('"a,b"', '"a,c"', "bound"),
    "of_place": ("(0, 1)", "[0, 1]", "kinds"),
    "of_look": ("1: 6", "1: 7", "bound"),
    "of_alias": ("import math as m", "import cmath as m", "modules"),
    "of_words": ('": i for', '": 10_000 - i for', "tables"),
    "of_stops": ("set(range(10_001))", "set(range(1, 10_002))", "tables"),
    "of_listed": ("[*range(10_001)]", "[*range(1, 10_002)]", "tables"),
}


@pytest.mark.parametrize("get", APART_CHANGES)
def test_what_the_digest_takes_for_the_same_is_told_beside_it(tmp_path, get):
    old, new, told = APART_CHANGES[get]
    assert APART.count(old) == 1
    before, again = (found(tmp_path / name, get.strip(), APART) for name in ("before", "again"))
    after = found(tmp_path / "after", get.strip(), APART.replace(old, new))
    assert before == again
    others = {key for key in before | after if before.get(key) != after.get(key)}
    assert others - {"digest", "libraries", "rest"} == {told}, (before, after)


def test_of_long_tables_that_run_code_or_have_addresses_the_length_counts(tmp_path):
    """A dataset of one's own would be read; an object without a repr is another one in every process."""
    lazy = "class Lazy(Sequence):\n  def __len__(self): return 10_001\n  def __getitem__(self, at): raise KeyError(at)"
    text = f"from collections.abc import Sequence\n{lazy}\nlazy = Lazy()\nodd = {{object() for _ in range(10_001)}}\n"
    text += "def of_lazy(e): return lazy[e]\ndef of_odd(e): return e in odd\n"
    for get in ("of_lazy", "of_odd"):
        assert found(tmp_path / "a", get, text) == found(tmp_path / "b", get, text)


def test_containers_in_sets_are_the_same_in_every_process(tmp_path):
    """Their order is another in each: what kinds are in them is left out."""
    text = "things = {frozenset({(1, (2,)), 'a', frozenset({3})}), frozenset({'b', (4,)})}\ndef of(e): return things\n"
    assert len(said_in_processes(tmp_path, text, "[m.of]", num_processes=3)) == 1


def said_in_processes(tmp_path, text: str, made: str, num_processes: int) -> set[bytes]:
    """The fingerprints of what is made of a module `m` of this text, in processes that hash otherwise."""
    (tmp_path / "hashed_by_a_user.py").write_text(text)
    program = (
        "import hashed_by_a_user as m; from datarax_ray.read.identity.code import code_fingerprint as f; "
        f"print(f({made}))"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    return {
        subprocess.check_output(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": str(seed)}
        )
        for seed in range(num_processes)
    }


@pytest.mark.parametrize("how", ["exec", "run_path", "spec"])
@pytest.mark.parametrize("change", [("1", "22"), ("+ v", "- v")])
def test_code_whose_module_is_not_kept_counts_as_any_other(tmp_path, how, change):
    text = "SCALE = 1\ndef helper(v): return SCALE + v\nclass Uses:\n    def map(self, e): return helper(e)\n"

    def read(text):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))  # or Python would find the former's byte code
        (path := folder / "plugin_of_a_user.py").write_text(text)
        if how == "run_path":
            names = runpy.run_path(str(path))
        elif how == "exec":
            exec(compile(text, "<cell>", "exec"), names := {"__name__": "cell"})
        else:
            spec = importlib.util.spec_from_file_location("plugin_of_a_user", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            names = vars(module)
        return [code_fingerprint([made])["digest"] for made in (names["helper"], names["Uses"]())]

    before, again, after = read(text), read(text), read(text.replace(*change))
    assert before == again
    assert all(one != other for one, other in zip(before, after, strict=True))


# What texts do not say: `value` comes from a module of its own, beside that of the transform. No package holds both.
UNSAID = {
    "a base": ("class T(base.Base): pass", "class Base:\n    def map(self, e): return e * @@\n"),
    "super": (
        "class T(base.Base):\n    def map(self, e): return super().map(e)",
        "class Base:\n    def map(self, e): return e * @@\n",
    ),
    "what an object of a class uses": (
        "class Lut:\n    def __init__(self): self.a = 1\n    def go(self, x): return base.k(x)\n"
        "class T:\n    lut = Lut()\n    def map(self, e): return self.lut.go(e)",
        "def other(x): return x * @@\ndef k(x): return other(x)\n",
    ),
    "a register": (
        "def T(): return base.f",
        "class Op:\n    all = {}\n    def __init_subclass__(cls, name): Op.all[name] = cls\n"
        "class Mul(Op, name='mul'):\n    def go(self, x): return x * @@\ndef f(e): return Op.all['mul']().go(e)\n",
    ),
    "namedtuple": (
        "def T(): return base.f",
        "from collections import namedtuple\nP = namedtuple('P', 'k', defaults=[@@])\ndef f(e): return e * P().k\n",
    ),
    "Enum": (
        "def T(): return base.f",
        "from enum import IntEnum\nM = IntEnum('M', {'A': @@})\ndef f(e): return e * M['A']\n",
    ),
    "a set of classes": (
        "class T:\n    def __init__(self): self.kinds = {base.Foo}\n"
        "    def map(self, e): return [kind().k() for kind in self.kinds]",
        "class Foo:\n    def k(self): return @@\n",
    ),
    "a set of long patterns": (
        "def T(): return base.f",
        "import re\nP = {re.compile('zz|' * 100 + '@@')}\ndef f(e): return [p.sub('', e) for p in P]\n",
    ),
}


@contextlib.contextmanager
def beside(tmp_path, steps: str, text: str):
    """The module of the transform, beside `base_of_a_user`."""
    tmp_path.mkdir()
    (tmp_path / "base_of_a_user.py").write_text(text)
    (tmp_path / "steps_of_a_user.py").write_text(f"import functools\nimport base_of_a_user as base\n{steps}\n")
    sys.path.insert(0, str(tmp_path))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        importlib.invalidate_caches()
        yield importlib.import_module("steps_of_a_user")
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(tmp_path))
        for name in ("base_of_a_user", "steps_of_a_user"):
            del sys.modules[name]


def told_of_values(tmp_path, steps: str, text: str):
    """Of a program and base_of_a_user beside it, as a state has it: with 2 in place of @@, the same again, with 3."""
    prints = []
    for folder, value in (("a", "2"), ("b", "2"), ("c", "3")):
        with beside(tmp_path / folder, steps.replace("@@", value), text.replace("@@", value)) as module:
            prints.append(json.loads(json.dumps(code_fingerprint([module.T()]))))
    return prints


@pytest.mark.parametrize("case", UNSAID)
def test_what_no_text_says_of_classes_and_functions_counts(tmp_path, case):
    steps, text = UNSAID[case]
    same, again, other = told_of_values(tmp_path, steps, text)
    assert same == again
    with pytest.raises(DriftError, match=r"transforms\.\w+"):
        check_drift({"transforms": same}, {"transforms": other})
    earlier = {name: value for name, value in same.items() if name != "unsaid"} | {"told": 1}
    assert check_drift({"transforms": earlier}, {"transforms": same}) == []
    none_then = {name: value for name, value in same.items() if name != "unsaid"}
    if "unsaid" in same:
        with pytest.raises(DriftError, match=r"transforms\.unsaid"):
            check_drift({"transforms": none_then}, {"transforms": same})


# What is reached as an attribute of a module: as it would be by `from base_of_a_user import go`.
BEYOND = {
    "an object that is called": "class S:\n    def __call__(self, e): return e * @@\ngo = S()\n",
    "what one holds": "class S:\n    def __init__(self, k): self.k = k\n    def __call__(self, e): return e * self.k\n"
    "go = S(@@)\n",
    "a partial": "def mul(e, k): return e * k\ngo = functools.partial(mul, k=@@)\n",
    "a bound method": "class S:\n    def run(self, e): return e * @@\ngo = S().run\n",
    "singledispatch": "@functools.singledispatch\ndef go(e): return 0\n@go.register\ndef _(e: int): return e * @@\n",
    "a decorator that is a class": "class deco:\n    def __init__(self, f): self.f = f\n"
    "    def __call__(self, e): return self.f(e)\n@deco\ndef go(e): return e * @@\n",
    "a method": "class S:\n    def run(self, e): return e * @@\n    def __call__(self, e): return e\ngo = S()\n",
    "what code there calls": "class S:\n    def __call__(self, e): return e * @@\n"
    "inner = S()\ndef go(e): return inner(e)\n",
    "a property": "class S:\n    k = property(lambda self: 0)\n    @property\n    def run(self): return @@\n"
    "    def __call__(self, e): return e\ngo = S()\n",
}


@pytest.mark.parametrize("case", BEYOND)
def test_what_is_reached_through_a_module_counts(tmp_path, case):
    steps = "def T(): return lambda e: (base.go(e), base.go.run if hasattr(base.go, 'run') else 0)"
    same, again, other = told_of_values(tmp_path, steps, f"import functools\n{BEYOND[case]}")
    assert same == again
    with pytest.raises(DriftError, match=r"transforms\.beyond\.base_of_a_user"):
        check_drift({"transforms": same}, {"transforms": other})
    earlier = {name: value for name, value in same.items() if name not in ("beyond", "libraries")} | {"told": 2}
    assert check_drift({"transforms": earlier}, {"transforms": other}) == []


# Of a module beside a script, in which functions and classes are used that are found by their names.
BESIDE_A_SCRIPT = {
    "a closure": "def make(k):\n    def go(e): return e * k\n    return go\ngo = make(@@)\n",
    "a default": "K = @@\ndef go(e, k=K): return e * k\ndel K\n",
    "a base class": "class Base:\n    def run(self, e): return e * @@\nclass S(Base): pass\n"
    "def go(e): return S().run(e)\n",
    "what a base class uses": "K = @@\nclass Base:\n    def run(self, e): return e * K\nclass S(Base): pass\n"
    "def go(e): return S().run(e)\n",
    "a closure of what is used there": "def make(k):\n    def f(e): return e * k\n    return f\nf = make(@@)\n"
    "def go(e): return f(e)\n",
    "a function that is held": "def f(e): return e * @@\ndef make(f):\n    def go(e): return f(e)\n    return go\n"
    "go = make(f)\n",
}


@pytest.mark.parametrize("steps", ["base.go(e)", "go(e)"])
@pytest.mark.parametrize("case", BESIDE_A_SCRIPT)
def test_what_functions_hold_and_classes_inherit_beside_a_script_counts(tmp_path, case, steps):
    steps = f"from base_of_a_user import go\ndef T(): return lambda e: {steps}"
    same, again, other = told_of_values(tmp_path, steps, f"import functools\n{BESIDE_A_SCRIPT[case]}")
    assert same == again
    with pytest.raises(DriftError, match=r"transforms\."):
        check_drift({"transforms": same}, {"transforms": other})
    earlier = {name: value for name, value in same.items() if name != "beneath"}
    assert {name: value for name, value in other.items() if name != "beneath"} == earlier


# Of the transform's own module.
OWN = {
    "a closure of what a local class uses": """
        def make(n):
            def keep(e): return e >= n
            class Filter:
                def filter(self, e): return keep(e)
            return Filter()
        def T(): return make(@@)""",
    "a default of what a local class uses": """
        def make(n):
            def keep(e, k=n): return e >= k
            class Filter:
                def filter(self, e): return keep(e)
            return Filter()
        def T(): return make(@@)""",
    "a slot that a method reads": """
        class Clip:
            __slots__ = ("hi",)
            def __init__(self, hi): self.hi = hi
            def clamp(self, v): return min(v, self.hi)
        CLIP = Clip(@@)
        def T(): return lambda e: CLIP.clamp(e)""",
    "a slot of a dataclass": """
        import dataclasses
        @dataclasses.dataclass(slots=True)
        class Clip:
            hi: int
            def clamp(self, v): return min(v, self.hi)
        CLIP = Clip(@@)
        def T(): return lambda e: CLIP.clamp(e)""",
    "what a cached property reads": """
        W = {"a": @@}
        class Weighted:
            @functools.cached_property
            def weight(self): return W["a"]
            def map(self, e): return e * self.weight
        def T(): return Weighted()""",
    "what a method reads that super() calls": """
        class Tokens:
            def __init__(self, by): self.by = by
            def encode(self, e): return e * self.by
        class WithEnd(Tokens):
            def encode(self, e): return super().encode(e) + 1
        TOKENS = WithEnd(@@)
        def T(): return lambda e: TOKENS.encode(e)""",
    "what a method reads that is called by its class's name": """
        class Tokens:
            def encode(self, e): return e * self.by
        class WithEnd(Tokens):
            __slots__ = ("by",)
            def encode(self, e): return Tokens.encode(self, e) + 1
        TOKENS = WithEnd()
        TOKENS.by = @@
        def T(): return lambda e: TOKENS.encode(e)""",
    "the text of what that calls of the object in turn": """
        class Tokens:
            def encode(self, e): return self.by(e)
            def by(self, e): return e
        class WithEnd(Tokens):
            def encode(self, e): return super().encode(e) + 1
            def by(self, e): return e * @@
        TOKENS = WithEnd()
        go = TOKENS.encode
        def T(): return lambda e: TOKENS.encode(e)""",
    "an attribute that this reads": """
        class Tokens:
            def encode(self, e): return self.by(e)
            def by(self, e): return e
        class WithEnd(Tokens):
            def __init__(self, k): self.k = k
            def encode(self, e): return super().encode(e) + 1
            def by(self, e): return e * self.k
        TOKENS = WithEnd(@@)
        def T(): return lambda e: TOKENS.encode(e)""",
    "a function that an object holds and calls": """
        class Rule:
            def __init__(self, fn): self.fn = fn
            def go(self, e): return self.fn(e) + 1
        RULE = Rule(lambda e: e * @@)
        def T(): return lambda e: RULE.go(e)""",
    "the text of what super() calls": """
        class Tokens:
            def encode(self, e): return e * @@
        class WithEnd(Tokens):
            def encode(self, e): return super().encode(e) + 1
        TOKENS = WithEnd()
        def T(): return lambda e: TOKENS.encode(e)""",
    "a function that a decorator holds": """
        def first(by):
            def deco(f):
                @functools.wraps(f)
                def around(e): return f(by(e))
                return around
            return deco
        def _g(e): return e
        g = first(lambda e: e * @@)(_g)
        def T(): return lambda e: g(e)""",
    "a function that an object holds": """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class Rule:
            go: object
        RULE = Rule(lambda e: e * @@)
        def T(): return lambda e: RULE.go(e)""",
    "what a function calls that a cached property calls": """
        def weight(): return @@
        class Weighted:
            @functools.cached_property
            def weight(self): return weight()
            def map(self, e): return e * self.weight
        def T(): return Weighted()""",
}


@pytest.mark.parametrize("case", OWN)
def test_what_stands_beneath_functions_that_are_told_by_their_text_counts(tmp_path, case):
    same, again, other = told_of_values(tmp_path, textwrap.dedent(OWN[case]), "")
    assert same == again
    with pytest.raises(DriftError, match=r"transforms\.beneath"):
        check_drift({"transforms": same}, {"transforms": other})
    earlier = {name: value for name, value in same.items() if name not in ("beneath", "parts")}
    assert check_drift({"transforms": earlier}, {"transforms": other}) == []


PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "steps-of-a-project"
version = "1"
[tool.hatch.build.targets.wheel]
packages = ["src/steps_of_a_project"]
"""
INSTALLED = """
import json
from datarax_ray.read.identity.code import code_fingerprint
from steps_of_a_project.steps import Scale
print(json.dumps(code_fingerprint([Scale()])))
"""


@pytest.mark.parametrize("from_wheel", [False, True])
def test_a_project_that_is_installed_among_libraries_is_still_its_own(tmp_path, from_wheel):
    """As `pip install .` does in an image: its helpers and constants decide the elements there, too."""
    scale = """
from importlib.resources import files
from steps_of_a_project.values import by
class Scale:
    def __init__(self): self.path = str(files("steps_of_a_project") / "vocabulary.txt")
    def map(self, e): return e * by()
"""
    project, prints = tmp_path / "project", []
    for number, value in enumerate((2, 2, 3)):
        for name, text in (
            ("pyproject.toml", PROJECT),
            ("src/steps_of_a_project/__init__.py", ""),
            ("src/steps_of_a_project/steps.py", scale),
            ("src/steps_of_a_project/values.py", f"BY = {value}\ndef by(): return BY\n"),
        ):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        where = tmp_path / str(number) / "site-packages"
        pip, how = [sys.executable, "-m", "pip"], ["-q", "--no-deps", "--no-build-isolation"]
        what = project
        if from_wheel:
            subprocess.run([*pip, "wheel", *how, "-w", tmp_path / f"wheel{number}", project], check=True)
            (what,) = (tmp_path / f"wheel{number}").glob("*.whl")
        subprocess.run([*pip, "install", *how, "--target", where, what], check=True)
        env = os.environ | {"PYTHONPATH": str(where)}
        said = subprocess.run([sys.executable, "-c", INSTALLED], env=env, capture_output=True, text=True, check=True)
        prints.append({"transforms": json.loads(said.stdout)})
    env = os.environ | {"PYTHONPATH": str(project / "src")}
    said = subprocess.run([sys.executable, "-c", INSTALLED], env=env, capture_output=True, text=True, check=True)
    same, again, other, checkout = *prints, {"transforms": json.loads(said.stdout)}
    assert check_drift(same, again) == []
    with pytest.raises(DriftError, match=r"transforms\.digest: number 0 \(Scale\)"):
        check_drift(same, other)
    assert "installed" not in checkout["transforms"]
    assert check_drift(other, checkout) == check_drift(checkout, other) == []
    with pytest.raises(DriftError, match=r"transforms\.digest"):
        check_drift(same, checkout)
    with pytest.raises(DriftError, match=r"transforms\.digest"):
        check_drift(checkout, same)
    earlier = {"transforms": {name: part for name, part in same["transforms"].items() if name != "installed"}}
    assert check_drift(earlier, same) == []


LIBRARIES = {
    "a series": "S = pandas.Series([1, @@], index=['a', 'b'])\ndef T(): return lambda e: S[e]",
    "the labels of a series": "S = pandas.Series([1, 2], index=['a', 'b@@'])\ndef T(): return lambda e: S[e]",
    "a frame that a class holds": """
        K = @@
        class Looks:
            TABLE = pandas.DataFrame({"a": [1, K], "b": ["x", "y"]})
            def map(self, e): return self.TABLE.loc[e]
        def T(): return Looks()""",
    "an array of Arrow": "A = pyarrow.array([1, @@])\ndef T(): return lambda e: A[e]",
    "a tensor": "import torch\nA = torch.tensor([1, @@])\ndef T(): return lambda e: e - A",
    "a tensor that NumPy has no type for": """
        import torch
        A = torch.tensor([1, @@], dtype=torch.bfloat16)
        def T(): return lambda e: e - A""",
    "a pattern": "import regex\nP = regex.compile('a{@@}')\ndef T(): return lambda e: P.findall(e)",
    "the method of a pattern": "import regex\nP = regex.compile('a{@@}').findall\ndef T(): return lambda e: P(e)",
    "the code of an object around a function": """
        class Around:
            def __init__(self, f): functools.update_wrapper(self, f); self.f = f
            def __call__(self, e): return self.f(e) * @@
        def go(e): return e
        def T(): return Around(go)""",
    "what objects around functions hold that a transform holds": """
        class Sometimes:
            def __init__(self, f, p): functools.update_wrapper(self, f); self.f, self.p = f, p
            def __call__(self, e): return self.f(e) * self.p
        def go(e): return e
        class Compose:
            def __init__(self, *steps): self.steps = steps
            def map(self, e): return [step(e) for step in self.steps]
        def T(): return Compose(Sometimes(go, 1), Sometimes(go, @@))""",
    "an object that has a name": """
        class Times:
            def __init__(self, k): self.__name__, self.k = "times", k
            def __call__(self, e): return e * self.k
        class Compose:
            def __init__(self, *steps): self.steps = steps
            def map(self, e): return [step(e) for step in self.steps]
        def T(): return Compose(Times(@@))""",
    "the argument of a partial method": """
        class Steps:
            def by(self, k, e): return k * e
            go = functools.partialmethod(by, @@)
        STEPS = Steps()
        def T(): return lambda e: STEPS.go(e)""",
    "the argument of a curried function": """
        import toolz
        @toolz.curry
        def f(k, e): return k * e
        def T(): return f(@@)""",
    "the code of a curried function": """
        import toolz
        @toolz.curry
        def f(k, e): return k * e * @@
        def T(): return f(1)""",
    "a function that is composed": """
        import toolz
        def a(e): return e
        def b(e): return e * @@
        def T(): return toolz.compose(b, a)""",
}


@pytest.mark.parametrize("case", LIBRARIES)
def test_what_libraries_hold_in_memory_and_objects_around_functions_count(tmp_path, case):
    text = textwrap.dedent(LIBRARIES[case])
    for library in ("torch", "regex", "toolz"):
        if f"import {library}" in text:
            pytest.importorskip(library)
    same, again, other = told_of_values(tmp_path, f"import pandas, pyarrow\n{text}", "")
    assert same == again
    with pytest.raises(DriftError, match=r"transforms\.values"):
        check_drift({"transforms": same}, {"transforms": other})
    earlier = {name: value for name, value in same.items() if name not in ("values", "parts")}
    assert check_drift({"transforms": earlier}, {"transforms": other}) == []


WHOLE = """
import argparse, functools, pandas, time
class Words:
    def __init__(self):
        self.words, self.by, self.began, self.seen = ["a", "b@@"], @@, time.time(), {}
        self.frame = pandas.DataFrame({"by": [1, @@]})
        self.inner, self.call = Inner(), functools.partial(times, @@)
    def __contains__(self, word): return word in self.words
    def __len__(self): return self.by
    def go(self, e): return self.note(e) * self.by
    def note(self, e): self.seen[e] = e; return e
    def look(self, e): return self.frame["by"][e]
    def deep(self, e): return self.inner.scaled(e)
    def __repr__(self): return f"since {self.began}"
class Inner:
    def __init__(self): self.table = pandas.Series([1, @@])
    def scaled(self, e): return self.table[e]
class Slotted:
    __slots__ = ("frame",)
    def __init__(self): self.frame = pandas.Series([1, @@])
    def look(self, e): return self.frame[e]
class Above:
    def look(self, e): return self.frame[e]
class Below(Above):
    def __init__(self): self.frame = pandas.Series([1, @@])
    def look(self, e): return super().look(e)
def times(by, e): return e * by
WORDS, SLOTTED, BELOW = Words(), Slotted(), Below()
ARGS = argparse.Namespace(scale=@@, out="runs/@@")
CONFIG = argparse.Namespace(data=argparse.Namespace(scale=@@))
def use(words, e): return words.go(e)
def scale(args, e): return e * args.scale
def nested(config, e): return e * config.data.scale
"""
WHOLES = {
    "a method that gets it": "lambda e: base.use(base.WORDS, e)",
    "a variable": "f",
    "in": "lambda e: e in base.WORDS",
    "len": "lambda e: len(base.WORDS)",
    "a namespace": "lambda e: base.scale(base.ARGS, e)",
    "a namespace inside": "lambda e: base.nested(base.CONFIG, e)",
    "a frame that a method reads": "lambda e: base.WORDS.look(e)",
    "a series in a slot": "lambda e: base.SLOTTED.look(e)",
    "a series that super() reads": "lambda e: base.BELOW.look(e)",
    "an object inside": "lambda e: base.WORDS.deep(e)",
    "a function inside": "lambda e: base.WORDS.call(e)",
}


@pytest.mark.parametrize("case", WHOLES)
def test_what_is_read_of_an_object_that_code_has_whole_counts(tmp_path, case):
    """Whoever reads it: an operator, a function that gets it, or an object that holds it. And no more than is read."""
    steps = f"def f(e):\n    words = base.WORDS\n    return words.go(e)\ndef T(): return {WHOLES[case]}"
    same, again, other = told_of_values(tmp_path, steps, WHOLE)
    assert same == again
    with pytest.raises(DriftError, match=r"transforms\.(parts|bound|beneath|beyond)"):
        check_drift({"transforms": same}, {"transforms": other})
    read = json.dumps(same)
    assert not any(name in read for name in ("began", "ARGS.out", "seen"))


def test_the_code_of_operators_counts(tmp_path):
    text = WHOLE.replace("@@", "2").replace("return word in self.words", "return (word in self.words) ^ (@@ == 3)")
    same, again, other = told_of_values(tmp_path, f"def T(): return {WHOLES['in']}", text)
    assert same == again
    with pytest.raises(DriftError, match=r"transforms\.parts\.[\w.]+\.Words\.__contains__\(\)"):
        check_drift({"transforms": same}, {"transforms": other})


def test_what_a_function_reads_of_an_object_whose_method_hands_that_on_counts(tmp_path):
    text = """
        class Scale:
            def __init__(self, by): self.by, self.t = by, time.time()
            def scaled(self, e): return e * self.by
            def began(self): return self.t
            def handed(self, e): return scaled_by(self, e)
        def scaled_by(scale, t): return scale.scaled(t)
        SCALE = Scale(@@)
        def T(): return lambda e: SCALE.handed(e)"""
    same, again, other = told_of_values(tmp_path, f"import time\n{textwrap.dedent(text)}", "")
    assert same == again
    with pytest.raises(DriftError, match=r"transforms\.parts\.steps_of_a_user\.SCALE\.by"):
        check_drift({"transforms": same}, {"transforms": other})


CONFIGS = {
    "omegaconf": """
from omegaconf import OmegaConf
CONFIG = OmegaConf.create({"mean": [1, @@], "data": {"scale": @@, "lr": ##}, "ops": [{"n": @@}], "out": "runs/##"})
""",
    "ml_collections": """
from ml_collections import ConfigDict
CONFIG = ConfigDict({"mean": (1, @@), "data": {"scale": @@, "lr": ##}, "ops": [{"n": @@}], "out": "runs/##"})
""",
    "argparse": """
from argparse import Namespace
CONFIG = Namespace(mean=[1, @@], data=Namespace(scale=@@, lr=##), ops=[{"n": @@}], out="runs/##")
""",
    "pydantic": """
import pydantic
class Data(pydantic.BaseModel): scale: int; lr: int
class Config(pydantic.BaseModel): mean: list[int]; data: Data; ops: list[dict[str, int]]; out: str
CONFIG = Config(mean=[1, @@], data=Data(scale=@@, lr=##), ops=[{"n": @@}], out="runs/##")
""",
    "absl": """
from absl import flags
FLAGS = flags.FlagValues()
SCALE = flags.DEFINE_integer("scale", @@, "", flag_values=FLAGS)
MEAN = flags.DEFINE_list("mean", ["1", "@@"], "", flag_values=FLAGS)
OUT = flags.DEFINE_string("out", "runs/##", "", flag_values=FLAGS)
FLAGS([""])
""",
    "configparser": """
import configparser
CONFIG = configparser.ConfigParser()
CONFIG.read_string("[data]\\nscale = @@\\nlr = ##\\n[run]\\nout = runs/##\\n")
""",
}
ANY = "omegaconf ml_collections argparse pydantic dataclasses attrs"
CONFIGS["dataclasses"] = """
import dataclasses
@dataclasses.dataclass
class Data: scale: int; lr: int
@dataclasses.dataclass
class Config: mean: list; data: Data; ops: list; out: str
CONFIG = Config(mean=[1, @@], data=Data(scale=@@, lr=##), ops=[{"n": @@}], out="runs/##")
"""
CONFIGS["attrs"] = (
    CONFIGS["dataclasses"].replace("dataclasses.dataclass", "attrs.define").replace("dataclasses", "attrs")
)
CONFIG_READS = {
    "lambda e: sum(base.CONFIG.mean)": ANY,
    "lambda e: base.CONFIG.mean[0]": ANY,
    "lambda e: [e * op['n'] for op in base.CONFIG.ops]": ANY,
    "lambda e: e * base.CONFIG.data.scale": ANY,
    "lambda e: scaled(e, base.CONFIG.data)": ANY,
    "lambda e, config=None: e * (config := base.CONFIG).data.scale": ANY,
    "lambda e: scaled(e, (base.CONFIG or base.CONFIG).data)": "dataclasses attrs",
    "lambda e: nested(e, base.CONFIG)": ANY,
    "lambda e: e * base.CONFIG['data']['scale']": "omegaconf ml_collections",
    "lambda e: e * base.CONFIG.get('data').scale": "omegaconf ml_collections",
    "lambda e: by(e, **base.CONFIG.data)": "omegaconf ml_collections",
    "lambda e: by(e, **vars(base.CONFIG.data))": "argparse",
    "lambda e: by(e, **base.CONFIG.data.model_dump())": "pydantic",
    "lambda e: e * base.SCALE.value": "absl",
    "lambda e: base.MEAN.value[0]": "absl",
    "lambda e: e * base.FLAGS['scale'].value": "absl",
    "lambda e: scaled(e, base.FLAGS)": "absl",
    "lambda e: e * base.CONFIG.getint('data', 'scale')": "configparser",
    "lambda e: e * int(base.CONFIG['data']['scale'])": "configparser",
}


@pytest.mark.parametrize(
    ("library", "read"), [(library, read) for read, libraries in CONFIG_READS.items() for library in libraries.split()]
)
def test_a_setting_counts_however_it_is_read_of_a_config_and_others_do_not(tmp_path, library, read):
    steps = "def nested(e, config): return scaled(e, config.data)\n"
    steps += "def scaled(e, data): return e * data.scale\ndef by(e, scale, **others): return e * scale\n"
    steps += f"def T(): return {read}"
    prints = []
    for folder, value, other in (("a", "2", "5"), ("b", "2", "5"), ("c", "3", "5"), ("d", "2", "6")):
        text = CONFIGS[library].replace("@@", value).replace("##", other)
        with beside(tmp_path / folder, steps, text) as module:
            prints.append({"transforms": json.loads(json.dumps(code_fingerprint([module.T()])))})
    same, again, changed, with_others = prints
    assert check_drift(same, again) == check_drift(same, with_others) == []
    with pytest.raises(
        DriftError, match=r"transforms\.(parts|values|used|bound|beyond)\.[\w.]*(scale|mean|ops|SCALE|MEAN)"
    ):
        check_drift(same, changed)


SEVERAL = {
    "the second class of a name": """
        class Looks:
            def map(self, e): return e
        class Looks:
            def map(self, e): return e * @@""",
    "one of two classes of a name": """
        if base.BY == 2:
            class Looks:
                def map(self, e): return e
        else:
            class Looks:
                def map(self, e): return -e""",
    "one of two methods of a name": """
        class Looks:
            if base.BY == 2:
                def map(self, e): return e
            else:
                def map(self, e): return -e""",
    "a static one": """
        class Looks:
            if base.BY == 2:
                @staticmethod
                def go(e): return e
            else:
                @staticmethod
                def go(e): return -e
            def map(self, e): return self.go(e)""",
    "one that has another name": """
        class Looks:
            def one(self, e): return e
            def other(self, e): return -e
            map = one if base.BY == 2 else other""",
    "the arguments of a partial method": """
        class Looks:
            def go(self, by, e): return e * by
            map = functools.partialmethod(go, base.BY)""",
    "the arguments of a partial": """
        class Looks:
            times = functools.partial(lambda by, e: e * by, base.BY)
            def map(self, e): return self.times(e)""",
}


@pytest.mark.parametrize("case", SEVERAL)
def test_what_runs_counts_where_the_text_of_its_class_does_not_say_which_that_is(tmp_path, case):
    """Until 3.13 Python gives the text of the first class of a name, and no text says which way an `if` went."""
    text = textwrap.dedent(SEVERAL[case]) + "\ndef T(): return Looks()"
    same, again, other = told_of_values(tmp_path, text, "BY = @@")
    assert same == again
    with pytest.raises(DriftError, match=r"transforms\.(beneath|parts)\.steps_of_a_user\.Looks"):
        check_drift({"transforms": same}, {"transforms": other})
    earlier = {name: value for name, value in same.items() if name not in ("beneath", "parts")}
    assert check_drift({"transforms": earlier}, {"transforms": same}) == []


@pytest.mark.parametrize("made", ["torch.tensor([1.0, @@], requires_grad=True)", "torch.tensor([1j, @@]).conj()"])
def test_a_tensor_that_numpy_does_not_take_is_the_same_in_every_process(tmp_path, made):
    pytest.importorskip("torch")
    text = f"""
        import torch
        A = {made}
        class Looks:
            def __init__(self): self.a = {made}
            def map(self, e): return e - self.a - A
        def T(): return Looks()"""
    same, again, other = told_of_values(tmp_path, textwrap.dedent(text), "")
    assert same == again
    assert {key for key in same if same[key] != other[key]} == {"digest", "held", "values"}


OF_PROCESS = {
    "RUN = uuid.uuid4().hex\ndef T(): return lambda e: print(RUN)": "RUN",
    "BEGAN = time.time()\ndef T(): return lambda e: print(time.time() - BEGAN)": "BEGAN",
    "HOST = socket.gethostname()\ndef T(): return lambda e: print(HOST)": "HOST",
    "class S:\n  def __init__(self): self.pid = os.getpid()\n  def log(self): print(self.pid)\nSTATS = S()\n"
    "def T(): return lambda e: STATS.log()": "STATS.pid",
    "class T:\n  def __init__(self): self.began = time.time_ns()\n  def map(self, e): return e": "T.began",
    "MD5, SINCE = 'd41d8cd98f00b204e9800998ecf8427e', 1.7e9\ndef T(): return lambda e: (MD5, SINCE)": None,
}


@pytest.mark.parametrize("text", OF_PROCESS)
def test_a_value_for_which_every_other_process_refuses_the_state_is_told_of_at_once(tmp_path, text, caplog):
    """And not when the state is to be restored, days later."""
    with beside(tmp_path / "a", f"import os, socket, time, uuid\n{text}", "") as module:
        code_fingerprint([module.T()])
    told = [record.getMessage() for record in caplog.records if "another process has another value" in record.msg]
    named = OF_PROCESS[text]
    assert [each.partition(":")[0].endswith(named) for each in told] == [True] if named else not told


def test_what_the_code_reads_of_its_own_package_is_named(tmp_path):
    """The digest is one of all; a state has two digits of each, and the program knows their names."""
    text = "LIMIT, SAME = @@, 1\ndef helper(e): return e * @@\ndef other(e): return e\n"
    prints = []
    for folder, value in (("a", "2"), ("b", "3")):
        steps = f"{text}def f(e): return helper(e) + LIMIT + SAME + other(e)\ndef T(): return f"
        with beside(tmp_path / folder, steps.replace("@@", value), "") as module:
            prints.append({"transforms": code_fingerprint([module.T()])})
    with pytest.raises(DriftError) as refused:
        check_drift(json.loads(json.dumps(prints[0])), prints[1])
    named = "number 0 (f), by steps_of_a_user.LIMIT, steps_of_a_user.helper: the checkpoint was written with other code"
    assert named in str(refused.value)


def test_a_tensor_that_numpy_has_no_type_for_is_the_same_in_every_process(tmp_path):
    pytest.importorskip("torch")
    text = """
        import torch
        A = {"mean": torch.tensor([1, @@], dtype=torch.bfloat16)}
        class Looks:
            def __init__(self): self.of, self.all = torch.tensor(1.5, dtype=torch.bfloat16), A
            def map(self, e): return e - A["mean"]
        def T(): return Looks()"""
    same, again, other = told_of_values(tmp_path, textwrap.dedent(text), "")
    assert same == again
    assert same["digest"] != other["digest"]


def test_what_changed_of_many_is_named(tmp_path):
    """A state has a few by name; of the rest two digits each, and the program knows their names."""
    names = [f"P{number:02}" for number in range(20)]
    lines = ["import re", *(f"{name} = re.compile('{name}')" for name in names)]
    text = "\n".join([*lines, f"def T(): return lambda e: ({', '.join(names)})"])
    prints = []
    for folder, value in (("a", "P17"), ("b", "P17"), ("c", "other")):
        with beside(tmp_path / folder, text.replace("compile('P17')", f"compile('{value}')"), "") as module:
            prints.append({"transforms": code_fingerprint([module.T()])})
    same, again, other = prints
    saved = json.loads(json.dumps(same))
    assert check_drift(saved, again) == []
    with pytest.raises(
        DriftError, match=r"transforms\.settings\.others: steps_of_a_user\.P17: the checkpoint"
    ) as refused:
        check_drift(saved, other)
    assert len(refused.value.differences) == 1


ROOTED = """
import os
ROOT = os.path.dirname(os.path.abspath(__file__))
class Looks:
    def __init__(self): self.path = os.path.join(ROOT, "vocabulary.json")
    def map(self, e): return self.path, ROOT, e * 2
def T(): return Looks()"""


def test_a_program_that_lies_in_another_folder_is_the_same(tmp_path):
    prints = []
    for folder, text in (("a", ROOTED), ("b", ROOTED), ("c", ROOTED.replace("* 2", "* 3"))):
        with beside(tmp_path / folder, text, "") as module:
            prints.append(json.loads(json.dumps(code_fingerprint([module.T(), module.T().map]))))
    here, there, other = prints
    assert here["digest"] != there["digest"]
    assert check_drift({"transforms": here}, {"transforms": there}) == []
    with pytest.raises(DriftError, match=r"transforms\.digest: number 0 \(Looks\)"):
        check_drift({"transforms": here}, {"transforms": other})
    earlier = {name: value for name, value in here.items() if name != "elsewhere"}
    assert check_drift({"transforms": earlier}, {"transforms": here}) == []
    with pytest.raises(DriftError, match=r"transforms\.digest"):
        check_drift({"transforms": earlier}, {"transforms": there})


def test_of_several_transforms_the_one_that_changed_is_named_in_another_folder_too(tmp_path):
    prints = []
    for folder, text in (("a", ROOTED), ("c", ROOTED.replace("* 2", "* 3"))):
        looks = "class Names:\n    def map(self, e): return ROOT\n"
        with beside(tmp_path / folder, text + "\n" + looks, "") as module:
            prints.append(json.loads(json.dumps(code_fingerprint([module.Names(), module.T()]))))
    with pytest.raises(DriftError, match=r"transforms\.digest: number 1 \(Looks\): the checkpoint"):
        check_drift(*({"transforms": each} for each in prints))


FOLDERS = """
import json, pathlib
from datarax_ray.read.identity.code import code_fingerprint
root = pathlib.Path(__file__).resolve().parents[@@]
class Looks:
    def __init__(self, path): self.path = path
    def map(self, e): return self.path
print(json.dumps(code_fingerprint([Looks(str(root / "%s"))])))
"""


@pytest.mark.parametrize(
    ("script", "path", "marks", "here"),
    [
        ("apps/lm/train.py", "libs/tok-en/vocab.txt", {}, "."),  # by where it is started
        ("apps/lm/train.py", "data/vocab.txt", {"pyproject.toml"}, "apps/lm"),
        ("a/b/c/train.py", "data/vocab.txt", {".git", "a/b/pyproject.toml"}, "a/b/c"),
        ("scripts/train.py", "vocab.txt", {}, "scripts"),  # the folder above
        ("train.py", "data/vocab.txt", {}, "."),
    ],
)
def test_a_path_within_the_project_is_the_same_in_another_clone_and_no_other_path_is(
    tmp_path, script, path, marks, here
):
    prints = {}
    for clone, held in (("one", path), ("the-other", path), ("the-other", "libs/tok-de/vocab.txt")):
        project = tmp_path / clone
        for name in ("libs/tok-en", "libs/tok-de", str(Path(script).parent)):
            (project / name).mkdir(parents=True, exist_ok=True)
        for mark in marks:
            (project / mark).touch()
        (project / script).write_text(FOLDERS.replace("@@", str(script.count("/"))) % held)
        roots = [str(project / name) for name in ("libs/tok-en", "libs/tok-de")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(roots), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, project / script]
        said = subprocess.run(command, env=env, cwd=project / here, capture_output=True, text=True, check=True)
        prints[clone, held] = {"transforms": json.loads(said.stdout)}
    one, same, other = prints.values()
    assert one["transforms"]["digest"] != same["transforms"]["digest"]
    assert check_drift(one, same) == []
    with pytest.raises(DriftError, match=r"transforms\.held\.0 Looks\.path"):
        check_drift(one, other)


def test_a_path_beside_the_script_is_the_same_in_a_copy_that_is_no_clone(tmp_path):
    """As in an image into which the sources alone were copied."""
    prints = []
    for folder, marks in (("clone", [".git", "pyproject.toml"]), ("app/src", [])):
        project = tmp_path / folder
        project.mkdir(parents=True)
        for mark in marks:
            (project / mark).touch()
        (project / "train.py").write_text(FOLDERS.replace("@@", "0") % "data")
        command = [sys.executable, project / "train.py"]
        said = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
        prints.append({"transforms": json.loads(said.stdout)})
    assert prints[0]["transforms"]["digest"] != prints[1]["transforms"]["digest"]
    assert check_drift(*prints) == []


LIBRARY = """
import os
import numpy as np
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
class Config:
    def __init__(self): self.root, self.by = ROOT, "@@"
CONFIG = Config()
TABLE = {name: os.path.join(ROOT, name) for name in ("a", "b")}
ARRAY = np.array([os.path.join(ROOT, str(number)) for number in range(20)])
LISTED = [os.path.join(ROOT, str(number)) for number in range(5000)]
NAMES = frozenset(os.path.join(ROOT, name) for name in "ab")
def read(e): return ROOT, e
"""
SCRIPT = """
import json, sys
import lib
from datarax_ray.read.identity.code import code_fingerprint
class Looks:
    def __init__(self): self.held = [lib.CONFIG.root, lib.ARRAY]
    def map(self, e):
        return lib.ROOT, lib.CONFIG.root, lib.CONFIG.by, lib.TABLE, lib.LISTED, lib.NAMES, lib.ARRAY, lib.read(e)
def go(e): return lib.read(lib.ROOT), lib.TABLE[e], lib.CONFIG.root
def bound(e, by=lib.TABLE.get): return by(e)
print(json.dumps(code_fingerprint([Looks(), go, bound])))
"""


@pytest.mark.parametrize("script", ["run.py", "scripts/run.py"])
def test_a_project_with_its_modules_in_src_is_the_same_in_another_folder(tmp_path, script):
    prints = []
    for folder, value in (("here", "1"), ("there", "1"), ("there", "2")):
        project = tmp_path / folder
        for name, text in (("src/lib.py", LIBRARY.replace("@@", value)), (script, SCRIPT)):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        env = os.environ | {"PYTHONPATH": str(project / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        said = subprocess.run([sys.executable, project / script], env=env, capture_output=True, text=True, check=True)
        prints.append({"transforms": json.loads(said.stdout)})
    here, there, other = prints
    assert here["transforms"]["digest"] != there["transforms"]["digest"]
    assert check_drift(here, there) == []
    with pytest.raises(DriftError) as refused:
        check_drift(here, other)
    assert [each.setting for each in refused.value.differences] == ["transforms.bound.lib.CONFIG.by"]


DECORATORS = {
    "a closure": """
        def times(k):
            def deco(f):
                @functools.wraps(f)
                def around(e): return f(e) * k
                return around
            return deco
        K = @@
        @times(K)
        def go(e): return e""",
    "an attribute": """
        class Times:
            def __init__(self, f, k): functools.update_wrapper(self, f); self.f = f; self.k = k
            def __call__(self, e): return self.f(e) * self.k
        def f(e): return e
        go = Times(f, @@)""",
}


@pytest.mark.parametrize("case", DECORATORS)
@pytest.mark.parametrize("has_package", [False, True])
def test_of_what_a_decorator_holds_a_warning_tells(tmp_path, case, has_package):
    text = "import functools\n" + textwrap.dedent(DECORATORS[case])
    parts = (f"{text}\ndef T(): return lambda e: go(e)", "")
    if not has_package:
        parts = ("from base_of_a_user import go\ndef T(): return lambda e: go(e)", text)
    same, again, other = told_of_values(tmp_path, *parts)
    assert same == again
    (told,) = check_drift({"transforms": same}, {"transforms": other})
    assert "what a decorator holds of a function that transforms call is another" in told
    earlier = {name: value for name, value in same.items() if name != "decorators"}
    assert check_drift({"transforms": earlier}, {"transforms": other}) == []


USED_UP = {
    "a closure that caches": "@cached\ndef go(e): return e * 2\n",
    "a singleton": """
class Vocabulary:
    _instance = None
    @classmethod
    def get(cls):
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance
    def by(self, e): return e * 2
def go(e): return Vocabulary.get().by(e)
""",
    "a class that is filled at the first use": """
class Table:
    def by(self, e): return e * 2
class Uses:
    _table = None
    def by(self, e):
        if self._table is None:
            type(self)._table = Table()
        return self._table.by(e)
def go(e): return Uses().by(e)
""",
    "a decorator that counts and times": """
class Counts:
    def __init__(self, f): functools.update_wrapper(self, f); self.f = f; self.calls = 0; self.seconds = []
    def __call__(self, e): self.calls += 1; self.seconds.append(time.time()); return self.f(e)
@Counts
def go(e): return e * 2
""",
    "a decorator that holds a clock": """
def timed(watch):
    def deco(f):
        @functools.wraps(f)
        def around(e):
            watch.update(b"x")
            return f(e)
        return around
    return deco
@timed(hashlib.sha256())
def go(e): return e * 2
""",
}
CACHING = """
import functools, hashlib, time
def cached(f):
    cache, calls = {}, [0]
    def go(e):
        calls[0] += 1
        if e not in cache:
            cache[e] = f(e)
        return cache[e]
    return go
"""


@pytest.mark.parametrize("case", USED_UP)
@pytest.mark.parametrize("has_package", [False, True])
def test_what_is_filled_by_the_first_use_is_no_change(tmp_path, case, has_package):
    text = CACHING + USED_UP[case]
    steps = "def T(): return lambda e: base.go(e)"
    parts = (f"{text}\ndef T(): return lambda e: go(e)", "") if has_package else (steps, text)
    with beside(tmp_path / "a", *parts) as module:
        first = json.loads(json.dumps(code_fingerprint([module.T()])))
        assert module.T()(3) == 6
        again = json.loads(json.dumps(code_fingerprint([module.T()])))
        assert check_drift({"transforms": first}, {"transforms": again}) == []
        assert check_drift({"transforms": again}, {"transforms": first}) == []
        earlier = {name: value for name, value in again.items() if name != "unfilled"}
        assert check_drift({"transforms": earlier}, {"transforms": again}) == []


GRAPH = """
class Node:
    def __init__(self, name):
        self.name, self.next, self.call = name, None, self.go

    def go(self, x):
        return x + len(self.name)
class Graph:
    def __init__(self):
        self.nodes = {name: Node(name) for name in ("a", "bb")}
        self.nodes["a"].next, self.nodes["bb"].next = self.nodes["bb"], self.nodes["a"]
        for node in self.nodes.values():
            node.owner = self
        self.table = {"a": self.map}

    def map(self, element):
        return self.nodes["a"].call(element)
"""


def test_objects_that_lead_back_to_themselves_are_told_as_states_hold_them(tmp_path):
    assert found(tmp_path, "Graph", GRAPH)["deep"] == "b4d9fcf872074a55"


TABLES = """
import functools
OPS, PARTS, KINDS = {}, {}, set()
def op(f): OPS[f.__name__] = f; return f
@op
def mul(x, k): return x * k
@op
def seq(x, ops):
    for name, kw in ops: x = OPS[name](x, **kw)
    return x
def kind(c): KINDS.add(c); PARTS[c.__name__] = c; return c
@kind
class Leaf:
    def run(self, x): return [OPS, PARTS] and x + 7
@kind
class Node:
    def run(self, x): return [each().run(x) for each in KINDS] + [PARTS["Leaf"]().run(x)]
def of_function(e): return OPS["seq"](e, [("mul", {"k": 2})])
def of_class(e): return PARTS["Node"]().run(e)
def of_set(e): return [each().run(e) for each in KINDS], OPS
"""


@pytest.mark.parametrize(("get", "change"), [("of_function", "x * k"), ("of_class", "x + 7"), ("of_set", "x + 7")])
def test_a_table_may_be_read_by_what_is_in_it(tmp_path, get, change):
    assert TABLES.count(change) == 1
    first = found(tmp_path / "a", get, TABLES)
    assert first == found(tmp_path / "b", get, TABLES)
    assert first != found(tmp_path / "c", get, TABLES.replace(change, f"{change} + 1"))


def test_so_may_a_table_of_another_module(tmp_path):
    steps = (
        "@base.register\ndef double(x): return x * @@\n@base.register\ndef twice(x): return base.REG['double'](x)\n"
        "def T(): return lambda e: twice(e)"
    )
    base = "REG = {}\ndef register(f): REG[f.__name__] = f; return f\n"
    prints = []
    for folder, value in (("a", 2), ("b", 2), ("c", 3)):
        with beside(tmp_path / folder, steps.replace("@@", str(value)), base) as module:
            prints.append(code_fingerprint([module.T()]))
    assert prints[0] == prints[1] != prints[2]


def test_such_tables_are_the_same_in_every_process(tmp_path):
    assert len(said_in_processes(tmp_path, TABLES, "[m.of_function, m.of_class, m.of_set]", num_processes=4)) == 1


def test_tables_of_code_that_reads_further_tables_are_looked_at_a_few_times_each(tmp_path, monkeypatch):
    count = 6
    text = "L0 = {i: abs for i in range(6)}\n" + "".join(
        "".join(f"def f{level}_{i}(e): return L{level - 1}[{i}](e)\n" for i in range(count))
        + f"L{level} = {{{', '.join(f'{i}: f{level}_{i}' for i in range(count))}}}\n"
        for level in range(1, 5)
    )
    looks = []
    told = telling.Telling._reached
    monkeypatch.setattr(telling.Telling, "_reached", lambda self, made: looks.append(made) or told(self, made))
    found(tmp_path, "f4_0", text)
    assert len(looks) <= 3 * 4 * count


FILLED = """
class Tok:
    table = {}
    def __init__(self): self.cache = {}
    def encode(self, text):
        cache = self.cache
        if text not in cache: cache[text] = len(text)
        return cache[text]
    def shared(self, text):
        table = self.table
        return table.setdefault(text, len(text))
TOK = Tok()
BY_LENGTH = {}
CACHE = {}
def f(e):
    BY_LENGTH.setdefault(len(e), []); BY_LENGTH[len(e)].append(e)
    own = CACHE
    own[e] = 1
    return TOK.encode(e) + TOK.shared(e)
"""


def test_a_cache_that_is_filled_by_another_name_is_no_change(tmp_path):
    with beside(tmp_path / "a", "def T(): return base.f", FILLED) as module:
        before = code_fingerprint([module.T()])
        assert module.T()("text") == 8
        assert code_fingerprint([module.T()]) == before


EDITED = """
import functools
def f(e):
    return e * 2

class Map:
    def map(self, e):
        return [x for x in e if x > 1]

def around(g):
    @functools.wraps(g)
    def h(e): return g(e)
    return h

@around
def decorated(e):
    return e
"""


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("f", "e * 2", "e * 3"), ("Map", "x > 1", "x < 1"), ("decorated", "return g(e)", "return g(e) + 1")],
)
def test_a_file_that_is_edited_once_it_is_imported_says_nothing_of_what_runs(tmp_path, caplog, name, old, new):
    """The first source is made after the edit: nothing looked at the text before."""

    def print_of(folder: str, now: str, before: str = EDITED) -> dict:
        with beside(tmp_path / folder, "T = base", before) as module:
            (tmp_path / folder / "base_of_a_user.py").write_text(now)
            made = getattr(module.T, name)
            return code_fingerprint([made() if isinstance(made, type) else made])

    runs = print_of("a", EDITED)
    assert print_of("b", "import math\n# written above it\n" + EDITED) == runs, "of other lines"
    assert not caplog.messages
    edited = EDITED.replace(old, new)
    told = print_of("c", edited)
    assert "was edited after this program imported it" in caplog.text
    with pytest.raises(DriftError):
        check_drift({"transforms": told}, {"transforms": print_of("d", edited, edited)})


CALLED = """
class Tokenizer:
    unknown = 0
    def __init__(self):
        self.table, self.path, self.scale = {"a": 1}, "out", 2
    def __call__(self, text):
        return [self.scale * index for index in self.encode(text)]
    def encode(self, text):
        return [self.table.get(letter, self.unknown) for letter in text]
    def save(self):
        return self.path

TOKENIZER = Tokenizer()

def encodes(e):
    return TOKENIZER.encode(e)

def calls(e):
    return TOKENIZER(e)
"""
IN_OTHER = """
from . import other
def encodes(e):
    return other.TOKENIZER.encode(e)
def calls(e):
    return other.TOKENIZER(e)
"""


@pytest.mark.parametrize(
    ("old", "new", "counts_for"),
    [
        ("return self.path", "return self.path + '.json'", {"calls"}),
        ('"out"', '"in"', {"calls"}),
        ('"out", 2', '"out", 3', {"calls"}),
        ("self.scale * index", "self.scale + index", {"calls"}),
        ("self.table.get(letter, self", "self.table.get(letter.lower(), self", {"encodes", "calls"}),
        ('"a": 1', '"a": 2', {"encodes", "calls"}),
        ("unknown = 0", "unknown = 9", {"encodes", "calls"}),
    ],
)
@pytest.mark.parametrize("is_here", [True, False])
def test_of_an_object_that_can_be_called_counts_what_methods_read_where_code_calls_these_alone(
    tmp_path, old, new, counts_for, is_here
):
    for get in ("encodes", "calls"):
        one, other = (
            {"transforms": found(tmp_path / get / side, get, text if is_here else IN_OTHER, "" if is_here else text)}
            for side, text in (("a", CALLED), ("b", CALLED.replace(old, new)))
        )
        with pytest.raises(DriftError) if get in counts_for else contextlib.nullcontext():
            check_drift(one, other)


def test_states_of_when_it_was_told_whole_are_compared_by_the_rest(tmp_path):
    """They have digests over all that was told, and with it what is told no more."""
    whole = found(tmp_path / "a", "calls", CALLED)
    now = found(tmp_path / "b", "encodes", CALLED)
    name = "package_of_a_user.steps.TOKENIZER"
    earlier = now | {"told": 3, "used": whole["used"], "kinds": "0123456789abcdef"}
    assert name in earlier["used"]
    check_drift({"transforms": earlier}, {"transforms": now})
    edited = found(tmp_path / "c", "encodes", CALLED.replace('"a": 1', '"a": 2'))
    with pytest.raises(DriftError, match=rf"bound\.{name}\.table"):
        check_drift({"transforms": earlier}, {"transforms": edited})
    with pytest.raises(DriftError, match=rf"used\.{name}"):
        check_drift({"transforms": earlier | {"told": 4}}, {"transforms": now})


HANDED = """
class Meter:
    def __init__(self):
        self.scale, self.clock = 2, 7
    def handed(self, e):
        return helper(self, e)
    def save(self):
        return saver(self)
def helper(meter, e):
    return deeper(meter) * e
def deeper(meter):
    return meter.scale
def saver(meter):
    return meter.clock
METER = Meter()
"""


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [("2, 7", "3, 7", True), ("* e", "+ e", True), ("2, 7", "2, 8", False), ("meter.clock", "-meter.clock", False)],
)
def test_what_a_function_reads_of_an_object_that_its_own_method_hands_on_counts_in_any_module(
    tmp_path, old, new, counts
):
    one, other = (
        {"transforms": found(tmp_path / side, "f", "from . import other\ndef f(e): return other.METER.handed(e)", text)}
        for side, text in (("a", HANDED), ("b", HANDED.replace(old, new)))
    )
    with pytest.raises(DriftError) if counts else contextlib.nullcontext():
        check_drift(one, other)
