"""The states of `datasets`, of which a cursor consists: from behind every portion, a new run gives exactly the rest."""

import json

import datasets
import numpy as np
import pytest

from datarax_ray.read.elements.columns import unstack
from datarax_ray.read.formats.hugging_face.shards import HFShards, Portions
from datarax_ray.read.streams.open_shards import count


def generate(shards):
    for shard in shards:
        for number in range(20 + 3 * shard):
            yield {"x": 100 * shard + number, "s": f"g{number}"}


def twice(element):
    return {"y": 2 * element["x"]}


def repeat(batch):
    return {"x": [x for x in batch["x"] for _ in range(2)], "s": [s for s in batch["s"] for _ in range(2)]}


def two_in_three(element):
    return element["x"] % 3 != 0


def add_column(table):
    return table.append_column("y", table["x"])


INSIDE = {
    "nothing": lambda d: d,
    "map": lambda d: d.map(twice),
    "filter": lambda d: d.filter(two_in_three),
    "map of batches": lambda d: d.map(repeat, batched=True, batch_size=4),
    "map, filter, map": lambda d: d.map(twice).filter(two_in_three).map(twice),
    "numpy, map": lambda d: d.with_format("numpy").map(twice),
    "arrow, map of batches": lambda d: d.with_format("arrow").map(add_column, batched=True, batch_size=6),
    "take": lambda d: d.take(50),
    "skip": lambda d: d.skip(9),
    "repeat": lambda d: d.repeat(2),
    "select": lambda d: d.select_columns(["x"]),
    "rename": lambda d: d.rename_column("x", "z"),
    "interleave": lambda d: datasets.interleave_datasets([d, d.map(twice)]),
    "interleave at random": lambda d: datasets.interleave_datasets([d, d], probabilities=[0.3, 0.7], seed=3),
    "interleave until all end": lambda d: datasets.interleave_datasets([d, d], stopping_strategy="all_exhausted"),
    "concatenate": lambda d: datasets.concatenate_datasets([d, d]),
}


@pytest.fixture(scope="module", params=["json", "arrow", "generator"])
def dataset(request, tmp_path_factory):
    """Made once: readers iterate shards of it, which are datasets of their own."""
    if request.param == "generator":
        return datasets.IterableDataset.from_generator(generate, gen_kwargs={"shards": [0, 1]})
    if request.param == "arrow":
        rows = {"x": list(range(41)), "s": [f"s{x}" for x in range(41)]}
        return datasets.Dataset.from_dict(rows).to_iterable_dataset(num_shards=2)
    folder = tmp_path_factory.mktemp("json")
    paths = [folder / "0.jsonl", folder / "1.jsonl"]
    for shard, path in enumerate(paths):
        path.write_text("".join(json.dumps(row) + "\n" for row in generate([shard])))
    return datasets.load_dataset("json", data_files=list(map(str, paths)), split="train", streaming=True)


def plain(rows):
    """The elements, with Python's own values."""
    elements = rows if isinstance(rows, list) else unstack(rows, count(rows))
    return [{key: np.asarray(value).tolist() for key, value in element.items()} for element in elements]


def rest(reader, epoch, shard, state):
    """The portions from a state on, and the state behind each, as JSON brings it back."""
    run, portions, states = reader.run(epoch, shard, state), [], []
    while (given := run.next()) is not None:
        portions.append([row for rows in given for row in plain(rows)])
        states.append(json.loads(json.dumps(run.state())))
        assert states[-1] == run.state()
    run.close()
    return portions, states


@pytest.mark.parametrize("inside", INSIDE)
def test_from_behind_every_portion_a_run_gives_exactly_the_rest(dataset, inside):
    reader = HFShards(INSIDE[inside](dataset), "test", portions=Portions(min_rows=7, max_rows=7, elements=7))
    for epoch, shard in ((0, 0), (2, 1)):
        portions, states = rest(reader, epoch, shard, None)
        assert len(portions) > 1
        for number, state in enumerate(states):
            assert rest(reader, epoch, shard, state)[0] == portions[number + 1 :]


BROKEN = set()  # what cannot be read now


def whole(element):
    if element["x"] in BROKEN:
        raise ZeroDivisionError(f"cannot read {element['x']}")
    return True


def numbers(shards):
    for x in range(20):
        whole({"x": x})
        yield {"x": x}


FAILING = {
    "generator": lambda: datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": [0]}),
    "map": lambda: rows().map(lambda element: {"y": whole(element)}),
    "map of batches": lambda: rows().map(
        lambda b: {"y": [whole({"x": x}) for x in b["x"]]}, batched=True, batch_size=4
    ),
    "filter": lambda: rows().filter(whole),
}


def rows():
    return datasets.Dataset.from_dict({"x": list(range(20))}).to_iterable_dataset()


@pytest.mark.parametrize("inside", FAILING)
def test_a_state_stands_before_what_could_not_be_read(inside, monkeypatch):
    run = HFShards(dataset := FAILING[inside](), "test", portions=Portions(elements=8)).run(0, 0, None)
    monkeypatch.setitem(globals(), "BROKEN", {13})
    before = [[row["x"] for rows in run.next() or () for row in plain(rows)] for _ in range(2)]
    assert before == [list(range(8)), list(range(8, 12 if "batches" in inside else 13))]
    for _ in range(2):  # and stays there
        with pytest.raises(ZeroDivisionError, match="cannot read 13"):
            run.next()
    BROKEN.clear()
    portions, _ = rest(HFShards(dataset, "test"), 0, 0, run.state())
    assert [row["x"] for portion in portions for row in portion] == list(range(before[-1][-1] + 1, 20))


def test_a_state_of_another_epoch_is_refused(dataset):
    reader = HFShards(dataset, "test")
    _, (state, *_) = rest(reader, 0, 0, None)
    with pytest.raises(ValueError, match="the cursor of shard 0 is of epoch 0, and epoch 1 is read"):
        reader.run(1, 0, state)


@pytest.mark.parametrize("damage", [None, [], {}, {"type": "StepExamplesIterable"}, 5])
@pytest.mark.parametrize("inside", ["nothing", "interleave", "concatenate"])
def test_a_state_without_a_part_of_it_is_refused(inside, damage):
    """`datasets` would read that part from its start."""
    dataset = INSIDE[inside](datasets.IterableDataset.from_generator(generate, gen_kwargs={"shards": [0, 1, 2]}))
    reader = HFShards(dataset, "test", portions=Portions(elements=4))
    portions, (_, state, *_) = rest(reader, 0, 0, None)

    def parts(of):
        for key, part in of.items() if isinstance(of, dict) else enumerate(of):
            if isinstance(part, dict | list) and not str(key).startswith("previous"):
                yield of, key
                yield from parts(part)

    for owner, key in (places := [*parts(state)]):
        was, owner[key] = owner[key], damage
        with pytest.raises(ValueError, match=f"{key} of .*the cursor of shard 0 is .* the state is damaged, or of"):
            rest(reader, 0, 0, state)
        owner[key] = was
    assert len(places) >= 1 + (inside != "nothing")
    assert rest(reader, 0, 0, state)[0] == portions[2:]


@pytest.mark.parametrize("index", [300, 304])
def test_a_row_unlike_the_first_is_an_error_with_the_remedy_behind_all_before_it(index):
    """Number 304 is the first of its portion."""
    rows = {"tokens": [[1, 2]] * index + [[3], [4, 5]], "n": list(range(index + 2))}
    ragged = datasets.Dataset.from_dict(rows).to_iterable_dataset()
    run = HFShards(ragged, "test", portions=Portions(max_rows=16)).run(0, 0, None)
    given = []
    while len(given) < index:
        given += [row["n"] for part in run.next() or () for row in plain(part)]
    assert given == list(range(index))
    assert (run.state() is None) == (index == 300)  # one behind twelve rows would not fit portions of 16
    with pytest.raises(ValueError, match=r"this row is not like the first 256 .*name the column in host_keys"):
        run.next()
    (part,) = HFShards(ragged, "test", ["tokens"]).run(0, 0, None).next() or ()
    assert list(part["tokens"][index]) == [3]


def in_shards(values, num_shards):
    data = datasets.Dataset.from_dict({"n": list(range(len(values)))}).to_iterable_dataset(num_shards=num_shards)
    return data.map(lambda element: {"x": values[element["n"]]})


@pytest.mark.parametrize(
    ("values", "num_shards", "dtype"),
    [
        ([[0] * (1 + i) for i in range(20)], 20, "object"),
        ([[i] * (1 + i // 7) for i in range(70)], 10, "object"),
        ([i if i < 5 else i + 0.5 for i in range(40)], 20, "float64"),
        ([i if i < 9 else None for i in range(20)], 5, "object"),
        ([0] * 63 + [0.5] * 17, 16, "float64"),
    ],
)
def test_short_shards_decide_together(values, num_shards, dtype):
    reader = HFShards(in_shards(values, num_shards), "test")
    given = [rows for shard in range(num_shards) for rows in reader.run(0, shard, None).next() or ()]
    assert {str(rows["x"].dtype) for rows in given if isinstance(rows, dict)} == {dtype}
    assert [row["x"] for rows in given for row in plain(rows)] == values


def test_a_file_of_the_same_size_is_known_by_what_it_holds_wherever_it_lies(tmp_path):
    found = []
    for number, text in enumerate(['{"x": 1}\n{"x": 2}\n', '{"x": 1}\n{"x": 3}\n', '{"x": 1}\n{"x": 2}\n']):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "a.jsonl").write_text(text)
        data = str(tmp_path / str(number) / "a.jsonl")
        streamed = datasets.load_dataset("json", data_files=data, split="train", streaming=True)
        found.append(HFShards(streamed, "data").fingerprint())
    assert found[0] == found[2]
    assert {key for key in found[0] if found[0][key] != found[1][key]} == {"content"}
