#!/usr/bin/env bash
# Lance 14.0.2: an update or a merge_insert that changes one value moves that row behind the last one.
#
# take(i), to_table() and scans count rows in the order of fragments. An updated row is written to a new fragment,
# so row i is another row in the next version, and every row behind it has an index less by one. A loader that
# resumes by index at the latest version skips one row and reads another twice; it has to open the version that it
# began with.
#
# Seen, 10 rows 0 to 9: after update(x=100 where x=3) the order is 0 1 2 4 5 6 7 8 9 100, and take([3]) gives 4.
# Version 1 still gives 3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'pylance==14.0.2' 'pyarrow==26.0.1'
venv/bin/python - <<'PYTHON'
import lance
import pyarrow as pa

rows = lance.write_dataset(pa.table({"x": range(10)}), "rows.lance")
rows.update({"x": "100"}, where="x = 3")
latest = rows.to_table()["x"].to_pylist()
print(latest, rows.take([3])["x"].to_pylist())
assert latest == [0, 1, 2, 4, 5, 6, 7, 8, 9, 100], "the row stays in its place: behaviour changed"
assert rows.take([3])["x"].to_pylist() == [4]
assert lance.dataset("rows.lance", version=1).take([3])["x"].to_pylist() == [3]
merged = lance.write_dataset(pa.table({"x": range(5), "y": [0] * 5}), "merged.lance")
merged.merge_insert("x").when_matched_update_all().execute(pa.table({"x": [2], "y": [9]}))
assert merged.to_table()["x"].to_pylist() == [0, 1, 3, 4, 2]
PYTHON
