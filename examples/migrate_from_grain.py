"""How does a Grain DataLoader move to Ray actors? By one import; batches and random numbers carry over."""

from __future__ import annotations

import grain.python as grain
import numpy as np

import datarax_ray.grain  # in a program of yours: import datarax_ray.grain as grain


class Normalize(grain.MapTransform):
    def map(self, number: int) -> dict[str, np.ndarray]:
        return {"x": np.full(8, number, np.float32) / 1000}


class Jitter(grain.RandomMapTransform):
    def random_map(self, element: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"x": element["x"] + rng.normal(0, 0.01, 8).astype(np.float32)}


class KeepEven(grain.FilterTransform):
    def filter(self, number: int) -> bool:
        return number % 2 == 0


def main() -> None:
    arguments = {
        "data_source": grain.RangeDataSource(0, 1000, 1),
        "sampler": grain.IndexSampler(1000, grain.NoSharding(), shuffle=True, num_epochs=2, seed=7),
        "operations": [KeepEven(), Normalize(), Jitter(), grain.Batch(64, drop_remainder=True)],
    }
    expected = list(grain.DataLoader(**arguments, worker_count=0))

    state = None
    for worker_count, start, stop in ((2, 0, 10), (1, 10, len(expected))):  # goes on with 1 actor: Grain refuses that
        with datarax_ray.grain.DataLoader(**arguments, worker_count=worker_count) as loader:
            iterator = iter(loader)
            if state is not None:
                iterator.set_state(state)
            for want in expected[start:stop]:
                assert next(iterator)["x"].tobytes() == want["x"].tobytes()
            state = iterator.get_state()
            print(f"batches {start} to {stop - 1} from {worker_count} actors: Grain's, byte for byte")


if __name__ == "__main__":
    main()
