#!/usr/bin/env bash
# soundfile 0.14.0 (libsndfile 1.2.2): an MP3 read in blocks has other samples than the same MP3 read at once.
#
# soundfile.read(path) gives the sound as it was encoded. soundfile.blocks(path, 1000), two calls of SoundFile.read, or
# read(path, start=n) give something else from some thousand samples on: errors of the sound's own size, without an
# exception, in a result of the right length. FLAC and Ogg Vorbis read in blocks are the same as at once. In Vorbis the
# second seek of an open file may give other samples, while a seek in a file just opened does not.
#
# Seen: a sine of amplitude 0.5, MP3 at once within 0.02 of it; in blocks of 1,000 an error of 0.5, from sample 5,000 on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'soundfile==0.14.0' 'numpy==2.4.6'
venv/bin/python - 2>/dev/null <<'PYTHON'
import numpy as np
import soundfile

sine = (np.sin(np.arange(96_000) ** 1.2 / 90) * 0.5).astype(np.float32)
error = {}
for name in ("a.mp3", "a.flac", "a.ogg"):
    soundfile.write(name, sine, 44_100)
    at_once, _ = soundfile.read(name, dtype="float32")
    in_blocks = np.concatenate(list(soundfile.blocks(name, 1000, dtype="float32")))
    assert len(at_once) == len(in_blocks) == len(sine)
    error[name] = [float(np.abs(read - sine)[2000:-2000].max()) for read in (at_once, in_blocks)]
    print(name, [round(each, 3) for each in error[name]])
assert error["a.mp3"][0] < 0.02
assert error["a.mp3"][1] > 0.3, "blocks of an MP3 are right: behaviour changed"
assert error["a.flac"][1] < 0.001
whole, _ = soundfile.read("a.ogg", dtype="float32")
seeks = []
with soundfile.SoundFile("a.ogg") as file:
    for start in (10_000, 50_000, 20_000, 70_000):
        file.seek(start)
        fresh, _ = soundfile.read("a.ogg", start=start, frames=1000, dtype="float32")
        assert (fresh == whole[start : start + 1000]).all()
        seeks.append(bool((file.read(1000, "float32") == fresh).all()))
print("seeks of one open Ogg Vorbis", seeks)
assert seeks[0] and not all(seeks), "later seeks in Vorbis are exact: behaviour changed"
PYTHON
