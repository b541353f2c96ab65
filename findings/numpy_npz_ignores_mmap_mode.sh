#!/usr/bin/env bash
# numpy 2.4.6: np.load("a.npz", mmap_mode="r") maps nothing. Each access of an array reads all of it into memory again.
#
# mmap_mode is taken without a word for archives, stored or compressed alike, and has no effect: the arrays are
# ndarrays of their own memory, and two accesses of one name give two copies. Only a .npy file is mapped. A token
# file of 100 GB kept as .npz with mmap_mode="r" is read whole, at each index into it.
#
# Seen: type ndarray for .npz, memmap for .npy; data["x"] is another array each time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'numpy==2.4.6'
venv/bin/python - <<'PYTHON'
import numpy as np

tokens = np.arange(1000)
np.savez("tokens.npz", x=tokens)
np.save("tokens.npy", tokens)
archive = np.load("tokens.npz", mmap_mode="r")
print(type(archive["x"]).__name__, type(np.load("tokens.npy", mmap_mode="r")).__name__)
assert type(archive["x"]) is np.ndarray, "an archive is mapped: behaviour changed"
assert isinstance(np.load("tokens.npy", mmap_mode="r"), np.memmap)
assert not np.shares_memory(archive["x"], archive["x"])
PYTHON
