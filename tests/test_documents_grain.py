"""The samples of Grain's documents, as they are printed but for file and package names, by value."""

from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np
import orbax.checkpoint as ocp
import pyarrow as pa
import pytest
from pyarrow import parquet

import datarax_ray.grain as top
import datarax_ray.grain.python as grain
from tests.data import record, write_file

pytestmark = pytest.mark.usefixtures("ray_local")
NAMES = [f"{index}.jpg".encode() for index in range(5)]
# record keys of IndexSampler(num_records=5, shuffle=True, num_epochs=2, seed=0), as the guide prints them
KEYS = [0, 4, 1, 2, 3, 1, 2, 3, 0, 4]


class Pictures:
    """Five pictures, each of one colour: what a TFDS source is, without TFDS."""

    def __len__(self):
        return 5

    def __getitem__(self, record_key):
        image = np.full((30 + record_key, 40, 3), 10 * record_key, np.uint8)
        return {"file_name": NAMES[record_key], "image": image, "label": record_key}

    def __repr__(self):
        return "Pictures()"


class ResizeAndCrop(grain.MapTransform):
    def map(self, element):
        image = element["image"]
        image = cv2.resize(image, dsize=(256, 256), interpolation=cv2.INTER_LINEAR)
        image = image[:224, :224]
        element["image"] = image
        return element


def make_sampler():
    return grain.IndexSampler(
        num_records=5,
        num_epochs=2,
        shard_options=grain.ShardOptions(shard_index=0, shard_count=1, drop_remainder=True),
        shuffle=True,
        seed=0,
    )


class TestDataSources:
    def test_a_range(self, capsys):
        range_data_source = top.python.RangeDataSource(start=1, stop=10, step=2)
        print(list(range_data_source))
        assert capsys.readouterr().out == "[1, 3, 5, 7, 9]\n"
        assert [int(number) for number in top.load(range_data_source, num_epochs=1)] == [1, 3, 5, 7, 9]

    def test_array_records_by_path_and_by_file_instruction(self, tmp_path):
        @dataclass
        class FileInstruction:
            filename: str
            skip: int
            take: int
            examples_in_shard: int

        path = str(write_file(tmp_path / "a.array_record", map(record, range(9))))
        assert list(grain.load(grain.ArrayRecordDataSource(path), num_epochs=1)) == list(map(record, range(9)))
        some = grain.ArrayRecordDataSource(FileInstruction(path, skip=2, take=4, examples_in_shard=9))
        assert list(grain.load(some, num_epochs=1)) == list(map(record, range(2, 6)))

    def test_parquet(self, tmp_path):
        parquet.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "data.parquet")
        parquet_data_source = top.experimental.ParquetIterDataset(path=f"{tmp_path}/data.parquet")
        assert [int(row["x"]) for row in parquet_data_source] == [1, 2, 3]

    def test_one_s_own_which_is_entered_and_left(self):
        class Own:
            calls: ClassVar[list[str]] = []

            def __len__(self):
                return 3

            def __getitem__(self, record_key):
                assert self.calls == ["enter"]
                return 10 * int(record_key)

            def __enter__(self):
                self.calls.append("enter")
                return self

            def __exit__(self, *error):
                self.calls.append("exit")

        with grain.load(Own(), num_epochs=1) as loader:
            assert list(loader) == [0, 10, 20]
        assert Own.calls == ["enter", "exit"]


class TestGuide:
    def test_a_sampler(self):
        index_sampler_example = make_sampler()
        found = [
            (metadata.index, metadata.record_key) for metadata in map(index_sampler_example.__getitem__, range(10))
        ]
        assert found == list(enumerate(KEYS))

    def test_a_loader_in_process(self):
        source = Pictures()
        transformations = [ResizeAndCrop()]
        data_loader = grain.DataLoader(
            data_source=source, operations=transformations, sampler=make_sampler(), worker_count=0
        )
        shown = []
        for element in data_loader:
            shown.append(element["image"])
        assert [image.shape for image in shown] == [(224, 224, 3)] * 10
        assert [int(image[0, 0, 0]) for image in shown] == [10 * key for key in KEYS]

    def test_a_checkpoint_with_orbax(self, tmp_path):
        data_loader = grain.DataLoader(
            data_source=Pictures(), operations=[ResizeAndCrop()], sampler=make_sampler(), worker_count=0
        )
        data_iter = iter(data_loader)
        num_steps = 5
        names = []

        for _ in range(num_steps):
            x = next(data_iter)
            names.append(x["file_name"])

        mngr = ocp.CheckpointManager(tmp_path / "orbax")
        assert mngr.save(step=num_steps, args=grain.PyGrainCheckpointSave(data_iter), force=True)
        mngr.wait_until_finished()
        assert (tmp_path / "orbax/5/default/process_0-of-1.json").is_file()

        for _ in range(5, 10):
            x = next(data_iter)
            names.append(x["file_name"])
        assert names == [NAMES[key] for key in KEYS]
        with pytest.raises(StopIteration):
            next(data_iter)

        restored = mngr.restore(num_steps, args=grain.PyGrainCheckpointRestore(data_iter))
        assert restored is data_iter
        for i in range(5, 10):
            x = next(data_iter)
            assert x["file_name"] == names[i]
        mngr.close()

    def test_a_source_in_memory_with_workers(self):
        in_memory_datasource = grain.InMemoryDataSource(range(5))
        try:
            assert f"First Record Read: {in_memory_datasource[0]}" == "First Record Read: 0"
            data_loader = grain.DataLoader(
                data_source=in_memory_datasource,
                sampler=grain.IndexSampler(
                    num_records=len(in_memory_datasource),
                    num_epochs=2,
                    shard_options=grain.NoSharding(),
                    shuffle=True,
                    seed=0,
                ),
                worker_count=2,  # 5 there
            )
            data_iter = iter(data_loader)
            found = []
            for _ in range(len(in_memory_datasource) * 2):
                x = next(data_iter)
                found.append(x)
            assert found == KEYS
            data_loader.close()
        finally:
            in_memory_datasource.close()
            in_memory_datasource.unlink()
