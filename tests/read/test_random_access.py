"""What is taken for a data source, and what only looks like one."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from datarax_ray.read.formats.random_access import ArraysReader, RandomAccessReader

FRAME = pd.DataFrame(np.arange(12).reshape(4, 3))  # columns 0, 1, 2: they would be taken for its rows


class Frame(pd.DataFrame):
    """As GeoPandas has it."""


@pytest.mark.parametrize("frame", [FRAME, Frame(FRAME)])
def test_a_data_frame_is_refused_since_an_index_gives_its_columns(frame: pd.DataFrame) -> None:
    with pytest.raises(TypeError, match=r"an index gives the column of that name of a pandas.DataFrame, no row; give"):
        RandomAccessReader(frame)


def test_a_series_is_refused_since_an_index_is_a_label() -> None:
    filtered = pd.Series([10, 11, 12], index=[2, 0, 1])
    with pytest.raises(
        TypeError, match=r"the value of that label of a pandas.Series, .*: {\"x\": series.to_numpy\(\)}"
    ):
        RandomAccessReader(filtered)


@pytest.mark.parametrize("table", [pa.table({"x": [1, 2]}), pa.record_batch({"x": [1, 2]})])
def test_an_arrow_table_is_refused_since_an_index_gives_its_columns(table: pa.Table | pa.RecordBatch) -> None:
    with pytest.raises(TypeError, match=r"an index gives a column of a pyarrow\.\w+, no row; give its arrays by name"):
        RandomAccessReader(table)


def test_the_rows_of_tables_are_those_of_what_the_errors_say_to_give() -> None:
    table = pa.table({"x": [5, 6, 7], "t": ["a", "b", "c"]})
    frame, batch = table.to_pandas().iloc[::-1].iloc[::-1], table.to_batches()[0]
    for arrays in (
        {name: frame[name].to_numpy() for name in frame.columns},
        {name: table[name].to_numpy() for name in table.column_names},
        {name: batch[name].to_numpy(zero_copy_only=False) for name in batch.schema.names},
    ):
        rows = ArraysReader(arrays).read(np.array([2, 0]))
        assert {name: rows[name].tolist() for name in rows} == {"x": [7, 5], "t": ["c", "a"]}


def test_a_dict_of_elements_by_their_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a dict holds arrays by name, and 0 is no str; .* give a list"):
        ArraysReader({0: "a", 1: "b"})
