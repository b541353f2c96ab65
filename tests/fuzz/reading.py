"""Reading what may be damaged, ticket by ticket, and what came of it: one rule for every format with records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from datarax_ray.plan.partitions import Ticket
from datarax_ray.read.block import Block
from datarax_ray.read.stream import Description
from tests.fuzz import outcomes


def read_through(
    description: Description,
    tickets: Sequence[Ticket],
    path: str,
    allowed: tuple[type[Exception], ...],
    difference: Callable[[Block], str],
    wrong: str,
) -> tuple[str, str]:
    """The outcome of reading all the tickets. difference: of a block to what was written, "" for none; else `wrong`."""
    failures = 0
    for ticket in tickets:
        try:
            block = description.read(ticket)
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
