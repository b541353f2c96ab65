"""pad_remainder: every batch of one shape, and a mask of the rows that are real."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from datarax_ray import Pipeline
from tests.data import AddNoise, DropThirds, array_records, decode, in_memory
from tests.resume import assert_equal, joined, on_host

NOISY = (decode, AddNoise())


def source(files, transforms=NOISY, **config):
    return array_records(files, *(transforms or [None]), **{"num_epochs": 1} | config)


def make(of, batch_size=50, **options):
    return Pipeline(source=of, batch_size=batch_size, rngs=nnx.Rngs(0), **({"pad_remainder": True} | options))


def add_keys(batch, keys):
    return batch | {"uniform": jax.vmap(jax.random.uniform)(keys)}


def real(batches):
    """The rows that the mask calls real, without the mask."""
    rows = [{k: v[batch["valid_mask"]] for k, v in on_host(batch).items() if k != "valid_mask"} for batch in batches]
    return [batch for batch in rows if len(batch["index"])]


class TestRows:
    def test_the_last_batch_is_filled_with_zeros_and_none_and_the_mask_tells(self, files):
        batches = list(make(source(files, [decode], shuffle_files=False)))
        assert [on_host(batch)["valid_mask"].tolist() for batch in batches] == [
            [True] * 50,
            [True] * 50,
            [True] * 20 + [False] * 30,
        ]
        last = on_host(batches[-1])
        assert last["index"].tolist() == [*range(100, 120), *[0] * 30]
        assert last["values"][20:].tolist() == [[0] * 5] * 30
        assert last["name"].tolist() == [*(f"r{i}" for i in range(100, 120)), *[None] * 30]
        assert last["ragged"][18:].tolist() == [[0, 1], [0, 1, 2], *[None] * 30]
        of_text = in_memory({"s": np.array(["a", "b", "c"])}, num_epochs=1)
        assert [*make(of_text, 2)][-1]["s"].tolist() == ["c", ""]
        assert isinstance(batches[0]["valid_mask"], jax.Array)
        assert batches[0]["valid_mask"].dtype == bool

    @pytest.mark.parametrize("batch_size", [7, 40, 1000])
    @pytest.mark.parametrize("filters", [(), (DropThirds(),)])
    def test_the_real_rows_and_the_positions_are_those_without_it(self, files, batch_size, filters):
        def pipeline(pad):
            of = source(files, [decode, AddNoise(), *filters])
            return make(of, batch_size, pad_remainder=pad, stages=[add_keys])

        padded, plain = pipeline(True), pipeline(False)
        batches, positions = [], []
        for batch in padded:
            batches.append(batch)
            positions.append(padded.position)
        want, ends = [], []
        for batch in plain:
            want.append(on_host(batch))
            ends.append(plain.position)
        assert {batch["index"].shape for batch in batches} == {(batch_size,)}
        assert_equal(real(batches), want)
        assert positions == ends

    def test_one_shape_is_compiled(self, files):
        shapes = []

        def look(batch):
            shapes.append((batch["values"].shape, batch["valid_mask"].shape))
            return batch

        list(make(source(files), stages=[look]))
        assert shapes == [((50, 5), (50,))]

    def test_the_mask_is_put_back_where_a_stage_leaves_it_out(self, files):
        batch = on_host(list(make(source(files), stages=[lambda batch: {"x": batch["index"] + 1}]))[-1])
        assert batch["valid_mask"].sum() == 20
        assert sorted(batch) == ["name", "ragged", "valid_mask", "x"]

    def test_a_stage_may_change_it(self, files):
        def only_even(batch):
            return batch | {"valid_mask": batch["valid_mask"] & (batch["index"] % 2 == 0)}

        batches = [on_host(batch) for batch in make(source(files), stages=[only_even])]
        assert sum(batch["valid_mask"].sum() for batch in batches) == 60

    def test_a_stage_that_gives_other_rows_gives_their_mask(self, files):
        def half(batch):
            return {"index": batch["index"][::2]}

        def half_of_both(batch):
            return half(batch) | {"valid_mask": batch["valid_mask"][::2]}

        numbers = [decode, lambda element: {"index": element["index"]}]
        for run in (lambda of: of.step(), lambda of: of.scan(lambda batch: batch["index"].sum(), length=1)):
            with pytest.raises(ValueError, match=r"25 rows of 'index' for a batch of 50.* 'valid_mask'.* mark rows"):
                run(make(source(files, numbers), stages=[half]))
        assert make(source(files, numbers), stages=[half_of_both]).step()["valid_mask"].shape == (25,)

    def test_a_scan_counts_the_padded_batch_in(self, files):
        def mean(batch):
            mask = batch["valid_mask"]
            return jnp.sum(batch["index"] * mask) / jnp.sum(mask), jnp.sum(mask), batch["uniform"]

        want = list(make(source(files), stages=[add_keys]))
        pipeline = make(source(files), stages=[add_keys])
        means, counts, uniform = pipeline.scan(mean, length=3)
        assert counts.tolist() == [50, 50, 20]
        assert float(means @ counts) == pytest.approx(119 * 60)
        assert np.asarray(uniform).tobytes() == np.stack([batch["uniform"] for batch in want]).tobytes()
        assert pipeline.position == 120
        with pytest.raises(ValueError, match="there are 0;"):
            pipeline.scan(mean, length=1)


class TestTopology:
    @pytest.mark.parametrize("filters", [(), (DropThirds(),)])
    def test_each_trainer_has_its_share_of_the_rows_in_one_shape(self, files, filters):
        def pipeline(**options):
            return make(source(files, [decode, AddNoise(), *filters]), 36, stages=[add_keys], **options)

        want = [on_host(batch) for batch in pipeline()]
        parts = [list(pipeline(process_index=rank, process_count=4)) for rank in range(4)]
        assert {batch["index"].shape for part in parts for batch in part} == {(9,)}
        assert_equal(joined(parts), want)  # the padding, too, stands at the end of the whole batch

    @pytest.mark.parametrize("pad_remainder", [False, True])
    def test_a_trainer_without_a_row_of_the_last_batch_goes_on_there(self, files, pad_remainder):
        """117 of 120 records are in batches of 13: of 13 trainers 10 have none of the last 3, and no other to see."""
        for rank in (0, 1, 12):
            trainer = {"pad_remainder": pad_remainder, "process_index": rank, "process_count": 13}
            want = list(make(source(files, [decode, AddNoise()]), 13, **trainer))
            pipeline = make(source(files, [decode, AddNoise()]), 13, **trainer)
            pipeline.seek(117)
            assert_equal([on_host(batch) for batch in pipeline], [on_host(batch) for batch in want[9:]])


class TestRefusals:
    def test_left_out_or_filled_up_not_both(self, files):
        with pytest.raises(ValueError, match=r"left out \(drop_remainder\) or filled up \(pad_remainder\), not both"):
            make(source(files), drop_remainder=True)

    def test_a_field_of_that_name_is_an_error_at_the_first_batch(self, files):
        pipeline = make(source(files, [lambda record: {"x": len(record), "valid_mask": True}]))
        with pytest.raises(ValueError, match="the elements have a field 'valid_mask', which pad_remainder=True"):
            pipeline.step()
        assert pipeline.position == 0

    def test_elements_that_are_no_dicts_have_no_place_for_it(self, files):
        with pytest.raises(ValueError, match=r"single values \(object\), so 'valid_mask' has no place beside them"):
            make(source(files, [])).step()

    def test_stages_that_return_no_dict_have_none_either(self, files):
        pipeline = make(source(files, [lambda record: {"x": len(record)}]), stages=[lambda batch: batch["x"]])
        with pytest.raises(ValueError, match="the stages return .*no dict to carry the field 'valid_mask'"):
            pipeline.step()
