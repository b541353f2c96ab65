"""What everybody did when: seconds stand in the bins of their time, none is lost, and the page shows them all."""

import re
import threading
import xml.etree.ElementTree as ElementTree

import pytest

from datarax_ray.feed.stats import ActorWork, PipelineStats
from datarax_ray.feed.timeline import BIN_S, MAX_BINS, Timeline, page

STATS = PipelineStats(
    num_batches=10, num_records=100, first_s=1.0, elapsed_s=9.0, waited_s=4.0,
    reading={"<lambda>": 8.0, "reading": 2.0},
    actors={0: ActorWork(1, 100, 1000, 8.0), 1: ActorWork(1, 100, 1000, 2.0)}, num_actors=2,
)  # fmt: skip


def test_an_actor_is_lost_until_it_reads_again_or_now():
    timeline = Timeline(0.0)
    timeline.lost(0, 1.0)
    timeline.lost(0, 1.5)  # another of its requests
    timeline.lost(1, 2.0)
    timeline.read(0, 3.0, {"reading": 0.5})
    rows = timeline.until(4.0).rows
    assert sum(rows[0]["lost"]) == pytest.approx(1.5)
    assert sum(rows[1]["lost"]) == pytest.approx(2.0)
    assert sum(timeline.until(5.0).rows[1]["lost"]) == pytest.approx(3.0)


def test_a_signals_handler_may_draw_in_the_middle_of_a_count():
    timeline, drawn = Timeline(0.0), []
    timeline.lost(0, 0.0)
    bin_of = timeline._bin_of

    def interrupted(time):
        del timeline._bin_of
        drawn.append(timeline.until(60.0))  # by the handler; for which bins become longer
        return bin_of(time)

    timeline._bin_of = interrupted
    thread = threading.Thread(target=timeline.add, args=("trainer", "waiting", 0.0, 40.0), daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive(), "it waits for itself"
    assert sum(drawn[0].rows[0]["lost"]) == pytest.approx(60.0)
    assert sum(timeline.until(60.0).rows["trainer"]["waiting"]) == pytest.approx(40.0)


def filled():
    timeline = Timeline(0.0)
    timeline.filled(0.0, 0.0)
    for index in range(10):
        timeline.read(0, index + 1.0, {"reading": 0.2, "<lambda>": 0.6})
        timeline.read(1, index + 1.0, {"reading": 0.2})
        timeline.add("trainer", "waiting for a batch", index, index + 0.4)
        timeline.add("trainer", "its own work", index + 0.4, index + 1.0)
        timeline.filled(0.5, index + 1.0)
    timeline.lost(1, 9.5)
    return timeline


def test_the_page_stands_alone_and_shows_every_row():
    text = page(filled().until(10.0), STATS, "Pipeline(<x>)")
    ElementTree.fromstring(text.partition("</head>")[2].removesuffix("</html>\n"))  # well formed
    assert not re.search("<script|src=|href=|url", text), "something is fetched"
    assert "Pipeline(&lt;x&gt;)" in text
    titles = re.findall(r"<title>(.*?)</title>", text)[1:]
    assert titles == [
        "trainer: waiting for a batch 4 s, its own work 6 s",
        "bytes: filled 5 s",
        "all: reading 2 s, &lt;lambda&gt; 3 s, lost 0.25 s",
        "actor 0: reading 2 s, &lt;lambda&gt; 6 s",
        "actor 1: reading 2 s, lost 0.5 s",
    ]
    for picture in re.findall(r"<svg.*?</svg>", text):
        width = int(ElementTree.fromstring(picture).attrib["viewBox"].split()[2])
        for first, y, length in re.findall(r"M(\d+) (\d+)h(\d+)", picture):
            assert int(first) + int(length) <= width
            assert 0 <= int(y) <= 100


def test_a_longer_run_has_longer_bins_and_no_second_less() -> None:
    timeline = Timeline(0.0)
    for index in range(10_000):
        timeline.add("trainer", "waiting", index, index + 0.25)
    drawn = timeline.until(10_000.0)
    assert MAX_BINS // 2 <= drawn.num_bins <= MAX_BINS
    assert sum(drawn.rows["trainer"]["waiting"]) == pytest.approx(2500)
    assert drawn.rows["trainer"]["waiting"][7] == pytest.approx(drawn.bin_s / 4, rel=0.05)


def test_a_stretch_counts_in_each_bin_for_the_part_that_is_in_it() -> None:
    timeline = Timeline(10.0)
    timeline.add("trainer", "waiting", 10.0 + 0.4 * BIN_S, 10.0 + 2.3 * BIN_S)
    drawn = timeline.until(10.0 + 3.5 * BIN_S)
    assert drawn.num_bins == 4
    assert drawn.rows["trainer"]["waiting"] == pytest.approx([0.6 * BIN_S, BIN_S, 0.3 * BIN_S, 0.0])
