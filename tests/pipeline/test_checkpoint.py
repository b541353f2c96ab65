"""Checkpoints through Orbax: with the model in one step, async, after every batch, refused when they do not fit."""

import hashlib
import json
from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from datarax_ray import Pipeline, RaySource
from datarax_ray.checkpoint import PipelineRestore, PipelineSave, restore_pipeline, save_pipeline
from datarax_ray.plan.fingerprint import DriftError
from tests.data import AddNoise, DropThirds, array_records, decode
from tests.resume import assert_equal, on_host


def source(files, **config):
    return array_records(files, decode, AddNoise(), DropThirds(), **{"num_epochs": 3} | config)


def pipeline(of, batch_size=30):
    return Pipeline(source=of, batch_size=batch_size, rngs=nnx.Rngs(0))


@pytest.mark.usefixtures("ray_local")
def test_saved_after_every_batch_beside_the_model_any_step_restores_with_other_actors(files, tmp_path):
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
    want = [on_host(batch) for batch in pipeline(source(files))]
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        with pipeline(RaySource(source(files), num_actors=2, num_cpus=0.5)) as saving:
            for step, _ in enumerate(saving):
                model = ocp.args.StandardSave({"w": jnp.full(3, step)})
                manager.save(step, args=ocp.args.Composite(model=model, data=PipelineSave(saving)))
        manager.wait_until_finished()
        assert manager.all_steps() == list(range(len(want)))
        pools = [RaySource(source(files), num_actors=1, num_cpus=0.5), source(files)]
        for step in manager.all_steps():
            resumed = pipeline(pools[step % 2])
            args = ocp.args.Composite(
                model=ocp.args.StandardRestore({"w": jnp.zeros(3)}), data=PipelineRestore(resumed)
            )
            restored = manager.restore(step, args=args)
            assert restored.model["w"].tolist() == [step] * 3
            assert restored.data is resumed
            assert_equal([on_host(batch) for batch in resumed], want[step + 1 :])
        for pool in pools:
            pool.close()
    saved = list((tmp_path / "run").glob("*/data/*.json"))
    sizes = {path.parent.parent.name: path.stat().st_size for path in saved if path.name == "datarax_ray.json"}
    assert len(sizes) == len(want)
    assert max(sizes.values()) < 4096


def test_the_state_is_that_of_the_call_to_save_though_writing_is_later(files, tmp_path):
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
    going = pipeline(source(files))
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        going.step()
        position = going.position
        model = ocp.args.StandardSave({"w": jnp.zeros(500_000)})
        manager.save(0, args=ocp.args.Composite(model=model, data=PipelineSave(going)))
        going.step()
        manager.wait_until_finished()
    (saved,) = (tmp_path / "run").glob("0/data/datarax_ray.json")
    assert json.loads(saved.read_text())["position"] == position


def test_only_the_data_in_one_line(files, tmp_path):
    going = pipeline(source(files))
    going.step()
    save_pipeline(tmp_path / "data", going)
    want = [on_host(batch) for batch in going]
    resumed = pipeline(source(files))
    restore_pipeline(tmp_path / "data", resumed)
    assert_equal([on_host(batch) for batch in resumed], want)


def test_it_is_json_for_people(files, tmp_path):
    save_pipeline(tmp_path / "data", pipeline(source(files)))
    state = json.loads((tmp_path / "data" / "datarax_ray.json").read_text())
    assert state["version"] == 1
    assert state["position"] == 0
    assert state["settings"]["order"] == {"shuffle": "global", "seed": 42, "num_epochs": 3, "rounds": 8}
    assert state["settings"]["transforms"]["names"] == ["decode", "AddNoise", "DropThirds"]


def test_another_stream_is_refused_unless_it_is_meant(files, tmp_path):
    save_pipeline(tmp_path / "data", pipeline(source(files)))
    with pytest.raises(DriftError, match=r"order.num_epochs: the checkpoint was written with 3, this pipeline has 5"):
        restore_pipeline(tmp_path / "data", pipeline(source(files, num_epochs=5)))
    longer = pipeline(source(files, num_epochs=5))
    restore_pipeline(tmp_path / "data", longer, allow_drift=["order.num_epochs"])
    assert longer.position == 0


def with_checksum(**state):
    text = json.dumps(state, sort_keys=True, separators=(",", ":"))
    return json.dumps(state | {"checksum": hashlib.sha256(text.encode()).hexdigest()[:16]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON .* restore an earlier step"),
        ("[1]", "holds a list, a saved pipeline is an object"),
        ("{}", "it has no version"),
        ('{"version": 99}', "has version 99, this release reads version 1"),
        ("{" + " " * 2**24 + "}", "has 16,777,218 bytes; a saved pipeline has at most 16,777,216"),
        (with_checksum(version=1, position=1.5, settings={}), "position must be an integer"),
        (with_checksum(version=2, position=1.5, settings={}).replace("2", "3"), "has version 3, this release reads"),
        ('{"version": 1, "position": 1.5, "settings": {}}', "datarax_ray.json has no checksum: it is damaged"),
        (with_checksum(version=1, position=15).replace("15", "16"), "is not what its checksum says: .* was edited"),
        ('{"version": 1, "version": 1, "checksum": 0}', "is not what its checksum says"),
        ('{"version": NaN}', "the state has version nan, this release"),
        ('{"version": ' + "1" * 5000 + "}", "is no JSON .Exceeds the limit"),
        ("[" * 100_000, "is no JSON .maximum recursion depth"),
        ("\xff", "is no JSON"),
    ],
)
def test_damaged_files_are_refused_with_their_reason(files, tmp_path, text, message):
    target = pipeline(source(files))
    save_pipeline(tmp_path / "data", target)
    (tmp_path / "data" / "datarax_ray.json").write_text(text, encoding="latin-1")
    target.seek(5)
    with pytest.raises(ValueError, match=message) as caught:
        restore_pipeline(tmp_path / "data", target)
    assert "datarax_ray.json" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert target.position == 5


def test_no_checkpoint_is_said_with_the_path(files, tmp_path):
    save_pipeline(tmp_path / "data", pipeline(source(files)))
    (tmp_path / "data" / "datarax_ray.json").unlink()
    with pytest.raises(FileNotFoundError, match="datarax_ray.json: there is no saved pipeline here"):
        restore_pipeline(tmp_path / "data", pipeline(source(files)))


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        (7, "the state's statistics must count skipped records, got 7"),
        ({"num_skipped": "many"}, "got {'num_skipped': 'many'}"),
        ({"num_skipped": -1}, "got {'num_skipped': -1}"),
        ({"num_skipped": True}, "got {'num_skipped': True}"),
    ],
)
def test_a_refused_state_leaves_the_pipeline_where_it_was(files, statistics, message):
    target = pipeline(source(files))
    target.step()
    position = target.position
    with pytest.raises(ValueError, match=message):
        target.set_state(target.get_state() | {"position": 0, "statistics": statistics})
    assert target.position == position


def test_restored_without_a_pipeline_it_is_the_state_itself(files, tmp_path):
    going = pipeline(source(files))
    going.step()
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, args=ocp.args.Composite(data=PipelineSave(going)))
        manager.wait_until_finished()
        assert manager.restore(0).data == going.get_state()
        assert manager.item_metadata(0).data == going.get_state()
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        state = manager.restore(0, args=ocp.args.Composite(data=PipelineRestore())).data
        resumed = pipeline(source(files))
        resumed.set_state(state)
        assert_equal([on_host(batch) for batch in resumed], [on_host(batch) for batch in going])


@pytest.mark.parametrize("kind", [PipelineSave, PipelineRestore])
def test_a_state_in_the_place_of_the_pipeline_is_told_at_once(kind):
    with pytest.raises(TypeError, match="take the pipeline itself, got dict"):
        kind({"version": 1})


def test_none_for_a_state_is_refused_and_does_not_begin_anew(files: list[Path]) -> None:
    """As a dict of a program's own gives that has none: nobody would see that all data comes again."""
    target = pipeline(source(files))
    target.step()
    position = target.position
    with pytest.raises(TypeError, match=r"a state is a dict, got None; to begin anew call seek\(0\)"):
        target.set_state({}.get("data"))
    assert target.position == position
