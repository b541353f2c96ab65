"""`datarax-ray convert`, as a command: what it says, what Ctrl-C leaves, and what it refuses."""

import json
import signal
import subprocess
import sys

import cv2
import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datarax_ray
from datarax_ray.cli.writing import convert as convert_command
from datarax_ray.write.manifest import FINISHED, UNFINISHED
from tests.cli.conftest import environment
from tests.cli.screens import answer, screen
from tests.data import records_of, write_file
from tests.waiting import until
from tests.write.test_conversion import convert


def test_after_ctrl_c_the_same_command_goes_on(tmp_path):
    records = [b"%07d" % i * 20 for i in range(30_000)]
    source = write_file(tmp_path / "a.array_record", records, 256)
    words = ["convert", source, tmp_path / "to", "--num-shards", 100, "--num-actors", 0, "--group-size", 1]
    command = [sys.executable, "-m", "datarax_ray", *map(str, words)]
    notes = tmp_path / "to" / UNFINISHED
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as program:
        until(lambda: notes.exists() and notes.read_text().count("\n") > 2, 100)
        program.send_signal(signal.SIGINT)
        said = program.stderr.read()
    assert program.returncode == 130
    assert "stopped by Ctrl-C; " in said
    assert "of 100 shards are finished" in said
    names = {path.name for path in (tmp_path / "to").iterdir()}
    assert FINISHED not in names
    assert not any(name.endswith(".part") for name in names)
    noted = [name for name in names if f'"{name}"' in notes.read_text()]  # one may be renamed and not noted yet
    kept = {name: (tmp_path / "to" / name).stat().st_ino for name in noted}
    assert len(kept) >= 2
    convert(str(source), tmp_path / "to", num_shards=100, group_size=1)
    assert {name: (tmp_path / "to" / name).stat().st_ino for name in kept} == kept
    assert records_of(tmp_path / "to") == records


@pytest.mark.parametrize("to", ["array_record", "parquet"])
def test_nulls_are_written_as_they_are_and_nothing_is_said_of_them(to, tmp_path, caplog):
    table = pa.table({"x": [1, None, 3], "t": ["a", None, "c"]})
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    for name, source in enumerate([tmp_path / "a.parquet", tmp_path / "a.jsonl", f"hf:{tmp_path}/saved"]):
        convert_command(str(source), tmp_path / str(name), screen(), to=to)
        assert "with nulls" not in caplog.text
        decoders = [datarax_ray.DecodeMsgpack()] if to == "array_record" else []
        rows = datarax_ray.load(tmp_path / str(name), transforms=decoders, on_null=None if decoders else "host")
        assert list(rows) == table.to_pylist()


@pytest.mark.parametrize("to", ["array_record", "parquet"])
def test_the_line_that_is_printed_reads_images_as_pixels(tmp_path, to):
    (tmp_path / "photos/cat").mkdir(parents=True)
    image = np.full((4, 5, 3), 7, np.uint8)
    cv2.imwrite(str(tmp_path / "photos/cat/0.png"), image)
    png = (tmp_path / "photos/cat/0.png").read_bytes()
    rows = datasets.Dataset.from_dict({"picture": [{"bytes": png, "path": None}]})
    rows.cast_column("picture", datasets.Image()).save_to_disk(tmp_path / "saved")
    for source, field in (f"imagefolder:{tmp_path}/photos", "image"), (f"hf:{tmp_path}/saved", "picture"):
        shown = screen()
        convert_command(source, tmp_path / field, shown, to=to)
        line = answer(shown).partition("read it by: ")[2].partition("\n")[0]
        assert line.endswith(f"DecodeImage(field='{field}')])")
        scope = {name: getattr(datarax_ray, name) for name in ("load", "DecodeImage", "DecodeMsgpack")}
        assert eval(line, scope).get_batch(1)[field].tolist() == [image.tolist()]
