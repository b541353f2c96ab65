"""A process that may crash: it takes jobs from stdin and says on stdout when it begins one and what came of it.

`python -m tests.fuzz.worker DIRECTORY`; a job is a JSON line [target, kind, seed]. What it began and did not end is
what crashed it, or hangs.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from pathlib import Path

from tests.fuzz import outcomes
from tests.fuzz.targets import Target, make


def main() -> None:
    # The answers' own channel: libraries that print must not end up in it.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    directory = Path(sys.argv[1])
    made: dict[str, Target] = {}
    for line in sys.stdin:
        name, kind, seed = json.loads(line)
        if name not in made:
            made[name] = make(name, directory)
        print(json.dumps(["begin", name, kind, seed]), file=answers)
        rng = random.Random(f"{name} {kind} {seed}")
        outcome, detail = outcomes.watched(functools.partial(made[name].check, kind, rng))
        print(json.dumps(["end", outcome, detail]), file=answers)


if __name__ == "__main__":
    main()
