"""When a wait is told, and in what words."""

from __future__ import annotations

from dataclasses import replace

from datarax_ray.feed.flow import Stall
from datarax_ray.feed.window import Part
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.order import Partitioning
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.streams.indexed import IndexedStream
from tests.data import write_files

PARTS = [
    Part(0, index, actor, ReadRequest(0, 12, Partitioning(2, 6), partitions))
    for index, (actor, partitions) in enumerate([(3, (0, 1)), (5, (2,))])
]


def described(directory):
    reader = ArrayRecordReader.of(write_files(directory, (4, 8)))
    return IndexedStream(reader, order_of(12))


def test_it_names_actors_positions_and_files_each_actor_once_and_counts_the_others(tmp_path):
    stall = Stall(described(tmp_path), 1.0)
    stall.waited(0.0, PARTS)
    first, second = (str(tmp_path / f"part-0000{number}.array_record") for number in range(2))
    assert stall.waited(1.0, PARTS) == (
        f"the stream has waited 1 s for actor 3: positions [0, 12) of {first}; actor 5: positions [0, 12) of {second}"
    )
    assert stall.waited(2.0, [replace(part, actor=3) for part in PARTS]) == (
        f"the stream has waited 2 s for actor 3: positions [0, 12) of {first}, {second}"
    )
    parts = [replace(part, actor=actor) for part in PARTS for actor in range(6)]
    assert (stall.waited(4.0, parts) or "").endswith(" and 2 more")
    assert stall.waited(9.0, []) == "the stream has waited 9 s for an actor that runs"
