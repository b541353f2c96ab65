"""Pipeline.scan: the batches of iteration in one compiled loop, and nothing changed where it cannot be completed."""

import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from datarax_ray import Pipeline, RaySource
from datarax_ray.read.errors import RecordError
from tests.data import AddNoise, DropThirds, FailAt, array_records, decode
from tests.resume import assert_equal, on_host

NOISY = (decode, AddNoise())


def source(files, transforms=NOISY, **config):
    return array_records(files, *(transforms or [None]), **config)


def make(of, batch_size=32, **options):
    return Pipeline(source=of, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


def same(batch):
    return batch


def add_keys(batch, keys):
    return batch | {"uniform": jax.vmap(jax.random.uniform)(keys)}


class Dropped(nnx.Module):
    """Dropout, after arithmetic that a compiler would like to fuse with what follows."""

    def __init__(self):
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(3))

    def __call__(self, batch):
        scaled = batch["values"].astype(jnp.float32) * 0.1 + batch["noise"][:, :1]
        return batch | {"dropped": self.dropout(scaled)}


STAGES = {"none": list, "random": lambda: [add_keys, Dropped()]}


def on_device(batches):
    """What iteration yields, without the fields that stay on the host."""
    return [{k: np.asarray(v) for k, v in batch.items() if isinstance(v, jax.Array)} for batch in batches]


def prefetching():
    return {thread for thread in threading.enumerate() if thread.name.startswith("datarax_ray-prefetch")}


def unstacked(outs):
    """The batches that were stacked."""
    length = len(jax.tree.leaves(outs)[0])
    return [jax.tree.map(lambda array, i=i: np.asarray(array[i]), outs) for i in range(length)]


class Model(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(5, 1, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(5, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(0.1, rngs=nnx.Rngs(1))

    def __call__(self, batch):
        return self.linear(self.dropout(self.norm(batch["values"].astype(jnp.float32))))[:, 0]


def train(model, optimizer, batch):
    def loss(model):
        return jnp.mean((model(batch) - batch["noise"][:, 0]) ** 2)

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


ADAM = optax.adam(1e-2)  # compared by identity: another one is another program


def learner():
    model = Model()
    return model, nnx.Optimizer(model, ADAM, wrt=nnx.Param)


def variables(modules):
    return [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf).tobytes()
        for leaf in jax.tree.leaves(nnx.state(modules))
    ]


class TestBatches:
    @pytest.mark.parametrize(("stages", "prefetch"), [("none", 0), ("random", 2)])
    def test_they_are_iterations_byte_for_byte_from_any_position(self, files, stages, prefetch):
        want = list(make(source(files), stages=STAGES[stages]()))
        pipeline = make(source(files), stages=STAGES[stages](), prefetch=prefetch)
        for before, length in ((0, 4), (1, 1), (2, 4)):
            pipeline.seek(0)
            got = [pipeline.step() for _ in range(before)]
            scanned = unstacked(pipeline.scan(same, length=length))
            rest = list(pipeline)
            assert_equal(on_device(got), on_device(want[:before]))
            assert_equal(scanned, on_device(want[before : before + length]))
            assert_equal([on_host(batch) for batch in rest], [on_host(b) for b in want[before + length :]])

    @pytest.mark.usefixtures("ray_local")
    def test_from_actors_they_are_the_same(self, files):
        want = on_device(make(source(files), stages=STAGES["random"]()))
        with make(RaySource(source(files), num_actors=2, num_cpus=0.5), stages=STAGES["random"]()) as pipeline:
            got = unstacked(pipeline.scan(same, length=3)) + unstacked(pipeline.scan(same, length=4))
            assert_equal(got + on_device(pipeline), want)

    @pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
    def test_over_a_mesh_they_are_laid_out_as_in_iteration(self, files, kind):
        sharding = NamedSharding(jax.make_mesh((2,), ("data",), axis_types=(kind,)), PartitionSpec("data"))
        options = {"stages": STAGES["random"](), "drop_remainder": True, "sharding": sharding}
        want = on_device(make(source(files), **options))  # laid out otherwise, XLA may round otherwise
        seen = []

        def look(batch):
            jax.debug.inspect_array_sharding(batch["values"], callback=lambda found: seen.append(found.spec))
            return batch

        assert_equal(unstacked(make(source(files), **options).scan(look, length=7)), want)
        assert set(seen) == {PartitionSpec("data")}

    def test_fields_that_stay_on_the_host_are_left_out(self, files):
        seen = []
        make(source(files)).scan(lambda batch: seen.append(sorted(batch)), length=2)
        assert seen == [["index", "noise", "values"]]
        with pytest.raises(ValueError, match="every field stays on the host"):
            make(source(files, [])).scan(same, length=1)

    def test_positions_beyond_32_bits(self, files: list[Path]) -> None:
        def pipeline() -> Pipeline:
            pipeline = make(source(files, num_epochs=-1), stages=[add_keys, Dropped()])
            pipeline.seek(2**40 - 40)
            return pipeline

        stepping = pipeline()
        assert_equal(unstacked(pipeline().scan(same, length=3)), on_device([stepping.step() for _ in range(3)]))

    def test_a_trainer_scans_over_its_rows(self, files: list[Path]) -> None:
        options = {"process_index": 1, "process_count": 2, "stages": [add_keys]}
        want = on_device(make(source(files), **options))
        got = make(source(files), **options).scan(same, length=7)
        assert got["values"].shape == (7, 16, 5)
        assert_equal(unstacked(got), want[:7])


class TestTraining:
    def test_it_is_a_loop_of_train_steps(self, files):
        stepping, looped = make(source(files)), learner()
        step = nnx.jit(train)
        want = []
        for batch in stepping:
            want.append(float(step(*looped, {key: batch[key] for key in ("values", "noise")})))
            if len(want) == 7:
                break
        scanning, scanned = make(source(files)), learner()
        got = [*scanning.scan(train, length=3, modules=scanned), *scanning.scan(train, length=4, modules=scanned)]
        np.testing.assert_allclose(got, want, rtol=1e-5)
        assert len({float(loss) for loss in got}) == 7
        assert int(scanned[1].step[...]) == 7
        for left, right in zip(jax.tree.leaves(nnx.state(scanned)), jax.tree.leaves(nnx.state(looped)), strict=True):
            if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
                left, right = jax.random.key_data(left), jax.random.key_data(right)
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)

    def test_a_carry_goes_from_step_to_step(self, files):
        def count(carry, batch):
            total = carry + batch["index"].sum()
            return total, total

        batches = on_device(make(source(files)))
        want = np.cumsum([batch["index"].sum() for batch in batches[:5]])
        carry, outs = make(source(files)).scan(count, length=5, init_carry=0)
        assert (int(carry), outs.tolist()) == (want[-1], want.tolist())

    def test_a_carry_comes_before_the_modules(self, files):
        def step(carry, model, optimizer, batch):
            return {"loss": carry["loss"] + train(model, optimizer, batch)}, None

        carry, outs = make(source(files)).scan(step, length=2, modules=learner(), init_carry={"loss": jnp.float32(0)})
        want = make(source(files)).scan(train, length=2, modules=learner())
        assert float(carry["loss"]) == pytest.approx(float(want.sum()))
        assert outs is None

    def test_a_stage_that_the_steps_would_change_is_refused(self, files):
        class Embed(nnx.Module):
            def __init__(self, linear):
                self.linear = linear

            def __call__(self, batch):
                return batch | {"embedded": self.linear(batch["noise"][:, :1])}

        linear, other = (nnx.Linear(1, 1, rngs=nnx.Rngs(0)) for _ in range(2))
        with make(source(files), stages=[Embed(linear)]) as pipeline:
            for module in (linear, Embed(linear)):
                with pytest.raises(ValueError, match=r"kernel.* with a stage.*call it in step_fn"):
                    pipeline.scan(lambda *modules_batch: 0, length=2, modules=(other, module))
            assert pipeline.position == 0
            pipeline.scan(lambda *modules_batch: 0, length=2, modules=(other,))
            assert pipeline.position == 64

    def test_a_step_that_gives_its_modules_another_structure_is_refused(self, files):
        def step(model, batch):
            model.seen = nnx.Variable(batch["index"])

        pipeline = make(source(files))
        with pytest.raises(ValueError, match="step_fn adds or removes variables of its modules"):
            pipeline.scan(step, length=2, modules=(Model(),))
        assert pipeline.position == 0


class TestState:
    def test_it_is_that_of_iteration(self, files):
        stepping, scanning = make(source(files), 50), make(source(files), 50)
        for _ in range(3):
            stepping.step()
        scanning.scan(same, length=3)
        assert scanning.get_state() == stepping.get_state()
        resumed = make(source(files), 50)
        resumed.set_state(scanning.get_state())
        assert_equal(unstacked(resumed.scan(same, length=1)), on_device([stepping.step()]))

    def test_skipped_records_are_counted_once(self, files: list[Path]) -> None:
        """One of the 120 fails; 7 * 17 survive, so that 17 batches tell of it."""

        def skipping() -> Pipeline:
            return make(source(files, [decode, FailAt(20)], num_epochs=1, shuffle_files=False, on_error="skip"), 7)

        pipeline = skipping()
        pipeline.scan(same, length=2)
        assert pipeline.num_skipped == 0
        pipeline.scan(same, length=15)
        assert (pipeline.num_skipped, [skip.position for skip in pipeline.skipped]) == (1, [20])


class TestCompiling:
    def test_a_second_scan_does_not_trace_again(self, files):
        steps, stages = [], []

        def stage(batch):
            stages.append(1)
            return batch

        def step(model, optimizer, batch):
            steps.append(1)
            return train(model, optimizer, batch)

        modules = learner()
        pipeline = make(source(files, num_epochs=-1), stages=[stage])
        pipeline.scan(step, length=2, modules=modules)
        assert (len(steps), len(stages)) == (1, 1)
        for _ in range(3):
            pipeline.scan(step, length=2, modules=modules)
        pipeline.seek(0)
        pipeline.scan(step, length=2, modules=learner())
        assert (len(steps), len(stages)) == (1, 1)
        pipeline.scan(step, length=3, modules=modules)
        assert len(steps) == 2

    def test_what_changes_in_a_stage_between_scans_is_seen(self, files):
        class Scaled(nnx.Module):
            def __init__(self):
                self.scale = nnx.Variable(jnp.float32(1))

            def __call__(self, batch):
                return {"x": batch["values"][:, 0] * self.scale[...]}

        stage = Scaled()
        pipeline = make(source(files, shuffle_files=False), 2, stages=[stage])
        assert pipeline.scan(same, length=2)["x"].tolist() == [[0, 1], [2, 3]]
        stage.scale.set_value(jnp.float32(10))
        assert pipeline.scan(same, length=2)["x"].tolist() == [[40, 50], [60, 70]]


class Interrupted:
    """A source with Ctrl-C in place of its fifth batch, once."""

    def __init__(self, of):
        self.of, self.is_due = of, True
        self.describe, self.skip_options = of.describe, of.skip_options

    def batches(self, start, options):
        for number, batch in enumerate(self.of.batches(start, options)):
            if number == 4 and self.is_due:
                self.is_due = False
                raise KeyboardInterrupt
            yield batch


class TestErrors:
    def test_an_error_of_the_source_is_that_error_and_nothing_has_changed(self, files):
        threads = prefetching()
        modules = learner()
        before = variables(modules)
        pipeline = make(source(files, [decode, AddNoise(), FailAt(85)], shuffle_files=False), 10, stages=[add_keys])
        pipeline.step()
        state = pipeline.get_state()
        for _ in range(2):
            with pytest.raises(RecordError, match=r"part-00003.array_record\[65\].*transform FailAt") as caught:
                pipeline.scan(train, length=9, modules=modules)
            assert caught.value.position == 85
            assert any(
                "at batch 7 of the 9 of this scan, which has changed neither" in n for n in caught.value.__notes__
            )
            assert pipeline.get_state() == state
            assert variables(modules) == before
            assert not prefetching() - threads
        whole = on_device(make(source(files, shuffle_files=False), 10, stages=[add_keys]))
        assert_equal(unstacked(pipeline.scan(same, length=7)), whole[1:8])
        assert pipeline.position == 80

    def test_an_interrupt_ends_the_loop_and_changes_nothing(self, files):
        pipeline = make(Interrupted(source(files)))
        with pytest.raises(KeyboardInterrupt) as caught:
            pipeline.scan(same, length=7)
        assert any("at batch 4 of the 7" in note for note in caught.value.__notes__)
        assert pipeline.position == 0
        assert_equal(unstacked(pipeline.scan(same, length=7)), on_device(make(source(files)))[:7])

    def test_an_error_of_the_step_changes_nothing(self, files):
        def step(batch):
            raise ZeroDivisionError("in the step")

        pipeline = make(source(files))
        with pytest.raises(ZeroDivisionError, match="in the step"):
            pipeline.scan(step, length=2)
        assert pipeline.position == 0
        pipeline.scan(same, length=2)

    def test_more_batches_than_are_left_are_refused_before_anything_is_read(self, files):
        pipeline = make(source(files, [decode, FailAt(0), FailAt(119)], num_epochs=1, shuffle_files=False), 50)
        message = (
            r"scan\(length=3\) needs 3 batches of 50 rows, and from position 0 to the end of the stream there are 2;"
        )
        with pytest.raises(ValueError, match=message):
            pipeline.scan(same, length=3)
        pipeline.seek(120)
        with pytest.raises(ValueError, match="from position 120 to the end of the stream there are 0"):
            pipeline.scan(same, length=1)

    def test_behind_filters_they_are_found_out_and_nothing_has_changed(self, files):
        modules = learner()
        before = variables(modules)
        pipeline = make(source(files, [decode, AddNoise(), DropThirds()]))
        pipeline.step()
        position = pipeline.position
        with pytest.raises(ValueError, match=rf"from position {position} to the end of the stream there are 4;"):
            pipeline.scan(train, length=6, modules=modules)
        assert pipeline.position == position
        assert variables(modules) == before
        pipeline.scan(train, length=4, modules=modules)
        assert [len(batch["index"]) for batch in pipeline] == []

    def test_without_a_cpu_device_it_is_refused_and_iteration_goes_on(self, files, monkeypatch):
        pipeline = make(source(files))

        def of_cuda_alone(backend):
            raise RuntimeError(f"Unknown backend {backend}. Available backends are ['cuda']")

        with monkeypatch.context() as there:
            there.setattr(jax, "local_devices", of_cuda_alone)
            with pytest.raises(RuntimeError, match="Set JAX_PLATFORMS=cpu,cpu .* or iterate"):
                pipeline.scan(same, length=2)
        assert pipeline.position == 0
        pipeline.step()
        pipeline.scan(same, length=2)

    @pytest.mark.parametrize("length", [0, -1])
    def test_a_length_below_one_is_refused(self, files, length):
        with pytest.raises(ValueError, match=f"length must be at least 1, got {length}"):
            make(source(files)).scan(same, length=length)


class Layered(nnx.Module):
    """Several variables, which an update sets one after the other."""

    def __init__(self):
        self.a, self.b, self.c = (nnx.Param(jnp.zeros(())) for _ in range(3))


@pytest.mark.parametrize(
    ("function", "event", "number", "is_done"),
    [
        (".check", "call", 1, False),
        (".commit", "call", 1, False),
        (".commit", "return", 2, True),  # of the consumer's, then of the feed's
        ("update", "call", 1, True),  # of modules: in some releases of Flax mappings of its own have another one
        (".update_from_state", "call", 1, True),
        (".update_from_state", "return", 2, True),
    ],
)
def test_an_interrupt_at_the_end_of_a_loop_leaves_modules_and_position_both_changed_or_neither(
    files, function, event, number, is_done
):
    pipeline, model, seen = make(source(files)), Layered(), []

    def add(model, batch):
        total = batch["index"].sum()
        model.a[...], model.b[...], model.c[...] = model.a + 1, model.b + total, model.c + 2
        return total

    pipeline.scan(add, length=2, modules=(model,))  # compiled before
    position = pipeline.position
    target = {Path(nnx.__file__).parent.name, "consumer", "scan"}

    def interrupt(frame, what, _):
        path = Path(frame.f_code.co_filename)
        name = frame.f_code.co_qualname
        is_it = name.endswith(function) if function.startswith(".") else name == function
        if is_it and what == event and (path.stem in target or target & set(path.parts)):
            seen.append(path)
            if len(seen) == number:
                raise KeyboardInterrupt
        return interrupt

    was = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            pipeline.scan(add, length=2, modules=(model,))
    finally:
        sys.settrace(was)
    assert (pipeline.position > position) is is_done
    want = make(source(files))
    same = Layered()
    for _ in range(1 + is_done):
        want.scan(add, length=2, modules=(same,))
    assert jax.tree.map(float, nnx.to_pure_dict(nnx.state(model))) == jax.tree.map(
        float, nnx.to_pure_dict(nnx.state(same))
    )
    assert pipeline.position == want.position
