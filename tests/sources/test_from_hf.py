"""from_hf chooses by what is known of the size, unless it is told."""

import datasets
import fsspec
import numpy as np
import pytest
from PIL import Image

from datarax_ray.read.errors import RecordError
from datarax_ray.sources import HFEagerSource, HFStreamingSource, from_hf
from tests import oracle

datasets.disable_progress_bars()
NBYTES = "datarax_ray.read.formats.hugging_face.load.NamedDataset.nbytes"


@pytest.fixture
def saved(tmp_path):
    datasets.Dataset.from_dict({"x": list(range(12)), "y": [0] * 12}).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_small_dataset_is_eager_and_gets_every_option(saved):
    options = {"shuffle": True, "seed": 7, "num_epochs": 2, "exclude_keys": ["y"], "transforms": [_tens]}
    source = from_hf(saved, "train", **options)
    assert isinstance(source, HFEagerSource)
    want = [10 * i for epoch in range(2) for i in oracle.order(12, epoch, 7)]
    assert [int(element["z"]) for element in source] == want


@pytest.mark.parametrize("split", ["test", "validation[:3]"])
def test_a_split_of_what_was_saved_without_one_is_refused(saved, split):
    """All rows came, of whatever split: what is held out would have been trained on."""
    with pytest.raises(ValueError, match="from the split 'train', or without one, and split='.*' was asked"):
        from_hf(saved, split)
    assert len(list(from_hf(saved, "train[:3]", num_epochs=1))) == 3


def test_of_a_built_dict_of_splits_the_split_is_read():
    built = datasets.DatasetDict({name: datasets.Dataset.from_dict({"x": [len(name)]}) for name in ("train", "test")})
    assert [int(element["x"]) for element in from_hf(built, "test", num_epochs=1)] == [4]
    with pytest.raises(TypeError, match=r"is a dict of the splits \['train', 'test'\]; give one of them"):
        from_hf(built, "valid")


def test_images_are_of_the_mode_of_their_files_unless_the_column_names_one():
    rgb = Image.fromarray(np.full((8, 8, 3), (200, 30, 60), np.uint8))

    def dataset(*modes):
        features = datasets.Features({"image": datasets.Image()})
        return datasets.Dataset.from_dict({"image": [rgb.convert(mode) for mode in modes]}, features=features)

    shapes = {"RGB": (8, 8, 3), "L": (8, 8), "RGBA": (8, 8, 4), "P": (8, 8), "1": (8, 8)}
    for mode, shape in shapes.items():
        image = from_hf(dataset(mode)).get_batch(1)["image"]
        assert (image.shape, image.dtype) == ((1, *shape), bool if mode == "1" else np.uint8)
    with pytest.raises(RecordError, match=r"\(8, 8\) in another.*cast_column\('image', datasets.Image\(mode='RGB'\)\)"):
        from_hf(dataset("RGB", "L")).get_batch(2)
    alike = dataset(*shapes).cast_column("image", datasets.Image(mode="RGB"))
    images = np.asarray(from_hf(alike).get_batch(5)["image"])
    assert images.shape == (5, 8, 8, 3)
    assert images[3, 0, 0].tolist() == np.asarray(rgb.convert("P").convert("RGB"))[0, 0].tolist()


@pytest.mark.parametrize("flags", [{"streaming": True}, {"eager": False}, {"eager": False, "streaming": True}])
@pytest.mark.parametrize("built", [False, True])
def test_flags_choose_the_stream_which_gets_every_option(saved, flags, built):
    options = flags | {"shuffle": True, "num_epochs": 2, "include_keys": ["x"]}
    name = datasets.load_from_disk(saved) if built else str(saved)
    source = from_hf(name, "train", seed=7, transforms=[_tens], **options)
    assert isinstance(source, HFStreamingSource)
    assert (source.config.seed, source.config.num_epochs, source.config.streaming) == (7, 2, True)
    got = [int(element["z"]) for element in source]
    assert sorted(got[:12]) == sorted(got[12:]) == [10 * i for i in range(12)]
    other = [int(element["z"]) for element in from_hf(name, "train", seed=8, transforms=[_tens], **options)]
    assert got != other


def _tens(element):
    return {"z": element["x"] * 10}


@pytest.mark.parametrize("flags", [{"streaming": False}, {"eager": True}, {"eager": True, "streaming": False}])
def test_flags_choose_eager_whatever_the_size(saved, flags, monkeypatch):
    monkeypatch.setattr(NBYTES, lambda *_, **__: pytest.fail("asked"))
    assert isinstance(from_hf(str(saved), "train", **flags), HFEagerSource)


@pytest.mark.parametrize("nbytes", [None, 10**9])
def test_a_large_dataset_and_one_of_unknown_size_are_streamed(saved, nbytes, monkeypatch):
    monkeypatch.setattr(NBYTES, lambda *_, **__: nbytes)
    assert isinstance(from_hf(str(saved), "train"), HFStreamingSource)


@pytest.mark.parametrize("flag", [True, False])
def test_flags_that_contradict_each_other_are_refused(saved, flag):
    with pytest.raises(ValueError, match=f"eager={flag} and streaming={flag} contradict each other"):
        from_hf(str(saved), "train", eager=flag, streaming=flag)


def test_a_stream_is_streamed_and_not_read_eagerly():
    stream = datasets.Dataset.from_dict({"x": [1, 2]}).to_iterable_dataset()
    assert [int(element["x"]) for element in from_hf(stream)] == [1, 2]
    with pytest.raises(ValueError, match="IterableDataset is a stream without random access"):
        from_hf(stream, eager=True)


def test_a_split_is_asked_for_where_there_may_be_several_and_the_one_there_is_is_read(saved):
    assert [int(element["x"]) for element in from_hf(saved)] == list(range(12))
    datasets.DatasetDict(train=datasets.load_from_disk(saved)).save_to_disk(both := str(saved) + "s")
    message = r"split is required for from_hf\('(json|.*saveds)'\): write from_hf\('(json|.*saveds)', 'train'\)"
    for arguments in ({"name": both}, {"name": "json", "data_files": {"train": "a.json"}}, {"name": "json"}):
        with pytest.raises(ValueError, match=message):
            from_hf(**arguments)


@pytest.mark.parametrize("split", [None, "train[1:]"])
def test_data_files_are_read(tmp_path, split):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    source = from_hf("text", split, data_files=str(tmp_path / "a.txt"), local_files_only=True)
    assert [str(element["text"]) for element in source] == ["one", "two"][1 if split else 0 :]
    with pytest.raises(ValueError, match="data_files is given twice"):
        from_hf("text", data_files="a.txt", download_kwargs={"data_files": "a.txt"})


def test_a_glob_of_data_files_that_matches_none_is_no_empty_dataset(tmp_path):
    (tmp_path / "a.txt").write_text("a\nb\n")
    with pytest.raises(FileNotFoundError, match=r"data_files: no file matches '.*nots/\*\.txt'"):
        from_hf("text", data_files={"train": [str(tmp_path / "nots" / "*.txt")]})
    with pytest.raises(FileNotFoundError, match="no file matches"):
        from_hf("text", data_files="b*.txt", data_dir=str(tmp_path))
    assert from_hf("text", data_files="a*.txt", data_dir=str(tmp_path)).get_batch(2)["text"].tolist() == ["a", "b"]


def test_data_files_that_nobody_would_read_are_refused(tmp_path):
    built = datasets.Dataset.from_dict({"x": [1, 2]})
    built.save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="a dataset that is built has its own"):
        from_hf(built, data_files="a.json")
    with pytest.raises(ValueError, match="the saved dataset '.*saved' has its own"):
        from_hf(tmp_path / "saved", data_files="a.json")
    with pytest.raises(ValueError, match="write from_hf\\('json', 'test'\\), say"):
        from_hf("json", data_files={"test": "a.json"})


def test_a_saved_folder_in_a_bucket_is_refused_with_the_remedy(saved):
    fsspec.filesystem("memory").put(str(saved), "/hf-saved", recursive=True)
    for name in ("memory://hf-saved", "s3://bucket/saved"):
        with pytest.raises(ValueError, match=rf"{name} is a URL, .*copy it to one path on all hosts.*to_parquet"):
            from_hf(name, "train")
