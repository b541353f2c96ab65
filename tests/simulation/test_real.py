"""The real actors that the simulation is held against, for a moment: that they run, and are measured."""

import pytest

from tests.simulation.real import COSTS, real, simulated


@pytest.mark.usefixtures("ray_local")
def test_real_actors_are_measured_as_those_are_that_are_made_up():
    found = real(2, warm_s=0.5, measured_s=2.0)
    assert found.efficiency > 0
    assert found.driver > 0
    assert 0.9 < simulated(2).efficiency < 1.02
    assert COSTS.record_nbytes == 2**16, "or the figures in docs/benchmarks.md are others"
