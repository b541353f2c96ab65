#!/usr/bin/env bash
# pyarrow 26.0.1 and datasets 5.2.0: one integer from 2**63 on makes a column of JSON lines float64, and ids lose
# their last digits.
#
# pyarrow.json reads integers as int64 and falls back to double for the whole column, also for values that fit
# int64. There is no attempt at uint64 and no warning. load_dataset("json") takes the schema over, streamed or
# not. Two ids that differ in their last digits become equal.
#
# Seen: 9223372036854775809 and 9007199254740993 become 9223372036854775808.0 and 9007199254740992.0. With
# explicit_schema uint64 both are exact.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'pyarrow==26.0.1' 'datasets==5.2.0'
venv/bin/python - <<'PYTHON'
import datasets
import pyarrow as pa
import pyarrow.json

ids = [9223372036854775809, 9007199254740993]
with open("ids.jsonl", "w") as file:
    file.writelines(f'{{"id": {value}}}\n' for value in ids)
table = pyarrow.json.read_json("ids.jsonl")
print(table.schema.field("id").type, [f"{value:.1f}" for value in table["id"].to_pylist()])
assert table.schema.field("id").type == pa.float64(), "the column is no float64: behaviour changed"
assert [int(value) for value in table["id"].to_pylist()] == [2**63, 2**53]
streamed = datasets.load_dataset("json", data_files="ids.jsonl", split="train", streaming=True)
assert [int(row["id"]) for row in streamed] == [2**63, 2**53]
options = pyarrow.json.ParseOptions(explicit_schema=pa.schema([("id", pa.uint64())]))
assert pyarrow.json.read_json("ids.jsonl", parse_options=options)["id"].to_pylist() == ids
PYTHON
