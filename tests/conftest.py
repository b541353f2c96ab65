"""Fixtures: files shared by many tests, one local Ray for a module, two CPU devices."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from datarax_ray.read.code_digests import code_digests
from datarax_ray.read.stream import transforms_of

if TYPE_CHECKING:
    from datarax_ray.feed.sample import Sample
    from datarax_ray.read.stream import Stream
    from tests.clusters import LocalRay
    from tests.http_files import HttpFiles

gc.disable()  # until all is imported, see pytest_collection_finish
SHOWN_PURE: set[str] = set()  # digests of transforms that made the same elements twice

# The same examples in every run, so few are enough; tests/fuzz are the programs that go on. And no verdict on how fast
# a busy machine makes them.
for name, most in (("usual", 15), ("slow", 100)):
    hypothesis.settings.register_profile(
        name,
        derandomize=True,
        deadline=None,
        max_examples=most,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("usual")

# Two devices, so that sharding is real, and a third of the CPU for what is compiled; set before anything imports jax.
FLAGS = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
if metadata.version("jaxlib").startswith("0.10."):  # XLA ends a process at a flag that it does not know
    FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# One token for whatever Ray: a test's ray.init turns the check on for its process, and its commands must know it. The
# file that Ray keeps in the user's home may be open to others, which every run would warn of.
os.environ["RAY_AUTH_TOKEN"] = "0123456789abcdef" * 4
# Ray starts its workers at nice 15: beside two busy processes of other tests an actor's second of work took a minute.
os.environ.setdefault("RAY_worker_niceness", "0")
# Nor has each Ray two workers that most tests have no use for.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
# Three Rays that start at once on two cores may each take longer than Ray's 30 s.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
# Tests run in several processes (pytest-xdist), each with a Ray of its own, and none may find the other's as "auto".
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray-")  # short: Ray puts sockets there
    atexit.register(shutil.rmtree, os.environ["RAY_TMPDIR"], ignore_errors=True)

# In the background of a shell that is no terminal's SIGINT is ignored, by whatever is started there as well: tests of
# Ctrl-C would wait for ever. With a handler here the programs that tests start have Python's own.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a test of each folder needs: `pytest -m "not ray"` takes a minute or two. See tests/README.md.
MARKS = {
    "actors": ("ray",),
    "benchmarks": ("ray", "jax"),
    "chaos": ("ray", "cluster"),
    "cli": ("ray", "jax"),
    "cluster": ("ray", "cluster", "jax"),
    "docs": ("ray", "jax"),
    "grain": ("ray", "jax"),
    "pipeline": ("jax",),
    "sources": ("jax",),
    "write": ("jax",),
}


# Modules that take longer than their number of tests says: seconds on two cores. Only the order matters, in which the
# processes of --dist loadfile are given files; `pytest --durations=0` tells.
LONG = (
    (100, "test_submitted"),
    (80, "test_ray_source test_every_source test_examples test_pages"),
    (50, "test_demo test_meshes test_scan test_site test_remote_disk_cache"),
    (40, "test_amendments test_compressed_text test_loader test_mixtures test_ray_tensors test_merged_mixture"),
    (30, "test_faults test_closing test_materialize test_nodes test_benchmarks_run test_streams test_changed_programs"),
    (
        20,
        "test_ledger test_job test_chaos test_fuzz test_missing_mount test_growing test_local_ray "
        "test_augmentations test_conformance",
    ),
)
SECONDS = {name: seconds for seconds, names in LONG for name in names.split()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="also run the long tests")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--run-slow"):
        hypothesis.settings.load_profile("slow")
        os.environ["RAY_STARTS_WORKERS"] = "1"  # see tests/clusters.py


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.parent.name
        names = set(MARKS.get(folder, ())) | ({"ray"} if {"ray_local", "cluster"} & set(item.fixturenames) else set())
        for name in sorted(names):
            item.add_marker(name)
        if "slow" in item.keywords and not config.getoption("--run-slow"):
            item.add_marker(pytest.mark.skip(reason="long; run with --run-slow"))
    # Modules with the local Ray come last, one after the other: those before them start Rays of their own, and know no
    # other. The long ones of both come first, so that no process has one left when the others have ended.
    runs = [item for item in items if not any(mark.name == "skip" for mark in item.iter_markers())]
    with_local_ray = {item.path for item in runs if "ray_local" in item.fixturenames}
    lengths = Counter(item.path for item in runs)
    items.sort(key=lambda item: (item.path in with_local_ray, -SECONDS.get(item.path.stem, lengths[item.path] / 20)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let what is compiled be kept in a folder: the pipelines of most tests differ in nothing that JAX compiles.

    In this process alone: JAX writes no file at once, so a process that is killed would leave half of one to others.

    What was imported stays: the garbage collector need not go through it each time (a tenth of what tests compute).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # and what tests make goes soon; 4 % less of CPU than with Python's own
    gc.enable()
    if "jax" not in sys.modules:
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    directory = tempfile.mkdtemp(prefix="jax-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_compilation_cache_max_size", 2**30)  # with a bound it locks: threads compile at once
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compilation_cache.reset_cache()  # some modules have compiled something by now, without it


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four files of uneven sizes, 120 records in all."""
    from tests.data import write_files

    return write_files(tmp_path_factory.mktemp("files"), (7, 5, 8, 100))


@pytest.fixture(autouse=True)
def sampled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests make thousands of sources with the same few transforms, and a sample costs as much as their first batch."""
    if source := sys.modules.get("datarax_ray.feed.source"):
        made = source.sampled

        def sampled(description: Stream, **options: Any) -> Sample | None:
            key = str(code_digests(transforms_of(description)))
            if key in SHOWN_PURE:
                return None
            sample = made(description, **options)
            if sample is not None and not sample.impure:
                SHOWN_PURE.add(key)
            return sample

        monkeypatch.setattr(source, "sampled", sampled)


@pytest.fixture(autouse=True)
def levels_of_logs() -> None:
    """As Python has them, whatever a test before, or a library that it loaded, has set: tests read what is logged."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("datarax_ray").setLevel(logging.NOTSET)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[HttpFiles]:
    """The files of the test, behind a server."""
    from tests.http_files import HttpFiles

    found = HttpFiles(tmp_path)
    yield found
    found.close()


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="session")
def ray_of_modules() -> Iterator[LocalRay]:
    """The Ray that modules have one after the other: a start of its own costs each of them five seconds of CPU."""
    from tests.clusters import LocalRay

    held = LocalRay()
    yield held
    held.end()


@pytest.fixture(scope="module")
def ray_local(ray_of_modules: LocalRay, by_value: None) -> Iterator[None]:
    """A local Ray with room for many small actors, in which no module before has left anything."""
    ray_of_modules.begin()
    yield
    if not ray_of_modules.is_as_begun():
        ray_of_modules.end()


@pytest.fixture(scope="module")
def by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the module and those that it imports from define travels to actors by value, as that of a script does.

    They would import the module otherwise, and with it JAX: more CPU than all else that an actor of a test needs.
    """
    from ray import cloudpickle

    named = {getattr(value, "__module__", None) for value in vars(request.module).values()}
    modules = {sys.modules[name] for name in named if name and re.match(r"tests\..*\btest_", name)} | {request.module}
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
