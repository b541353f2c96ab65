"""The rolling digest in the state: one at the end, however often, by whomever and from wherever it was gone on from."""

import json
import logging
import os
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax_ray import Pipeline
from datarax_ray.checkpoint import PipelineRestore, PipelineSave
from datarax_ray.pipeline.checkpoint import check_trainers
from datarax_ray.plan.evidence import RollingDigest, added
from tests.data import AddNoise
from tests.feed.test_digests import STREAMS, mixture, source_of
from tests.ports import free_port
from tests.programs import ROOT, Program, to_their_ends


def pipeline(source, batch_size=12, digest=True, **options):
    return Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0), digest=digest, **options)


def states(made):
    return [json.dumps(made.get_state()), *(json.dumps(made.get_state()) for _ in made)]


def without_evidence(saved):
    """A pipeline that went on from a state has evidence from there on alone."""
    return [{name: value for name, value in json.loads(each).items() if name != "evidence"} for each in saved]


def digest_in(state):
    return (json.loads(state) if isinstance(state, str) else state)["digest"]


@pytest.mark.parametrize("stream", STREAMS)
def test_resumed_at_every_batch_it_ends_as_the_same(stream):
    want = states(pipeline(STREAMS[stream]()))
    assert len({digest_in(state)["sum"] for state in want}) >= len(want) - 1  # the last state may add nothing
    assert digest_in(want[0]) == {"sum": "0" * 16, "since": [0, 0]}
    for number in range(0, len(want), 7):
        resumed = pipeline(STREAMS[stream]())
        resumed.set_state(json.loads(want[number]))
        assert without_evidence(states(resumed)) == without_evidence(want[number:])


def test_batch_size_padding_and_prefetch_are_nothing_of_it():
    last = digest_in(states(pipeline(mixture()))[-1])
    for options in ({"batch_size": 1}, {"batch_size": 31, "pad_remainder": True}, {"batch_size": 400}, {"prefetch": 0}):
        assert digest_in(states(pipeline(mixture(), **options))[-1]) == last


def test_what_is_dropped_at_the_end_was_not_consumed():
    made = pipeline(mixture(), 31, drop_remainder=True)
    saved = states(made)
    assert digest_in(made.get_state()) == digest_in(saved[-1])
    assert digest_in(saved[-1]) == digest_in(states(pipeline(mixture(), 31))[len(saved) - 1])


def test_a_scan_and_steps_give_the_same():
    made, other = pipeline(source_of()), pipeline(source_of())
    made.scan(lambda carry, batch: (carry + batch["index"].sum(), 0), length=3, init_carry=0)
    for _ in range(3):
        other.step()
    assert made.get_state() == other.get_state()


def test_it_begins_anew_where_a_person_seeks_or_a_state_has_none(caplog):
    made = pipeline(source_of())
    made.step()
    made.seek(24)
    assert digest_in(made.get_state()) == {"sum": "0" * 16, "since": [24, 0]}
    old = pipeline(source_of(), digest=False)
    old.step()
    assert "digest" not in old.get_state()
    made.set_state(old.get_state())
    assert digest_in(made.get_state()) == {"sum": "0" * 16, "since": [12, 0]}
    made.step()
    assert not caplog.records
    old.set_state(made.get_state())
    assert "digest" not in old.get_state()
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "the digest in the state ends here: this Pipeline has no digest=True"
    ]


def test_a_damaged_one_is_refused_and_nothing_moves():
    made = pipeline(source_of())
    made.step()
    state = made.get_state()
    with pytest.raises(ValueError, match=r"the state's digest cannot be read: 'abc'; the state is damaged"):
        made.set_state(state | {"digest": "abc"})
    assert made.get_state() == state


def worker(rank, count, port, directory, number):
    """Goes on from step `number` of the run, two batches, each saved by all processes."""
    import jax

    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)
    sharding = None
    if count == 2:  # of the four parts of the rows each process has three, two of which both have
        mesh = Mesh(np.array(jax.devices())[[0, 3, 5, 2, 7, 4, 1, 6]].reshape(4, 2), ("data", "model"))
        sharding = NamedSharding(mesh, P("data"))
    made = pipeline(source_of(AddNoise(), seed=5), sharding=sharding)
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=number > 0)
    with ocp.CheckpointManager(Path(directory), options=options) as manager:
        if number:
            manager.restore(number, args=ocp.args.Composite(data=PipelineRestore(made)))
        for step in (number + 1, number + 2):
            made.step()
            other = pipeline(source_of(AddNoise(), seed=rank))
            for _ in range(2 * (count > 1)):  # in every process, and as often as one likes: nothing is written
                with pytest.raises(ValueError, match=r"(?s)reads another stream than trainer 0.*order\.seed"):
                    manager.save(step, args=ocp.args.Composite(data=PipelineSave(other)))
            manager.save(step, args=ocp.args.Composite(data=PipelineSave(made)))
        manager.wait_until_finished()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("other", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_of_a_jax_job_save_what_one_would_and_another_number_goes_on(tmp_path, other):
    want = states(pipeline(source_of(AddNoise(), seed=5)))
    for number, count in ((0, 2), (2, other)):
        if count == 1:  # this process
            worker(0, 1, 0, str(tmp_path / "run"), number)
            continue
        port = free_port()
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={4 if count == 2 else 1}"
        env = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": ROOT}
        given = [(rank, count, port, str(tmp_path / "run"), number) for rank in range(count)]
        commands = [("-c", f"from tests.pipeline.test_digest import worker; worker(*{each})") for each in given]
        to_their_ends([Program(command, env) for command in commands])
    for step in (1, 2, 3, 4):
        (saved,) = (tmp_path / "run" / str(step) / "data").glob("*.json")
        state = json.loads(saved.read_text())
        assert state.pop("checksum")
        assert without_evidence([json.dumps(state)]) == without_evidence([want[step]]), step


def test_trainers_that_read_two_streams_or_stand_at_two_steps_are_told():
    def state(seed, num_steps, rank=0, **options):
        made = pipeline(source_of(AddNoise(), seed=seed), process_index=rank, process_count=3, **options)
        for _ in range(num_steps):
            made.step()
        return made.get_state()

    same = [state(5, 2, rank) for rank in range(3)]
    check_trainers(same)
    assert len({json.dumps(each) for each in same}) == 3, "the digests are of their own rows"
    with pytest.raises(
        ValueError,
        match=r"(?s)trainer 2 reads another stream.*Trainer 0 and trainer 2 have:\n  order\.seed: 5 and 6\nMake the same",  # noqa: E501
    ):
        check_trainers([*same[:2], state(6, 2)])
    with pytest.raises(ValueError, match=r"(?s)trainer 1 reads another stream.*batch_size: 12 and 24\nMake the same"):
        check_trainers([same[0], state(5, 1, batch_size=24)])
    with pytest.raises(ValueError, match="trainer 1 stands at position 36, and trainer 0 at 24"):
        check_trainers([same[0], state(5, 3)])

    def amended(stop, why):
        made = pipeline(source_of())
        made.amend(skip=[(3, stop)], why=why)
        return made.get_state()

    check_trainers([amended(5, "a spike"), amended(5, "on host 1")])
    with pytest.raises(ValueError, match="trainer 1 amended the stream by .* so nothing is saved"):
        check_trainers([amended(5, ""), amended(6, "")])


def test_what_it_was_is_made_once_more_from_a_state():
    made = pipeline(source_of(AddNoise()))
    made.seek(5)
    saved = [made.get_state(), *(made.get_state() for _ in made)]
    position = made.position
    again = pipeline(source_of(AddNoise()), digest=False)
    found = list(again.digests(saved[3]))
    assert found[: len(saved)] == [(state["position"], 0, state["digest"]["sum"]) for state in saved][: len(found)]
    assert (again.position, made.position) == (0, position)
    with pytest.raises(ValueError, match=r"the state has no digest of all rows; Pipeline\(digest=True\) keeps one"):
        next(again.digests(again.get_state()))
    assert np.unique([digest for *_, digest in found]).size == len(found)


def test_other_numbers_of_trainers_go_on_from_what_they_add_up_to() -> None:
    """1, 3, 2, 4, 1 trainers, each for two batches."""

    def trainer(rank: int, count: int) -> Pipeline:
        return pipeline(source_of(AddNoise(), seed=5), process_index=rank, process_count=count)

    want = states(trainer(0, 1))
    state, number = json.loads(want[0]), 0
    for count in (1, 3, 2, 4, 1):
        made = [trainer(rank, count) for rank in range(count)]
        for each in made:
            each.set_state(state)
        for _ in range(2):
            for each in made:
                each.step()
        number += 2
        whole = added(RollingDigest.from_json(digest_in(each.get_state())) for each in made)
        assert whole is not None
        state = made[-1].get_state() | {"digest": whole.to_json()}
        assert without_evidence([json.dumps(state)]) == without_evidence([want[number]])
