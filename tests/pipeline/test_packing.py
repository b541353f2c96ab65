"""Packed rows through the whole of it: any actors, any trainers, resumed in the middle of a document."""

import json
from itertools import islice

import jax
import numpy as np
import pytest
from flax import nnx

from datarax_ray import ConcatThenSplit, FirstFitPack, Pipeline
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.data import Squares
from tests.resume import assert_equal, assert_resumes, on_host, run_saving

N = 23
PACKINGS = {
    "concat": ConcatThenSplit(16, ("tokens", "mask"), pad_id={"tokens": -1}),
    "first fit": FirstFitPack(40, ("tokens", "mask"), pad_id={"tokens": -1}),
    "first fit, split": FirstFitPack(16, ("tokens", "mask"), pad_id={"tokens": -1}, too_long="split"),
}


def tokenise(element):
    """Document i: i * 7 % 41 tokens; none at all for 0."""
    index = element["index"]
    tokens = index * 1000 + np.arange(index * 7 % 41, dtype=np.int32)
    return {"tokens": tokens, "mask": (tokens % 2).astype(np.int8), "index": index}


def make_source(*transforms, **config):
    options = {"num_epochs": 2, "shuffle": True} | config
    return RandomAccessSource(RandomAccessSourceConfig(**options), Squares(N), transforms=[*transforms, tokenise])


def make(of, packing, batch_size=3, **options):
    return Pipeline(source=of, batch_size=batch_size, packing=packing, rngs=nnx.Rngs(0), **options)


def test_concat_then_split_is_the_tokens_of_a_plain_loop_cut():
    order = [element["index"] for element in make_source()]
    line = np.concatenate([tokenise({"index": index})["tokens"] for index in order])
    batches = list(make(make_source(), PACKINGS["concat"]))
    rows = np.concatenate([batch["tokens"] for batch in batches])
    assert rows.reshape(-1)[: len(line)].tolist() == line.tolist()
    assert set(rows.reshape(-1)[len(line) :].tolist()) <= {-1}
    assert {name: batch.shape for name, batch in batches[0].items()} == dict.fromkeys(
        ["tokens", "tokens_segment_ids", "tokens_positions", "mask", "mask_segment_ids", "mask_positions"], (3, 16)
    )


def test_who_writes_to_one_array_of_a_batch_on_the_host_writes_to_no_other():
    """As a loop does that masks what is no target; the segments of tokens and mask are alike, and were one array."""
    (batch,) = islice(make(make_source(), PACKINGS["concat"], on_host=True), 1)
    want = {name: array.copy() for name, array in batch.items()}
    for name in batch:
        batch[name][:] += 1
        want[name] += 1
        assert_equal([batch], [want])


def test_first_fit_keeps_documents_whole():
    order = [element["index"] for element in make_source()]
    found = []
    for batch in make(make_source(), PACKINGS["first fit"]):
        for tokens, ids in zip(np.asarray(batch["tokens"]), np.asarray(batch["tokens_segment_ids"]), strict=True):
            found += [tokens[ids == i].tolist() for i in range(1, ids.max() + 1)]
    wanted = [tokenise({"index": index})["tokens"].tolist() for index in order if index * 7 % 41]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("packing", PACKINGS)
def test_after_every_batch_exactly_the_rest_follows_and_no_token_is_in_the_state(packing):
    batches, states = run_saving(make(make_source(), PACKINGS[packing]))
    assert max(map(len, states)) < 2048
    rests = [json.loads(state).get("rest") for state in states]
    assert {"concat": "token_offset", "first fit": None, "first fit, split": "document_offset"}[packing] in {
        next(iter(rest)) if rest else None for rest in rests
    }
    assert_resumes(lambda _: make(make_source(), PACKINGS[packing]), batches, states)


class Keep:
    def __init__(self, indices):
        self.indices = indices

    def filter(self, element):
        return element["index"] in self.indices


class Twice:
    def flat_map(self, element):
        return [element, element]


def test_a_filter_and_a_flat_map_before_it_are_resumed_too():
    for packing in PACKINGS.values():
        pipelines = lambda _=0, packing=packing: make(make_source(Keep([3, 5, 8, 11]), Twice()), packing, 2)  # noqa: E731
        batches, states = run_saving(pipelines())
        assert sum(int((b["tokens_segment_ids"] > 0).sum()) for b in batches) == 2 * 2 * (21 + 35 + 15 + 36)
        assert_resumes(pipelines, batches, states)


def test_rows_of_one_document_draw_other_numbers_in_random_stages():
    def add_keys(batch, keys):
        return batch | {"uniform": jax.vmap(jax.random.uniform)(keys)}

    batches = list(make(make_source(), ConcatThenSplit(3), 2, stages=[add_keys]))
    numbers = np.concatenate([batch["uniform"] for batch in batches])
    assert len(np.unique(numbers)) == len(numbers)


def test_a_scan_takes_packed_batches():
    want = [on_host(b) for b in make(make_source(), PACKINGS["concat"])]
    pipeline = make(make_source(), PACKINGS["concat"])
    sums = pipeline.scan(lambda batch: batch["tokens"].sum(), length=5)
    assert sums.tolist() == [batch["tokens"].sum() for batch in want[:5]]
    assert_equal([on_host(b) for b in pipeline], want[5:])


def test_documents_that_are_all_empty_end_in_an_error_and_not_in_an_endless_search():
    endless = make_source(Keep([0]), num_epochs=-1)
    with pytest.raises(RuntimeError, match="no element of the 23 positions"):
        make(endless, PACKINGS["concat"]).step()


def test_other_packing_is_refused_and_another_length_taken_on_purpose():
    pipeline = make(make_source(), PACKINGS["concat"])
    seen = [on_host(next(iter(pipeline)))["tokens"] for _ in range(3)]
    state = pipeline.get_state()
    longer = make(make_source(), ConcatThenSplit(20, ("tokens", "mask"), pad_id={"tokens": -1}))
    with pytest.raises(DriftError, match=r"packing.seq_len: .* with 16, this pipeline has 20; later rows would hold"):
        longer.set_state(state)
    with pytest.raises(DriftError, match="packing.kind"):
        make(make_source(), None).set_state(state)
    longer.set_state(state, allow_drift=["packing"])
    line = np.concatenate([*map(np.ravel, seen), *(np.ravel(batch["tokens"]) for batch in longer)])
    order = [element["index"] for element in make_source()]
    wanted = np.concatenate([tokenise({"index": index})["tokens"] for index in order])
    assert line[: len(wanted)].tolist() == wanted.tolist()
    other = make(make_source(), PACKINGS["first fit"])
    with pytest.raises(ValueError, match="a position and the document_offset in its record, and the state has"):
        other.set_state(state, allow_drift=["packing"])


def test_a_document_that_is_too_long_names_record_and_remedy():
    pipeline = make(make_source(shuffle=False), FirstFitPack(30))
    with pytest.raises(ValueError, match=r"Squares\(23\)\[5\] \(position 5\): .*'tokens' has 35 tokens.*too_long="):
        list(pipeline)
