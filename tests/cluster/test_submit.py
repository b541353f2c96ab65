"""submit.sh: what it hands to ray, what it refuses, and that a token goes nowhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUBMIT = Path(__file__).parents[2] / "cluster" / "submit.sh"
JOB = ("--data", "/data with space/*.array_record", "--checkpoint-dir", "/ckpt")


class Shell:
    """submit.sh with a home of its own, and a `ray` that writes down its arguments and mode instead of submitting."""

    def __init__(self, home):
        self.home = home
        bin_directory = home / "bin"
        bin_directory.mkdir()
        ray = bin_directory / "ray"
        program = "import json, os, sys; print(json.dumps([os.environ['RAY_AUTH_MODE'], *sys.argv[1:]]))"
        ray.write_text(f"#!{sys.executable}\n{program}\n")
        ray.chmod(0o755)
        self.env = {"HOME": str(home), "PATH": f"{bin_directory}:{os.environ['PATH']}"}

    def __call__(self, *arguments, **env):
        return subprocess.run(
            [SUBMIT, *arguments], env=self.env | env, capture_output=True, text=True, timeout=30, check=False
        )


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)


def test_help_says_where_the_token_lives(shell):
    done = shell("-h")
    assert done.returncode == 0
    assert "RAY_AUTH_TOKEN_PATH" in done.stdout
    assert "~/.ray/auth_token" in done.stdout


def test_the_job_is_handed_over_with_its_arguments_whole_and_without_the_token(shell):
    done = shell(
        "--address", "http://127.0.0.1:9", "--no-wait", "--env", "MINE", *JOB,
        RAY_AUTH_TOKEN="s3cret", JAX_PLATFORMS="cpu", MINE='a "b"', OTHER="x",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    mode, *arguments = json.loads(done.stdout)
    env_vars = {"JAX_PLATFORMS": "cpu", "MINE": 'a "b"', "PYTHONUNBUFFERED": "1", "RAY_JOB_STOP_WAIT_TIME_S": "60"}
    runtime_env = arguments.pop(arguments.index("--runtime-env-json") + 1)
    assert json.loads(runtime_env) == {"env_vars": env_vars}
    assert mode == "token"
    assert arguments == [
        *("job", "submit", "--address", "http://127.0.0.1:9", "--working-dir", str(SUBMIT.parent)),
        *("--runtime-env-json", "--no-wait", "--", "exec", "python", "restarts.py", "--max-restarts", "5"),
        *("job.py", *JOB),
    ]
    assert "s3cret" not in done.stdout + done.stderr


def test_without_a_token_nothing_is_submitted(shell):
    done = shell(*JOB)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no token: RAY_AUTH_TOKEN is not set, and {shell.home}/.ray/auth_token is missing" in done.stderr


def test_a_token_path_that_names_no_file_is_not_replaced_by_the_default_file(shell):
    (shell.home / ".ray").mkdir()
    (shell.home / ".ray" / "auth_token").write_text("s3cret")
    assert shell(*JOB).returncode == 0
    done = shell(*JOB, RAY_AUTH_TOKEN_PATH="/nowhere")
    assert done.returncode == 2
    assert "/nowhere is missing" in done.stderr


def test_a_cluster_without_authentication_has_to_be_asked_for(shell):
    assert json.loads(shell("--insecure", *JOB).stdout)[0] == "disabled"


def test_a_token_sent_in_the_clear_is_warned_of(shell):
    for address, is_warned in [("http://10.0.0.1:8265", True), ("https://ray.example", False)]:
        done = shell("--address", address, *JOB, RAY_AUTH_TOKEN="s3cret")
        assert ("unencrypted" in done.stderr) is is_warned


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no options for job.py"),
        (("--address",), "--address needs a value"),
        (("--stop-wait", "soon", *JOB), "whole number of seconds, got 'soon'"),
        (("--max-restarts", "many", *JOB), "whole number, got 'many'"),
        (("--env", "RAY_AUTH_TOKEN", *JOB), "would put the token into the job's records"),
    ],
)
def test_what_cannot_be_submitted_is_refused(shell, arguments, message):
    done = shell(*arguments, RAY_AUTH_TOKEN="s3cret")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
