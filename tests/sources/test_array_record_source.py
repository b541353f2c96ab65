"""ArrayRecordSourceModule: datarax's documented surface, and each of its observed defects absent."""

from itertools import pairwise

import numpy as np
import pytest
from flax import nnx

from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.read.formats.array_record.files import RecordFile
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests import oracle
from tests.data import DropThirds, decode, record, write_file, write_files


def make(paths, transforms=(decode,), **config):
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**config), paths, transforms=transforms)


def indices(elements):
    return [element["index"] for element in elements]


@pytest.mark.parametrize(("kept", "by_group"), [(256 * 2**20, False), (0, True), (10**11, False)])
def test_single_records_behind_urls_are_warned_of_with_the_remedy(kept, by_group, caplog):
    urls = [f"https://me:secret@host/{number}" for number in range(1000)]
    files = [RecordFile(url, 16_000, 64_000_000, 1, 0, 16_000, version='"v"') for url in urls]
    ArrayRecordSourceConfig(remote_nbytes=kept).warn_of_requests(files, by_group=by_group)
    if by_group or kept == 10**11:
        assert caplog.messages == []
        return
    (message,) = caplog.messages
    assert message.startswith("1000 files behind URLs (https://host/0 the first), 64.0 GB, are read record by record")
    assert ": 16000000 requests in an epoch" in message
    assert 'shuffle_block_size="auto"' in message


class TestReading:
    def test_items_follow_the_current_epoch(self, files):
        source = make(files, shuffle_files=True)
        first = oracle.order(120, 0, 42)
        assert [source[0]["index"], source[-1]["index"]] == [first[0], first[-1]]
        for _ in range(120):
            next(source)
        assert source[0]["index"] == oracle.order(120, 1, 42)[0]
        with pytest.raises(IndexError, match="index 120 is outside an epoch of 120 records"):
            source[120]

    def test_a_filtered_record_is_no_item(self, files):
        source = make(files, [decode, DropThirds()])
        with pytest.raises(IndexError, match="drops the element at index 3"):
            source[3]
        assert indices(source.get_batch_at(0, 6)) == [1, 2, 4, 5]


class TestBlocks:
    """Files whose records are stored in groups of 8, with a short one at the end of each."""

    @pytest.fixture
    def grouped(self, tmp_path):
        return write_files(tmp_path, [8 * 40 + 3, 8 * 70 + 1, 5], 8)

    def test_auto_takes_the_groups_of_the_files_for_blocks(self, tmp_path):
        rng, paths, first = np.random.default_rng(0), [], 0
        for count in (8 * 40 + 3, 8 * 70 + 1, 5):  # of 20 KB, stored: 64 groups are what a window is to hold
            records = (record(index) + rng.bytes(20_000) for index in range(first, first + count))
            paths.append(write_file(tmp_path / f"{len(paths)}.array_record", records, 8))
            first += count
        source = make(paths, shuffle=True, shuffle_block_size="auto", num_epochs=2)
        assert source.describe().order.settings() == {
            "shuffle": "block",
            "seed": 42,
            "rounds": 8,
            "block_size": RecordGroups([*[8] * 40, 3, *[8] * 70, 1, 5]).digest,
            "window_blocks": 64,
        }
        n, starts = len(source), [*range(0, 323, 8), *range(323, 884, 8), 884, 889]
        assert n == 889
        for epoch in range(2):
            order = indices(source.get_batch_at(epoch * n, n))
            assert sorted(order) == list(range(n))
            window = np.searchsorted(starts, order[: 64 * 8 - 12], side="right")
            assert len(np.unique(window)) == 64  # whole groups alone, of which one or two are short

    def test_auto_mixes_small_groups_over_windows_of_some_bytes(self, grouped):
        order = make(grouped, shuffle=True, shuffle_block_size="auto").describe().order
        assert order.settings()["window_blocks"] == 4**7 // 8  # 8 MiB of some 400 bytes each

    def test_auto_is_the_order_of_single_records_where_files_store_those(self, tmp_path):
        paths = write_files(tmp_path, [100], 1)
        auto = make(paths, shuffle=True, shuffle_block_size="auto")
        assert auto.describe().order == make(paths, shuffle=True).describe().order

    @pytest.mark.parametrize("block_size", [32, 8, 40, None, "auto"])
    def test_what_decodes_groups_again_and_again_is_told_with_how_often(self, tmp_path, block_size, caplog):
        counts = [32 * 1000 + 19, 32 * 1100 + 1, 5]  # more than are read at once
        grouped = write_files(tmp_path, counts, 32)
        make(grouped, shuffle=True, shuffle_block_size=block_size)
        if block_size == "auto":
            assert caplog.messages == []
            return
        ends = np.cumsum([0, *counts]).tolist()
        starts = [start for first, stop in pairwise(ends) for start in range(first, stop, 32)]
        groups = [range(start, stop) for start, stop in pairwise([*starts, ends[-1]])]
        times = sum(len(group) * len({i // (block_size or 1) for i in group}) for group in groups) / ends[-1]
        (message,) = caplog.messages
        assert message.startswith(f"shuffle_block_size={block_size} decodes up to {times:.3g} x the data in an epoch")
        assert "groups of 32" in message

    def test_what_is_read_at_once_is_no_waste(self, grouped, caplog):
        make(grouped, shuffle=True, shuffle_block_size=4)
        make(grouped)
        assert caplog.messages == []

    @pytest.mark.parametrize("cacheable", [False, True])
    def test_any_position_gives_what_the_whole_stream_has_there(self, grouped, cacheable):
        source = make(grouped, shuffle=True, shuffle_block_size="auto", num_epochs=2, cacheable=cacheable)
        whole = [e["index"] for e in source]
        for start in (0, 100, 888, 889, 1500):
            again = make(grouped, shuffle=True, shuffle_block_size="auto", num_epochs=2, cacheable=cacheable)
            assert indices(again.get_batch_at(start, 50)) == whole[start : start + 50]


class TestState:
    def test_current_index_moves_the_stream(self, files):
        source = make(files)
        next(source)
        source.current_index.set_value(50)
        assert next(source)["index"] == 50

    def test_a_state_of_nnx_moves_the_stream_and_jit_does_not(self, files):
        source, other, third = (make(files, num_epochs=2) for _ in range(3))
        source.get_batch(127)
        nnx.update(other, nnx.state(source))
        nnx.update(third, nnx.to_pure_dict(nnx.state(source)))
        assert [next(each)["index"] for each in (other, third)] == [7, 7]
        nnx.jit(lambda source, at: source.get_batch_at(at, 4))(other, 3)
        assert (next(other)["index"], other.position) == (8, 129)


class TestModule:
    def test_grain_s_source_has_the_records_as_they_are_stored(self, files):
        source = make([f"{files[0]}[3:7]", files[1]], shuffle_files=True)
        stored = oracle.stored(files)
        first = len(make(files[0]))
        want = stored[3:7] + stored[first : first + len(make(files[1]))]
        assert [source.grain_source[index] for index in range(len(source.grain_source))] == want

    def test_shuffled_indices_are_the_epoch_s_order(self, files):
        source = make(files, shuffle_files=True)
        assert source.shuffled_indices.tolist() == oracle.order(120, 0, 42)
        for _ in range(121):
            next(source)
        assert source.shuffled_indices.tolist() == oracle.order(120, 1, 42)

    def test_precomputed_statistics(self, files):
        known = make(files, precomputed_stats={"mean": 3.0})
        assert known.get_statistics() == {"mean": 3.0}
        known.reset_statistics()
        assert known.get_statistics() is None
        assert known.compute_statistics([1]) is None

    def test_a_stream_of_rngs_needs_rngs(self, files):
        with pytest.raises(ValueError, match="pass rngs"):
            make(files, stochastic=True, stream_name="augment")
        assert make(files).requires_rng_streams() is None

    def test_a_cache_is_read_once_and_can_be_reset(self, tmp_path):
        paths = write_files(tmp_path, (6,))
        source = make(paths, cacheable=True, num_epochs=2)
        assert indices(source.get_batch_at(0, 6)) == list(range(6))
        source._reader._reader.close()
        paths[0].unlink()
        assert indices(source.get_batch_at(6, 6)) == list(range(6))
        source.reset_cache()
        with pytest.raises(FileNotFoundError, match="part-00000"):
            source.get_batch_at(0, 1)
