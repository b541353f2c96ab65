"""What OpenTelemetry is told of a run, by the page's own set-up: spans by OTLP, metrics where Ray's file says."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="pip install opentelemetry-exporter-otlp-proto-http"
)

PAGE = Path(__file__).parents[2] / "docs/operations/where-the-time-goes.md"

SCRIPT = """
import json, os, urllib.request
import numpy as np
import ray
from datarax_ray import Pipeline, RandomAccessSource, RandomAccessSourceConfig, RaySource
from tests.waiting import until

ray.init(num_cpus=2, _tracing_startup_hook="tracing:start")
source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1, shuffle=True), {"x": np.arange(4000)})
with Pipeline(source=source, batch_size=20) as alone:
    wanted = [batch["x"].tolist() for batch in alone]

actors = RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=50)
with Pipeline(source=actors, batch_size=20) as pipeline:
    print("same", [batch["x"].tolist() for batch in pipeline] == wanted)
    print("pids", *(stats["pid"] for stats in actors.stats().values()))

    def metrics():
        with open(os.environ["RAY_TMPDIR"] + "/ray/prom_metrics_service_discovery.json") as file:
            ((targets),) = (each["targets"] for each in json.load(file))
        texts = [urllib.request.urlopen(f"http://{target}/metrics").read().decode() for target in targets]
        lines = [line for text in texts for line in text.splitlines()]
        return [line for line in lines if line.startswith("ray_datarax_ray_records_total")]

    print("records", until(metrics)[0].split()[-1])
ray.shutdown()
"""


class Collector(ThreadingHTTPServer):
    """Takes spans as OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Export)
        self.spans: list[Any] = []


class _Export(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        for resource in service.ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")  # an empty answer is a message of this protocol
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.slow  # Ray sends metrics every 10 s
def test_each_chunk_is_a_span_of_who_asks_and_one_below_it_of_who_reads(collector: Collector, tmp_path: Path) -> None:
    (hook,) = re.findall(r"^```python\n(# tracing.py.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "tracing.py").write_text(hook)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="ray-") as temporary:  # short: Ray puts sockets there
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment
            | {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
                "OTEL_BSP_SCHEDULE_DELAY": "200",  # what an actor has not sent when it is ended is gone
                "PYTHONPATH": os.pathsep.join((str(tmp_path), os.getcwd())),
                "RAY_TMPDIR": temporary,
            },
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if re.match("same|pids|records", line))
    assert (said["same"], said["records"]) == ("True", "4000.0")

    asked = {span.span_id for span in collector.spans if span.name == "ReaderActor.read ray.remote"}
    read = [span for span in collector.spans if span.name == "ReaderActor.read ray.remote_worker"]
    assert len(asked) == len(read) >= 4000 / 50  # for each chunk, of each actor that has some of it
    assert {span.parent_span_id for span in read} == asked
    assert {value(span, "ray.pid") for span in read} == set(said["pids"].split())


def value(span: Any, name: str) -> Any:
    """Of this attribute."""
    (found,) = (each.value for each in span.attributes if each.key == name)
    return getattr(found, found.WhichOneof("value"))
