"""A local Ray answers on loopback to those who have the token, and the token stays in its file."""

import stat

import pytest

from datarax_ray.actors import connection
from tests.data import write_files
from tests.programs import knowing_no_ray

# In a process of its own, as its user would: no Ray initialised, no token, a home of its own.
_SCRIPT = """
import logging, os, subprocess, sys
logging.basicConfig(level=logging.DEBUG)
import grpc, psutil, ray
from flax import nnx
from datarax_ray import Pipeline, RaySource
from datarax_ray.checkpoint import save_pipeline
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import decode

if __name__ == "__main__":
    config = ArrayRecordSourceConfig(num_epochs=1)
    source = ArrayRecordSourceModule(config, sys.argv[1], transforms=[decode])
    with Pipeline(source=RaySource(source, num_actors=1, num_cpus=0.5), batch_size=8, rngs=nnx.Rngs(0)) as pipeline:
        print("index", pipeline.step()["index"].tolist())
        save_pipeline(sys.argv[2], pipeline)
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            for socket in process.net_connections(kind="inet"):
                if socket.status == psutil.CONN_LISTEN:
                    print("listens", process.name(), socket.laddr.ip)
        node = ray._private.worker._global_node
        token = open(os.path.expanduser("~/.ray/auth_token")).read()
        call = grpc.insecure_channel(node.gcs_address).unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")
        for name, metadata in {
            "no token": [],
            "a wrong token": [("authorization", "Bearer " + "0" * 64)],
            "the token": [("authorization", "Bearer " + token)],
        }.items():
            try:
                print("with", name, "answered", len(call(b"", metadata=metadata, timeout=60)) > 0)
            except grpc.RpcError as error:
                print("with", name, error.code().name)
        wants = "import sys; from datarax_ray.actors import connection; print(connection._wants_token(sys.argv[1]))"
        plain = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
        print("wants a token:", subprocess.check_output([sys.executable, "-c", wants, node.gcs_address], env=plain))
        found = subprocess.run(
            ["grep", "-rlF", token, node.get_session_dir_path(), sys.argv[2]], capture_output=True, text=True
        )
        print("token in files:", found.stdout.split())
        shown = [p.name() for p in [me, *me.children(recursive=True)] if any(token in a for a in p.cmdline())]
        print("token in arguments:", shown)
"""


def test_a_local_ray_listens_on_loopback_and_wants_its_token_which_is_written_nowhere(tmp_path):
    (file,) = write_files(tmp_path, [8])
    # without RAY_TMPDIR it would find the head that another test has started on this host
    kept = ("RAY_worker_niceness", "RAY_prestart_worker_first_driver", "RAY_TMPDIR")
    process = knowing_no_ray("-c", _SCRIPT, file, tmp_path / "saved", but=kept, HOME=str(tmp_path / "home"))
    assert process.returncode == 0, process.stderr[-3000:]
    lines = process.stdout.splitlines()
    assert "index [0, 1, 2, 3, 4, 5, 6, 7]" in lines
    addresses = {line.split()[-1].removeprefix("::ffff:") for line in lines if line.startswith("listens ")}
    assert addresses == {"127.0.0.1"}, lines
    assert {"gcs_server", "raylet"} <= {line.split()[1] for line in lines if line.startswith("listens ")}
    assert "with no token UNAUTHENTICATED" in lines
    assert "with a wrong token UNAUTHENTICATED" in lines
    assert "with the token answered True" in lines
    assert r"wants a token: b'True\n'" in lines
    assert "token in files: []" in lines
    assert "token in arguments: []" in lines
    token = tmp_path / "home" / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text() not in process.stdout + process.stderr


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_token_that_is_there_is_kept_and_others_who_can_read_it_are_told_of(home, caplog):
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("mine")
    token.chmod(0o644)
    connection._make_token()
    assert token.read_text() == "mine"
    assert "other users can read the token in" in caplog.text
    assert "mine" not in caplog.text
    caplog.clear()
    token.chmod(0o600)
    connection._make_token()
    assert not caplog.records


def test_no_file_is_made_where_the_environment_says_which_token(home, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "elsewhere")
    connection._make_token()
    assert not (home / ".ray").exists()
