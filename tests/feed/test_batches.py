"""The batcher against a plain loop over positions."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.feed.batches import Batcher
from datarax_ray.plan.position import Yields
from datarax_ray.plan.runs import rows_in
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import WHOLE, Share, TrainerRows, share_of_rank
from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import stack
from datarax_ray.read.errors import Skipped
from datarax_ray.read.reused_memory import ReusedMemory


def element(position):
    return {
        "x": np.array([position, -position], np.float64),
        "deep": {"name": f"p{position}", "list": list(range(position % 3))},
        "n": position,
    }


def block(positions, skipped=()):
    positions = list(positions)
    columns = stack([element(p) for p in positions]) if positions else None
    return Block(np.array(positions, np.int64), columns, tuple(Skipped(f"f[{p}]", p, "broken") for p in skipped))


def as_rows(batch):
    columns = batch.columns
    return [
        {"x": columns["x"][i].tolist(), "n": int(columns["n"][i]), "name": columns["deep"]["name"][i],
         "list": columns["deep"]["list"][i]}
        for i in range(batch.num_rows)
    ]  # fmt: skip


def rows_of(positions):
    return [{"x": [p, -p], "n": p, "name": f"p{p}", "list": list(range(p % 3))} for p in positions]


@st.composite
def streams(draw):
    """(start, stop, chunks, kept, broken, may_drop, num_parts, batch_size): all that a window or filter may do."""
    start = draw(st.sampled_from([0, 3, 10**12]))
    length = draw(st.integers(1, 40))
    cuts = sorted(draw(st.sets(st.integers(1, length), max_size=8)) | {length})
    may_drop = draw(st.booleans())
    fates = draw(st.lists(st.sampled_from("kkkdb" if may_drop else "k"), min_size=length, max_size=length))
    owners = draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
    num_parts = draw(st.integers(1, 4))
    batch_size = num_parts * draw(st.sampled_from([1, 2, 3, 5, 7, 13, 25]))  # few rows of each block, and many
    chunks, at = [], 0
    for cut in cuts:
        parts = {o: ([], []) for o in set(owners[at:cut])}
        for i in range(at, cut):
            if fates[i] == "k":
                parts[owners[i]][0].append(start + i)
            elif fates[i] == "b":
                parts[owners[i]][1].append(start + i)
        chunks.append((start + at, start + cut, draw(st.permutations(list(parts.values())))))
        at = cut
    kept = [start + i for i in range(length) if fates[i] == "k"]
    broken = [start + i for i in range(length) if fates[i] == "b"]
    return start, start + length, chunks, kept, broken, may_drop, num_parts, batch_size


def rows_array(positions):
    return np.array(positions, np.int64)


def plain_loop(start, stop, kept, broken, batch_size, drop_remainder):
    """(start, stop, kept positions, broken positions) of every batch, and the broken ones after the last."""
    out, begin = [], start
    for at in range(0, len(kept), batch_size):
        rows = kept[at : at + batch_size]
        if len(rows) < batch_size and drop_remainder:
            break
        end = rows[-1] + 1 if len(rows) == batch_size else stop
        out.append((begin, end, rows, [p for p in broken if begin <= p < end]))
        begin = end
    return out, [p for p in broken if p >= begin]


@given(streams(), st.booleans(), st.booleans())
def test_batches_are_those_of_a_plain_loop_for_any_chunks_owners_drops_and_trainers(stream, drop_remainder, only_mine):
    start, stop, chunks, kept, broken, may_drop, num_parts, batch_size = stream
    wanted, left = plain_loop(start, stop, kept, broken, batch_size, drop_remainder)
    for shares in itertools.chain(*(itertools.combinations(range(num_parts), n) for n in range(1, num_parts + 1))):
        share = TrainerRows(batch_size, Share(num_parts, shares))
        mine = {p for _, _, rows, _ in wanted for p in rows_in(share.of(len(rows)), rows_array(rows)).tolist()}
        batcher = Batcher(share, start=start, stop=stop, drop_remainder=drop_remainder, yields=Yields(not may_drop))
        got = []
        feed = lambda positions, keep=mine: [p for p in positions if may_drop or not only_mine or p in keep]  # noqa: E731
        try:
            for first, last, parts in chunks:
                got += batcher.add(first, last, [block(feed(good), bad) for good, bad in parts])
            got += batcher.finish()
        except ValueError as error:
            assert "fewer elements than there are trainers" in str(error)  # noqa: PT017  it depends on the data
            assert not mine
            continue
        assert [(b.start, b.stop) for b in got] == [(begin, end) for begin, end, _, _ in wanted]
        for batch, (_, _, rows, bad) in zip(got, wanted, strict=True):
            own = rows_in(share.of(len(rows)), rows_array(rows)).tolist()
            assert batch.positions.tolist() == own
            assert batch.positions.dtype == np.int64
            assert {type(batch.start), type(batch.stop)} == {int}
            assert as_rows(batch) == rows_of(own)
            assert batch.columns["x"].dtype == np.float64
            assert [s.position for s in batch.skipped] == bad
        assert [s.position for s in batcher.intake.skipped_before(None)] == left


def test_a_failure_ends_any_stream_behind_the_whole_batches_before_it():
    """The blocks of others hold elements behind it, which are in no batch: every stream of six positions."""
    failure, failed_at = ValueError("broken"), 4
    for owners, batch_size in itertools.product(itertools.product("ab-", repeat=6), (1, 3)):
        others = block(position for position, owner in enumerate(owners) if owner == "a")
        own = block(position for position, owner in enumerate(owners[:failed_at]) if owner == "b")
        own = replace(own, failure=failure, failure_position=failed_at)
        kept = [position for position, owner in enumerate(owners[:failed_at]) if owner != "-"]
        for blocks in ([others, own], [own, others]):
            got = []
            try:
                got.extend(Batcher(TrainerRows(batch_size), start=0, stop=6, yields=Yields(False)).add(0, 6, blocks))
            except ValueError as error:
                assert error is failure  # noqa: PT017  where the batches before it are looked at
            whole = [kept[at : at + batch_size] for at in range(0, len(kept) - batch_size + 1, batch_size)]
            assert [batch.positions.tolist() for batch in got] == whole, owners


def batches_of(batcher, *chunks):
    out = []
    for first, last, blocks in chunks:
        out += batcher.add(first, last, blocks)
    return out + list(batcher.finish())


def test_a_batch_is_not_changed_by_later_ones_nor_by_its_block():
    batcher = Batcher(TrainerRows(2), start=0, stop=4)
    source = block(range(4))
    first, second = batches_of(batcher, (0, 4, [source]))
    assert not np.shares_memory(first.columns["x"], source.columns["x"])
    source.columns["x"][:] = 99
    assert as_rows(first) == rows_of([0, 1])
    first.columns["x"][:] = 7
    assert as_rows(second) == rows_of([2, 3])


def lent(rows):
    array = ReusedMemory(1, min_nbytes=1).empty(rows.shape, rows.dtype)
    array[:] = rows
    return array


def read_only(array):
    array.flags.writeable = False
    return array


ROWS = np.arange(64 * 2048, dtype="i4").reshape(64, 2048)  # two batches of these are too large to be made together


@pytest.mark.parametrize(
    ("columns", "cuts", "is_shown"),
    [
        ({"x": lent(ROWS)}, [[(0, 64)]], [True, True]),
        ({"x": lent(ROWS[:8])}, [[(0, 8)]], [True]),  # a short last one
        ({"x": lent(ROWS), "y": np.arange(64)}, [[(0, 64)]], [True, True]),
        ({"x": lent(ROWS)}, [[(0, 32)], [(32, 64)]], [True, True]),
        ({"x": lent(ROWS)}, [[(0, 24)], [(24, 64)]], [False, True]),  # the first has rows of two blocks
        ({"x": lent(ROWS)}, [[(0, 24), (24, 64)]], [False, True]),
        ({"x": ROWS.copy()}, [[(0, 64)]], [False, False]),  # somebody else may have it
        ({"x": read_only(lent(ROWS))}, [[(0, 64)]], [False, False]),
        (dict.fromkeys("xy", lent(ROWS)), [[(0, 64)]], [False, False]),  # who writes to one field would write to both
        ({"x": lent(np.repeat(ROWS, 4, axis=0))}, [[(0, 256)]], [False] * 8),  # it would keep eight times its memory
        ({"x": lent(ROWS)[:, 4:]}, [[(0, 64)]], [False, False]),
    ],
)
def test_a_batch_shows_its_block_where_nobody_else_can_have_the_memory_and_most_of_it_is_the_batch(
    columns, cuts, is_shown
):
    count = len(columns["x"])
    batcher = Batcher(TrainerRows(32), start=0, stop=count)
    whole, want = Block(np.arange(count), columns), {name: column.copy() for name, column in columns.items()}
    batches = batches_of(batcher, *[(c[0][0], c[-1][1], [whole.part(*each) for each in c]) for c in cuts])
    assert [np.shares_memory(batch.columns["x"], columns["x"]) for batch in batches] == is_shown
    for name, column in want.items():
        assert np.array_equal(np.concatenate([batch.columns[name] for batch in batches]), column)
    assert np.concatenate([batch.positions for batch in batches]).tolist() == list(range(count))
    assert not any(np.shares_memory(batch.positions, whole.positions) for batch in batches)


def test_a_few_large_rows_are_shown_too():
    columns = {"x": lent(ROWS[:8])}
    for first in batches_of(Batcher(TrainerRows(4), start=0, stop=8), (0, 8, [Block(np.arange(8), columns)])):
        assert np.shares_memory(first.columns["x"], columns["x"])


def columns_block(start, columns):
    count = len(next(iter(columns.values())))
    return Block(np.arange(start, start + count), columns)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"x": np.zeros(2, "f4")}, {"x": np.zeros(2, "f8")}, r"x was float32 \(\) so far and is float64 \(\) from"),
        ({"x": np.zeros((2, 3))}, {"x": np.zeros((2, 4))}, r"x was float64 \(3,\) so far and is float64 \(4,\)"),
        ({"x": np.zeros(2)}, {"x": np.zeros(2), "y": np.zeros(2)}, "y was missing so far and is float64"),
        ({"x": np.zeros(2), "y": np.zeros(2)}, {"x": np.zeros(2)}, r"y was float64 \(\) so far and is missing"),
        ({"x": np.zeros(2)}, {"x": {"z": np.zeros(2)}}, "was missing so far|is missing from"),
        ({"x": np.zeros(2, object)}, {"x": np.zeros(2)}, r"x was object \(\) so far and is float64"),
    ],
)  # fmt: skip
def test_blocks_that_do_not_fit_together_are_refused_with_both_sides(first, second, message):
    batcher = Batcher(TrainerRows(4), start=0, stop=4)
    blocks = [columns_block(0, first), Block(np.arange(2, 4), second)]
    with pytest.raises(ValueError, match=message):
        list(batcher.add(0, 4, blocks))


def test_elements_that_are_no_dicts_become_one_array():
    batcher = Batcher(TrainerRows(2), start=0, stop=3)
    one, two = batches_of(batcher, (0, 3, [Block(np.arange(3), np.array([5, 6, 7], np.int16))]))
    assert (one.columns.tolist(), two.columns.tolist(), one.columns.dtype) == ([5, 6], [7], np.int16)


def test_keys_in_another_order_are_the_same_fields():
    batcher = Batcher(TrainerRows(2), start=0, stop=2)
    blocks = [
        Block(np.array([0]), {"a": np.array([1]), "b": np.array([2.0])}),
        Block(np.array([1]), {"b": np.array([4.0]), "a": np.array([3])}),
    ]
    (batch,) = batches_of(batcher, (0, 2, blocks))
    assert {k: v.tolist() for k, v in batch.columns.items()} == {"a": [1, 3], "b": [2.0, 4.0]}


def test_missing_rows_are_an_error_and_not_garbage():
    batcher = Batcher(TrainerRows(4), start=0, stop=4)
    with pytest.raises(RuntimeError, match=r"positions \[0, 4\) gave 3 of 4 rows"):
        list(batcher.add(0, 4, [block([0, 1, 3])]))


def test_a_trainer_without_any_element_is_told_so():
    batcher = Batcher(TrainerRows(4, share_of_rank(0, 2)), start=0, stop=1)
    with pytest.raises(ValueError, match=r"fewer elements than there are trainers \(2\).*process_index 0"):
        batches_of(batcher, (0, 1, [block([])]))


def test_a_trainer_without_rows_in_the_last_batch_gets_empty_arrays_of_the_same_kind():
    batcher = Batcher(TrainerRows(4, share_of_rank(0, 2)), start=0, stop=5)
    full, short = batches_of(batcher, (0, 5, [block([0, 1])]))
    assert (full.num_rows, short.num_rows) == (2, 0)
    assert (short.columns["x"].shape, short.columns["x"].dtype) == ((0, 2), np.float64)


@pytest.mark.parametrize("cuts", [[12], [1] * 12, [5, 7], [9, 1, 2]])
@pytest.mark.parametrize("num_actors", [1, 2, 3])
def test_elements_unlike_the_first_end_the_stream_at_their_position_for_any_chunks_and_actors(cuts, num_actors):
    """Position 7 is float where 0 to 6 are int: two batches of 3 come, then the error."""
    from datarax_ray.read.block import Block

    batcher = Batcher(TrainerRows(3), start=0, stop=12)
    got = []
    start = 0

    def feed():
        nonlocal start
        for size in cuts:
            positions = np.arange(start, start + size)
            blocks = []
            for actor in range(num_actors):
                mine = positions[positions % num_actors == actor]
                good, odd = mine[mine < 7], mine[mine >= 7]
                if len(good) and len(odd):  # as an actor stacks: what fits, and its failure
                    blocks.append(Block(good, {"x": good}, (), ValueError("odd"), int(odd[0])))
                elif len(mine):
                    blocks.append(Block(mine, {"x": mine if len(good) else mine.astype(float)}))
            got.extend(batch.columns["x"].tolist() for batch in batcher.add(start, start + size, blocks))
            start += size

    with pytest.raises(ValueError, match=r"odd|x was int64 \(\) so far and is float64 \(\) from position 7 on"):
        feed()
    assert got == [[0, 1, 2], [3, 4, 5]]


# Positions with several elements


def several(positions, counts):
    rows = [(p, i) for p in positions for i in range(counts[p])]
    columns = {"p": np.array([p for p, _ in rows]), "i": np.array([i for _, i in rows])} if rows else None
    return Block(np.array([p for p, _ in rows], np.int64), columns)


@st.composite
def fanned_out(draw):
    """(counts of elements by position, chunks as cuts, an owner for each position, batch_size, trainers)."""
    counts = draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 9]), min_size=1, max_size=20))
    cuts = sorted(draw(st.sets(st.integers(1, len(counts)), max_size=5)) | {len(counts)})
    owners = draw(st.lists(st.integers(0, 2), min_size=len(counts), max_size=len(counts)))
    process_count = draw(st.integers(1, 3))
    return counts, cuts, owners, process_count * draw(st.integers(1, 4)), process_count


def fanned_batches(counts, cuts, owners, batch_size, share=WHOLE, *, start=0, offset=0):
    rows, stop = TrainerRows(batch_size, share), len(counts)
    batcher = Batcher(rows, start=start, stop=stop, yields=Yields(False, may_repeat=True), offset=offset)
    got = []
    for cut in [cut for cut in cuts if cut > start]:
        positions = range(start, cut)
        got += batcher.add(start, cut, [several([p for p in positions if owners[p] == o], counts) for o in range(3)])
        start = cut
    return got + list(batcher.finish())


def pairs(batch):
    return list(zip(batch.columns["p"].tolist(), batch.columns["i"].tolist(), strict=True))


@given(fanned_out(), st.booleans())
def test_positions_of_many_elements_make_the_batches_of_a_plain_loop_and_go_on_inside_a_record(data, is_padded):
    counts, cuts, owners, batch_size, process_count = data
    wanted = [(p, i) for p, count in enumerate(counts) for i in range(count)]
    whole = fanned_batches(counts, cuts, owners, batch_size)
    assert [pair for batch in whole for pair in pairs(batch)] == wanted
    assert [batch.num_rows for batch in whole[:-1]] == [batch_size] * (len(whole) - 1)
    for number, batch in enumerate(whole):
        assert batch.ordinals.tolist() == batch.columns["i"].tolist()
        if batch.global_rows == batch_size:  # the next element of a plain loop says where the stream goes on
            last = pairs(batch)[-1]
            more = counts[last[0]] > last[1] + 1
            assert batch.state == (StreamState(last[0], last[1] + 1) if more else StreamState(last[0] + 1))
        resumed = fanned_batches(counts, cuts, owners, batch_size, start=batch.stop, offset=batch.state.offset)
        assert [pairs(b) for b in resumed] == [pairs(b) for b in whole[number + 1 :]]
        assert [(b.start, b.stop, b.offset) for b in resumed] == [
            (b.start, b.stop, b.offset) for b in whole[number + 1 :]
        ]
    if len(wanted) < process_count or is_padded:
        return
    ranks = [fanned_batches(counts, cuts, owners, batch_size, share_of_rank(r, process_count))
             for r in range(process_count)]  # fmt: skip
    for batch, *parts in zip(whole, *ranks, strict=True):
        assert [pair for part in parts for pair in pairs(part)] == pairs(batch)


def test_fewer_elements_than_were_delivered_of_a_record_are_an_error():
    with pytest.raises(ValueError, match=r"behind 3 elements of the record at position 1, which gives fewer"):
        fanned_batches([1, 2], [2], [0, 0], 4, start=1, offset=3)


@pytest.mark.parametrize("num_rows", range(1, 9))
def test_rows_of_a_batch_that_will_be_padded_are_dealt_as_those_of_a_full_one(num_rows):
    for may_drop in (False, True):
        parts = []
        for rank in range(4):
            rows = TrainerRows(8, share_of_rank(rank, 4), is_padded=True)
            batcher = Batcher(rows, start=0, stop=num_rows, yields=Yields(not may_drop))
            parts.append(batches_of(batcher, (0, num_rows, [block(range(num_rows))]))[0].positions.tolist())
        assert [len(part) for part in parts[: num_rows // 2]] == [2] * (num_rows // 2)
        assert [position for part in parts for position in part] == list(range(num_rows))


def test_a_huge_batch_of_filtered_rows_takes_no_more_memory_than_twice_its_rows():
    batcher = Batcher(TrainerRows(10**9), start=0, stop=6000, yields=Yields(False))
    chunks = [(at, at + 1000, [columns_block(at, {"x": np.arange(at, at + 1000)})]) for at in range(0, 6000, 1000)]
    (batch,) = batches_of(batcher, *chunks)
    assert batch.columns["x"].tolist() == list(range(6000))
    assert batch.columns["x"].base.nbytes <= 2 * 6000 * 8


@pytest.mark.parametrize(("nbytes", "num_together"), [(10, 16), (2**12, 4), (2**16, 1)])
def test_batches_made_together_are_small_with_the_values_of_their_objects(nbytes, num_together):
    values = np.array([b"x" * nbytes] * 400, object)
    whole = Block(np.arange(400), {"x": values})
    batches = batches_of(Batcher(TrainerRows(16), start=0, stop=400), (0, 400, [whole]))
    bases = Counter(id(batch.positions.base) for batch in batches if batch.positions.base is not None)
    assert max(bases.values(), default=1) == num_together
    assert [value for batch in batches for value in batch.columns["x"]] == values.tolist()
