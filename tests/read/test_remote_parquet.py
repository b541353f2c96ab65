"""Parquet behind URLs: the rows of the local files, by few requests, through faults, read ahead and kept on a disk."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.errors import StorageError
from datarax_ray.read.formats.decoded_groups import BrokenRowGroupError
from datarax_ray.read.formats.parquet import row_groups
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.formats.remote.clients import NoRangesError
from datarax_ray.read.formats.remote.pages import PAGE
from datarax_ray.read.formats.remote.ranges import ChangedError, Remote
from datarax_ray.read.streams.indexed import IndexedStream
from tests.http_files import HttpFiles
from tests.tables import write_tables

ROWS, GROUP = 1000, 100  # of each of two files; a row group has some 400 KB of each of two columns
QUICK = Remote(waits_s=(0.0,) * 20)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def served(data):
    found = HttpFiles(data)
    yield found
    found.close()


def write_wide(data, **changed):
    """Two files with two columns that do not compress, and a small one."""
    rng = np.random.default_rng(0)
    options = {"row_group_size": GROUP, "compression": "none", "use_dictionary": False, "write_statistics": False}
    options |= changed
    for number in range(2):
        columns = {"index": np.arange(number * ROWS, (number + 1) * ROWS)}
        columns |= {name: [rng.bytes(4000) for _ in range(ROWS)] for name in ("a", "b")}
        parquet.write_table(pa.table(columns), data / f"{number}.parquet", **options)
    return sorted(data.iterdir())


def urls_of(served, paths):
    return [f"{served.url}/{path.name}" for path in paths]


def plain(columns):
    return {name: plain(of) if isinstance(of, dict) else [str(each) for each in of] for name, of in columns.items()}


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("nbytes", [0, 2**28])
def test_rows_of_every_kind_of_column_are_those_of_the_local_files(data, served, compression, nbytes):
    paths = write_tables(data, (30, 0, 13), row_group=4, compression=compression)
    local = ParquetReader.of(paths)
    far = ParquetReader.of(urls_of(served, paths), remote=Remote(nbytes=nbytes))
    assert far.fingerprint() == local.fingerprint()
    rng = np.random.default_rng(1)
    for records in (np.arange(43), rng.permutation(43), rng.integers(0, 43, 10)):
        assert plain(far.read(records)) == plain(local.read(records))
    some = ParquetReader.of(urls_of(served, paths), columns=["index", "inner.text"], remote=Remote(nbytes=nbytes))
    assert plain(some.read(np.arange(43))) == plain(
        ParquetReader.of(paths, columns=["index", "inner.text"]).read(np.arange(43))
    )
    for reader in (far, some):
        reader.close()


def test_only_the_columns_that_are_read_are_asked_for_each_row_group_once(data, served):
    paths = write_wide(data)
    reader = ParquetReader.of(urls_of(served, paths), columns=["index", "b"])
    started = served.count()
    assert started[0] <= 2 * 12
    order = np.random.default_rng(2).permutation(2 * ROWS // GROUP)  # of row groups
    for group in order.tolist():
        records = np.arange(group * GROUP, (group + 1) * GROUP)
        assert reader.read(records)["index"].tolist() == records.tolist()
    requests, nbytes = served.count()
    wanted = 2 * ROWS * (4000 + 4 + 8)
    assert nbytes <= 1.05 * wanted
    assert requests <= 2 * len(order) + 2 * 12  # the small column lies before the one that is not read
    reader.close()


def test_small_row_groups_that_are_read_together_are_one_request(data, served):
    paths = write_tables(data, (2000,), row_group=10)
    reader = ParquetReader.of(urls_of(served, paths))
    served.count()
    assert reader.read(np.arange(2000))["index"].tolist() == list(range(2000))
    assert served.count()[0] <= 2
    reader.close()


@pytest.mark.parametrize("what", ["503", "cut", "short", "bend"])
def test_a_server_that_fails_a_third_of_all_requests_gives_the_rows_of_the_local_files(data, served, what):
    paths = write_wide(data, write_page_checksum=True)
    count = itertools.count()
    fails = {"bend": lambda number: number == 28}.get(what, lambda number: next(count) % 3 == 2)  # bent twice is broken
    served.what = lambda number: what if number > 24 and fails(number) else ""
    reader = ParquetReader.of(urls_of(served, paths), columns=["index", "a"], remote=QUICK)
    local = ParquetReader.of(paths, columns=["index", "a"])
    served.num_requests = 24
    stream = IndexedStream(reader, order_of(2 * ROWS, groups=reader.groups), 1, (), "skip")
    block = stream.read(ReadRequest(0, 2 * ROWS))
    assert served.num_broken
    assert block.skipped == ()
    assert plain(block.columns) == plain(local.read(np.arange(2 * ROWS)))
    reader.close()


def test_a_row_group_that_is_broken_where_it_lies_is_broken_alone(data, served):
    paths = write_wide(data, write_page_checksum=True)
    chunk = parquet.read_metadata(paths[0]).row_group(3).column(1)
    content = bytearray(paths[0].read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 4
    paths[0].write_bytes(content)
    reader = ParquetReader.of(urls_of(served, paths))
    for _ in range(2):
        with pytest.raises(BrokenRowGroupError, match=r"0\.parquet, row group 3 does not decode"):
            reader.read(np.arange(300, 310))
    assert reader.read(np.arange(400, 410))["index"].tolist() == list(range(400, 410))
    reader.close()


def test_a_file_that_is_replaced_is_told_before_a_row_of_it_is_taken(data, served):
    paths = write_wide(data)
    reader = ParquetReader.of(urls_of(served, paths))
    reader.read(np.arange(5))
    content = bytearray(paths[0].read_bytes())
    content[len(content) // 2] ^= 1
    paths[0].write_bytes(content)
    with pytest.raises(ChangedError, match=r"0\.parquet changed while it was read: its version was"):
        reader.read(np.arange(500, 510))
    reader.close()


def test_what_pyarrow_reads_beyond_what_was_fetched_is_fetched_then(data, served, monkeypatch):
    """As of files of parquet-mr before 1.2.9, whose footers say that columns are shorter than they are."""
    whole = row_groups.RowGroupSpans.of

    def half(layout, wanted):
        spans = whole(layout, wanted)
        return np.stack([spans[:, 0], (spans[:, 0] + spans[:, 1]) // 2], axis=1)

    monkeypatch.setattr(row_groups.RowGroupSpans, "of", half)
    paths = write_wide(data)
    reader = ParquetReader.of(urls_of(served, paths))
    records = np.arange(0, 2 * ROWS, 50)
    assert plain(reader.read(records)) == plain(ParquetReader.of(paths).read(records))
    reader.close()


def test_what_is_expected_is_read_without_a_request(data, served):
    paths = write_wide(data)
    reader = ParquetReader.of(urls_of(served, paths), remote=Remote(waits_s=()))
    reader.read(np.array([0, ROWS]))  # has its files open
    assert reader.traits.reads_ahead
    reads = [np.arange(start, start + 2 * GROUP) for start in (300, 700, 1500)]
    for records in reads:
        reader.expect(records)
    for read in list(reader._ahead.expected):
        for run in [run for ahead in read.parts for run in ahead.runs]:
            reader._row_groups.mirrors.ahead._asked[run][0]._future.result(timeout=60)
    served.what = lambda number: "503"
    for records in reads:
        assert reader.read(records)["index"].tolist() == records.tolist()
    assert not served.num_broken
    served.what = lambda number: ""
    reader.close()
    assert reader._row_groups.mirrors.nbytes == 0


def test_a_later_epoch_and_start_read_from_the_disk_and_what_is_damaged_there_is_asked_for_anew(data, served, tmp_path):
    paths = write_wide(data)  # without a checksum of their own
    cache = tmp_path / "cache"
    remote = Remote(nbytes=0, cache_dir=str(cache), cache_nbytes=2**30)

    def epoch():
        reader = ParquetReader.of(urls_of(served, paths), remote=remote)
        served.count()
        found = plain(reader.read(np.arange(2 * ROWS)))
        reader.close()
        return found

    want = plain(ParquetReader.of(paths).read(np.arange(2 * ROWS)))
    assert epoch() == want
    served.count()
    assert epoch() == want
    assert served.count()[0] == 0
    assert len(list(cache.glob("*.held"))) == 2
    for path in cache.glob("*.pages"):  # as after the host lost its power: said to be there, and zeros
        with path.open("r+b") as file:
            for page in range(10, 1000, 90):
                file.seek(page * PAGE)
                file.write(bytes(PAGE))
    assert epoch() == want
    assert served.count()[1] > 20 * PAGE
    assert epoch() == want
    assert served.count()[0] == 0


def test_a_storage_that_stays_away_is_no_broken_row_group(data, served):
    paths = write_wide(data)
    reader = ParquetReader.of(urls_of(served, paths), remote=Remote(waits_s=()))
    served.what = lambda number: "503"
    stream = IndexedStream(reader, order_of(2 * ROWS, groups=reader.groups), 1, (), "skip")
    with pytest.raises(StorageError, match=r"0\.parquet, .*bytes.*: reading failed 1 times .*503"):
        stream.read(ReadRequest(0, GROUP))
    served.what = lambda number: ""
    assert stream.read(ReadRequest(0, GROUP)).columns["index"].tolist() == list(range(GROUP))
    reader.close()


@pytest.mark.parametrize(
    ("what", "error", "num_asked"),
    [("whole", NoRangesError, 2), ('W/"1"', ChangedError, 2), ("loop", StorageError, 10)],
)
def test_what_the_server_refuses_of_one_row_group_is_not_asked_for_of_the_others(data, served, what, error, num_asked):
    """Of a small file the end is the whole, which a server gives that has no ranges."""
    parquet.write_table(pa.table({"index": np.arange(1000)}), data / "a.parquet", row_group_size=GROUP)
    served.what = lambda number: what if number > 2 else ""
    with pytest.raises(error, match=r"a\.parquet"):
        ParquetReader.of(f"{served.url}/a.parquet", remote=QUICK)
    assert served.num_broken == num_asked
