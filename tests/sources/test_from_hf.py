"""from_hf chooses by what is known of the size, unless it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from datarax_ray.sources import HFEagerSource, from_hf
from tests import oracle

datasets.disable_progress_bars()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    datasets.Dataset.from_dict({"x": list(range(12)), "y": [0] * 12}).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_small_dataset_is_eager_and_gets_every_option(saved: Path) -> None:
    source = from_hf(
        saved,
        "train",
        shuffle=True,
        seed=7,
        num_epochs=2,
        exclude_keys=["y"],
        transforms=[lambda element: {"z": element["x"] * 10}],
    )
    assert isinstance(source, HFEagerSource)
    want = [10 * i for epoch in range(2) for i in oracle.order(12, epoch, 7)]
    assert [int(element["z"]) for element in source] == want


def test_a_built_dataset_is_eager_and_needs_no_split() -> None:
    source = from_hf(datasets.Dataset.from_dict({"x": [1, 2]}))
    assert [int(element["x"]) for element in source] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eager": True, "streaming": True}, "eager=True and streaming=True contradict each other"),
        ({"eager": False, "streaming": False}, "eager=False and streaming=False contradict each other"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(saved: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf(str(saved), "train", **arguments)


def test_a_stream_is_not_read_eagerly() -> None:
    stream = datasets.Dataset.from_dict({"x": [1, 2]}).to_iterable_dataset()
    with pytest.raises(ValueError, match="IterableDataset is a stream without random access"):
        from_hf(stream, eager=True)


def test_a_name_needs_a_split(saved: Path) -> None:
    with pytest.raises(ValueError, match="split is required for from_hf"):
        from_hf(str(saved))
