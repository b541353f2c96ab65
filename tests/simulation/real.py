"""Real actors whose decode only waits, beside the simulation of the same: python -m tests.simulation.real [1 4 16 32]

Both begin from nothing and go on for so long. Records are made, not read, and waited for, so that a machine of two
cores carries 32 actors. The figures are of this machine as it was: other work on it makes the real ones worse.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from tests.simulation.pool import Costs
from tests.simulation.scenario import Scenario, run

COSTS = Costs(record_s=0.02, fixed_s=0.005, record_nbytes=65_536)
WARM_S, MEASURED_S = 15.0, 15.0
BATCH_SIZE = 16


@dataclass(frozen=True)
class Numbers:
    """A data source of so many numbers."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"number": index}


@dataclass(frozen=True)
class Wait:
    """A decode that takes its time, and none of the processor's."""

    seconds: float
    nbytes: int

    def map(self, element: dict[str, int]) -> dict[str, np.ndarray]:
        time.sleep(self.seconds)
        return {"number": np.int64(element["number"]), "image": np.zeros(self.nbytes, np.uint8)}


@dataclass(frozen=True)
class Measured:
    """efficiency: of what the actors can wait for. driver: its CPU for each 100 MB/s, of a core."""

    efficiency: float
    driver: float


def simulated(num_actors: int, warm_s: float = WARM_S, measured_s: float = MEASURED_S) -> Measured:
    found = run(Scenario("", num_actors, costs=COSTS, warm_s=warm_s, measured_s=measured_s))
    return Measured(found.efficiency, found.driver / (found.nbytes_per_s / 1e8))


def real(num_actors: int, warm_s: float = WARM_S, measured_s: float = MEASURED_S) -> Measured:
    """In a Ray that runs already. Counts rows that come between the end of the warm-up and that of the run."""
    from datarax_ray.actors.source import RaySource
    from datarax_ray.feed.stream import StreamOptions
    from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig

    config = RandomAccessSourceConfig(shuffle=True, num_epochs=-1)
    wait = Wait(COSTS.record_s, COSTS.record_nbytes)
    with RaySource(
        RandomAccessSource(config, Numbers(10**9), transforms=[wait]), num_actors=num_actors, num_cpus=0.01
    ) as source:
        begin, rows, first = time.monotonic(), 0, None
        for batch in source.batches(0, StreamOptions(BATCH_SIZE)):
            now = time.monotonic()
            begin = begin if source.num_running == num_actors else now  # processes take long to start on two cores
            rows += len(batch.positions)
            if first is None and now - begin > warm_s:
                first = rows, now, time.process_time()
            if first is not None and now - first[1] > measured_s:
                break
        assert first is not None
        took_s = now - first[1]
        rate = (rows - first[0]) / took_s
        driver = (time.process_time() - first[2]) / took_s
    return Measured(rate * COSTS.record_s / num_actors, driver / (rate * COSTS.record_nbytes / 1e8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("actors", nargs="*", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--runs", type=int, default=1, help="of each, of which the best counts")
    options = parser.parse_args()
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    print(f"{'actors':>8} {'simulated':>10} {'real':>6}   driver's CPU for each 100 MB/s: simulated, real")
    for num_actors in options.actors:
        wanted = simulated(num_actors)
        found = max((real(num_actors) for _ in range(options.runs)), key=lambda each: each.efficiency)
        print(
            f"{num_actors:8} {wanted.efficiency:10.2f} {found.efficiency:6.2f}"
            f"   {wanted.driver:.1%} {found.driver:.1%}",
            flush=True,
        )
    ray.shutdown()


if __name__ == "__main__":
    main()
