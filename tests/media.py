"""Small sounds and videos, written by soundfile and PyAV."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np
import soundfile

FPS = 25


def pictures(count: int, height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """A bar that moves over a ground that grows brighter: uint8 (count, height, width, 3)."""
    made = np.random.default_rng(seed).integers(0, 40, (count, height, width, 3), np.uint8)
    for index, picture in enumerate(made):
        picture += np.uint8(index * 4 % 200)
        picture[:, index * 3 % width :][:, :6] = (250, 20, 20)
    return made


def video(
    frames: np.ndarray, codec: str = "libx264", kind: str = "mp4", *, pts: Any = None, options: Any = None, **more: Any
) -> bytes:
    """A video of these frames. pts: their times in 1/25 s. more: of the codec context (gop_size, max_b_frames)."""
    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        stream: Any = container.add_stream(codec, rate=FPS, options={"threads": "1"} | (options or {}))
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for name, value in ({"gop_size": 12, "max_b_frames": 3} | more).items():
            setattr(stream.codec_context, name, value)
        for index, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = index if pts is None else pts[index], Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


def decoded(encoded: bytes) -> tuple[np.ndarray, list[float]]:
    """Every frame, by PyAV from the beginning to the end, and its time after the first one."""
    with av.open(io.BytesIO(encoded)) as container:
        frames = list(container.decode(video=0))
    times = [np.nan if frame.pts is None else float((frame.pts - frames[0].pts) * frame.time_base) for frame in frames]
    return np.stack([frame.to_ndarray(format="rgb24") for frame in frames]), times


def tone(num_samples: int, num_channels: int = 1) -> np.ndarray:
    """float32 (samples, channels), another pitch in each channel, and louder towards the end."""
    at = np.arange(num_samples)[:, None]
    return (np.sin(at / (9 + 4 * np.arange(num_channels))) * (0.1 + 0.6 * at / num_samples)).astype(np.float32)


def sound(samples: np.ndarray, rate: int = 8000, kind: str = "WAV", subtype: str | None = None) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=kind, subtype=subtype)
    return out.getvalue()
