"""source.py as `cluster init` writes it for people's data: it runs at once, or one sentence says what to edit."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import cv2
import datasets
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from datarax_ray.cli.commands.clusters import init
from tests.cli.screens import screen
from tests.programs import python

NUM = 24  # records of each kind


def picture(label: int, number: int = 0) -> bytes:
    image = np.full((10 + number % 5, 12, 3), 60 * (label + 1), np.uint8)
    return bytes(cv2.imencode(".png", image)[1])


def write_images(folder: Path) -> None:
    for split, count in (("train", NUM // 3), ("val", 2)):
        for label, name in enumerate(("daisy", "rose", "tulip")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                (folder / split / name / f"{number:02}.png").write_bytes(picture(label, number))


def write_tokens(folder: Path) -> None:
    for name in ("train-0", "train-1", "validation-0"):
        documents = [list(range(1, 150 + number)) for number in range(NUM // 2)]
        ids = pa.array(documents, pa.list_(pa.int32()))  # as tokenizers have them: np.asarray(ids, np.int32) is ids
        pq.write_table(pa.table({"id": range(len(documents)), "input_ids": ids}), folder / f"{name}.parquet")


def write_tar(folder: Path) -> None:
    with tarfile.open(folder / "shard-0.tar", "w") as tar:
        for number in range(NUM):
            for suffix, content in (("png", picture(number % 3)), ("cls", str(number % 3).encode())):
                info = tarfile.TarInfo(f"{number:03}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def write_records(folder: Path) -> None:
    writer = ArrayRecordWriter(str(folder / "a.array_record"), "group_size:1")
    for number in range(NUM):
        writer.write(msgpack.packb({"image": picture(number % 3), "label": number % 3}))
    writer.close()


def write_text(folder: Path) -> None:
    parts = {split: datasets.Dataset.from_dict({"text": ["some words " * 20] * NUM}) for split in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(str(folder / "saved"))


# by kind: how its data is written, where it is, and what source.py has for it
KINDS = {
    "images": (write_images, "", "NUM_CLASSES = 3  # daisy, rose, tulip", "[example]", "imagefolder:{}/val"),
    "tokens": (write_tokens, "", "NUM_CLASSES = 256  # more than any token", "[example]", "{}/validation*"),
    "tar": (write_tar, "", "NUM_CLASSES = 16", "[DecodeImage((SIDE, SIDE, 3), field=\"png\"), example]", None),
    "records": (
        write_records, "*.array_record", "NUM_CLASSES = 16",
        "[DecodeMsgpack(), DecodeImage((SIDE, SIDE, 3), field=\"image\"), example]", None,
    ),
    "text": (write_text, "saved", "NUM_CLASSES = 256", "[example]", "{}/saved"),
}  # fmt: skip


def initialised(kind: str, folder: Path) -> Path:
    """The folder, with data/ of this kind, and job/ as `cluster init` writes it."""
    write, at, *_ = KINDS[kind]
    (folder / "data").mkdir()
    write(folder / "data")
    init(folder / "job", screen(), str(folder / "data" / at))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_init_writes_what_it_finds(kind: str, tmp_path: Path) -> None:
    folder = initialised(kind, tmp_path)
    text = (folder / "job" / "source.py").read_text()
    _, _, num_classes, transforms, evaluation = KINDS[kind]
    assert num_classes in text
    assert f"\nTRANSFORMS: list[Any] = {transforms}\n" in text
    found = re.search(r"^EVALUATION: .* = (.*)$", text, re.MULTILINE)[1]  # type: ignore[index]
    assert (None if found == "None" else json.loads(found)["paths"]) == (
        evaluation and evaluation.format(folder / "data")
    )
    style = [sys.executable, "-m", "ruff", "format", "--check", "--line-length=120", "-"]
    assert subprocess.run(style, input=text.replace(str(folder), "/mnt"), text=True, check=False).returncode == 0


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"x": [1.5, 2.5], "name": [None, None]}, r"name \(objects\), x \(float64 \(\)\)\. Return fields"),
    ({"image": [b"", b""], "label": ["a", "b"]}, r"label \(objects\)"),
]


@pytest.mark.parametrize(("columns", "message"), FIELDS)
def test_data_without_a_model_is_told_in_one_sentence(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    init(tmp_path / "job", screen(), str(tmp_path / "a.parquet"))
    done = python(tmp_path / "job" / "job.py", "--checkpoint-dir", tmp_path / "checkpoints", "--num-actors", "0")
    assert done.returncode == 2
    assert re.search(message, done.stderr.splitlines()[-1]), done.stderr


def test_an_empty_evaluation_is_said_before_anything_is_written(tmp_path: Path) -> None:
    for name, rows in (("train", [1]), ("validation", [])):
        pq.write_table(
            pa.table({"tokens": pa.array([rows] * len(rows), pa.list_(pa.int64()))}), tmp_path / f"{name}.parquet"
        )
    with pytest.raises(ValueError, match=r"there are 0 rows in .*validation\.parquet"):
        init(tmp_path / "job", screen(), str(tmp_path))
    assert not (tmp_path / "job").exists()


def test_an_evaluation_with_other_classes_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    (tmp_path / "data" / "val" / "rose").rename(tmp_path / "data" / "val" / "sunflower")
    with pytest.raises(ValueError, match=r"daisy, rose, tulip, and .*val has daisy, sunflower, tulip\. Classes"):
        init(tmp_path / "job", screen(), f"imagefolder:{tmp_path / 'data'}")
    assert not (tmp_path / "job").exists()
