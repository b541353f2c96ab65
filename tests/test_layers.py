"""The street's layers: a worker loads no jax, and imports run one way."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import datarax_ray

ROOT = Path(__file__).parent.parent
HOST = ("plan", "read", "feed", "actors")
HOST_MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(datarax_ray.__path__, "datarax_ray.")
    if module.name.split(".")[1] in HOST
)


def test_there_are_host_modules() -> None:
    assert {name.split(".")[1] for name in HOST_MODULES} == set(HOST)


@pytest.mark.parametrize("layer", HOST)
def test_no_module_of_a_host_layer_loads_jax(layer: str) -> None:
    names = [name for name in HOST_MODULES if name.split(".")[1] == layer]
    code = f"""
import importlib, sys
for name in {names}:
    importlib.import_module(name)
    heavy = {{"jax", "jaxlib", "flax", "orbax", "grain", "tensorflow", "torch"}} & set(sys.modules)
    assert not heavy, (name, heavy)
    if {layer!r} in ("plan", "read", "feed"):
        assert "ray" not in sys.modules, name
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_importing_the_package_loads_neither_ray_nor_jax() -> None:
    code = (
        "import sys, datarax_ray; assert not {'ray', 'jax', 'numpy'} & set(sys.modules); assert datarax_ray.__version__"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_public_names_are_where_the_documentation_says() -> None:
    from datarax_ray import Pipeline, RaySource
    from datarax_ray.checkpoint import PipelineRestore, PipelineSave
    from datarax_ray.grain import DataLoader
    from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule

    assert all(
        [
            DataLoader,
            Pipeline,
            RaySource,
            PipelineRestore,
            PipelineSave,
            ArrayRecordSourceConfig,
            ArrayRecordSourceModule,
        ]
    )
    assert set(datarax_ray.__all__) <= set(dir(datarax_ray))
    with pytest.raises(AttributeError, match="no attribute 'RaySauce'"):
        _ = datarax_ray.RaySauce
