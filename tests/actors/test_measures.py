"""Where the time goes is what Prometheus reads on the driver's node."""

import re
import time
import urllib.request

import numpy as np
import pytest
import ray

from datarax_ray import Pipeline, RandomAccessSource, RandomAccessSourceConfig, RaySource
from tests.waiting import until


def metrics(name):
    """Values of this metric by its tags of this package's, of all processes on this node."""
    node = ray.nodes()[0]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url) as answer:
        lines = re.findall(rf"^{name}{{(.*)}} (\S+)$", answer.read().decode(), re.MULTILINE)
    found = ((dict(re.findall(r'(who|what)="([^"]+)"', tags)), value) for tags, value in lines)
    return {tuple(tags[name] for name in ("who", "what") if name in tags): float(value) for tags, value in found}


def crop(element):
    time.sleep(0.002)
    return element


@pytest.mark.slow  # Ray sends metrics every 10 s
def test_what_the_trainer_waits_for_is_a_metric(whole_ray):
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), {"x": np.arange(200)}, transforms=[crop])
    with Pipeline(source=RaySource(source, num_actors=1, num_cpus=0.5), batch_size=20) as pipeline:
        list(pipeline)
        until(lambda: metrics("ray_datarax_ray_records_total") == {(): 200.0})
        found = metrics("ray_datarax_ray_seconds_total")
        stats = pipeline.stats()
    assert found["actors", "crop"] == pytest.approx(stats.reading["crop"])
    assert found["trainer", "waiting"] == pytest.approx(stats.waited_s)
    assert found["trainer", "starting"] == pytest.approx(stats.first_s)
    assert found["driver", "assembling"] <= stats.making["assembling"]
