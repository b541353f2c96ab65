"""What a transform imports when it runs counts as what is imported at the top; and it is not imported for that."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from datarax_ray.plan.fingerprint import DriftError, check_drift
from datarax_ray.read.identity.code import code_fingerprint
from datarax_ray.read.identity.late_imports import late_imports

HEAVY = """
import json
from .tables import TABLE as WORDS
from . import tables
from .stars import *
try:
    from .not_there import star as chosen
except ImportError:
    from .stars import star as chosen

FACTOR = 2
UNUSED = 1
if FACTOR:
    OFFSET = 1
else:
    OFFSET = 0
LATER = {}
LATER["x"] = 3
NAMES = []
NAMES.append("x")


def strip(e: UNUSED):
    '''Strip.'''
    return scaled(e) + WORDS["x"] + tables.shift(e) + LATER["x"] + star(e) + len(NAMES) + chosen(e)


def scaled(e):
    from .deep import deeper

    return FACTOR * e + OFFSET + deeper(e)


def unused(e):
    return UNUSED


class Strip:
    def __call__(self, e):
        return strip(e)


print("imported")
if __name__ == "__main__":
    FACTOR = strip(1)
"""
TABLES = """
TABLE = {"x": 1}
SHIFT = 1


def shift(e):
    return e + SHIFT


def other(e):
    return e
"""
STARS = "def star(e):\n    return e\n"
DEEP = "def deeper(e):\n    return e + 1\n"
IMPORTS = {
    "from": "from late_package.heavy import strip\n    return strip(e)",
    "from as": "from late_package.heavy import strip as other\n    return other(e)",
    "module": "import late_package.heavy\n    return late_package.heavy.strip(e)",
    "module as": "import late_package.heavy as heavy\n    return heavy.strip(e)",
    "from package": "from late_package import heavy\n    return heavy.strip(e)",
    "relative": "from .heavy import strip\n    return strip(e)",
    "relative module": "from . import heavy\n    return heavy.strip(e)",
    "through the package": "from late_package import strip\n    return strip(e)",
    "class": "from .heavy import Strip\n    return Strip()(e)",
    "in a function in it": "def g():\n        from .heavy import strip\n        return strip(e)\n    return g()",
}


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fingerprint of a function that imports so, in a package of these texts."""
    folders: list[str] = []

    def make(body: str, **texts: str) -> dict[str, Any]:
        folder = tmp_path / str(len(folders))
        package = folder / "late_package"
        package.mkdir(parents=True)
        modules = {"heavy": HEAVY, "tables": TABLES, "stars": STARS, "deep": DEEP} | texts
        init = "def __getattr__(name):\n    raise AttributeError(name)\nif False:\n    from .heavy import strip\n"
        for name, text in ({"__init__": init, "steps": f"def f(e):\n    {body}\n"} | modules).items():
            (package / f"{name}.py").write_text(textwrap.dedent(text))
        folders.append(str(folder))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        try:
            found = code_fingerprint([importlib.import_module("late_package.steps").f])
            assert "late_package.heavy" not in sys.modules
            return found
        finally:
            sys.path.remove(str(folder))
            for name in [name for name in sys.modules if name.startswith("late_package")]:
                del sys.modules[name]

    return make


@pytest.mark.parametrize("body", IMPORTS.values(), ids=IMPORTS)
@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("heavy", "FACTOR = 2", "FACTOR = 3"),
        ("heavy", "FACTOR * e", "FACTOR + e"),
        ("heavy", "OFFSET = 1", "OFFSET = 2"),
        ("heavy", '["x"] = 3', '["x"] = 4'),
        ("heavy", 'append("x")', 'extend("xy")'),
        ("tables", '{"x": 1}', '{"x": 2}'),
        ("tables", "SHIFT = 1", "SHIFT = 2"),
        ("stars", "return e", "return -e"),
        ("deep", "e + 1", "e + 2"),
    ],
)
def test_what_it_imports_counts_however_far_it_is(told: Any, body: str, module: str, old: str, new: str) -> None:
    text = {"heavy": HEAVY, "tables": TABLES, "stars": STARS, "deep": DEEP}[module]
    assert old in text
    first = told(body)
    with pytest.raises(DriftError, match=r"imports\.late_package.* import of a module of yours .*has another text"):
        check_drift({"transforms": first}, {"transforms": told(body, **{module: text.replace(old, new)})})


@pytest.mark.parametrize("body", IMPORTS.values(), ids=IMPORTS)
def test_what_it_does_not_use_and_comments_change_nothing(told: Any, body: str) -> None:
    heavy = (
        HEAVY.replace("UNUSED = 1", "UNUSED = 2").replace("'''Strip.'''", "# it strips").replace("import json\n", "")
    )
    heavy = heavy.replace('"imported"', '"imported now"').replace("strip(1)", "strip(2)")
    tables = TABLES.replace("def other(e):\n    return e", "def other(e):\n    return -e")
    assert (heavy, tables) != (HEAVY, TABLES)
    assert told(body) == told(body, heavy=heavy, tables=tables)


@pytest.mark.parametrize(
    "body",
    [
        "import json, numpy as np\n    return np.abs(e)",
        "import not_there\n    return e",
        "from . import no\n    return e",
    ],
)
def test_of_a_library_and_of_what_is_not_there_nothing_is_told(told: Any, body: str) -> None:
    assert "imports" not in told(body)


def test_a_module_that_does_not_parse_or_is_deep_is_no_end(told: Any) -> None:
    assert "imports" not in told(IMPORTS["from"], heavy="def strip(e:")
    assert "imports" in told(
        IMPORTS["from"], heavy="from .heavy import strip\ndef strip(e):\n    return strip(strip(e))"
    )


def test_states_of_before_do_not_say_it_and_load(told: Any) -> None:
    now = told(IMPORTS["from"])
    check_drift({"transforms": {name: each for name, each in now.items() if name != "imports"}}, {"transforms": now})


def test_of_a_sum_of_hundreds_and_of_a_long_table_all_counts(told: Any) -> None:
    for table in (" + ".join(["'a'"] * 900), " + ".join(["'a'"] * 3000), "[\n" + "1,\n" * 400_000 + "]"):
        text = f"TABLE = {table}\ndef strip(e):\n    return TABLE\n"
        first, again = told(IMPORTS["from"], heavy=text), told(IMPORTS["from"], heavy=text)
        assert first == again
        assert first != told(IMPORTS["from"], heavy=text.replace("'a'", "'b'", 1).replace("1,", "2,", 1))


def test_a_module_beside_another_that_has_its_functions_name_is_none_of_it(told: Any) -> None:
    assert told(IMPORTS["from"]) == told(IMPORTS["from"], strip="def strip(e):\n    return 7\n")


def test_folders_without_an_init_are_packages_and_lazy_modules_are_asked_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "late_space" / "inner"
    folder.mkdir(parents=True)
    (folder / "deep.py").write_text("def g(e):\n    return e\n")
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(e):\n    from late_space.inner.deep import g\n    import lazy_late\n    return g(e)", names)

    class Lazy:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "lazy_late", Lazy())
    assert [*late_imports(names["f"])] == ["late_space.inner.deep"]
    assert "late_space" not in sys.modules


def test_a_package_that_an_import_hook_finds_counts_whether_it_is_imported_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editable install of setuptools' that maps names to folders, which are not in sys.path."""
    folder = tmp_path / "elsewhere" / "hooked_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from .deep import g\n")
    (folder / "deep.py").write_text("def g(e):\n    return e + 1\n")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            if name != "hooked_package":
                return None
            return importlib.util.spec_from_file_location(name, folder / "__init__.py")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(e):\n    from hooked_package import g\n    return g(e)", names)
    before = late_imports(names["f"])
    assert [*before] == ["hooked_package"]
    assert not any(name.startswith("hooked_package") for name in sys.modules)
    importlib.import_module("hooked_package")
    try:
        assert late_imports(names["f"]) == before
    finally:
        for name in [name for name in sys.modules if name.startswith("hooked_package")]:
            del sys.modules[name]
    (folder / "deep.py").write_text("def g(e):\n    return e + 22\n")
    assert late_imports(names["f"]) != before
