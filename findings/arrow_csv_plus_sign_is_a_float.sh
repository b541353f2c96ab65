#!/usr/bin/env bash
# pyarrow 26.0.1: one number with a plus sign makes a CSV column double, and integers beyond 2**53 are rounded unsaid.
#
# Columns of CSV have the type that pyarrow infers. Integers are tried first, and with a plus sign none is an integer to
# pyarrow, though a hexadecimal one without a sign is. So a column of telephone numbers, or of signed differences, is
# double as soon as one value is written "+49...", and every long integer in it becomes the nearest double. pandas
# reads the same column as int64.
#
# Seen: 12 and 13 are int64; +12 and 13 double; 0x10 and 3 int64 (16, 3); +9007199254740993 becomes 9007199254740992.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import io

import pandas as pd
from pyarrow import csv


def read(*values):
    text = "\n".join(["x", *values, ""]).encode()
    column = csv.read_csv(io.BytesIO(text))["x"]
    kind, found, beside = str(column.type), column.to_pylist(), str(pd.read_csv(io.BytesIO(text))["x"].dtype)
    print(*values, "->", kind, found, "pandas:", beside)
    return kind, found, beside


assert read("12", "13") == ("int64", [12, 13], "int64")
assert read("+12", "13") == ("double", [12.0, 13.0], "int64"), "behaviour changed"
assert read("0x10", "3")[:2] == ("int64", [16, 3]), "behaviour changed"
assert read("9007199254740993", "1")[1] == [2**53 + 1, 1]
assert read("+9007199254740993", "1") == ("double", [2.0**53, 1.0], "int64"), "behaviour changed"
assert read("9007199254740993", "+1") == ("double", [2.0**53, 1.0], "int64"), "behaviour changed"
PYTHON
