"""Runs a job that resumes by itself again when it fails: `python restarts.py --max-restarts 5 job.py OPTIONS`.

So it comes back from whatever ended it: SIGKILL, a trainer or a node that was lost, no memory. Exit status 2 is an
error that would come again (options, data that changed, a directory that is not the job's), and ends it. Nothing here
loads JAX or Ray.
"""

from __future__ import annotations

import argparse
import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence

from stop_request import FORWARDED, StopRequest

COMES_AGAIN = 2  # the exit status of an error that no restart mends; argparse's own too
_LOOK_S = 0.2  # between two looks at whether a signal has come; a step takes about as long
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command until it ends well, is stopped, or has failed too often. Returns its last exit status."""
    parser = argparse.ArgumentParser("restarts.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--max-restarts", type=int, default=5, help="how often it is run again (%(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a Python file and its options")
    options = parser.parse_args(argv)
    with StopRequest() as stop:
        for num_restarts in range(options.max_restarts + 1):
            status = _run([sys.executable, *options.command], stop)
            if status in (0, COMES_AGAIN) or stop.signal_name is not None:
                return status
            ended = f"{options.command[0]} ended with {_named(status)}"
            if num_restarts < options.max_restarts:
                _say(f"{ended}; restart {num_restarts + 1} of {options.max_restarts}, from the newest checkpoint")
    _say(f"{ended} and was restarted {options.max_restarts} times; not again")
    return status


def _run(command: Sequence[str], stop: StopRequest) -> int:
    """Its exit status, 128 + the signal's number where one ended it; a stop request goes on to it, once."""
    child = subprocess.Popen(command, preexec_fn=_die_with_parent)
    is_forwarded = False
    while True:
        if stop.signal_name is not None and not is_forwarded:
            child.send_signal(FORWARDED)
            is_forwarded = True
        try:
            status = child.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            continue
        return status if status >= 0 else 128 - status


def _die_with_parent() -> None:
    """In the child: SIGKILL when this program is killed, so that no trainer goes on that nobody knows."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _named(status: int) -> str:
    return signal.Signals(status - 128).name if status > 128 else f"exit status {status}"


def _say(line: str) -> None:
    print(f"restarts.py: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
