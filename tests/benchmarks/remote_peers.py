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

import argparse
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.data import KINDS, written_once

_SEED, _SHARD_NBYTES, _GROUP = 7, 2**23, 64


def _pictures(count: int) -> Iterator[bytes]:
    yield from KINDS["jpeg"].write(0, count)


def _decoded(encoded: bytes) -> Any:
    import cv2
    import numpy as np

    return cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)


class Streaming:
    """MosaicML Streaming: MDS shards, its default shuffle."""

    name, package = "MosaicML Streaming", "streaming"

    @staticmethod
    def write(folder: str, count: int) -> None:
        from streaming import MDSWriter

        with MDSWriter(out=folder, columns={"x": "bytes"}, size_limit=_SHARD_NBYTES) as writer:
            for picture in _pictures(count):
                writer.write({"x": picture})

    @staticmethod
    def pictures(url: str, where: str) -> Iterator[Any]:
        from streaming import StreamingDataset

        host, _, key = url.removeprefix("http://").partition("/")
        os.environ["S3_ENDPOINT_URL"] = f"http://{host}"
        dataset = StreamingDataset(remote=f"s3://{key}", local=where, shuffle=True, shuffle_seed=_SEED, batch_size=64)
        yield from (_decoded(sample["x"]) for sample in dataset)


class LitData:
    """LitData: its binary chunks."""

    name, package = "LitData", "litdata"

    @staticmethod
    def write(folder: str, count: int) -> None:
        from litdata.streaming import Cache

        cache = Cache(folder, chunk_bytes=_SHARD_NBYTES)
        for index, picture in enumerate(_pictures(count)):
            cache[index] = {"x": picture}
        cache.done()
        cache.merge()

    @staticmethod
    def pictures(url: str, where: str) -> Iterator[Any]:
        from litdata import StreamingDataset
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # the server has no TLS
        host, _, key = url.removeprefix("http://").partition("/")
        dataset = StreamingDataset(
            f"s3://{key}",
            cache_dir=where,
            shuffle=True,
            seed=_SEED,
            drop_last=False,
            storage_options={"endpoint_url": f"http://{host}"},
        )
        yield from (_decoded(sample["x"]) for sample in dataset)


class WebDataset:
    """WebDataset: tar shards in a random order, and a buffer of 1,000 samples that is shuffled."""

    name, package = "WebDataset", "webdataset"

    @staticmethod
    def write(folder: str, count: int) -> None:
        from webdataset import ShardWriter

        with ShardWriter(f"{folder}/%05d.tar", maxsize=_SHARD_NBYTES, verbose=0) as writer:
            for index, picture in enumerate(_pictures(count)):
                writer.write({"__key__": f"{index:08d}", "jpg": picture})

    @staticmethod
    def pictures(url: str, where: str) -> Iterator[Any]:
        import webdataset

        names = [f"{url}/{name}" for name in json.loads(Path(where, "names.json").read_text())]
        dataset = webdataset.WebDataset(names, shardshuffle=len(names), seed=_SEED).shuffle(1000)
        yield from (_decoded(sample["jpg"]) for sample in dataset)


class Ours:
    """This one, in one process: ArrayRecord in groups, shuffled by blocks of these, and no cache on the disk."""

    name, package = "in-process, blocks of groups", "datarax_ray.sources.array_record_source"

    @staticmethod
    def write(folder: str, count: int) -> None:
        from tests.data import write_file

        write_file(Path(folder) / "records.array_record", _pictures(count), _GROUP, "uncompressed")

    @staticmethod
    def pictures(url: str, where: str) -> Iterator[Any]:
        from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, DecodeImage
        from datarax_ray.feed.stream import StreamOptions

        config = ArrayRecordSourceConfig(shuffle=True, shuffle_block_size="auto", seed=_SEED, num_epochs=1)
        source = ArrayRecordSourceModule(config, f"{url}/records.array_record", transforms=[DecodeImage()])
        for batch in source.batches(0, StreamOptions(64)):
            yield from batch.columns["image"]


PEERS: dict[str, Any] = {"streaming": Streaming, "litdata": LitData, "webdataset": WebDataset, "ours": Ours}


def written(peer: str, folder: str, count: int) -> None:
    """Its files, unless they are there."""
    written_once(Path(folder), lambda scratch: PEERS[peer].write(str(scratch), count))


def measured(peer: str, url: str, where: str) -> dict[str, float]:
    """Seconds to the first picture, and to the last; CPU ms of this process for each; how many came."""
    importlib.import_module(PEERS[peer].package)
    importlib.import_module("cv2")
    cpu = time.process_time()
    begin = time.perf_counter()
    pictures = PEERS[peer].pictures(url, where)
    shape = next(pictures).shape
    first_s = time.perf_counter() - begin
    assert shape == (256, 256, 3), shape
    num = 1 + sum(1 for _ in pictures)
    return {
        "first_s": first_s,
        "all_s": time.perf_counter() - begin,
        "cpu_ms": (time.process_time() - cpu) / num * 1e3,
        "num": num,
    }


def _run(python: str, task: Sequence[Any]) -> subprocess.CompletedProcess[str]:
    fake = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "us-east-1"}
    return subprocess.run(
        [python, "-m", "tests.benchmarks.remote_peers", "--one", json.dumps(task)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | fake | {"JAX_PLATFORMS": "cpu"},
    )


def _line(peer: str, count: int, nbytes: int, runs: list[dict[str, float]]) -> dict[str, Any]:
    rates = sorted(count / run["all_s"] for run in runs)
    line = {"peer": peer, "rate": median(rates), "least": rates[0], "most": rates[-1]}
    line |= {key: median(run[key] for run in runs) for key in ("first_s", "cpu_ms", "requests")}
    return line | {"nbytes": median(run["nbytes"] for run in runs) / nbytes}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each loader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--pictures", type=int, default=12_000)
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--cap-mb", type=float, default=100, help="MB/s that the server sends")
    parser.add_argument("--repeats", type=int, default=3)
    cache = Path.home() / ".cache" / "datarax_ray_benchmarks"
    parser.add_argument("--cache-dir", type=Path, default=cache, help=f"of the datasets (default: {cache})")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        what, *rest = json.loads(options.one)
        print(json.dumps({"write": written, "read": measured}[what](*rest)))
        return []
    from tests.benchmarks.remote_files import Server  # it needs Ray, which peers do not have

    pythons = {peer: sys.executable if peer == "ours" else options.python for peer in PEERS}
    folders = {peer: options.cache_dir / f"remote-{peer}-{options.pictures}" for peer in PEERS}
    options.cache_dir.mkdir(parents=True, exist_ok=True)
    here, runs = [], {peer: list[dict[str, float]]() for peer in PEERS}
    for peer in PEERS:
        done = _run(pythons[peer], ["write", peer, str(folders[peer]), options.pictures])
        if done.returncode:
            print(f"{PEERS[peer].name} is left out: {done.stderr.strip().splitlines()[-1]}", flush=True)
        else:
            here.append(peer)
    server = Server(options.cache_dir, options.delay_ms / 1000, options.cap_mb * 1e6)
    try:
        for _, peer in itertools.product(range(options.repeats), here):
            with tempfile.TemporaryDirectory() as where:
                names = sorted(path.name for path in folders[peer].iterdir())
                Path(where, "names.json").write_text(json.dumps(names))
                before = server.counts
                done = _run(pythons[peer], ["read", peer, f"{server.url}/{folders[peer].name}", where])
                after = server.counts
            if done.returncode:
                raise RuntimeError(f"{PEERS[peer].name}: {done.stderr[-2000:]}")
            told = json.loads(done.stdout.strip().splitlines()[-1])
            assert told["num"] == options.pictures, f"{PEERS[peer].name} gave {told['num']}"
            runs[peer].append(told | {"requests": after[0] - before[0], "nbytes": after[1] - before[1]})
    finally:
        server.close()
    lines = []
    for peer in here:
        nbytes = sum(path.stat().st_size for path in folders[peer].iterdir())
        line = _line(peer, options.pictures, nbytes, runs[peer])
        lines.append(line)
        print(
            f"{PEERS[peer].name}: {line['rate']:,.0f} pictures/s ({line['least']:,.0f} to {line['most']:,.0f}), the "
            f"first after {line['first_s']:.2f} s, {line['cpu_ms']:.2f} ms of CPU each, {line['requests']:,.0f} "
            f"requests for {line['nbytes']:.2f} x the bytes of {nbytes / 2**20:,.0f} MiB",
            flush=True,
        )
    return lines


if __name__ == "__main__":
    main()
