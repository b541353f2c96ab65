"""The files of several nodes as one list: which nodes have which, and what cannot be one stream."""

from dataclasses import replace

import pytest

from datarax_ray.read.formats.array_record.files import NodeFiles, counted
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from tests.data import write_files


def test_the_union_is_what_one_directory_would_hold(tmp_path):
    files = counted([str(path) for path in write_files(tmp_path, (3, 0, 5, 2))])
    found = {"n1": [[files[0], files[2]], []], "n2": [[files[1], files[2]], [files[3]]], "n3": [[], []]}
    both = NodeFiles.union(found)
    assert both.files == (files[0], files[1], files[2], files[3])
    assert both.nodes == tuple(map(frozenset, ({"n1"}, {"n2"}, {"n1", "n2"}, {"n2"})))
    homes = both.homes()
    assert homes.starts == (0, 3, 3, 8)
    assert [homes.nodes[home] for home in homes.home] == list(both.nodes)
    reader, one = ArrayRecordReader.of(both), ArrayRecordReader.of(tmp_path)
    assert reader.fingerprint() == one.fingerprint()
    assert reader.with_room_for(10).traits.homes == homes
    assert "4 files on 2 nodes" in repr(both)


def test_different_files_of_one_name_and_nothing_at_all_are_refused(tmp_path):
    (file,) = counted(str(write_files(tmp_path, (3,))[0]))
    other = replace(file, content="another")
    with pytest.raises(ValueError, match=r"is not the same file on all nodes: 3 records in .* \(others\); a stream"):
        NodeFiles.union({"n1": [[file]], "n2": [[other]]})
    with pytest.raises(FileNotFoundError, match="no node has a record of the named files; 2 nodes were asked"):
        NodeFiles.union({"n1": [[]], "n2": [[]]})
