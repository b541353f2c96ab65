"""Programs of tests, each a process of its own: forked from one that has imported JAX, Flax and Orbax.

To import these takes 2 s of CPU, more than all else that most of the programs do. What a program imports of this
package it imports itself. Where Python or what is imported is looked at, a test starts Python.

    programs.py SOCKET    the process that forks, until the one that started it ends
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Collection
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[1])
_IMPORTED = (
    "jax.numpy",
    "jax.experimental.multihost_utils",
    "flax.nnx",
    "orbax.checkpoint",
    "pyarrow.parquet",
    "pyarrow.json",
    "pyarrow.compute",
    "array_record.python.array_record_module",
)


class Program:
    """What Python does with these arguments, with this environment and no other. said: its output, and its errors."""

    def __init__(self, arguments: Any, env: dict[str, str], stdin: str = "", *, session: bool = False) -> None:
        files = [os.memfd_create(name) for name in ("in", "out", "errors")]
        os.pwrite(files[0], stdin.encode(), 0)
        self._said = files[1:]
        self._forker = socket.socket(socket.AF_UNIX)
        self._forker.connect(_forker())
        socket.send_fds(self._forker, [b"."], files)
        self._forker.sendall(json.dumps([[*map(str, arguments)], env, os.getcwd(), session]).encode())
        self._forker.shutdown(socket.SHUT_WR)
        os.close(files[0])
        self._answers = self._forker.makefile()
        self.pid = int(self._answers.readline())
        self._has_ended = False

    def said(self) -> list[str]:
        return [os.pread(file, os.fstat(file).st_size, 0).decode() for file in self._said]

    def kill(self) -> None:
        if not self._has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        """To its end, and once. Raises: TimeoutError, when it has been killed."""
        self._forker.settimeout(timeout_s)
        try:
            code = int(self._answers.readline())
            self._has_ended = True
        finally:
            self.kill()
        done = subprocess.CompletedProcess(self.pid, code, *self.said())
        for file in self._said:
            os.close(file)
        self._answers.close()
        self._forker.close()
        return done


def to_their_ends(programs: Collection[Program], timeout_s: float = 240.0) -> None:
    """Of programs that wait for one another: all end well, or none goes on."""
    try:
        errors = [done.stderr[-3000:] for program in programs if (done := program.wait(timeout_s)).returncode]
    finally:
        for program in programs:
            program.kill()
    assert not errors, "\n".join(errors)


def python(*arguments: Any, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """What Python does with these arguments, to its end, beside this environment."""
    return Program(arguments, os.environ | {"PYTHONPATH": ROOT} | environment, stdin).wait()


def knowing_no_ray(*arguments: Any, but: Collection[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """The same of a Python that has imported nothing, without what this environment says of Ray but these."""
    words = [sys.executable, *map(str, arguments)]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_") or key in but}
    return subprocess.run(words, env=kept | environment, capture_output=True, text=True, timeout=240, check=False)


@functools.cache
def _forker() -> str:
    """Where the process that forks is asked."""
    folder = tempfile.TemporaryDirectory(prefix="programs-")
    path = f"{folder.name}/socket"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, __file__, path]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    atexit.register(lambda: (process.kill(), process.wait(), process.stdout.close(), folder.cleanup()))
    return path


def _serve(path: str) -> None:
    parent = os.getppid()
    del sys.path[0]  # where modules of tests are
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    os.write(1, b"ready\n")
    running: dict[int, socket.socket] = {}
    while os.getppid() == parent:
        is_asked = select.select([listening], [], [], 0.02 if running else 1)[0]
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(ended[0]) as asked:
                asked.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))
        if is_asked:
            asked, _ = listening.accept()
            _, files, _, _ = socket.recv_fds(asked, 1, 3)
            with asked.makefile("rb") as rest:
                given = json.load(rest)
            if not (pid := os.fork()):
                for other in (listening, asked, *running.values()):
                    other.close()
                _become(*given, files)
            asked.sendall(b"%d\n" % pid)
            running[pid] = asked
            for file in files:
                os.close(file)


def _become(arguments: list[str], environment: dict[str, str], folder: str, is_session: bool, files: list[int]) -> None:
    """Be the program that was asked for, to its end."""
    if is_session:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    first = {"-c": "", "-m": folder}.get(arguments[0], os.path.dirname(arguments[0]))
    sys.path[:0] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    try:
        if arguments[0] == "-c":
            sys.argv[:] = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        elif arguments[0] == "-m":
            sys.argv[:] = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        sys.exit(1)
    sys.exit()


if __name__ == "__main__":
    _serve(sys.argv[1])
