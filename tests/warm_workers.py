"""Fork Ray's workers from a process that has imported Ray: 0.3 s of CPU for an actor in place of 1.0.

    warm_workers.py SOCKET               the process that forks, until the raylet that started it ends
    SOCKET.start default_worker.py ...   asks it for a worker; Ray takes this for Python

A worker is Ray's own program, with the arguments, the environment and the outputs that its raylet gave it. What it
imports of this package it imports itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path

# It takes 10 ms. Without an answer, and where a runtime environment is to be set up, it is Python.
_STARTER = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1].endswith("default_worker.py"):
    try:
        asked = socket.socket(socket.AF_UNIX)
        asked.connect({path!r})
        socket.send_fds(asked, [b"."], [0, 1, 2])
        asked.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
        asked.shutdown(socket.SHUT_WR)
        if asked.recv(1):
            os._exit(0)
    except OSError:
        pass
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


# What Ray imports in every worker, and what libraries do in many; no thread comes with it. Not ray.dag (0.1 s): a class
# that is remote draws an id as it is defined, and Ray's ids of all processes that are forked then are the same. Two
# workers that start at once would write the same object, and one of them end.
_IMPORTED = (
    "ray._private.workers.default_worker",
    "ray._private.arrow_serialization",
    "ray._common.pydantic_compat",
    "pydantic.v1.fields",
    "pyarrow.compute",
    "pyarrow.json",
    "pandas",
)


def starter(path: Path) -> Path:
    """The program that asks at this socket for a worker."""
    program = path.with_suffix(".start")
    program.write_text(_STARTER.format(python=sys.executable, path=str(path)))
    program.chmod(0o755)
    return program


def _serve(path: str) -> None:
    raylet = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers that end are nobody's
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    settings: dict[str, str] = {}  # of the first worker's job: Ray's C++ reads them once, when it is imported
    while os.getppid() == raylet:
        if not select.select([listening], [], [], 1)[0]:
            continue
        asked, _ = listening.accept()
        _, files, _, _ = socket.recv_fds(asked, 1, 3)
        with asked.makefile("rb") as rest:
            arguments, environment, folder = json.load(rest)
        wanted = {name: value for name, value in environment.items() if name.startswith("RAY_")}
        if not settings and "RAY_JOB_ID" in wanted:
            settings = wanted
            os.environ |= environment
            for name in _IMPORTED:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            gc.freeze()
        if wanted == settings:
            if not os.fork():
                asked.close()
                listening.close()
                _become(arguments, environment, folder, files)
            asked.send(b".")
        asked.close()
        for file in files:
            os.close(file)


def _become(arguments: list[str], environment: dict[str, str], folder: str, files: list[int]) -> None:
    """Be the worker that was asked for, to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(arguments[0])
    runpy.run_path(arguments[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    _serve(sys.argv[1])
