"""The loader by hand: its face, its states, its errors; with Ray, and through Orbax."""

import json

import grain.python as grain
import numpy as np
import orbax.checkpoint as ocp
import pytest
import ray

import datarax_ray.grain as ours
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.state import written
from datarax_ray.read.errors import RecordError
from tests.data import loaded_modules, write_files
from tests.grain_transforms import (
    Backwards,
    FailOn,
    Keep,
    Letters,
    Noise,
    Repeat,
    Stuck,
    StuckMap,
    Tree,
    Visited,
    WithIndex,
    as_list,
    assert_same,
)

NUMBERS = grain.RangeDataSource(0, 10, 1)


def numbers(operations=(), *, num_epochs=1, **arguments):
    return ours.DataLoader(**arguments_of(operations, num_epochs=num_epochs, **arguments))


def arguments_of(operations, count=10, *, shard=None, shuffle=False, num_epochs=1, seed=0, **more):
    sampler = grain.IndexSampler(count, shard or grain.NoSharding(), shuffle, num_epochs, seed)
    return {"data_source": grain.RangeDataSource(0, count, 1), "sampler": sampler, "operations": operations} | more


class TestFace:
    @pytest.mark.parametrize(
        ("name", "said"),
        [("worker_cout", r"Did you mean 'worker_count'\?"), ("batch_size", "It takes data_source, sampler")],
    )
    def test_an_argument_of_another_name_is_told_which_is_meant(self, name, said):
        with pytest.raises(TypeError, match=f"DataLoader takes no argument '{name}'.* {said}"):
            numbers(**{name: 2})

    def test_one_changed_import_is_enough_in_every_way_to_write_it(self):
        import datarax_ray.grain.python as ours_python
        from datarax_ray.grain.python import DataLoader

        assert ours.python is ours_python
        assert DataLoader is ours_python.DataLoader is ours.DataLoader is not grain.DataLoader
        assert ours.python.load is ours.load
        assert ours.python.PyGrainDatasetIterator is ours.PyGrainDatasetIterator is ours.DataLoaderIterator
        assert issubclass(ours.DataLoaderIterator, grain.PyGrainDatasetIterator)
        assert ours.IndexSampler is ours.python.IndexSampler is grain.IndexSampler
        assert ours.MapTransform is grain.MapTransform
        assert ours.checkpoint.CheckpointSave is grain.PyGrainCheckpointSave
        assert {"load", "DataLoader", "ReadOptions", "IndexSampler"} <= set(dir(ours)) & set(dir(ours.python))
        with pytest.raises(AttributeError, match="has an attribute 'Loader'"):
            _ = ours.Loader

    def test_no_name_of_grains_is_silently_grains_own_loader(self):
        own = [grain.DataLoader, grain.load, grain.PyGrainDatasetIterator]
        for module in (ours, ours.python):
            assert [name for name in dir(module) if any(getattr(module, name) is value for value in own)] == []

    def test_load_is_grains_load(self):
        arguments = {
            "num_epochs": 2,
            "shuffle": True,
            "seed": 5,
            "transformations": [Noise(1.0)],
            "batch_size": 4,
            "drop_remainder": True,
            "shard_options": grain.ShardOptions(1, 2),
        }
        assert_same(list(ours.load(NUMBERS, **arguments)), list(grain.load(NUMBERS, **arguments)))
        assert_same(list(ours.load(NUMBERS, num_epochs=1)), list(range(10)))

    def test_map_with_index_gets_the_samplers_index(self):
        sampler = grain.IndexSampler(10, grain.ShardOptions(1, 2), False, 1)
        loader = numbers([WithIndex(), grain.Batch(2, batch_fn=as_list), WithIndex()], sampler=sampler)
        assert next(iter(loader)) == (3, {"values": [(1, 5), (3, 6)], "count": 2})

    def test_operations_of_the_old_kind_are_taken(self):
        operations = [
            grain.MapOperation(lambda x: x + 1),
            grain.FilterOperation(lambda x: x % 2),
            grain.RandomMapOperation(lambda x, rng: x + rng.integers(2)),
            grain.BatchOperation(2),
        ]
        arguments = arguments_of(operations, seed=3)
        assert_same(list(ours.DataLoader(**arguments)), list(grain.DataLoader(**arguments)))

    def test_what_is_no_operation_is_refused(self):
        with pytest.raises(TypeError, match="operation 1 .* has no state that can be saved.* write a Map"):
            numbers([Keep(2), lambda records: records])
        with pytest.raises(TypeError, match="operation 0 is the class Tree; pass an instance"):
            numbers([Tree])
        with pytest.raises(ValueError, match="batch_size must be positive, got 0 in operation 0"):
            numbers([grain.Batch(0)])

    def test_arguments_out_of_range_are_refused(self):
        with pytest.raises(ValueError, match="worker_count must be at least 0, .* got -1"):
            numbers(worker_count=-1)
        with pytest.raises(ValueError, match="worker_buffer_size must be at least 0, got -1"):
            numbers(worker_buffer_size=-1)
        with pytest.raises(ValueError, match="no shard_options were given, and Backwards brings none"):
            numbers(sampler=Backwards(10))

    def test_transforms_run_as_their_results_are_asked_for(self):
        seen = []
        operations = [grain.MapOperation(lambda x: seen.append(x) or x), grain.Batch(3)]
        next(iter(numbers(operations)))
        assert seen == [0, 1, 2]

    def test_a_source_is_entered_read_in_lists_and_left(self):
        letters = Letters(30)
        arguments = {"sampler": grain.SequentialSampler(30, grain.NoSharding())}
        with numbers(data_source=letters, read_options=grain.ReadOptions(2, 7), **arguments) as loader:
            assert list(loader)[24:28] == ["y", "z", "aa", "bb"]
            assert letters.is_open
            assert max(map(len, letters.calls)) == 7
        assert not letters.is_open
        with pytest.raises(RuntimeError, match="this DataLoader is closed; make a new one"):
            next(iter(loader))
        assert loader.stats() == {}

    def test_what_pickle_refuses_runs_in_this_process_as_in_grain(self):
        operations = [StuckMap(5), grain.Batch(4)]
        arguments = arguments_of(operations, shuffle=True, seed=3, data_source=Stuck(10))
        loader = ours.DataLoader(**arguments)
        want = list(grain.DataLoader(**arguments))
        assert_same(list(loader), want)
        state = iter(loader).get_state()
        resumed = iter(ours.DataLoader(**arguments))
        resumed.set_state(state)
        assert_same(list(resumed), want)

    def test_closing_ends_the_iterators_that_are_open_and_their_states_go_on_in_another(self):
        letters = Letters(30)
        loader = numbers(data_source=letters, sampler=grain.SequentialSampler(30, grain.NoSharding()))
        going, ended = iter(loader), iter(loader)
        assert len(list(ended)) == 30
        assert [next(going), next(going)] == ["a", "b"]
        loader.close()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="this DataLoader is closed; make a new one"):
                next(going)
            with pytest.raises(RuntimeError, match="this DataLoader is closed"):
                going.start_prefetch()
        assert not letters.is_open
        assert list(ended) == []
        again = iter(numbers(data_source=Letters(30), sampler=grain.SequentialSampler(30, grain.NoSharding())))
        again.set_state(going.get_state())
        assert next(again) == "c"

    def test_array_records_are_grains(self, tmp_path):
        source = grain.ArrayRecordDataSource([str(path) for path in write_files(tmp_path, (7, 13))])
        batch = [grain.Batch(3, batch_fn=as_list)]
        arguments = arguments_of(batch, 20, shuffle=True, num_epochs=2, seed=1, data_source=source)
        assert_same(list(ours.DataLoader(**arguments)), list(grain.DataLoader(**arguments)))


class TestState:
    def test_it_is_small_json_and_does_not_name_the_actors(self):
        iterator = iter(numbers([grain.Batch(4)], num_epochs=None))
        for _ in range(3):
            next(iterator)
        state = json.loads(iterator.get_state())
        assert state["position"] == 12
        assert state["settings"]["order"]["seed"] == 0
        assert "worker" not in json.dumps(state)
        assert len(iterator.get_state()) < 4096

    def test_in_the_middle_of_a_flat_map_before_and_after_a_batch(self):
        operations = [Repeat(), grain.Batch(3), Repeat(), grain.Batch(2), Repeat()]
        loader = numbers(operations, num_epochs=3)
        iterator = iter(loader)
        states, whole = [iterator.get_state()], []
        for output in iterator:
            whole.append(output)
            states.append(iterator.get_state())
        assert len(whole) > 10
        assert any(json.loads(state).get("rest") for state in states)
        for number, state in enumerate(states):
            resumed = iter(loader)
            resumed.set_state(state)
            assert_same(list(resumed), whole[number:])

    @pytest.mark.parametrize(
        ("arguments", "setting"),
        [
            ({"sampler": grain.IndexSampler(10, grain.NoSharding(), False, 1, 1)}, "order.seed: .* with 0, .* has 1"),
            ({"num_epochs": 2}, "order.num_epochs: .* with 1, .* has 2"),
            ({"sampler": grain.SequentialSampler(10, grain.NoSharding(), 0)}, "order.sampler: .*'IndexSampler', .*"),
            ({"shard_options": grain.ShardOptions(0, 2)}, "order.shard_count: .* with 1, .* has 2"),
            ({"data_source": grain.RangeDataSource(1, 11, 1)}, "files.repr: .*start=0.*start=1"),
            ({"operations": [Keep(3), grain.Batch(2)]}, "batch_size: .* with 3, .* has 2"),
            ({"operations": [Keep(3), grain.Batch(3, drop_remainder=True)]}, "drop_remainder: .*False, .* True"),
        ],
    )
    def test_another_stream_is_refused(self, arguments, setting):
        state = iter(numbers([Keep(3), grain.Batch(3)])).get_state()
        other = iter(numbers(**({"operations": [Keep(3), grain.Batch(3)]} | arguments)))
        with pytest.raises(DriftError, match=setting):
            other.set_state(state)

    def test_a_change_that_is_meant_is_named(self):
        iterator = iter(numbers([grain.Batch(3)]))
        next(iterator)
        other = iter(numbers([grain.Batch(4)]))
        other.set_state(iterator.get_state(), allow_drift=("batch_size",))
        assert next(other).tolist() == [3, 4, 5, 6]

    def test_a_sampler_of_ones_own_is_known_by_its_length(self):
        def at(sampler):
            return iter(numbers(sampler=sampler, shard_options=grain.NoSharding()))

        state = at(Backwards(10)).get_state()
        at(Backwards(10)).set_state(state)  # another object, which Grain refuses
        with pytest.raises(DriftError, match="order.num_positions"):
            at(Backwards(9)).set_state(state)

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            (b"\xff", "the state is no JSON"),
            (b"{}", "this is no state of a stream"),
            (b'{"parent": {"next_index": 3}, "next_index_in_buffer": 1}', "written by grain.DataLoader"),
            (b'{"version": 2, "last_seen_indices": {"0": 3}}', "written by grain.DataLoader, and is not read here"),
        ],
    )
    def test_what_is_no_state_is_refused(self, state, message):
        with pytest.raises(ValueError, match=message):
            iter(numbers()).set_state(state)

    def test_offsets_that_do_not_fit_are_refused(self):
        state = json.loads(iter(numbers([Repeat(), grain.Batch(1), Repeat()])).get_state())
        other = written(state["position"], {"offsets": [1]}, state["settings"])
        with pytest.raises(ValueError, match="1 offsets in its position, these operations have 2"):
            iter(numbers([Repeat(), grain.Batch(1), Repeat()])).set_state(json.dumps(other).encode())

    def test_iterators_of_one_loader_are_apart(self):
        loader = numbers()
        first, second = iter(loader), iter(loader)
        assert [next(first), next(first), next(second)] == [0, 1, 0]


class TestErrors:
    def test_it_names_operation_record_and_position_after_everything_before_it(self):
        sampler = grain.IndexSampler(10, grain.NoSharding(), True, 1, 0)
        order = [int(x) for x in grain.DataLoader(data_source=NUMBERS, sampler=sampler)]
        loader = numbers([Noise(1.0), FailOn(order[4])], sampler=sampler)
        iterator = iter(loader)
        assert [next(iterator)[0] for _ in range(4)] == order[:4]
        message = rf"position 4.*: operation 1 \(FailOn\) raised ZeroDivisionError: cannot divide {order[4]}"
        for _ in range(2):  # the state has not moved, so it comes again
            with pytest.raises(RecordError, match=message):
                next(iterator)

    def test_of_a_batch_it_names_the_positions(self):
        iterator = iter(numbers([grain.Batch(3), FailOn(4)]))
        next(iterator)
        with pytest.raises(RecordError, match=r"positions 3 to 5 .*operation 1 \(FailOn\) raised ZeroDivisionError"):
            next(iterator)

    def test_elements_that_do_not_stack_are_grains_error_with_their_place(self):
        operations = [grain.MapOperation(lambda x: np.zeros(x)), grain.Batch(4)]
        with pytest.raises(RecordError, match=r"positions 0 to 3.*Batch of 4\) raised ValueError: Expected all input"):
            next(iter(numbers(operations)))

    def test_a_record_that_cannot_be_read_is_named(self):
        class Torn(Letters):
            def __getitems__(self, indices):
                if 6 in indices:
                    raise OSError("disk gone")
                return super().__getitems__(indices)

        iterator = iter(numbers(data_source=Torn(10)))
        assert [next(iterator) for _ in range(6)] == list("abcdef")
        with pytest.raises(RecordError, match=r"\[6\] \(position 6\): reading raised OSError: disk gone"):
            next(iterator)

    def test_a_sampler_that_raises_is_named(self):
        class Short(Backwards):
            def __len__(self):
                return self.num_records + 1

        iterator = iter(numbers(sampler=Short(10), shard_options=grain.NoSharding()))
        assert [next(iterator) for _ in range(10)] == list(range(10))[::-1]
        with pytest.raises(RecordError, match=r"Short\[10\] \(position 10\): the sampler raised IndexError: 10"):
            next(iterator)

    def test_filters_that_drop_everything_say_so(self, caplog):
        assert list(numbers([grain.FilterOperation(lambda x: False)], num_epochs=3)) == []
        assert "no output of the 30 positions up to 30" in caplog.text


@pytest.mark.usefixtures("ray_local")
class TestActors:
    @pytest.mark.parametrize(
        "operations",
        [
            pytest.param([Tree(), Noise(1.0), Keep(3), grain.Batch(7)], marks=pytest.mark.slow),
            pytest.param([Noise(1.0), Repeat(), Tree()], marks=pytest.mark.slow),
            [Noise(2.0), grain.Batch(3), Noise(1.0), Repeat(), grain.Batch(2, batch_fn=as_list)],
        ],
    )
    def test_any_number_gives_grains_outputs_and_resumes(self, operations):
        shard = grain.ShardOptions(1, 2)
        arguments = arguments_of(operations, 300, shard=shard, shuffle=True, num_epochs=2, seed=9)
        want = list(grain.DataLoader(**arguments))
        state = iter(ours.DataLoader(**arguments)).get_state()
        for number, worker_count in enumerate((1, 2)):
            with ours.DataLoader(**arguments, worker_count=worker_count, ray_options={"num_cpus": 0.5}) as loader:
                resumed = iter(loader)
                resumed.set_state(state)
                at, to = (len(want) * part // 2 for part in (number, number + 1))
                assert_same([next(resumed) for _ in range(to - at)], want[at:to])
                state = resumed.get_state()
                assert_same(list(loader), want)
                assert sorted(loader.stats()) == list(range(worker_count))
        resumed = iter(ours.DataLoader(**arguments))
        resumed.set_state(state)
        assert_same(list(resumed), want[len(want) :])

    def test_grains_orbax_handler_saves_and_restores_with_another_number(self, tmp_path):
        operations = [Noise(1.0), Repeat(), grain.Batch(4)]
        whole = list(numbers(operations, num_epochs=2))
        model = {"w": np.arange(3)}
        with ocp.CheckpointManager(tmp_path) as manager, numbers(operations, num_epochs=2, worker_count=1) as loader:
            iterator = iter(loader)
            for step in range(len(whole)):
                args = {"model": ocp.args.StandardSave(model), "data": ours.checkpoint.CheckpointSave(iterator)}
                manager.save(step, args=ocp.args.Composite(**args))
                assert_same(next(iterator), whole[step])
            manager.wait_until_finished()
            with numbers(operations, num_epochs=2, worker_count=2, ray_options={"num_cpus": 0.5}) as more:
                for step in range(0, len(whole), 2):
                    restored = iter(more if step % 4 == 0 else numbers(operations, num_epochs=2))
                    args = {"data": ours.checkpoint.CheckpointRestore(restored)}
                    assert manager.restore(step, args=ocp.args.Composite(**args))["data"] is restored
                    assert_same(list(restored), whole[step:])

    def test_actors_load_no_jax_where_the_operations_do_not(self):
        operations = [grain.MapOperation(float), grain.Batch(4)]
        arguments = arguments_of(operations, 20, shuffle=True, data_source=list(range(20)))
        with ours.DataLoader(**arguments, worker_count=1) as loader:
            assert len(list(loader)) == 5
            handle = loader._source._actors._set.actors[0].handle
            assert not {"jax", "grain"} & set(ray.get(handle.__ray_call__.remote(loaded_modules)))

    def test_the_source_is_entered_and_left_in_every_actor(self, tmp_path):
        with numbers(data_source=Visited(10, tmp_path), worker_count=2) as loader:
            assert list(loader) == list(range(10))
            pids = {actor["pid"] for actor in loader.stats().values()}
        assert loader.stats() == {}
        calls = {int(path.name): path.read_text().split() for path in tmp_path.iterdir()}
        assert pids & calls.keys()  # ten elements may all have come from one of them
        assert set(map(tuple, calls.values())) == {("entered", "left")}

    def test_a_transforms_error_arrives_from_an_actor_after_everything_before_it(self):
        with numbers([Noise(1.0), FailOn(6), grain.Batch(1)], worker_count=2) as loader:
            iterator = iter(loader)
            assert [int(next(iterator)[0][0]) for _ in range(6)] == list(range(6))
            said = r"\[6\] \(position 6\): operation 1 \(FailOn\) raised Zero"
            with pytest.raises(RecordError, match=said) as caught:
                next(iterator)
            assert any("in reader actor" in note for note in caught.value.__notes__)
