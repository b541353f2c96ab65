"""Where batches go on the devices of one process, and what is refused."""

import contextlib

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from datarax_ray import ConcatThenSplit, Pipeline
from datarax_ray.pipeline import transfer
from datarax_ray.pipeline.transfer import TOGETHER, Placer, share_of, to_device
from datarax_ray.plan.trainer_rows import Share, TrainerRows
from datarax_ray.read.elements.columns import concatenate
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from datarax_ray.sources.base.device import narrow
from tests.data import Squares
from tests.resume import assert_equal, on_host


def sharding(spec, axes=("data",), *, is_reversed=False):
    devices = np.array(jax.devices()[:2])
    shape = (2,) if len(axes) == 1 else (1, 2)
    return NamedSharding(Mesh((devices[::-1] if is_reversed else devices).reshape(shape), axes), spec)


def in_rows(element):
    return {"index": element["index"], "tokens": element["index"] * 10 + np.arange(6), "three": np.zeros(3)}


def tokens_of(element):
    return {"index": element["index"], "tokens": in_rows(element)["tokens"]}


def make(transform=tokens_of, batch_size=4, **options):
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), Squares(12), transforms=[transform])
    return Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(
    "laid_out",
    [
        (P("data"),),
        (P(),),
        (P(None, "data"),),
        (P("data", "seq"), ("data", "seq")),
        (P("seq", "data"), ("data", "seq")),
    ],
)
def test_every_shard_is_what_its_index_names(laid_out, is_reversed):
    to = sharding(*laid_out, is_reversed=is_reversed)
    want = [on_host(batch) for batch in make()]
    got = list(make(sharding=to))
    assert_equal([on_host(batch) for batch in got], want)
    for batch, whole in zip(got, want, strict=True):
        assert batch["tokens"].sharding == to
        for name, array in batch.items():
            for shard in array.addressable_shards:
                assert np.asarray(shard.data).tolist() == whole[name][shard.index].tolist()


def test_keys_of_rows_are_laid_out_by_rows_where_a_sequence_is_sharded_too():
    def draw(batch, keys):
        return batch | {"uniform": jax.vmap(jax.random.uniform)(keys)}

    for spec in (P("data", "seq"), P(None, "seq")):
        got = list(make(sharding=sharding(spec, ("data", "seq")), stages=[draw]))
        assert_equal([on_host(batch) for batch in got], [on_host(batch) for batch in make(stages=[draw])])


def test_a_share_is_the_parts_that_the_devices_hold():
    assert share_of(sharding(P("data"), is_reversed=True)) == Share(2, (0, 1))
    assert share_of(sharding(P(None, "data"))) == Share(1, (0,))


def test_a_trainer_by_rank_lays_its_rows_out_over_its_own_devices():
    parts = [
        list(make(sharding=sharding(P("data")), process_index=rank, process_count=2, batch_size=12))
        for rank in range(2)
    ]
    (want,) = make(batch_size=12)
    for rank, (batch,) in enumerate(parts):
        assert batch["index"].tolist() == want["index"][6 * rank : 6 * rank + 6].tolist()
        assert {shard.data.shape for shard in batch["index"].addressable_shards} == {(3,)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 3}, r"a batch has 3 rows, which P.*'data'.* does not divide over the mesh \{'data': 2\}.*of 2"),
        ({"batch_size": 8}, None),
        ({"batch_size": 10, "process_index": 0, "process_count": 5, "drop_remainder": True}, None),
        (
            {"batch_size": 6, "process_index": 0, "process_count": 2},
            r"6 rows, .*\{'data': 2\} of each of 2 trainers. Use a multiple of 4",
        ),
        ({"batch_size": 2, "packing": ConcatThenSplit(7)}, None),
    ],
)
def test_a_number_of_rows_that_does_not_divide_is_refused_when_the_pipeline_is_made(options, message):
    if message is None:
        make(sharding=sharding(P("data")), **options)
        return
    with pytest.raises(ValueError, match=message):
        make(sharding=sharding(P("data")), **options)


def test_packed_rows_that_a_sequence_axis_does_not_divide_are_refused_when_the_pipeline_is_made():
    to = sharding(P("data", "seq"), ("data", "seq"))
    with pytest.raises(ValueError, match=r"packed rows is of shape \(4, 7\).*'seq'.*mesh \{'data': 1, 'seq': 2\}"):
        make(sharding=to, packing=ConcatThenSplit(7))
    make(sharding=to, packing=ConcatThenSplit(8))


def test_a_field_with_an_axis_that_does_not_divide_is_named_with_both_shapes():
    pipeline = make(in_rows, sharding=sharding(P("data", "seq"), ("data", "seq")))
    with pytest.raises(ValueError, match=r"field \['three'\] is of shape \(4, 3\).*mesh \{'data': 1, 'seq': 2\}"):
        next(iter(pipeline))


def test_another_kind_of_sharding_is_refused():
    with pytest.raises(TypeError, match=r"NamedSharding, got SingleDeviceSharding"):
        make(sharding=SingleDeviceSharding(jax.devices()[0]))


def test_the_kind_of_memory_that_a_sharding_names_is_kept():
    to = sharding(P("data", "seq"), ("data", "seq")).with_memory_kind("unpinned_host")
    array = to_device({"x": np.arange(4)}, to, TrainerRows(4), 4)["x"]
    assert array.sharding.memory_kind == "unpinned_host"


KINDS = ("bool", "int8", "uint16", "int32", "float16", "float32", "complex64", "int64", "float64")
UNDER = {
    "defaults": contextlib.nullcontext,
    "64 bits": lambda: jax.enable_x64(True),
    "another device": lambda: jax.default_device(jax.devices()[1]),
    "NaN refused": lambda: jax.debug_nans(True),
    "no compilation": jax.disable_jit,
    "no implicit transfers": lambda: jax.transfer_guard("disallow"),
}


@pytest.mark.parametrize("number", [1, 7, TOGETHER])
@pytest.mark.parametrize("settings", UNDER.values(), ids=UNDER)
def test_batches_placed_by_a_program_are_those_of_device_put(settings, number, monkeypatch):
    monkeypatch.setattr(transfer, "_COMPILED_AFTER", 1)
    monkeypatch.setattr(transfer, "_TOGETHER_AFTER", 1)
    batches = [every_kind(seed) for seed in range(number)]
    place = Placer()
    with settings():
        expected = [jax.device_put(narrow(columns)) for columns in batches]
        whole = concatenate([every_kind(99), *batches, every_kind(98)])
        for turn in range(4):
            series = (whole, 6) if number == TOGETHER and turn % 2 else None  # behind the first batch of a series
            found = [*place(batches, series)]
            assert jax.tree.structure(found) == jax.tree.structure(expected)
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                assert (one.aval, one.sharding, one.committed) == (other.aval, other.sharding, other.committed)
                assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def every_kind(seed):
    bits = np.random.default_rng(seed).integers(0, 256, (6, 3, 16), np.uint8)
    columns = {kind: bits.view(kind) if kind != "bool" else bits > 99 for kind in KINDS}
    numbers = {"int64": np.arange(6) + seed, "float64": np.array([0.5, -0.0, np.nan, np.inf, 2.0, seed])}
    columns |= numbers | {"empty": bits[:, :0]}
    return {"b": columns, "a": bits[:, ::2], "fortran": np.asfortranarray(bits[..., 0])}


def test_batches_that_differ_in_rows_or_do_not_fit_are_placed_one_by_one(monkeypatch):
    monkeypatch.setattr(transfer, "_TOGETHER_AFTER", 1)
    divided, sizes = transfer._divided, []
    monkeypatch.setattr(transfer, "_divided", lambda columns: sizes.append(len(columns["x"])) or divided(columns))
    place = Placer()
    alike = [{"x": np.full((4, 2), number, np.int64)} for number in range(TOGETHER)]
    for _ in range(2):
        assert [int(found["x"][0, 0]) for found in place(alike)] == [*range(TOGETHER)]
    short = [*alike[:-1], {"x": np.arange(3)}]
    assert sizes == [4 * TOGETHER]
    assert [found["x"].shape for found in place(short)] == [(4, 2)] * (TOGETHER - 1) + [(3,)]
    assert len([*place(alike)]) == TOGETHER
    too_large = [*alike[:5], {"x": np.full((4, 2), 2**40)}, *alike[6:]]
    found = place(too_large)
    assert [int(next(found)["x"][0, 0]) for _ in range(5)] == [*range(5)]  # those before it are handed out
    with pytest.raises(OverflowError, match="row 0"):
        next(found)
    assert sizes == [4 * TOGETHER]
