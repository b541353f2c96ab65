#!/usr/bin/env bash
# datasets 5.2.0: an empty cell in a column of integers of a CSV file makes the column float64, and large ids change.
#
# The CSV builder reads by pandas, chunk by chunk. One missing value anywhere in a chunk turns the integers of that
# chunk into floats, so 2**53 + 1 is read as 2**53. Features(Value("int64")) does not help: the same file is then an
# error, "Integer column has NA values". pyarrow.csv reads the same file exactly, with a null.
#
# Seen: 9007199254740993 becomes 9007199254740992.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'datasets==5.2.0' 'pyarrow==26.0.1'
venv/bin/python - <<'PYTHON'
import datasets
import pyarrow.csv

with open("rows.csv", "w") as file:
    file.write("id,y\n9007199254740993,1\n,2\n")
rows = list(datasets.load_dataset("csv", data_files="rows.csv", split="train", streaming=True))
print(rows)
assert isinstance(rows[0]["id"], float) and int(rows[0]["id"]) == 2**53, "the id is exact: behaviour changed"
assert rows[1]["id"] is None
features = datasets.Features({"id": datasets.Value("int64"), "y": datasets.Value("int64")})
typed = datasets.load_dataset("csv", data_files="rows.csv", split="train", streaming=True, features=features)
try:
    list(typed)
except ValueError as error:
    print(error)
else:
    raise AssertionError("a declared int64 takes a gap: behaviour changed")
assert pyarrow.csv.read_csv("rows.csv")["id"].to_pylist() == [2**53 + 1, None]
PYTHON
