"""Tensors that Ray Data wrote, against the arrays that they were made of and Ray Data's own reads."""

import json

import numpy as np
import pyarrow as pa
import pytest
import ray
from pyarrow import parquet
from ray import cloudpickle

from datarax_ray.read.formats.arrow.types import with_shapes
from datarax_ray.read.formats.parquet.reader import ParquetReader
from tests.programs import python
from tests.tables import ray_tensors

IMAGES = np.arange(7 * 60, dtype=np.uint8).reshape(7, 4, 5, 3)


def rows_of(column):
    return [None if row is None else np.array(row, np.uint8) for row in column.to_pylist()]


@pytest.mark.parametrize("name", ["ray.data.arrow_tensor", "ray.data.arrow_tensor_v2"])
@pytest.mark.parametrize("told", [b"[4, 5, 3]", cloudpickle.dumps((4, 5, 3))], ids=["json", "pickled"])
def test_a_list_for_each_row_has_the_shape_that_stands_beside_it(name, told):
    table = ray_tensors(x=IMAGES, name=name, told=told)
    parts = [(0, 7), (2, 5), (7, 7), (6, 7)]
    for part, wanted in [
        *((table.slice(start, stop - start), IMAGES[start:stop]) for start, stop in parts),
        (pa.concat_tables([table.slice(1), table.slice(5)]), np.concatenate([IMAGES[1:], IMAGES[5:]])),
    ]:
        found = with_shapes(part)
        found.validate(full=True)
        np.testing.assert_array_equal(np.array(found["x"].to_pylist()).reshape(wanted.shape), wanted)
    shared = [chunk.flatten().flatten().flatten().buffers()[1].address for chunk in with_shapes(table)["x"].chunks]
    assert shared == [chunk.values.buffers()[1].address for chunk in table["x"].chunks]


def test_a_row_that_is_null_is_none_and_the_others_have_the_shape():
    table = ray_tensors(x=[IMAGES[0], None, IMAGES[2], None, IMAGES[4]], told=b"[4, 5, 3]")
    found = with_shapes(table.slice(1))
    found.validate(full=True)
    for row, wanted in zip(rows_of(found["x"]), [None, IMAGES[2], None, IMAGES[4]], strict=True):
        np.testing.assert_array_equal(row, wanted)


@pytest.mark.parametrize(
    "told", [b"", b"3", b"[]", b"[-1, -60]", b"[60.0]", b"\xff", cloudpickle.dumps(print)], ids=str
)
def test_what_is_no_shape_is_refused_by_the_name_of_the_field(told):
    with pytest.raises(ValueError, match="field 'x' is a tensor of Ray Data, and its rows are not of the shape b"):
        with_shapes(ray_tensors(x=IMAGES, told=told))


def test_rows_of_another_size_than_the_file_says_are_an_error_with_its_path(tmp_path):
    parquet.write_table(ray_tensors(x=IMAGES, told=b"[4, 5, 4]"), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x\.parquet.*: field 'x' is a tensor .* not of the shape b'\[4, 5, 4\]'"):
        ParquetReader.of(tmp_path / "x.parquet").read(np.arange(2))


def test_files_of_other_shapes_are_files_with_other_fields(tmp_path):
    for name, shape in (("a", (3, 4, 6)), ("b", (3, 6, 4))):
        parquet.write_table(ray_tensors(x=np.zeros(shape)), tmp_path / f"{name}.parquet")
    said = r"field 'x' is .*\[6\]>\[4\] in .*a\.parquet and .*\[4\]>\[6\] in .*b\.parquet"
    with pytest.raises(ValueError, match=said):
        ParquetReader.of(tmp_path)


WRITE = """
import sys
import numpy as np, ray, ray.data
folder, address = sys.argv[1:]
ray.init(address, log_to_driver=False)
images = np.arange(8 * 60, dtype=np.uint8).reshape(8, 4, 5, 3)
ray.data.from_numpy(images).write_parquet(f"{folder}/fixed")
rows = [{"v": np.full((size, 2), size)} for size in (1, 2, 3)]
ray.data.from_items(rows, override_num_blocks=1).write_parquet(f"{folder}/variable")
(batch,) = ray.data.read_parquet(f"{folder}/fixed").iter_batches(batch_size=8)
np.save(f"{folder}/oracle.npy", batch["data"])
for actor in ray.util.list_named_actors(all_namespaces=True):  # Ray Data's counts outlive its driver
    ray.kill(ray.get_actor(**actor))
"""
READ = """
import json, sys
import numpy as np
from datarax_ray import load
with load(f"{sys.argv[1]}/fixed") as source, load(f"{sys.argv[1]}/variable") as variable:
    found = source.get_batch(8)["data"]
    np.testing.assert_array_equal(found, np.load(f"{sys.argv[1]}/oracle.npy"))
    rows = [{key: value.tolist() for key, value in row["v"].items()} for row in variable]
    print(json.dumps([str(found.dtype), found.shape, source.get_state(), rows, "ray.data" in sys.modules]))
"""


def test_what_ray_data_writes_is_read_as_ray_data_reads_it_where_its_types_are_known_and_where_not(ray_local, tmp_path):
    told = []
    for code in (WRITE + READ, READ):
        done = python("-c", code, tmp_path, ray.get_runtime_context().gcs_address)
        assert done.returncode == 0, done.stderr[-2000:]
        told.append(json.loads(done.stdout.strip().rpartition("\n")[2]))
    assert [each.pop() for each in told] == [True, False]
    assert told[0] == told[1]
    assert told[0][:2] == ["uint8", [8, 4, 5, 3]]
    assert told[0][3] == [{"data": [n] * 2 * n, "shape": [n, 2]} for n in (1, 2, 3)]
