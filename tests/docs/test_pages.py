"""Every Python block of the README and the pages runs, in the order of its page, on real files and actors."""

import contextlib
import doctest
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.docs import sample_data
from tests.programs import python

ROOT = Path(__file__).parents[2]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
BLOCK = re.compile(r"^( *)(```+|:::+)(\S*)[^\n]*\n(.*?)^\1\2", re.MULTILINE | re.DOTALL)

# What stands for a reader's own model; pages say train_step(model, optimizer, batch), and save `model`.
PRELUDE = """
import numpy as np
def train_step(model, optimizer, batch): ...
model = optimizer = None
weights = {"w": np.zeros(3)}
"""

RUN = {"python"}
COMPARED = {"pycon", "console"}  # sessions: what is printed is compared
SHOWN = {"sh", "bash", "text", "json", ""}  # commands, and what they print
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OUTPUT = doctest.OutputChecker()


def shell(command):
    """What a command prints, on both streams, in the reader's folder."""
    done = python("-m", "datarax_ray", *shlex.split(command)[1:], COLUMNS="100")
    return done.stderr + done.stdout


def blocks(page):
    return [(match[3], match[4]) for match in BLOCK.finditer(PAGES[page])]


def programs():
    return sorted(page for page in PAGES if any(language in RUN | COMPARED for language, _ in blocks(page)))


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_block_is_run_or_said_to_be_a_command_or_output(page):
    unknown = {language for language, _ in blocks(page)} - RUN - COMPARED - SHOWN
    assert not {language for language in unknown if not language.startswith("{")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a reader stands: a folder with data/ in it, and a Ray that was started there."""
    import ray

    import tests.clusters  # noqa: F401  so that Ray starts less

    folder = tmp_path_factory.mktemp("reader")
    sample_data.write(folder / "data")
    with contextlib.chdir(folder):
        ray.init("local", num_cpus=4, object_store_memory=200 * 2**20, include_dashboard=False, log_to_driver=False)
        yield folder
        ray.shutdown()


@pytest.mark.parametrize("page", programs())
def test_the_programs_of_a_page_run(page, folder):
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    names = {"__name__": "__main__"}
    exec(PRELUDE, names)
    for language, text in blocks(page):
        if language in RUN:
            # pages say what a cluster has; two cores carry two
            exec(compile(re.sub(r"num_actors=\d+", "num_actors=2", text), page, "exec"), names)
        if language == "console":
            for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                assert OUTPUT.check_output(printed, shell(command), SAME), f"{command} prints\n{shell(command)}"
        if language == "pycon":
            test = doctest.DocTestParser().get_doctest(text, names, page, page, 0)
            runner = doctest.DocTestRunner(optionflags=SAME)
            runner.run(test, clear_globs=False)
            assert not runner.failures, f"{page}: see what is printed above"
            names |= test.globs
    for made in list(names.values()):
        if callable(getattr(type(made), "close", None)):
            made.close()
