"""Other loaders that shuffle from shards, beside this one: MosaicML Streaming and LitData, one process of each.

    python -m venv peers && peers/bin/pip install mosaicml-streaming litdata   # PyTorch comes along, some 5 GB
    python -m tests.benchmarks.peers --python peers/bin/python [--kinds small,tokens] [--seconds 4] [--repeats 3]

Records of 64 bytes, or of 4 KB, are written once in each one's own format, none of them compressed (ours in groups of
256), and read shuffled, from a warm page cache, in turns. Each gives batches of NumPy arrays in one process: Streaming
and LitData by their datasets, without PyTorch's DataLoader, whose workers are more processes, ours without Ray. A peer
that is not installed is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.options import CACHE_DIR, parsed, spread

KINDS = {"small": (64, 8192, 400_000), "tokens": (4096, 1024, 30_000)}  # bytes, batch, records
SEED = 7
_BLOCK, _SHARD_NBYTES = 2**12, 2**26


class Streaming:
    """MosaicML Streaming: MDS shards, shuffle algorithm py1e, which is its default."""

    name, package = "MosaicML Streaming", "streaming"

    @staticmethod
    def write(folder: str, samples: Iterable[Any], column: str, shard_nbytes: int) -> None:
        from streaming import MDSWriter

        with MDSWriter(out=folder, columns={"x": column}, size_limit=shard_nbytes) as writer:
            for sample in samples:
                writer.write({"x": sample})

    @staticmethod
    def samples(folder: str, batch: int, remote: str | None = None) -> Iterator[Any]:
        """Epoch after epoch. remote: the URL that the folder's files come from, as of S3, for one epoch."""
        from streaming import StreamingDataset

        if remote is not None:
            host, _, key = remote.removeprefix("http://").partition("/")
            os.environ["S3_ENDPOINT_URL"] = f"http://{host}"
            options = {"remote": f"s3://{key}", "local": folder}
        else:
            options = {"local": folder}
        dataset = StreamingDataset(**options, shuffle=True, shuffle_seed=SEED, batch_size=batch)
        return (sample["x"] for _ in epochs(remote) for sample in dataset)


class LitData:
    """LitData: its binary chunks, StreamingDataset(shuffle=True)."""

    name, package = "LitData", "litdata"

    @staticmethod
    def write(folder: str, samples: Iterable[Any], column: str, shard_nbytes: int) -> None:
        from litdata.streaming import Cache

        cache = Cache(folder, chunk_bytes=shard_nbytes)
        for index, sample in enumerate(samples):
            cache[index] = {"x": sample}
        cache.done()
        cache.merge()

    @staticmethod
    def samples(folder: str, batch: int, remote: str | None = None) -> Iterator[Any]:
        from litdata import StreamingDataset

        options: dict[str, Any] = {"input_dir": folder}
        if remote is not None:
            from litdata.streaming import downloader

            downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # the server has no TLS
            host, _, key = remote.removeprefix("http://").partition("/")
            options = {"input_dir": f"s3://{key}", "cache_dir": folder}
            options["storage_options"] = {"endpoint_url": f"http://{host}"}
        dataset = StreamingDataset(**options, shuffle=True, seed=SEED, drop_last=False)
        return (sample["x"] for _ in epochs(remote) for sample in dataset)


class Ours:
    """This one, in one process: blocks of the groups that the file has, and no cache on the disk."""

    name, package = "in-process, blocks of groups", "datarax_ray.sources.array_record_source"

    @staticmethod
    def write(folder: str, records: Iterable[bytes], group_size: int) -> None:
        from tests.data import write_file

        write_file(Path(folder) / "records.array_record", records, group_size, "uncompressed")

    @staticmethod
    def batches(where: str, batch: int, field: str, decode: Any, num_epochs: int = -1) -> Iterator[Any]:
        from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule
        from datarax_ray.feed.stream import StreamOptions

        config = ArrayRecordSourceConfig(shuffle=True, shuffle_block_size="auto", seed=SEED, num_epochs=num_epochs)
        source = ArrayRecordSourceModule(config, where, transforms=[decode])
        return (each.columns[field] for each in source.batches(0, StreamOptions(batch)))


PEERS: dict[str, Any] = {"streaming": Streaming, "litdata": LitData, "ours": Ours}


def epochs(remote: str | None) -> Iterator[int]:
    """One for what is read from a bucket; without an end for what lies on the disk."""
    number = 0
    while remote is None or number == 0:
        yield number
        number += 1


def _rows(nbytes: int, count: int) -> Iterator[Any]:
    import numpy as np

    for start in range(0, count, _BLOCK):
        rng = np.random.default_rng((0, start))
        yield from rng.integers(0, 2**15, (min(_BLOCK, count - start), nbytes // 4), np.int32)


def _batches(peer: str, kind: str, folder: str) -> Iterator[Any]:
    """Without an end; the files are written where they are not there."""
    import numpy as np

    nbytes, batch, count = KINDS[kind]
    rows = None if os.path.exists(folder) else _rows(nbytes, count)
    if peer == "ours":
        from datarax_ray import DecodeRaw

        if rows is not None:
            Path(folder).mkdir()
            Ours.write(folder, (row.tobytes() for row in rows), 256)
        return Ours.batches(folder, batch, "x", DecodeRaw("int32", (nbytes // 4,), "x"))
    if rows is not None:
        PEERS[peer].write(folder, rows, f"ndarray:int32:{nbytes // 4}", _SHARD_NBYTES)
    samples = PEERS[peer].samples(folder, batch)
    return (np.stack([next(samples) for _ in range(batch)]) for _ in epochs(None))


def measured(peer: str, kind: str, folder: str, seconds: float, warmup: float) -> dict[str, float]:
    """Records a second and CPU us a record, behind the warm-up."""
    import numpy as np

    batches, (nbytes, _, _) = _batches(peer, kind, folder), KINDS[kind]
    begin = time.perf_counter()
    start = cpu = 0.0
    num = 0
    for each in batches:
        assert each.shape == (len(each), nbytes // 4), each.shape
        assert each.dtype == np.int32, each.dtype
        now = time.perf_counter()
        if not start:
            if now - begin > warmup:
                start, cpu = now, time.process_time()
            continue
        num += len(each)
        if now - start > seconds:
            break
    return {"rate": num / (now - start), "cpu_us": (time.process_time() - cpu) / max(1, num) * 1e6}


def run_one(module: str, python: str, task: Sequence[Any], **env: str) -> subprocess.CompletedProcess[str]:
    """A program of this folder that is given --one and a task, by the interpreter that has the peer."""
    return subprocess.run(
        [python, "-m", f"tests.benchmarks.{module}", "--one", json.dumps(task)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | env,
    )  # fmt: skip


def answer_of(done: subprocess.CompletedProcess[str], name: str) -> Any:
    """What it prints last. None, and a line that says so, where the peer is not there."""
    if not done.returncode:
        return json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{name} is left out: {done.stderr.strip().splitlines()[-1]}", flush=True)
    return None


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each kind of records and loader."""
    options = parsed(
        __doc__, arguments, python=sys.executable, kinds=list(KINDS), seconds=4.0, warmup=2.0, repeats=3,
        cache_dir=CACHE_DIR, one=str,
    )  # fmt: skip
    if options.one:
        print(json.dumps(measured(*json.loads(options.one))))
        return []
    lines = []
    options.cache_dir.mkdir(parents=True, exist_ok=True)
    for kind in options.kinds:
        found: dict[str, list[dict[str, float]]] = {peer: [] for peer in PEERS}
        for repeat in range(options.repeats):
            for peer, runs in found.items():
                if len(runs) < repeat:
                    continue  # not installed
                task = [peer, kind, str(options.cache_dir / f"peers-{peer}-{kind}"), options.seconds, options.warmup]
                done = run_one("peers", sys.executable if peer == "ours" else options.python, task)
                if told := answer_of(done, PEERS[peer].name):
                    runs.append(told)
        ours, ours_cpu = (median(each[name] for each in found["ours"]) for name in ("rate", "cpu_us"))
        for peer, runs in found.items():
            if runs:
                rate, cpu_us = (median(each[name] for each in runs) for name in ("rate", "cpu_us"))
                line = {"kind": kind, "peer": peer, "rate": rate, "cpu_us": cpu_us}
                lines.append(line | {"times": ours / rate, "cpu_times": cpu_us / ours_cpu})
                print(
                    f"{kind}, {PEERS[peer].name}: {spread([each['rate'] for each in runs])} records/s, {cpu_us:.2f} us "
                    f"of CPU each; ours is {ours / rate:.1f} times as fast, by CPU {cpu_us / ours_cpu:.1f}",
                    flush=True,
                )
    return lines


if __name__ == "__main__":
    main()
