"""What befalls a pool: each kind is one log line, one count, and one more of the metric; by value, without Ray."""

import json
import logging

import pytest

from datarax_ray.actors import recovery as recovery_module
from datarax_ray.actors.recovery import Recoveries, Recovery

# What happens, the kind that it is counted as, its line, and how many it is in the list.
TABLE = {
    "a loss": (
        lambda it: it.lost(3, "pid 7 on node ab", "killed", 1, 2),
        "lost",
        logging.WARNING,
        "reader actor 3 (pid 7 on node ab) is lost, 1 of 2 still run: killed",
        0,  # the line that ends it lists it
    ),
    "a return": (
        lambda it: it.add(Recovery("restarted", 3, "pid 8 on node ab", "killed", 1.5, 4)),
        "restarted",
        logging.WARNING,
        "reader actor 3 restarted, 1.5 s after its loss was noticed; 4 requests were sent again; it is now pid 8 "
        "on node ab; reason: killed",
        1,
    ),
    "a benched node": (
        lambda it: it.benched([1, 2], "ab (10.0.0.1)", "no such file", 30.0),
        "benched",
        logging.WARNING,
        "node ab (10.0.0.1) is benched for 30 s: a request failed there and succeeded on another node. Other actors "
        "read for its actors [1, 2]. Is a mount or a package missing there? The error: no such file",
        2,  # one for each actor
    ),
    "a stall": (
        lambda it: it.stalled("the stream has waited 30 s for actor 1"),
        "stalled",
        logging.WARNING,
        "the stream has waited 30 s for actor 1",
        1,
    ),
    "a resize": (
        lambda it: it.resized(2, 4, "somebody asked for it"),
        "resized",
        logging.INFO,
        "reader actors: 2 -> 4; somebody asked for it",
        1,
    ),
}


@pytest.mark.parametrize("what", TABLE)
def test_what_befalls_a_pool_is_one_line_one_count_and_one_more_of_the_metric(what, caplog, monkeypatch):
    happen, kind, level, line, num_listed = TABLE[what]
    counted = []
    monkeypatch.setattr(recovery_module.Metric, "inc", lambda self, tags: counted.append(tags["kind"]))
    caplog.set_level(logging.INFO, "datarax_ray")
    recoveries = Recoveries()
    happen(recoveries)
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [(level, line)]
    (event,) = [vars(each)["event"] for each in caplog.records]
    assert json.loads(json.dumps(event)) == event
    assert (event["kind"], len(event["actors"])) == (
        kind,
        {"a benched node": 2, "a stall": 0, "a resize": 0}.get(what, 1),
    )
    assert counted == [kind]
    assert {**recoveries.counts, "lost": recoveries.num_lost} == {"lost": 0} | {kind: 1}
    assert [each.kind for each in recoveries.last] == [kind] * num_listed
