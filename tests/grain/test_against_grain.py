"""Every output is Grain's own, byte for byte, for any arguments, any number of actors, and from any state."""

import itertools
import pickle

import grain.python as grain
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.feed.flow import Arrived, Pool
from datarax_ray.feed.source import Source
from datarax_ray.grain import DataLoader
from datarax_ray.grain.engine.stream import Sampling
from datarax_ray.grain.translation import sampling_of, size_of
from tests.grain_transforms import Backwards, Fragile, Keep, Noise, Repeat, Tree, Uneven, as_list, assert_same, run

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Grain's prefetch threads, dropped half way


class PicklingPool(Pool):
    """Actors without Ray: each part is answered from a pickled copy, last asked first, and by pickle."""

    def __init__(self, description, num_actors):
        self._descriptions = [pickle.loads(pickle.dumps(description)) for _ in range(num_actors)]

    def actors(self):
        return tuple(range(len(self._descriptions)))

    def receive(self, sent):
        part = list(sent)[-1]
        block = self._descriptions[part.actor].read(part.request)
        buffers = []
        data = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
        # as from Ray's object store: arrays that lie outside may not be written to
        return Arrived(part, pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers]))


def loader(arguments, num_actors):
    made = DataLoader(**arguments, worker_count=num_actors)
    if num_actors:
        made._source = Source(made.describe(), PicklingPool(made.describe(), num_actors))
    return made


@st.composite
def shards(draw):
    if draw(st.booleans()):
        return grain.NoSharding()
    count = draw(st.integers(1, 4))
    return grain.ShardOptions(draw(st.integers(0, count - 1)), count, draw(st.booleans()))


@st.composite
def samplers(draw, num_records):
    shard = draw(shards())
    seed = draw(st.sampled_from([0, 1, 42, 2**32 - 1]))
    match draw(st.sampled_from(["index", "index", "sequential", "own"])):
        case "sequential":
            return grain.SequentialSampler(num_records, shard, draw(st.sampled_from([None, seed]))), None
        case "own":
            return Backwards(num_records), shard
    epochs = draw(st.sampled_from([1, 2, 3, None]))
    shuffle = draw(st.booleans())
    # another shard than the sampler's may be given to the loader, and Grain then applies both
    given_shard = draw(st.sampled_from([None, None, None, grain.ShardOptions(1, 2)]))
    return grain.IndexSampler(num_records, shard, shuffle, epochs, seed), given_shard


def batches():
    return st.builds(
        grain.Batch, st.integers(1, 5), drop_remainder=st.booleans(), batch_fn=st.sampled_from([None, None, as_list])
    )


def transforms():
    return (
        st.sampled_from([Tree(), Uneven(), Noise(1.0), Noise(2.0), Keep(2), Keep(3), Repeat(), Fragile()]) | batches()
    )


@st.composite
def arguments(draw):
    num_records = draw(st.integers(1, 30))
    sampler, shard = draw(samplers(num_records))
    length = draw(st.sampled_from([num_records, max(1, num_records - 2)]))  # a source shorter than the sampler says
    options = draw(st.sampled_from([grain.ReadOptions(0, 0), grain.ReadOptions(2, 5)]))
    return {
        "data_source": grain.RangeDataSource(100, 100 + length, 1),
        "sampler": sampler,
        "operations": draw(st.lists(transforms(), max_size=5)),
        "shard_options": shard,
        "read_options": options,
    }


def is_possible(arguments):
    """Whether Grain can run it: with an empty shard its sampler divides by zero."""
    sampler = arguments["sampler"]
    keys = getattr(sampler, "_record_keys", None)
    return keys is None or len(keys) > 0


@given(arguments(), st.sampled_from([0, 1, 2, 3]))
def test_every_output_is_grains(arguments, num_actors):
    if not is_possible(arguments):
        return
    # Endless, and with nothing kept, Grain would not come back
    limit = 40
    if getattr(arguments["sampler"], "_num_epochs", 1) is None and any(
        isinstance(operation, Keep | Repeat) for operation in arguments["operations"]
    ):
        return
    want, want_error = run(grain.DataLoader(**arguments), limit)
    got, got_error = run(loader(arguments, num_actors), limit)
    assert_same(got, want)
    assert got_error == want_error


@given(arguments(), st.sampled_from([(0, 2), (3, 0), (1, 3), (2, 1)]), st.integers(0, 1000))
def test_every_state_goes_on_with_another_number_of_actors(arguments, numbers, at):
    if not is_possible(arguments) or getattr(arguments["sampler"], "_num_epochs", 1) is None:
        return
    before, after = numbers
    whole, _ = run(loader(arguments, before))
    at %= len(whole) + 1
    iterator = iter(loader(arguments, before))
    for number in range(at):
        assert_same(next(iterator), whole[number])
    state = iterator.get_state()
    iterator.close()
    assert len(state) < 4096
    resumed = iter(loader(arguments, after))
    resumed.set_state(state)
    assert resumed.get_state() == state
    rest, _ = run(resumed)
    assert_same(rest, whole[at:])


@pytest.mark.parametrize("num_records", [5, 1000, 8193, 65536, 65537])
@pytest.mark.parametrize("num_actors", [0, 2])
def test_a_shuffle_is_grains_at_any_size(num_records, num_actors):
    arguments = {
        "data_source": grain.RangeDataSource(0, num_records, 1),
        "sampler": grain.IndexSampler(num_records, grain.NoSharding(), True, None, 3),
        "operations": [Noise(1.0), grain.Batch(64)],
        "read_options": grain.ReadOptions(0, 0),  # Grain reads 500 ahead else
    }
    ours, theirs = iter(loader(arguments, num_actors)), iter(grain.DataLoader(**arguments))
    for _ in range(4):
        assert_same(next(ours), next(theirs))


@given(st.integers(1, 60), shards(), st.booleans(), st.sampled_from([1, 3, None]), st.sampled_from([0, 7, 2**32 - 1]))
def test_grains_samplers_are_computed_for_whole_arrays(num_records, shard, shuffle, num_epochs, seed):
    sampler = grain.IndexSampler(num_records, shard, shuffle, num_epochs, seed)
    size = size_of(sampler)
    sampling = sampling_of(sampler, size)
    if not len(sampler._record_keys):
        assert sampling is sampler
        return
    assert isinstance(sampling, Sampling)
    indices = np.arange(min(size, 130))
    assert sampling.records(indices).tolist() == [sampler[index].record_key for index in indices.tolist()]


def test_what_is_not_grains_own_sampler_is_asked_itself():
    class Fewer(grain.IndexSampler):
        def __getitem__(self, index):
            return super().__getitem__(0)

    for sampler in (Backwards(7), Fewer(7, grain.NoSharding(), False, 1)):
        assert sampling_of(sampler, size_of(sampler)) is sampler
    assert size_of(Backwards(7)) == 7  # it has no length; found by asking


@pytest.mark.slow  # Grain takes long
def test_where_grains_shuffle_is_broken_ours_is_too_and_says_so(caplog):
    num_records = 65537
    arguments = {
        "data_source": grain.RangeDataSource(0, num_records, 1),
        "sampler": grain.IndexSampler(num_records, grain.NoSharding(), True, 1, 0),
        "operations": [grain.Batch(4096)],
    }
    got = np.concatenate(list(loader(arguments, 0)))
    assert "Grain's shuffle gives one of them twice in every epoch and another never" in caplog.text
    assert len(got) == num_records
    assert len(np.unique(got)) == num_records - 1
    theirs = itertools.islice(grain.DataLoader(**arguments), 3)  # an element takes Grain as long as a batch does here
    assert_same(got[: 3 * 4096], np.concatenate(list(theirs)))
