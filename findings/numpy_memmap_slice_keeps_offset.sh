#!/usr/bin/env bash
# numpy 2.4.6: a slice of a memmap says the offset of the whole map, so a second map by its attributes is of other bytes.
#
# A view keeps filename, offset, dtype and shape as attributes, and offset is that of the map that it was cut from.
# Code that sends (filename, offset, shape) to another process, in place of the array, maps the beginning of the file
# there. The true place is offset plus the distance of the two addresses.
#
# Seen: offset 16 for map[100:110], whose bytes begin at 16 + 400; the map that is made of it begins with 0, not 100.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'numpy==2.4.6'
venv/bin/python - <<'PYTHON'
import numpy as np

with open("tokens.bin", "wb") as file:
    file.write(bytes(16) + np.arange(1000, dtype=np.int32).tobytes())
whole = np.memmap("tokens.bin", np.int32, "r", offset=16)
part = whole[100:110]
again = np.memmap(part.filename, part.dtype, "r", offset=part.offset, shape=part.shape)
print(type(part).__name__, part.offset, part[0], again[0])
assert isinstance(part, np.memmap) and part.offset == 16, "a slice has its own offset: behaviour changed"
assert (int(part[0]), int(again[0])) == (100, 0)
distance = part.ctypes.data - whole.ctypes.data
right = np.memmap(part.filename, part.dtype, "r", offset=part.offset + distance, shape=part.shape)
assert right.tolist() == part.tolist()
PYTHON
