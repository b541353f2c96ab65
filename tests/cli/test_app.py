"""The command without its commands: help, version, and what is loaded for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import datarax_ray

HEAVY = ("jax", "flax", "ray", "numpy", "array_record", "orbax")


def test_without_arguments_it_shows_its_help(command):
    shown = command()
    assert shown.returncode == 2
    for name in ("demo", "ingest", "cluster"):
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


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("datarax_ray.cli.app", HEAVY),
        ("datarax_ray.cli.cluster", HEAVY),
        ("datarax_ray.cli.ingest", ("jax", "flax", "orbax", "ray")),
        ("datarax_ray.cli.digits", ("jax", "flax", "orbax", "ray", "typer", "rich")),  # an actor imports it
    ],
)
def test_a_module_loads_only_what_it_needs(module, absent):
    code = f"import sys, {module}; print([m for m in {absent} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
