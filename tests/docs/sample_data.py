"""What the pages' programs read: a folder data/ with some of every format."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import datasets
import lance
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests import media
from tests.data import write_file
from tests.mds import write_mds
from tests.tars import write_tar
from tests.tfrecords import write_tfrecord


def write(data: Path) -> None:
    data.mkdir()
    rng = np.random.default_rng(0)
    for part in range(2):
        images = rng.integers(0, 255, (60, 65), np.uint8)
        images[:, -1] %= 10
        write_file(data / f"train-{part:03d}.array_record", map(bytes, images), group_size=8)
        table = pa.table(
            {"x": rng.normal(size=100), "y": rng.integers(0, 2, 100), "name": [f"row {i}" for i in range(100)]}
        )
        pq.write_table(table, data / f"part-{part}.parquet", row_group_size=25)
        members = [
            (f"{part}{i:03d}.{end}", body)
            for i in range(20)
            for end, body in (("jpg", picture(i)), ("cls", b"%d" % (i % 3)), ("json", b'{"width": 64}'))
        ]
        write_tar(data / f"shard-{part:03d}.tar", members)
    examples = (bytes.fromhex(f"0a130a110a05696d61676512081a060a04{i:02x}020304") for i in range(40))
    write_tfrecord(data / "train.tfrecord", examples)  # of one feature, image: four int64
    samples = [{"image": png(i), "label": i % 3, "text": f"row {i}"} for i in range(40)]
    write_mds(data / "mds", {"image": "png", "label": "int", "text": "str"}, samples, 16)
    write_file(data / "text.array_record", (msgpack.packb({"tokens": [1] * (i + 1)}) for i in range(50)))
    write_file(data / "lines.array_record", (json.dumps({"text": "a" * i}).encode() for i in range(20)))
    visits = "Aarhus;2026-05-01;120;0.5;0800\nCork;2026-05-02;95;;T12\n" * 20
    (data / "visits.csv").write_text("city;day;visitors;rain_mm;zip\n" + visits)
    (data / "lines.jsonl").write_text("".join(json.dumps({"id": i, "text": f"line {i}"}) + "\n" for i in range(40)))
    (data / "packed").mkdir()
    packed = "".join(json.dumps({"url": f"https://a.org/{i}", "text": f"page {i}"}) + "\n" for i in range(40))
    (data / "packed/c4.jsonl.gz").write_bytes(gzip.compress(packed.encode()))
    (data / "talks").mkdir()
    for number, more in enumerate(({}, {"tools": [{"name": "search", "arguments": "a dog"}]})):
        (data / f"talks/{number}.jsonl").write_text(json.dumps({"text": f"turn {number}", **more}) + "\n")
    labels = pa.table({"image": [[float(i)] * 4 for i in range(40)], "label": range(40)})
    lance.write_dataset(labels, data / "train.lance")
    for name in ("cat", "dog"):
        (data / "images" / name).mkdir(parents=True)
        for i in range(6):
            (data / "images" / name / f"{i}.jpg").write_bytes(picture(i))
    (data / "media").mkdir()
    sounds = [media.sound(media.tone(4000 + 900 * i, 2), 8000 * (1 + i % 2), "FLAC") for i in range(8)]
    write_tar(data / "media/talk-000.tar", ((f"{i}.flac", body) for i, body in enumerate(sounds)))
    videos = [media.video(media.pictures(24, seed=i)) for i in range(4)]
    pq.write_table(pa.table({"video": videos, "label": range(4)}), data / "media/videos.parquet")
    datasets.Dataset.from_dict({"x": list(range(40)), "text": [f"row {i}" for i in range(40)]}).save_to_disk(
        data / "saved"
    )


def png(seed: int) -> bytes:
    return picture(seed, "PNG")


def picture(seed: int, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (48, 64, 3), np.uint8)).save(out, kind)
    return out.getvalue()
