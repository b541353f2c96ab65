"""A program whose Ray is shut down, started again or lost under a stream; each is a program of its own."""

import pytest
import ray
from ray.exceptions import RayTaskError

from datarax_ray.actors import connection as connection_module
from datarax_ray.actors.connection import RAY_LOCK, Connection
from tests.programs import python

START = """
import os, signal, sys, threading, time
import ray
from datarax_ray import Pipeline, RaySource
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import decode

def slowly(element):
    time.sleep(0.05)
    return element

def make(**options):
    module = ArrayRecordSourceModule(ArrayRecordSourceConfig(num_epochs=-1), sys.argv[1:], transforms=[decode, slowly])
    return RaySource(module, num_actors=1, num_cpus=0.5, chunk_size=60, **options)

def later(what):
    threading.Timer(0.5, what).start()

def signalled(handler):
    signal.signal(signal.SIGUSR1, handler)
    later(lambda: os.kill(os.getpid(), signal.SIGUSR1))

def start():
    ray.init("local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
"""
WHILE = {
    "a pipeline waits": """
pipeline = Pipeline(source=make(), batch_size=8)
pipeline.step()
later(ray.shutdown)
while True:
    pipeline.step()
""",
    "nobody waits": """
pipeline = Pipeline(source=make(), batch_size=8, prefetch=0)
pipeline.step()
ray.shutdown()
while True:
    pipeline.step()
""",
    "a handler does it": """
source = make()
source.get_batch(8)
signalled(lambda *_: ray.shutdown())
while True:
    source.get_batch(8)
""",
    "sources are made": """
made = [make()]
later(ray.shutdown)
while ray.is_initialized() and len(made) < 9:  # who makes one after the end starts another Ray
    made.append(make())
while True:
    made[0].get_batch(8)
""",
}


def run(body, files, begin="start()"):
    # never a cluster that happens to run on this machine
    return python("-c", START + begin + body, *files, RAY_ADDRESS="local")


@pytest.mark.parametrize(
    "doing",
    [pytest.param(name, marks=pytest.mark.slow) for name in WHILE],  # each a Ray of its own
)
def test_a_ray_that_is_shut_down_is_an_error(files, doing):
    done = run(WHILE[doing], files)
    assert done.returncode == 1, done.stderr
    assert "Traceback" in done.stderr
    assert "\nRuntimeError: Ray was shut down (ray.shutdown(), or the end of ray.init's context)" in done.stderr


@pytest.mark.parametrize(
    ("handled", "code", "said"),
    [
        pytest.param("sys.exit(3)", 3, "", marks=pytest.mark.slow),  # each a Ray of its own, as those before
        pytest.param("sys.exit()", 0, "", marks=pytest.mark.slow),
        pytest.param("sys.exit('bye. really')", 1, "bye. really\n", marks=pytest.mark.slow),
        pytest.param("(ray.shutdown(), sys.exit(4))", 4, "", marks=pytest.mark.slow),
        pytest.param("signal.default_int_handler(*_)", 1, "KeyboardInterrupt\n", marks=pytest.mark.slow),
    ],
)
def test_what_a_signals_handler_raises_while_a_source_waits_is_raised(files, handled, code, said):
    done = run(
        f"""
source = make()
source.get_batch(8)
signalled(lambda *_: {handled})
while True:
    source.get_batch(8)
""",
        files,
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.endswith(said)
    assert ("Traceback" in done.stderr) == said.endswith("Interrupt\n")


@pytest.fixture
def connection(monkeypatch):
    monkeypatch.setattr(connection_module, "_session", lambda: ("job", "node"))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    return Connection()


@pytest.mark.parametrize("rays", ["Broken pipe", "Connection reset by peer"])
def test_a_raylet_that_has_ended_is_told_with_what_to_do(connection, rays):
    with pytest.raises(RuntimeError, match=rf"have ended \({rays}\).* last saved state$"), connection.waiting():
        raise OSError(rays)


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(32, "Broken pipe"),  # of Python, as where the terminal of a log line is gone
        RayTaskError("read", "OSError: Broken pipe", OSError("Broken pipe")).as_instanceof_cause(),
        OSError("no such bucket"),
    ],
    ids=["Python", "a task", "another"],
)
def test_no_other_error_is_taken_for_the_end_of_the_raylet(connection, error):
    with pytest.raises(OSError, match=r"pipe|bucket") as raised, connection.waiting():
        raise error
    assert raised.value is error


def test_the_lock_that_ray_shuts_down_under_is_the_one_that_it_is_asked_under():
    assert RAY_LOCK is ray._private.worker._connect_or_shutdown_lock


@pytest.mark.slow
def test_a_source_whose_ray_was_shut_down_says_so_though_another_was_started_and_can_be_closed(files):
    done = run(
        """
used, left = make(), make()
used.get_batch(4), left.get_batch(4)
ray.shutdown()
start()
for ask in (used.stats, lambda: used.add_actors(1), lambda: used.get_batch(8)):
    try:
        ask()
    except RuntimeError as error:
        assert "Ray was shut down" in str(error) and "this RaySource with it; make a new RaySource" in str(error), error
    else:
        raise AssertionError(ask)
used.close()
with make() as another:
    assert another.get_batch(4)["index"].tolist() == [0, 1, 2, 3]
print("ok")
""",
        files,
    )
    assert done.stdout == "ok\n", done.stderr
    assert "Traceback" not in done.stderr  # of the one that was left open as well


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "shared"])
def test_a_program_whose_own_node_is_given_up_is_told_that_and_does_not_wait(files, name):
    done = run(
        f"""
import os, signal, time
from datarax_ray.actors.lifecycle import Thresholds
health = {{"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}}
options = {{"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False, "log_to_driver": False}}
ray.init("local", namespace="job", _system_config=health, **options)
used = make(name={name!r}, thresholds=Thresholds(ask_head_s=0.5))
used.get_batch(4)
node = ray.get_runtime_context().get_node_id()
(raylet,) = ray._private.worker._global_node.all_processes["raylet"]
os.kill(raylet.process.pid, signal.SIGKILL)  # as where /dev/shm is full; the head lives
began = time.monotonic()
try:
    while True:
        used.get_batch(4)
except RuntimeError as error:
    assert "given up" in str(error) and node[:12] in str(error) and "last saved state" in str(error), error
assert time.monotonic() - began < 60  # where actors that cannot start are tried, or waited for, it takes minutes
""",
        files,
        begin="",
    )
    assert done.returncode == 0, done.stderr
