"""Trainers that ask the same actors, in one process: each has its rows, and is sent little more than these."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datarax_ray.feed.stream import StreamOptions, batches
from datarax_ray.plan.packing import ConcatThenSplit, FirstFitPack
from datarax_ray.plan.runs import rows_in
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import Share, TrainerRows
from datarax_ray.read.block_cache import BlockCache
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.data import Squares
from tests.feed.pools import OneActor

N = 300
PACKINGS = {
    "concat": ConcatThenSplit(64, ("tokens", "mask"), pad_id={"tokens": -1}, bos_token_id=7),
    "first fit": FirstFitPack(100, ("tokens", "mask"), pad_id={"tokens": -1}),
    "first fit, split": FirstFitPack(40, ("tokens", "mask"), pad_id={"tokens": -1}, too_long="split"),
}


class Actor(OneActor):
    """One actor that all trainers ask, and what it sent."""

    def __init__(self, description):
        super().__init__(description)
        self._cache = BlockCache(2**27)
        self.num_made = self.nbytes = 0

    def read(self, request):
        block = self._cache.answer(request, self._make)
        self.nbytes += block.nbytes
        return block

    def _make(self, request):
        self.num_made += 1
        return super().read(request)


class Drop:
    def filter(self, element):
        return bool(element["index"] % 5)


def tokenise(element):
    """Document i: i * 7 % 97 tokens; none at all for 0."""
    index = element["index"]
    tokens = index * 1000 + np.arange(index * 7 % 97, dtype=np.int32)
    return {"tokens": tokens, "mask": (tokens % 2).astype(np.int8)}


def stream_of(*transforms, **config):
    options = {"num_epochs": 2, "shuffle": True} | config
    return RandomAccessSource(RandomAccessSourceConfig(**options), Squares(N), transforms=transforms).describe()


def read(stream, actor, start=None, **options):
    return batches(stream, actor, start or StreamState(), StreamOptions(**options))


def check(whole, parts, batch_size, shares, is_padded):
    """Each trainer has its rows of every batch, and stands where one alone would."""
    assert len(whole) == len(parts)
    for batch, mine in zip(whole, parts, strict=True):
        for share, part in zip(shares, mine, strict=True):
            ranges = TrainerRows(batch_size, share, is_padded).of(batch.global_rows)
            assert part.columns.keys() == batch.columns.keys()
            for name, column in batch.columns.items():
                want = rows_in(ranges, column)
                assert (part.columns[name].dtype, part.columns[name].tolist()) == (want.dtype, want.tolist()), name
            assert part.positions.tolist() == rows_in(ranges, batch.positions).tolist()
            assert part.ordinals.tolist() == rows_in(ranges, batch.ordinals).tolist()
            assert (part.state, part.global_rows) == (batch.state, batch.global_rows)


@pytest.mark.parametrize("packing", PACKINGS)
@given(data=st.data())
@settings(max_examples=4)
def test_packed_rows_of_trainers_that_share_actors_are_those_of_one(packing, data):
    num_trainers, rows_each = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    options = {
        "batch_size": num_trainers * rows_each,
        "packing": PACKINGS[packing],
        "chunk_size": data.draw(st.integers(1, 90)),
        "drop_remainder": data.draw(st.booleans()),
        "pad_remainder": data.draw(st.booleans()),
        "stop": data.draw(st.integers(N // 2, 2 * N)),
    }
    sizes = st.sets(st.integers(0, num_trainers - 1), min_size=1)
    shares = [Share(num_trainers, tuple(sorted(data.draw(sizes)))) for _ in range(num_trainers)]
    stream = stream_of(Drop(), tokenise)
    whole = list(read(stream, None, **options))
    states = [StreamState(), *(batch.state for batch in whole[:-1])]
    number = data.draw(st.integers(0, len(states) - 1))
    actor = Actor(stream)
    trainers = [
        read(stream, actor, states[number], share=share, shares_actors=True, process_count=num_trainers, **options)
        for share in shares
    ]
    got = list(zip(*trainers, strict=True))
    check(whole[number:], got, options["batch_size"], shares, options["pad_remainder"])


@pytest.mark.parametrize("packing", PACKINGS)
def test_packing_sends_each_trainer_its_rows_alone(packing: str) -> None:
    num_trainers = 4
    stream = stream_of(tokenise, num_epochs=4)
    options: dict[str, Any] = {"packing": PACKINGS[packing], "batch_size": 8, "chunk_size": 128, "pad_remainder": True}
    alone, shared = Actor(stream), Actor(stream)
    for _ in read(stream, alone, **options):
        pass
    trainers = [
        read(stream, shared, process_index=rank, process_count=num_trainers, shares_actors=True, **options)
        for rank in range(num_trainers)
    ]
    for _ in zip(*trainers, strict=True):
        pass
    assert shared.num_made == alone.num_made
    assert shared.nbytes == alone.nbytes
