"""The stream through chaos is the stream of one process; small always, large with --run-slow."""

import pytest

from tests.chaos.run import Size, report, run


def assert_unchanged(outcome, size):
    assert outcome.want.lost_and_repeated(size.num_epochs) == (0, 0)  # the reference, by plain counting
    assert outcome.got.lost_and_repeated(size.num_epochs) == (0, 0), report(outcome, size)
    assert outcome.got.digest == outcome.want.digest, report(outcome, size)
    assert sum(map(len, outcome.waits.values())) == size.num_faults


def test_ten_kinds_of_faults_change_nothing(tmp_path):
    size = Size(num_records=30_000, num_epochs=3, num_faults=10, num_nodes=2, chunk_size=600, frozen_s=8.0)
    outcome = run(size, tmp_path)
    assert_unchanged(outcome, size)
    assert len(outcome.waits) == 10
    assert sum(outcome.recoveries.values()) >= 1
    print(report(outcome, size))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_sixty_faults_in_six_million_positions_change_nothing(tmp_path):
    size = Size(num_records=2_000_000, num_epochs=3, num_faults=60)
    outcome = run(size, tmp_path)
    print(report(outcome, size))
    assert_unchanged(outcome, size)
    assert len(outcome.waits) >= 6
