"""The street's layers: a worker loads no jax, and imports run one way."""

import ast
import graphlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import datarax_ray

ROOT = Path(__file__).parent.parent
HOST = ("plan", "read", "feed", "grain.engine", "write", "actors")  # the last one alone loads Ray


def modules_of(layer):
    path = Path(datarax_ray.__path__[0], *layer.split("."))
    return sorted(module.name for module in pkgutil.walk_packages([str(path)], f"datarax_ray.{layer}."))


def test_no_module_of_a_host_layer_loads_jax_and_none_but_actors_ray():
    names = {layer: modules_of(layer) for layer in HOST}
    assert all(names.values())
    code = f"""
import importlib, sys
for layer, names in {names}.items():
    for name in names:
        importlib.import_module(name)
        heavy = {{"jax", "jaxlib", "flax", "orbax", "grain", "tensorflow", "torch"}} & set(sys.modules)
        assert not heavy, (name, heavy)
        assert layer == "actors" or "ray" not in sys.modules, name
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_importing_the_package_loads_neither_ray_nor_jax():
    code = (
        "import sys, datarax_ray; assert not {'ray', 'jax', 'numpy'} & set(sys.modules); assert datarax_ray.__version__"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def imports_of(path, modules):
    """The modules of this package that a file imports anywhere: at the top, in functions and for types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            # a name of a package may be a module in it
            found |= {f"{node.module}.{name.name}" for name in node.names} & modules or {node.module} & modules
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names} & modules
    return found


def test_no_import_circle_is_left():
    """Counted over every import, so that one hidden in a function, or from all but the type checker, counts too."""
    package = ROOT / "datarax_ray"
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in package.rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph = {name: imports_of(path, set(files)) - {name} for name, path in files.items()}
    assert sum(map(len, graph.values())) > 500  # it looked
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph | {"datarax_ray.plan.state": {"datarax_ray.feed.stream"}}).prepare()
    graphlib.TopologicalSorter(graph).prepare()


def test_no_room_has_more_than_sixteen_files_lying_flat():
    rooms = {path for path in (ROOT / "datarax_ray").rglob("*") if path.is_dir() and path.name != "__pycache__"}
    assert {str(room): n for room in rooms if (n := len(list(room.glob("*.py")))) > 17} == {}  # __init__ is one more


def test_public_names_are_where_the_documentation_says():
    from datarax_ray import checkpoint, grain, sources

    assert grain.DataLoader.__module__.startswith("datarax_ray.grain")
    assert datarax_ray.PipelineSave is checkpoint.PipelineSave
    assert datarax_ray.PipelineRestore is checkpoint.PipelineRestore
    assert datarax_ray.ArrayRecordSourceConfig is sources.ArrayRecordSourceConfig
    assert datarax_ray.ArrayRecordSourceModule is sources.ArrayRecordSourceModule
    assert isinstance(datarax_ray.Pipeline, type)
    assert isinstance(datarax_ray.RaySource, type)
    assert set(datarax_ray.__all__) <= set(dir(datarax_ray))
    with pytest.raises(AttributeError, match="has no 'RaySauce'"):
        _ = datarax_ray.RaySauce
