"""Other loaders that shuffle from shards, beside this one: MosaicML Streaming and LitData, one process of each.

    python -m venv peers && peers/bin/pip install mosaicml-streaming litdata   # PyTorch comes along, some 5 GB
    python -m tests.benchmarks.peers --python peers/bin/python [--kinds small,tokens] [--seconds 4] [--repeats 3]

Records of 64 bytes, or of 4 KB, are written once in each one's own format, none of them compressed (ours in groups of
256), and read shuffled, from a warm page cache, in turns. Each gives batches of NumPy arrays in one process: Streaming
and LitData by their datasets, without PyTorch's DataLoader, whose workers are more processes, ours without Ray. A peer
that is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

KINDS = {"small": (64, 8192, 400_000), "tokens": (4096, 1024, 30_000)}  # bytes, batch, records
_BLOCK, _SEED, _SHARD_NBYTES = 2**12, 7, 2**26


def _records(nbytes: int, count: int) -> Iterator[bytes]:
    import numpy as np

    for start in range(0, count, _BLOCK):
        rng = np.random.default_rng((0, start))
        block = rng.integers(0, 2**15, (min(_BLOCK, count - start), nbytes // 4), np.int32)
        yield from (row.tobytes() for row in block)


class Streaming:
    """MosaicML Streaming: MDS shards, shuffle algorithm py1e, which is its default."""

    name = "MosaicML Streaming"

    @staticmethod
    def write(folder: str, nbytes: int, count: int) -> None:
        import numpy as np
        from streaming import MDSWriter

        with MDSWriter(out=folder, columns={"x": f"ndarray:int32:{nbytes // 4}"}, size_limit=_SHARD_NBYTES) as writer:
            for record in _records(nbytes, count):
                writer.write({"x": np.frombuffer(record, np.int32)})

    @staticmethod
    def rows(folder: str, batch: int) -> Iterator[Any]:
        from streaming import StreamingDataset

        dataset = StreamingDataset(local=folder, shuffle=True, shuffle_seed=_SEED, batch_size=batch)
        while True:
            yield from (sample["x"] for sample in dataset)


class LitData:
    """LitData: its binary chunks, StreamingDataset(shuffle=True)."""

    name = "LitData"

    @staticmethod
    def write(folder: str, nbytes: int, count: int) -> None:
        import numpy as np
        from litdata.streaming import Cache

        cache = Cache(folder, chunk_bytes=_SHARD_NBYTES)
        for index, record in enumerate(_records(nbytes, count)):
            cache[index] = {"x": np.frombuffer(record, np.int32)}
        cache.done()
        cache.merge()

    @staticmethod
    def rows(folder: str, batch: int) -> Iterator[Any]:
        from litdata import StreamingDataset

        dataset = StreamingDataset(folder, shuffle=True, seed=_SEED, drop_last=False)
        while True:
            yield from (sample["x"] for sample in dataset)


class Ours:
    """This one, in one process: blocks of the groups that the file has."""

    name = "in-process, blocks of groups"

    @staticmethod
    def write(folder: str, nbytes: int, count: int) -> None:
        from tests.data import write_file

        Path(folder).mkdir()
        write_file(Path(folder) / "records.array_record", _records(nbytes, count), 256, "uncompressed")

    @staticmethod
    def batches(folder: str, nbytes: int, batch: int) -> Iterator[Any]:
        from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, DecodeRaw
        from datarax_ray.feed.stream import StreamOptions

        config = ArrayRecordSourceConfig(shuffle=True, shuffle_block_size="auto", seed=_SEED, num_epochs=-1)
        source = ArrayRecordSourceModule(config, folder, transforms=[DecodeRaw("int32", (nbytes // 4,), "x")])
        yield from (each.columns["x"] for each in source.batches(0, StreamOptions(batch)))


PEERS: dict[str, Any] = {"streaming": Streaming, "litdata": LitData, "ours": Ours}


def _stacked(rows: Iterator[Any], batch: int) -> Iterator[Any]:
    import numpy as np

    while True:
        yield np.stack([next(rows) for _ in range(batch)])


def measured(peer: str, kind: str, folder: str, seconds: float, warmup: float) -> dict[str, float]:
    """Records a second and CPU us a record, behind the warm-up."""
    import numpy as np

    nbytes, batch, count = KINDS[kind]
    of = PEERS[peer]
    if not os.path.exists(folder):
        of.write(folder, nbytes, count)
    batches = of.batches(folder, nbytes, batch) if peer == "ours" else _stacked(of.rows(folder, batch), batch)
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


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each kind of records and loader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warmup", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    cache = Path.home() / ".cache" / "datarax_ray_benchmarks"
    parser.add_argument("--cache-dir", type=Path, default=cache, help=f"of the datasets (default: {cache})")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measured(*json.loads(options.one))))
        return []
    lines = []
    options.cache_dir.mkdir(parents=True, exist_ok=True)
    for kind in options.kinds:
        found: dict[str, list[dict[str, float]]] = {peer: [] for peer in PEERS}
        for repeat in range(options.repeats):
            for peer in PEERS:
                if repeat and not found[peer]:
                    continue  # not installed
                where = str(options.cache_dir / f"peers-{peer}-{kind}")
                task = json.dumps([peer, kind, where, options.seconds, options.warmup])
                done = subprocess.run(
                    [
                        sys.executable if peer == "ours" else options.python,
                        "-m",
                        "tests.benchmarks.peers",
                        "--one",
                        task,
                    ],
                    capture_output=True,
                    text=True,
                    check=False,
                    cwd=Path(__file__).resolve().parents[2],
                    env=os.environ | {"JAX_PLATFORMS": "cpu"},
                )
                if done.returncode:
                    print(f"{PEERS[peer].name} is left out: {done.stderr.strip().splitlines()[-1]}", flush=True)
                    continue
                found[peer].append(json.loads(done.stdout.strip().splitlines()[-1]))
        ours = median(each["rate"] for each in found["ours"])
        ours_cpu = median(each["cpu_us"] for each in found["ours"])
        for peer, runs in found.items():
            if runs:
                rates, cpu_us = sorted(each["rate"] for each in runs), median(each["cpu_us"] for each in runs)
                line = {"kind": kind, "peer": peer, "rate": median(rates), "cpu_us": cpu_us}
                lines.append(line | {"times": ours / median(rates), "cpu_times": cpu_us / ours_cpu})
                spread = f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
                print(
                    f"{kind}, {PEERS[peer].name}: {median(rates):,.0f} records/s ({spread}), "
                    f"{cpu_us:.2f} us of CPU each; ours is {ours / median(rates):.1f} times as fast, by CPU "
                    f"{cpu_us / ours_cpu:.1f}",
                    flush=True,
                )
    return lines


if __name__ == "__main__":
    main()
