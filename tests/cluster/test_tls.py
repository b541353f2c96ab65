"""The recipe for TLS, run: a Ray whose ports speak TLS with the certificates alone, and a stream through it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import write_files

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "cluster" / "certificates.sh"

# In a process of its own: Ray reads RAY_USE_TLS when it is loaded.
PROGRAM = """
import os, socket, ssl, sys
import ray
from datarax_ray import RaySource
from tests.actors.test_ray_client import make

ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=80 * 2**20)
host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")

def shakes_hands(*certificate):
    context = ssl.create_default_context(cafile=os.environ["RAY_TLS_CA_CERT"])
    context.set_alpn_protocols(["h2"])
    if certificate:
        context.load_cert_chain(*certificate)
    try:
        with socket.create_connection((host, int(port)), timeout=20) as plain:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as spoken:
                spoken.settimeout(20)
                spoken.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(3) + b"\\x04" + bytes(5))
                return bool(spoken.recv(1))  # a server that wants a certificate says so with its first answer
    except (ssl.SSLError, ConnectionError):
        return False

print("with", shakes_hands(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"]))
print("without", shakes_hands())
alone = make(sys.argv[1:])
with RaySource(make(sys.argv[1:]), num_actors=2, num_cpus=0.5) as source:
    for _ in range(6):
        ours, want = source.get_batch(32), alone.get_batch(32)
        assert ours["index"].tolist() == want["index"].tolist()
print("same")
"""


def certificates(directory, *hosts):
    return subprocess.run([SCRIPT, directory, *hosts], capture_output=True, text=True, check=False)


@pytest.mark.slow  # a Ray of its own
def test_a_ray_with_the_certificates_gives_the_stream_and_answers_nobody_without(tmp_path):
    show = "import ray; print(ray.util.get_node_ip_address())"
    address = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    made = certificates(tmp_path / "tls", address, "head.example")
    assert made.returncode == 0, made.stderr
    for path in (tmp_path / "tls").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert sorted(path.name for path in (tmp_path / "tls").iterdir()) == ["ca.crt", "node.crt", "node.key"]
    exported = dict(line.removeprefix("export ").split("=", 1) for line in made.stdout.splitlines()[1:])
    paths = map(str, write_files(tmp_path, [60, 40]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *paths],
        env={**os.environ, "PYTHONPATH": str(ROOT)} | exported,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["with True", "without False", "same"]


def test_certificates_that_are_there_stay(tmp_path):
    assert certificates(tmp_path, "192.0.2.7").returncode == 0
    key = (tmp_path / "node.key").read_bytes()
    again = certificates(tmp_path, "192.0.2.7")
    assert again.returncode == 1
    assert "has certificates already" in again.stderr
    assert (tmp_path / "node.key").read_bytes() == key


@pytest.mark.parametrize("given", [[], ["only-a-directory"]])
def test_what_is_missing_is_said(given):
    done = subprocess.run([SCRIPT, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "certificates.sh DIR HOST..." in done.stderr
