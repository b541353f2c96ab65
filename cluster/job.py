"""A training job that resumes by itself: model, optimizer and position in the data are one Orbax step.

Submit the job again whatever ended it, with any number of actors: it goes on from the newest complete step, and the
batches are those of a run that was never stopped. The job attaches to the cluster that RAY_ADDRESS names;
`ray job submit` sets it. With --num-actors 0 the job reads in its own process, without Ray. It trains in this process,
or with --num-trainers in Ray actors, each a process of one JAX job. source.py has the data, learner.py the model.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from etils import epath
from only_job import RefusedError
from restarts import COMES_AGAIN
from stop_request import StopRequest
from training import run

from datarax_ray.plan.fingerprint import DriftError


def main(argv: Sequence[str] | None = None) -> int:
    """Train until the data ends, --steps are done, or SIGTERM or Ctrl-C comes; each case saves the last step."""
    options = _parser().parse_args(argv)
    with StopRequest() as stop:  # before anything starts: Ray puts its own way to end in the place of none
        if options.num_trainers is None:
            outcome = run(options, stop)
        else:
            from trainers import launch  # in here: it loads Ray, which a run with --num-actors 0 does without

            outcome = launch(options, stop)
        print(outcome, flush=True)
    return 0


def status_of(argv: Sequence[str] | None = None) -> int:
    """The exit status of main. For an error that would come again: COMES_AGAIN, and restarts.py does not retry."""
    try:
        return main(argv)
    except (DriftError, RefusedError):  # of a trainer too: Ray's error of a task is of its cause's class
        traceback.print_exc()
        return COMES_AGAIN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("job.py", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--data", nargs="+", help="paths that every node sees, in place of TRAIN of source.py")
    where = "folder of the saved steps, from which a job resumes: an absolute path, or a URL (gs://, s3://)"
    add("--checkpoint-dir", type=_directory, required=True, help=where)
    add("--checkpoint-every", type=_count, default=500, help="steps between checkpoints (%(default)s)")
    where = "steps between two evaluations, if source.py has EVALUATION (%(default)s)"
    add("--evaluate-every", type=_count, default=500, help=where)
    add("--num-actors", type=int, help="reader actors: by default one per CPU but one; 0 reads in the job, without Ray")
    add("--actor-label", type=_label, action="append", default=[], metavar="KEY=VALUE", help="nodes that actors run on")
    where = "train in this many Ray actors, each a process of one JAX job; default: train in the job's own process"
    add("--num-trainers", type=_count, help=where)
    where = "nodes that trainers run on"
    add("--trainer-label", type=_label, action="append", default=[], metavar="KEY=VALUE", help=where)
    add("--trainer-gpus", type=float, default=0, help="GPUs that each trainer reserves (%(default)s)")
    where = "several trainers agree every N steps whether to stop (%(default)s)"
    add("--stop-every", type=_count, default=10, help=where)
    add("--batch-size", type=_count, default=64, help="records in a global batch (%(default)s)")
    where = "skip a short last batch, which may not divide over several trainers; give it from the run's first job on"
    add("--drop-remainder", action="store_true", help=where)
    add("--num-epochs", type=int, default=-1, help="-1 for endless (%(default)s)")
    add("--seed", type=int, default=0, help="seed of the order and of the model (%(default)s)")
    add("--steps", type=_count, help="stop after this many steps of this submission")
    add("--log-every", type=_count, default=100, help="steps between progress lines (%(default)s)")
    add("--stream-log", help="append step, position, loss and sha256 of every batch to this JSON-lines file, or URL")
    return parser


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _directory(text: str) -> epath.Path:
    if "://" not in text and not Path(text).is_absolute():
        raise argparse.ArgumentTypeError(
            f"{text!r} is relative. Ray removes the folder of a job after the job, and the checkpoints with it; give "
            "an absolute path that every node sees, or a URL"
        )
    return epath.Path(text)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"a label is KEY=VALUE, got {text!r}")
    return key, value


if __name__ == "__main__":
    sys.exit(status_of())
