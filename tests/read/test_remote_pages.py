"""From byte ranges to pages, and from pages to runs, by value."""

import numpy as np
import pytest

from datarax_ray.read.formats.remote.pages import PAGE, around, num_pages, pages_of, runs_of


@pytest.mark.parametrize(
    ("spans", "want"),
    [
        ([], []),
        ([[0, 1]], [0]),
        ([[0, PAGE]], [0]),
        ([[0, PAGE + 1]], [0, 1]),
        ([[PAGE - 1, PAGE + 1], [PAGE + 1, PAGE + 2]], [0, 1]),
        ([[10, 20], [3 * PAGE, 5 * PAGE]], [0, 3, 4]),
    ],
)
def test_a_span_needs_each_page_that_it_touches_once(spans, want):
    assert pages_of(np.array(spans, np.int64).reshape(-1, 2)).tolist() == want


@pytest.mark.parametrize(
    ("gap", "want"),
    [
        (0, [(0, 1, 2), (0, 4, 4), (1, 5, 6)]),
        (1, [(0, 1, 4), (1, 5, 6)]),
        (99, [(0, 1, 4), (1, 5, 6)]),  # never from one file to another
    ],
)
def test_a_run_is_of_one_file_and_goes_over_gaps_that_are_small(gap, want):
    pages = [(1, 6), (0, 4), (0, 1), (0, 2), (1, 5)]
    assert list(runs_of(pages, gap)) == want
    assert num_pages(want) == sum(last - first + 1 for _, first, last in want)


@pytest.mark.parametrize(
    ("count", "most", "stop", "want"),
    [
        (0, 100, 30, []),  # nothing comes along
        (4, 100, 30, [0, 1, 2, 3, 8, 9, 10, 11, 20, 21, 22, 23]),
        (4, 100, 22, [0, 1, 2, 3, 8, 9, 10, 11, 20, 21]),  # the file's end
        (4, 8, 30, [0, 1, 2, 3, 8, 9, 10, 11]),  # no room for more
        (4, 3, 30, []),
        (2, 100, 30, [0, 1, 22, 23]),  # 9 and 10 are a run that has a request of its own
    ],
)
def test_what_lies_around_pages_comes_along_as_far_as_there_is_room(count, most, stop, want):
    assert around(np.array([1, 9, 10, 23]), count, most, stop).tolist() == want
