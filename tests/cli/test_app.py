"""The command without its commands: help, version, and what is loaded for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import datarax_ray
from datarax_ray.cli.app import app

HEAVY = ("jax", "flax", "ray", "numpy", "array_record", "orbax")


def test_without_arguments_it_shows_its_help(command):
    shown = command()
    assert shown.returncode == 2
    names = (
        "demo",
        "ingest",
        "bench",
        "simulate",
        "inspect",
        "convert",
        "locate",
        "replay",
        "checkpoint",
        "cluster",
        "pool",
        "cache",
    )
    for name in names:
        assert name in shown.stderr


def test_version(command):
    shown = command("--version")
    assert (shown.returncode, shown.stdout) == (0, f"datarax-ray {datarax_ray.__version__}\n")


@pytest.mark.parametrize("columns", [30, 80, 300])
def test_help_of_ingest_names_every_option_whole(command, columns):
    shown = command("ingest", "--help", columns=columns).stdout
    for option in ("--batch-size", "--num-actors", "--num-epochs", "--no-shuffle", "--seed", "--decoder", "-h"):
        assert option in shown
    assert "--max-batches" in shown
    assert "…" not in shown


def commands(command=None, path=()):
    inner = getattr(command or typer.main.get_command(app), "commands", None)
    if inner is None:
        return [path]
    return [found for name, below in inner.items() for found in commands(below, (*path, name))]


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help_of_every_command_fits_a_terminal_with_an_example_and_json(path):
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*path, "--help"]).output
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert "--json" in shown
    assert f"\n    datarax-ray {' '.join(path)}" in shown


def test_the_list_of_commands_cuts_no_sentence():
    assert "..." not in CliRunner(env={"COLUMNS": "80"}).invoke(app, ["--help"]).output.replace("[ARGS]...", "")


def test_a_size_that_is_none_is_refused(command):
    done = command("pool", "resize", "train", "0")
    assert done.returncode == 2
    assert "'0' is no number of at least 1, nor auto" in done.stderr


def test_simulate_refuses_what_is_no_size_and_no_number_of_actors(command):
    told = {
        ("--record-size", "12XB"): "'12XB' is no number of bytes",
        ("--num-actors", "0"): "'0' is no number of actors",
    }
    for options, message in told.items():
        done = command("simulate", "--rate", 100, "--need", 100, "--record-size", "4KB", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


def test_where_no_cluster_is_the_pool_commands_say_so(command):
    done = command("pool", "list", "--address", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: the head of the Ray cluster at 127.0.0.1:1 did not answer within 5 s" in done.stderr


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("datarax_ray.cli.app", HEAVY),
        ("datarax_ray.cli.cluster", HEAVY),
        ("datarax_ray.cli.pool", ("jax", "flax", "orbax")),
        ("datarax_ray.cli.ingest", ("jax", "flax", "orbax", "ray")),
        ("datarax_ray.cli.simulate", ("jax", "flax", "orbax", "ray")),
        ("datarax_ray.cli.digits", ("jax", "flax", "orbax", "ray", "typer", "rich")),  # an actor imports it
    ],
)
def test_a_module_loads_only_what_it_needs(module, absent):
    code = f"import sys, {module}; print([m for m in {absent} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "command",
    [["diff", "none", "none"], ["diff", "none.py:make", "none"], ["checkpoint", "diff", "none", "none"]]
    + [["checkpoint", "fits", *both] for both in (("none.py:make", "none"), ("none", "none.py:make"))],
)
def test_what_is_not_there_is_no_answer_of_a_command_that_compares(command: list[str], tmp_path: Path) -> None:
    """1 is "they differ", which a script may go on with."""
    found = CliRunner().invoke(app, [part.replace("none", f"{tmp_path}/none") for part in command])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "none" in found.stderr.replace("\n", "")
