"""What the program sets in JAX and Pillow is set in another process as it is here."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import PIL.Image
import PIL.ImageFile
import pytest

from datarax_ray.read.hazards.library_settings import changed_settings, library_settings
from datarax_ray.read.hazards.same_code import code_of

ROOT = Path(__file__).parents[2]
SET = {
    "jax_enable_x64": True,
    "jax_default_matmul_precision": "highest",
    "jax_default_prng_impl": "rbg",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_threefry_partitionable": False,
    "jax_random_seed_offset": 7,
    "PIL.Image.MAX_IMAGE_PIXELS": None,
    "PIL.ImageFile.LOAD_TRUNCATED_IMAGES": True,
}
FRESH = """
import json, os, sys
from datarax_ray.read.hazards.library_settings import library_settings, set_library_settings

was = json.loads(sys.argv[1])
assert library_settings() == {}
os.environ |= {"JAX_ENABLE_X64": "1", "JAX_DEFAULT_PRNG_IMPL": "rbg"}
assert library_settings() == {"jax_enable_x64": True, "jax_default_prng_impl": "rbg"}, "as JAX will read them"
del os.environ["JAX_ENABLE_X64"], os.environ["JAX_DEFAULT_PRNG_IMPL"]
os.environ["JAX_RANDOM_SEED_OFFSET"] = "3"  # of the node, and none of the program
set_library_settings({name: value for name, value in was.items() if not sys.argv[2]})
assert "jax" not in sys.modules
import jax, PIL.Image, PIL.ImageFile
if sys.argv[2]:  # JAX was there before
    assert library_settings() == {}, "the defaults are these libraries'"
    set_library_settings(was)
assert library_settings() == was
given = {name: getattr(jax.config, name) for name in was if name.startswith("jax")}
given |= {"PIL.Image.MAX_IMAGE_PIXELS": PIL.Image.MAX_IMAGE_PIXELS}
print(json.dumps(given | {"PIL.ImageFile.LOAD_TRUNCATED_IMAGES": PIL.ImageFile.LOAD_TRUNCATED_IMAGES}))
"""


@pytest.fixture
def settings(monkeypatch: Any) -> Iterator[None]:
    """Sets them as a program does, for one test."""
    before = {name: getattr(jax.config, name) for name in SET if name.startswith("jax")}
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(PIL.ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for name in before:
        jax.config.update(name, SET[name])
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_fresh_process_that_is_given_them_has_them(settings: None, is_imported: bool) -> None:
    was = library_settings()
    assert was == SET
    command = [sys.executable, "-c", FRESH, json.dumps(was), "imported" * is_imported]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == SET


def test_what_the_environment_says_here_and_the_program_does_not_have_is_no_more(settings: None) -> None:
    script = (
        "from datarax_ray.read.hazards.library_settings import set_library_settings; set_library_settings({}); "
        "import jax; print(jax.config.jax_enable_x64, jax.config.jax_default_prng_impl)"
    )
    environment = os.environ | {"JAX_ENABLE_X64": "1", "JAX_DEFAULT_PRNG_IMPL": "rbg"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert done.stdout == "False threefry2x32\n"


def test_what_a_context_of_jax_sets_for_its_thread_is_no_setting_of_the_program() -> None:
    with jax.enable_x64(True):
        assert library_settings() == {}


def test_drivers_with_others_share_no_actors_and_a_later_one_is_told_once(settings: None, caplog: Any) -> None:
    code = code_of([])
    assert code.read.keys() >= SET.keys()
    assert (code.looks["jax_enable_x64"], code.looks["PIL.Image.MAX_IMAGE_PIXELS"]) == ("True", "None")
    told: set[str] = set()
    code.check_unchanged(told)
    jax.config.update("jax_enable_x64", False)
    assert code.digests != code_of([]).digests
    assert [*changed_settings(code.settings)] == [("jax_enable_x64", "True", "False")]
    with caplog.at_level(logging.WARNING):
        code.check_unchanged(told)
        code.check_unchanged(told)
    assert (
        caplog.text.count("jax_enable_x64 was True when the RaySource was made, and its actors have that; it is") == 1
    )
