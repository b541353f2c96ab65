"""Which dataset a Hugging Face configuration stands for: saved folders, data files, the cache; and what it refuses."""

import shutil

import datasets
import pytest

from datarax_ray.read.formats.hugging_face.load import NamedDataset
from datarax_ray.sources import HFEagerConfig, HFStreamingConfig
from datarax_ray.sources.hf_config import HFConfig

datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """one: a saved Dataset; both: a saved DatasetDict; files: Parquet and JSON files."""
    folder = tmp_path_factory.mktemp("saved")
    train = datasets.Dataset.from_dict({"x": list(range(20)), "s": [f"s{i}" for i in range(20)]})
    train.save_to_disk(folder / "one")
    datasets.DatasetDict({"train": train, "test": train.select(range(3))}).save_to_disk(folder / "both")
    (folder / "files").mkdir()
    train.to_parquet(folder / "files" / "train.parquet")
    train.to_json(folder / "x.jsonl")
    return folder


def config(folder, name, split="train", **fields):
    fields["download_kwargs"] = fields.get("download_kwargs", {}) | {"cache_dir": str(folder / "cache")}
    return HFConfig(name=name, split=split, **fields)


class TestConfig:
    @pytest.mark.parametrize("config", [HFEagerConfig, HFStreamingConfig])
    def test_shuffling_is_stochastic_by_datarax_s_stream(self, config):
        assert (config(shuffle=True).stochastic, config(shuffle=True).stream_name) == (True, "shuffle")
        assert (config().stochastic, config().stream_name) == (False, None)
        own = config(shuffle=True, stochastic=True, stream_name="mine")
        assert own.stream_name == "mine"

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"include_keys": ["a"], "exclude_keys": ["b"]}, "Cannot specify both include_keys and exclude_keys"),
            ({"include_keys": "abc"}, r"include_keys is a list of columns, got the str 'abc'; write \['abc'\]"),
            ({"include_keys": []}, "include_keys must name at least one column"),
            ({"exclude_keys": [1]}, r"exclude_keys must name .* got \(1,\)"),
            ({"download_kwargs": {"trust_remote_code": True}}, "trust_remote_code is never passed on"),
            ({"download_kwargs": {"split": "train"}}, "download_kwargs holds 'split'; give it as split"),
            ({"download_kwargs": {"path": "x"}}, "download_kwargs holds 'path'; give it as name"),
        ],
    )
    def test_contradictions_are_refused(self, fields, message):
        with pytest.raises(ValueError, match=message):
            HFConfig(name="a", split="b", **fields)

    @pytest.mark.parametrize(("fields", "named"), [({"split": "train"}, "name"), ({"name": "a"}, "split")])
    def test_name_and_split_are_required_unless_there_is_a_dataset(self, fields, named):
        with pytest.raises(ValueError, match=f"{named} is required for HFEagerConfig, unless it is given dataset="):
            HFEagerConfig(**fields)
        with pytest.raises(ValueError, match="name is required for HFEagerSource, unless it is given dataset="):
            HFConfig().load("HFEagerSource", streaming=False)
        built = datasets.Dataset.from_dict({"x": [1]})
        assert HFConfig().load("HFEagerSource", streaming=False, dataset=built) is built


@pytest.mark.parametrize("streaming", [False, True])
class TestLoading:
    @pytest.mark.parametrize(
        ("name", "split", "want"),
        [
            ("one", "train", range(20)),
            ("both", "test", range(3)),
            ("both", "train[5:8]", range(5, 8)),
            ("both", "train[:10%]+train[90%:]", [0, 1, 18, 19]),
            ("files", "train", range(20)),
        ],
    )
    def test_a_local_folder_is_a_dataset(self, folder, name, split, want, streaming):
        found = config(folder, str(folder / name), split).load("S", streaming=streaming)
        assert isinstance(found, datasets.IterableDataset if streaming else datasets.Dataset)
        assert [row["x"] for row in found] == list(want)

    def test_data_files_are_named_with_their_format(self, folder, streaming):
        for kind, path in (("json", "x.jsonl"), ("parquet", "files/train.parquet")):
            files = {"data_files": str(folder / path)}
            found = config(folder, kind, download_kwargs=files).load("S", streaming=streaming)
            assert [row["s"] for row in found] == [f"s{i}" for i in range(20)]

    def test_columns_are_kept_or_left_out(self, folder, streaming):
        def load(**fields):
            return config(folder, str(folder / "files"), **fields).load("S", streaming=streaming)

        for fields in ({"include_keys": ["s"]}, {"exclude_keys": ["x"]}):
            assert next(iter(load(**fields))) == {"s": "s0"}
        said = r"include_keys names the columns \['y'\], and the dataset has \['x', 's'\]"
        with pytest.raises(ValueError, match=said):
            load(include_keys=["s", "y"])
        with pytest.warns(UserWarning, match=r"exclude_keys names the columns \['idx'\], .* ignored") as warned:
            assert next(iter(load(exclude_keys=["x", "idx"]))) == {"s": "s0"}
        assert len(warned) == 1
        with pytest.raises(ValueError, match="leave none of the columns"):
            load(exclude_keys=["s", "x"])

    def test_another_split_than_was_saved_is_refused(self, folder, streaming):
        with pytest.raises(ValueError, match=r"both has the splits \['train', 'test'\], and split='dev' was asked for"):
            config(folder, str(folder / "both"), "dev").load("S", streaming=streaming)
        loaded = datasets.load_dataset(str(folder / "files"), split="train", cache_dir=str(folder / "c"))
        loaded.save_to_disk(folder / "split")
        said = "was saved from the split 'train', or without one, and split='test' was asked for"
        with pytest.raises(ValueError, match=said):
            config(folder, str(folder / "split"), "test").load("S", streaming=streaming)

    def test_a_hub_dataset_that_is_not_there_is_an_error_without_asking_the_hub(self, folder, streaming, monkeypatch):
        monkeypatch.setattr("huggingface_hub.HfApi.hf_hub_download", lambda *_, **__: pytest.fail("asked the hub"))
        with pytest.raises(ConnectionError) as info:
            config(folder, "nobody/nothing", local_files_only=True).load("S", streaming=streaming)
        assert "must be a local folder, or be in the cache of `datasets` already" in info.value.__notes__[0]
        assert not datasets.config.HF_HUB_OFFLINE

    def test_a_hub_dataset_in_the_cache_is_read_without_asking_the_hub(self, folder, streaming, monkeypatch):
        builder = datasets.load_dataset_builder(str(folder / "files"), cache_dir=str(folder / "made"))
        builder.download_and_prepare()
        # as a load from the hub would have left it: namespace___name / configuration / version / commit
        cached = folder / "cache" / "some___one" / "default" / "0.0.0" / ("0" * 40)
        shutil.copytree(builder.cache_dir, cached, dirs_exist_ok=True)
        monkeypatch.setattr("huggingface_hub.HfApi.hf_hub_download", lambda *_, **__: pytest.fail("asked the hub"))
        for file in cached.glob("files-*"):
            file.rename(file.with_name(file.name.replace("files-", "one-")))
        found = config(folder, "some/one", local_files_only=True).load("S", streaming=streaming)
        assert [row["x"] for row in found] == list(range(20))


def test_the_revision_is_main_unless_given(monkeypatch):
    seen = []
    stream = datasets.IterableDataset.from_generator(lambda: iter([{"x": 1}]))
    monkeypatch.setattr(datasets, "load_dataset", lambda path, **kwargs: [seen.append(kwargs), stream][1])
    for more in ({"trust_remote_code": False}, {"revision": "v1", "name": "c"}):
        HFConfig(name="a", split="b", download_kwargs=more).named("S").load(streaming=True)
    assert [call["revision"] for call in seen] == ["main", "v1"]
    assert not any("trust_remote_code" in call for call in seen)


def test_without_a_hub_the_error_says_what_else_a_name_may_be(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError) as info:
        HFConfig(name="nobody/nothing", split="train").load("S", streaming=False)
    assert "give a local folder (save_to_disk, or data files), or dataset=" in info.value.__notes__[0]


def test_sizes_are_known_before_loading(folder):
    def known(name, **options):
        options["download_kwargs"] = options.get("download_kwargs", {}) | {"cache_dir": str(folder / "empty")}
        return NamedDataset(name, "train", **options).nbytes()

    arrow = sum(path.stat().st_size for path in (folder / "one").glob("*.arrow"))
    assert known(str(folder / "one")) == known(str(folder / "both")) == arrow
    size = (folder / "files" / "train.parquet").stat().st_size
    assert known(str(folder / "files")) == size
    files = {"data_files": str(folder / "files" / "train.parquet"), "num_proc": None}
    assert known("parquet", download_kwargs=files) == size
