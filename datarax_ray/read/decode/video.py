"""The row decoders for video, by FFmpeg: the frames that are asked for, each the same as in a decode of all.

A frame's index counts the frames as they are shown. The packets of a file say which frames there are, so decoding
begins at the last key frame before a wanted one. Where packets cannot say so (they have no times, the codec has hidden
frames, or other frames come out than the packets said), every frame is decoded.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from datarax_ray.plan.arguments import NamedArguments, ordered, whole
from datarax_ray.read.decode.encoded import MAX_NBYTES, encoded_in, needed, unreadable
from datarax_ray.read.decode.image import size_of

# Codecs with one shown frame in a packet. VP8 has packets of hidden frames; other codecs were not looked at.
_FRAME_EACH = frozenset(["h264", "hevc", "av1", "vp9", "mpeg4", "mjpeg", "ffv1", "prores"])
_MAX_PIXELS = 2**27  # of a frame, as of an image
_MAX_MISSING_S = 1.0  # at the end of a Matroska file whose header says a duration, which writers round or guess


class _Decoder(NamedArguments):
    size: tuple[int, int] | None
    field: str

    def _element(self, given: Any, choose: Callable[[list[float]], list[int]]) -> dict[str, Any]:
        """choose: the indices of the wanted frames, from the times of all, in seconds after the first one."""
        element, encoded = encoded_in(given, self.field, self, "video")
        av = needed("av", type(self).__name__, "video")
        try:
            # Bytes may be a list of other files or a session to listen to (ffconcat, SDP), which FFmpeg would open.
            with av.open(io.BytesIO(encoded), options={"protocol_whitelist": "none"}) as container:
                video = _Video(container)
                with contextlib.suppress(_OtherFramesError, av.FFmpegError):  # see _found
                    return {**element, **video.chosen(choose, self.size, self.field)}
                video.decode_index()
                return {**element, **video.chosen(choose, self.size, self.field)}
        except av.FFmpegError as error:
            raise unreadable(encoded, f"no video that FFmpeg reads, or a damaged one: {error}") from error


@final
@dataclass(frozen=True)
class DecodeVideo(_Decoder):
    """Decode frames of an MP4, WebM, MKV, AVI or another video that FFmpeg reads.

    It takes a record that is the video's file, or an element that holds one in `field`. Two fields of the result:
    `field`, uint8 (frames, height, width, 3) in RGB, upright as the file says, and `field` + "_times", float64
    (frames,), seconds after the first frame of the video (nan where the file has no times).

    frames: the indices of the wanted frames, in any order; negative ones count from the end. range(0, 64, 2) is a clip.
    times_s: the times of the wanted frames, in seconds after the first frame: for each time the frame on show.
    num_frames: the number of wanted frames, spread evenly: the middles of as many equal parts. Give one of these three,
        or none for all frames, up to 2 GB.
    size: (height, width) to which frames are resized, or one int for both; None keeps each video's own.
    field: the name of the video in the element, encoded before and decoded after; a dict with the file as "bytes"
        counts as one, as Hugging Face stores it.

    Raises: ValueError or TypeError for other arguments.
    Source: av.container.InputContainer.demux, av.VideoFrame.to_ndarray (area averaging where no side grows, bilinear
    where one does).
    """

    frames: Iterable[int] | None = None
    times_s: Iterable[float] | None = None
    num_frames: int | None = None
    size: tuple[int, int] | None = None
    field: str = "video"

    def __post_init__(self) -> None:
        for name, plain in (("frames", lambda each: whole("frames", each)), ("times_s", float)):
            if (wanted := getattr(self, name)) is not None:
                ordered(name, wanted)
                object.__setattr__(self, name, tuple(map(plain, wanted)))
        if self.num_frames is not None:
            whole("num_frames", self.num_frames, least=1)
        given = [each for each in (self.frames, self.times_s, self.num_frames) if each is not None]
        if len(given) > 1 or () in given:
            raise ValueError(f"give frames, times_s or num_frames, one of them and with a frame, got {self}")
        object.__setattr__(self, "size", None if self.size is None else size_of(self.size))

    def map(self, record_or_element: bytes | Mapping[str, Any]) -> dict[str, Any]:
        """A new element with the frames, and their times.

        Raises: ValueError when the element lacks the field, the bytes are not a whole video, or it has no such frame;
        ImportError when PyAV is not installed.
        """
        return self._element(record_or_element, self._choose)

    def _choose(self, times_s: list[float]) -> list[int]:
        count = len(times_s)
        if self.frames is not None:
            if lacking := [index for index in self.frames if not -count <= index < count]:
                raise ValueError(f"frame {lacking[0]} is asked for, and the video has {count} frames, 0 to {count - 1}")
            return [index % count for index in self.frames]
        if self.times_s is not None:
            end = times_s[-1] + times_s[-1] / max(1, count - 1)  # the last frame is on show as long as the others
            if lacking_s := [each for each in self.times_s if not 0 <= each <= end]:
                raise ValueError(f"the frame at {lacking_s[0]} s is asked for, and the video goes to {end:.3f} s")
            return [bisect.bisect_right(times_s, each) - 1 for each in self.times_s]
        parts = self.num_frames or count
        return [(2 * part + 1) * count // (2 * parts) for part in range(parts)]


@final
@dataclass(frozen=True)
class DecodeRandomClip(_Decoder):
    """Decode a clip of each video that begins at a random frame, the same for any number of actors.

    Every beginning is equally likely, and every epoch has another one.

    num_frames: frames of the clip.
    stride: from one frame of the clip to the next one; 1 takes every frame.
    size, field: as of DecodeVideo, as are the fields of the result.

    Raises: ValueError or TypeError for other arguments.
    """

    num_frames: int = 16
    stride: int = 1
    size: tuple[int, int] | None = None
    field: str = "video"

    def __post_init__(self) -> None:
        whole("num_frames", self.num_frames, least=1)
        whole("stride", self.stride, least=1)
        object.__setattr__(self, "size", None if self.size is None else size_of(self.size))

    def random_map(self, record_or_element: bytes | Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """As DecodeVideo.map. Raises: ValueError also when a video has fewer frames than the clip."""
        length = (self.num_frames - 1) * self.stride + 1
        drawn = functools.cache(rng.integers)  # once, also where the frames are looked for a second time

        def choose(times_s: list[float]) -> list[int]:
            if len(times_s) < length:
                raise ValueError(
                    f"the video has {len(times_s)} frames, and a clip of {self.num_frames} with stride {self.stride} "
                    f"takes {length}; take fewer, or skip such videos by on_error='skip'"
                )
            begin = int(drawn(len(times_s) - length + 1))
            return list(range(begin, begin + length, self.stride))

        return self._element(record_or_element, choose)


class _OtherFramesError(ValueError):
    """Other frames come out than the packets said, or damaged ones."""


class _Video:
    """The best video stream of an open container, whose packets are all read here."""

    def __init__(self, container: Any) -> None:
        stream = container.streams.best("video")
        if stream is None:
            raise ValueError("the file has no video; DecodeAudio reads sound")
        every = [packet for packet in container.demux() if packet.dts is not None or packet.size]
        self._packets = [packet for packet in every if packet.stream is stream]
        _refuse_cut(container, stream, every, len(self._packets))
        self._unit, self._codec = stream.time_base, stream.codec_context
        self._codec.thread_count = 1  # Ray counts the CPUs of an actor
        self._codec.options = {"err_detect": "explode", "max_pixels": str(_MAX_PIXELS)}
        shown = [packet.pts for packet in self._packets if not packet.is_discard]
        self._pts: list[Any] = [] if None in shown else sorted(set(shown))  # of the frames
        self._starts = [  # where decoding can begin: a packet, and the index of its frame
            (number, bisect.bisect_left(self._pts, packet.pts))
            for number, packet in enumerate(self._packets)
            if packet.is_keyframe and not packet.is_discard and self._pts
        ]
        in_order = self._starts == sorted(self._starts, key=_index_of) and self._starts[:1] == [(0, 0)]
        if not in_order or len(self._pts) < len(shown) or self._codec.codec.canonical_name not in _FRAME_EACH:
            self.decode_index()

    def decode_index(self) -> None:
        """Let a decode of all say which frames there are."""
        self._starts, self._pts = [(0, 0)], [frame.pts for frame in self._decoded(0)]

    def chosen(self, choose: Callable[[list[float]], list[int]], size: Any, field: str) -> dict[str, np.ndarray]:
        """The two fields of the result."""
        if not self._pts:
            raise ValueError("the video has no frames")
        first = self._pts[0]
        times_s = [math.nan if None in (first, pts) else float((pts - first) * self._unit) for pts in self._pts]
        wanted = choose(times_s)
        width, height = self._codec.width, self._codec.height
        if (nbytes := len(wanted) * width * height * 3) > MAX_NBYTES:
            raise ValueError(
                f"{len(wanted)} frames of {width} × {height} pixels are {nbytes / 1e9:.1f} GB, more than "
                f"{MAX_NBYTES / 1e9:.1f}; take some of them: DecodeVideo(num_frames=16)"
            )
        found = self._found(wanted, size)
        times = np.array([times_s[index] for index in wanted])
        return {field: np.stack([found[index] for index in wanted]), f"{field}_times": times}

    def _found(self, wanted: list[int], size: tuple[int, int] | None) -> dict[int, np.ndarray]:
        """The wanted frames by index.

        Raises: _OtherFramesError and FFmpeg's, also where a valid group is made of frames of the group before it, which
        the decoder has not seen here.
        """
        found: dict[int, np.ndarray] = {}
        rest = sorted(set(wanted), reverse=True)
        while rest:
            packet, first = self._start_of(rest[-1])
            index = first
            for frame in self._decoded(packet):
                if index == len(self._pts) or frame.pts != self._pts[index]:
                    if index == first and frame.pts is not None and frame.pts < self._pts[index]:
                        continue  # shown before its key frame, of which it is made
                    raise _OtherFramesError(f"another frame than {index} comes out")
                if index == rest[-1]:
                    found[rest.pop()] = _pixels(frame, size)
                    if not rest or self._start_of(rest[-1])[1] > index + 1:
                        break
                index += 1
            else:
                raise _OtherFramesError(f"frame {rest[-1]} does not come out")
        return found

    def _start_of(self, index: int) -> tuple[int, int]:
        return self._starts[bisect.bisect_right(self._starts, index, key=_index_of) - 1]

    def _decoded(self, number: int) -> Iterator[Any]:
        """The frames from a packet on, as they come out."""
        self._codec.flush_buffers()
        for packet in (*self._packets[number:], None):
            for frame in self._codec.decode(packet):
                if frame.is_corrupt:
                    raise _OtherFramesError(f"the frame at {frame.time} s is damaged")
                yield frame


def _index_of(start: tuple[int, int]) -> int:
    return start[1]


def _refuse_cut(container: Any, stream: Any, packets: list[Any], count: int) -> None:
    """Raise ValueError where a file is shorter than its header says: FFmpeg reads what there is."""
    kind = container.format.name
    if ("mp4" in kind and count < stream.frames) or any(packet.is_corrupt for packet in packets):
        raise ValueError(f"the video has {count} of the {stream.frames} frames that its header says, or damaged ones")
    if "matroska" in kind and container.duration:
        ends = [(each.pts + (each.duration or 0)) * each.time_base for each in packets if each.pts is not None]
        said, end = container.duration / 1e6, float(max(ends, default=0))
        if said > end + _MAX_MISSING_S:
            raise ValueError(f"the file ends at {end:.1f} s, and its header says {said:.1f} s: it was cut")


def _pixels(frame: Any, size: tuple[int, int] | None) -> np.ndarray:
    """The frame upright, in RGB: uint8 (height, width, 3)."""
    turns = frame.rotation // 90  # against the clock
    if size is None:
        return np.rot90(frame.to_ndarray(format="rgb24"), turns)
    height, width = size[::-1] if turns % 2 else size
    how = "BILINEAR" if height > frame.height or width > frame.width else "AREA"
    return np.rot90(frame.to_ndarray(format="rgb24", height=height, width=width, interpolation=how), turns)
