"""An actor feeds the stream only where it makes the elements that the driver and the others make."""

import logging
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from datarax_ray import RaySource
from datarax_ray.feed.sample import Admission, Sample
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.evidence import RowsDigested
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.actors import of_a_user
from tests.clusters import actors
from tests.waiting import until


def sample(*digests, python="3.11.7"):
    places = np.arange(len(digests))
    kinds, fields = {"image": "uint8 (8, 8)"}, {"image": np.array(digests, np.uint64)}
    return Sample(RowsDigested(places, 0 * places, kinds, fields), releases={"python": python, "numpy": "2.4"})


def test_the_first_sample_is_what_others_are_compared_with():
    admission = Admission()
    assert admission.refusal(sample(1, 2), "a") == ""
    assert admission.refusal(sample(1, 2, 3), "b") == ""
    assert admission.refusal(None, "c") == ""  # it could make none: reading says why
    refused = admission.refusal(sample(1, 3, python="3.12.1"), "d (10.0.0.4)")
    assert "field 'image' of the element at position 1 differs on node d (10.0.0.4)" in refused
    assert "Releases there and here: python 3.11.7 and 3.12.1." in refused
    assert admission.refusal(sample(1, 2), "e") == ""


def test_a_transform_that_is_no_function_is_reported_once_and_an_error_where_that_is_asked_for(caplog):
    impure = replace(sample(1), impure="transform Draw made another field 'x' when it was made again")
    admission = Admission()
    with caplog.at_level(logging.WARNING):
        assert [admission.refusal(impure, node) for node in "ab"] == ["", ""]
    assert len(caplog.messages) == 1
    with pytest.raises(ValueError, match="transform Draw made another field 'x'.*map_with_index"):
        Admission(strict=True).refusal(impure, "a")


@pytest.mark.parametrize(("count", "slow_s"), [(20, 0.0), (100_000, 1.0)])  # in every request, and by reference
def test_actors_without_a_value_that_the_program_set_are_not_admitted(ray_local, monkeypatch, count, slow_s):
    def source():
        config = RandomAccessSourceConfig(num_epochs=1)
        return RandomAccessSource(config, {"x": np.arange(1, count)}, transforms=[of_a_user.Scale()])

    if not slow_s:
        with RaySource(source(), num_actors=1, num_cpus=0.1) as same:
            assert same.get_batch(3)["x"].tolist() == [1, 2, 3]
    monkeypatch.setattr(of_a_user, "SCALE", 5)
    monkeypatch.setattr(of_a_user, "SLOW_S", slow_s)  # where the driver is late, the actors wait for its sample
    with (
        RaySource(source(), num_actors=1, num_cpus=0.1) as other,
        pytest.raises(RuntimeError, match="other bytes than the driver: field 'x' of the element at position 0"),
    ):
        other.get_batch(3)


def test_a_process_that_ray_started_while_nobody_asked_proves_itself_before_its_block_counts(ray_local):
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), {"x": np.arange(20)})
    want = [[*range(10)], [*range(10, 20)]]
    with RaySource(source, num_actors=1, num_cpus=0.1, chunk_size=5) as distributed:
        assert [batch.columns["x"].tolist() for batch in distributed.batches(0, StreamOptions(10))] == want
        (process,) = distributed.stats().values()
        os.kill(process["pid"], signal.SIGKILL)
        until(lambda: {each["Pid"] for each in actors().values() if each["State"] == "ALIVE"} - {process["pid"]})
        assert [batch.columns["x"].tolist() for batch in distributed.batches(0, StreamOptions(10))] == want
        assert distributed.recoveries.counts == {"restarted": 1}
