"""The command without its commands: help, version, and what is loaded for them."""

import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

import datarax_ray
from datarax_ray.cli.app import app

HEAVY = ("jax", "flax", "ray", "numpy", "array_record", "orbax")


def test_version(command):
    shown = command("--version")
    assert (shown.returncode, shown.stdout) == (0, f"datarax-ray {datarax_ray.__version__}\n")


def commands(command=None, path=()):
    inner = getattr(command or typer.main.get_command(app), "commands", None)
    if inner is None:
        return [path]
    return [found for name, below in inner.items() for found in commands(below, (*path, name))]


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help_of_every_command_fits_a_terminal_with_an_example_and_json(path):
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*path, "--help"]).output
    assert [line for line in shown.splitlines() if len(line) > 80 or "…" in line] == []
    assert "--json" in shown
    assert f"\n    datarax-ray {' '.join(path)}" in shown


def test_without_arguments_every_command_is_listed_and_no_sentence_is_cut():
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [])
    assert shown.exit_code == 2
    assert "..." not in shown.output.replace("[ARGS]...", "")
    listed = re.findall(r"^  (\w+)  +[A-Z]", shown.output, re.M)
    assert listed == list(dict.fromkeys(path[0] for path in commands()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pool", "resize", "train", "0"), "'0' is no number of at least 1, nor auto"),
        (("bench", "a", "--batch-size", "0"), "--batch-size"),
        (("bench", "a", "--decoder", "png"), "'png' names no decoder"),
        (("convert", "a", "b", "--format", "csv"), "'csv' is not one of 'array_record', 'parquet'"),
        (("convert", "a", "b", "--group-size", "0"), "'0' is no number of at least 1, nor auto"),
        (("convert", "a", "b", "--on-error", "ignore"), "'ignore' is not one of 'raise', 'skip'"),
        (("replay", "a.py:b", "--steps", "3:1", "--output", "a.npz"), "'3:1' is no A:B with A below B"),
    ],
)
def test_a_wrong_option_is_refused_with_the_right_ones(words, message):
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


def test_where_no_cluster_is_the_pool_commands_say_so():
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["pool", "list", "--address", "127.0.0.1:1"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "error: the head of the Ray cluster at 127.0.0.1:1 did not answer within 5 s" in done.stderr


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("datarax_ray.cli.app", HEAVY),
        ("datarax_ray.cli.check", ("ray", "orbax", "tensorflow")),
        ("datarax_ray.cli.pool", ("jax", "flax", "orbax")),
        ("datarax_ray.cli.digits", ("jax", "flax", "orbax", "ray", "typer", "rich")),  # an actor imports it
    ],
)
def test_a_module_loads_only_what_it_needs(module, absent):
    code = f"import sys, {module}; print([m for m in {absent} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "command",
    [["diff", "none", "none"], ["diff", "none.py:make", "none"], ["checkpoint", "fits", "none.py:make", "none"]],
)
def test_what_is_not_there_is_no_answer_of_a_command_that_compares(command, tmp_path):
    """1 is "they differ", which a script may go on with."""
    found = CliRunner().invoke(app, [part.replace("none", f"{tmp_path}/none") for part in command])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "none" in found.stderr.replace("\n", "")


def test_a_table_in_a_pipe_has_the_names_of_fields_whole(tmp_path):
    name = "a_rather_long_name_of_a_field_that_a_screen_of_80_columns_cuts_somewhere"
    pq.write_table(pa.table({name: [1, 2], "another_field": ["a", "b"]}), tmp_path / "a.parquet")
    environ = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    command = [sys.executable, "-c", "from datarax_ray.cli import main; main()", "inspect", str(tmp_path / "a.parquet")]
    assert name in subprocess.run(command, capture_output=True, text=True, env=environ, check=True).stdout
