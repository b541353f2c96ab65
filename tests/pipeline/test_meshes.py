"""Real JAX processes on meshes of every kind: each shard holds the rows and columns of the batch that its index names.

The oracle is the same stream in one process, without a mesh.
"""

import json
import os
import pickle
from pathlib import Path

import pytest
import ray

from tests.pipeline import mesh_worker
from tests.ports import free_port
from tests.programs import ROOT, Program, to_their_ends
from tests.resume import on_host


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Four files of JSON lines, 80 rows in all: the shards of a stream."""
    directory = tmp_path_factory.mktemp("corpus")
    for file, count in enumerate((30, 10, 25, 15)):
        lines = (json.dumps({"index": 1000 * file + n}) + "\n" for n in range(count))
        (directory / f"{file}.jsonl").write_text("".join(lines))
    return directory


def reports(num_processes, directory, scratch, ray_address=""):
    """What each of so many processes has to tell; 8 devices in all."""
    port = free_port()
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={8 // num_processes}"  # the last counts
    env = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": ROOT, "HF_HUB_OFFLINE": "1"}
    outs = [scratch / f"{rank}.pickle" for rank in range(num_processes)]
    workers = []
    for rank, out in enumerate(outs):
        given = (rank, num_processes, port, str(directory), str(out), ray_address)
        command = "-c", f"from tests.pipeline.mesh_worker import main; main(*{given})"
        workers.append(Program(command, env))
    to_their_ends(workers, 800)
    return [pickle.loads(out.read_bytes()) for out in outs]


def check(found, directory):
    """Every shard of every array, and the rows of host fields, against one process without a mesh."""
    for stream in found[0]:
        with mesh_worker.pipeline(stream, mesh_worker.source_of(stream, str(directory))) as alone:
            want = [on_host(batch) for batch in alone]
            last_state = json.dumps(alone.get_state())
        is_exact = stream != "stream of shards"  # its states also say how far was read ahead of them
        assert len(want) > 5
        for runs in zip(*(report[stream] for report in found), strict=True):
            for mesh, skipped, batches, counted, state in runs:
                where = f"{stream} on {mesh}"
                own, last = ({**json.loads(each), "evidence": None} for each in (state, last_state))  # of own rows
                assert own == last or not is_exact, where
                assert json.loads(state)["position"] == json.loads(last_state)["position"], where
                assert len(batches) == len(want) - skipped, where
                for number, batch in enumerate(batches, skipped):
                    check_batch(batch, want[number], f"{where}, batch {number}")
                if counted is not None:
                    assert counted == sum(batch["index"].sum() for batch in want[skipped : skipped + 3]), where


def check_batch(batch, want, where):
    assert sorted(batch) in (sorted(want), sorted(want.keys() - {"name"})), where  # scan leaves out host fields
    rows = set()
    for name, value in batch.items():
        if isinstance(value, tuple):
            shape, shards = value
            assert shape == want[name].shape, where
            for index, data in shards:
                part = want[name][index]
                assert (data.dtype, data.shape) == (part.dtype, part.shape), (where, name)
                assert data.tobytes() == part.tobytes(), (where, name, index)
                if name in ("index", "tokens"):
                    rows.update(range(*index[0].indices(shape[0])))
    for name, value in batch.items():
        if not isinstance(value, tuple):  # on the host: this process's rows, ascending
            assert value.tolist() == want[name][sorted(rows)].tolist(), (where, name)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_four_processes_too_on_every_mesh_and_behind_a_filter(corpus, tmp_path):
    check(reports(4, corpus, tmp_path), corpus)


def test_two_processes_that_share_ray_actors_have_their_shards_too(corpus, tmp_path, ray_local):
    check(reports(2, corpus, tmp_path, ray.get_runtime_context().gcs_address), corpus)


@pytest.mark.slow  # the next has these, and actors
def test_in_two_processes_every_shard_is_what_its_index_names(corpus: Path, tmp_path: Path) -> None:
    check(reports(2, corpus, tmp_path), corpus)
