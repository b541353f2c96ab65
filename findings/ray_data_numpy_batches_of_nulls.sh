#!/usr/bin/env bash
# Ray 2.60.0: in NumPy batches of Ray Data a column of integers with nulls is int64 in one batch and float64 in the next.
#
# Each batch is converted by itself: without a null it is int64, with one it is float64 and NaN (a bool column: bool, or
# objects with None). So the dtype of a batch, and what a compiled step is traced for, depends on where the nulls
# stand. A map_batches that gives the column back as it is makes blocks of both types; where these are joined, all
# integers are floats, and one beyond 2**53 ends the run with ArrowInvalid.
#
# Seen: int64 then float64 for batches of two of [1, 2, null, 4]; behind map_batches 1.0, 2.0, NaN, 4.0; ArrowInvalid
# for 2**53 + 1. Behind a filter of rows the integers are as they were.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'ray[data]==2.60.0' pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
export RAY_TMPDIR=$folder
venv/bin/python - 2>log <<'PYTHON'
import math

import pyarrow as pa
import pyarrow.parquet as pq
import ray

ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
ray.data.DataContext.get_current().enable_progress_bars = False


def dataset(first):
    pq.write_table(pa.table({"x": [first, 2, None, 4], "flag": [True, False, None, True]}), "x.parquet")
    return ray.data.read_parquet("x.parquet")


kinds = [
    (str(batch["x"].dtype), str(batch["flag"].dtype))
    for batch in dataset(1).iter_batches(batch_size=2, batch_format="numpy")
]
print("dtypes of two batches:", kinds)
assert kinds == [("int64", "bool"), ("float64", "object")], "behaviour changed"

given = [row["x"] for row in dataset(1).map_batches(lambda batch: {"x": batch["x"]}, batch_size=2).take_all()]
print("behind map_batches:", given)
assert all(isinstance(value, float) for value in given), "behaviour changed"
assert given[:2] == [1.0, 2.0]
assert math.isnan(given[2])

rows = [row["x"] for row in dataset(2**53 + 1).filter(lambda row: True).take_all()]
print("behind a filter of rows:", rows)
assert rows == [2**53 + 1, 2, None, 4], "behaviour changed"

try:
    dataset(2**53 + 1).map_batches(lambda batch: {"x": batch["x"]}, batch_size=2).take_all()
except Exception as error:
    said = str(error)
else:
    raise AssertionError("no error: behaviour changed")
said = next(line for line in said.splitlines() if "not in range" in line)
print("2**53 + 1 behind map_batches:", said)
ray.shutdown()
PYTHON
