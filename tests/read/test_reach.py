"""The fingerprint sees what a transform uses in its own package: code and data, and nothing of libraries."""

import importlib
import sys
import textwrap

import pytest

from datarax_ray.read.identity.code import code_fingerprint
from datarax_ray.read.identity.referenced_globals import reached

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

    assert [reached(code) for code in (json.dumps, np.fft.fft, DecodeJson)] == [[], [], []]
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
