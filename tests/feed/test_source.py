"""The in-process stream against the plain loop of tests/oracle.py, and resume at every position."""

import functools
import itertools
import json
import re
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

from datarax_ray.feed.flow import Arrived
from datarax_ray.feed.source import Source
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.feed.window import DEPTH
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.runs import within
from datarax_ray.plan.trainer_rows import Share, TrainerRows, share_of_rank
from datarax_ray.read.block_cache import BlockCache
from datarax_ray.read.errors import RecordError, SkippedError, UnlikeError
from datarax_ray.read.formats.array_record.files import RecordFile
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.skipped_records import SkipOptions
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.read.streams.mixture import MixtureStream
from tests import oracle
from tests.data import AddNoise, DropThirds, FailAt, decode, write_files
from tests.feed.pools import OneActor
from tests.fuzz.streams import Actors, TangledPool

SEED = 42
TRANSFORMS = {"noise": [decode, AddNoise()], "filter": [decode, AddNoise(), DropThirds()]}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Files of n records in all, of uneven sizes and some empty."""
    out = {}
    for n, counts in {1: (1,), 2: (0, 2), 10: (3, 0, 7), 23: (11, 12), 1000: (1, 333, 666)}.items():
        directory = tmp_path_factory.mktemp(f"n{n}")
        out[n] = write_files(directory, counts)
    return out


def describe(paths, shuffle="global", *, num_epochs=3, transforms=(decode,), on_error="raise", seed=SEED):
    reader = ArrayRecordReader.of(paths)
    return IndexedStream(reader, order_of(reader.num_records, seed, shuffle), num_epochs, tuple(transforms), on_error)


def stream(description, start=0, pool=None, **options):
    return Source(description, pool).batches(start, StreamOptions(**options))


def wanted_batches(paths, shuffle, *, num_epochs, transforms, batch_size, drop_remainder=False):
    records = oracle.stored(paths)
    elements = oracle.elements(
        records, seed=SEED if shuffle == "global" else None, num_epochs=num_epochs, transforms=transforms, rng_seed=SEED
    )
    return oracle.batches(elements, batch_size, num_epochs * len(records), drop_remainder)


def assert_batches(got, want):
    got = list(got)
    assert [batch.stop for batch in got] == [stop for stop, _ in want]
    for batch, (_, columns) in zip(got, want, strict=True):
        oracle.assert_same(batch.columns, columns)


def as_lists(batch):
    return {key: (column.dtype, column.tolist()) for key, column in batch.columns.items()}


# The stream


@pytest.mark.parametrize(
    ("n", "num_epochs", "batch_sizes", "chunk_sizes"),
    [(1, 3, (1, 7), (1, None)), (10, 3, (1, 7, 64), (1, 5, None)), (23, 3, (7,), (5,)), (1000, 2, (97,), (50,))],
)
@pytest.mark.parametrize("shuffle", ["none", "global"])
@pytest.mark.parametrize("kind", TRANSFORMS)
def test_the_stream_is_the_plain_loops_for_any_batch_and_chunk_size(
    sets, n, shuffle, kind, num_epochs, batch_sizes, chunk_sizes
):
    if (n, kind) == (1, "filter"):
        pytest.skip("record 0 is dropped, so nothing is left")
    common = {"num_epochs": num_epochs, "transforms": TRANSFORMS[kind]}
    description = describe(sets[n], shuffle, **common)
    for batch_size in batch_sizes:
        ends = {"batch_size": batch_size, "drop_remainder": batch_size == 7}
        want = wanted_batches(sets[n], shuffle, **common, **ends)
        for chunk_size in chunk_sizes:
            assert_batches(stream(description, chunk_size=chunk_size, **ends), want)


class Twice:
    """Two elements of each."""

    def flat_map(self, element):
        return [{"index": element["index"], "copy": copy} for copy in range(2)]


@pytest.mark.parametrize("shuffle", ["none", "global"])
@pytest.mark.parametrize("kind", TRANSFORMS)
def test_losses_and_changing_actors_change_nothing(sets, shuffle, kind):
    description = describe(sets[23], shuffle, transforms=TRANSFORMS[kind])
    want = wanted_batches(sets[23], shuffle, num_epochs=3, transforms=TRANSFORMS[kind], batch_size=6)
    for chunk_size in (1, 9):
        pool = TangledPool(Actors(description), 6, chunk_size)
        assert_batches(stream(description, pool=pool, batch_size=6, chunk_size=chunk_size), want)


class SharedPool(OneActor):
    """An actor that other trainers ask too."""

    def __init__(self, description, shared):
        super().__init__(description)
        self.shared = shared

    def read(self, request):
        return self.shared.answer(request, self._description.read)


def shared_pools(description, is_tangled):
    """What makes a pool for each of some trainers, all of the same actors."""
    if not is_tangled:
        return functools.partial(SharedPool, description, BlockCache(2**30))
    return functools.partial(TangledPool, Actors(description), 3, 0)


@pytest.mark.parametrize("shuffle", [pytest.param("none", marks=pytest.mark.slow), "global"])
@pytest.mark.parametrize("ends", [{}, {"drop_remainder": True}, {"pad_remainder": True}], ids=str)
@pytest.mark.parametrize("process_count", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("is_tangled", [False, True], ids=["calm", "tangled"])
def test_trainers_that_share_actors_behind_a_filter_have_their_rows_of_every_batch(
    sets, shuffle, ends, process_count, is_tangled
):
    description = describe(sets[23], shuffle, transforms=TRANSFORMS["filter"])
    for batch_size, chunk_size in ((6, 1), (6, 40), (36, 9)) if is_tangled else ((36, None),):
        pool_of, ranks = shared_pools(description, is_tangled), []
        for rank in range(process_count):
            trainer = {"process_index": rank, "process_count": process_count}
            options = {"batch_size": batch_size, "chunk_size": chunk_size, **trainer, **ends}
            shares = list(stream(description, pool=pool_of(), shares_actors=True, **options))
            alone = list(stream(description, **options))
            assert [(b.start, b.stop, b.global_rows, b.skipped, b.state) for b in shares] == [
                (b.start, b.stop, b.global_rows, b.skipped, b.state) for b in alone
            ]
            for one, other in zip(shares, alone, strict=True):
                assert as_lists(one) == as_lists(other)
                assert one.positions.tolist() == other.positions.tolist()
            ranks.append(shares)
        for parts in zip(*ranks, strict=True):
            assert sum(part.num_rows for part in parts) == parts[0].global_rows


@pytest.mark.parametrize("shares_actors", [False, True])
def test_while_nobody_runs_the_stream_waits_and_assembles_nothing(sets, shares_actors):
    now = [0.0]

    class Late(OneActor):
        def actors(self):
            now[0] += 5.0 * (now[0] < 10.0)
            return super().actors() if now[0] >= 10.0 else ()

    description = describe(sets[1000], num_epochs=1)
    timings = Timings(lambda: now[0])
    options = {"shares_actors": shares_actors, "process_count": 1 + shares_actors, "timings": timings}
    with timings.making.lap("assembling"):
        list(stream(description, pool=Late(description), batch_size=100, **options))
    assert timings.making.spent == {"assembling": 0.0, "waiting": 10.0}


class EagerPool(OneActor):
    """One actor that answers what it is asked at once, and keeps as much as a reader actor, in these units."""

    def __init__(self, description, shared, made):
        super().__init__(description)
        self.shared, self.made = shared, made

    def send(self, part):
        return self.shared.answer(part.request, self.read)

    def read(self, request):
        self.made.append((request.start, request.stop))
        return super().read(request)

    def receive(self, sent):
        part, block = next(iter(sent.items()))
        return Arrived(part, block)


@pytest.mark.parametrize("num_actor_bounds", [1, 64])
def test_behind_a_filter_no_more_is_in_flight_than_an_actor_keeps(sets, num_actor_bounds):
    target = 2**10
    description = describe(sets[1000], transforms=TRANSFORMS["filter"], num_epochs=1)
    shared, made = BlockCache(2 * DEPTH * target), []
    options = {"batch_size": 4, "process_count": 2}
    options |= {"block_nbytes": target, "max_nbytes": num_actor_bounds * DEPTH * target}
    trainers = [
        stream(
            description, pool=EagerPool(description, shared, made), shares_actors=True, process_index=rank, **options
        )
        for rank in range(2)
    ]
    for batches in zip(*trainers, strict=True):
        assert batches[0].stop == batches[1].stop
    assert len(made) == len(set(made)) > 20


@pytest.mark.parametrize("share", [Share(1, (0,), 2), Share(4, (0, 3), 2)])
def test_trainers_with_the_same_rows_have_each_of_them_read_once(sets, share):
    description = describe(sets[1000], num_epochs=2)
    shared, made = BlockCache(2**30), []
    trainers = [
        stream(description, pool=EagerPool(description, shared, made), batch_size=20, process_count=2,
               process_index=rank, shares_actors=True, share=share)
        for rank in range(2)
    ]  # fmt: skip
    for one, other, whole in zip(*trainers, stream(description, batch_size=20), strict=True):
        assert one.positions.tolist() == other.positions.tolist()
        mine = within(TrainerRows(20, share).full, np.arange(20))
        assert one.columns["index"].tolist() == whole.columns["index"][mine].tolist()
    assert len(made) == len(set(made)) > 5
    assert shared.nbytes == 0


def test_from_any_state_trainers_that_share_actors_have_the_rest_of_a_flat_map(sets):
    description = describe(sets[10], transforms=[decode, Twice()], num_epochs=2)
    whole = list(stream(description, batch_size=6))
    for rank, number in itertools.product(range(2), range(len(whole) - 1)):
        pool = shared_pools(description, True)()
        options = StreamOptions(batch_size=6, process_index=rank, process_count=2, shares_actors=True, chunk_size=3)
        rest = list(Source(description, pool).batches(whole[number].state, options))
        for got, want in zip(rest, whole[number + 1 :], strict=True):
            ((lo, hi),) = TrainerRows(6, share_of_rank(rank, 2)).of(want.num_rows)
            assert got.columns["index"].tolist() == want.columns["index"][lo:hi].tolist()
            assert got.columns["copy"].tolist() == want.columns["copy"][lo:hi].tolist()
            assert (got.state, got.ordinals.tolist()) == (want.state, want.ordinals[lo:hi].tolist())


def test_a_failure_behind_a_filter_comes_to_every_trainer_after_the_same_batches(sets):
    description = describe(sets[23], "none", transforms=[decode, FailAt(17), DropThirds()])
    for rank in range(2):
        pool = shared_pools(description, False)()
        options = {"batch_size": 4, "process_index": rank, "process_count": 2, "chunk_size": 6}
        batches, shares = [], stream(description, pool=pool, shares_actors=True, **options)
        with pytest.raises(RecordError, match="17"):
            batches.extend(shares)
        alone = []
        with pytest.raises(RecordError, match="17"):
            alone.extend(stream(description, **options))
        assert [b.stop for b in batches] == [b.stop for b in alone]


# Filters that drop everything


class DropAll:
    def filter(self, element):
        return False


class KeepOnly:
    def __init__(self, index):
        self.index = index

    def filter(self, element):
        return element["index"] == self.index


class Broken:
    def map(self, element):
        raise ValueError("broken")


class Nothing:
    def flat_map(self, element):
        return []


class Position:
    def map_with_index(self, position, element):
        return {"position": position}


class Lot:
    def random_map(self, element, rng):
        return {"position": int(rng.integers(40))}


class KeepLate:
    def filter(self, element):
        return element["position"] >= 39


@pytest.mark.parametrize(
    ("transforms", "options", "reason"),
    [
        ([DropAll()], {}, "the filters drop"),
        ([DropAll()], {"num_epochs": -1}, "the filters drop"),
        # what stands behind the filters is no hope for a later epoch
        *(
            ([DropAll(), behind], {"num_epochs": -1, "on_error": on_error}, "the filters drop")
            for on_error in ("raise", "skip", lambda failure: True)
            for behind in (Position(), Lot())
        ),
        # records that are broken before anything is told the position are so in every epoch
        ([Broken()], {"num_epochs": -1, "on_error": "skip"}, "every record is broken"),
        ([Broken(), Position()], {"num_epochs": -1, "on_error": "skip"}, "every record is broken"),
        ([Broken(), Position(), KeepLate()], {"num_epochs": -1, "on_error": "skip"}, ""),
        ([Nothing()], {}, "flat_map gives nothing$"),
    ],
)
def test_an_epoch_that_gives_nothing_is_an_error_and_not_an_endless_wait(sets, transforms, options, reason):
    description = describe(sets[10], transforms=[decode, *transforms], **options)
    for start, begin, chunk_size in ((0, 0, 7), (3, 10, 1), (3, 10, None)):
        message = f"no element of the 10 positions from {begin} on was kept: {reason}"
        with pytest.raises(RuntimeError, match=message):
            list(stream(description, start=start, batch_size=2, chunk_size=chunk_size))


class RaiseEarly:
    def __init__(self, begin=35):
        self.begin = begin

    def map_with_index(self, position, element):
        if position < self.begin:
            raise ValueError(position)
        return {"position": position}


@pytest.mark.parametrize("chunk_size", [1, 7, None])
def test_epochs_of_broken_records_or_of_a_filter_by_position_may_be_followed_by_others(sets, chunk_size):
    for transforms in ([decode, KeepOnly(1), RaiseEarly()], [decode, Position(), KeepLate()]):
        description = describe(sets[10], num_epochs=-1, on_error="skip", transforms=transforms)
        batch = next(stream(description, batch_size=2, chunk_size=chunk_size))
        assert batch.positions.min() >= 35


@pytest.mark.parametrize("most", [3, 1100])
@pytest.mark.parametrize("take", [lambda source: source.get_batch(2), Source.next_element])
def test_a_cap_on_broken_records_holds_where_no_batch_ever_comes(sets, take, most):
    description = describe(sets[10], num_epochs=-1, on_error="skip", transforms=[decode, Position(), Broken()])
    source = Source(description, skip_options=SkipOptions(most))
    with pytest.raises(SkippedError, match=f"more than max_skipped={most} allows"):
        take(source)
    assert (source.position, source.num_skipped <= most) == (0, True)


@pytest.mark.parametrize("take", [lambda source: source.get_batch(2), Source.next_element])
def test_what_comes_behind_many_broken_records_comes(sets, take):
    source = Source(describe(sets[10], num_epochs=-1, on_error="skip", transforms=[decode, RaiseEarly(1235)]))
    assert np.asarray(take(source)["position"]).min() == 1235
    assert source.num_skipped == 1235


@pytest.mark.parametrize("chunk_size", [1, 7, None])
def test_a_filter_that_keeps_something_in_a_later_epoch_keeps_it(sets, chunk_size, caplog):
    for told in (Position(), Lot()):
        description = describe(sets[10], num_epochs=-1, transforms=[decode, told, KeepLate()])
        all_positions = describe(sets[10], num_epochs=-1, transforms=[decode, told])
        found = [e["position"] for e in Source(all_positions).get_batch_at(0, 400)]
        want = [position for position, lot in enumerate(found) if lot >= 39][:4]
        assert want[0] > 10
        for start in (0, 3):
            batches = stream(description, start=start, batch_size=2, chunk_size=chunk_size)
            assert [next(batches).positions.tolist() for _ in range(2)] == [want[:2], want[2:]]
    assert "no element of the 10 positions from 0 on was kept, nor of 1 epochs in a row" in caplog.text


@pytest.mark.parametrize(("n", "chunk_size"), [(2, 1), (10, 3), (23, None)])
def test_a_filter_that_keeps_one_element_of_each_epoch_is_no_error(sets, n, chunk_size):
    # Shuffled, two of the kept ones may be up to 2n - 1 positions apart.
    transforms = [decode, KeepOnly(1)]
    description = describe(sets[n], num_epochs=8, transforms=transforms)
    want = wanted_batches(sets[n], "global", num_epochs=8, transforms=transforms, batch_size=4)
    assert_batches(stream(description, batch_size=4, chunk_size=chunk_size), want)


# Resume


@pytest.mark.parametrize("shuffle", ["none", "global"])
@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("batch_size", [5, 24])
def test_from_the_state_after_any_batch_exactly_the_rest_is_left(sets, shuffle, kind, batch_size):
    description = describe(sets[23], shuffle, transforms=TRANSFORMS[kind])
    source = Source(description)
    batches, states = [], [json.dumps(source.get_state())]
    while batch := source.get_batch(batch_size):
        batches.append(batch)
        states.append(json.dumps(source.get_state()))
    want = wanted_batches(sets[23], shuffle, num_epochs=3, transforms=TRANSFORMS[kind], batch_size=batch_size)
    assert len(batches) == len(want)
    for number, state in enumerate(states):
        again = Source(describe(sets[23], shuffle, transforms=TRANSFORMS[kind]))
        again.set_state(json.loads(state))
        for _, columns in want[number : number + 2] if number % 6 else want[number:]:
            oracle.assert_same(again.get_batch(batch_size), columns)
        assert number % 6 or again.get_batch(batch_size) == {}


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_from_the_state_after_any_element_exactly_the_rest_is_left(sets, kind):
    description = describe(sets[10], transforms=TRANSFORMS[kind])
    source = Source(description)
    elements, states = [], [json.dumps(source.get_state())]
    for element in source:
        elements.append(element)
        states.append(json.dumps(source.get_state()))
    want = [
        element["index"]
        for _, element in oracle.elements(
            oracle.stored(sets[10]), seed=SEED, num_epochs=3, transforms=TRANSFORMS[kind], rng_seed=SEED
        )
    ]
    assert [int(e["index"]) for e in elements] == want
    for number, state in enumerate(states):
        again = Source(description)
        again.set_state(json.loads(state))
        assert [int(e["index"]) for e in again] == want[number:]
    assert Source(description).position == 0


@pytest.mark.parametrize(
    ("num_epochs", "length_of", "numbers"),
    [(2, lambda index: index % 3, (0, 22, 40)), (1, lambda index: 1 + (index >= 12), (10, 11, 12))],
    ids=["ragged", "of another shape from some chunk on"],
)
def test_elements_that_do_not_stack_come_one_by_one_and_resume(sets, num_epochs, length_of, numbers):
    def ragged(element):
        return element | {"tail": np.arange(length_of(element["index"]))}

    source = Source(describe(sets[23], "none", num_epochs=num_epochs, transforms=[decode, ragged]))
    found, states = [], []
    for element in source:
        found.append((int(element["index"]), len(element["tail"])))
        states.append(source.get_state())
    assert found == [(index, length_of(index)) for _ in range(num_epochs) for index in range(23)]
    for number in numbers:
        source.set_state(states[number])
        assert [(int(each["index"]), len(each["tail"])) for each in source] == found[number + 1 :]


def test_elements_and_batches_share_one_position_in_any_mixture(sets):
    want = [
        element["index"]
        for _, element in oracle.elements(
            oracle.stored(sets[23]), seed=SEED, num_epochs=3, transforms=TRANSFORMS["filter"], rng_seed=SEED
        )
    ]
    source = Source(describe(sets[23], transforms=TRANSFORMS["filter"]))
    got = []
    for size in (0, 1, 5, 0, 0, 256, 3):
        if size:
            got += source.get_batch(size).get("index", np.array([], int)).tolist()
        else:
            got.append(int(source.next_element()["index"]))
    assert got == want
    with pytest.raises(StopIteration):
        source.next_element()
    assert source.get_batch(3) == {}


def test_iterating_goes_on_after_a_break_and_ends_once_and_says_so(sets, caplog):
    source = Source(describe(sets[10], "none", num_epochs=1))
    first = [int(e["index"]) for e in islice(source, 4)]
    assert first + [int(e["index"]) for e in source] == list(range(10))
    assert caplog.text == ""
    assert list(source) == []
    assert "at its end (position 10), so this loop gets no element" in caplog.text
    source.seek(8)
    assert [int(e["index"]) for e in source] == [8, 9]


def test_get_batch_at_is_stateless_and_runs_through_epochs(sets):
    source = Source(describe(sets[10], "global", num_epochs=2))
    order = oracle.order(10, 0, SEED) + oracle.order(10, 1, SEED)
    assert [e["index"] for e in source.get_batch_at(7, 6)] == order[7:13]
    assert [e["index"] for e in source.get_batch_at(18, 6)] == order[18:]
    assert source.get_batch_at(20, 6) == []
    assert source.get_batch_at(10**12, 1) == []
    assert source.get_batch_at(3, 0) == []
    assert source.position == 0
    for start, size in ((-1, 3), (0, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            source.get_batch_at(start, size)
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        source.seek(-1)


def test_the_spec_of_an_element_consumes_nothing(sets):
    source = Source(describe(sets[23], transforms=TRANSFORMS["noise"]))
    spec = source.element_spec()
    assert {k: (v.shape, str(v.dtype)) for k, v in spec.items()} == {
        "index": ((), "int64"),
        "name": ((), "object"),
        "noise": ((2,), "float32"),
        "ragged": ((), "object"),
        "values": ((5,), "int32"),
    }
    assert source.position == 0


# Failures


@pytest.mark.parametrize(("chunk_size", "batch_size"), [(1, 3), (7, 4), (None, 3)])
def test_every_batch_before_a_failing_record_is_delivered_whatever_the_chunks(sets, chunk_size, batch_size):
    description = describe(sets[23], "none", num_epochs=1, transforms=[decode, FailAt(14)])
    got = []
    with pytest.raises(
        RecordError, match=r"part-00001\.array_record\[3\] \(position 14\): transform FailAt raised Zero"
    ):
        got.extend(b.stop for b in stream(description, batch_size=batch_size, chunk_size=chunk_size))
    assert got == list(range(batch_size, 15, batch_size))


def test_a_failure_comes_again_after_all_that_is_before_it(sets):
    source = Source(describe(sets[23], "none", transforms=[decode, FailAt(5)]))
    assert source.get_batch(4)["index"].tolist() == [0, 1, 2, 3]
    for _ in range(3):
        with pytest.raises(RecordError, match="position 5"):
            source.get_batch(4)
        assert source.position == 4
    assert int(source.next_element()["index"]) == 4
    for _ in range(2):
        with pytest.raises(RecordError, match="position 5"):
            source.next_element()
        assert source.position == 5
    source.seek(6)
    assert source.get_batch(4)["index"].tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize("chunk_size", [1, 7, None])
def test_skipped_records_are_left_out_and_each_told_once(sets, chunk_size):
    description = describe(sets[23], "none", num_epochs=2, transforms=[decode, FailAt(22)], on_error="skip")
    told, rows = [], []
    running = stream(description, batch_size=4, chunk_size=chunk_size)
    while True:
        try:
            batch = next(running)
        except StopIteration as end:
            told += end.value
            break
        told += batch.skipped
        rows += batch.columns["index"].tolist()
    assert rows == [*range(22), *range(22)]
    assert [skip.position for skip in told] == [22, 45]
    assert told[0].where.endswith("part-00001.array_record[11]")
    assert "ZeroDivisionError: cannot divide element 22" in told[0].reason


def test_skipped_records_are_counted_on_and_listed_up_to_a_thousand(sets):
    source = Source(describe(sets[1000], num_epochs=2, transforms=[decode, FailAt(*range(700))], on_error="skip"))
    sizes = itertools.cycle([0, 0, 5, 1, 0, 127])  # elements and batches in turns, so that much is fetched twice
    num_rows = 0
    while num_rows < 600:
        size = next(sizes)
        num_rows += len(source.get_batch(size)["index"]) if size else bool(source.next_element())
    assert source.get_batch(9) == {}
    assert (source.num_skipped, len(source.skipped)) == (1400, 1000)
    source.seek(0)
    assert (source.num_skipped, source.skipped) == (0, [])


# States


def saved(sets, n=23, **changes):
    source = Source(describe(sets[n], **changes))
    source.get_batch(5)
    return json.loads(json.dumps(source.get_state()))


def test_a_state_is_refused_by_another_stream_with_both_values(sets):
    state = saved(sets)
    for change, message in [
        ({"seed": 43}, r"order\.seed: the checkpoint was written with 42, this pipeline has 43"),
        ({"shuffle": "none"}, r"order\.shuffle: the checkpoint was written with 'global', this pipeline has 'none'"),
        ({"num_epochs": 4}, r"order\.num_epochs: the checkpoint was written with 3, this pipeline has 4"),
        ({"on_error": "skip"}, "on_error: the checkpoint was written with 'raise', this pipeline has 'skip'"),
        ({"paths": sets[10]}, r"files\.num_records: the checkpoint was written with 23, this pipeline has 10"),
        ({"paths": sets[23][::-1]}, r"files\.digest"),
    ]:
        with pytest.raises(DriftError, match=message):
            Source(describe(**{"paths": sets[23]} | change)).set_state(state)


def test_allowed_drift_goes_on_from_the_position(sets):
    source = Source(describe(sets[23], num_epochs=5))
    source.set_state(saved(sets), allow_drift=("order.num_epochs",))
    assert source.position == 5
    fewer = Source(describe(sets[23], num_epochs=1))  # than were read: the end
    fewer.set_state(saved(sets) | {"position": 50}, allow_drift=("order.num_epochs",))
    assert fewer.get_batch(2) == {}


def test_positions_end_with_an_error_and_every_state_before_it_loads(sets):
    description = describe(sets[23], num_epochs=-1)
    source, one_by_one = Source(description), Source(description)
    for each in (source, one_by_one):
        each.seek(2**62 - 6)
    assert len(source.get_batch(4)["index"]) == 4
    for _ in range(2):
        with pytest.raises(OverflowError, match=r"positions end at 2\*\*62, .* \[46.*902, 46.*906\)"):
            source.get_batch(4)
        Source(description).set_state(json.loads(json.dumps(source.get_state())))
    assert len(source.get_batch(2)["index"]) == 2
    assert source.get_state()["position"] == 2**62
    assert len([one_by_one.next_element() for _ in range(6)]) == 6
    with pytest.raises(OverflowError, match="positions end"):
        one_by_one.next_element()


class Named:
    def __init__(self, name):
        self.__qualname__ = name

    def map(self, element):
        return element


def test_a_state_stays_small_whatever_the_dataset_and_position(sets):
    files = [
        RecordFile(f"/{'d' * 200}/{i:05d}-{'n' * 200}.array_record", 10**9, 2**40, 1, 0, 10**9) for i in range(3000)
    ]
    reader = ArrayRecordReader(files)

    for name in ("T" * 500, "变换" * 250, '"' * 100):
        transforms = tuple(Named(name) for _ in range(100))
        source = Source(IndexedStream(reader, order_of(reader.num_records, 2**32 - 1, "global"), -1, transforms))
        source.seek(10**12)
        assert len(json.dumps(source.get_state())) < 4096
        source.seek(2**62)
        assert len(json.dumps(source.get_state(), indent=2)) < 4096


def test_numpy_numbers_in_the_settings_make_a_plain_state(sets):
    described = SimpleNamespace(
        filename=sets[23][0], skip=np.int64(2), take=np.int64(5), examples_in_shard=np.int64(11)
    )
    reader = ArrayRecordReader.of([described])
    description = IndexedStream(reader, order_of(reader.num_records, np.uint32(7), "global"), np.int64(3), (decode,))
    source = Source(description)
    source.get_batch(np.int64(2))
    assert json.loads(json.dumps(source.get_state())) == source.get_state()
    assert source.position == 2


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 5, "process_count": 2}, "does not divide"),
        ({"batch_size": 5, "chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"batch_size": 5, "max_nbytes": 0}, "max_nbytes must be at least 1, got 0"),
        ({"num_epochs": 0}, "num_epochs must be at least 1, or -1 for endless, got 0"),
        ({"on_error": "ignore"}, "on_error must be 'raise', 'skip' or a function.*, got 'ignore'"),
    ],
)
def test_impossible_options_are_refused(sets, options, message):
    with pytest.raises(ValueError, match=message):
        StreamOptions(**options) if "batch_size" in options else describe(sets[10], **options)


@pytest.mark.parametrize("name", ["batch_size", "process_index", "process_count", "chunk_size"])
@pytest.mark.parametrize("value", ["1", 1.0, True, [1]])
def test_options_that_are_no_whole_numbers_are_refused(name, value):
    with pytest.raises(TypeError, match=f"{name} is a whole number, got"):
        StreamOptions(**{"batch_size": 4, name: value})


def float_from_4(stored):
    index = int(np.frombuffer(stored, "<i4")[0])
    return {"x": index if index < 4 else float(index)}


def test_an_element_unlike_those_of_the_chunk_before_is_named_with_one_of_them(tmp_path):
    paths = write_files(tmp_path, (4, 6))
    description = describe(paths, "none", num_epochs=1, transforms=[float_from_4])
    with pytest.raises(UnlikeError, match=r"x was int64 \(\) so far and is float64 \(\) from position 4 on") as raised:
        list(stream(description, batch_size=2, chunk_size=4))
    assert raised.value.__notes__ == [f"position 0 is at {paths[0]}[0], position 4 at {paths[1]}[0]"]


class AsFloat:
    def map_columns(self, columns):
        return {"x": columns["x"].astype(np.float32)}


class OddOnes:
    def filter(self, element):
        return element["x"] % 2 == 1


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 4, 8, None])
@pytest.mark.parametrize("steps", [[AsFloat()], [OddOnes(), AsFloat()], [AsFloat(), OddOnes()]])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_elements_unlike_in_front_of_a_transform_of_columns_end_the_stream_in_one_place(
    is_mixed, steps, chunk_size, tmp_path
):
    one = describe(write_files(tmp_path, (4, 6)), "none", num_epochs=1, transforms=[float_from_4, *steps])
    description = MixtureStream((one, one), (1, 1)) if is_mixed else one
    source = Source(description, TangledPool(Actors(description), 3, 7) if chunk_size else None)
    found, failed_at = [], None
    try:
        for batch in source.batches(0, StreamOptions(1, chunk_size=chunk_size)):
            found += batch.columns["x"].tolist()
    except (RecordError, UnlikeError) as error:
        failed_at = error.position
    drops = any(isinstance(step, OddOnes) for step in steps)
    whole = [1, 3] if drops else [0, 1, 2, 3]
    first = 5 if isinstance(steps[0], OddOnes) else 4
    assert (found, failed_at) == ((sorted(2 * whole), 2 * first) if is_mixed else (whole, first))


def test_components_of_a_mixture_that_are_unlike_are_named_by_their_records(tmp_path):
    paths = write_files(tmp_path, (4, 6))
    parts = [describe([path], "none", transforms=[float_from_4]) for path in paths]
    inner = MixtureStream((parts[0], parts[1]), (1, 1))
    outer = MixtureStream((parts[0], inner), (1, 1))
    with pytest.raises(UnlikeError) as raised:
        list(stream(outer, batch_size=2, chunk_size=8))
    told = re.fullmatch(r"position \d+ is at (.*)\[\d+\], position \d+ at (.*)\[\d+\]", raised.value.__notes__[-1])
    names = {f"component 0: {paths[0]}", f"component 1: component 1: {paths[1]}"}
    assert set(told.groups()) == names  # integers, and floats
