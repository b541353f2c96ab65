#!/usr/bin/env bash
# pyarrow 26.0.1: ParquetFile.iter_batches(10) ends a batch at each row group where a column is read as a
# dictionary.
#
# Without read_dictionary batches run across row groups and all but the last have 10 rows. With it, the same file
# and the same call give shorter batches in the middle. A loader that finds a row by (number of the batch) x 10,
# or that resumes by a count of batches, is then at another row.
#
# Seen, 20 rows in row groups of 7: [10, 10] without, [7, 3, 4, 6] with read_dictionary.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'pyarrow==26.0.1'
venv/bin/python - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq

table = pa.table({"x": range(20), "s": [str(i % 3) for i in range(20)]})
pq.write_table(table, "rows.parquet", row_group_size=7)
plain = [batch.num_rows for batch in pq.ParquetFile("rows.parquet").iter_batches(10)]
dictionary = [batch.num_rows for batch in pq.ParquetFile("rows.parquet", read_dictionary=["s"]).iter_batches(10)]
print(plain, dictionary)
assert plain == [10, 10]
assert dictionary == [7, 3, 4, 6], "batches are split otherwise: behaviour changed"
PYTHON
