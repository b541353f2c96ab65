"""A driver that dies without a word: while it saves, or with the head of its cluster. What was saved goes on."""

import json
import signal

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from datarax_ray import Pipeline
from datarax_ray.checkpoint import PipelineRestore
from tests.data import write_files
from tests.pipeline import slow_stream
from tests.resume import assert_equal, on_host
from tests.waiting import until

NUM_WEIGHTS = 4_000_000  # 16 MB: saving takes a while, and there is always one going on

SAVING = """
import sys
import jax.numpy as jnp
import orbax.checkpoint as ocp
from datarax_ray import Pipeline
from datarax_ray.checkpoint import PipelineSave
from tests.pipeline import slow_stream

if __name__ == "__main__":
    _, data, run, num_weights = sys.argv
    pipeline = Pipeline(source=slow_stream.make(data), batch_size=4)
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
    with ocp.CheckpointManager(run, options=options) as manager:
        for step, batch in enumerate(pipeline):
            model = ocp.args.StandardSave({"w": jnp.full(int(num_weights), step, jnp.float32)})
            manager.save(step, args=ocp.args.Composite(model=model, data=PipelineSave(pipeline)))
"""

HEADLESS = """
import json, os, signal, sys

if __name__ == "__main__":
    import orbax.checkpoint as ocp
    import ray
    from ray.cluster_utils import Cluster
    from datarax_ray import Pipeline, RaySource
    from datarax_ray.checkpoint import PipelineRestore, PipelineSave
    from tests.clusters import BARE
    from tests.pipeline import slow_stream

    _, data, run, rows, num_steps, then = sys.argv
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4} | BARE)
    ray.init(cluster.address, log_to_driver=False)
    source = RaySource(slow_stream.make(data), num_actors=2, num_cpus=1)
    pipeline = Pipeline(source=source, batch_size=4)
    with pipeline, ocp.CheckpointManager(run) as manager, open(rows, "w") as delivered:
        if manager.latest_step() is not None:
            manager.restore(manager.latest_step(), args=ocp.args.Composite(data=PipelineRestore(pipeline)))
        for step in range(pipeline.position // 4, int(num_steps)):
            index = pipeline.step()["index"].tolist()
            print(json.dumps([step, index]), file=delivered, flush=True)
            manager.save(step, args=ocp.args.Composite(data=PipelineSave(pipeline)))
            manager.wait_until_finished()
            if step == 3 and then != "go on":
                cluster.head_node.kill_gcs_server()
                if then == "restart":
                    cluster.head_node.start_gcs_server()
            if step == 10 and then == "restart":
                os.kill(source.stats()[0]["pid"], signal.SIGKILL)
    ray.shutdown()
    cluster.shutdown()
"""


def end_of(driver):
    """Its exit status and what it has said, when it has ended by itself."""
    done = driver.wait(150)
    return done.returncode, done.stdout + done.stderr


def rest(pipeline, stop=300):
    return [on_host(pipeline.step()) for _ in range((stop - pipeline.position) // 4)]


def test_killed_while_it_saves_the_last_complete_step_goes_on_exactly(tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    write_files(data, (60, 40))
    driver = slow_stream.start(tmp_path, SAVING, data, run, NUM_WEIGHTS)

    def is_saving():
        """The first steps are complete, and another is being written."""
        names = [path.name for path in run.glob("*")] if run.exists() else []
        return sum(name.isdigit() for name in names) >= 2 and any("tmp" in name for name in names)

    try:
        until(is_saving, 60)
    finally:
        driver.kill()
    assert driver.wait().returncode == -signal.SIGKILL
    with (
        Pipeline(source=slow_stream.make(data), batch_size=4) as whole,
        Pipeline(source=slow_stream.make(data), batch_size=4) as resumed,
        ocp.CheckpointManager(run) as manager,
    ):
        step = manager.latest_step()
        assert step is not None
        assert step >= 1
        model = ocp.args.StandardRestore({"w": jnp.zeros(NUM_WEIGHTS, jnp.float32)})
        restored = manager.restore(step, args=ocp.args.Composite(model=model, data=PipelineRestore(resumed)))
        assert float(restored.model["w"].min()) == float(restored.model["w"].max()) == step
        assert resumed.position == 4 * (step + 1)
        assert_equal(rest(resumed), rest(whole)[step + 1 :])


@pytest.mark.slow  # 40 s: a cluster of its own, and Ray waits for its head
@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("stay down", "Failed to connect to GCS within 5 seconds"),
        # at the old one's address, and remembering nothing; reading goes on until an actor is to be started
        ("restart", "the head of the Ray cluster was started again and does not know this program"),
    ],
)
def test_without_its_head_ray_ends_the_program_with_a_reason_and_a_new_head_goes_on(tmp_path, then, reason):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    write_files(data, (60, 40))
    env = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
    driver = slow_stream.start(
        tmp_path, HEADLESS, data, run, tmp_path / "first", 10_000, then, SLOW_STREAM=str(tmp_path / "slower"), **env
    )
    code, output = end_of(driver)
    assert code != 0
    assert reason in output
    driver = slow_stream.start(tmp_path, HEADLESS, data, run, tmp_path / "second", 300, "go on")
    code, output = end_of(driver)
    assert code == 0, output
    first, second = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in ("first", "second")
    )
    with Pipeline(source=slow_stream.make(data), batch_size=4) as whole:
        want = [[step, batch["index"].tolist()] for step, batch in enumerate(rest(whole, 1200))]
    assert len(first) > 4
    assert second[0][0] in (first[-1][0], first[-1][0] + 1)  # whether the last step was saved before the end came
    assert first[: second[0][0]] + second == want
