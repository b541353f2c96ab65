"""Broken records that on_error="skip" leaves out: a run in which many are lost ends, and what is lost is counted.

Reported of WebDataset's warn_and_continue and of torch's collate functions that drop None: a job that loses half of its
samples trains on, under a million lines of log or under none.
"""

import itertools
import logging

import numpy as np
import pytest

from datarax_ray import Pipeline, RaySource
from datarax_ray.actors.recovery import counts_of
from datarax_ray.read.errors import Skipped, SkippedError
from datarax_ray.read.skipped_records import SkipCounts, SkipLimit, SkipOptions, kind_of
from datarax_ray.sources import MixtureSource, RandomAccessSource, RandomAccessSourceConfig
from tests.data_as_it_is.streams import pipeline


def skips(*positions, reason="transform f raised ValueError: 3"):
    return [Skipped(f"a.tar[{position}]", position, reason) for position in positions]


# The limit, the positions that are skipped, and the one at which the run ends; None where it goes on.
LIMITS = [
    (SkipLimit(), [*range(50_000)], None),
    (SkipLimit(most=2), [5, 9], None),
    (SkipLimit(most=2), [5, 9, 10**6], 10**6),
    (SkipLimit(most=2, count=2), [7], 7),
    (SkipLimit(most=0), [7], 7),
    (SkipLimit(share=0.01), [*range(100)], None),
    (SkipLimit(share=0.01), [*range(101)], 100),
    (SkipLimit(share=0.01), [*range(0, 10_000, 100), 10_000], None),  # 100 of any 10,000
    (SkipLimit(share=0.01), [*range(0, 10_000, 100), 9_999], 9_999),
    (SkipLimit(share=0.01), [*range(0, 10**6, 100)], None),
    (SkipLimit(share=0.01), [*range(0, 10**6, 99)], 9_900),
    (SkipLimit(share=0.01), [7] * 1000, None),  # elements of one record
    (SkipLimit(share=0.5), [*range(0, 40_000, 2)], None),
    (SkipLimit(share=0.5), [*range(0, 12_000, 2), 12_001], None),
    (SkipLimit(share=0.5), [*range(0, 12_000, 2), 11_999], 11_999),
    (SkipLimit(share=1.0), [*range(30_000)], None),
    (SkipLimit(share=0.0), [4], 4),
    (SkipLimit(most=150, share=0.02), [*range(151)], 150),
]


@pytest.mark.parametrize("together", [1, 37, 10**6])
@pytest.mark.parametrize(("limit", "positions", "ends"), LIMITS)
def test_a_run_ends_at_the_record_that_is_one_too_many(limit, positions, ends, together):
    """However many are told at a time: blocks and batches are of any size."""
    ended = None
    try:
        for start in range(0, len(positions), together):
            limit = limit.plus(skips(*positions[start : start + together]))
            assert len(limit.recent) <= 5000
    except SkippedError as error:
        ended = str(error)
    if ends is None:
        assert ended is None
    else:
        assert f"The first beyond it is a.tar[{ends}] (position {ends}): transform f raised" in str(ended)


def test_the_error_says_counts_kinds_and_the_setting():
    limit = SkipLimit(share=0.001).plus(skips(*range(6))).plus(skips(6, 7, 8, reason="reading raised OSError: x"))
    with pytest.raises(SkippedError) as raised:
        limit.plus(skips(100, 101))
    assert str(raised.value) == (
        "11 of 10,000 positions in a row could not be read, more than max_skipped=0.001 allows. The first beyond it is "
        "a.tar[101] (position 101): transform f raised ValueError: 3. Of the last ones: 8 x transform f raised "
        "ValueError, 3 x reading raised OSError. Mend the data, or allow more: max_skipped is a number of records, a "
        "share of positions (0.05), or None for any number."
    )


def test_kinds_are_told_by_component_and_without_what_each_record_has_for_itself():
    assert kind_of(
        Skipped("component 1: component 0: a[1].tar[7]", 9, "element 3 of the record: transform f raised E: 3")
    ) == ("component 1: component 0", "transform f raised E", "a[1].tar")
    assert kind_of(Skipped("Squares(9)", 9, "transform f returned None; does it end without `return`?"))[1:] == (
        "transform f returned None",
        "Squares(9)",
    )
    counts = SkipCounts()
    lines = [line for number in range(2500) if (line := counts.add(skips(number, reason=f"{number}: x")[0]))]
    assert len(counts.of) <= 200
    assert sum(counts.of.values()) == 2500
    assert len(lines) == 100 + 4  # of the first kinds one each, of the others 1, 10, 100 and 1,000


def test_the_laxer_share_and_the_stricter_number_hold_for_a_mixture():
    one, two = SkipOptions.of(0.01), SkipOptions.of(5)
    assert ((one | two).limit, (two | one).limit) == (SkipLimit(most=5, share=1.0),) * 2
    raising = RandomAccessSourceConfig().skip_options
    assert (raising | one).limit == SkipLimit(share=0.01)
    assert (raising | SkipOptions.of(None)).limit == SkipLimit()


class Fail:
    """Fails for all elements from `first` on, up to `stop`."""

    def __init__(self, first, stop=10**9):
        self.first, self.stop = first, stop

    def map(self, element):
        if self.first <= element["x"] < self.stop:
            raise ValueError(f"{element['x']} is too much")
        return element


def component(num_records, first, **config):
    given = {"num_epochs": -1, "on_error": "skip"} | config
    return RandomAccessSource(
        RandomAccessSourceConfig(**given), {"x": np.arange(num_records)}, transforms=[Fail(first)]
    )


def mixed(**config):
    return MixtureSource([component(50, 50), component(60, 0, **config)], [0.5, 0.5])


def lost(source, batch_size):
    """Where the run ends, how many were skipped, and why."""
    with Pipeline(source=source, batch_size=batch_size, on_host=True) as batches:
        with pytest.raises(SkippedError) as raised:
            list(batches)
        return batches.position, batches.num_skipped, str(raised.value)


@pytest.mark.ray
def test_a_component_that_is_lost_ends_the_run_at_the_same_batch_for_any_actors(ray_local):
    position, num_skipped, said = lost(mixed(), 16)
    assert 85 <= num_skipped <= 100
    assert "101 of 10,000 positions in a row could not be read, more than max_skipped=0.01 allows" in said
    assert "101 x transform Fail raised ValueError in component 1. " in said
    with RaySource(mixed(), num_actors=2, num_cpus=0.5, chunk_size=7) as source:
        assert lost(source, 16) == (position, num_skipped, said)


def test_one_line_a_kind_and_counts_by_component_kind_and_file(caplog):
    source = mixed(max_skipped=None)
    with Pipeline(source=source, batch_size=100, on_host=True) as batches, caplog.at_level(logging.WARNING):
        list(itertools.islice(batches, 12))
        said = [line for line in caplog.messages if "skipped" in line]
        assert len(said) == 4
        assert said[0].startswith("skipped component 1: ")
        assert [line.split(";")[0] for line in said[1:]] == [f"{n} such records by now" for n in ("10", "100", "1,000")]
        stats = batches.stats()
        assert dict(stats.skipped) == {
            ("component 1", "transform Fail raised ValueError", "arrays"): batches.num_skipped
        }
        assert f"skipped, {batches.num_skipped:,} broken records:" in str(stats)
        counted = {key: count for key, count in counts_of(stats).items() if key[0] == "skipped"}
        assert counted == {("skipped", *key): count for key, count in stats.skipped.items()}


def lossy(limit):
    """50 elements are broken behind the first batch, and all behind the third."""
    fails = [Fail(50, 100), Fail(200)]
    config = RandomAccessSourceConfig(num_epochs=1, on_error="skip", max_skipped=limit)
    source = RandomAccessSource(config, {"x": np.arange(1000)}, transforms=fails)
    return pipeline(source, batch_size=50)


@pytest.mark.parametrize(("limit", "ends", "resumed_ends"), [(0.01, 250, 300), (60, 210, 210)])
def test_a_resume_counts_a_share_anew_and_a_number_on(limit, ends, resumed_ends):
    whole, resumed = lossy(limit), lossy(limit)
    assert [(batch["x"][0], whole.num_skipped) for batch in itertools.islice(whole, 2)] == [(0, 0), (100, 50)]
    resumed.set_state(whole.get_state())
    for batches, position in ((whole, ends), (resumed, resumed_ends)):
        assert next(iter(batches))["x"][0] == 150
        with pytest.raises(SkippedError, match=rf"\(position {position}\)"):
            next(iter(batches))
        assert (batches.position, batches.num_skipped) == (200, 50)
