"""Sounds and videos: what soundfile and PyAV give of the whole file is the oracle for every part of it."""

import dataclasses
import io
import pickle
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from datarax_ray.read.decode import DecodeAudio, DecodeRandomClip, DecodeVideo
from datarax_ray.read.decode import video as video_module
from tests.media import decoded, pictures, sound, tone, video

av = pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")
av.logging.set_level(av.logging.PANIC)  # of the encoders

OPEN_GOP = {"x264-params": "open-gop=1:keyint=12:scenecut=0:log-level=none"}
HIDDEN = {"auto-alt-ref": "1", "lag-in-frames": "10"}
VARIABLE = np.cumsum(np.tile([1, 2, 1, 7], 10)) + 90  # times that do not begin at 0 and have gaps
FRAMES = pictures(40)
RECIPES = {
    "h264 with B-frames": {},
    "h264 with open groups, from 3.6 s on": {"pts": VARIABLE, "options": OPEN_GOP},
    "h264 in Matroska": {"kind": "matroska", "pts": VARIABLE, "options": OPEN_GOP},
    "h264 in MPEG-TS": {"kind": "mpegts", "options": OPEN_GOP},
    "hevc": {"codec": "libx265", "options": {"x265-params": "log-level=none:open-gop=1:keyint=12"}},
    "vp9": {"codec": "libvpx-vp9", "kind": "webm", "pts": VARIABLE},
    "mpeg4 in AVI": {"codec": "mpeg4", "kind": "avi"},
    "h264 without times": {"kind": "h264"},
    "vp8, with hidden frames": {"codec": "libvpx", "kind": "webm", "options": HIDDEN},
    "mpeg2": {"codec": "mpeg2video", "kind": "mpegts"},
}


class Videos(dict[str, bytes]):
    """By name, each made when it is first asked for."""

    def __missing__(self, name):
        self[name] = video(FRAMES, **RECIPES[name])
        return self[name]


VIDEOS = Videos()
SEQUENTIAL = ("h264 without times", "vp8, with hidden frames", "mpeg2")


@pytest.fixture
def num_decoded(monkeypatch):
    """The packets from which decoding began."""
    begun = []
    decoded = video_module._Video._decoded
    monkeypatch.setattr(video_module._Video, "_decoded", lambda *args: begun.append(args[1]) or decoded(*args))
    return begun


@pytest.mark.parametrize("name", RECIPES)
def test_frames_by_index_are_those_of_a_whole_decode(name, num_decoded):
    frames, times = decoded(VIDEOS[name])
    assert len(frames) == 40
    rng = np.random.default_rng(0)
    choices = [[index] for index in range(0, 40, 3)] + [rng.integers(-40, 40, 5).tolist() for _ in range(6)]
    for chosen in (*choices, [39, 0, 0], range(10, 30, 3)):
        made = DecodeVideo(frames=chosen).map({"video": VIDEOS[name], "label": 1})
        assert (made["label"], made["video"].dtype) == (1, np.uint8)
        assert (made["video"] == frames[list(chosen)]).all()
        np.testing.assert_array_equal(made["video_times"], np.array(times)[list(chosen)])
    whole = DecodeVideo(field="v").map(VIDEOS[name])
    assert (whole["v"] == frames).all()
    assert len(whole["v_times"]) == 40
    assert any(num_decoded) != (name in SEQUENTIAL)


def test_only_the_group_of_a_frame_is_decoded(num_decoded):
    DecodeVideo(frames=[39]).map(VIDEOS["h264 with B-frames"])
    assert num_decoded == [33]  # of 0, 11, 22 and 33
    num_decoded.clear()
    DecodeVideo().map(VIDEOS["h264 with B-frames"])
    assert num_decoded == [0]


def test_where_packets_say_other_frames_than_come_out_everything_is_decoded(monkeypatch, num_decoded):
    """As if one packet held no picture of its own, which the fields of interlaced videos do not."""
    read = video_module._Video.__init__

    def with_one_more(self, container):
        read(self, container)
        self._pts.insert(5, self._pts[4] + 1)
        self._starts = [(packet, index + (index > 4)) for packet, index in self._starts]

    monkeypatch.setattr(video_module._Video, "__init__", with_one_more)
    encoded = VIDEOS["h264 with B-frames"]
    frames, _ = decoded(encoded)
    for index in (5, 6, 7):
        assert (DecodeVideo(frames=[index]).map(encoded)["video"][0] == frames[index]).all()
    assert num_decoded == [0] * 9  # the packets', all, and the wanted ones, three times
    with pytest.raises(ValueError, match="frame -41 is asked for, and the video has 40 frames"):
        DecodeVideo(frames=[5, -41]).map(encoded)


def test_frames_by_time_are_those_on_show():
    encoded = VIDEOS["h264 with open groups, from 3.6 s on"]
    frames, times = decoded(encoded)
    wanted = [0, 0.01, 0.079, 0.08, 1.0, times[-1], times[-1] + 0.05, *times]
    shown = [max(index for index, time in enumerate(times) if time <= each) for each in wanted]
    made = DecodeVideo(times_s=wanted).map(encoded)
    assert (made["video"] == frames[shown]).all()
    assert made["video_times"].tolist() == [times[index] for index in shown]


def test_frames_are_spread_evenly():
    encoded = VIDEOS["vp9"]
    frames, _ = decoded(encoded)
    for count, indices in ((1, [20]), (4, [5, 15, 25, 35]), (80, [i // 2 for i in range(80)])):
        assert (DecodeVideo(num_frames=count).map(encoded)["video"] == frames[indices]).all()


def test_every_beginning_of_a_clip_is_as_likely():
    clip, encoded = DecodeRandomClip(4, stride=12), VIDEOS["h264 with B-frames"]
    frames, _ = decoded(encoded)
    begins = []
    for seed in range(40):
        made = clip.random_map({"video": encoded}, np.random.default_rng(seed))
        begins.append(round(made["video_times"][0] * 25))
        assert (made["video"] == frames[begins[-1] : begins[-1] + 37 : 12]).all()
    assert set(begins) == {0, 1, 2, 3}
    assert max(begins.count(each) for each in range(4)) < 19

    class Once:
        def integers(self, most):
            return begins.append(most) or most // 2

    begins.clear()
    DecodeRandomClip(5).random_map({"video": VIDEOS["h264 with open groups, from 3.6 s on"]}, Once())
    assert begins == [36]  # a second draw for clips of open groups alone would prefer the others
    with pytest.raises(ValueError, match="has 40 frames, and a clip of 5 with stride 10 takes 41"):
        DecodeRandomClip(5, stride=10).random_map(encoded, np.random.default_rng(0))


@pytest.mark.parametrize(("degrees", "turns"), [(90, 3), (180, 2), (270, 1)])
def test_a_video_is_upright_and_of_the_size_that_was_asked_for(degrees, turns):
    """As a phone writes it: the pictures lie, and the header says by how much to turn them, with the clock."""
    one = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    matrix = struct.pack(">9i", one[0] << 16, one[1] << 16, 0, -one[1] << 16, one[0] << 16, 0, 0, 0, 1 << 30)
    plain = VIDEOS["h264 with B-frames"]
    at = plain.index(b"tkhd") + 44
    encoded = plain[:at] + matrix + plain[at + 36 :]
    made = DecodeVideo(frames=[0, 20]).map(encoded)["video"]
    assert (made == np.rot90(decoded(plain)[0][[0, 20]], turns, axes=(1, 2))).all()
    assert DecodeVideo(frames=[7], size=(20, 30)).map(encoded)["video"].shape == (1, 20, 30, 3)
    if degrees == 180:
        small = DecodeVideo(frames=[7], size=(24, 32)).map(encoded)["video"][0].astype(int)
        halves = np.rot90(decoded(plain)[0][7], 2).reshape(24, 2, 32, 2, 3).mean(axis=(1, 3))
        assert np.abs(small - halves).mean() < 6


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in SEQUENTIAL])
def test_a_damaged_video_is_refused_or_gives_frames_of_its_own(name):
    """A flipped byte without a checksum may decode to something; it never ends in another kind of error."""
    encoded = VIDEOS[name]
    rng, num_refused = np.random.default_rng(1), 0
    for _ in range(15):
        at = int(rng.integers(len(encoded)))
        broken = encoded[:at] + bytes([encoded[at] ^ int(rng.integers(1, 256))]) + encoded[at + 1 :]
        try:
            DecodeVideo().map(broken)
        except ValueError:
            num_refused += 1
    assert num_refused or name == "vp9"


def test_no_file_or_network_that_bytes_name_is_opened(tmp_path, monkeypatch):
    """FFmpeg takes such text as a video, and opens what it names."""
    monkeypatch.chdir(tmp_path)
    Path("secret.mp4").write_bytes(VIDEOS["h264 with B-frames"])
    playlist = b"ffconcat version 1.0\nfile secret.mp4\n"
    with av.open(io.BytesIO(playlist)) as container:
        assert len(list(container.decode(video=0))) == 40
    session = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
    for encoded in (playlist, session + b"a=rtpmap:96 H264/90000\n"):
        with pytest.raises(ValueError, match="are no video that FFmpeg reads"):
            DecodeVideo().map(encoded)


def test_a_sound_whose_header_says_more_than_2_gb_takes_no_memory():
    """FLAC's header has 36 bits for the number of samples."""
    flac = bytearray(sound(tone(800), kind="FLAC"))
    flac[21:26] = bytes([flac[21] | 15]) + b"\xff" * 4
    with pytest.raises(ValueError, match=r"samples of 1 channels are 274\.9 GB as float32, more than 2\.1"):
        DecodeAudio().map(bytes(flac))


def cut(mp4, num_bytes):
    """An MP4 whose index comes first, as for streaming, and that ends too early."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        with av.open(io.BytesIO(mp4)) as given, av.open(file.name, "w", options={"movflags": "faststart"}) as made:
            stream = made.add_stream_from_template(given.streams.video[0])
            for packet in given.demux():
                if packet.dts is not None:
                    packet.stream = stream
                    made.mux(packet)
        return Path(file.name).read_bytes()[:-num_bytes]


def half_of_a_webm():
    encoded = video(np.repeat(FRAMES, 2, axis=0), "libvpx-vp9", "webm")
    return encoded[: len(encoded) // 2]


@pytest.mark.parametrize(
    ("decoder", "encoded", "message"),
    [
        (DecodeVideo(), b"", "0 bytes that begin b'' are no video that FFmpeg reads"),
        (DecodeVideo(), b"text" * 99, "are no video that FFmpeg reads"),
        (DecodeVideo(), lambda: VIDEOS["h264 with B-frames"][:-300], "are no video that FFmpeg reads"),
        (DecodeVideo(frames=[0]), lambda: cut(VIDEOS["h264 with B-frames"], 900), "of the 40 frames that its header"),
        (DecodeVideo(frames=[0]), half_of_a_webm, r"file ends at .*, and its header says 3\.2 s: it was cut"),
        (DecodeVideo(), sound(tone(800)), "the file has no video; DecodeAudio reads sound"),
        (DecodeVideo(frames=[3, 40]), lambda: VIDEOS["vp9"], "frame 40 is asked for, and the video has 40 .* 0 to 39"),
        (DecodeVideo(frames=[-41]), lambda: VIDEOS["vp9"], "frame -41 is asked for"),
        (DecodeVideo(times_s=[9.0]), lambda: VIDEOS["h264 with B-frames"], r"at 9\.0 s .* the video goes to 1\.600 s"),
        (DecodeVideo(times_s=[0.5]), lambda: VIDEOS["h264 without times"], r"at 0\.5 s is asked for"),
        (DecodeVideo(), {"clip": b"abc"}, r"no field 'video'; .*: DecodeVideo\(field='clip'\)"),
        (DecodeVideo(), {"video": {"bytes": None, "path": "a.mp4"}}, "the video has no bytes, and its path is 'a.mp4'"),
        (DecodeVideo(), {"video": np.zeros(3)}, "an encoded video is bytes, and this one is a ndarray"),
        (DecodeAudio(), b"", "0 bytes that begin b'' are no sound that libsndfile reads"),
        (DecodeAudio(), lambda: VIDEOS["vp9"], "are no sound that libsndfile reads"),
        (DecodeAudio(), sound(tone(0)), "are a WAV file without its end"),
        (DecodeAudio(sample_rate=16_000), sound(tone(3)), "3 samples are fewer than FFmpeg resamples, from 8000"),
        (DecodeAudio(start_s=1), sound(tone(4000)), r"the sound has 0\.500 s, and start_s=1 is behind its end"),
        (DecodeAudio(), {"audio": {"bytes": None, "path": "a.wav"}}, "the sound has no bytes, and its path is 'a.wav'"),
    ],
)
def test_what_cannot_be_decoded_is_refused(decoder, encoded, message):
    with pytest.raises(ValueError, match=message):
        decoder.map(encoded() if callable(encoded) else encoded)


SOUNDS = {
    "WAV": ("PCM_16", "FLOAT"),
    "FLAC": ("PCM_16", "PCM_24"),
    "AIFF": ("PCM_16",),
    "OGG": ("VORBIS", "OPUS"),
    "MP3": ("MPEG_LAYER_III",),
}
KINDS = [(kind, subtype) for kind, subtypes in SOUNDS.items() for subtype in subtypes]


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_sounds_and_parts_of_them_are_those_of_a_whole_read(kind, subtype, dtype):
    encoded = sound(tone(24_000, 2), 8000, kind, subtype)
    is_scaled = dtype == "int16" and subtype in {"FLOAT", "VORBIS", "OPUS"}  # by libsndfile to 0 and 1, or not clipped
    whole, rate = soundfile.read(io.BytesIO(encoded), dtype="float64" if is_scaled else dtype, always_2d=True)
    if is_scaled:
        whole = np.clip(np.rint(whole * 2**15), -(2**15), 2**15 - 1)
    made = DecodeAudio(dtype=dtype).map({"audio": {"bytes": encoded, "path": None}, "label": 1})
    assert (list(made), made["audio_rate"], rate) == (["audio", "label", "audio_rate"], 8000, 8000)
    assert made["audio"].dtype == dtype
    assert (made["audio"] == whole).all()
    for start in (0.0, 0.7013, 2.5):
        part = DecodeAudio(dtype=dtype, start_s=start, duration_s=1.0, field="x").map(encoded)["x"]
        assert (part == whole[round(start * 8000) :][:8000]).all()


@pytest.mark.parametrize("subtype", ["PCM_24", "FLOAT", "DOUBLE", "VORBIS", "OPUS"])
@pytest.mark.parametrize("dtype", ["int16", "int32"])
def test_ints_of_a_loud_sound_are_its_floats_cut_off(subtype, dtype):
    """libsndfile 1.2.2 makes 0 and 1 of floats, and -32768 of a Vorbis peak of 1.02."""
    samples = np.sin(np.arange(16_000)[:, None] / 9) * (1.5 if subtype in {"FLOAT", "DOUBLE"} else 1.0)
    encoded = sound(samples, 48_000, "OGG" if subtype in {"VORBIS", "OPUS"} else "WAV", subtype)
    floats = DecodeAudio(dtype="float64").map(encoded)["audio"]
    ints = DecodeAudio(dtype=dtype).map(encoded)["audio"]
    assert ints.dtype == dtype
    np.testing.assert_allclose(ints / -float(np.iinfo(dtype).min), np.clip(floats, -1, 1), atol=2**-15)


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
def test_a_sound_that_was_cut_is_refused(kind, subtype):
    encoded = sound(tone(24_000, 2), 8000, kind, subtype)
    for kept in (0.5, 0.98):
        with pytest.raises(ValueError, match="are no sound|without its end|the sound was cut"):
            DecodeAudio().map(encoded[: int(kept * len(encoded))])


def test_sizes_that_a_pipe_left_open_are_no_cut():
    encoded = bytearray(sound(tone(24_000)))
    at = encoded.index(b"data") + 4
    encoded[4:8] = encoded[at : at + 4] = b"\xff" * 4
    assert DecodeAudio().map(bytes(encoded))["audio"].shape == (24_000, 1)


def test_an_mp3_that_does_not_say_its_length_is_refused():
    """libsndfile 1.2.2 guesses it by the first frames, and reads no more than that."""
    mp3 = sound(tone(24_000), kind="MP3")
    tag = b"ID3\x03\0\0" + bytes([0, 0, 2, 0]) + bytes(256)
    second = mp3.index(mp3[:2], 2)  # behind the frame that counts the others
    with soundfile.SoundFile(io.BytesIO(mp3[second:])) as file:
        assert len(file.read()) < 12_000
    assert len(DecodeAudio().map(tag + mp3)["audio"]) == 24_000
    for guessed in (mp3[second:], tag + mp3[second:]):
        with pytest.raises(ValueError, match="does not say its length .* ffmpeg -i IN.mp3 -c copy OUT.mp3"):
            DecodeAudio().map(guessed)
    with pytest.raises(ValueError, match="samples of 24000 are there: the sound was cut"):
        DecodeAudio().map(tag + mp3[: len(mp3) // 2])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32"])
def test_sounds_are_resampled_and_mixed_as_asked(dtype):
    samples = tone(16_000, 2)
    decoder = DecodeAudio(sample_rate=24_000, mono=True, dtype=dtype)
    made = decoder.map(sound(samples, 16_000, subtype="DOUBLE" if dtype == "float64" else "PCM_24"))
    assert (made["audio"].dtype, made["audio"].shape[1], made["audio_rate"]) == (dtype, 1, 24_000)
    assert abs(len(made["audio"]) - 24_000) <= 40
    scale = np.iinfo(dtype).max if dtype.startswith("int") else 1
    # a tone at other times: what it would be, sampled more often
    at = np.arange(24_000)[:, None] * 16_000 / 24_000
    expected = (np.sin(at / [9, 13]) * (0.1 + 0.6 * at / 16_000)).mean(axis=1)
    middle = slice(1000, 22_000)
    np.testing.assert_allclose(made["audio"][middle, 0] / scale, expected[middle], atol=0.01)
    for given in (samples[:, :1], samples):  # nothing is to be done
        decoder = DecodeAudio(sample_rate=16_000, mono=given is not samples, dtype=dtype)
        assert (
            decoder.map(sound(given, 16_000))["audio"] == DecodeAudio(dtype=dtype).map(sound(given, 16_000))["audio"]
        ).all()
    mixed = DecodeAudio(mono=True, dtype=dtype).map(sound(tone(800, 5), 16_000))["audio"]
    assert mixed.shape == (800, 1)


DECODERS = [
    (
        DecodeAudio(16_000, True, start_s=0.5),
        "DecodeAudio(sample_rate=16000, mono=True, dtype='float32', start_s=0.5, duration_s=None, field='audio')",
    ),
    (
        DecodeVideo(range(0, 6, 2), size=[8, 9]),
        "DecodeVideo(frames=(0, 2, 4), times_s=None, num_frames=None, size=(8, 9), field='video')",
    ),
    (DecodeRandomClip(8, 2), "DecodeRandomClip(num_frames=8, stride=2, size=None, field='video')"),
]


@pytest.mark.parametrize(("decoder", "text"), DECODERS)
def test_decoders_are_plain_values(decoder, text):
    assert repr(decoder) == text
    again = [pickle.loads(pickle.dumps(decoder)), eval(text), dataclasses.replace(decoder)]
    assert [(value, hash(value)) for value in again] == [(decoder, hash(decoder))] * 3


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: DecodeAudio(0), ValueError, "sample_rate must be at least 1"),
        (lambda: DecodeAudio(mono=3), TypeError, "mono is True or False"),
        (lambda: DecodeAudio(dtype="int8"), ValueError, "dtype is one of float32"),
        (lambda: DecodeAudio(duration_s=0), ValueError, "start_s is at least 0 and duration_s more than 0"),
        (lambda: DecodeVideo([]), ValueError, "give frames, times_s or num_frames, one of them and with a frame"),
        (lambda: DecodeVideo([1], [0.5]), ValueError, "give frames, times_s or num_frames"),
        (lambda: DecodeVideo([0.5]), TypeError, "frames is a whole number, got 0.5"),
        (lambda: DecodeVideo({1, 2}), TypeError, "frames is a set"),
        (lambda: DecodeVideo(num_frames=0), ValueError, "num_frames must be at least 1"),
        (lambda: DecodeVideo(size=(0, 8)), ValueError, "size must be at least 1"),
        (lambda: DecodeRandomClip(0), ValueError, "num_frames must be at least 1"),
        (lambda: DecodeRandomClip(stide=2), TypeError, "Did you mean 'stride'"),
    ],
)
def test_settings_that_make_no_decoder_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_what_is_not_installed_is_said(monkeypatch):
    for name in ("av", "soundfile"):
        monkeypatch.setitem(sys.modules, name, None)
    for decoder, extra in ((DecodeAudio(), "audio"), (DecodeVideo(), "video")):
        with pytest.raises(ImportError, match=rf"pip install 'datarax-ray\[{extra}\]'"):
            decoder.map(b"x")
