"""The packaged digits are scikit-learn's, and the script makes them again."""

import glob
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from datarax_ray.cli import digits
from tests.oracle import stored

SCRIPT = Path(__file__).parents[2] / "examples" / "make_digits.py"


def test_there_are_five_uneven_training_files_and_one_of_tests():
    assert [len(stored([path])) for path in sorted(glob.glob(digits.TRAIN))] == [500, 400, 300, 200, 97]
    assert [len(stored([path])) for path in glob.glob(digits.TEST)] == [300]


def test_every_image_is_scikit_learns():
    loaded = pytest.importorskip("sklearn.datasets").load_digits()
    train, test = stored(sorted(glob.glob(digits.TRAIN))), stored(glob.glob(digits.TEST))
    for index in range(1797):
        record = test[index // 6] if index % 6 == 0 else train[index - index // 6 - 1]
        assert np.array_equal(np.frombuffer(record[:64], np.uint8).reshape(8, 8), loaded.images[index])
        assert record[64:] == bytes([loaded.target[index]])


def test_the_script_makes_the_same_records_again(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    made = sorted(tmp_path.iterdir())
    assert [path.name for path in made] == sorted(path.name for path in digits.DIRECTORY.glob("*.array_record"))
    for path in made:
        assert stored([path]) == stored([digits.DIRECTORY / path.name])


def test_a_shift_moves_the_image_and_keeps_the_rest():
    class Least:
        """Draws the lowest number, which is a shift by -pixels: the image moves down and to the right."""

        def integers(self, low, high, size):
            return np.full(size, low)

    element = {"image": np.array([[1, 2], [3, 4]], np.uint8), "label": 7}
    moved = digits.RandomShift(1).random_map(element, Least())
    assert moved["image"].tolist() == [[0, 0], [0, 1]]
    assert moved["image"].dtype == np.uint8
    assert moved["label"] == 7
