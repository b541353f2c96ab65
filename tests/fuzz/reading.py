"""Reading what may be damaged, request by request, and what came of it: one rule for every format with records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.block import Block
from datarax_ray.read.streams.indexed import IndexedStream
from tests.fuzz import outcomes


def read_through(
    description: IndexedStream,
    requests: Sequence[ReadRequest],
    path: str,
    allowed: tuple[type[Exception], ...],
    difference: Callable[[Block], str],
    wrong: str,
) -> tuple[str, str]:
    """The outcome of reading all requests. difference: of a block to what was written, "" for none; else `wrong`."""
    failures = 0
    for request in requests:
        try:
            block = description.read(request)
        except Exception as error:
            outcome = outcomes.refusal(error, path, allowed)
            if outcome[0] != outcomes.REFUSED:
                return outcome
            failures += 1
            continue
        told = [*([str(block.failure)] if block.failure else []), *(skip.where for skip in block.skipped)]
        failures += len(told)
        if nameless := [reason for reason in told if path not in reason]:
            return outcomes.NAMELESS, nameless[0][:300]
        if detail := difference(block):
            return wrong, detail
    return (outcomes.PARTIAL, "") if failures else (outcomes.UNHARMED, "")
