"""HFEagerSource: datarax's documented surface, each of its observed defects absent, and one order in all of it."""

import io
import json

import datasets
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.sources import HFEagerConfig, HFEagerSource
from tests import oracle

datasets.disable_progress_bars()

N = 20


def rows():
    return datasets.Dataset.from_dict(
        {"x": list(range(N)), "v": [[i, 2.5 * i] for i in range(N)], "s": [f"s{i}" for i in range(N)]}
    )


def make(transforms=(), dataset=None, **config):
    return HFEagerSource(HFEagerConfig(**config), dataset=rows() if dataset is None else dataset, transforms=transforms)


def order(num_epochs, seed=42):
    return [i for epoch in range(num_epochs) for i in oracle.order(N, epoch, seed)]


def indices(elements):
    return [int(element["x"]) for element in elements]


class AddOne:
    def map(self, element):
        return {"x": element["x"] + 1}


class TestReading:
    def test_get_batch_goes_on_and_ends_with_an_empty_dict(self):
        source = make(shuffle=True, num_epochs=2)
        batches = []
        while batch := source.get_batch(15):
            batches.append(batch)
        assert [x for batch in batches for x in batch["x"].tolist()] == order(2)
        assert [len(batch["s"]) for batch in batches] == [15, 15, 10]
        assert (type(batches[0]["s"]), batches[0]["s"].shape) == (np.ndarray, (15,))
        assert batches[0]["s"].tolist() == [f"s{i}" for i in order(1)[:15]]

    def test_get_batch_with_a_key_is_stateless(self):
        source, key = make(shuffle=True), jax.random.key(3)
        want = jax.random.permutation(key, N)[:6].tolist()
        assert source.get_batch(6, key)["x"].tolist() == want
        assert source.get_batch(6, key)["x"].tolist() == want
        assert make().get_batch(6, key)["x"].tolist() == list(range(6))
        assert int(source.index.get_value()) == 0

    def test_get_batch_at_knows_epochs_and_the_end(self):
        source = make(shuffle=True, num_epochs=2)
        assert source.get_batch_at(15, 10)["x"].tolist() == order(2)[15:25]
        assert source.get_batch_at(np.int64(35), 10)["x"].tolist() == order(2)[35:]
        assert isinstance(source.get_batch_at(0, 2)["v"], jax.Array)
        assert source.get_batch_at(jnp.int32(3), 2)["s"] == [f"s{i}" for i in order(1)[3:5]]
        assert source.get_batch_at(40, 10) == {}
        assert int(source.index.get_value()) == 0
        with pytest.raises(ValueError, match="start and size must not be negative, got -1 and 2"):
            source.get_batch_at(-1, 2)

    def test_transforms_run_on_every_way(self):
        source = make([AddOne()])
        assert indices(source) == list(range(1, N + 1))
        assert source.get_batch_at(3, 2)["x"].tolist() == [4, 5]
        assert int(source[4]["x"]) == 5
        assert source.data["x"].tolist() == list(range(N))  # the data is the dataset's

    @pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 3, 4)], ids=["one size", "several"])
    def test_an_image_that_does_not_decode_is_named_or_skipped_alone(self, sizes):
        dataset = pictures(sizes[0], b"nonsense", *sizes[1:], x=[0, 1, 2, 3])
        source = make(dataset=dataset, name="pets", split="train")
        assert int(next(source)["x"]) == 0
        with pytest.raises(ValueError, match=r"pets/train\[1\] \(position 1\).*column 'image' does not decode"):
            next(source)
        assert indices(make(dataset=dataset, on_error="skip")) == [0, 2, 3]
        cut = make([lambda e: e | {"image": e["image"][:2, :2]}], dataset, on_error="skip").get_batch(4)
        assert (cut["x"].tolist(), cut["image"].shape) == ([0, 2, 3], (3, 2, 2))

    def test_images_of_several_sizes_are_named_with_the_remedy(self):
        said = r"field 'image' has shape \(2, 2\) in one element, \(3, 3\) in another.*resize"
        with pytest.raises(ValueError, match=said):
            make(dataset=pictures(2, 2, 3)).get_batch(3)


def pictures(*stored, **columns):
    """stored: the bytes of each picture, or the size of one of zeros."""
    features = datasets.Features({"image": datasets.Image()} | {name: datasets.Value("int64") for name in columns})
    images = [{"bytes": _png(each) if isinstance(each, int) else each, "path": None} for each in stored]
    return datasets.Dataset.from_dict({"image": images} | columns, features=features)


def _png(size):
    buffer = io.BytesIO()
    PIL.Image.fromarray(np.zeros((size, size), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


class TestPasses:
    """What datarax's users do without saying num_epochs."""

    def test_get_batch_cycles_through_epochs_each_in_its_own_order(self):
        source = make(shuffle=True)
        batches = [source.get_batch(8) for _ in range(9)]
        assert [len(batch["x"]) for batch in batches] == [8, 8, 4] * 3
        assert [int(x) for batch in batches for x in batch["x"]] == order(3)
        assert (int(source.epoch.get_value()), int(source.index.get_value())) == (3, 0)

    def test_every_for_is_a_pass_of_its_own(self):
        source = make(shuffle=True)
        assert [indices(source) for _ in range(3)] == [order(3)[i : i + N] for i in (0, N, 2 * N)]
        with pytest.raises(StopIteration):
            next(source)

    def test_a_for_behind_a_break_gives_what_was_left(self):
        source = make(shuffle=True)
        for number, _ in enumerate(source):
            if number == 4:
                break
        assert indices(source) == order(1)[5:]
        assert indices(source) == order(2)[N:]
        source.get_batch(3)
        assert indices(source) == order(3)[2 * N + 3 :]

    @pytest.mark.parametrize("taken", [0, 1, 5, 7, 18, 19, 20, 21, 24, 25, 39, 40])
    def test_a_state_of_any_pass_resumes_it(self, taken):
        source = make(shuffle=True)
        for _ in range(taken // 5):
            source.get_batch(5)
        elements = iter(source) if taken % 5 else source
        for _ in range(taken % 5):
            next(elements)
        state = json.loads(json.dumps(source.get_state()))
        assert state["settings"] == make(shuffle=True).get_state()["settings"]
        other = make(shuffle=True)
        other.set_state(state)
        begin = taken // N * N
        assert indices(other) == order(3)[taken : begin + N]
        assert indices(other) == order(4)[begin + N : begin + 2 * N]
        other.set_state(state)
        assert [int(x) for x in other.get_batch(5)["x"]] == order(4)[taken : min(taken + 5, begin + N)]

    def test_what_is_filtered_at_the_end_ends_no_pass_twice(self):
        source = make([FirstTen()])
        assert [indices(source) for _ in range(3)] == [list(range(10))] * 3
        other = make([FirstTen()])
        other.set_state(source.get_state())
        assert indices(other) == list(range(10))

    def test_where_transforms_make_it_a_stream_of_datarax_s_pipeline_each_pass_ends(self):
        source = make([AddOne()])
        assert not source.supports_indexed_access()
        assert [len(source.get_batch(15).get("x", ())) for _ in range(4)] == [15, 5, 0, 0]
        assert len(indices(source)) == N

    def test_a_pipeline_and_actors_give_one_pass_whichever_the_source_is_in(self):
        source = make(shuffle=True)
        for _ in range(5):
            source.get_batch(8)
        assert [int(x) for batch in Pipeline(source=source, batch_size=7) for x in batch["x"]] == order(1)
        assert source.describe().stop == N

    def test_with_num_epochs_that_is_all(self):
        source = make(shuffle=True, num_epochs=2)
        assert indices(source) == order(2)
        assert (indices(source), source.get_batch(4)) == ([], {})
        source.reset()
        assert indices(source) == order(2)

    def test_the_variables_and_reset_move_it_to_any_pass(self):
        source = make(shuffle=True)
        source.epoch.set_value(2)
        source.index.set_value(15)
        assert int(source[15]["x"]) == order(3)[2 * N + 15]
        assert indices(source) == order(3)[2 * N + 15 :]
        source.reset()
        assert indices(source) == order(1)


class FirstTen:
    def filter(self, element):
        return bool(element["x"] < 10)


class TestTraced:
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_under_jit_it_is_the_same_batch_at_every_position(self, shuffle):
        source = make(shuffle=shuffle, num_epochs=3)
        traced = jax.jit(lambda start: source.get_batch_at(start, 7))
        for start in range(0, 3 * N - 7, 3):
            want = source.get_batch_at(start, 7)
            got = traced(jnp.int32(start))
            assert sorted(got) == ["v", "x"]  # strings are for no device
            np.testing.assert_array_equal(got["x"], want["x"])
            np.testing.assert_array_equal(got["v"], want["v"])

    def test_after_the_last_epoch_a_traced_batch_is_filled_from_the_next(self):
        source = make(shuffle=True, num_epochs=1)
        assert jax.jit(lambda s: source.get_batch_at(s, 7))(15)["x"].tolist() == order(2)[15:22]

    def test_in_a_module_under_nnx_jit_in_a_scan_and_with_a_gradient(self):
        source, model = make(shuffle=True, exclude_keys=["s"]), nnx.Linear(2, 1, rngs=nnx.Rngs(0))

        @nnx.jit
        def loss(model, start):
            _, rows = jax.lax.scan(lambda at, _: (at + 4, source.get_batch_at(at, 4)["x"]), start, length=15)
            grads = nnx.grad(lambda m: m(source.get_batch_at(start, 4)["v"]).sum())(model)
            return rows, grads.bias.get_value()

        rows, grads = loss(model, jnp.int32(5))
        assert rows.ravel().tolist() == order(4)[5:65]
        assert float(grads[0]) == 4.0

    def test_data_first_asked_for_by_a_trace_is_kept_as_arrays(self):
        source = make()
        jax.jit(lambda s: source.get_batch_at(s, 2))(0)
        assert source.data["x"].tolist() == list(range(N))

    def test_what_cannot_be_traced_says_what_to_do(self):
        with pytest.raises(TypeError, match="the transforms .*AddOne.* run on the host; iterate a Pipeline"):
            jax.jit(lambda s: make([AddOne()]).get_batch_at(s, 2))(0)
        with pytest.raises(TypeError, match=r"all the fields \['s'\] stay on the host; iterate a Pipeline"):
            jax.jit(lambda s: make(include_keys=["s"]).get_batch_at(s, 2))(0)


class TestModule:
    def test_numbers_are_jax_arrays_in_elements_and_batches(self):
        times = {"t": [np.datetime64("2024-01-31", "s")] * N, "r": [[1] * (i % 3) for i in range(N)]}
        source = make(dataset=datasets.concatenate_datasets([rows(), datasets.Dataset.from_dict(times)], axis=1))
        element, item = next(source), source[1]
        for each in (element, item):
            assert {key: isinstance(value, jax.Array) for key, value in each.items()} == {
                "x": True, "v": True, "r": True, "s": False, "t": False,
            }  # fmt: skip
        assert (element["v"].dtype, element["x"].dtype, element["s"]) == (np.float32, np.int32, "s0")
        for batch in (source.get_batch(2), source.get_batch(2, key=jax.random.key(0))):
            assert [isinstance(batch[key], jax.Array) for key in "xvst"] == [True, True, False, False]
            assert batch["s"].shape == (2,)

    def test_get_batch_takes_its_size_by_either_name(self):
        source = make()
        sizes = [source.get_batch(3), source.get_batch(batch_size=3), source.get_batch(size=3)]
        assert [batch["x"].tolist() for batch in sizes] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        for wrong in ({}, {"batch_size": 3, "size": 3}):
            with pytest.raises(TypeError, match="get_batch takes either batch_size or size"):
                source.get_batch(**wrong)

    def test_its_keys_and_its_name_are_those_of_its_config(self):
        source = make(name="parquet", split="train", include_keys={"s", "x"})
        assert (source.include_keys, source.exclude_keys) == ({"s", "x"}, None)
        assert make(exclude_keys=["s"]).exclude_keys == {"s"}
        assert source.name == source.copy().name == "HFEagerSource(parquet:train)"
        assert (make().name, make(name="a", split="b").copy(name="mine").name) == ("HFEagerSource(dataset)", "mine")
        shuffled = make(shuffle=True)
        assert (shuffled.stochastic, shuffled.stream_name) == (True, "shuffle")
        shuffled.set_random_order(False)
        assert (shuffled.stochastic, shuffled.stream_name, shuffled.config.stochastic) == (False, None, False)

    def test_it_has_datarax_s_attributes(self):
        source = make(name="digits", split="train", shuffle=True)
        assert (source.dataset_name, source.split_name, source.length, len(source)) == ("digits", "train", N, N)
        assert (int(source.index.get_value()), int(source.epoch.get_value())) == (0, 0)
        assert source.is_random_order
        assert source.supports_indexed_access()
        assert source.get_dataset_info().features["s"].dtype == "string"
        assert repr(source).startswith("HFEagerSource(dataset='digits', split='train', num_records=20, shuffle=True")
        assert make(precomputed_stats={"mean": 1}).get_statistics() == {"mean": 1}
        assert make(batch_stats_fn=lambda data: {"n": len(data)}).compute_statistics([1]) == {"n": 1}

    def test_data_is_arrays_and_lists_and_lazy(self):
        source = make(dataset=rows().map(lambda row: {"d": {"y": row["x"], "t": row["s"]}}))
        assert "columns" not in vars(source._table)
        data = source.data
        assert (data["v"].shape, data["v"].dtype) == ((N, 2), np.float32)
        assert data["s"] == [f"s{i}" for i in range(N)]
        assert data["d"]["y"].tolist() == list(range(N))
        assert data["d"]["t"] == data["s"]
        assert source.data is data

    def test_a_number_beyond_32_bits_is_refused_by_name_for_the_device_and_kept_on_the_host(self):
        source = make(dataset=datasets.Dataset.from_dict({"id": [1, 2**40]}))
        message = r"field \['id'\], row 1: a value of int64 does not fit int32"
        with pytest.raises(OverflowError, match=message):
            _ = source.data
        with pytest.raises(OverflowError, match=message):
            source.get_batch(2)
        assert int(next(source)["id"]) == 1  # nothing was lost by that
        with pytest.raises(OverflowError, match="a value of int64 does not fit int32"):
            next(source)
        with jax.enable_x64(True):
            assert int(next(source)["id"]) == 2**40
        (batch,) = source.batches(0, StreamOptions(2))
        assert batch.columns["id"].tolist() == [1, 2**40]

    def test_set_random_order_changes_the_order_from_here_on(self):
        source = make(num_epochs=2)
        source.get_batch(N)
        next(source)
        source.set_random_order(True)
        assert source.is_random_order
        assert indices(source) == order(2)[N + 1 :]
        source.set_random_order(False)
        source.reset()
        assert indices(source) == list(range(N)) * 2

    def test_reset_begins_again_and_takes_a_seed(self):
        source = make(shuffle=True)
        source.get_batch(7)
        source.reset()
        assert indices(source) == order(1)
        source.reset(seed=7)
        assert source.config.seed == 7
        assert indices(source) == order(1, seed=7)

    def test_copy_changes_what_is_given_and_clone_keeps_the_state(self):
        source = make(include_keys=["x"], shuffle=True)
        source.set_random_order(False)
        source.get_batch(5)
        assert indices(source.copy()) == list(range(N))
        assert next(source.copy(config=HFEagerConfig(exclude_keys=["x"])))["s"] == "s0"
        assert indices(source.clone()) == list(range(5, N))


class TestState:
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"include_keys": ["x"]}, r"files.digest: .*Point the source to the original files"),
            ({"dataset": rows().select(range(19))}, "files.num_records: .* with 20, this pipeline has 19"),
            ({"dataset": rows().map(lambda row: {"x": row["x"] + 1})}, "files.digest: "),
        ],
    )
    def test_another_stream_is_refused(self, change, named):
        state = make(shuffle=True).get_state()
        make(shuffle=True).set_state(state)
        with pytest.raises(DriftError, match=named):
            make(**({"shuffle": True} | change)).set_state(state)

    def test_the_state_holds_no_data(self):
        big = datasets.Dataset.from_dict({"x": np.arange(200_000)})
        assert len(json.dumps(make(dataset=big).get_state())) < 1000
