#!/usr/bin/env bash
# av 18.1.0 (FFmpeg 8): stereo mixed to mono is the mean of the channels in int16, and 1.41 times the mean in float32.
#
# av.AudioResampler(format, layout="mono") mixes by FFmpeg's swresample, which limits the sum of the weights to 1 for
# integers alone. So a float sound may go beyond 1, and a model that is trained on floats hears int16 files 3 dB softer.
# Mono made stereo is 0.71 of the mono in both. The option rematrix_maxval=1.0 of FFmpeg's aresample gives the mean.
#
# Seen: two equal channels of 0.8 become 1.131 in float32; 0.8 of int16's range become 0.8 of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'av==18.1.0' 'numpy==2.4.6'
venv/bin/python - <<'PYTHON'
import av
import numpy as np


def mixed(samples, kind, given, wanted):
    frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format=kind, layout=given)
    frame.sample_rate = 16_000
    resampler = av.AudioResampler(kind, wanted, 16_000)
    parts = [part.to_ndarray() for each in (frame, None) for part in resampler.resample(each)]
    return np.concatenate(parts, axis=1)[0]


stereo = np.full((1000, 2), 0.8, np.float32)
floats = float(mixed(stereo, "flt", "stereo", "mono")[500])
ints = float(mixed((stereo * 32767).astype(np.int16), "s16", "stereo", "mono")[500]) / 32767
back = float(mixed(stereo[:, :1].copy(), "flt", "mono", "stereo")[500])
print(round(floats, 3), round(ints, 3), round(back, 3))
assert abs(ints - 0.8) < 0.001
assert abs(floats - 0.8 * 2**0.5) < 0.001, "a mono of floats is the mean: behaviour changed"
assert abs(back - 0.8 / 2**0.5) < 0.001, "stereo of mono keeps its level: behaviour changed"
PYTHON
