"""Arrays that map files, as people hold them: the actors map the file again, and nobody reads all of it.

Reported of nanoGPT's train.bin and of dicts of np.load(mmap_mode="r") behind Ray: 2 GB of maps became 2 GB of objects
and a driver that read for half a minute.
"""

import logging
import os
import pickle

import numpy as np
import pytest

from datarax_ray import RaySource
from datarax_ray.actors.description import _MAX_INLINE_NBYTES, _pickled, shareable
from datarax_ray.read.files.mapped_arrays import MappedArray
from tests.data import in_memory
from tests.data_as_it_is.streams import assert_gives, pipeline, rows

N = 2**20
NUMBERS = np.arange(N, dtype=np.int32)


class Tokens:
    """As nanoGPT reads train.bin: windows of one long array, inside an object."""

    def __init__(self, path, size=2**16):
        self.data = {"held": [np.memmap(path, np.int32, "r")]}
        self.size = size

    def __len__(self):
        return len(self.data["held"][0]) // self.size

    def __getitem__(self, index):
        window = self.data["held"][0][index * self.size : (index + 1) * self.size]
        return {"first": int(window[0]), "sum": int(window.sum(dtype=np.int64))}


@pytest.fixture
def path(tmp_path):
    NUMBERS.tofile(tmp_path / "train.bin")
    np.save(tmp_path / "train.npy", NUMBERS.reshape(-1, 4))
    return tmp_path / "train.bin"


# From the path, an array that maps the file, or a view.
VIEWS = {
    "whole": lambda path: np.memmap(path, np.int32, "r"),
    "with an offset that is no page": lambda path: np.memmap(path, np.int16, "r", offset=46),
    "slice": lambda path: np.memmap(path, np.int32, "r")[1000:-7],
    "strides": lambda path: np.memmap(path, np.int32, "r")[5::3],
    "backwards": lambda path: np.memmap(path, np.int32, "r")[::-2],
    "two axes": lambda path: np.memmap(path, np.int32, "r", shape=(1024, 1024))[3:900, 7:1000].T,
    "plain view": lambda path: np.asarray(np.memmap(path, np.int32, "r"))[17:],
    "other dtype": lambda path: np.memmap(path, np.int32, "r").view(np.uint8)[3:],
    "records": lambda path: np.memmap(path, np.dtype([("a", "<i4"), ("b", "<u4")]), "r")["b"],
    "np.load": lambda path: np.load(path.with_suffix(".npy"), mmap_mode="r")[100:],
    "Fortran": lambda path: np.memmap(path, np.int32, "r", shape=(1024, 1024), order="F"),
    "written": lambda path: np.memmap(path, np.int32, "r+")[8:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_an_array_that_maps_a_file_travels_as_its_place_there(path, name):
    array = VIEWS[name](path)
    if name == "written":
        array[0] = -1
    sent, is_own = _pickled({"deep": [array]})
    (found,) = pickle.loads(sent)["deep"]
    assert (len(sent) < 2000, is_own) == (True, True)
    assert (type(found), found.dtype, found.shape, found.strides) == (
        type(array),
        array.dtype,
        array.shape,
        array.strides,
    )
    np.testing.assert_array_equal(found, array)
    assert not found.flags.writeable
    assert len(_pickled(found)[0]) < 2000  # from there once more


def test_other_arrays_travel_as_they_are(path, caplog):
    mapped = np.memmap(path, np.int32, "r")
    assert MappedArray.of(mapped[:100]) is None
    assert MappedArray.of(NUMBERS) is None
    assert MappedArray.of(np.array(mapped)) is None
    assert not caplog.messages
    changed = np.memmap(path, np.int32, "c")
    changed[0] = -5
    found = pickle.loads(_pickled(changed)[0])
    assert found[0] == -5
    (line,) = caplog.messages
    assert (
        f"an array of 4.2 MB that maps {path} is read and copied to the actors, because it is mapped copy-on-write"
        in line
    )


def test_a_file_that_is_another_one_or_none_there_is_an_error_with_what_to_do(path):
    sent, _ = _pickled(np.memmap(path, np.int32, "r"))
    path.write_bytes(NUMBERS[::-1].tobytes())
    remedy = "every node with actors needs this file under this path.*np.array.mapped."
    with pytest.raises(ValueError, match=rf"train\.bin has 4,194,304 bytes here, and others .*{remedy}"):
        pickle.loads(sent)
    os.unlink(path)
    with pytest.raises(FileNotFoundError, match=r"train\.bin") as raised:
        pickle.loads(sent)
    assert "every node with actors needs this file" in raised.value.__notes__[0]


def test_a_state_knows_the_rows_of_a_map_as_of_an_array(path):
    def fingerprint(data):
        return in_memory(data, num_epochs=-1).describe().settings()["files"]

    assert fingerprint({"x": np.memmap(path, np.int32, "r")}) == fingerprint({"x": NUMBERS})
    before = fingerprint(np.memmap(path, np.int32, "r"))
    path.write_bytes(NUMBERS[::-1].tobytes())
    assert fingerprint(np.memmap(path, np.int32, "r")) != before


def dict_of_maps(path):
    maps = np.memmap(path, np.int32, "r", shape=(16, 2**16)), np.load(path.with_suffix(".npy"), mmap_mode="r")[:16]
    return {"first": maps[0][:, 0], "window": maps[0], "small": maps[1]}


@pytest.mark.ray
def test_actors_map_the_file_and_the_object_store_holds_none_of_it(ray_local, path, caplog):
    want = [{"first": i * 2**16, "sum": sum(range(i * 2**16, (i + 1) * 2**16))} for i in range(16)]

    def made(data):
        source = in_memory(data)
        assert len(_pickled(source.describe())[0]) < _MAX_INLINE_NBYTES
        return source

    with caplog.at_level(logging.WARNING):
        assert_gives(lambda: made(Tokens(path)), want, num_actors=2)
        with RaySource(made(dict_of_maps(path)), num_actors=2, num_cpus=0.5) as source:
            found = rows(pipeline(source, batch_size=8))
    assert [row["first"] for row in found] == [each["first"] for each in want]
    assert [sum(row["window"]) for row in found] == [each["sum"] for each in want]
    assert [row["small"] for row in found] == NUMBERS[:64].reshape(16, 4).tolist()
    assert not [line for line in caplog.messages if "copied" in line]
    import ray

    assert isinstance(ray.get(shareable(Tokens(path))), bytes)
