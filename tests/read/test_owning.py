"""Transforms that write to memory that they gave before, or were given: the stream of a plain loop that copies."""

import copy
import pickle
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray import cloudpickle

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.elements.columns import unstack
from datarax_ray.read.elements.owning import own
from datarax_ray.read.formats.cache import CachedReader
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.formats.random_access import ArraysReader, RandomAccessReader
from datarax_ray.read.stream import Reader, ReaderTraits
from datarax_ray.read.streams.indexed import IndexedStream

N = 12


def stored(index):
    return {"x": np.arange(3) + 10 * index, "tokens": [index, [index + 1]], "n": index}


class InMemory:
    """Elements that it keeps."""

    def __init__(self):
        self.elements = [stored(i) for i in range(N)]

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.elements[index]


class ReusesItsBuffers(InMemory):
    def __init__(self):
        self.element = stored(0)

    def __getitem__(self, index):
        self.element["x"][:] = stored(index)["x"]
        self.element["tokens"][:] = stored(index)["tokens"]
        self.element["n"] = index
        return self.element


class Loaded(Reader):
    """A reader of a format of one's own, whose elements are made when they are read."""

    traits, num_records, mean_nbytes = ReaderTraits(RuntimeError), N, 50

    def read(self, records):
        return [stored(i) for i in records.tolist()]

    def locate(self, record):
        return f"loaded[{record}]"

    def fingerprint(self):
        return {}

    def close(self):
        pass


def arrays():
    tokens = np.empty(N, object)
    tokens[:] = [stored(i)["tokens"] for i in range(N)]
    return {"x": np.stack([stored(i)["x"] for i in range(N)]), "tokens": tokens, "n": np.arange(N)}


READERS = {
    "in memory": lambda: RandomAccessReader(InMemory()),
    "threads": lambda: RandomAccessReader(InMemory(), num_threads=2),
    "reused": lambda: RandomAccessReader(ReusesItsBuffers()),
    "loaded": Loaded,
    "cached": lambda: CachedReader(Loaded()),
    "arrays": lambda: ArraysReader(arrays()),
}


class Held:
    """Keeps one buffer, and gives it."""

    def __init__(self):
        self.b = np.zeros(3, np.int64)


class Buffer(Held):
    def map(self, e):
        self.b[:] = e["x"]
        return {**e, "x": self.b}


class Views:
    """Gives views of a buffer that is larger, one of them transposed."""

    def __init__(self):
        self.b = np.zeros((2, 3), np.int64)

    def map(self, e):
        self.b[:] = e["x"]
        return {**e, "x": self.b[0], "y": self.b.T[:, 1:]}


class OneElement:
    """Gives the same dict again, nested, with lists, tuples and object arrays that it keeps."""

    def __init__(self):
        self.e = {"in": {"x": np.zeros(3, np.int64)}, "list": [0, [0]], "n": 0}
        self.objects = np.array([None, None], object)
        self.objects[:] = [[0], [0]]

    def map(self, e):
        self.e["in"]["x"][:] = e["x"]
        self.e["list"][1][0] = int(e["x"][0])
        self.e["list"][0] += 1
        self.objects[0][0] = int(e["x"][1])
        self.e["n"] = e["n"]
        return self.e | {"o": [self.objects], "pair": (self.e["list"], 3), "x": e["x"], "tokens": e["tokens"]}


class RunningSum:
    """Goes on adding to the first array that it was given."""

    sum = None

    def map(self, e):
        if self.sum is None:
            self.sum = e["x"]
        else:
            self.sum += e["x"]
        return {**e, "x": self.sum}


class InPlace:
    def map(self, e):
        e["x"] += 1
        e["tokens"].append(7)
        e["tokens"][1][0] += 1
        e["n"] = int(e["n"]) + 1
        return e


class Rng(Held):
    def random_map(self, e, rng):
        self.b[:] = rng.integers(100, size=3)
        return {**e, "r": self.b}


class Index(Held):
    def map_with_index(self, position, e):
        self.b[:] = position
        return {**e, "p": self.b[:2]}


class Keep:
    """A filter that writes to the elements that it has seen before."""

    last = None

    def filter(self, e):
        if self.last is not None:
            self.last["x"][:] = -1
        self.last = e
        return int(e["n"]) % 3 != 1


class Many(Held):
    """Yields views of one buffer."""

    def flat_map(self, e):
        for i in range(int(e["n"]) % 3):
            self.b[:] = e["x"] + i
            yield {**e, "x": self.b, "i": i}


class ManyInAList:
    def __init__(self):
        self.out = [{"x": np.zeros(3, np.int64)}, {"x": np.zeros(3, np.int64)}]

    def flat_map(self, e):
        for i, out in enumerate(self.out):
            out["x"][:] = e["x"] * (i + 1)
            out["n"], out["tokens"] = e["n"], e["tokens"]
        return self.out


class Tensor:
    """An array of another library, that shows memory of its own."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __array__(self, dtype=None, copy=None):
        return self.array


class Tensors(Held):
    def map(self, e):
        self.b[:] = e["x"]
        return {**e, "x": Tensor(self.b)}


KINDS = (Buffer, Views, OneElement, RunningSum, InPlace, Rng, Index, Keep, Many, ManyInAList, Tensors)


def plain(transforms, start, stop, seed):
    """The elements of [start, stop), one record after the other through all transforms, each copied at once."""

    def through(begin, position, e, ordinal, counts):
        for number, t in list(enumerate(transforms))[begin:]:
            if getattr(t, "flat_map", None):
                for part in map(copy.deepcopy, t.flat_map(e)):
                    mine, counts[number] = counts[number], counts[number] + 1
                    yield from through(number + 1, position, part, mine, counts)
                return
            if getattr(t, "filter", None):
                if not t.filter(e):
                    return
            elif getattr(t, "random_map", None):
                key, counter = np.array([seed, number], np.uint64), np.array([0, 0, position, ordinal], np.uint64)
                e = t.random_map(e, np.random.Generator(np.random.Philox(key=key, counter=counter)))
            elif getattr(t, "map_with_index", None):
                e = t.map_with_index(position, e)
            else:
                e = t.map(e)
        yield position, copy.deepcopy(e)

    for position in range(start, stop):
        yield from through(0, position, stored(position % N), 0, [0] * len(transforms))


def rows(block):
    """The elements of a block as plain values."""
    return [] if block.columns is None else list(map(said, unstack(block.columns, len(block.positions))))


def said(value):
    if isinstance(value, dict):
        return {key: said(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [said(item) for item in value]
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return said(np.asarray(value).tolist())
    return int(value)


def describe(reader, transforms, seed=5):
    return IndexedStream(READERS[reader](), order_of(N, seed), 3, tuple(transforms))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_a_transform_that_writes_to_what_it_gave_or_was_given_changes_no_other_element(reader, kind):
    want = list(plain([kind()], 0, 2 * N, 5))
    for size in (1, 5, 2 * N):
        transform = kind()
        description = describe(reader, [transform])
        found = [description.read(ReadRequest(at, min(2 * N, at + size))) for at in range(0, 2 * N, size)]
        assert [p for block in found for p in block.positions.tolist()] == [p for p, _ in want]
        assert [row for block in found for row in rows(block)] == [said(e) for _, e in want]
        elements = describe(reader, [kind()]).read_at(0, 2 * N)
        assert [said(e) for e in elements] == [said(e) for _, e in want]


@pytest.mark.parametrize("seed", range(20))
def test_any_chain_of_such_transforms_over_any_source_in_any_chunks_is_the_plain_loops_stream(seed):
    rng = random.Random(seed)
    chosen = [rng.choice(KINDS) for _ in range(rng.randint(1, 4))]
    reader = rng.choice(list(READERS))
    if Keep in chosen:  # it writes to elements of which others may have kept a part: no loop has one answer
        chosen = [kind for kind in chosen if kind not in (RunningSum, OneElement)]
    chosen.sort(key=lambda kind: kind is Tensors)  # what others do to elements is done to arrays of NumPy
    want = list(plain([kind() for kind in chosen], 0, 3 * N, 5))
    description, found = describe(reader, [kind() for kind in chosen]), []
    at = 0
    while at < 3 * N:
        found.append(description.read(ReadRequest(at, at := min(3 * N, at + rng.randint(1, N)))))
        assert found[-1].failure is None
    assert [p for block in found for p in block.positions.tolist()] == [p for p, _ in want]
    assert [row for block in found for row in rows(block)] == [said(e) for _, e in want]


# Whole columns


class ColumnsBuffer:
    """Keeps the columns that it gives."""

    def __init__(self):
        self.out = {"x": np.zeros((3 * N, 3), np.int64), "in": {"tokens": np.zeros(3 * N, object)}}

    def map_columns(self, columns):
        count = len(columns["x"])
        self.out["x"][:count] = columns["x"]
        self.out["in"]["tokens"][:count] = columns["tokens"]
        return {"x": self.out["x"][:count], "in": {"tokens": self.out["in"]["tokens"][:count]}}


class ColumnsInPlace:
    """Changes its columns, and then fails where one row is broken."""

    def map_columns(self, columns):
        columns["x"] += 1
        for tokens in columns["tokens"]:
            tokens[0] += 1
        if 7 in columns["n"]:
            raise ValueError("7 is broken")
        columns["n"] = columns["n"] * 2
        return columns


class ColumnsReversed:
    """Gives views of what it is given."""

    def map_columns(self, columns):
        return {**columns, "x": columns["x"][:, ::-1], "first": columns["x"][:, 0]}


def whole(step, e):
    e = copy.deepcopy(e)
    match step:
        case ColumnsBuffer():
            return {"x": e["x"], "in": {"tokens": e["tokens"]}}
        case ColumnsInPlace():
            e["tokens"][0] += 1
            return {"x": e["x"] + 1, "tokens": e["tokens"], "n": e["n"] * 2}
        case _:
            return {**e, "x": e["x"][::-1], "first": e["x"][0]}


def in_parquet(directory):
    pq.write_table(
        pa.table({
            "x": pa.array([[10 * i, 10 * i + 1, 10 * i + 2] for i in range(N)], pa.list_(pa.int64(), 3)),
            "tokens": [[i] * (1 + i % 2) for i in range(N)],
            "n": range(N),
        }), directory / "a.parquet", row_group_size=5)  # fmt: skip
    return ParquetReader.of(str(directory / "a.parquet")).cached()


@pytest.mark.parametrize("kind", [ColumnsBuffer, ColumnsInPlace, ColumnsReversed])
@pytest.mark.parametrize("reader", [*READERS, "parquet"])
def test_a_transform_of_columns_that_writes_to_what_it_gave_or_was_given_changes_no_other_element(
    reader, kind, tmp_path
):
    made = in_parquet(tmp_path) if reader == "parquet" else READERS[reader]()
    description = IndexedStream(made, order_of(N, 5, "none"), 3, (kind(),), on_error="skip")
    source = IndexedStream(made, order_of(N, 5, "none"), 3).read_at(0, N)
    kept = [p for p in range(3 * N) if kind is not ColumnsInPlace or p % N != 7]
    want = [said(whole(kind(), source[p % N])) for p in kept]
    for size in (1, 5, 3 * N):
        found = [description.read(ReadRequest(at, min(3 * N, at + size))) for at in range(0, 3 * N, size)]
        assert [block.failure for block in found] == [None] * len(found)
        assert [p for block in found for p in block.positions.tolist()] == kept
        assert [row for block in found for row in rows(block)] == want


class InPlaceAgain:
    def map(self, e):
        e["x"] -= 1
        e["tokens"][0] += 1
        return {**e, "tokens": list(e["tokens"])}


def test_elements_of_columns_may_be_written_to_whoever_keeps_the_columns(tmp_path):
    for made in (in_parquet(tmp_path), ArraysReader(arrays())):
        source = IndexedStream(made, order_of(N, 5, "none"), 3).read_at(0, N)
        for size in (1, 5, 2 * N):
            description = IndexedStream(made, order_of(N, 5, "none"), 3, (ColumnsReversed(), InPlaceAgain()))
            found = [description.read(ReadRequest(at, min(2 * N, at + size))) for at in range(0, 2 * N, size)]
            assert [block.failure for block in found] == [None] * len(found)
            for row, e in zip([row for block in found for row in rows(block)], [*source, *source], strict=True):
                assert row["x"] == said(e["x"][::-1] - 1)
                assert row["tokens"] == [said(e["tokens"])[0] + 1, *said(e["tokens"])[1:]]


class DecodesIntoABuffer:
    buffer = np.zeros((2 * N, 3), np.int64)

    def decode(self, records):
        for row, e in zip(self.buffer, records, strict=False):
            row[:] = e["x"]
        return {"x": self.buffer[: len(records)]}


def test_a_decoder_may_reuse_its_buffer():
    description = describe("loaded", [DecodesIntoABuffer()])
    found = [description.read(ReadRequest(at, at + 4)) for at in range(0, N, 4)]
    assert [row["x"] for block in found for row in rows(block)] == [[10 * i, 10 * i + 1, 10 * i + 2] for i in order(N)]


def order(count):
    return order_of(N, 5).records(np.arange(count)).tolist()


# What is ours


def test_what_nobody_else_holds_is_not_copied():
    packed = np.zeros((2, 3))
    view = packed[:1].T[1:]
    del packed
    held = [
        {
            "x": np.zeros(3),
            "view": view,
            "in": {"list": [np.zeros(2), [1]]},
            "bytes": np.frombuffer(b"ab", np.uint8),
            "s": "s",
        }
    ]
    del view
    before = [id(held[0]), id(held[0]["x"]), id(held[0]["view"]), id(held[0]["in"]["list"][0]), id(held[0]["bytes"])]
    own(held, 0)
    assert before == [
        id(held[0]), id(held[0]["x"]), id(held[0]["view"]), id(held[0]["in"]["list"][0]), id(held[0]["bytes"])
    ]  # fmt: skip


@pytest.mark.parametrize(
    "shown",
    [
        lambda array: array,
        lambda array: array[1:],
        lambda array: array.T.reshape(-1)[2:],
        lambda array: np.frombuffer(memoryview(array).cast("B"), np.int64),
        lambda array: np.asarray(Tensor(array)),
        lambda array: array.view([("a", np.int64)])[0, 0],
        lambda array: np.lib.stride_tricks.as_strided(array, (2, 2)),
        lambda array: array.view(np.recarray),
    ],
)
def test_what_shows_memory_of_somebody_else_is_copied_however_it_does(shown):
    array = np.arange(6).reshape(2, 3)
    held = [shown(array)]
    before = copy.deepcopy(held[0]).tolist()
    own(held, 0)
    array[:] = -1
    assert held[0].tolist() == before


def test_masked_arrays_are_refused_where_their_mask_would_be_lost():
    masked = np.ma.masked_array(np.zeros((N, 2)), np.ones((N, 2), bool))
    with pytest.raises(TypeError, match=r"'in.x' is a masked array, whose mask would be lost; give its filled"):
        ArraysReader({"in": {"x": masked}})

    class Masks:
        def map_columns(self, columns):
            return {"x": np.ma.masked_array(columns["x"], columns["x"] > 3)}

    said = "Masks returned a MaskedArray in field 'x', whose mask would be lost"
    assert said in str(describe("loaded", [Masks()]).read(ReadRequest(0, 3)).failure)


@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_pickles_keep_the_nuls_at_the_end_of_numpys_text_scalars(module):
    texts = [
        np.bytes_(b""),
        np.bytes_(b"a\0"),
        np.bytes_(b"\0a"),
        np.str_("a\0"),
        np.str_("\0é\0"),
        np.str_("\ud800\0"),
    ]
    for text in texts:
        one, two, three = module.loads(module.dumps([text, {"x": (text,)}, np.array([text, None], object)]))
        for found in (one, two["x"][0], three[0]):
            assert (type(found), [*found]) == (type(text), [*text])
    assert b"datarax" not in pickle.dumps(texts)  # read without this package
