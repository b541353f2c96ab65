#!/usr/bin/env bash
# Grain 0.2.18: batch() cuts zero bytes from the end of records that are bytes.
#
# Bytes are stacked by NumPy into an array of dtype S, which cannot tell padding from zero bytes at the end of a
# value. Records of raw pixels or of little-endian integers often end with zero bytes, so np.frombuffer of an
# element of the batch has another length than the record, and only for some records.
#
# Seen: [b"a", b"a\\0", b"\\0\\0"] becomes an array of dtype S2 with the elements b"a", b"a", b"". Without batch()
# the records are whole.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'grain==0.2.18' 'jax==0.10.2'
venv/bin/python - <<'PYTHON'
import grain

records = [b"a", b"a\0", b"\0\0"]
source = grain.MapDataset.source(records)
batch = source.batch(3)[0]
print(batch.dtype, batch.tolist())
assert [source[i] for i in range(3)] == records
assert batch.dtype.kind == "S" and batch.tolist() == [b"a", b"a", b""], "zero bytes are kept: behaviour changed"
PYTHON
