"""`bench`: each way to read a format is measured, over real files; what is said follows from the figures, by value."""

import io
import json

import numpy as np
import pytest

from datarax_ray.cli.bench import IN_BLOCKS, IN_ORDER, RAW, SHUFFLED, Measured, advice, bench
from datarax_ray.read.errors import RecordError
from tests.cli.screens import answer, screen
from tests.data import decode, record, write_file
from tests.tables import write_tables
from tests.tars import write_tar


def told(*paths, as_json=True, batch_size=4, **options):
    shown = screen(as_json, width=200)
    bench(list(map(str, paths)), shown, seconds=0.01, batch_size=batch_size, **options)
    text = answer(shown)
    return json.loads(text) if as_json else text


@pytest.mark.parametrize(
    ("group_size", "ways"), [(1, [RAW, IN_ORDER, SHUFFLED]), (4, [RAW, IN_ORDER, SHUFFLED, IN_BLOCKS])]
)
def test_files_of_groups_are_shuffled_in_blocks_as_well(tmp_path, group_size, ways):
    write_file(tmp_path / "a.array_record", map(record, range(40)), group_size)
    found = told(tmp_path / "a.array_record", decoder=(decode,))
    assert [way["name"] for way in found["ways"]] == ways
    assert all(way["num_records"] > 0 and way["records_per_s"] > 0 for way in found["ways"])
    assert "decode" not in found["ways"][0]["spent"]  # raw
    assert all("decode" in way["spent"] for way in found["ways"][1:])
    assert found["mean_nbytes"] > 0


def test_other_formats_are_measured_too(tmp_path):
    write_tables(tmp_path, (30, 20))
    assert len(told(tmp_path)["ways"]) == 3
    tar = write_tar(tmp_path / "a.tar", [(f"{index}.txt", b"text") for index in range(20)])
    assert [way["name"] for way in told(tar)["ways"]][-1] == IN_BLOCKS
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 50)
    text = told(tmp_path / "a.csv", as_json=False, target=1e9)
    assert "shuffled" in text
    assert "1,000,000,000 records/s take about" in text


def test_what_each_way_to_read_warns_of_is_told_once(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n,2\n" * 30)
    told(tmp_path / "a.csv")
    assert caplog.text.count("fields with nulls stay on the host") == 1


def test_few_records_are_no_ground_for_advice(tmp_path):
    write_tables(tmp_path, (9,))
    assert told(tmp_path)["advice"] == ["9 records are too few batches to compare ways to read them"]


TRAIN = """
import numpy as np
from datarax_ray import Pipeline, RandomAccessSource, RandomAccessSourceConfig


class Crop:
    def map(self, element):
        return {"image": element["image"][:2]}


def source(**options):
    images = [{"image": np.zeros(2 + index % 5)} for index in range(50)]
    return RandomAccessSource(RandomAccessSourceConfig(**options), images, transforms=[Crop()])


def make_pipeline():
    return Pipeline(source=source(shuffle=True, num_epochs=1), batch_size=8)

"""


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def test_a_pipeline_of_ones_own_is_measured_with_its_transforms(train):
    found = told(f"{train}:make_pipeline")
    assert [way["name"] for way in found["ways"]] == [RAW, IN_ORDER, SHUFFLED]
    assert ["Crop" in way["spent"] for way in found["ways"]] == [False, True, True]
    assert not [line for line in found["advice"] if "without stacking" in line]
    with pytest.raises(ValueError, match="has data and transforms of its own; leave out --decoder"):
        told(f"{train}:make_pipeline", decoder=(decode,))
    with pytest.raises(ValueError, match="has no make; it has"):
        told(f"{train}:make")


@pytest.mark.usefixtures("ray_local")
def test_elements_that_are_not_alike_are_read_and_decoded_and_not_stacked(tmp_path):
    files = [(f"{index}.npy", npy(np.zeros(1 + index % 2))) for index in range(20)]
    found = told(write_tar(tmp_path / "a.tar", files), num_actors=1)
    assert len(found["ways"]) == 5
    assert all(way["num_records"] > 0 for way in found["ways"][1:])
    assert "measured without stacking elements" in found["advice"][0]
    assert "field 'npy' has shape (1,) in one element, (2,) in another" in found["advice"][0]


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_a_record_that_is_broken_is_an_error_all_the_same(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"")
    tar = write_tar(tmp_path / "a.tar", [("0.json", b"{}"), ("1.json", b"{")])
    with pytest.raises(RecordError, match="1.json"):
        told(tar)


def of(rate, name, num_actors=0, **spent):
    return Measured(name, int(rate), 1.0, spent, num_actors)


@pytest.mark.parametrize(
    ("ways", "target", "said"),
    [
        ({RAW: 900, IN_ORDER: 800, SHUFFLED: 100, IN_BLOCKS: 700}, None, "shuffle_block_size reads 7.0 times as fast"),
        ({RAW: 900, IN_ORDER: 800, SHUFFLED: 200}, None, "the shuffle reads at 25% of the rate of file order"),
        ({RAW: 900, IN_ORDER: 100, SHUFFLED: 100}, None, "crop takes 80% of the time of shuffled"),
        ({RAW: 900, IN_ORDER: 100, SHUFFLED: 100}, None, "one actor with its own CPU reads about 100 records/s"),
        ({RAW: 900, IN_ORDER: 100, SHUFFLED: 100}, 900, "900 records/s take about 10 actors"),
        ({RAW: 900, IN_ORDER: 100, SHUFFLED: 100}, 50, "50 records/s take about 1 actor"),
        (
            {RAW: 900, IN_ORDER: 100, SHUFFLED: 100, "8 actors": 200},
            None,
            "8 actors read 2.0 times as fast as this proc",
        ),
    ],
)
def test_what_is_said_follows_from_the_figures(ways, target, said):
    found = [of(rate, name, 8 if "actors" in name else 0, crop=0.8, reading=0.2) for name, rate in ways.items()]
    assert any(line.startswith(said) for line in advice(found, target)), advice(found, target)


def test_where_nothing_is_to_be_gained_only_the_rate_is_said():
    found = [of(100, RAW), of(95, IN_ORDER), of(90, SHUFFLED), of(99, IN_BLOCKS)]
    assert len(advice(found, None)) == 1
