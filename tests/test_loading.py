"""load: it reads what the source of that format reads, and says what it found where it cannot choose."""

import gzip
import itertools
import json
import logging
import re
import shutil
import time
from pathlib import Path

import cv2
import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datarax_ray
from datarax_ray import ImageFolder, Pipeline, RandomAccessSource, RaySource, load
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.errors import RecordError, SkippedError
from datarax_ray.sources import CSVSource, CSVSourceConfig
from tests.data import in_memory, write_file
from tests.tars import write_tar


def write(folder):
    """The numbers 0 to 9 in each format, in a folder of its own."""
    for name in ("record", "parquet", "tar", "csv", "tsv", "jsonl"):
        (folder / name).mkdir()
    write_file(folder / "record/x.array_record", (json.dumps({"x": number}).encode() for number in range(10)))
    pq.write_table(pa.table({"x": range(10)}), folder / "parquet/x.parquet")
    write_tar(folder / "tar/x.tar", [(f"{number}.x.cls", b"%d" % number) for number in range(10)])
    (folder / "csv/x.csv").write_text("x,y\n" + "".join(f"{number},a\n" for number in range(10)))
    (folder / "tsv/x.tsv").write_text("x\ty\n" + "".join(f"{number}\ta\n" for number in range(10)))
    (folder / "jsonl/x.jsonl").write_text("".join(f'{{"x": {number}}}\n' for number in range(10)))


@pytest.mark.parametrize(
    ("folder", "chosen", "read"),
    [
        ("record", "ArrayRecordSourceModule", lambda element: json.loads(element)["x"]),
        ("parquet", "ParquetSource", lambda element: element["x"]),
        ("tar", "WebDatasetSource", lambda element: element["x.cls"]),
        ("csv", "CSVSource", lambda element: element["x"]),
        ("tsv", "CSVSource", lambda element: element["x"]),
        ("jsonl", "JSONLinesSource", lambda element: element["x"]),
    ],
)
def test_it_finds_the_format_of_a_directory_and_of_a_glob_and_says_which(tmp_path, folder, chosen, read, caplog):
    write(tmp_path)
    caplog.set_level(logging.INFO, "datarax_ray")
    for paths in (tmp_path / folder, str(tmp_path / folder / "x.*"), [str(tmp_path / folder)]):
        assert [int(read(element)) for element in load(paths)] == list(range(10))
    assert sorted(int(read(element)) for element in load(tmp_path / folder, shuffle=True, seed=3)) == list(range(10))
    assert f"load chose {chosen}(paths=" in caplog.text


def test_transforms_and_epochs_are_passed_on_and_blocks_to_shuffle_where_files_have_them(tmp_path):
    write(tmp_path)
    source = load(tmp_path / "record", transforms=json.loads, num_epochs=2)
    assert source.get_batch(30)["x"].tolist() == [*range(10), *range(10)]
    source = load(tmp_path / "record", shuffle=True, shuffle_block_size=2)
    assert source.describe().settings()["order"]["block_size"] == 2
    with pytest.raises(ValueError, match="shuffle_block_size=2 is of files in blocks, and 'hf:x' has none"):
        load("hf:x", shuffle_block_size=2)


@pytest.mark.parametrize("kind", ["record", "parquet", "hf:", "imagefolder:"])
def test_what_every_config_has_is_passed_on(tmp_path, kind):
    def odd(element):
        raise ValueError("odd")

    write(tmp_path)
    for name in ("a/0.png", "a/1.png"):
        write_image(tmp_path / "images" / name, 1)
    assert load(f"hf:{tmp_path / 'parquet'}").get_batch(10)["x"].tolist() == list(range(10))
    path = {"hf:": f"hf:{tmp_path / 'parquet'}", "imagefolder:": f"imagefolder:{tmp_path / 'images'}"}
    source = load(path.get(kind, tmp_path / kind), transforms=odd, on_error="skip", max_skipped=1)
    with pytest.raises(SkippedError, match="max_skipped"):
        list(source)


def test_several_formats_and_none_are_told_with_what_was_found(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match=r"several formats: .*x\.csv \(CSV\).*x\.parquet \(Parquet\).*Give a glob"):
        load(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(ValueError, match=r"nothing there is ArrayRecord.*x\.npy \(NumPy\).*RandomAccessSource takes"):
        load(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="no file matches this glob"):
        load(str(tmp_path / "*.nothing"))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("x\n1\n2\n", [{"x": 1}, {"x": 2}]),
        ('x,y\n"a\nb,c",1\n', [{"x": "a\nb,c", "y": 1}]),
        ('"a,b";y\n1;2\n3;4\n', [{"a,b": 1, "y": 2}, {"a,b": 3, "y": 4}]),
        ("x|y\n1|2\n", [{"x": 1, "y": 2}]),
        ("x,y\r1,2\r3,4\r", [{"x": 1, "y": 2}, {"x": 3, "y": 4}]),
        ("x,y\n", "there are 0 rows"),
        ("", "x.csv .empty."),
    ],
)
def test_what_is_named_csv_is_read_so_where_its_first_lines_alone_do_not_tell(tmp_path, text, want):
    (tmp_path / "x.csv").write_text(text, newline="")
    if isinstance(want, str):
        with pytest.raises(ValueError, match=want):
            load(tmp_path)
    else:
        assert list(load(tmp_path)) == want


def test_what_stands_between_values_is_what_splits_the_first_lines_alike(tmp_path):
    texts = {
        "time (h, m, s);x\n1;2\n": [{"time (h, m, s)": 1, "x": 2}],
        "a,b|c\n1,2\n": [{"a": 1, "b|c": 2}],
        'a;b\n"x, y";2\n': [{"a": "x, y", "b": 2}],
        "a,b,c;d\n1,2,3;4\n": [{"a": 1, "b": 2, "c;d": "3;4"}],
        "a|b": [],
    }
    for number, (text, rows) in enumerate(texts.items()):
        (tmp_path / f"{number}.csv").write_text(text)
        if rows:
            assert list(load(tmp_path / f"{number}.csv", num_epochs=1)) == rows
    (tmp_path / "prices.csv").write_text("price, EUR;qty\n1,5;2\n2,5;3\n")
    with pytest.raises(ValueError, match=r"prices\.csv: ',' splits .* 2 values each, and ';' into 2 .*delimiter=';'"):
        load(tmp_path / "prices.csv")
    config = CSVSourceConfig(delimiter=";", column_types={"price, EUR": "string"}, num_epochs=1)  # as it says
    assert next(iter(CSVSource(config, tmp_path / "prices.csv"))) == {"price, EUR": "1,5", "qty": 2}


def test_text_that_looks_like_csv_is_told_of(tmp_path, caplog):
    for name in ("names.txt", "names.csv"):
        (tmp_path / name).write_text("Doe, John\nSmith, Jane\nBerg, Ann\n")
        assert len(load(tmp_path / name)) == 2
    (said,) = [each for each in caplog.messages if "is read as CSV by how its first lines look" in each]
    assert said.startswith(f"{tmp_path}/names.txt ")


def test_a_json_array_with_an_object_on_each_line_is_no_csv(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1, "b": "x"},\n{"a": 2, "b": "y"},\n{"a": 3, "b": "z"}]')
    for given in (path, tmp_path):
        assert load(given).get_batch(9)["b"].tolist() == ["x", "y", "z"]
    with pytest.raises(FileNotFoundError, match="JSON array file: JSONLinesSource reads it"):
        CSVSource(CSVSourceConfig(), tmp_path)


def test_hidden_folders_and_files_are_no_classes_nor_images(tmp_path):
    for name in (".ipynb_checkpoints/0.png", "cat/0.png", "cat/._0.png", "cat/.hidden/1.png", "dog/0.png"):
        write_image(tmp_path / name, 1)
    folder = ImageFolder(tmp_path)
    assert folder.class_names == ("cat", "dog")
    assert len(folder) == 2


def test_a_compressed_file_beside_the_others_of_a_directory_is_said_to_be_left_out(tmp_path, caplog):
    write(tmp_path)
    (tmp_path / "csv/y.csv.gz").write_bytes(gzip.compress(b"x,y\n7,a\n"))
    assert len(list(load(tmp_path / "csv"))) == 10
    assert f"{tmp_path}/csv: skipped 1 files, {tmp_path}/csv/y.csv.gz the first, that are compressed" in caplog.text


def write_image(path, value, size=(4, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((*size, 3), value, np.uint8))


def test_an_image_folder_is_read_class_by_class_in_the_order_of_names(tmp_path):
    for index, name in enumerate(["dog/b.png", "cat/x/2.png", "cat/10.PNG", "cat/9.png", "dog/a.png"]):
        write_image(tmp_path / name, index)
    (tmp_path / "cat/notes.txt").write_text("left out")
    (tmp_path / "README").write_text("left out")
    folder = ImageFolder(tmp_path)
    assert folder.class_names == ("cat", "dog")
    read = [(int(element["image"][0, 0, 0]), int(element["label"])) for element in load(f"imagefolder:{tmp_path}")]
    assert read == [(2, 0), (3, 0), (1, 0), (4, 1), (0, 1)]
    assert folder[0]["image"].shape == (4, 6, 3)
    shuffled = load(f"imagefolder:{tmp_path}", shuffle=True, seed=3).get_batch(5)
    assert sorted(shuffled["label"].tolist()) == [0, 0, 0, 1, 1]


def test_a_state_of_an_image_folder_moves_with_it_and_is_refused_where_its_files_are_others(tmp_path):
    for name in ("a/1.bmp", "b/2.bmp"):
        write_image(tmp_path / "one" / name, 7)
    source = load(f"imagefolder:{tmp_path / 'one'}")
    source.get_batch(1)
    state = source.get_state()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    again = load(f"imagefolder:{tmp_path / 'two'}")
    again.set_state(state)
    assert again.get_batch(2)["label"].tolist() == [1]
    for size, value in (((40, 60), 7), ((4, 6), 8)):  # the second of the same size
        write_image(tmp_path / "two/b/2.bmp", value, size)
        with pytest.raises(DriftError, match="files"):
            load(f"imagefolder:{tmp_path / 'two'}").set_state(state)


def test_what_is_no_image_folder_and_what_is_no_image_are_told_by_their_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(f"imagefolder:{tmp_path / 'nowhere'}")
    with pytest.raises(ValueError, match=r"has no folders; images are in one for each class, directory/CLASS/NAME.jpg"):
        load(f"imagefolder:{tmp_path}")
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match=r"/a has no images \(.*\.webp\), and would be the class 0"):
        load(f"imagefolder:{tmp_path}")
    (tmp_path / "a/1.jpg").write_text("no image")
    with pytest.raises(RecordError, match=r"^/.*a/1.jpg\[0\] \(position 0\).*: 8 bytes that begin b'no image'"):
        load(f"imagefolder:{tmp_path}").get_batch(1)


def test_no_actors_are_none_and_not_zero(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    for number in (0, -1, (3, 2)):
        with pytest.raises(ValueError, match="num_actors must be at least 1, .* None is for reading in this process"):
            load(tmp_path, num_actors=number)
    with pytest.raises(TypeError, match=r"num_actors is a whole number, got 1.5, .* or None for reading in this proc"):
        load(tmp_path, num_actors=1.5)


def test_which_image_fed_a_row_is_told_by_its_file(tmp_path):
    for name in ("a/1.png", "b/2.png", "b/3.png"):
        write_image(tmp_path / name, 7)
    with Pipeline(source=load(f"imagefolder:{tmp_path}"), batch_size=2) as pipeline:
        found = [origin.record for step in range(2) for origin in pipeline.locate(step)]
    assert found == [f"{tmp_path}/a/1.png[0]", f"{tmp_path}/b/2.png[1]", f"{tmp_path}/b/3.png[2]"]


def test_images_of_other_names_and_beside_the_folders_are_told(tmp_path, caplog):
    write_image(tmp_path / "a/0.png", 7)
    image = (tmp_path / "a/0.png").read_bytes()
    (tmp_path / "README.md").write_text("notes")
    (tmp_path / "a/.hidden").write_bytes(image)
    (tmp_path / "a/labels.csv").write_text("x")
    assert len(ImageFolder(tmp_path)) == 1
    assert caplog.text == ""
    for name in ("a/x.jfif", "a/y.JFIF", "a/b/5f1c", "loose.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(image)
    assert len(ImageFolder(tmp_path)) == 1
    assert "skipped 4 files (2 .jfif, 1 beside the folders, 1 without a suffix)" in caplog.text


@pytest.mark.parametrize("make", [load, lambda data: in_memory(data, num_epochs=-1)])
def test_an_endless_generator_is_refused_with_what_reads_it(make):
    with pytest.raises(TypeError, match=r"from_hf\(datasets\.IterableDataset\.from_generator\(function\)\)"):
        make({"x": each} for each in itertools.count())


ROWS = datasets.Dataset.from_dict({"x": [1, 2]})
STREAM = ROWS.to_iterable_dataset()


@pytest.mark.parametrize("data", [ROWS, STREAM, {"x": np.array([1, 2])}, [{"x": 1}, {"x": 2}]])
@pytest.mark.parametrize("make", [load, lambda data: Pipeline(source=data, batch_size=2), RaySource])
def test_the_call_that_is_named_for_data_makes_a_source_of_one_pass_over_it(make, data):
    with pytest.raises(TypeError) as raised:
        make(data)
    found = re.search(r"from_hf\(.*\)|\w+Source\(\w+Config\(.*?\), .*\)", str(raised.value))
    assert found is not None
    public = {name: getattr(datarax_ray, name) for name in datarax_ray.__all__}  # which are loaded when first used
    source = eval(found[0], {**public, "data": data})
    rows = [row for batch in Pipeline(source=source, batch_size=1) for row in np.asarray(batch["x"]).tolist()]
    assert rows == [1, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([np.arange(2)], "a list of ndarray is none; RandomAccessSource"),
        (iter([{"x": 1}]), "paths gives a dict, which is no path; .*from_generator"),
        (
            pa.table({"x": [1]}),
            r"a Table is none; RandomAccessSource\(.*, {name: data\[name\], ...}\) makes one of the col",
        ),
        (None, "load takes paths, and a NoneType is none"),
        (5, "load takes paths, and a int is none"),
    ],
)
def test_what_stands_where_paths_are_meant_is_told_with_what_reads_it(data, message):
    with pytest.raises(TypeError, match=message):
        load(data)


def test_a_mistyped_kind_and_a_split_of_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"'imagfolder' names no kind of data; .* Did you mean 'imagefolder'\?"):
        load("imagfolder:/data")
    with pytest.raises(ValueError, match="split='test' is of a dataset of the hub"):
        load(tmp_path, split="test")
    with pytest.raises(ValueError, match=f"split='test' is of .*; give imagefolder:{tmp_path}/test$"):
        load(f"imagefolder:{tmp_path}", split="test")


def test_images_beside_a_table_are_told_of_and_beside_a_note_they_are_what_is_meant(tmp_path, caplog):
    for name in ("a/0.png", "b/1.png"):
        write_image(tmp_path / name, 1)
    (tmp_path / "README.txt").write_text("Some pictures.\nOf cats.\n")
    with pytest.raises(ValueError, match=r'looks like a PNG file: load\("imagefolder:DIR"\)'):
        load(tmp_path)
    assert not caplog.text
    (tmp_path / "labels.csv").write_text("file,label\na/0.png,a\n")
    assert len(load(tmp_path)) == 1
    assert "a/0.png and other images there are not read: load chose CSV" in caplog.text


def test_an_empty_file_before_the_others_is_one_without_rows(tmp_path):
    write(tmp_path)
    (tmp_path / "jsonl/a.jsonl").write_text("")
    assert len(list(load(tmp_path / "jsonl"))) == 10


@pytest.mark.parametrize("name", ["parquet", "tar", "csv", "jsonl", "record"])
def test_a_folder_that_a_server_lists_is_read_as_one_on_a_disk(tmp_path, served, name):
    write(tmp_path)
    of_url, of_disk = (load(place).get_batch(10) for place in (f"{served.url}/{name}/", tmp_path / name))
    assert str(of_url) == str(of_disk)


def test_a_dataset_json_that_is_not_written_here_is_one_of_the_files(tmp_path):
    lines = tmp_path / "dataset.json"
    lines.write_text('{"v": 1}\n{"v": 2}\n')
    assert load(tmp_path).get_batch(2)["v"].tolist() == [1, 2]
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "x.parquet")
    for text in ("[1, 2]", '{"name": "mine"}', '{"v": 1}\n{"v": 2}\n'):
        lines.write_text(text)
        assert len(load(tmp_path)) == 10


def test_what_is_no_path_is_refused_before_it_is_read(tmp_path):
    """Any of these may be read without an end."""

    class Endless:
        def __iter__(self):
            return itertools.repeat({"x": 1})

    source = in_memory({"x": np.arange(4)}, num_epochs=-1)
    (tmp_path / "a.csv").write_text("x\n1\n")
    with Pipeline(source=source, batch_size=2) as pipeline, (tmp_path / "a.csv").open() as file:
        given = {
            "is no path; give the str or pathlib.Path": (source, pipeline, RandomAccessSource, file, b"a.csv"),
            "gives a dict, which is no path": (Endless(),),
        }
        for said, data in given.items():
            for each in data:
                for make in (load, lambda paths: CSVSource(CSVSourceConfig(), paths)):
                    with pytest.raises(TypeError, match=said):
                        make(each)
        assert pipeline.position == 0
    for make in (load, lambda paths: CSVSource(CSVSourceConfig(), paths)):
        with pytest.raises(ValueError, match=r"'' is no path; '\.' is the directory that this program runs in"):
            make("")


@pytest.mark.parametrize("name", ["parquet/x.parquet", "csv/x.csv", "jsonl/x.jsonl"])
@pytest.mark.parametrize("broken", ["503", "cut"])
def test_a_server_that_fails_once_whenever_that_is_is_asked_again(tmp_path, served, monkeypatch, name, broken):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    write(tmp_path)
    load(f"{served.url}/{name}")
    num_requests, _ = served.count()
    for failing in range(1, num_requests + 1):
        served.what = lambda number, failing=failing: broken if number == failing else ""
        assert load(f"{served.url}/{name}").get_batch(10)["x"].tolist() == [*range(10)]
        served.count()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a.csv", "b.txt", "c.txt", "notes.md"), "skipped 2 files, D/b.txt the first, that are not named *.csv,"),
        (("a.jsonl", "b.json", "d.txt"), "skipped 1 files, D/d.txt the first, that are not named *.jsonl, *.ndjson,"),
        (("a.parquet", "README", "part-1"), "D/part-1 the first, that are not named *.parquet, *.parq, *.pq; give a g"),
        (("a.array_record", "part-1"), "skipped 1 files, D/part-1 the first, that are not named *array_record*"),
        (("a.array_record", "sub/b.array_record", "empty/b.csv"), "skipped 1 directories, D/sub the first"),
        (("a.csv", "notes.md", "sub/b.csv"), ""),
        (("a.array_record", "b.array_record", "notes.md", "sub/notes.md"), ""),
    ],
)
def test_files_of_the_format_that_a_directory_is_not_read_with_are_told(tmp_path, names, said, caplog):
    write(tmp_path)
    suffix = Path(names[0]).suffix
    stored = next(path for path in tmp_path.glob("*/x*") if path.suffix == suffix)
    folder = tmp_path / "given"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(stored, folder / name)
        if name.endswith(("README", "notes.md")):
            (folder / name).write_text("What this is.\n")
    load(folder)
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == bool(said)
    assert said.replace("D/", f"{folder}/") in "".join(warned)


def test_what_urls_and_slices_named_like_array_record_hold_is_told_by_the_source_that_reads_them(tmp_path):
    write(tmp_path)
    path = tmp_path / "record/x.array_record"
    assert len(load(f"{path}[2:5]")) == 3
    assert len(load([str(path), f"file://{path}"])) == 20
    with fsspec.open("memory://bucket/x.array_record", "wb") as file:
        file.write(path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datarax_ray.loading.find_on", None)  # the client of the other formats
        assert len(load("memory://bucket/x.array_record")) == 10
        assert len(load("memory://bucket/*.array_record")) == 10


@pytest.mark.parametrize("prefix", ["", "hf:"])
@pytest.mark.parametrize("split", [None, "test"])
def test_a_folder_of_a_saved_dataset_is_known(tmp_path, prefix, split):
    built = datasets.Dataset.from_dict({"x": [1, 2]}, split=split)
    built.save_to_disk(tmp_path / "one")
    assert load(f"{prefix}{tmp_path}/one").get_batch(2)["x"].tolist() == [1, 2]
    datasets.DatasetDict(train=built, test=built.select([1])).save_to_disk(tmp_path / "two")
    assert load(f"{prefix}{tmp_path}/two", split=split).get_batch(1)["x"].tolist() == [1 if split is None else 2]


def test_a_folder_that_tfds_prepared_names_its_source_and_notes_of_hugging_face_are_no_data(tmp_path):
    prepared = Path(__file__).parent / "sources" / "tfds"
    folder = next(path.parent for path in sorted(prepared.rglob("features.json")))
    with pytest.raises(ValueError, match=r"TFDSSource\(TFDSSourceConfig\(\), '.*', 'train'\) reads one of its splits"):
        load(folder)
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    (tmp_path / "dataset_info.json").write_text("{}")
    assert load(tmp_path).get_batch(2)["x"].tolist() == [1, 2]
