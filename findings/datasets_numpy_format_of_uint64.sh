#!/usr/bin/env bash
# datasets 5.2.0: with_format("numpy") gives a uint64 column as int64, so values from 2**63 on are negative.
#
# The column is uint64 in Arrow and exact as Python ints; the NumPy formatter casts every integer to int64 unless
# a dtype is given. Hashes and ids of 64 bits, where half of all values are that large, change their value without
# an error. with_format("numpy", dtype=np.uint64) keeps them.
#
# Seen: 2**63 + 1 becomes -9223372036854775807.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'datasets==5.2.0'
venv/bin/python - <<'PYTHON'
import datasets
import numpy as np

ids = datasets.Dataset.from_dict({"id": np.array([2**63 + 1, 5], np.uint64)})
assert ids.features["id"].dtype == "uint64" and ids["id"][:] == [2**63 + 1, 5]
formatted = ids.with_format("numpy")[:]["id"]
print(formatted.dtype, formatted.tolist())
assert formatted.dtype == np.int64 and formatted[0] == -(2**63) + 1, "uint64 is kept: behaviour changed"
assert ids.with_format("numpy", dtype=np.uint64)[:]["id"].tolist() == [2**63 + 1, 5]
PYTHON
