#!/usr/bin/env bash
# datasets 5.2.0 with jax 0.10.2: with_format("jax") wraps 64-bit integers to 32 bits and makes inf of large floats.
#
# Without jax_enable_x64 the formatter asks jax for int32 and float32, and NumPy's cast wraps: there is no error. Ids,
# hashes, byte offsets and times in milliseconds since 1970 become other numbers, and 2**40 becomes 0.
#
# Seen: 2**40 + 7 becomes 7 and 1e300 becomes inf, row by row and in batches.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'datasets==5.2.0' 'jax==0.10.2'
venv/bin/python - <<'PYTHON'
import datasets
import numpy as np

table = datasets.Dataset.from_dict({"id": [2**40 + 7], "x": [1e300]}).with_format("jax")
for found in (table[0], {name: column[0] for name, column in table[:].items()}):
    print(found["id"].dtype, int(found["id"]), found["x"].dtype, float(found["x"]))
    assert (str(found["id"].dtype), int(found["id"])) == ("int32", 7), "integers are kept or refused: behaviour changed"
    assert np.isinf(float(found["x"]))
PYTHON
