"""ParquetSource: what only it promises. What all sources promise: test_every_source.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from flax import nnx
from pyarrow import parquet

from datarax_ray import Pipeline, RaySource
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.decode import DecodeRaw, PadTo
from datarax_ray.sources import ParquetSource, ParquetSourceConfig
from tests import oracle
from tests.tables import Doubled, rows, write_tables

N = 200


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tables(tmp_path, (90, 110), row_group=7)
    return tmp_path


def make(directory: Any, *, transforms: Any = (), columns: Any = None, **config: Any) -> ParquetSource:
    config = {"num_epochs": 2} | config
    return ParquetSource(ParquetSourceConfig(**config), directory, transforms=transforms, columns=columns)


def batches(source: Any, batch_size: int = 16) -> Iterator[Any]:
    return iter(Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0)))


def indices(source: Any) -> list[int]:
    return [int(i) for batch in batches(source) for i in batch["index"]]


def test_without_shuffle_rows_come_in_the_order_of_the_files(directory: Path) -> None:
    assert indices(make(directory)) == [*range(N), *range(N)]


def test_a_decoder_of_records_is_refused_with_what_rows_are(directory: Path) -> None:
    said = (
        r"DecodeRaw decodes records, which are bytes, and these are rows that have the columns \[.*'index'.*\] already"
    )
    with pytest.raises(TypeError, match=said):
        make(directory, transforms=[DecodeRaw("uint8", (2,))]).get_batch(2)


def test_shuffled_row_groups_come_whole_within_their_windows_and_each_once_an_epoch(directory: Path) -> None:
    got = indices(make(directory, shuffle=True, shuffle_window=3))
    starts = [*range(0, 90, 7), *range(90, N, 7), N]
    group_of = np.searchsorted(starts, np.arange(N), side="right") - 1
    for epoch in (got[:N], got[N:]):
        assert sorted(epoch) == list(range(N))
        seen: list[set[int]] = []
        while epoch:
            groups = set(group_of[epoch[:7]].tolist())  # those of a window, or all but some of its three
            size = next(n for n in range(7, len(epoch) + 1) if _is_whole(epoch[:n], group_of))
            groups = set(group_of[epoch[:size]].tolist())
            assert len(groups) <= 3
            seen.append(groups)
            epoch = epoch[size:]
        assert sum(map(len, seen)) == len(starts) - 1
    assert got[:N] != got[N:]


def _is_whole(some: list[int], group_of: np.ndarray) -> bool:
    return sorted(some) == np.flatnonzero(np.isin(group_of, group_of[some])).tolist()


def test_a_block_of_one_row_is_one_true_permutation(directory: Path) -> None:
    expected = [i for epoch in range(2) for i in oracle.order(N, epoch, 42)]
    assert indices(make(directory, shuffle=True, shuffle_block_size=1)) == expected
    assert indices(make(directory, shuffle=True, shuffle_block_size=1, cacheable=True)) == expected


def test_blocks_of_a_given_size_are_a_permutation_too(directory: Path) -> None:
    got = indices(make(directory, shuffle=True, shuffle_block_size=5))
    assert sorted(got[:N]) == sorted(got[N:]) == list(range(N))
    assert got[:N] != got[N:] != list(range(N))


@pytest.mark.usefixtures("ray_local")
def test_every_kind_of_column_is_the_same_through_actors(directory: Path) -> None:
    alone = list(batches(make(directory, shuffle=True)))
    with RaySource(make(directory, shuffle=True), num_actors=3, num_cpus=0.5) as source:
        for left, right in zip(alone, batches(source), strict=True):
            assert sorted(left) == sorted(right) == ["index", "inner", "name", "pair", "ragged", "square"]
            assert left["index"].tolist() == right["index"].tolist()
            want = [rows(i, i + 1) for i in left["index"].tolist()]
            for batch in (left, right):
                assert batch["pair"].tolist() == [[row["index"][0]] * 2 for row in want]
                assert batch["name"].tolist() == [row["name"][0] for row in want]
                assert [r.tolist() for r in batch["ragged"]] == [row["ragged"][0] for row in want]
                assert batch["inner"]["even"].tolist() == [row["inner"][0]["even"] for row in want]
                assert batch["inner"]["text"].tolist() == [row["inner"][0]["text"] for row in want]


@pytest.mark.usefixtures("ray_local")
def test_each_row_group_is_decoded_by_one_actor_and_once_an_epoch(directory: Path, monkeypatch: Any) -> None:
    from datarax_ray.feed.stream import StreamOptions

    log = directory.parent / "decoded"
    log.mkdir()
    source = make(directory, shuffle=True, shuffle_window=3, columns=["index"], transforms=[LogDecodes(log)])
    with RaySource(source, num_actors=3, num_cpus=0.5, chunk_size=11) as distributed:
        assert sum(batch.num_rows for batch in distributed.batches(0, StreamOptions(16))) == 2 * N
    decoded = [tuple(line.split()) for file in log.iterdir() for line in file.read_text().splitlines()]
    assert len(decoded) == 2 * 29
    assert len({group for _, group in decoded}) == 29 == len(set(decoded))
    assert len({process for process, _ in decoded}) == 3


class LogDecodes:
    """Notes the process and row group of every decode from its first call on; ParquetReader has no such hook."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __setstate__(self, state: dict[str, Any]) -> None:
        import os
        import threading

        from datarax_ray.read.formats.parquet.reader import ParquetReader

        self.__dict__ = state
        decode, log = ParquetReader._decode, self.log

        def noted(reader: Any, group: int) -> Any:
            if threading.current_thread().name == "datarax_ray-sample":  # every process makes the first elements
                return decode(reader, group)
            with (log / str(os.getpid())).open("a") as file:
                file.write(f"{os.getpid()} {group}\n")
            return decode(reader, group)

        if decode.__name__ != "noted":  # once: a process unpickles it for the sample, too
            ParquetReader._decode = noted  # type: ignore[method-assign]  # in the actor's process alone

    def map_columns(self, columns: Any) -> Any:
        return columns


def test_whole_columns_are_transformed_at_once_and_rows_after_them(directory: Path) -> None:
    calls: list[int] = []

    class Counted(Doubled):
        def map_columns(self, columns: Any) -> Any:
            calls.append(len(columns["index"]))
            return super().map_columns(columns)

    source = make(directory, transforms=[Counted(), lambda e: e | {"triple": e["double"] + e["index"]}], num_epochs=1)
    got = source.get_batch(N)
    assert got["triple"].tolist() == [3 * i for i in range(N)]
    whole = [count for count in calls if count > 8]  # fewer: samples, and whether rows depend on others
    assert sum(whole) == N > 10 * len(whole)


def test_a_transform_of_columns_may_follow_one_of_elements(directory: Path) -> None:
    class Odd:
        def filter(self, element: Any) -> bool:
            return bool(element["index"] % 2)

    got = make(directory, columns=["index"], transforms=[Odd(), Doubled()], num_epochs=1).get_batch(3)
    assert got["double"].tolist() == [2, 6, 10]


def test_ragged_lists_are_padded_as_arrays(directory: Path) -> None:
    padded = make(directory, columns=["ragged"], transforms=[PadTo({"ragged": 3})]).get_batch(4)
    assert padded["ragged"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 2]]


def test_a_file_that_datasets_wrote_is_read_as_datasets_reads_it(tmp_path: Path) -> None:
    written = datasets.Dataset.from_dict({"text": ["a", "bb", "ccc"], "label": [0, 1, 0], "tokens": [[1], [2, 3], []]})
    written = written.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    written.to_parquet(tmp_path / "data.parquet")
    got = make(tmp_path, num_epochs=1).get_batch(3)
    assert {key: [getattr(v, "tolist", lambda v=v: v)() for v in got[key]] for key in got} == written.to_dict()


def test_a_window_is_as_many_row_groups_as_there_is_memory_for(tmp_path: Path) -> None:
    from datarax_ray.plan.orders.record_groups import RecordGroups
    from datarax_ray.sources.base.files import _window_blocks

    assert _window_blocks(RecordGroups([10_000] * 50), row_nbytes=1000) == 26  # of 10 MB: 256 MiB
    assert _window_blocks(RecordGroups([10] * 50), row_nbytes=1) == 64
    assert _window_blocks(RecordGroups([10**6]), row_nbytes=1000) == 1
    write_tables(tmp_path, (90,))
    assert make(tmp_path, shuffle=True, shuffle_window=5).describe().order.window_blocks == 5


def test_another_window_or_other_row_groups_are_drift(directory: Path) -> None:
    state = make(directory, shuffle=True, shuffle_window=3).get_state()
    assert len(str(state)) < 4096
    with pytest.raises(DriftError, match=r"order\.window_blocks: the checkpoint was written with 3, .* has 4"):
        make(directory, shuffle=True, shuffle_window=4).set_state(state)
    write_tables(directory, (90, 110), row_group=9)
    with pytest.raises(DriftError, match=r"files\.digest"):
        make(directory, shuffle=True, shuffle_window=3).set_state(state)


def test_a_copy_reads_the_same_columns(directory: Path) -> None:
    source = make(iter([directory]), columns=iter(["index"]))
    assert source.copy().get_batch(3).keys() == {"index"}
    assert "num_records=200, shuffle=False" in repr(source)


def test_cached_row_groups_are_forgotten_on_request(directory: Path) -> None:
    source = make(directory, cacheable=True)
    begin = source.get_state()
    source.get_batch(N)
    for path in directory.iterdir():
        path.unlink()
    assert source.get_batch(N)["index"].tolist() == list(range(N))
    source.set_state(begin)
    source.close()
    with pytest.raises(FileNotFoundError, match="part-00000.parquet"):
        source.get_batch(1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shuffle_window": 3}, ValueError, "shuffle_window must be at least 1 and needs shuffle=True, got 3"),
        ({"shuffle": True, "shuffle_window": 0}, ValueError, "shuffle_window must be at least 1"),
        ({"shuffle_block_size": 3}, ValueError, "shuffle_block_size must be at least 1 and needs shuffle=True"),
        ({"shuffle": True, "shuffle_block_size": 2, "shuffle_window": 2}, ValueError, "give one of them"),
        ({"exclude_columns": "name"}, TypeError, "exclude_columns is a list of names, got 'name'"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ParquetSourceConfig(**options)


def test_nulls_name_file_row_group_field_and_remedy(tmp_path: Path) -> None:
    table = pa.table({"x": [*range(256), None]})  # behind the first rows, and not counted in the footer
    parquet.write_table(table, tmp_path / "n.parquet", write_statistics=False)
    with pytest.raises(ValueError, match=r"n.parquet\[256\] \(row group 0\) .*: field 'x' .*on_null=\{'x': value\}"):
        make(tmp_path).get_batch(257)
    assert make(tmp_path, on_null={"x": 7}).get_batch(257)["x"].tolist() == [*range(256), 7]
