"""Hugging Face streams: one stream for any topology, resumed exactly, against plain iteration of `datasets`.

The data is real text of uneven files: modules of Python's own standard library, an element for each line.
"""

import bisect
import heapq
import io
import itertools
import json
import random
import shutil
import textwrap
import threading
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from datasets.distributed import split_dataset_by_node
from flax import nnx
from pyarrow import parquet as pq

from datarax_ray import Pipeline, sources
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.hugging_face.shards import Portions
from datarax_ray.sources import HFEagerConfig, HFEagerSource, HFStreamingConfig
from tests import shards_oracle
from tests.resume import assert_equal, assert_resumes, run_saving

MODULES = {random: 45, heapq: 30, bisect: 13, textwrap: 38}  # so many lines of each
NUM_EPOCHS, TURN, WINDOW, SEED = 2, 8, 25, 42


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A jsonl file for each module."""
    directory = tmp_path_factory.mktemp("corpus")
    paths = []
    for module, count in MODULES.items():
        lines = Path(module.__file__).read_text().splitlines()[:count]
        rows = [{"name": module.__name__, "number": n, "text": t, "width": len(t)} for n, t in enumerate(lines)]
        paths.append(directory / f"{module.__name__}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(map(str, paths))


class HFStreamingSource(sources.HFStreamingSource, pytree=False):
    """In small portions, so that cursors stand inside a shard. Their size travels to the actors with the reader."""

    portions = Portions(max_rows=16, elements=16)


def stream(corpus):
    return datasets.load_dataset("json", data_files=corpus, split="train", streaming=True)


def make(dataset, transforms=(), **config):
    options = {"shuffle": True, "num_epochs": NUM_EPOCHS, "shuffle_buffer_size": WINDOW, "turn_size": TURN} | config
    return HFStreamingSource(HFStreamingConfig(**options), dataset=dataset, transforms=transforms)


def pipeline(source, batch_size=32, **options):
    return Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


def plain(dataset, num_epochs=NUM_EPOCHS, **options):
    options = {"turn_size": TURN, "seed": SEED, "window": WINDOW} | options
    return shards_oracle.hugging_face(dataset, num_epochs, **options)


def texts(batches):
    rows = (zip(b["name"], b["number"].tolist(), b["text"], strict=True) for b in batches)
    return [row for batch in rows for row in batch]


def assert_plain(elements, dataset, **options):
    assert list(elements) == [(e["name"], e["number"], e["text"]) for e in plain(dataset, **options)]


def num_lines(corpus):
    return sum(Path(path).read_text().count("\n") for path in corpus)


class LongLines:
    """Keeps one line in three, about."""

    def filter(self, element):
        return bool(element["width"] > 40)


class Noise:
    def random_map(self, element, rng):
        return element | {"noise": rng.random(dtype=np.float32)}


def twice(element):
    return {"twice": 2 * element["number"]}


def even(element):
    return element["number"] % 2 == 0


@pytest.mark.parametrize("shuffle", [False, True])
def test_it_is_plain_iteration_of_the_shards_in_turns(corpus, shuffle):
    dataset = stream(corpus)
    order = {} if shuffle else {"seed": None}
    assert_plain(texts(pipeline(make(dataset, shuffle=shuffle))), dataset, **order)
    elements = make(dataset, shuffle=shuffle)
    assert_plain(((e["name"], e["number"], e["text"]) for e in elements), dataset, **order)


@pytest.mark.parametrize("inside", ["map", "interleave", "format"])
def test_what_the_dataset_does_inside_is_done_and_resumed(corpus, inside):
    dataset = stream(corpus)
    dataset = {
        "map": lambda: dataset.map(twice),
        "interleave": lambda: datasets.interleave_datasets(
            [stream(corpus[:2]), stream(corpus[2:])], probabilities=[0.3, 0.7], seed=1
        ),
        "format": lambda: dataset.with_format("numpy").map(twice),
    }[inside]()
    batches, states = run_saving(pipeline(make(dataset)))
    assert_plain(texts(batches), dataset)
    assert_resumes(lambda _: pipeline(make(dataset)), batches, states, every=7)


def test_a_state_of_another_stream_is_refused(corpus):
    dataset = stream(corpus)
    state = pipeline(make(dataset)).get_state()
    for other, setting in [
        (make(dataset, seed=1), "order.seed"),
        (make(dataset, shuffle=False), "order.shuffle"),
        (make(dataset, shuffle_buffer_size=51), "order.window_size"),
        (make(dataset, turn_size=9), "order.turn_size"),
        (make(stream(corpus[:3])), "files.num_lanes"),
        (make(stream([*corpus[:3], corpus[0]])), "files.digest"),
        (make(dataset.filter(even)), "files.digest"),
    ]:
        with pytest.raises(DriftError, match=rf"{setting}: the checkpoint was written with"):
            pipeline(other).set_state(state)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_state_behind_the_end_of_its_epoch_is_told(corpus, caplog, shuffle):
    """An edited one, or that of longer data: what is before it was not read, and nothing said so."""
    source = make(stream(corpus), num_epochs=1, shuffle=shuffle)
    source.set_state(source.get_state() | {"position": 10**6})
    with caplog.at_level("WARNING", "datarax_ray"):
        assert list(source) == []
    (message,) = caplog.messages
    assert "the stream was resumed at position 1000000, behind element " in message
    caplog.clear()
    source = make(stream(corpus), num_epochs=2, shuffle=shuffle)
    list(itertools.islice(source, num_lines(corpus)))
    source.set_state(source.get_state())
    assert len(list(source)) == num_lines(corpus)
    assert not caplog.messages
    # nor where the rows that are made again begin behind the turn of a shard that had ended
    _, states = run_saving(pipeline(source := make(stream(corpus), num_epochs=2, shuffle=shuffle)))
    source.close()
    for state in states:
        resumed = pipeline(make(stream(corpus), num_epochs=2, shuffle=shuffle))
        resumed.set_state(json.loads(state))
        list(resumed)
    assert not [message for message in caplog.messages if "was resumed at" in message]


def test_a_peek_consumes_nothing(corpus):
    source = make(stream(corpus))
    spec = source.element_spec()
    assert {name: (field.shape, field.dtype) for name, field in spec.items()} == {
        "name": ((), np.dtype(object)),
        "number": ((), np.dtype(np.int64)),
        "text": ((), np.dtype(object)),
        "width": ((), np.dtype(np.int64)),
    }
    assert source.get_state() == make(stream(corpus)).get_state()
    first = source.get_batch(5)
    assert source.element_spec() == spec
    assert texts([first, source.get_batch(5)]) == texts([make(stream(corpus)).get_batch(10)])


def test_what_datarax_documents_of_a_stream_is_there(corpus):
    source = make(stream(corpus), name="json", split="train", include_keys=["text", "width"])
    assert source.name == "HFStreamingSource(json:train)"
    assert (source.selected_keys, source.rejected_keys) == ({"text", "width"}, None)
    assert source.random_order_buffer_depth == WINDOW
    assert (source.epoch, source.length, source.dataset_name, source.split_name) == (0, None, "json", "train")
    assert (source.is_iterable_mode, source.supports_indexed_access(), bool(source)) == (True, False, True)
    assert (source.is_random_order, make(stream(corpus), shuffle=False).is_random_order) == (True, False)
    assert sorted(source.get_dataset_info().features) == ["text", "width"]
    source.reset_cache()
    source.reset()
    with pytest.raises(TypeError, match=r"no length before it is read to its end, .* `length` is what .*: None$"):
        len(source)
    with pytest.raises(NotImplementedError, match="no indexed access, so no batch of 8 at position 3: a stream is rea"):
        source.get_batch_at(3, 8, key=None)
    whole = list(source.copy().get_batch(9)["text"])
    assert list(source.clone().get_batch(9)["text"]) == whole
    assert [*source.get_batch(batch_size=4)["text"], *source.get_batch(size=5)["text"]] == whole
    assert sorted(make(stream(corpus), exclude_keys=["text"]).get_batch(1)) == ["name", "number", "width"]


def test_a_dataset_that_is_no_stream_is_streamed_by_its_files(corpus):
    dataset = datasets.Dataset.from_dict({"x": list(range(20))})
    source = make(dataset, num_epochs=1, shuffle=False)
    assert (len(source), source.length, source.is_iterable_mode) == (20, 20, False)
    assert source.get_batch(30)["x"].tolist() == list(range(20))
    loaded = HFStreamingSource(
        HFStreamingConfig(name="json", split="train", streaming=True, download_kwargs={"data_files": corpus})
    )
    assert len(list(loaded)) == num_lines(corpus)


def test_a_line_that_cannot_be_read_is_an_error_in_its_place(corpus, tmp_path):
    def rows(shards):
        for shard in shards:
            for number in range(20):
                if shard == 1 and number == 13:
                    raise OSError("the cable was cut")
                yield {"shard": shard, "number": number}

    dataset = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1]})
    source = make(dataset, shuffle=False, turn_size=4)
    seen = []
    where = r"shard 1\[13\] \(position 29\): reading raised OSError: the cable was cut"
    with pytest.raises(RecordError, match=where):
        seen.extend((element["shard"], element["number"]) for element in source)
    rotation = shards_oracle.rotation([20, 20], 4)
    assert seen == rotation[: rotation.index((1, 13))]


def picture(number):
    """A PNG of one grey, and nothing of the kind for number 13."""
    buffer = io.BytesIO()
    PIL.Image.fromarray(np.full((2, 3), number, np.uint8)).save(buffer, "PNG")
    return {"n": number, "image": {"bytes": b"junk" if number == 13 else buffer.getvalue(), "path": None}}


def pictures(shards, without=frozenset()):
    for shard in shards:
        yield from (picture(n) for n in range(20 * shard, 20 * shard + 20) if n not in without)


PICTURES = datasets.Features({"n": datasets.Value("int32"), "image": datasets.Image()})
AS = {
    "elements": lambda d: d,
    "tables": lambda d: datasets.Dataset.from_list(list(d.decode(False)), PICTURES).to_iterable_dataset(2),
    "numpy": lambda d: d.with_format("numpy"),
    "decoded in threads": lambda d: d.decode(num_threads=2),
    "selected": lambda d: d.select_columns(["n", "image"]).take(200),
}


def as_arrays(element):
    return {key: np.asarray(value, np.int32 if key == "n" else None) for key, value in element.items()}  # as PICTURES


def gone(thread):
    thread.join(10)
    return not thread.is_alive()


@pytest.mark.parametrize("kind", AS)
def test_a_picture_that_does_not_decode_is_left_out_or_named(kind):
    def dataset(kind=kind, **kwargs):
        shards = {"shards": [0, 1], **kwargs}
        return AS[kind](datasets.IterableDataset.from_generator(pictures, PICTURES, gen_kwargs=shards))

    by = "elements" if "threads" in kind else kind  # `datasets` leaves the event loop of its threads open
    whole = plain(dataset(by, without=frozenset({13})), num_epochs=1, seed=None, window=1, turn_size=1)
    want = sorted(map(as_arrays, whole), key=lambda element: int(element["n"]))
    source = make(dataset(), [as_arrays], num_epochs=2, on_error="skip")
    epoch = sorted(itertools.islice(source, 39), key=lambda element: int(element["n"]))
    assert_equal(epoch, want)
    state = source.get_state()
    second = list(source)
    assert len(second) == 39
    assert ["shard 0[13]" in skip.where for skip in source.skipped] == [True, True]
    resumed = source.copy()
    resumed.set_state(state)
    assert_equal(list(resumed), second)
    named = make(dataset(), [as_arrays], shuffle=False, turn_size=20)
    with pytest.raises(RecordError, match=r"shard 0\[13\] \(position 13\): decoding raised UnidentifiedImageError"):
        list(named)
    assert named.get_state()["position"] == 13
    for each in (source, resumed, named):
        each.close()
    assert not [thread for thread in threading.enumerate() if "datasets_decode" in thread.name and not gone(thread)]


@pytest.mark.parametrize("kind", [*AS, "mapped", "filtered", "in lists"])
def test_pictures_are_arrays_on_the_device_as_of_an_eager_source(kind):
    shards = {"shards": [0, 1], "without": frozenset({13})}
    dataset = datasets.IterableDataset.from_generator(pictures, PICTURES, gen_kwargs=shards)
    eager = datasets.Dataset.from_list(list(dataset.decode(False)), PICTURES)
    want = HFEagerSource(HFEagerConfig(), dataset=eager).get_batch(39)
    inside = {
        "mapped": lambda: dataset.map(lambda element: element),
        "filtered": lambda: dataset.filter(lambda element: element["image"].size == (3, 2)),
        "in lists": lambda: dataset.map(lambda element: {"pair": [element["image"]] * 2, "n": element["n"]}),
    }
    made = make(inside.get(kind, lambda: AS[kind](dataset))(), num_epochs=1)
    (batch,) = Pipeline(source=made, stages=[lambda batch: batch | {"half": batch["image"] // 2}], batch_size=39)
    made.close()
    rows = np.argsort(batch["n"])
    assert (batch["image"].dtype, batch["image"].shape) == (np.uint8, (39, 2, 3))
    np.testing.assert_array_equal(np.asarray(batch["image"])[rows], want["image"])
    np.testing.assert_array_equal(np.asarray(batch["half"])[rows], want["image"] // 2)
    if kind == "in lists":
        assert [type(picture) for picture in batch["pair"][0]] == [np.ndarray] * 2


def test_what_a_map_inside_raises_ends_the_shard_and_says_what_to_do():
    numbers = datasets.Dataset.from_dict({"x": list(range(20))}).to_iterable_dataset()
    source = make(numbers.map(lambda e: {"y": 1 // (e["x"] - 13)}), shuffle=False, on_error="skip")
    with pytest.raises(RecordError, match=r"shard 0\[13\] \(position 13\): reading raised ZeroDivision") as info:
        list(source)
    assert any("one of the transforms instead" in note for note in info.value.__notes__)
    assert (source.get_state()["position"], source.skipped) == (13, [])


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (lambda d: d.shuffle(seed=1, buffer_size=10), ValueError, r"by its own shuffle\(\).*shuffle=True here"),
        (lambda d: d.shuffle(seed=1).map(twice), ValueError, r"shuffled by its own shuffle\(\)"),
        (lambda d: split_dataset_by_node(d, 0, 2), ValueError, "split_dataset_by_node"),
        (lambda d: joined(d, generated()).filter(bool), ValueError, r"joins \(concatenate_datasets\) some .* to each"),
        (lambda d: joined(generated(), d).map(twice), ValueError, r"joins \(concatenate_datasets\) some .* to each"),
        (lambda d: [1, 2], TypeError, "a stream is a datasets.IterableDataset, got list"),
    ],
)
def test_what_cannot_be_resumed_is_refused_at_construction(corpus, dataset, error, message):
    with pytest.raises(error, match=message):
        make(dataset(stream(corpus)))


@pytest.mark.parametrize("steps_before", [False, True])
def test_tables_joined_with_a_generator_resume_from_every_state(corpus, steps_before):
    """Whatever is done to them is done before; behind it `datasets` itself loses what is left of a shard."""
    parts = [stream(corpus).select_columns(["text"]), generated()]
    source = joined(*(part.filter(bool) for part in parts)) if steps_before else joined(*parts)
    want = [element["text"] for element in make(source, num_epochs=1)]
    assert sorted(want) == sorted(element["text"] for part in parts for element in part)
    reading = make(source, num_epochs=1)
    for taken in range(1, len(want)):
        next(reading)
        if taken % 19:
            continue
        resumed = make(source, num_epochs=1)
        resumed.set_state(json.loads(json.dumps(reading.get_state())))
        assert [element["text"] for element in resumed] == want[taken:]


def joined(*parts):
    return datasets.concatenate_datasets(list(parts))


def generated():
    return datasets.IterableDataset.from_generator(lambda: ({"text": f"made {n}"} for n in range(30)))


def test_an_empty_epoch_is_an_error(corpus):
    with pytest.raises(RuntimeError, match=r"no element of epoch 0, of \d+ in 4 shards, was kept: the filters"):
        make(stream(corpus), [type("Nothing", (), {"filter": lambda self, e: False})()], num_epochs=-1).get_batch(4)
    with pytest.raises(RuntimeError, match=r"no element of epoch 0, of 0 in 4 shards, was kept: the data is empty"):
        make(stream(corpus).filter(lambda e: False), num_epochs=-1).get_batch(4)


class Seen:
    """Remembers the elements that pass."""

    def __init__(self):
        self.numbers = []

    def __call__(self, element):
        self.numbers.append(element["x"])
        return element

    def fingerprint(self):
        return "Seen"


def test_a_state_in_the_last_window_of_its_shards_reads_none_of_them_again_from_the_beginning():
    seen = Seen()
    data = datasets.Dataset.from_dict({"x": list(range(460))}).to_iterable_dataset(num_shards=2).map(seen)
    config = HFStreamingConfig(shuffle=True, num_epochs=1, turn_size=4, shuffle_buffer_size=100)
    source = HFStreamingSource(config, dataset=data)
    found = list(source.batches(0, StreamOptions(30, chunk_size=10)))
    want = np.concatenate([batch.columns["x"] for batch in found]).tolist()
    for number in (14, 15):  # the shards hold 230: their last windows begin at element 400 of both together
        resumed = HFStreamingSource(config, dataset=data)
        state = found[number - 1].state.to_json(source.describe().settings())
        resumed.set_state(json.loads(json.dumps(state)))
        seen.numbers.clear()
        assert resumed.get_batch(460)["x"].tolist() == want[30 * number :]
        assert sorted(set(seen.numbers)) == [*range(192, 230), *range(422, 460)]  # from a portion of 16 on
        assert len(json.dumps(resumed.get_state())) < 4096


@pytest.mark.parametrize(
    ("inside", "named"),
    {
        "take": (lambda d: d.take(30), "take(30)"),
        "skip": (lambda d: d.skip(5), "skip(5)"),
        "index": (lambda d: d.filter(lambda e, i: i % 2 == 0, with_indices=True), "with_indices=True"),
        "drop": (lambda d: d.map(None, batched=True, batch_size=10, drop_last_batch=True), "drop_last_batch=True"),
        "interleave": (lambda d: datasets.interleave_datasets([d, d]), "interleave_datasets"),
        "plain": (lambda d: d.map(lambda e: e).filter(lambda e: True), ""),
        "one shard": (lambda d: datasets.concatenate_datasets([numbered([0]).take(9), d]), ""),
    }.values(),
)
def test_what_the_dataset_does_for_each_shard_apart_is_told(inside, named, caplog):
    found, want = inside(numbered([0, 1, 2])), inside(numbered([0, 1, 2]))
    got = [int(element["n"]) for element in make(found, num_epochs=1)]
    assert (f"`datasets` does {named} for each of the " in caplog.text) == bool(named)
    assert bool(named) == (sorted(got) != sorted(element["n"] for element in want))


def numbered(shards):
    return datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": shards})


def numbers(shards):
    for shard in shards:
        yield from ({"n": 100 * shard + each} for each in range([7, 33, 1][shard]))


def test_a_file_replaced_between_epochs_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(8))}), path)
    config = HFStreamingConfig(
        name="parquet", split="train", streaming=True, num_epochs=2, download_kwargs={"data_files": str(path)}
    )
    source = HFStreamingSource(config)
    assert source.get_batch(8)["x"].tolist() == list(range(8))
    pq.write_table(pa.table({"x": list(range(500, 508))}), tmp_path / "b")
    (tmp_path / "b").replace(path)
    with pytest.raises(ValueError, match=r"a.parquet changed while it was read: its inode was"):
        source.get_batch(8)


def scores():
    for i in range(100):
        yield {"i": i, "score": 1 if i < 70 else 0.5, "v": [1, 2] if i < 80 else [0.5]}


def test_what_a_generator_gives_is_what_datasets_gives_up_to_the_element_that_is_unlike():
    def piped(*host_keys):
        return pipeline(make(dataset, shuffle=False, num_epochs=1, host_keys=host_keys), 10, on_host=True)

    dataset = datasets.IterableDataset.from_generator(scores)
    want = [row["score"] for row in dataset]
    with piped() as unlike:
        assert [score for _ in range(7) for score in unlike.step()["score"].tolist()] == want[:70]
        message = (
            r"shard 0\[70\] \(position 70\).* is not like the first 64 elements .*"
            r"field 'score' is 0\.5 \(float\), which as int64 would be 0\).*features=.*host_keys"
        )
        with pytest.raises(RecordError, match=message):
            unlike.step()
    with piped("score", "v") as objects:
        assert [score for _ in range(10) for score in objects.step()["score"].tolist()] == want


def test_another_seed_of_interleave_datasets_is_refused(corpus):
    def of(seed):
        both = [stream(corpus[:1]), stream(corpus[1:2])]
        return pipeline(make(datasets.interleave_datasets(both, probabilities=[0.5, 0.5], seed=seed)))

    made = of(1)
    next(iter(made))
    of(1).set_state(made.get_state())
    with pytest.raises(DriftError, match=r"files\.seeds: .*another order"):
        of(2).set_state(made.get_state())


def test_files_may_move_to_another_folder(corpus, tmp_path):
    source = make(stream(corpus))
    first = source.get_batch(100)
    moved = [str(shutil.copy(path, tmp_path)) for path in corpus]
    other = make(stream(moved))
    other.set_state(source.get_state())
    assert_plain(texts([first, other.get_batch(10**4)]), stream(moved))


@pytest.mark.parametrize("kind", ["tables", "elements"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_row_that_does_not_fit_is_named_behind_all_before_it_whatever_state_goes_on(kind, shuffle):
    rows = {"x": [*range(320), None, *range(5)], "i": list(range(326))}
    dataset = datasets.Dataset.from_dict(rows).to_iterable_dataset()
    dataset = dataset if kind == "tables" else dataset.map(lambda element: element)

    def source():  # of one portion
        config = HFStreamingConfig(shuffle=shuffle, num_epochs=1, shuffle_buffer_size=20, on_error="skip")
        return sources.HFStreamingSource(config, dataset=dataset)

    first = source()
    given, states = [], []
    for _ in range(32):
        states.append(first.get_state())
        given += first.get_batch(10)["i"].tolist()
    assert sorted(given) == list(range(320))
    for number in (0, 25, 31):
        later = source()
        later.set_state(states[number])
        assert [i for _ in range(number, 32) for i in later.get_batch(10)["i"].tolist()] == given[10 * number :]
        with pytest.raises(RecordError, match=r"shard 0\[320\] \(position 320\).*'x' .*is null"):
            later.get_batch(10)
