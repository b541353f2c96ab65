"""ParquetSource: what only it promises. What all sources promise: test_every_source.py."""

import datasets
import numpy as np
import pytest
from flax import nnx

from datarax_ray import Pipeline, RaySource
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.decode import DecodeRaw
from datarax_ray.sources import ParquetSource, ParquetSourceConfig
from tests.tables import Doubled, write_tables


class LogDecodes:
    """Notes the process and row group of every decode from its first call on; ParquetReader has no such hook."""

    def __init__(self, log):
        self.log = log

    def __setstate__(self, state):
        import os
        import threading

        from datarax_ray.read.formats.parquet.reader import ParquetReader

        self.__dict__ = state
        decode, log = ParquetReader._decode, self.log

        def noted(reader, group):
            if threading.current_thread().name == "datarax_ray-sample":  # every process makes the first elements
                return decode(reader, group)
            with (log / str(os.getpid())).open("a") as file:
                file.write(f"{os.getpid()} {group}\n")
            return decode(reader, group)

        if decode.__name__ != "noted":  # once: a process unpickles it for the sample, too
            ParquetReader._decode = noted  # type: ignore[method-assign]  # in the actor's process alone

    def map_columns(self, columns):
        return columns


N = 200


@pytest.fixture
def directory(tmp_path):
    write_tables(tmp_path, (90, 110), row_group=7)
    return tmp_path


def make(directory, *, transforms=(), columns=None, **config):
    config = {"num_epochs": 2} | config
    return ParquetSource(ParquetSourceConfig(**config), directory, transforms=transforms, columns=columns)


def batches(source, batch_size=16):
    return iter(Pipeline(source=source, batch_size=batch_size, rngs=nnx.Rngs(0)))


def indices(source):
    return [int(i) for batch in batches(source) for i in batch["index"]]


def test_a_decoder_of_records_is_refused_with_what_rows_are(directory):
    said = (
        r"DecodeRaw decodes records, which are bytes, and these are rows that have the columns \[.*'index'.*\] already"
    )
    with pytest.raises(TypeError, match=said):
        make(directory, transforms=[DecodeRaw("uint8", (2,))]).get_batch(2)


def test_shuffled_row_groups_come_whole_within_their_windows_and_each_once_an_epoch(directory):
    got = indices(make(directory, shuffle=True, shuffle_window=3))
    starts = [*range(0, 90, 7), *range(90, N, 7), N]
    group_of = np.searchsorted(starts, np.arange(N), side="right") - 1
    for epoch in (got[:N], got[N:]):
        assert sorted(epoch) == list(range(N))
        seen = []
        while epoch:
            groups = set(group_of[epoch[:7]].tolist())  # those of a window, or all but some of its three
            size = next(n for n in range(7, len(epoch) + 1) if _is_whole(epoch[:n], group_of))
            groups = set(group_of[epoch[:size]].tolist())
            assert len(groups) <= 3
            seen.append(groups)
            epoch = epoch[size:]
        assert sum(map(len, seen)) == len(starts) - 1
    assert got[:N] != got[N:]


def _is_whole(some, group_of):
    return sorted(some) == np.flatnonzero(np.isin(group_of, group_of[some])).tolist()


def test_whole_columns_are_transformed_at_once_and_rows_after_them(directory):
    calls = []

    class Counted(Doubled):
        def map_columns(self, columns):
            calls.append(len(columns["index"]))
            return super().map_columns(columns)

    source = make(directory, transforms=[Counted(), lambda e: e | {"triple": e["double"] + e["index"]}], num_epochs=1)
    got = source.get_batch(N)
    assert got["triple"].tolist() == [3 * i for i in range(N)]
    whole = [count for count in calls if count > 8]  # fewer: samples, and whether rows depend on others
    assert sum(whole) == N > 10 * len(whole)


def test_a_file_that_datasets_wrote_is_read_as_datasets_reads_it(tmp_path):
    written = datasets.Dataset.from_dict({"text": ["a", "bb", "ccc"], "label": [0, 1, 0], "tokens": [[1], [2, 3], []]})
    written = written.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    written.to_parquet(tmp_path / "data.parquet")
    got = make(tmp_path, num_epochs=1).get_batch(3)
    assert {key: [getattr(v, "tolist", lambda v=v: v)() for v in got[key]] for key in got} == written.to_dict()


def test_a_window_is_as_many_row_groups_as_there_is_memory_for(tmp_path):
    from datarax_ray.plan.orders.record_groups import RecordGroups
    from datarax_ray.sources.base.files import _window_blocks

    assert _window_blocks(RecordGroups([10_000] * 50), row_nbytes=1000) == 26  # of 10 MB: 256 MiB
    assert _window_blocks(RecordGroups([10] * 50), row_nbytes=1) == 64
    assert _window_blocks(RecordGroups([10**6]), row_nbytes=1000) == 1
    write_tables(tmp_path, (90,))
    assert make(tmp_path, shuffle=True, shuffle_window=5).describe().order.window_blocks == 5


def test_another_window_or_other_row_groups_are_drift(directory):
    state = make(directory, shuffle=True, shuffle_window=3).get_state()
    assert len(str(state)) < 4096
    with pytest.raises(DriftError, match=r"order\.window_blocks: the checkpoint was written with 3, .* has 4"):
        make(directory, shuffle=True, shuffle_window=4).set_state(state)
    write_tables(directory, (90, 110), row_group=9)
    with pytest.raises(DriftError, match=r"files\.digest"):
        make(directory, shuffle=True, shuffle_window=3).set_state(state)


def test_a_copy_reads_the_same_columns(directory):
    source = make(iter([directory]), columns=iter(["index"]))
    assert source.copy().get_batch(3).keys() == {"index"}
    assert "num_records=200, shuffle=False" in repr(source)


@pytest.mark.usefixtures("ray_local")
def test_each_row_group_is_decoded_by_one_actor_and_once_an_epoch(directory, monkeypatch):
    from datarax_ray.feed.stream import StreamOptions

    log = directory.parent / "decoded"
    log.mkdir()
    source = make(directory, shuffle=True, shuffle_window=3, columns=["index"], transforms=[LogDecodes(log)])
    with RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=11) as distributed:
        assert sum(batch.num_rows for batch in distributed.batches(0, StreamOptions(16))) == 2 * N
    decoded = [tuple(line.split()) for file in log.iterdir() for line in file.read_text().splitlines()]
    assert len(decoded) == 2 * 29
    assert len({group for _, group in decoded}) == 29 == len(set(decoded))
    assert len({process for process, _ in decoded}) == 2
