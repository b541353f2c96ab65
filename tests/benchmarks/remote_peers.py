"""Other loaders that read shuffled images from a bucket, beside this one: one process of each, one server for all.

    python -m venv peers && peers/bin/pip install mosaicml-streaming litdata webdataset opencv-python-headless
    python -m tests.benchmarks.remote_peers --python peers/bin/python [--delay-ms 20] [--cap-mb 100] [--repeats 3]

Pictures of 256 x 256 as JPEG are written once in each one's own format, and read for one epoch, shuffled, from nothing
on the disk, in turns, all decoded by the same OpenCV. The server is a process of its own, on loopback: it waits before
each answer, and sends all bodies together at the cap. Streaming and LitData ask it as S3, through boto3; WebDataset and
this one as HTTP. Each gives pictures in one process: no DataLoader's workers, no Ray. A peer that is not installed is
left out. See benchmarks.peers for records of fixed size on the disk.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import peers
from tests.benchmarks.data import KINDS, written_once
from tests.benchmarks.options import CACHE_DIR, parsed, spread

_SHARD_NBYTES, _GROUP = 2**23, 64
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "us-east-1"}


class WebDataset:
    """WebDataset: tar shards in a random order, and a buffer of 1,000 samples that is shuffled."""

    name, package = "WebDataset", "webdataset"

    @staticmethod
    def write(folder: str, samples: Iterable[bytes], column: str, shard_nbytes: int) -> None:
        from webdataset import ShardWriter

        with ShardWriter(f"{folder}/%05d.tar", maxsize=shard_nbytes, verbose=0) as writer:
            for index, picture in enumerate(samples):
                writer.write({"__key__": f"{index:08d}", "jpg": picture})

    @staticmethod
    def samples(folder: str, batch: int, remote: str) -> Iterator[bytes]:
        import webdataset

        names = [f"{remote}/{name}" for name in json.loads(Path(folder, "names.json").read_text())]
        dataset = webdataset.WebDataset(names, shardshuffle=len(names), seed=peers.SEED).shuffle(1000)
        return (sample["jpg"] for sample in dataset)


PEERS: dict[str, Any] = peers.PEERS | {"webdataset": WebDataset}


def written(peer: str, folder: str, count: int) -> None:
    """Its files, unless they are there."""
    more = (_GROUP,) if peer == "ours" else ("bytes", _SHARD_NBYTES)
    pictures = KINDS["jpeg"].write(0, count)
    written_once(Path(folder), lambda scratch: PEERS[peer].write(str(scratch), pictures, *more))


def _pictures(peer: str, url: str, where: str) -> Iterator[Any]:
    """One epoch, decoded."""
    if peer == "ours":
        from datarax_ray import DecodeImage

        batches = peers.Ours.batches(f"{url}/records.array_record", 64, "image", DecodeImage(), num_epochs=1)
        return itertools.chain.from_iterable(batches)
    import cv2
    import numpy as np

    encoded = PEERS[peer].samples(where, 64, url)
    return (cv2.imdecode(np.frombuffer(each, np.uint8), cv2.IMREAD_COLOR_RGB) for each in encoded)


def measured(peer: str, url: str, where: str) -> dict[str, float]:
    """Seconds to the first picture, and to the last; CPU ms for each, with programs as curl; how many came."""
    importlib.import_module(PEERS[peer].package)
    importlib.import_module("cv2")
    cpu = sum(os.times()[:4])
    begin = time.perf_counter()
    pictures = _pictures(peer, url, where)
    shape = next(pictures).shape
    first_s = time.perf_counter() - begin
    assert shape == (256, 256, 3), shape
    num = 1 + sum(1 for _ in pictures)
    all_s, cpu_ms = time.perf_counter() - begin, (sum(os.times()[:4]) - cpu) / num * 1e3
    return {"first_s": first_s, "all_s": all_s, "cpu_ms": cpu_ms, "num": num}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each loader."""
    options = parsed(
        __doc__, arguments, python=sys.executable, pictures=12_000, delay_ms=20.0, cap_mb=100.0, repeats=3,
        cache_dir=CACHE_DIR, one=str,
    )  # fmt: skip
    if options.one:
        what, *rest = json.loads(options.one)
        print(json.dumps({"write": written, "read": measured}[what](*rest)))
        return []
    from tests.benchmarks.remote_files import Server  # it needs Ray, which peers do not have

    folders = {peer: options.cache_dir / f"remote-{peer}-{options.pictures}" for peer in PEERS}
    options.cache_dir.mkdir(parents=True, exist_ok=True)

    def run(peer: str, *task: Any) -> Any:
        python = sys.executable if peer == "ours" else options.python
        return peers.run_one("remote_peers", python, task, **_CREDENTIALS)

    runs: dict[str, list[dict[str, float]]] = {}
    for peer, folder in folders.items():
        done = run(peer, "write", peer, str(folder), options.pictures)
        peers.answer_of(done, PEERS[peer].name)  # says so where it is not there
        if not done.returncode:
            runs[peer] = []
    server = Server(options.cache_dir, options.delay_ms / 1000, options.cap_mb * 1e6)
    try:
        for _, peer in itertools.product(range(options.repeats), runs):
            with tempfile.TemporaryDirectory() as where:
                names = sorted(path.name for path in folders[peer].iterdir())
                Path(where, "names.json").write_text(json.dumps(names))
                before = server.counts
                done = run(peer, "read", peer, f"{server.url}/{folders[peer].name}", where)
                requests, sent, _ = (now - then for now, then in zip(server.counts, before, strict=True))
            if done.returncode:
                raise RuntimeError(f"{PEERS[peer].name}: {done.stderr[-2000:]}")
            told = peers.answer_of(done, PEERS[peer].name)
            assert told["num"] == options.pictures, f"{PEERS[peer].name} gave {told['num']}"
            runs[peer].append(told | {"rate": told["num"] / told["all_s"], "requests": requests, "nbytes": sent})
    finally:
        server.close()
    lines = []
    for peer, found in runs.items():
        nbytes = sum(path.stat().st_size for path in folders[peer].iterdir())
        line = {key: median(each[key] for each in found) for key in ("rate", "first_s", "cpu_ms", "requests", "nbytes")}
        line["nbytes"] /= nbytes
        lines.append({"peer": peer} | line)
        print(
            f"{PEERS[peer].name}: {spread([each['rate'] for each in found])} pictures/s, the first after "
            f"{line['first_s']:.2f} s, {line['cpu_ms']:.2f} ms of CPU each, {line['requests']:,.0f} requests for "
            f"{line['nbytes']:.2f} x the bytes of {nbytes / 2**20:,.0f} MiB",
            flush=True,
        )
    return lines


if __name__ == "__main__":
    main()
