#!/usr/bin/env bash
# Grain 0.2.18: a split that is sliced from a shuffled MapDataset holds other records in each epoch.
#
# `shuffle(seed)[:7]` and `shuffle(seed)[7:]` are disjoint in the first epoch alone. A shuffle draws a new
# permutation for each epoch, and the slice takes the first 7 places of that permutation. So records that the
# first epoch held out for evaluation are trained on in the second.
#
# Seen: held out [2, 1, 3]; epoch 1 of the training split [5, 7, 6, 0, 4, 8, 9]; epoch 2 [8, 4, 1, 7, 6, 9, 3],
# with 1 and 3 of those held out. A slice in front of the shuffle, source[:7].shuffle(seed), holds the same
# records in every epoch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'grain==0.2.18' 'jax==0.10.2'
venv/bin/python - <<'PYTHON'
import grain

source = grain.MapDataset.source(list(range(10)))
train = source.shuffle(seed=1)[:7].repeat(2)
held_out = source.shuffle(seed=1)[7:]
first = [int(train[i]) for i in range(7)]
second = [int(train[i]) for i in range(7, 14)]
kept = [int(held_out[i]) for i in range(3)]
print("held out", kept, "epoch 1", first, "epoch 2", second)
assert sorted(first + kept) == list(range(10))
assert sorted(set(second) & set(kept)) == [1, 3], "the second epoch trains on nothing that was held out: behaviour changed"
before = source[:7].shuffle(seed=1).repeat(2)
assert sorted(int(before[i]) for i in range(7, 14)) == list(range(7))
PYTHON
