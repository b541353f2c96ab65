"""Streams over HTTP, from a server of the test on loopback: rate limits are waited out, and connections are few."""

import json
import time

import datasets
import pytest

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import HFStreamingConfig, HFStreamingSource
from tests.http_files import HttpFiles
from tests.waiting import until_all_run

SHARDS, ROWS = 4, 30


class Server(HttpFiles):
    """refusals: how many GET requests to answer with 429 yet. peak: GET requests that waited at the same time.

    A request ends before its answer goes out: a client that has the answer may ask again before this thread goes on.
    Requests for the first shard do not count in peak: each actor reads its first elements too, when it starts, and on
    a busy machine still while it reads for the stream.
    """

    refusals = refused = now = peak = 0

    def _serve(self, answer, folder):
        if answer.command != "GET":
            return super()._serve(answer, folder)
        with self._lock:
            self.now += self._counts(answer)
            self.peak = max(self.peak, self.now)
            is_refused = self.refusals > 0
            self.refusals -= is_refused
            self.refused += is_refused
        if not is_refused:
            return super()._serve(answer, folder)
        self._end(answer)
        return answer.send_error(429)

    def _send(self, answer, content):
        self._end(answer)
        super()._send(answer, content)

    def _counts(self, answer):
        return not answer.path.endswith("part-0.jsonl")

    def _end(self, answer):
        with self._lock:
            self.now -= self._counts(answer)


@pytest.fixture
def server(tmp_path):
    for shard in range(SHARDS):
        lines = (json.dumps({"x": 100 * shard + row}) + "\n" for row in range(ROWS))
        (tmp_path / f"part-{shard}.jsonl").write_text("".join(lines))
    server = Server(tmp_path)
    yield server
    server.close()


def make(server, **config):
    urls = [f"{server.url}/part-{shard}.jsonl" for shard in range(SHARDS)]
    dataset = datasets.load_dataset("json", data_files=urls, split="train", streaming=True)
    return HFStreamingSource(HFStreamingConfig(turn_size=10, **config), dataset=dataset)


# turns of 10, in order
WANT = [100 * shard + 10 * turn + row for turn in range(3) for shard in range(SHARDS) for row in range(10)]


def test_a_server_that_says_429_is_asked_again_and_the_order_stays(server, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # nor does `datasets`, which asks again 20 times itself
    source = make(server)
    server.refusals = 4
    assert source.get_batch(1000)["x"].tolist() == WANT
    assert server.refused == 4


def test_a_server_that_stays_busy_is_an_error_that_says_so(server, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    source = make(server)
    server.refusals = 10**6
    with pytest.raises(RecordError, match=r"shard 0 \(part-0.jsonl\)\[0\] \(position 0\): reading raised"):
        source.get_batch(10)


@pytest.mark.usefixtures("ray_local")
def test_all_actors_together_read_no_more_shards_at_once_than_max_connections(server):
    source = make(server, max_connections=1)
    server.delay_s = 0.02  # in which requests that run side by side are counted
    with RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=20) as distributed:
        until_all_run(distributed)
        server.peak, server.refusals = 0, 1
        got = [x for batch in distributed.batches(0, StreamOptions(7)) for x in batch.columns["x"].tolist()]
        readers = [stats for stats in distributed.stats().values() if stats["num_elements"]]
    assert got == WANT
    assert (server.peak, server.refused, len(readers)) == (1, 1, 1)
