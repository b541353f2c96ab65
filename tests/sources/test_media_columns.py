"""Sounds and videos in every container: the same frames and samples, and the file and record of a broken one."""

import datasets
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax_ray import DecodeAudio, DecodeMsgpack, DecodeVideo, from_hf, load
from datarax_ray.read.errors import RecordError
from tests.data import write_file
from tests.media import pictures, sound, tone, video
from tests.tars import write_tar

pytest.importorskip("av")
pytest.importorskip("soundfile")
VIDEO, SOUND = video(pictures(10), "mpeg4", max_b_frames=0), sound(tone(800, 2), kind="FLAC")


def rows(broken):
    return [{"mp4": VIDEO[:900] if i == broken else VIDEO, "flac": SOUND, "id": i} for i in range(4)]


def source(kind, folder, broken=None):
    """Of one file with four rows, in this format."""
    made, decoders = rows(broken), [DecodeVideo(frames=[3], field="mp4"), DecodeAudio(field="flac")]
    if kind == "tar":
        members = [
            (f"{row['id']}.{name}", row[name] if name != "id" else b"%d" % row["id"]) for row in made for name in row
        ]
        return load(write_tar(folder / "a.tar", members), num_epochs=1, transforms=decoders)
    if kind == "ArrayRecord":
        path = write_file(folder / "a.array_record", map(msgpack.packb, made))
        return load(path, num_epochs=1, transforms=[DecodeMsgpack(), *decoders])
    if kind == "Parquet":
        pq.write_table(pa.Table.from_pylist(made), folder / "a.parquet")
        return load(folder / "a.parquet", num_epochs=1, transforms=decoders)
    stored = [
        {**row, "mp4": {"bytes": row["mp4"], "path": None}, "flac": {"bytes": SOUND, "path": "a"}} for row in made
    ]
    dataset = datasets.Dataset.from_list(stored).cast_column("mp4", datasets.Video(decode=False))
    return from_hf(dataset.cast_column("flac", datasets.Audio(decode=False)), num_epochs=1, transforms=decoders)


@pytest.mark.parametrize("kind", ["tar", "ArrayRecord", "Parquet", "Hugging Face"])
def test_columns_of_bytes_are_decoded_and_a_broken_one_is_named(kind, tmp_path):
    found = list(source(kind, tmp_path))
    assert [int(element["id"]) for element in found] == [0, 1, 2, 3]
    for element in found:
        assert np.asarray(element["mp4"]).shape == (1, 48, 64, 3)
        np.testing.assert_allclose(element["flac"], tone(800, 2), atol=1e-4)
        assert int(element["flac_rate"]) == 8000
    where = {"Hugging Face": r"row 2|\[2\]"}.get(kind, r"a\.\w+.*2")
    with pytest.raises(RecordError, match=rf"(?s)({where}).*900 bytes that begin .* are no video that FFmpeg reads"):
        list(source(kind, tmp_path, broken=2))


def test_columns_that_datasets_would_decode_are_refused_with_the_decoder():
    dataset = datasets.Dataset.from_list([{"a": {"bytes": SOUND, "path": None}}])
    for feature, decoder in ((datasets.Audio(), "DecodeAudio"), (datasets.Video(), "DecodeVideo")):
        with pytest.raises(ValueError, match=rf"decode=False\)\), and decode them by {decoder}"):
            from_hf(dataset.cast_column("a", feature))
