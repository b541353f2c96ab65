#!/usr/bin/env bash
# Orbax 0.12.8: two leaves whose paths are the same when joined by dots share one place, and one value is lost.
#
# A tree with a key "a.b" beside {"a": {"b": ...}} is saved without an error, and both leaves come back as one of
# the two values. Paths with dots are common: parameters of a model that was converted from torch
# ("layer.0.weight"), names of columns, names of files.
#
# Seen: {"a.b": [1, 1], "a": {"b": [2, 2]}} is restored with [2, 2] in both places; with the ints 1 and 2 in place
# of arrays, with 1 in both. Keys with a slash, "a/b", are kept apart.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'orbax-checkpoint==0.12.8' 'jax==0.10.2'
venv/bin/python - <<'PYTHON'
import os

import numpy as np
import orbax.checkpoint as ocp

def restored(tree, folder):
    with ocp.CheckpointManager(os.path.abspath(folder)) as manager:
        manager.save(0, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
        return manager.restore(0)

found = restored({"a.b": np.array([1, 1]), "a": {"b": np.array([2, 2])}}, "dots")
print(found)
dotted, nested = found["a.b"].tolist(), found["a"]["b"].tolist()
assert dotted == nested, "both values are kept: behaviour changed"
slashed = restored({"a/b": np.array([1, 1]), "a": {"b": np.array([2, 2])}}, "slashes")
assert slashed["a/b"].tolist() == [1, 1] and slashed["a"]["b"].tolist() == [2, 2]
PYTHON
