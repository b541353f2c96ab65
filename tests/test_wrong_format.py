"""What is given the wrong files or decoder names the right ones, at once and without a network."""

import msgpack
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from datarax_ray import Pipeline
from datarax_ray.read.decode import DecodeExample, DecodeImage, DecodeJson, DecodeRaw
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule, from_hf
from tests.data import in_memory, write_file


def of_records(path, records, *transforms):
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(), write_file(path, records), transforms=transforms)


def test_a_folder_of_folders_names_them_and_a_glob_that_works(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        write_file(tmp_path / name / "a.array_record", [name.encode()])
    with pytest.raises(FileNotFoundError, match=r"holds directories \(test, train\): give one, or .*/\*/\*"):
        ArrayRecordSourceModule(ArrayRecordSourceConfig(), tmp_path)
    every = ArrayRecordSourceModule(ArrayRecordSourceConfig(num_epochs=1), f"{tmp_path}/*/*")
    assert list(every) == [b"test", b"train"]


@pytest.mark.parametrize(
    ("record", "transform", "named"),
    [
        (msgpack.packb({"x": 1}), DecodeJson(), r"DecodeMsgpack\(\)"),
        (b'{"x": 1}', DecodeExample(), r"DecodeJson\(\)"),
        (b'{"x": 1}', DecodeImage(), r"DecodeJson\(\)"),
        (b"\xff\xd8\xff\xe0 and so on", DecodeRaw("uint8", (3,)), r"DecodeImage\(\)"),
    ],
)
def test_a_record_given_to_the_wrong_decoder_is_named_with_the_right_one(tmp_path, record, transform, named):
    source = of_records(tmp_path / "a.array_record", [record], transform)
    with pytest.raises(RecordError, match=f"looks like .*: {named} decodes it"):
        next(source)


def test_records_without_a_decoder_are_named_where_stages_or_a_scan_have_nothing_to_run_on(tmp_path):
    source = of_records(tmp_path / "a.array_record", [msgpack.packb({"x": i}) for i in range(4)])
    with pytest.raises(ValueError, match=r"the stages have no input.* DecodeMsgpack\(\) decodes it"):
        next(iter(Pipeline(source=source, stages=[lambda batch: batch], batch_size=2, rngs=nnx.Rngs(0))))
    with pytest.raises(ValueError, match=r"nothing to scan over.* DecodeMsgpack\(\) decodes it"):
        Pipeline(source=source, batch_size=2, rngs=nnx.Rngs(0)).scan(lambda batch: batch, length=1)


def test_records_without_a_decoder_are_named_once_where_nothing_needs_them_decoded(tmp_path, caplog):
    source = of_records(tmp_path / "a.array_record", [msgpack.packb({"x": i}) for i in range(4)])
    pipeline = Pipeline(source=source, batch_size=2, rngs=nnx.Rngs(0))
    assert pipeline.step().tolist() == [msgpack.packb({"x": i}) for i in range(2)]
    pipeline.step()
    assert [record.getMessage() for record in caplog.records] == [
        "batches are records as they are stored (bytes). It looks like msgpack: DecodeMsgpack() decodes it."
    ]


class Lazy:
    """An array once somebody asks for one."""

    def __array__(self, dtype=None, copy=None):
        return np.zeros(2, dtype)


@pytest.mark.parametrize(
    ("element", "where"),
    [
        ({"a": {"image": Image.new("L", (2, 2))}, "rows": [1]}, "field 'a.image' holds objects (PIL.Image.Image)"),
        (Image.new("L", (2, 2)), "each batch holds objects (PIL.Image.Image)"),
        ({"x": Lazy()}, f"field 'x' holds objects ({Lazy.__module__}.Lazy)"),
    ],
)
def test_what_numpy_makes_arrays_of_is_named_once_with_that(caplog, element, where):
    source = in_memory([element] * 4)
    with Pipeline(source=source, batch_size=2, on_host=True) as pipeline:
        list(pipeline)
    assert caplog.messages == [f"{where}, which stay on the host; np.asarray in a transform makes an array"]


def test_a_local_path_never_asks_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset_builder", None)
    monkeypatch.setattr("datasets.load_dataset", None)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "text.jsonl").write_text('{"x": 1}\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r'd/text.jsonl is a file, .*from_hf\("json", data_files="d/text.jsonl"'):
        from_hf("d/text.jsonl", "train")
    for name in ("d/other.jsonl", "./nothing", "/no/such/folder", "a/b/c"):
        for eager in (None, True, False):
            with pytest.raises(FileNotFoundError, match=f"{name}: no such file or directory"):
                from_hf(name, "train", eager=eager)
