"""Streams over HTTP, from a server of the test on loopback: rate limits are waited out, and connections are few."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import datasets
import pytest

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import HFStreamingConfig, HFStreamingSource

SHARDS, ROWS = 4, 30
FILES = {
    f"/part-{shard}.jsonl": "".join(json.dumps({"x": 100 * shard + row}) + "\n" for row in range(ROWS)).encode()
    for shard in range(SHARDS)
}


class Server(ThreadingHTTPServer):
    """Serves FILES, byte ranges too. refusals: how many times to answer 429 yet. peak: requests at the same time."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.refusals = self.refused = self.now = self.peak = 0

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.server_port}{path}" for path in FILES]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        server = self.server
        with server.lock:
            server.now += 1
            server.peak = max(server.peak, server.now)
            is_refused = server.refusals > 0
            server.refusals -= is_refused
            server.refused += is_refused
        try:
            if is_refused:
                self.send_response(429)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.answer(with_body=True)
        finally:
            with server.lock:
                server.now -= 1

    def answer(self, *, with_body: bool) -> None:
        body, asked = FILES[self.path], self.headers.get("Range")
        first, last = 0, len(body) - 1
        if asked:
            lo, hi = asked.removeprefix("bytes=").split("-")
            first, last = int(lo), min(int(hi or last), last)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
        self.end_headers()
        if with_body:
            self.wfile.write(body[first : last + 1])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def make(server: Server, **config: Any) -> HFStreamingSource:
    dataset = datasets.load_dataset("json", data_files=server.urls, split="train", streaming=True)
    return HFStreamingSource(HFStreamingConfig(turn_size=10, **config), dataset=dataset)


# turns of 10, in order
WANT = [100 * shard + 10 * turn + row for turn in range(3) for shard in range(SHARDS) for row in range(10)]


def test_a_server_that_says_429_is_asked_again_and_the_order_stays(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # nor does `datasets`, which asks again 20 times itself
    source = make(server)
    server.refusals = 4
    assert source.get_batch(1000)["x"].tolist() == WANT
    assert server.refused == 4


def test_a_server_that_stays_busy_is_an_error_that_says_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    source = make(server)
    server.refusals = 10**6
    with pytest.raises(RecordError, match=r"shard 0 \(part-0.jsonl\)\[0\] \(position 0\): reading raised"):
        source.get_batch(10)


@pytest.mark.usefixtures("ray_local")
def test_all_actors_together_read_no_more_shards_at_once_than_max_connections(server: Server) -> None:
    source = make(server, max_connections=1)
    server.peak = 0
    server.refusals = 1
    with RaySource(source, num_actors=3, num_cpus=0.5, chunk_size=20) as distributed:
        got = [x for batch in distributed.batches(0, StreamOptions(7)) for x in batch.columns["x"].tolist()]
        readers = [stats for stats in distributed.stats().values() if stats["num_elements"]]
    assert got == WANT
    assert (server.peak, server.refused, len(readers)) == (1, 1, 1)
