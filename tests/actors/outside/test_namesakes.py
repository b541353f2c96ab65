"""Drivers that gave one name and have a pool each, told why."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from datarax_ray import RaySource
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.actors.outside.namesakes import Makings
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import decode, write_files
from tests.waiting import until

NAMESPACE = "namesakes"
SETTINGS = {
    "files": {"digest": "ab"},
    "transforms": {"digest": "cd", "held": {"0 Map.rank": "12"}},
    "on_error": "raise",
}


@pytest.mark.parametrize(
    ("settings", "read", "said"),
    [
        ({}, {"users.RANK": "34"}, r"what transforms read differs, in users\.RANK \(3 here\)\. So this one has actors"),
        ({"transforms": {"digest": "ef"}}, {"users.RANK": "34", "users": "56"}, r"in users, users\.RANK \(3 here\)\."),
        ({"transforms": {"digest": "ef", "held": {"0 Map.rank": "34"}}}, {}, r"in transforms\.held\.0 Map\.rank\."),
        ({"transforms": {"digest": "ef", "held": {"0 Map.rank": "12"}}}, {}, r"in transforms\.digest\."),
    ],
)
def test_what_differs_is_named_with_the_value_here(settings: Any, read: Any, said: str) -> None:
    own = Makings.of(SETTINGS, {"users": "12", "users.RANK": "12"}, {"users.RANK": "3"})
    other = Makings.of(SETTINGS | settings, {"users": "12", "users.RANK": "12"} | read, {"users.RANK": "a secret"})
    assert "secret" not in other.to_json()
    found = own.said("train", [other.to_json(), own.to_json(), "{}", "of another release"])
    assert found is not None
    assert found.startswith(
        "the actors named 'train' are not shared with 1 other driver of that name, of the same data"
    )
    assert re.search(said, found)


def test_of_this_process_it_is_an_earlier_source_that_is_to_be_closed() -> None:
    own = Makings.of(SETTINGS, {"users.RANK": "12"}, {"users.RANK": "3"})
    earlier = Makings.of(SETTINGS, {"users.RANK": "34"}, {}).to_json()
    found = own.said("nb", [], [earlier])
    assert found is not None
    assert found.startswith("the actors named 'nb' of 1 earlier source of this process are not those of this one: ")
    assert "in users.RANK (3 here). They go on" in found
    assert (own.said("nb", [earlier], [earlier]) or "").startswith("the actors named 'nb' are not shared with 1 other")
    assert own.said("nb", [], [own.to_json()]) is None


def test_other_data_and_the_same_pool_are_as_they_were_meant() -> None:
    own = Makings.of(SETTINGS, {"users.RANK": "12"}, {})
    other = Makings.of(SETTINGS | {"files": {"digest": "other"}}, {"users.RANK": "34"}, {})
    assert own.said("train", [own.to_json(), other.to_json()]) is None


@pytest.mark.slow  # a cluster of its own
def test_a_driver_whose_module_has_a_value_of_its_own_is_told_at_once_why_it_has_no_share_in_the_pool(
    cluster: Cluster, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    (tmp_path / "users_ranked.py").write_text("RANK = 0\n\ndef rank(x):\n    return x | {'rank': RANK}\n")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("users_ranked")
    files = write_files(tmp_path, (8, 8))

    def distributed(paths: Any) -> RaySource:
        source = ArrayRecordSourceModule(ArrayRecordSourceConfig(), paths, transforms=[decode, module.rank])
        return RaySource(source, num_actors=1, num_cpus=0.1, name="train", thresholds=Thresholds(ask_head_s=0.2))

    with distributed(files) as first, distributed(files), distributed(files[:1]):
        until(lambda: len(first.stats()) == 1)
        assert "are not shared" not in caplog.text
        module.RANK = 3
        with distributed(files):
            until(lambda: "are not those of this one" in caplog.text)
            assert "the actors named 'train' of 2 earlier sources of this process are not those of" in caplog.text
            assert "are not shared" not in caplog.text
            assert "users_ranked.RANK (3 here)." in caplog.text
    del sys.modules["users_ranked"]
