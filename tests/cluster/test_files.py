"""What cluster/ ships beside the job: each file is checked by what will read it, or by the nearest to it at hand."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import job
import jsonschema
import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder
from restarts import COMES_AGAIN

import datarax_ray
from datarax_ray.cli.commands.clusters import init
from tests.cli.screens import screen
from tests.cluster.conftest import until
from tests.cluster.kuberay_schema import RAY_CLUSTER, RAY_JOB

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / name).read_text())


def arguments_of(entrypoint: str) -> list[str]:
    words = shlex.split(entrypoint)
    return words[next(index for index, word in enumerate(words) if word.endswith("job.py")) + 1 :]


@pytest.mark.parametrize("script", sorted(path.name for path in CLUSTER.glob("*.sh")))
def test_a_script_can_be_run_as_it_is(script: str) -> None:
    assert os.access(CLUSTER / script, os.X_OK)


def test_ray_takes_the_autoscalers_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(manifest("autoscaler.yaml"))
    validate_config(config)
    groups = config["available_node_types"]
    assert {name: group["labels"]["role"] for name, group in groups.items()} == {
        "head": "head", "ingest": "cpu", "trainer": "trainer"
    }  # fmt: skip
    assert groups["head"]["resources"] == {"CPU": 0}
    assert {"preemptible": True} in groups["ingest"]["node_config"]["scheduling"]
    assert {"preemptible": True} not in groups["trainer"]["node_config"]["scheduling"]
    assert groups["trainer"]["resources"]["GPU"] == 1
    assert 0 < groups["ingest"]["min_workers"] < groups["ingest"]["max_workers"]
    assert groups["ingest"]["max_workers"] + groups["trainer"]["max_workers"] == config["max_workers"]


@pytest.mark.parametrize(("name", "schema"), [("ray-cluster", RAY_CLUSTER), ("ray-job", RAY_JOB)])
def test_a_manifest_has_the_shape_of_its_crd(name: str, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema).validate(manifest(f"kuberay/{name}.yaml"))


def test_rays_autoscaler_reads_labels_resources_and_bounds_of_a_ray_cluster() -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr as derive

    cluster = manifest("kuberay/ray-cluster.yaml")
    cluster["metadata"]["namespace"] = "default"  # as the API server fills it in
    groups = derive(cluster)["available_node_types"]  # validates it too
    found = {
        name: (group["labels"], group["resources"]["CPU"], group["resources"].get("GPU"), group["min_workers"])
        for name, group in groups.items()
    }
    assert found == {
        "headgroup": ({"role": "head"}, 0, None, 0),
        "ingest": ({"role": "cpu"}, 14, None, 2),
        "trainer": ({"role": "trainer"}, 12, 1, 1),
    }


def test_a_ray_job_has_the_cluster_of_the_ray_cluster() -> None:
    assert manifest("kuberay/ray-job.yaml")["spec"]["rayClusterSpec"] == manifest("kuberay/ray-cluster.yaml")["spec"]


def test_the_image_has_the_version_of_ray_that_the_manifests_name() -> None:
    (version,) = re.findall(r"^ARG RAY_VERSION=(\S+)$", (CLUSTER / "Dockerfile").read_text(), re.M)
    assert manifest("kuberay/ray-cluster.yaml")["spec"]["rayVersion"] == version
    (ours,) = re.findall(r"^ARG DATARAX_RAY_VERSION=(\S+)$", (CLUSTER / "Dockerfile").read_text(), re.M)
    assert ours == datarax_ray.__version__


def test_the_ray_jobs_entrypoint_is_a_job() -> None:
    spec = manifest("kuberay/ray-job.yaml")["spec"]
    options = job._parser().parse_args(arguments_of(spec["entrypoint"]))
    assert options.actor_label == [("role", "cpu")]
    assert yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"].keys() <= {
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "RAY_JOB_STOP_WAIT_TIME_S",
    }


def metrics_of_the_dashboard() -> set[str]:
    """Every word of its queries that is a metric's name: those with a prefix of Ray's exporters."""
    panels = json.loads((CLUSTER / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) >= len(panels) > 0
    return {name for query in queries for name in re.findall(r"\b(?:ray|autoscaler|datarax_ray)_\w+", query)}


def metrics_of_the_package() -> set[str]:
    """As Prometheus has them: what is made of ray.util.metrics, by its first argument."""
    text = "".join(path.read_text() for path in (ROOT / "datarax_ray" / "actors").rglob("*.py"))
    return {f"ray_{name}_total" for name in re.findall(r'Metric\(\s*"(\w+)"', text)}


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    """Ray's by the queries of its own dashboards; the package's all, and the runbook names each."""
    from ray.dashboard.modules.metrics.dashboards import default_dashboard_panels

    known = set(re.findall(r"\b(?:ray|autoscaler)_\w+", Path(default_dashboard_panels.__file__).read_text()))
    assert {name for name in metrics_of_the_dashboard() if "datarax_ray" not in name} <= known
    own = {name for name in metrics_of_the_dashboard() if "datarax_ray" in name}
    assert (
        own == metrics_of_the_package() == set(re.findall(r"ray_datarax_ray_\w+", (CLUSTER / "RUNBOOK.md").read_text()))
    )


def test_the_dashboards_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    panels = json.loads((CLUSTER / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_every_message_of_the_runbook_is_one_of_the_packages_or_the_jobs() -> None:
    said = set()
    for path in [*(ROOT / "datarax_ray").rglob("*.py"), *CLUSTER.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.add(node.value)
            elif isinstance(node, ast.ClassDef):
                said.add(node.name)
    table = (CLUSTER / "RUNBOOK.md").read_text().partition("## What each message means")[2]
    messages = [part for row in table.splitlines()[4:] for part in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(messages) > 10
    assert [message for message in messages if not any(message in text for text in said)] == []


class Slurm:
    """slurm.sh in a folder of its own, between commands that write down what they were asked for."""

    def __init__(self, directory: Path, exit_status: int) -> None:
        self.directory, self.calls = directory, directory / "calls"
        for name in ("job.py", "restarts.py"):
            (directory / name).touch()
        stubs = {
            "hostname": "echo 10.0.0.7 fe80::1",
            "srun": "exec sleep 60",
            "scontrol": "",
            "ray": "if [[ $1 == start ]]; then exec sleep 60; fi",
            "python": f"(({exit_status})) || for i in $(seq 600); do sleep 0.1; done\nexit {exit_status}",
        }
        (directory / "bin").mkdir()
        for name, body in stubs.items():
            stub = directory / "bin" / name
            # first: once it is written down the test may send a signal
            trap = f'trap "echo saved >> {self.calls}; exit 0" TERM INT\n' if name == "python" else ""
            stub.write_text(f'#!/usr/bin/env bash\n{trap}echo "{name} ${{RAY_ADDRESS:-}} $*" >> {self.calls}\n{body}\n')
            stub.chmod(0o755)

    def start(self, **env: str) -> subprocess.Popen[str]:
        slurm = {"SLURM_SUBMIT_DIR": str(self.directory), "SLURM_JOB_ID": "123", "SLURM_CPUS_ON_NODE": "12"}
        path = f"{self.directory / 'bin'}:{os.environ['PATH']}"
        command = [CLUSTER / "slurm.sh", "--data", "/with space", "--checkpoint-dir", "/ckpt"]
        return subprocess.Popen(
            command, env={"HOME": str(self.directory), "PATH": path} | slurm | env, stderr=subprocess.PIPE, text=True
        )

    def said(self) -> str:
        return self.calls.read_text() if self.calls.exists() else ""


@pytest.mark.parametrize(("name", "is_queued_again"), [("TERM", True), ("INT", False)])
def test_slurm_hands_the_signal_to_the_job_and_queues_again_at_the_time_limit(
    tmp_path: Path, name: str, is_queued_again: bool
) -> None:
    slurm = Slurm(tmp_path, 0)
    with slurm.start() as running:
        begun = ("ray  start", "srun ", "python ")  # at once, in the background
        until(lambda: all(each in slurm.said() for each in begun), "the start of the job")
        running.send_signal(signal.Signals[f"SIG{name}"])
        _, errors = running.communicate(timeout=30)
    said = slurm.said()
    assert running.returncode == 0, errors
    assert "ray  start --head --block --node-ip-address=10.0.0.7 --port=20123" in said
    assert "srun 10.0.0.7:20123 --het-group=1 bash -c exec ray start --block" in said
    assert (
        "python 10.0.0.7:20123 restarts.py job.py --actor-label role=cpu --data /with space --checkpoint-dir /ckpt\n"
        in said
    )
    assert "saved\n" in said
    assert ("scontrol 10.0.0.7:20123 requeue 123\n" in said) is is_queued_again


@pytest.mark.parametrize(
    ("status", "restarts", "is_queued_again", "ends_with"),
    [(3, "19", True, 3), (3, "20", False, 1), (COMES_AGAIN, "0", False, COMES_AGAIN)],
)
def test_slurm_queues_a_failed_job_again_so_many_times_and_not_for_what_would_come_again(
    tmp_path: Path, status: int, restarts: str, is_queued_again: bool, ends_with: int
) -> None:
    slurm = Slurm(tmp_path, status)
    with slurm.start(SLURM_RESTART_COUNT=restarts) as running:
        _, errors = running.communicate(timeout=30)
    assert ("requeue 123" in slurm.said()) is is_queued_again
    assert ("queued again" in errors) is is_queued_again
    assert running.returncode == ends_with


def test_the_wheel_has_the_files_and_init_writes_them_as_they_are(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel]
    subprocess.run([sys.executable, *install], check=True)
    written = tmp_path / "mine"
    done = subprocess.run(
        [sys.executable, "-m", "datarax_ray", "cluster", "init", written],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site"), "COLUMNS": "300"},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"begin with {written}/README.md" in done.stdout
    ours = [path.relative_to(CLUSTER) for path in CLUSTER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(ours) > 10
    assert sorted(path.relative_to(written) for path in written.rglob("*") if path.is_file()) == sorted(ours)
    for name in ours:
        assert (written / name).read_bytes() == (CLUSTER / name).read_bytes()
        assert os.access(written / name, os.X_OK) is os.access(CLUSTER / name, os.X_OK)


def test_init_writes_over_nothing_unless_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "learner.py").write_text("mine")
    with pytest.raises(FileExistsError, match=r"has learner.py already.*--force"):
        init(tmp_path, screen())
    assert [path.name for path in tmp_path.iterdir()] == ["learner.py"]
    init(tmp_path, screen(), force=True)
    assert (tmp_path / "learner.py").read_bytes() == (CLUSTER / "learner.py").read_bytes()
