"""Digests of batches: the same sum for any chunks, batches, trainers and resumes, and that of a plain loop."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datarax_ray.feed.stream import StreamOptions, batches
from datarax_ray.plan.evidence import RollingDigest, added
from datarax_ray.plan.packing import ConcatThenSplit, FirstFitPack
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import Share, shares_of
from datarax_ray.read.elements.columns import stack
from datarax_ray.read.elements.row_digests import row_digests
from datarax_ray.sources import (
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests.data import AddNoise, Squares
from tests.feed.test_sharing_actors import Actor, Drop, tokenise

N = 90
PACKINGS = {"concat": ConcatThenSplit(32, ("tokens", "mask")), "first fit": FirstFitPack(100, "tokens")}


class Repeat:
    """Element i comes i % 4 times."""

    def flat_map(self, element):
        return [element | {"name": f"{n} of {element['index']}"} for n in range(element["index"] % 4)]


def source_of(*transforms, seed=1, num_epochs=2):
    config = RandomAccessSourceConfig(num_epochs=num_epochs, shuffle=True, seed=seed)
    return RandomAccessSource(config, Squares(N), transforms=transforms)


def mixture():
    parts = [source_of(AddNoise(), num_epochs=-1), source_of(AddNoise(), Drop(), seed=2, num_epochs=-1)]
    return MixtureSource(parts, weights=[2, 1], length=150)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    for file, count in enumerate((30, 10, 25)):
        lines = (json.dumps({"index": 100 * file + n}) + "\n" for n in range(count))
        (directory / f"{file}.jsonl").write_text("".join(lines))
    files = sorted(str(path) for path in Path(directory).glob("*.jsonl"))
    options = {"download_kwargs": {"data_files": files}, "shuffle": True, "num_epochs": 2}
    config = HFStreamingConfig(
        name="json", split="train", streaming=True, shuffle_buffer_size=8, turn_size=3, **options
    )
    return HFStreamingSource(config, transforms=[AddNoise()])


STREAMS = {
    "records": lambda: source_of(AddNoise()),
    "behind a filter": lambda: source_of(Drop(), AddNoise()),
    "flat_map": lambda: source_of(Repeat()),
    "mixture": mixture,
}


def totals(stream, pool=None, start=None, **options):
    """Where each batch ends, and the sum of all digests so far."""
    found, total = [], 0
    for batch in batches(stream, pool, start or StreamState(), StreamOptions(digest=True, **options)):
        total += batch.digest
        found.append((batch.state, total % 2**64))
    return found


def plain_total(source, state):
    """One element after the other, each hashed by itself."""
    total = 0
    for position in range(state.position + bool(state.offset)):
        found = source.get_batch_at(position, 1)
        if position == state.position:
            found = found[: state.offset]
        if found:
            total += int(row_digests(np.full(len(found), position), stack(found)).sum())
    return total % 2**64


@pytest.mark.parametrize("stream", STREAMS)
def test_it_is_the_sum_of_a_plain_loop_over_what_the_state_says_was_delivered(stream):
    source = STREAMS[stream]()
    found = totals(source.describe(), batch_size=7, chunk_size=11)
    assert len(found) > 10
    assert [total for _, total in found] == [plain_total(source, state) for state, _ in found]


@pytest.mark.parametrize("packing", PACKINGS)
def test_of_packed_rows_it_counts_each_document_whose_last_token_was_delivered(packing):
    source = source_of(tokenise)
    found = totals(source.describe(), batch_size=3, chunk_size=17, packing=PACKINGS[packing])
    fields = PACKINGS[packing].documents.fields
    for state, total in found:
        want = 0
        for position in range(state.position):
            (element,) = source.get_batch_at(position, 1)
            columns = {name: element[name] for name in fields}
            if len(element["tokens"]):
                want += int(row_digests(np.array([position]), columns, np.array([len(element["tokens"])])).sum())
        assert total == want % 2**64
        assert state.offset < len(source.get_batch_at(state.position, 1)[0]["tokens"]) if state.offset else True


def sum_of(shares, steps):
    """What the trainers' digests add up to, each of the same parts once."""
    begun = (RollingDigest.begun(StreamState(), share) for share in shares.values())
    found = added(digest.plus(total) for digest, (_, total) in zip(begun, steps, strict=True))
    assert found is not None
    return found.total


def check(stream, data, **options):
    """Any split among trainers, from any state on, adds up to one trainer's in other chunks."""
    num_trainers, rows_each = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    options = {
        "batch_size": num_trainers * rows_each,
        "drop_remainder": data.draw(st.booleans()),
        "pad_remainder": data.draw(st.booleans()),
        **options,
    }
    whole = totals(stream, chunk_size=data.draw(st.integers(1, 90)), **options)
    starts = [(StreamState(), 0), *whole]
    start, before = starts[data.draw(st.integers(0, len(starts) - 1))]
    shared = {"chunk_size": data.draw(st.integers(1, 90)), "process_count": num_trainers}
    actor = None
    if data.draw(st.booleans()):
        actor, shared = Actor(stream), shared | {"shares_actors": True}
    # of a mesh's processes some may hold the same parts, or some that others hold, too
    parts = st.sets(st.integers(0, num_trainers - 1)) if data.draw(st.booleans()) else st.just(set())
    shares = shares_of({rank: {rank} | data.draw(parts) for rank in range(num_trainers)}, num_trainers)
    each = [totals(stream, actor, start, share=share, **shared, **options) for share in shares.values()]
    is_whole = "packing" in options  # every trainer knows all documents
    got = [
        (steps[0][0], (before + (steps[0][1] if is_whole else sum_of(shares, steps))) % 2**64)
        for steps in zip(*each, strict=True)
    ]
    want = whole[len(whole) - len(got) :]
    assert [(state.position, state.offset, total) for state, total in got] == [
        (state.position, state.offset, total) for state, total in want
    ]
    assert all(steps.count(steps[0]) == len(steps) for steps in zip(*each, strict=True) if is_whole)


@pytest.mark.parametrize("stream", STREAMS)
@given(data=st.data())
@settings(max_examples=5)
def test_any_trainers_chunks_and_resumes_give_one_sum(stream, data):
    check(STREAMS[stream]().describe(), data)


@pytest.mark.parametrize("packing", [*PACKINGS.values(), FirstFitPack(40, "tokens", too_long="split")], ids=str)
@given(data=st.data())
@settings(max_examples=5)
def test_of_packed_rows_too(packing, data):
    """Of documents that are several of one record, too."""
    check(source_of(Drop(), Repeat(), tokenise).describe(), data, packing=packing)


def test_of_a_stream_of_shards_too(shards):
    whole = totals(shards.describe(), batch_size=4, chunk_size=9)
    assert len(whole) == 33
    for rank_chunk, number in ((5, 0), (30, 7), (1, 20)):
        start, before = (StreamState(), 0) if not number else whole[number - 1]
        each = [
            totals(shards.describe(), None, start, batch_size=4, chunk_size=rank_chunk, share=Share(2, (rank,)))
            for rank in (0, 1)
        ]
        got = [(before + left + right) % 2**64 for (_, left), (_, right) in zip(*each, strict=True)]
        assert got == [total for _, total in whole[number:]]


def test_a_block_that_is_made_again_and_holds_something_else_is_no_silent_one():
    """Trainers that share actors ask for places first: the digests come with these, and the rows perhaps later."""

    class Unlike:
        """What it gives depends on the call."""

        calls = 0

        def map(self, element):
            Unlike.calls += 1
            return element | {"calls": Unlike.calls}

    class Forgetful(Actor):
        def read(self, request):
            self._cache._kept.clear()
            return super().read(request)

    stream = source_of(Drop(), Unlike()).describe()
    options = {"batch_size": 8, "share": Share(2, (0,)), "process_count": 2, "shares_actors": True}
    with pytest.raises(RuntimeError, match="differ in a second read"):
        totals(stream, Forgetful(stream), **options)
