"""Packed batches against a plain loop over tokens, and against Grain's own packers."""

import dataclasses
import itertools

import grain
import numpy as np
import pytest
from grain._src.python.dataset.transformations.packing_concat_then_split import BOSHandling, ConcatThenSplitIterDataset
from grain.experimental import FirstFitPackIterDataset
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.feed.packing import PackedBatcher
from datarax_ray.plan.packing import ConcatThenSplit, FirstFitPack
from datarax_ray.plan.runs import rows_in
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import WHOLE, Share, TrainerRows
from datarax_ray.read.block import Block
from datarax_ray.read.errors import RecordError

FIELDS = ("x", "mask")
PAD = {"x": -1}


def document(position, nth, length):
    x = 1000 * position + 100 * nth + np.arange(1, length + 1, dtype=np.int32)
    return {"x": x, "mask": (x % 3).astype(np.uint8)}


@st.composite
def streams(draw, longest=14):
    """(lengths of the documents of each position, cuts into chunks, an owner of each position)."""
    lengths = draw(st.lists(st.lists(st.integers(1, longest), max_size=3), min_size=1, max_size=12))
    cuts = sorted(draw(st.sets(st.integers(1, len(lengths)), max_size=4)) | {len(lengths)})
    owners = draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    return lengths, cuts, owners


def block(positions, lengths, fields):
    found = [(p, document(p, nth, n)) for p in positions for nth, n in enumerate(lengths[p])]
    columns = {name: np.concatenate([doc[name] for _, doc in found]) for name in fields} if found else None
    sizes = np.array([len(doc["x"]) for _, doc in found], np.int64)
    return Block(np.array([p for p, _ in found], np.int64), columns, lengths=sizes)


def pack(packing, stream, batch_size, share=WHOLE, *, is_padded=False, start=0, offset=0, **options):
    lengths, cuts, owners = stream
    rows = TrainerRows(batch_size, share, is_padded)
    batcher = PackedBatcher(packing, rows, start=start, stop=len(lengths), offset=offset, **options)
    got = []
    for cut in [cut for cut in cuts if cut > start]:
        mine = [[p for p in range(start, cut) if owners[p] == owner] for owner in range(3)]
        got += batcher.add(start, cut, [block(positions, lengths, packing.fields) for positions in mine])
        start = cut
    return got + list(batcher.finish())


def rows_of(batches):
    return {key: np.concatenate([b.columns[key] for b in batches]) for key in batches[0].columns} if batches else {}


def in_order(lengths):
    return [document(p, nth, n) for p, sizes in enumerate(lengths) for nth, n in enumerate(sizes)]


def grains(dataset):
    rows = list(dataset)
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]} if rows else {}


def assert_same(got, want):
    assert sorted(got) == sorted(want)
    for key in want:
        assert (got[key].dtype, got[key].tolist()) == (want[key].dtype, want[key].tolist()), key


@given(streams(), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_concat_then_split_gives_grains_rows_for_any_chunks_and_actors(stream, seq_len, batch_size, has_bos):
    bos = {"bos_token_id": 7, "bos_fields": ("x",)} if has_bos else {}
    got = rows_of(pack(ConcatThenSplit(seq_len, FIELDS, **bos), stream, batch_size))
    options = (
        {"bos_handling": BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS, "bos_features": ["x"], "bos_token_id": 7}
        if has_bos
        else {}
    )
    parent = grain.MapDataset.source(in_order(stream[0])).to_iter_dataset()
    assert_same(
        got, grains(ConcatThenSplitIterDataset(parent, length_struct=dict.fromkeys(FIELDS, seq_len), **options))
    )


@given(streams(longest=9), st.integers(9, 20), st.integers(1, 5))
def test_first_fit_gives_grains_rows_for_any_chunks_and_actors(stream, seq_len, batch_size):
    got = rows_of(pack(FirstFitPack(seq_len, FIELDS), stream, batch_size))
    parent = grain.MapDataset.source(in_order(stream[0])).to_iter_dataset()
    packed = FirstFitPackIterDataset(
        parent, length_struct=dict.fromkeys(FIELDS, seq_len), num_packing_bins=batch_size, shuffle_bins=False
    )
    assert_same(got, grains(packed))


def tokens(batch):
    return batch.columns["x"][batch.columns["x_segment_ids"] > 0].tolist()


@pytest.mark.parametrize("packing", [ConcatThenSplit(6, FIELDS, PAD), FirstFitPack(14, FIELDS, PAD)])
@given(stream=streams(), rows_each=st.integers(1, 3), num_parts=st.integers(1, 4), data=st.data())
def test_after_every_batch_the_rest_follows_and_trainers_have_its_rows(packing, stream, rows_each, num_parts, data):
    batch_size = rows_each * num_parts
    whole = pack(packing, stream, batch_size)
    assert sorted(t for b in whole for t in tokens(b)) == sorted(
        t for d in in_order(stream[0]) for t in d["x"].tolist()
    )
    for number, batch in enumerate(whole):
        assert (batch.columns["x"][batch.columns["x_segment_ids"] == 0] == -1).all()
        resumed = pack(packing, stream, batch_size, start=batch.stop, offset=batch.state.offset)
        for again, first in zip(resumed, whole[number + 1 :], strict=True):
            assert_same(again.columns, first.columns)
            assert again.positions.tolist() == first.positions.tolist()
            assert again.ordinals.tolist() == first.ordinals.tolist()
            assert (again.start, again.offset, again.state) == (first.start, first.offset, first.state)
    for is_padded in (False, True):
        share = Share(num_parts, tuple(sorted(data.draw(st.sets(st.integers(0, num_parts - 1), min_size=1)))))
        parts = pack(packing, stream, batch_size, share, is_padded=is_padded)
        for batch, mine in zip(whole, parts, strict=True):
            ranges = TrainerRows(batch_size, share, is_padded).of(batch.num_rows)
            assert_same(mine.columns, {name: rows_in(ranges, column) for name, column in batch.columns.items()})
            assert mine.positions.tolist() == rows_in(ranges, batch.positions).tolist()
            assert (mine.ordinals.tolist(), mine.stop) == (rows_in(ranges, batch.ordinals).tolist(), batch.stop)
            assert mine.global_rows == batch.num_rows
    places = [(p, o) for b in whole for p, o in zip(b.positions.tolist(), b.ordinals.tolist(), strict=True)]
    assert len(set(places)) == len(places)  # what random stages draw for a row from


def test_a_document_over_several_rows_by_hand():
    first, second = pack(ConcatThenSplit(4, ("x",), pad_id=9), ([[3], [], [9]], [3], [0, 0, 0]), 2)
    assert first.columns["x"].tolist() == [[1, 2, 3, 2001], [2002, 2003, 2004, 2005]]
    assert first.columns["x_segment_ids"].tolist() == [[1, 1, 1, 2], [1, 1, 1, 1]]
    assert first.columns["x_positions"].tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert first.state == StreamState(2, 5, "tokens")
    assert (first.positions.tolist(), first.ordinals.tolist()) == ([0, 2], [0, 1])
    assert second.columns["x"].tolist() == [[2006, 2007, 2008, 2009]]
    assert (second.start, second.offset, second.state) == (2, 5, StreamState(3, 0, "tokens"))


def test_first_fit_by_hand():
    lengths = [[5], [4], [3], [2], [6]]
    first, second = pack(FirstFitPack(8, ("x",), pad_id=9), (lengths, [2, 5], [0, 1, 0, 1, 0]), 2)
    assert first.columns["x"].tolist() == [
        [1, 2, 3, 4, 5, 2001, 2002, 2003],
        [1001, 1002, 1003, 1004, 3001, 3002, 9, 9],
    ]
    assert first.columns["x_segment_ids"].tolist() == [[1] * 5 + [2] * 3, [1] * 4 + [2] * 2 + [0] * 2]
    assert first.columns["x_positions"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 1, 0, 0]]
    assert first.state == StreamState(4, 0, "documents")
    assert second.columns["x"].tolist() == [[4001, 4002, 4003, 4004, 4005, 4006, 9, 9]]


def test_a_short_last_batch_is_left_out_and_one_with_all_rows_is_not():
    stream = ([[4], [4], [4], [2]], [4], [0, 0, 0, 0])
    assert [b.num_rows for b in pack(ConcatThenSplit(4, ("x",)), stream, 2, drop_remainder=True)] == [2, 2]
    assert [b.num_rows for b in pack(ConcatThenSplit(4, ("x",)), stream, 3, drop_remainder=True)] == [3]
    assert [b.num_rows for b in pack(FirstFitPack(4, ("x",)), stream, 3, drop_remainder=True)] == [3]


def test_a_failure_comes_after_the_batches_before_it_and_its_own_error_where_the_stream_begins_there():
    batcher = PackedBatcher(ConcatThenSplit(4, ("x",)), TrainerRows(1), start=0, stop=3)
    failing = Block(
        np.array([0]), {"x": np.arange(7)}, failure=KeyError("bad"), failure_position=1, lengths=np.array([7])
    )
    got = batcher.add(0, 3, [failing])
    assert next(got).columns["x"].tolist() == [[0, 1, 2, 3]]
    with pytest.raises(KeyError, match="bad"):
        next(got)
    resumed = PackedBatcher(ConcatThenSplit(4, ("x",)), TrainerRows(1), start=1, stop=3, offset=2)
    empty = Block(np.empty(0, np.int64), None, failure=KeyError("bad"), failure_position=1)
    with pytest.raises(KeyError, match="bad"):
        list(resumed.add(1, 3, [empty]))


def until_failure(packing, lengths, cuts, owners, failed_at, start=0, offset=0):
    """The batches before the failure, and its position."""
    batcher = PackedBatcher(packing, TrainerRows(2), start=start, stop=len(lengths), offset=offset)
    found = []
    try:
        for cut in [cut for cut in cuts if cut > start]:
            blocks = []
            for owner in set(owners):
                mine = [p for p in range(start, cut) if owners[p] == owner]
                made = block([p for p in mine if failed_at not in mine or p < failed_at], lengths, packing.fields)
                failure = RecordError("broken", failed_at) if failed_at in mine else None
                blocks.append(dataclasses.replace(made, failure=failure, failure_position=failed_at))
            for batch in batcher.add(start, cut, blocks):
                found.append((batch.columns["x"].tolist(), batch.positions.tolist(), batch.state))
            start = cut
    except RecordError as error:
        return found, error.position
    return found, None


@pytest.mark.parametrize("packing", [ConcatThenSplit(3, FIELDS, PAD), FirstFitPack(7, FIELDS, PAD)])
def test_before_a_failure_each_stream_of_three_positions_gives_the_same_to_any_chunks_actors_and_resumes(packing):
    for lengths in itertools.product(([], [1], [1, 2], [7]), repeat=3):
        for failed_at in range(3):
            whole, position = until_failure(packing, lengths, [3], [0, 0, 0], failed_at)
            assert position == failed_at
            for cuts, owners in itertools.product(([3], [1, 3], [2, 3], [1, 2, 3]), ([0, 1, 0], [0, 0, 1])):
                assert until_failure(packing, lengths, cuts, owners, failed_at) == (whole, failed_at)
                for number, (_, _, state) in enumerate(whole):
                    place = state.position, state.offset
                    rest = until_failure(packing, lengths, cuts, owners, failed_at, *place)
                    assert rest == (whole[number + 1 :], failed_at)


@pytest.mark.parametrize("packing", [ConcatThenSplit(4, ("x",)), FirstFitPack(14, ("x",))])
def test_a_record_that_has_become_shorter_is_an_error(packing):
    with pytest.raises(ValueError, match="behind 9 (tokens|documents) of the record at position 1, which gives fewer"):
        pack(packing, ([[3], [2, 3], [20]], [3], [0, 0, 0]), 2, start=1, offset=9)


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        (FirstFitPack(4, FIELDS, pad_id=-1), "pad_id=-1 is no uint8, which 'mask' is"),
        (ConcatThenSplit(4, FIELDS, bos_token_id=2**31), "bos_token_id=2147483648 is no int32, which 'x' is"),
    ],
)
def test_what_fills_a_field_must_be_of_its_dtype(packing, message):
    with pytest.raises(ValueError, match=message):
        pack(packing, ([[3]], [1], [0]), 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConcatThenSplit(0), "seq_len must be at least 1, got 0"),
        (lambda: FirstFitPack(4, ()), "fields must be one or more different names"),
        (lambda: ConcatThenSplit(4, ("a", "a")), "fields must be one or more different names"),
        (lambda: ConcatThenSplit(4, ("a", "a_positions")), r"makes fields \['a_positions'\] of its own"),
        (lambda: ConcatThenSplit(4, "a", pad_id={"b": 1}), r"pad_id names \['b'\], and the fields are \['a'\]"),
        (lambda: ConcatThenSplit(4, "a", bos_fields="a"), "bos_fields='a' has no use without bos_token_id"),
        (lambda: ConcatThenSplit(4, "a", bos_token_id=1, bos_fields="b"), r"bos_fields names \['b'\]"),
        (lambda: FirstFitPack(4, too_long="cut"), "too_long must be 'raise', 'truncate' or 'split', got 'cut'"),
    ],
)
def test_a_packing_that_contradicts_itself_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
