"""Prints the table of all scenarios, or of those whose name has a word in it: python -m tests.simulation [WORD ...]"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator

from tests.simulation.pool import Costs
from tests.simulation.scenario import Fault, Found, Scenario, run

# A slow decode of small records: requests end at a second. Large images: requests end at 16 MiB.
TOKENS = Costs()
IMAGES = Costs(record_s=0.03, fixed_s=0.01, record_nbytes=600_000)

LOSSES = (
    *(Fault(45.0 + 5 * n, "kill", 7 * n) for n in range(8)),
    Fault(90.0, "freeze", 3),
    *(Fault(60.0 + n, "join") for n in range(8)),
    *(Fault(100.0 + n, "leave", 20 + n) for n in range(8)),
)
KINDS: tuple[tuple[str, Costs], ...] = (("tokens", TOKENS), ("images", IMAGES))


def scenarios() -> Iterator[Scenario]:
    """All of them, the small ones first."""
    for kind, costs in KINDS:
        alike = Scenario(kind, 64, costs=costs)
        yield alike
        yield dataclasses.replace(alike, name=f"{kind} sigma 0.3", sigma=0.3)
        yield dataclasses.replace(alike, name=f"{kind} sigma 1.0", sigma=1.0)
        yield dataclasses.replace(alike, name=f"{kind} one slow", slow=1)
        yield dataclasses.replace(alike, name=f"{kind} uneven hosts", uneven=(1.0, 2.0, 4.0), sigma=0.3)
        yield dataclasses.replace(alike, name=f"{kind} losses, joins", faults=LOSSES, sigma=0.3)
        yield dataclasses.replace(alike, name=f"{kind} trainer at 0.8", need=0.8 * 64 / costs.record_s, sigma=1.0)
    many = Scenario("tokens many", 1000, num_trainers=8)
    yield many
    yield dataclasses.replace(many, name="tokens many sigma 0.3", sigma=0.3)
    yield dataclasses.replace(many, name="tokens many sigma 1.0", sigma=1.0)
    yield dataclasses.replace(many, name="tokens many slow", slow=1)
    images = dataclasses.replace(many, costs=IMAGES, num_trainers=32)
    yield dataclasses.replace(images, name="images many sigma 1.0", sigma=1.0)
    yield Scenario("tokens most sigma 0.3", 2000, num_trainers=256, sigma=0.3, warm_s=60.0, measured_s=40.0)


HEADER = ("actors", "trainers", "early", "efficiency", "wait", "driver", "us/request", "GB", "req/s", "MB/s", "wasted")
COLUMN = "{:24}" + " {:>10}" * len(HEADER)


def row(scenario: Scenario, found: Found) -> str:
    """What came of it, in the columns of the header; of one trainer where it is not said otherwise."""
    return COLUMN.format(
        scenario.name,
        scenario.num_actors,
        scenario.num_trainers,
        f"{found.early:.2f}",
        f"{found.efficiency:.2f}",
        f"{found.wait:.2f}",
        f"{found.driver:.2f}",
        f"{found.decision_us:.0f}",
        f"{found.nbytes / 2**30:.2f}",
        f"{found.requests_per_s:.0f}",
        f"{found.nbytes_per_s / 1e6:.0f}",
        f"{found.wasted:.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    print(COLUMN.format("", *HEADER))
    for scenario in scenarios():
        if all(word in scenario.name for word in words):
            print(row(scenario, run(scenario)), flush=True)


if __name__ == "__main__":
    main()
