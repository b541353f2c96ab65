"""A program that is interrupted, or just ends, in the middle of a stream: at once, with nothing left behind."""

import json
import os
import signal
from pathlib import Path

import pytest

from datarax_ray import Pipeline
from tests.data import write_files
from tests.pipeline import slow_stream
from tests.resume import assert_equal, on_host
from tests.waiting import until

SCRIPT = """
import json, os, sys
from pathlib import Path

if __name__ == "__main__":
    from datarax_ray import Pipeline, RaySource
    from tests.pipeline import slow_stream

    _, mode, data, state = sys.argv
    source = slow_stream.make(data)
    if mode == "ray":
        import ray
        import tests.clusters  # so that it starts less
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
        source = RaySource(source, num_actors=2, num_cpus=1)
        print("actors", *(stats["pid"] for stats in source.stats().values()), flush=True)
    pipeline = Pipeline(source=source, batch_size=4)
    for batch in pipeline:
        written = Path(state).with_suffix(".part")
        written.write_text(json.dumps(pipeline.get_state()))
        written.rename(state)
        print("batch", flush=True)
        if mode == "ends":
            Path(os.environ["SLOW_STREAM"]).touch()
            break
"""


def start(mode, directory):
    given = mode, directory, directory / "state.json"
    return slow_stream.start(directory, SCRIPT, *given, SLOW_STREAM=str(directory / "slower"))


def processes_of(session):
    """Commands of the processes that the driver started, and their children."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append((path / "cmdline").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while it was looked at
    return found


@pytest.mark.parametrize(
    ("mode", "num_batches"),
    [
        ("ray", 4),
        pytest.param("local", 4, marks=pytest.mark.slow),
        pytest.param("local", 1, marks=pytest.mark.slow),
        pytest.param("ray", 1, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_ends_at_once_and_leaves_no_process_and_a_state_that_resumes(tmp_path, mode, num_batches):
    write_files(tmp_path, (60, 40))
    driver = start(mode, tmp_path)
    until(lambda: driver.said()[0].count("batch\n") >= num_batches, 120)
    (tmp_path / "slower").touch()
    os.kill(driver.pid, signal.SIGINT)
    done = driver.wait(60)
    assert done.returncode == 1, done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    until(lambda: not processes_of(driver.pid), 20)
    state = json.loads((tmp_path / "state.json").read_text())
    want = batches_from(tmp_path, None)
    number = state["position"] // 4
    assert number >= 1
    assert_equal(batches_from(tmp_path, state), want[number:])


def batches_from(directory, state):
    """The batches of the first three epochs, from a state on."""
    with Pipeline(source=slow_stream.make(directory), batch_size=4) as pipeline:
        if state is not None:
            pipeline.set_state(state)
        return [on_host(pipeline.step()) for _ in range((300 - pipeline.position) // 4)]


def test_a_program_that_ends_in_the_middle_does_not_wait_for_the_rest(tmp_path):
    write_files(tmp_path, (60, 40))
    driver = start("ends", tmp_path)
    done = driver.wait(60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Error") == 0
