"""A resume is refused for no row that is the same: large rows, rows with lists, filtered rows, one by one or many."""

import json
from itertools import islice

import datasets
import numpy as np
import pytest

from datarax_ray import (
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    Pipeline,
    RandomAccessSource,
    RandomAccessSourceConfig,
    from_hf,
    load,
)
from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.source import Source
from datarax_ray.feed.trail import Trail
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.state import StreamState
from datarax_ray.read.formats.random_access import ArraysReader
from datarax_ray.read.streams.indexed import IndexedStream
from tests.data import in_memory

N = 300


class Large:
    def map(self, element):
        return {"image": np.full(400_000, element["x"] % 251, np.uint8), "x": element["x"]}


class Lists:
    def map(self, element):
        return {"tokens": [int(element["x"])] * (int(element["x"]) % 5), "x": element["x"]}


class Objects:
    """Values of a class, of which no digest can be made: their class is compared."""

    def map(self, element):
        return {"thing": Lists(), "x": element["x"]}


class LaterObjects:
    """None in some rows, values of a class in others: a batch at the save and a block at the resume hold other rows."""

    def map(self, element):
        return {"thing": Lists() if element["x"] % 3 else None, "x": element["x"]}


class DropZero:
    def filter(self, element):
        return element["i"] > 0


class Few:
    def filter(self, element):
        return element["x"] % 17 == 3


class Several:
    def flat_map(self, element):
        return [element | {"copy": copy} for copy in range(int(element["x"]) % 4)]


class Written:
    """What the user of a batch writes to it is not in the evidence."""

    def map(self, element):
        return {"x": element["x"], "y": np.zeros(3)}


def make(*transforms, num_epochs=2):
    reader = ArraysReader({"x": np.arange(N)})
    return Source(IndexedStream(reader, order_of(N, 5, "global"), num_epochs, transforms))


KINDS = {
    "plain": (),
    "large": (Large(),),
    "lists": (Lists(),),
    "objects": (Objects(),),
    "later objects": (LaterObjects(),),
    "few": (Few(),),
    "several": (Several(),),
    "several lists": (Several(), Lists()),
    "written": (Written(),),
}


@pytest.mark.parametrize(
    ("kind", "size"), [(kind, 7) for kind in KINDS] + [(kind, size) for kind in ("plain", "few") for size in (1, 50)]
)
def test_batches_resume_from_every_state(kind, size):
    whole = []
    source = make(*KINDS[kind])
    states = []
    for _ in range(6 if kind == "large" else 12):
        batch = source.get_batch(size)
        if not batch:
            break
        if kind == "written":
            batch["y"] += 1
        states.append(json.loads(json.dumps(source.get_state())))
        whole.append(batch["x"].tolist())
    for number, state in enumerate(states[:-1]):
        again = make(*KINDS[kind])
        again.set_state(state)
        assert again.get_batch(size)["x"].tolist() == whole[number + 1]


@pytest.mark.parametrize("kind", ["plain", "lists", "several", "few"])
def test_elements_resume_from_every_state(kind):
    source = make(*KINDS[kind])
    taken = [int(element["x"]) for element in islice(source, 400)]
    for count in (1, 16, 17, 40, 256, 257, 300):
        if count >= len(taken):
            break
        one = make(*KINDS[kind])
        list(islice(one, count))
        state = json.loads(json.dumps(one.get_state()))
        again = make(*KINDS[kind])
        again.set_state(state)
        assert [int(element["x"]) for element in islice(again, 3)] == taken[count : count + 3]


@pytest.mark.parametrize("kind", ["plain", "lists", "several", "objects"])
def test_batches_behind_elements_resume_though_elements_are_made_ahead(kind):
    taken = [int(element["x"]) for element in islice(make(*KINDS[kind]), 400)]
    for count, size in ((1, 3), (5, 3), (17, 40)):
        one = make(*KINDS[kind])
        list(islice(one, count))
        for _ in range(2):
            one.get_batch(size)
        again = make(*KINDS[kind])
        again.set_state(json.loads(json.dumps(one.get_state())))
        assert [int(element["x"]) for element in islice(again, 3)] == taken[count + 2 * size :][:3]


@pytest.mark.parametrize("size", [16, 65, 128])
@pytest.mark.parametrize("drops_first", [False, True])
def test_the_first_rows_of_a_mixture_with_a_stream_are_verified(size, drops_first):
    """Its last rows cannot be made from its state."""

    def mixture(factor):
        steps = [lambda e: {"i": e["i"] * factor}, *([DropZero()] if drops_first else [])]
        rows = datasets.Dataset.from_dict({"i": list(range(500))}).to_iterable_dataset()
        streamed = HFStreamingSource(HFStreamingConfig(streaming=True, num_epochs=1), dataset=rows, transforms=steps)
        indexed = RandomAccessSource(RandomAccessSourceConfig(), {"i": np.arange(50)}, transforms=steps)
        return MixtureSource([streamed, indexed])

    source = mixture(1)
    source.get_batch(size)
    source.get_batch(size)
    state = json.loads(json.dumps(source.get_state()))
    want = source.get_batch(size)["i"].tolist()
    same, other = mixture(1), mixture(5)
    same.set_state(state)
    assert same.get_batch(size)["i"].tolist() == want
    other.set_state(state)
    with pytest.raises(DriftError, match="its last rows are not the same"):
        other.get_batch(size)


def test_a_state_keeps_its_evidence_until_rows_follow():
    source = make()
    source.get_batch(40)
    state = source.get_state()
    again = make()
    again.set_state(state)
    assert again.get_state() == state
    again.get_batch(2)
    assert again.get_state()["evidence"]["start"][0] == 40


def test_nothing_consumed_is_no_evidence_and_a_seek_forgets_it():
    source = make()
    assert "evidence" not in source.get_state()
    source.get_batch(5)
    assert "evidence" in source.get_state()
    source.seek(3)
    assert "evidence" not in source.get_state()


def test_rows_are_verified_before_the_first_batch_again_and_again_until_they_are_the_same():
    source = make(Lists())
    source.get_batch(9)
    state = source.get_state()
    other = make(Large())
    other.set_state(state)
    for _ in range(2):
        with pytest.raises(DriftError, match="'image' is new"):
            other.get_batch(9)
        with pytest.raises(DriftError, match="arrays"):
            other.verify()
    other.set_state(state, ("rows",))
    assert len(other.get_batch(9)["x"]) == 9


def test_settings_that_leave_the_rows_as_they_are_do_not_hide_another_row():
    source = make()
    source.get_batch(9)
    other = make(Lists(), num_epochs=3)
    other.set_state(source.get_state(), ("order.num_epochs",))
    with pytest.raises(DriftError, match="'tokens' is new"):
        other.verify()


CHATS = [{"m": [f"q{index}", f"a{index}"], "x": index} for index in range(40)]


def chats(kind, tmp_path):
    if kind == "hf":
        return from_hf(datasets.Dataset.from_list(CHATS), num_epochs=3)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in CHATS))
    if kind == "parquet":
        datasets.Dataset.from_list(CHATS).to_parquet(tmp_path / "chats.parquet")
    return load(tmp_path / ("chats.parquet" if kind == "parquet" else "chats.jsonl"), num_epochs=3)


@pytest.mark.parametrize("kind", ["json", "parquet", "hf"])
@pytest.mark.parametrize("on_host", [True, False])
def test_lists_that_a_user_appends_to_come_again_as_they_are_stored_and_resume(kind, on_host, tmp_path):
    with Pipeline(source=chats(kind, tmp_path), batch_size=16, on_host=on_host) as pipeline:
        seen, states = [], []
        for batch in pipeline:
            seen += [list(chat) for chat in batch["m"]]
            for chat in batch["m"]:
                chat.append("written")
            states.append(pipeline.get_state())
    assert seen == [chat["m"] for chat in CHATS] * 3
    for number, state in enumerate(states[:-1], 1):
        with Pipeline(source=chats(kind, tmp_path), batch_size=16, on_host=on_host) as pipeline:
            pipeline.set_state(state)
            assert pipeline.step()["m"].tolist() == seen[16 * number : 16 * (number + 1)]


HOST_FIELDS = {
    "times": np.datetime64("2026-01-01") + np.arange(N).astype("m8[D]"),
    "text": np.array([f"n{index}" for index in range(N)]),
    "records": np.array([(index, index / 2) for index in range(N)], [("a", "i4"), ("b", "f8")]),
}


@pytest.mark.parametrize("kind", HOST_FIELDS)
def test_fields_on_the_host_that_a_user_writes_to_resume_beside_fields_on_the_device(kind):
    def pipeline():
        return Pipeline(source=in_memory({"x": np.arange(N), "v": HOST_FIELDS[kind].copy()}), batch_size=4)

    with pipeline() as first, pipeline() as other:
        for _ in range(4):
            batch = first.step()
            batch["v"][:] = batch["v"][::-1].copy()
        other.set_state(first.get_state())
        assert other.step()["x"].tolist() == [16, 17, 18, 19]


def test_elements_with_lists_in_some_and_none_in_the_last_of_those_made_ahead_resume():
    data = [{"x": index, "t": [index] if index < 180 else None} for index in range(256)]
    source, other = in_memory(data), in_memory(data)
    for element in islice(source, 150):
        element["t"].append(-1)
    other.set_state(json.loads(json.dumps(source.get_state())))
    assert next(other)["x"] == 150


@pytest.mark.parametrize("rows", [16, 17, 19, 20, 21])
def test_two_trainers_resume_behind_a_last_batch_that_one_of_them_has_alone(rows):
    def pipeline(rank, num_epochs=1):
        source = in_memory({"x": np.arange(rows)}, num_epochs=num_epochs)
        return Pipeline(source=source, batch_size=8, process_index=rank, process_count=2, pad_remainder=True)

    for rank in range(2):
        with pipeline(rank) as first, pipeline(rank) as same, pipeline(rank, 2) as longer:
            assert len([*first]) == -(-rows // 8)
            same.set_state(first.get_state())
            assert [*same] == []
            longer.set_state(first.get_state(), allow_drift=("order.num_epochs",))
            assert longer.step()["x"].tolist() == [*range(4 * rank, 4 * rank + 4)]


def test_the_kept_rows_of_batches_of_few_large_rows_have_16_mib_in_all():
    trail = Trail()
    for start in range(40):
        columns = {"x": np.zeros((1, 2**20), np.uint8)}
        batch = HostBatch(columns, np.array([start]), start, StreamState(start + 1), 1, ())
        trail = trail.then(batch, StreamState(start), is_written=False)
    assert [int(part.positions[0]) for part in trail.parts] == [*range(24, 40)]


def test_a_dict_without_fields_takes_no_other_fields_values():
    source = in_memory({"x": np.arange(8) * 100, "aux": {}, "deep": {"y": np.arange(8)}})
    with Pipeline(source=source, batch_size=4, on_host=True) as pipeline:
        batch = pipeline.step()
    assert (batch["x"].tolist(), batch["aux"], batch["deep"]["y"].tolist()) == ([0, 100, 200, 300], {}, [0, 1, 2, 3])
    assert next(source) == {"x": 0, "aux": {}, "deep": {"y": 0}}
