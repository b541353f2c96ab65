"""Epochs that give no element, by value."""

import pytest

from datarax_ray.plan.amendments import Amendment
from datarax_ray.plan.scheduling import EmptyEpochs


def test_an_epoch_that_shows_that_none_will_give_an_element_ends_the_stream():
    empty = EmptyEpochs(True, ["the filters drop everything", "every document is empty"])
    assert empty.seen(0, "it") is None
    with pytest.raises(RuntimeError, match="no element of it was kept: the filters drop everything, or every document"):
        empty.seen(1, "it")
    with pytest.raises(RuntimeError, match="no element of it was kept: the data is empty"):
        EmptyEpochs(False, ["no"]).seen(1, "it", is_empty=True)


def test_others_are_told_of_less_and_less_often_until_an_element_comes():
    empty = EmptyEpochs(False, [], amendments=(Amendment(0, positions=((0, 9),)),))
    counts = [*range(20), 50, 0, 1]
    assert [count for count in counts if empty.seen(count, "it")] == [1, 2, 4, 8, 16, 50, 1]
    assert "all of it was amended away. In a later epoch" in (empty.seen(60, "it") or "")


def test_an_epoch_of_which_nothing_may_come_elsewhere_shows_what_all_others_give():
    empty = EmptyEpochs(True, ["a filter"])
    assert "In a later epoch" in (empty.seen(1, "it", may_come=True) or "")
    with pytest.raises(RuntimeError, match="no element of it was kept: a filter"):
        empty.seen(2, "it")


def test_an_amended_stream_shows_nothing_of_later_epochs_before_the_last_amended_position():
    empty = EmptyEpochs(True, ["a filter"], (Amendment(3, positions=((3, 6),)),))
    assert "a filter, or all of it was amended away. In a later epoch" in (empty.seen(1, "it") or "")
    with pytest.raises(RuntimeError, match="a filter, or all of it was amended away"):
        empty.seen(2, "it", 6)
