"""The Pipeline in one process: batches, the last of them, epochs, stages, devices, state."""

import functools
import gc
import json
import threading
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from datarax_ray import Pipeline
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.packing import FirstFitPack
from datarax_ray.read.errors import RecordError
from tests import oracle
from tests.data import AddNoise, DropThirds, FailAt, array_records, decode
from tests.resume import assert_equal, assert_resumes, on_host, run_saving
from tests.waiting import until


def make(files, transforms=(decode,), batch_size=32, options=None, **config):
    source = array_records(files, *(transforms or [None]), **config)
    return Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0), **(options or {}))


def indices(pipeline):
    return [np.asarray(batch["index"]).tolist() for batch in pipeline]


def add_keys(batch, keys):
    return batch | {"uniform": jax.vmap(jax.random.uniform)(keys)}


class Dropped(nnx.Module):
    def __init__(self, seed=3):
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(seed))

    def __call__(self, batch):
        return batch | {"dropped": self.dropout(jnp.ones(batch["values"].shape))}


class Scale(nnx.Module):
    def __init__(self):
        self.factor, self.shift = nnx.Param(jnp.int32(0)), 0

    def __call__(self, batch):
        return batch | {"scaled": batch["index"] * self.factor[...] + self.shift}


GLOBAL = Scale()


class TestBatches:
    @pytest.mark.parametrize("batch_size", [1, 7, 1000])
    def test_they_are_the_plain_loops(self, files, batch_size):
        transforms = [decode, AddNoise(), DropThirds()]
        stream = oracle.elements(oracle.stored(files), seed=42, num_epochs=2, transforms=transforms, rng_seed=42)
        want = oracle.batches(stream, batch_size, 240)
        got = []
        with make(files, transforms, batch_size) as pipeline:
            for batch in pipeline:
                got.append((pipeline.position, batch))
        assert [position for position, _ in got] == [position for position, _ in want]
        for (_, batch), (_, columns) in zip(got, want, strict=True):
            narrowed = {k: [np.int32(v) for v in column] if k == "index" else column for k, column in columns.items()}
            oracle.assert_same(batch, narrowed)

    def test_the_last_one_is_short_or_dropped_and_never_wrapped(self, files):
        assert [len(rows) for rows in indices(make(files, batch_size=50, num_epochs=1))] == [50, 50, 20]
        dropping = make(files, batch_size=50, num_epochs=1, options={"drop_remainder": True})
        assert [len(rows) for rows in indices(dropping)] == [50, 50]

    def test_a_position_beyond_the_end_is_damage_but_of_a_longer_stream(self, files):
        with make(files, num_epochs=3) as longer, make(files, num_epochs=1) as pipeline:
            longer.seek(300)
            with pytest.raises(ValueError, match="position 361 is beyond the end of the stream, 360: it is damaged"):
                longer.set_state(longer.get_state() | {"position": 361})
            assert longer.position == 300
            pipeline.set_state(longer.get_state(), allow_drift=["order.num_epochs"])
            assert indices(pipeline) == []

    def test_a_second_loop_goes_on_and_after_the_end_says_so(self, files, caplog):
        pipeline = make(files)
        want = indices(make(files))
        got = [np.asarray(next(iter(pipeline))["index"]).tolist() for _ in range(3)]
        assert got + indices(pipeline) == want
        assert indices(pipeline) == []
        assert "at its end (position 240)" in caplog.text
        assert "seek(0) begins again, with the same order and random numbers; num_epochs=n on the source" in caplog.text
        with pytest.raises(ValueError, match="the stream ends at position"):
            pipeline.seek(10**6)
        pipeline.seek(0)
        assert indices(pipeline) == want

    def test_records_without_transforms_are_bytes_on_the_host(self, files):
        batch = next(iter(make(files, (), 4, shuffle_files=False)))
        assert batch.tolist() == oracle.stored(files)[:4]


class TestFields:
    def test_strings_and_lists_pass_by_the_stages_untouched(self, files):
        seen = []

        def look(batch):
            seen.append(sorted(batch))
            return {"values": batch["values"] * 2}

        batch = next(iter(make(files, batch_size=4, shuffle_files=False, options={"stages": [look]})))
        assert seen == [["index", "values"]]
        assert isinstance(batch["values"], jax.Array)
        assert batch["values"][:, 0].tolist() == [0, 2, 4, 6]
        assert batch["name"].tolist() == ["r0", "r1", "r2", "r3"]
        assert batch["ragged"].tolist() == [[], [0], [0, 1], [0, 1, 2]]

    def test_a_stage_that_leaves_no_place_for_them_is_an_error(self, files):
        pipeline = make(files, options={"stages": [lambda batch: batch["values"]]})
        with pytest.raises(ValueError, match=r"stages return .* the fields \['name', 'ragged'\] stay on the host"):
            next(iter(pipeline))

    @pytest.mark.parametrize(
        ("stages", "message"),
        [
            ([lambda batch: {"values": batch["values"][1:]}], "the stages give 3 rows of 'values' for a batch of 4"),
            ([lambda b: b, lambda b: b | {"index": jnp.repeat(b["index"], 2)}], "the stages give 8 rows of 'index'"),
        ],
    )
    def test_a_stage_that_gives_other_rows_than_they_have_is_an_error(self, files, stages, message):
        pipeline = make(files, batch_size=4, options={"stages": stages})
        beside = ".* 'name', 'ragged' pass by the stages with 4,.* Filter in a transform"
        with pytest.raises(ValueError, match=message + beside):
            next(iter(pipeline))
        assert pipeline.position == 0
        numbers = (decode, lambda element: {"values": element["values"], "index": element["index"]})
        make(files, numbers, 4, {"stages": stages}).step()  # where nothing passes by

    def test_means_groups_of_rows_and_the_time_first_may_stand_beside_them(self, files):
        def groups(batch):
            mean = {"mean": batch["values"].mean(0), "count": batch["index"].sum()}
            return mean | {"values": batch["values"].T, "index": batch["index"].reshape(2, 2)}

        batch = make(files, batch_size=4, options={"stages": [groups]}).step()
        assert {name: np.shape(value) for name, value in batch.items()} == {
            "mean": (5,),
            "count": (),
            "values": (5, 4),
            "index": (2, 2),
            "name": (4,),
            "ragged": (4,),
        }

    def test_numbers_that_32_bits_do_not_hold_are_refused(self, files):
        for value, kind in ((2**31, "int64"), (1e300, "float64")):
            pipeline = make(files, [lambda _, value=value: {"x": value}])
            with pytest.raises(OverflowError, match=rf"\['x'\], row 0: a value of {kind} .*jax_enable_x64"):
                next(iter(pipeline))

    def test_bfloat16_is_a_number_and_times_stay_on_the_host(self, files):
        import ml_dtypes

        def element(_):
            return {"x": np.ones(3, ml_dtypes.bfloat16), "when": np.datetime64("2026-11-20", "s")}

        batch = next(iter(make(files, [element], 4)))
        assert batch["x"].dtype == jnp.bfloat16
        assert isinstance(batch["x"], jax.Array)
        assert batch["when"].tolist() == [np.datetime64("2026-11-20", "s").item()] * 4

    def test_with_64_bits_they_are_kept(self, files: list[Path]) -> None:
        jax.config.update("jax_enable_x64", True)
        try:
            batch = make(files, [lambda _: {"x": 2**40}]).step()
        finally:
            jax.config.update("jax_enable_x64", False)
        assert np.asarray(batch["x"]).tolist() == [2**40] * 32


class TestStages:
    def test_random_stages_depend_on_the_position_alone(self, files):
        def pipeline():
            return make(files, options={"stages": [add_keys, Dropped()]})

        batches, states = run_saving(pipeline())
        assert len({float(x) for batch in batches for x in batch["uniform"]}) == 240
        assert len({batch["dropped"].tobytes() for batch in batches}) == len(batches)
        assert_resumes(lambda _: pipeline(), batches, states)

    def test_keys_are_of_the_row_whatever_the_batch_size(self, files):
        def uniforms(batch_size):
            pipeline = make(files, batch_size=batch_size, options={"stages": [add_keys]})
            return [float(x) for batch in pipeline for x in batch["uniform"]]

        assert uniforms(32) == uniforms(7)

    def test_another_key_is_refused_only_where_it_is_used(self, files):
        def pipeline(seed, stages):
            pipeline = make(files)
            return Pipeline(source=pipeline.source, batch_size=32, rngs=nnx.Rngs(seed), stages=stages)

        pipeline(1, []).set_state(pipeline(0, []).get_state())
        with pytest.raises(DriftError, match="stages.key"):
            pipeline(1, [add_keys]).set_state(pipeline(0, [add_keys]).get_state())

    def test_a_stage_that_forgets_its_return_is_an_error_that_names_it(self, files):
        class Forgets(nnx.Module):
            def __call__(self, batch):
                batch["index"] += 1

        def scale(batch):
            batch["values"] = batch["values"] * 2

        linear = make(files, options={"stages": [add_keys, scale]})
        with pytest.raises(TypeError, match=r"stage 1 \(.*scale\) returned None.*`return`"):
            list(linear)
        source = linear.source
        nodes, edges = {"a": add_keys, "b": Forgets(), "c": lambda a, b: a}, {"c": ["a", "b"]}
        dag = Pipeline.from_dag(source=source, nodes=nodes, edges=edges, sink="c", batch_size=4, rngs=nnx.Rngs(0))
        with pytest.raises(TypeError, match=r"stage b \(.*Forgets\) returned None.*`return`"):
            dag.step()
        with pytest.raises(TypeError, match=r"stage 1 \(.*scale\) returned None"):
            linear.scan(lambda batch: None, length=1)

    @pytest.mark.parametrize("num_modules", [0, 1])
    def test_a_stage_that_raises_stop_iteration_does_not_end_the_loop_as_if_all_were_well(self, files, num_modules):
        def first_missing(batch):
            return next(batch for name in batch if name == "absent")

        with make(files, options={"stages": [Dropped()] * num_modules + [first_missing]}) as pipeline:
            with pytest.raises(RuntimeError, match="StopIteration") as raised:
                for _ in pipeline:
                    pass
            notes = getattr(raised.value.__cause__, "__notes__", [])
            assert any("first_missing" in note for note in notes)
            assert pipeline.position == 0

    def test_a_stage_that_writes_to_itself_is_refused(self, files):
        class Normalised(nnx.Module):
            def __init__(self):
                self.norm = nnx.BatchNorm(5, rngs=nnx.Rngs(0))

            def __call__(self, batch):
                return batch | {"values": self.norm(batch["values"].astype(jnp.float32))}

        with pytest.raises(ValueError, match="changes its own variables .*mean.*could not be resumed"):
            next(iter(make(files, options={"stages": [Normalised()]})))
        frozen = Normalised()
        frozen.eval()
        assert next(iter(make(files, options={"stages": [frozen]})))["values"].dtype == jnp.float32

    @pytest.mark.parametrize("prefetch", [0, 3])
    def test_what_the_loop_changes_in_one_holds_from_the_next_batch_on(self, files, prefetch):
        scale = Scale()

        def scaled(pipeline, number):
            """Whether the next batch is by what the stage holds now."""
            scale.factor[...], scale.shift = jnp.int32(number), number // 2
            batch = on_host(pipeline.step())
            return bool((batch["scaled"] == batch["index"] * number + number // 2).all())

        with make(files, options={"stages": [scale], "prefetch": prefetch}) as pipeline:
            assert all(scaled(pipeline, number) for number in range(8))

    @pytest.mark.parametrize("kind", ["closure", "method", "partial", "object", "global", "jit"])
    def test_a_function_that_uses_a_module_from_outside_is_refused(self, files, kind):
        module = GLOBAL if kind == "global" else Scale()

        class Holds:
            def __init__(self):
                self.inner = {"scale": module}

            def __call__(self, batch):
                return self.inner["scale"](batch)

        stage = {
            "closure": lambda: lambda batch: module(batch),
            "method": lambda: module.__call__,
            "partial": lambda: functools.partial(Scale.__call__, module),
            "object": Holds,
            "global": lambda: lambda batch: GLOBAL(batch),
            "jit": lambda: jax.jit(lambda batch: module(batch)),
        }[kind]()
        with pytest.raises(TypeError, match=r"stage 0 \(.*\) uses the nnx\.Module .*Give the module itself as a stage"):
            make(files, options={"stages": [stage]})

    def test_one_that_only_has_a_module_near_it_is_not(self, files):
        class Trainer:
            def __init__(self):
                self.model, self.GLOBAL = Scale(), 2

            def twice(self, batch):
                return {"index": batch["index"] * self.GLOBAL}

        assert make(files, options={"stages": [Trainer().twice]}).step()["index"].shape == (32,)

    def test_one_shape_is_compiled_once(self, files):
        traces = []

        def count(batch):
            traces.append(batch["values"].shape)
            return batch

        list(make(files, options={"stages": [count]}))
        assert traces == [(32, 5), (16, 5)]

    def test_a_graph_runs_branches_and_their_merge(self, files):
        base = make(files, shuffle_files=False)
        pipeline = Pipeline.from_dag(
            source=base.source,
            nodes={
                "merge": lambda a, b: a | {"sum": a["values"] + b["values"]},
                "twice": lambda batch: batch | {"values": batch["values"] * 2},
                "thrice": lambda batch: batch | {"values": batch["values"] * 3},
            },
            edges={"twice": [], "thrice": [], "merge": ["twice", "thrice"]},
            sink="merge",
            batch_size=3,
            rngs=nnx.Rngs(0),
        )
        assert next(iter(pipeline))["sum"][:, 0].tolist() == [0, 5, 10]
        assert len(pipeline.stages) == 3

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"nodes": {"a": len}}, ValueError, "needs sink"),
            ({"nodes": {"a": len}, "edges": {"a": ["b"]}, "sink": "a"}, ValueError, r"name \['b'\], the nodes are"),
            ({"nodes": {"a": len, "b": len}, "edges": {"a": ["b"], "b": ["a"]}, "sink": "a"}, ValueError, "cycle"),
            ({"nodes": {"a": len, "b": len}, "edges": {}, "sink": "a"}, ValueError, r"nothing uses .*\['b'\]"),
            ({"stages": [Dropped]}, TypeError, "a stage is an nnx.Module or a function"),
            ({"stages": [3]}, TypeError, "is 3; a stage is"),
            ({"prefetch": "2"}, TypeError, "prefetch is a whole number, got '2', of batches made ahead"),
            ({"prefetch": None}, TypeError, "got None, of batches made ahead; 0 for none"),
            ({"process_index": "0"}, TypeError, "process_index is a whole number, got '0'"),
            ({"prefetch": -1}, ValueError, "prefetch must be at least 0, got -1"),
            ({"process_index": 2, "process_count": 2}, ValueError, r"process_index must be in \[0, process_count=2\)"),
            ({"process_index": 0, "process_count": 5}, ValueError, "batch_size=32 .*process_count=5"),
            ({"process_count": 2}, ValueError, "process_count=2 without process_index.*each of them would read"),
        ],
    )
    def test_options_that_make_no_pipeline_are_refused(self, files, options, error, message):
        with pytest.raises(error, match=message):
            make(files, options=options)

    def test_a_source_of_ones_own_needs_describe_and_batches_alone(self, files):
        want = make(files)

        class Own:
            describe, batches = want.source.describe, want.source.batches

        assert indices(Pipeline(source=Own(), batch_size=32)) == indices(want)

    def test_what_decides_its_batches_cannot_be_set_once_it_is_made(self, files):
        """Or they would go on as before, and the state say what was set: another stream's."""
        pipeline = make(files)
        before = pipeline.get_state()
        given = {
            "batch_size": 64,
            "drop_remainder": True,
            "pad_remainder": True,
            "packing": FirstFitPack(8, "values"),
            "sharding": None,
            "source": make(files, seed=7).source,
            "rngs": nnx.Rngs(77),
            "prefetch": 0,
            "on_host": True,
            "digest": True,
            "process_index": 1,
        }
        for name, value in given.items():
            was = getattr(pipeline, name, None)
            if name != "sharding":
                with pytest.raises(AttributeError, match=f"{name} of a Pipeline cannot be set.*make another Pipeline"):
                    setattr(pipeline, name, value)
            assert getattr(pipeline, name, None) == was
        pipeline.batch_size = pipeline.batch_size  # as NNX does where it puts a module together again
        assert pipeline.get_state() == before

    def test_calling_it_applies_the_stages(self, files):
        pipeline = make(files, options={"stages": [lambda batch: {"y": batch["x"] + 1}]})
        assert pipeline({"x": jnp.arange(3)})["y"].tolist() == [1, 2, 3]
        with pytest.raises(ValueError, match=r"a batch holds at least one array, \(rows, ...\), got {}"):
            pipeline({})


class Scaled(nnx.Module):
    def __init__(self, by, seed=0):
        self.by = by
        self.noise = nnx.Dropout(0.1, rngs=nnx.Rngs(seed))
        self.trained = nnx.Param(jnp.ones(2))

    def __call__(self, batch):
        return self.noise(batch["values"] * self.by)


class TestStateOfStages:
    def test_equal_stages_made_anew_and_trained_variables_are_no_drift(self, files):
        state = make(files, options={"stages": [Scaled(2.0), add_keys]}).get_state()
        stage = Scaled(2.0)
        stage.trained[...] = jnp.zeros(2)
        make(files, options={"stages": [stage, add_keys]}).set_state(json.loads(json.dumps(state)))
        assert len(json.dumps(state)) < 4096


class TestDevices:
    @pytest.mark.parametrize("prefetch", [0, 3])
    def test_jaxs_contexts_hold_where_a_batch_is_asked_for(self, files, prefetch):
        def long(stored):
            return {"index": np.int64(decode(stored)["index"])}

        second = jax.devices()[1]
        pipeline = make(files, [long], 30, {"prefetch": prefetch, "stages": [lambda b: b | {"float": b["index"] / 3}]})
        want = [batch["index"].tolist() for batch in make(files, [long], 30)]
        found = [pipeline.step()]
        with jax.enable_x64(True):
            found += [pipeline.step(), pipeline.step()]
            with jax.default_device(second):
                found.append(pipeline.step())
        found.append(pipeline.step())
        assert [batch["index"].dtype.itemsize for batch in found] == [4, 8, 8, 8, 4]
        assert [batch["float"].dtype.itemsize for batch in found] == [4, 8, 8, 8, 4]
        assert [batch["index"].devices() == {second} for batch in found] == [False, False, False, True, False]
        assert [batch["index"].tolist() for batch in found] == want[:5]

    def test_a_position_from_which_the_last_batch_would_not_divide_is_refused(self, files):
        pipeline = make(files, options={"sharding": self.sharding()}, batch_size=32)
        pipeline.seek(32)
        state = pipeline.get_state()
        with pytest.raises(ValueError, match=r"the last batch has 15 rows, which .* does not divide"):
            pipeline.seek(33)
        with pytest.raises(ValueError, match=r"the last batch has 15 rows.*drop_remainder=True or pad_remainder=True"):
            pipeline.set_state(state | {"position": 33})
        assert pipeline.position == 32
        assert len(list(pipeline)) == 7
        make(files, options={"sharding": self.sharding(), "pad_remainder": True}).seek(33)

    def test_a_last_batch_that_skipping_made_odd_is_refused_with_the_remedy(self, files):
        def going(**options):
            sharded = {"sharding": self.sharding()} | options
            return make(files, [decode, FailAt(5)], options=sharded, num_epochs=1, on_error="skip")

        pipeline = going()
        assert [pipeline.step()["index"].shape for _ in range(3)] == [(32,)] * 3
        with pytest.raises(ValueError, match=r"the last batch has 23 rows.*drop_remainder=True or pad_remainder=True"):
            pipeline.step()
        assert len(list(going(drop_remainder=True))) == 3
        assert len(list(going(pad_remainder=True))) == 4

    def sharding(self):
        return NamedSharding(jax.make_mesh((2,), ("data",)), PartitionSpec("data"))

    def test_batches_are_sharded_over_the_given_mesh(self, files: list[Path]) -> None:
        options = {"sharding": self.sharding(), "drop_remainder": True, "stages": [add_keys]}
        plain = make(files, options={"drop_remainder": True, "stages": [add_keys]})
        sharded = make(files, options=options)
        first = next(iter(sharded))
        assert first["values"].sharding.is_equivalent_to(self.sharding(), 2)
        assert {shard.data.shape for shard in first["values"].addressable_shards} == {(16, 5)}
        sharded.seek(0)
        assert_equal([on_host(b) for b in sharded], [on_host(b) for b in plain])


class TestTrainers:
    def test_the_state_of_any_trainer_restores_any_other_number(self, files):
        want = indices(make(files, batch_size=16))
        trainer = make(files, batch_size=16, options={"process_index": 1, "process_count": 4})
        for _ in range(3):
            trainer.step()
        alone = make(files, batch_size=16)
        alone.set_state(trainer.get_state())
        assert indices(alone) == want[3:]


class TestState:
    @pytest.mark.parametrize("position", [10**12, 2**31 - 3, 2**40])
    def test_positions_far_beyond_32_bits_cost_nothing(self, files, position):
        pipeline = make(files, num_epochs=-1, options={"stages": [add_keys]})
        state = pipeline.get_state() | {"position": position}
        pipeline.set_state(state)
        epoch, offset = divmod(position, 120)
        want = (oracle.order(120, epoch, 42) + oracle.order(120, epoch + 1, 42))[offset : offset + 32]
        assert on_host(pipeline.step())["index"].tolist() == want
        assert pipeline.position == position + 32
        assert len(json.dumps(pipeline.get_state())) < 4096

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"batch_size": 16}, "batch_size: the checkpoint was written with 32, this pipeline has 16"),
            ({"options": {"drop_remainder": True}}, "drop_remainder: .* with False, this pipeline has True"),
            ({"options": {"stages": [add_keys]}}, "stages"),
            ({"seed": 43}, "order.seed: .* with 42, this pipeline has 43; records would be repeated"),
        ],
    )
    def test_another_pipeline_is_refused_with_both_values(self, files, options, named):
        state = make(files).get_state()
        with pytest.raises(DriftError, match=named):
            make(files, **options).set_state(state)


class TestClosing:
    def test_it_ends_the_prefetch_thread(self, files):
        before = set(threading.enumerate())  # one of a pipeline that was dropped may end meanwhile
        pipeline = make(files, num_epochs=-1)
        pipeline.step()
        assert set(threading.enumerate()) - before
        pipeline.close()
        assert not set(threading.enumerate()) - before
        assert pipeline.get_state()["position"] == 32

    def test_one_that_is_dropped_without_it_ends_too_and_keeps_no_batch(self, files):
        threads = set(threading.enumerate())
        pipeline = make(files, num_epochs=-1)
        pipeline.step()
        source = weakref.ref(pipeline.source)
        held = [pipeline]
        del pipeline
        jax.jit(lambda x: held.clear() or x)(1)  # NNX lets no attribute of a module be set in a trace
        until(lambda: gc.collect() >= 0 and source() is None and not set(threading.enumerate()) - threads)

    @pytest.mark.parametrize("prefetch", [0, 2])
    def test_an_iterator_goes_on_behind_an_error_and_does_not_end_as_if_all_were_read(self, files, prefetch):
        failures = ["one", "another"]

        def fail_twice(element):
            if int(element["index"]) == 50 and failures:
                raise OSError(failures.pop())
            return element

        pipeline = make(files, [decode, fail_twice], shuffle_files=False, num_epochs=1, options={"prefetch": prefetch})
        batches, found = iter(pipeline), []
        while True:
            try:
                found += np.asarray(next(batches)["index"]).tolist()
            except StopIteration:
                break
            except RecordError:
                found.append("error")
        assert [index for index in found if index != "error"] == list(range(120))
        assert "error" in found
        assert next(batches, None) is None


class TestByRank:
    """Without a mesh over all processes a stage sees the rows of one trainer."""

    @pytest.mark.parametrize("stages", [[Dropped()], [add_keys, Dropped()]])
    @pytest.mark.parametrize("takes", [lambda pipeline: pipeline.step(), lambda pipeline: pipeline.scan(len, length=1)])
    def test_a_stage_that_draws_from_its_own_rngs_is_refused(self, files, stages, takes):
        options = {"stages": stages, "process_index": 1, "process_count": 2}
        with pytest.raises(ValueError, match=r"\(Dropped\) draws from Rngs of its own.* parameter `keys`"):
            takes(make(files, options=options))

    def test_one_that_takes_keys_or_draws_nothing_gives_the_rows_of_one_trainer(self, files):
        silent = Dropped()
        silent.dropout.deterministic = True
        stages = [add_keys, silent]
        whole, *ranks = (
            make(files, batch_size=12, options={"stages": stages, "process_index": rank, "process_count": count})
            for rank, count in ((0, 1), (0, 3), (1, 3), (2, 3))
        )
        for _ in range(4):
            rows = [pipeline.step() for pipeline in (whole, *ranks)]
            for name in ("uniform", "dropped", "index"):
                one, *others = (np.asarray(batch[name]) for batch in rows)
                np.testing.assert_array_equal(np.concatenate(others), one)


class TestSkipping:
    @pytest.mark.parametrize("drop_remainder", [False, True])
    def test_a_broken_record_after_the_last_batch_is_counted_once(
        self, files: list[Path], drop_remainder: bool
    ) -> None:
        """119 elements survive: 17 batches of 7; record 119, the last of the epoch, stands after them."""

        def skipping() -> Pipeline:
            options = {"drop_remainder": drop_remainder}
            transforms = [decode, FailAt(119)]
            return make(files, transforms, 7, options, shuffle_files=False, num_epochs=1, on_error="skip")

        pipeline = skipping()
        assert len(indices(pipeline)) == 17
        assert (pipeline.num_skipped, [skip.position for skip in pipeline.skipped]) == (1, [119])
        if not drop_remainder:
            resumed = skipping()
            resumed.set_state(pipeline.get_state())
            assert indices(resumed) == []
            assert resumed.num_skipped == 1
