#!/usr/bin/env bash
# Ray 2.60.0: to start an actor without arguments, the driver imports pydantic (with its v1) and pyarrow.
#
# Ray makes its context of serialization for every new actor, also where there is nothing to serialize, and the context
# registers what it knows of pydantic and pyarrow by importing both, where they are installed. ray.init and the decorator
# import neither. So the processes of a program's first actors begin only after these imports, 0.2 to 0.4 s later.
#
# Seen: neither module after ray.init and ray.remote; both, and pydantic.v1, after the first .remote().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q ray==2.60.0 pydantic==2.12.5 pyarrow==22.0.0
venv/bin/python - <<'PYTHON'
import sys
import time

import ray

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)


@ray.remote(num_cpus=0.1)
class Empty:
    def answer(self):
        return 1


names = ("pydantic", "pydantic.v1", "pyarrow")
before = [name for name in names if name in sys.modules]
began = time.perf_counter()
actor = Empty.remote()
took = time.perf_counter() - began
after = [name for name in names if name in sys.modules]
print(f"loaded before the first actor: {before}; after {took:.2f} s, without an argument: {after}")
assert ray.get(actor.answer.remote()) == 1
ray.shutdown()
assert before == [], "loaded before: behaviour changed"
assert after == [*names], "not all are loaded for an actor without arguments: behaviour changed"
PYTHON
