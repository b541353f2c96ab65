#!/usr/bin/env bash
# polars 2.1.0: a key that is first seen behind row 100 of a JSON lines file is dropped without a word.
#
# read_ndjson and scan_ndjson take the fields of the first 100 rows (infer_schema_length) for all. A later value of
# another type is an error; a later key is neither an error nor a column. A conversion of JSON lines to Parquet by
# Polars loses the field of every row. infer_schema_length=None reads all rows first, and keeps it.
#
# Seen: of 1,000 rows, the last 5 with a key "late", the frame has the column "i" alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'polars==2.1.0'
venv/bin/python - <<'PYTHON'
import json

import polars

with open("rows.jsonl", "w") as file:
    for k in range(1000):
        file.write(json.dumps({"i": k} if k < 995 else {"i": k, "late": f"v{k}"}) + "\n")
for frame in (polars.read_ndjson("rows.jsonl"), polars.scan_ndjson("rows.jsonl").collect()):
    print(frame.columns, frame.shape)
    assert frame.columns == ["i"] and len(frame) == 1000, "the late key is seen: behaviour changed"
whole = polars.read_ndjson("rows.jsonl", infer_schema_length=None)
assert whole["late"].drop_nulls().to_list() == [f"v{k}" for k in range(995, 1000)]
PYTHON
