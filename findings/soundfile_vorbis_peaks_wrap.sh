#!/usr/bin/env bash
# soundfile 0.14.0 (libsndfile 1.2.2): the peaks of a loud Ogg Vorbis file read as int16 are of the opposite sign.
#
# A lossy codec gives back a sine of amplitude 1.0 with peaks of 1.02. soundfile.read(path, dtype="int16") makes 32767 of
# an MP3's, and wraps those of Vorbis round: 1.02 becomes -32768 and the like, a loud click each, without an exception.
#
# Seen: 469 of 16,000 samples of the opposite sign in Vorbis, none in MP3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'soundfile==0.14.0' 'numpy==2.4.6'
venv/bin/python - 2>/dev/null <<'PYTHON'
import numpy as np
import soundfile

sine = np.sin(np.arange(16_000) / 9)
wrong = {}
for name in ("a.mp3", "a.ogg"):
    soundfile.write(name, sine, 16_000)
    floats, _ = soundfile.read(name)
    ints, _ = soundfile.read(name, dtype="int16")
    assert floats.max() > 1.0
    wrong[name] = int((np.abs(ints / 2**15 - np.clip(floats, -1, 1)) > 1.9).sum())
    print(name, "largest", round(float(floats.max()), 3), "samples of the opposite sign", wrong[name])
assert wrong["a.mp3"] == 0
assert wrong["a.ogg"] > 0, "peaks of Vorbis are cut off: behaviour changed"
PYTHON
