"""What stood in a batch, told afterwards, against the batches themselves: each record holds its own number."""

import re

import datasets
import numpy as np
import pytest

from datarax_ray import ConcatThenSplit, FirstFitPack, Pipeline
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.sources import (
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests.data import AddNoise, Copies, DropThirds, Squares, Tokens, array_records, decode, write_files

COUNTS = (11, 0, 20, 7)
STARTS = dict(enumerate(np.cumsum((0, *COUNTS)).tolist()))


def in_files(path, *transforms, **config):
    if not list(path.glob("*.array_record")):
        write_files(path, COUNTS)
    return array_records(path, decode, *transforms, **{"seed": 3} | config)


def number(record):
    """Of a record by its place: "…part-00002.array_record[5]"."""
    found = re.fullmatch(r".*part-(\d+)\.array_record\[(\d+)\]", record)
    assert found, record
    return STARTS[int(found[1])] + int(found[2])


def all_batches(pipeline):
    return [{name: np.asarray(column) for name, column in batch.items()} for batch in pipeline]


CASES = {
    "plain": ([], {}),
    "file order": ([], {"shuffle_files": False}),
    "blocks": ([], {"shuffle_block_size": 4}),
    "random": ([AddNoise()], {}),
    "filter": ([DropThirds()], {}),
    "flat_map": ([Copies()], {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("taken", [0, 2])
def test_every_row_is_the_record_that_is_told(tmp_path, case, taken):
    transforms, config = CASES[case]
    with Pipeline(source=in_files(tmp_path, *transforms, **config), batch_size=8) as pipeline:
        for _ in range(taken):
            pipeline.step()
        state, before = pipeline.get_state(), pipeline.position
        batches = all_batches(pipeline)
        after = pipeline.get_state()
        assert len(batches) >= 4
        for step, batch in enumerate(batches):
            found = pipeline.locate(step, state)
            assert [origin.row for origin in found] == list(range(len(batch["index"])))
            assert [number(origin.record) for origin in found] == batch["index"].tolist()
            assert [origin.offset for origin in found] == batch.get("copy", 0 * batch["index"]).tolist()
            assert before <= min(origin.position for origin in found)
            assert {origin.places for origin in found} == {None}
        with pytest.raises(IndexError, match=rf"there is no batch {len(batches)}: .* has {len(batches)}"):
            pipeline.locate(len(batches), state)
        assert pipeline.get_state() == after


def test_where_rows_are_positions_nothing_is_read(tmp_path):
    source = in_files(tmp_path, num_epochs=-1)
    with Pipeline(source=source, batch_size=8) as pipeline:
        for path in tmp_path.glob("*.array_record"):
            path.unlink()
        assert len(pipeline.locate(10**9)) == 8


@pytest.mark.parametrize("index", [0, 1])
def test_rows_are_those_of_the_global_batch_whichever_trainer_asks(tmp_path, index):
    source = in_files(tmp_path, DropThirds())
    with Pipeline(source=source, batch_size=8) as whole:
        want = [whole.locate(step) for step in range(3)]
        batches = all_batches(whole)
    with Pipeline(source=source, batch_size=8, process_index=index, process_count=2) as pipeline:
        assert [pipeline.locate(step) for step in range(3)] == want
        for got, batch in zip(pipeline.replay(1, 3), batches[1:], strict=False):
            assert got["index"].tolist() == batch["index"].tolist()


@pytest.mark.parametrize("packing", [ConcatThenSplit(16, "x"), FirstFitPack(16, "x")], ids=repr)
@pytest.mark.parametrize("transforms", [[], [Copies()], [DropThirds()]], ids=["plain", "flat_map", "filter"])
def test_every_piece_of_a_packed_row_is_the_document_that_is_told(tmp_path, packing, transforms):
    with Pipeline(source=in_files(tmp_path, *transforms, Tokens()), batch_size=3, packing=packing) as pipeline:
        state = pipeline.get_state()
        pipeline.step()
        later = pipeline.get_state()
        for start in (state, later):
            pipeline.set_state(start)
            for step, batch in enumerate(all_batches(pipeline)):
                covered = np.zeros((len(batch["x"]), 16), bool)
                for origin in pipeline.locate(step, start):
                    begin, end = origin.places
                    tokens = batch["x"][origin.row, begin:end]
                    record = number(origin.record)
                    assert (tokens // 100).tolist() == [record] * len(tokens)
                    if isinstance(packing, ConcatThenSplit):
                        size = record % 9 + 1  # of each of its documents
                        assert tokens[0] % 100 == origin.offset % size
                    assert not covered[origin.row, begin:end].any()
                    covered[origin.row, begin:end] = True
                assert (covered == (batch["x_segment_ids"] > 0)).all()


def test_a_mixture_tells_the_component_s_file(tmp_path):
    squares = RandomAccessSource(RandomAccessSourceConfig(shuffle=True, num_epochs=-1), Squares(30), transforms=[only])
    files = in_files(tmp_path, only, num_epochs=-1)
    mixture = MixtureSource([files, squares], weights=[2, 1])
    with Pipeline(source=mixture, batch_size=12) as pipeline:
        for step in range(6):
            batch = pipeline.step()
            records = [origin.record for origin in pipeline.locate(step)]
            found = [number(r) if "part-" in r else int(r.rpartition("[")[2].rstrip("]")) for r in records]
            assert found == batch["index"].tolist()
            assert sum("part-" in record for record in records) == 8


def only(element):
    return {"index": element["index"]}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("taken", "num_epochs", "batch_size"), [(0, 2, 7), (3, 2, 7), (0, 12, 400)])
def test_a_stream_tells_shard_and_row_also_in_the_last_windows(shuffle, taken, num_epochs, batch_size):
    def rows(shards):
        for shard in shards:
            for row in range(13 + shard):
                yield {"shard": shard, "row": row}

    stream = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2]})
    config = HFStreamingConfig(name="own", split="train", num_epochs=num_epochs, shuffle=shuffle, shuffle_buffer_size=5)
    with Pipeline(source=HFStreamingSource(config, dataset=stream), batch_size=batch_size) as pipeline:
        for _ in range(taken):
            pipeline.step()
        state = pipeline.get_state()
        for step, batch in enumerate(all_batches(pipeline)):
            found = [re.search(r"shard (\d+).*\[(\d+)\]", origin.record) for origin in pipeline.locate(step, state)]
            assert [(int(of[1]), int(of[2])) for of in found if of] == list(
                zip(batch["shard"].tolist(), batch["row"].tolist(), strict=True)
            )


def test_batches_come_again_as_they_were_before_stages(tmp_path):
    source = in_files(tmp_path, AddNoise(), DropThirds())
    with Pipeline(
        source=source, batch_size=8, stages=[lambda batch: batch | {"index": batch["index"] * 0}]
    ) as pipeline:
        batches = all_batches(pipeline)
        found = list(pipeline.replay(2, 100))
    assert len(found) == len(batches) - 2
    for got, batch in zip(found, batches[2:], strict=True):
        assert got["noise"].tolist() == batch["noise"].tolist()
        assert got["index"].any()


def test_what_is_no_step_and_another_stream_s_state_are_refused(tmp_path):
    source, other = in_files(tmp_path), in_files(tmp_path, seed=4)
    with Pipeline(source=source, batch_size=8) as pipeline, Pipeline(source=other, batch_size=8) as of_other:
        with pytest.raises(ValueError, match="step must be at least 0, got -1"):
            pipeline.locate(-1)
        with pytest.raises(TypeError, match=r"step is a whole number, got 1.5; batches are counted from 0"):
            pipeline.locate(1.5)
        with pytest.raises(ValueError, match=r"steps \[3, 3\) are none"):
            pipeline.replay(3, 3)  # at once, not at the first batch
        with pytest.raises(DriftError, match=r"order\.seed"):
            pipeline.locate(0, of_other.get_state())
