"""Epochs that give no element, by value."""

from __future__ import annotations

import pytest

from datarax_ray.plan.scheduling import EmptyEpochs


def test_an_epoch_that_shows_that_none_will_give_an_element_ends_the_stream():
    empty = EmptyEpochs(True, ["the filters drop everything", "every document is empty"])
    assert empty.seen(0, "it") is None
    with pytest.raises(RuntimeError, match="no element of it was kept: the filters drop everything, or every document"):
        empty.seen(1, "it")
    with pytest.raises(RuntimeError, match="no element of it was kept: the data is empty"):
        EmptyEpochs(False, ["no"]).seen(1, "it", is_empty=True)
