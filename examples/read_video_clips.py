"""How do I train on clips of videos? DecodeRandomClip decodes the frames of one clip, another in each epoch.

Which one depends on seed and position alone. Decoding begins at the last key frame before the clip, so the rest of a
long video costs nothing. For evaluation, DecodeVideo takes the same frames each time.
"""

import tempfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datarax_ray import DecodeRandomClip, DecodeVideo, ParquetSource, ParquetSourceConfig, Pipeline


def write_video(path, seed):
    """100 frames at 25 a second; frame i is as bright as 2 i."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index in range(100):
            picture = np.full((48, 64, 3), 2 * index, np.uint8)
            picture[:, seed * 8 :][:, :8] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()


def pipeline_of(path, decoder):
    config = ParquetSourceConfig(shuffle=True, seed=1, num_epochs=2)
    return Pipeline(source=ParquetSource(config, path, transforms=[decoder]), batch_size=6)


with tempfile.TemporaryDirectory() as directory:
    videos = [write_video(Path(directory) / f"{seed}.mp4", seed) for seed in range(6)]
    path = f"{directory}/videos.parquet"
    pq.write_table(pa.table({"video": videos, "label": range(6)}), path)

    with pipeline_of(path, DecodeRandomClip(num_frames=8, stride=2, size=(32, 32))) as pipeline:
        clips = list(pipeline)
    with pipeline_of(path, DecodeVideo(num_frames=4)) as pipeline:
        spread = list(pipeline)

for batch in clips:
    begins = batch["video_times"][:, 0].tolist()
    print("clips", batch["video"].shape, "begin at", ", ".join(f"{begin:.2f}" for begin in begins), "s")
assert clips[0]["video"].shape == (6, 8, 32, 32, 3)
times = np.asarray(clips[0]["video_times"])
steps = times[:, 1:] - times[:, :-1]
np.testing.assert_allclose(steps, 2 / 25, atol=1e-4)
np.testing.assert_allclose(spread[0]["video_times"], [[0.48, 1.48, 2.48, 3.48]] * 6, atol=1e-4)
