#!/usr/bin/env bash
# pyarrow 26.0.1: a timestamp of type INT96 after the year 2262 is read as another date, without an error.
#
# INT96 holds a day and nanoseconds of the day, for any date; it is what Spark wrote by default for years. pyarrow
# reads it as timestamp[ns], whose 64 bits end in April 2262, and the multiplication wraps. 9999-12-31 and 3000-01-01,
# which warehouses use for "no end", become dates in the 19th century. coerce_int96_timestamp_unit="us" reads them.
#
# Seen: 3000-01-01 is read as 1830-11-23 00:50:52.580896768.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'pyarrow==26.0.1'
venv/bin/python - <<'PYTHON'
import datetime

import pyarrow as pa
from pyarrow import parquet

day = datetime.datetime(3000, 1, 1)
table = pa.table({"until": pa.array([day], pa.timestamp("us"))})
parquet.write_table(table, "rows.parquet", use_deprecated_int96_timestamps=True)
found = parquet.read_table("rows.parquet")["until"]
print(found.type, found.cast(pa.int64()).to_pylist(), found.cast(pa.timestamp("s"), safe=False).to_pylist())
assert found.type == pa.timestamp("ns")
assert found.cast(pa.timestamp("s"), safe=False).to_pylist()[0].year == 1830, "the date is right: behaviour changed"
exact = parquet.read_table("rows.parquet", coerce_int96_timestamp_unit="us")["until"]
assert exact.to_pylist() == [day]
PYTHON
