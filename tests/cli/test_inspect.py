"""`inspect`, over files of every format that load knows."""

import json

import cv2
import datasets
import numpy as np
import pytest
from typer.testing import CliRunner

from datarax_ray.cli.app import app
from datarax_ray.cli.inspect import caption_of, inspect
from tests.cli.screens import answer, screen
from tests.data import write_file
from tests.tables import write_tables
from tests.tars import write_tar


def told(*paths, num_elements=2, sheet=None, split=None):
    inspect(list(map(str, paths)), num_elements, shown := screen(as_json=True), sheet=sheet, split=split)
    return json.loads(answer(shown))


def fields(found):
    return {of["field"]: (of["type"], of["values"]) for of in found["fields"]}


@pytest.mark.parametrize("group_size", [1, 4])
def test_files_are_told_with_their_groups(tmp_path, group_size):
    records = [json.dumps({"x": index, "name": f"r{index}"}).encode() for index in range(8)]
    found = told(write_file(tmp_path / "a.array_record", records, group_size))
    assert (found["files"], found["records"], found["group size"]) == (1, 8, group_size)
    assert found["decoder"] == "DecodeJson()"
    assert fields(found)["name"] == ("str", ["'r0'", "'r1'"])
    assert fields(found)["x"][1] == ["0", "1"]


def test_a_decoder_that_is_given_decodes(tmp_path):
    file = write_file(tmp_path / "a.array_record", [b"\x01\x02", b"\x03\x04"])
    decoder = "DecodeFields({'a': ('uint8', ()), 'b': ('uint8', ())})"
    done = CliRunner().invoke(app, ["inspect", str(file), "--decoder", decoder, "--json"])
    found = json.loads(done.stdout)
    assert "decoder" not in found
    assert fields(found) == {"a": ("uint8", ["1", "3"]), "b": ("uint8", ["2", "4"])}


@pytest.mark.parametrize("records", [[b"\x00\x01", b"\x02"], [b'{"x": 1}', b"[1, 2]"]])
def test_records_that_nothing_decodes_are_shown_as_they_are(tmp_path, records):
    found = told(write_file(tmp_path / "a.array_record", records))
    assert "decoder" not in found
    assert fields(found) == {"": ("bytes", list(map(repr, records)))}


def test_tables_and_tars_show_their_fields(tmp_path):
    (tmp_path / "a.csv").write_text("name,label\na,1\nb,2\n")
    found = told(tmp_path / "a.csv")
    assert (found["source"], found["records"]) == ("CSVSource", 2)
    assert fields(found)["label"] == ("int64", ["1", "2"])
    (tmp_path / "a.jsonl").write_text('{"x": null}\n{"x": 1}\n')
    assert fields(told(tmp_path / "a.jsonl"))["x"][0] == "int"
    (tmp_path / "tables").mkdir()
    write_tables(tmp_path / "tables", (3, 4))
    assert told(tmp_path / "tables")["records"] == 7
    tar = write_tar(tmp_path / "a.tar", [("0.txt", b"one"), ("1.txt", b"two")])
    assert fields(told(tar))["txt"] == ("str", ["'one'", "'two'"])


def test_a_folder_of_images_shows_their_shape(tmp_path):
    (tmp_path / "cats").mkdir()
    cv2.imwrite(str(tmp_path / "cats" / "a.png"), np.full((5, 4, 3), 9, np.uint8))
    found = told(f"imagefolder:{tmp_path}", num_elements=1)
    assert fields(found)["image"] == ("uint8 (5, 4, 3)", ["[9, 9, 9, 9, ...]"])


def test_pictures_stand_apart_in_a_sheet_each_over_its_number_and_label(tmp_path):
    (tmp_path / "cats").mkdir()
    colours = [(i, 255 - i, 10 * i) for i in range(10)]  # BGR
    for i, colour in enumerate(colours):
        cv2.imwrite(str(tmp_path / "cats" / f"{i}.png"), np.full((5 + i, 256, 3), colour, np.uint8))
    found = told(f"imagefolder:{tmp_path}", num_elements=1, sheet=tmp_path / "sheet.png")
    assert found["pictures"] == f"the first 10 in {tmp_path}/sheet.png"
    sheet = cv2.imread(str(tmp_path / "sheet.png"))
    assert sheet.shape == (6 + 7 + 2 * 16, 8 * 132, 3)  # half of the highest of each line, captions and gaps
    assert sheet[0, 64 : 8 * 132 : 132].tolist() == list(map(list, colours[:8]))
    assert sheet[22, [64, 196, 328]].tolist() == [*map(list, colours[8:]), [255, 255, 255]]
    assert (sheet[:, 128:132] == 255).all()
    assert (sheet[3:18, :24] < 100).any()  # "0: 0"
    assert caption_of(3, {"id": 17, "cls": "tabby"}) == "3: tabby"


def test_a_sheet_that_cannot_be_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match="does not end with .png"):
        told(tmp_path / "absent.jsonl", sheet=tmp_path / "sheet.jpg")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*none to write sheet.png to; create it first"):
        told(tmp_path / "absent.jsonl", sheet=tmp_path / "none" / "sheet.png")


def test_a_split_is_named_or_there_is_one(tmp_path):
    parts = {name: datasets.Dataset.from_dict({"x": [number]}) for number, name in enumerate(("a", "b"))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path)
    assert fields(told(tmp_path, split="b"))["x"][1] == ["1"]
    with pytest.raises(ValueError, match="'train'"):
        told(tmp_path)


def test_it_is_a_table_for_people_and_an_error_where_nothing_fits(tmp_path):
    """Text in brackets, which rich has for marks, is shown as it is."""
    (tmp_path / "[b]").mkdir()
    (tmp_path / "[b]/a.jsonl").write_text('{"x": [1, 2], "text": "[INST] [b]hi[/b] [/INST]"}\n{"x": [3], "text": ""}\n')
    inspect([str(tmp_path / "[b]/a.jsonl")], 2, shown := screen())
    for text in ("records: 2", "[1, 2]", "[INST] [b]hi[/b] [/INST]"):
        assert text in answer(shown)
    absent = CliRunner().invoke(app, ["inspect", str(tmp_path / "absent")])
    assert (absent.exit_code, "absent" in absent.stderr) == (1, True)
