#!/usr/bin/env bash
# Ray 2.60.0: processes forked after a class was made remote draw the same ids, one after the other.
#
# Ray draws its ids from a generator in its C++ code, which takes its seed at the first id. `import ray` draws none, but
# each @ray.remote class draws one as it is defined, and so does `import ray.dag`, which defines a remote class of its
# own. Processes that are forked after that (multiprocessing's default on Linux before Python 3.14) have a copy of the
# generator, and nothing gives it a new seed. Processes that join one cluster so name different objects alike.
#
# Seen: ids of three forked processes differ before the class is defined, and are one id after it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q ray==2.60.0
venv/bin/python - <<'PYTHON'
import multiprocessing

import ray


def draw(_):
    return ray.ActorClassID.from_random().hex()


def drawn_by_three_processes():
    with multiprocessing.get_context("fork").Pool(3, maxtasksperchild=1) as pool:
        return pool.map(draw, range(3), chunksize=1)


before = drawn_by_three_processes()


@ray.remote
class Empty:
    pass


after = drawn_by_three_processes()
print("before a class is remote:", *(name[:12] for name in before))
print("after:                   ", *(name[:12] for name in after))
assert len(set(before)) == 3, "the same ids before: behaviour changed"
assert len(set(after)) == 1, "forked processes draw ids of their own: behaviour changed"
PYTHON
