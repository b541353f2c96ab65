"""Runs a job again when it fails, if the job resumes by itself: `python restarts.py --max-restarts 5 job.py OPTIONS`.

The job comes back after SIGKILL, a lost trainer or node, or a lack of memory. Exit status 2 is an error that would come
again (wrong options, changed data, a directory that the job cannot have), and is not retried. The wait grows with each
restart. A run of 10 minutes resets the count, as a job of months loses many hosts. Nothing here loads JAX or Ray.
"""

from __future__ import annotations

import argparse
import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from stop_request import FORWARDED, StopRequest

COMES_AGAIN = 2  # the exit status of an error that no restart removes; also argparse's
_LOOK_S = 0.2  # between two looks at whether a signal has come; a step takes about as long
_MAX_BACKOFF_S = 60.0
_WENT_WELL_S = 600.0  # as of a container in Kubernetes, whose count and wait begin anew then
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command until it succeeds, is stopped, or has failed too often. Returns its last exit status."""
    parser = argparse.ArgumentParser("restarts.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--max-restarts", type=int, default=5, help="in a row; a run of 10 minutes resets the count (%(default)s)"
    )
    parser.add_argument(
        "--backoff-s",
        type=float,
        default=2.0,
        help="seconds before the first restart (%(default)s); each later wait is 4 times the last, at most 60 s",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a Python file and its options")
    options = parser.parse_args(argv)
    num_restarts = 0
    with StopRequest() as stop:
        while True:
            begin = time.monotonic()
            status = _run([sys.executable, *options.command], stop)
            if status in (0, COMES_AGAIN) or stop.signal_name is not None:
                return status
            ended = f"{options.command[0]} ended with {_named(status)}"
            num_restarts = restarts_after(num_restarts, time.monotonic() - begin)
            if num_restarts > options.max_restarts:
                _say(f"{ended} and was restarted {options.max_restarts} times; not again")
                return status
            wait_s = backoff_s(num_restarts, options.backoff_s)
            which = f"restart {num_restarts} of {options.max_restarts}"
            _say(f"{ended}; {which}, from the newest checkpoint" + (f", in {wait_s:.0f} s" if wait_s >= 1 else ""))
            until = time.monotonic() + wait_s
            while (left := until - time.monotonic()) > 0 and stop.signal_name is None:
                time.sleep(min(left, _LOOK_S))
            if stop.signal_name is not None:
                return status


def restarts_after(num_restarts: int, ran_s: float) -> int:
    """The number of restarts in a row, with the next, after a failed run of ran_s seconds.

    >>> restarts_after(5, ran_s=20.0), restarts_after(5, ran_s=3600.0)
    (6, 1)
    """
    return 1 if ran_s >= _WENT_WELL_S else num_restarts + 1


def backoff_s(num_restarts: int, first_s: float) -> float:
    """The wait before the restart of this number in a row.

    >>> [backoff_s(number, 2.0) for number in range(1, 6)]
    [2.0, 8.0, 32.0, 60.0, 60.0]
    """
    return min(_MAX_BACKOFF_S, first_s * 4 ** (num_restarts - 1))


def _run(command: Sequence[str], stop: StopRequest) -> int:
    """Run the command and pass on a stop request, once. Returns its exit status, or 128 + the signal that ended it."""
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
    """In the child: get SIGKILL when this program is killed, so that no trainer goes on unknown."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _named(status: int) -> str:
    return signal.Signals(status - 128).name if status > 128 else f"exit status {status}"


def _say(line: str) -> None:
    print(f"restarts.py: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
