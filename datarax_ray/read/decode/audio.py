"""The row decoder for sound, by libsndfile."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np
import numpy.typing as npt

from datarax_ray.plan.arguments import NamedArguments, flag, whole
from datarax_ray.read.decode.encoded import MAX_NBYTES, encoded_in, needed, unreadable

_FORMATS = {"float32": "flt", "float64": "dbl", "int16": "s16", "int32": "s32"}  # by FFmpeg's names
_EXACT_SEEK = re.compile("PCM_|FLOAT|DOUBLE")  # libsndfile 1.2.2 reads parts of MP3 and Vorbis other than in the whole
# Of these libsndfile makes whole numbers without scaling them to the range of ints, or wraps a peak above it.
_FLOATS = {"FLOAT", "DOUBLE", "VORBIS", "OPUS"}
_CUT = re.compile(r"(\d+) \(should be (\d+)\)")  # what libsndfile notes of the sizes in a header
_STREAMED = 2**31 - 2**16  # and more: the size that writers to a pipe leave in a header
_LAST_PAGE = 4  # in the flags of an Ogg page. Source: RFC 3533, section 6


@final
@dataclass(frozen=True)
class DecodeAudio(NamedArguments):
    """Decode WAV, FLAC, Ogg Vorbis, Opus, MP3, AIFF or another sound that libsndfile reads.

    It takes a record that is the sound's file, or an element that holds one in `field`. Two fields of the result:
    `field`, samples (samples, channels), and `field` + "_rate", int, the samples of a second.

    sample_rate: of the result, in Hz; FFmpeg resamples a sound with another one. None keeps each sound's own.
    mono: whether FFmpeg mixes all channels to one, stereo to its mean; otherwise each sound keeps its own.
    dtype: "float32" or "float64", within [-1, 1) unless the file has louder floats; "int16" or "int32", which cut those
        off.
    start_s: where to begin, in seconds.
    duration_s: how much to decode, in seconds; None for all. A sound that ends earlier gives less.
    field: the name of the sound in the element, encoded before and decoded after; a dict with the file as "bytes"
        counts as one, as Hugging Face stores it.

    Raises: ValueError or TypeError for other arguments.
    Source: soundfile.SoundFile; FFmpeg's aresample by PyAV, of the extra `video`, for another rate, and for mono.
    """

    sample_rate: int | None = None
    mono: bool = False
    dtype: str = "float32"
    start_s: float = 0.0
    duration_s: float | None = None
    field: str = "audio"

    def __post_init__(self) -> None:
        if self.sample_rate is not None:
            whole("sample_rate", self.sample_rate, ", in Hz", least=1)
        flag("mono", self.mono)
        if self.dtype not in _FORMATS:
            raise ValueError(f"dtype is one of {', '.join(_FORMATS)}, got {self.dtype!r}")
        if not self.start_s >= 0 or not (self.duration_s is None or self.duration_s > 0):
            given = f"{self.start_s} and {self.duration_s}"
            raise ValueError(f"start_s is at least 0 and duration_s more than 0, in seconds, got {given}")

    def map(self, record_or_element: bytes | Mapping[str, Any]) -> dict[str, Any]:
        """A new element with the sound decoded: `dtype` (samples, channels), and its rate.

        Raises: ValueError when the element lacks the field, or the bytes are not a whole sound; ImportError when
        soundfile is not installed, or PyAV, to resample.
        """
        element, encoded = encoded_in(record_or_element, self.field, self, "sound")
        soundfile = needed("soundfile", "DecodeAudio", "audio")
        try:
            with soundfile.SoundFile(io.BytesIO(encoded)) as file:
                _refuse_cut(file, encoded)
                samples, rate = self._samples(file), file.samplerate
        except soundfile.LibsndfileError as error:
            cause = f"no sound that libsndfile reads, or a damaged one: {error.error_string}"
            raise unreadable(encoded, cause) from error
        if (self.sample_rate or rate) != rate or (self.mono and samples.shape[1] > 1):
            samples, rate = self._resampled(samples, rate)
        return {**element, self.field: samples, f"{self.field}_rate": rate}

    def _samples(self, file: Any) -> npt.NDArray[Any]:
        """The samples from start_s on, as many as are wanted and there."""
        start = round(self.start_s * file.samplerate)
        if start >= file.frames:
            length = f"{file.frames / file.samplerate:.3f} s"
            raise ValueError(f"the sound has {length}, and start_s={self.start_s} is behind its end")
        wanted = file.frames - start
        if self.duration_s is not None:
            wanted = min(wanted, round(self.duration_s * file.samplerate))
        begin = start if _EXACT_SEEK.match(file.subtype) else 0
        count = wanted if begin == start else file.frames
        is_scaled = self.dtype.startswith("int") and file.subtype in _FLOATS
        dtype = "float64" if is_scaled else self.dtype
        if (nbytes := count * file.channels * np.dtype(dtype).itemsize) > MAX_NBYTES:
            raise ValueError(
                f"{count} samples of {file.channels} channels are {nbytes / 1e9:.1f} GB as {dtype}, more than "
                f"{MAX_NBYTES / 1e9:.1f}; take a part of a FLAC or WAV file by start_s and duration_s"
            )
        file.seek(begin)  # to 0, too, as soundfile.read does; without, the last bits of an MP3 differ
        samples = file.read(count, dtype, always_2d=True)
        if len(samples) != count:
            raise ValueError(f"{len(samples)} samples of {count} are there: the sound was cut, or is damaged")
        if is_scaled:
            range_ = np.iinfo(self.dtype)
            samples = np.clip(np.rint(samples * -float(range_.min)), range_.min, range_.max).astype(self.dtype)
        return samples if begin == start else samples[start : start + wanted].copy()

    def _resampled(self, samples: npt.NDArray[Any], rate: int) -> tuple[npt.NDArray[Any], int]:
        av = needed("av", "DecodeAudio with sample_rate or mono", "video")
        num_channels, kind, made = samples.shape[1], _FORMATS[self.dtype], self.sample_rate or rate
        layout = {1: "mono", 2: "stereo"}.get(num_channels, f"{num_channels}c")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples).reshape(1, -1), format=kind, layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        graph = av.filter.Graph()
        given = graph.add_abuffer(sample_rate=rate, format=kind, layout=layout, time_base=frame.time_base)
        # Without the last option a mean of floats is sqrt(2) times as loud as one of ints.
        wanted = f"osr={made}:osf={kind}:ochl={'mono' if self.mono else layout}:rematrix_maxval=1.0"
        graph.link_nodes(given, graph.add("aresample", wanted), graph.add("abuffersink")).configure()
        graph.push(frame)
        graph.push(None)
        parts = []
        with contextlib.suppress(av.EOFError):  # the end
            while True:
                parts.append(graph.pull().to_ndarray())
        if not parts:
            raise ValueError(f"{len(samples)} samples are fewer than FFmpeg resamples, from {rate} to {made} Hz")
        return np.concatenate(parts, axis=1).reshape(-1, 1 if self.mono else num_channels), made


def _refuse_cut(file: Any, encoded: bytes) -> None:
    """Raise ValueError where a file is shorter than its header says: libsndfile reads what there is."""
    sizes = [(int(said), int(found)) for said, found in _CUT.findall(file.extra_info)]
    is_cut = not file.frames or any(found < said < _STREAMED for said, found in sizes)
    if file.format == "OGG":
        page = encoded[encoded.rfind(b"OggS") :]
        num_segments = page[26] if len(page) > 26 else 255
        is_cut = len(page) < 27 + num_segments + sum(page[27 : 27 + num_segments]) or not page[5] & _LAST_PAGE
    if is_cut:
        raise unreadable(encoded, f"a {file.format} file without its end")
    begin = 0
    if encoded.startswith(b"ID3"):  # a tag; its length has seven bits in each byte. Source: ID3v2.3, section 3.1
        begin = 10 + sum((byte & 127) << 7 * place for place, byte in enumerate(reversed(encoded[6:10])))
    if file.format == "MP3" and not re.search(b"Xing|Info", encoded[begin : begin + 200]):
        cause = "an MP3 that does not say its length (Xing, Info); libsndfile guesses it and drops the rest. "
        raise unreadable(encoded, f"{cause}ffmpeg -i IN.mp3 -c copy OUT.mp3 writes the length")
