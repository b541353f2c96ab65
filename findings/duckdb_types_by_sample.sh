#!/usr/bin/env bash
# duckdb 2.0.1: behind the rows that are sampled for types (20,480), new keys of JSON are dropped and fractions are
# rounded to integers, without an error.
#
# read_json_auto and read_csv_auto decide the columns by a sample. A later text in a column of integers is an error,
# but 59995.5 is cast to BIGINT by rounding, and a key that no sampled row has is left out. Labels or weights that
# are whole numbers at first change their values on the way to Parquet. sample_size=-1 looks at all rows.
#
# Seen: of 60,000 rows, the last 5 with .5, the maximum 59999.5 becomes 60000 of type BIGINT, in JSON and in CSV; a key
# "late" in these rows is no column.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'duckdb==2.0.1'
venv/bin/python - <<'PYTHON'
import json

import duckdb

count = 60_000
with open("late.jsonl", "w") as keys, open("half.jsonl", "w") as halves, open("half.csv", "w") as csv:
    csv.write("i\n")
    for k in range(count):
        is_late = k >= count - 5
        keys.write(json.dumps({"i": k, "late": "v"} if is_late else {"i": k}) + "\n")
        halves.write(json.dumps({"i": k + 0.5 if is_late else k}) + "\n")
        csv.write(f"{k + 0.5 if is_late else k}\n")
late = duckdb.sql("select * from read_json_auto('late.jsonl')")
print(late.columns)
assert late.columns == ["i"], "the late key is seen: behaviour changed"
for read in ("read_json_auto('half.jsonl')", "read_csv_auto('half.csv')"):
    found = duckdb.sql(f"select max(i), any_value(typeof(i)) from {read}").fetchall()
    print(read, found)
    assert found == [(60_000, "BIGINT")], "fractions are kept or refused: behaviour changed"
exact = duckdb.sql("select max(i) from read_json_auto('half.jsonl', sample_size=-1)").fetchall()
assert exact == [(59_999.5,)]
PYTHON
