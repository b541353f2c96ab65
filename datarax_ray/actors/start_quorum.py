"""The start quorum: whether enough actors run to begin, and whether any will. Nothing here waits or knows the time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

# Once one actor reads, the others get this long before the stream starts without them; they join when they are there.
GATHER_S = 5.0
# Where none runs for so long, a person wants to know why: processes start in less.
_TELL_S = 10.0


Vacancy = Literal["free", "in use", "none"]


def room(
    nodes: Sequence[Mapping[str, float]], free: Mapping[str, float], each: Mapping[str, float], num_actors: int
) -> Vacancy:
    """Whether one more actor fits ("free"), or all would where nothing else ran: what is in use may be theirs, which
    are being started, or another's ("in use").

    nodes: what each node that they may run on has, by resource; an actor is on one node.
    free: of all these nodes together, {} where that is not known.
    each: what one of num_actors reserves.

    >>> room([{"CPU": 16}], {"CPU": 8}, {"CPU": 1}, num_actors=20)
    'free'
    >>> room([{"CPU": 4}], {"CPU": 0}, {"CPU": 1}, num_actors=2)
    'in use'
    >>> room([{"CPU": 4}], {"CPU": 0}, {"CPU": 1}, num_actors=8)
    'none'
    >>> room([{"CPU": 1}, {"CPU": 1}], {"CPU": 2}, {"CPU": 2}, num_actors=1)
    'none'
    """
    fitting = [num_fitting(node, each, num_actors) for node in nodes]
    if any(fitting) and all(free.get(name, 0.0) >= wanted for name, wanted in each.items()):
        return "free"
    return "in use" if sum(fitting) >= num_actors else "none"


def num_fitting(node: Mapping[str, float], each: Mapping[str, float], most: int) -> int:
    """How many actors a node can hold at once, up to `most`."""
    return min([most, *(int(node.get(name, 0.0) / wanted) for name, wanted in each.items() if wanted)])


def has_labels(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node with these labels is one that a label_selector of Ray names.

    >>> [has_labels({"role": "cpu"}, {"role": wanted}) for wanted in ("cpu", "!cpu", "in(cpu, tpu)", "!in(tpu)")]
    [True, False, True, True]
    >>> has_labels({}, {"role": "cpu"}), has_labels({}, {"role": "!cpu"})
    (False, True)
    """
    for key, wanted in selector.items():
        named = wanted.removeprefix("!")
        values = named[3:-1].split(",") if named.startswith("in(") and named.endswith(")") else [named]
        if (labels.get(key) in [value.strip() for value in values]) == wanted.startswith("!"):
            return False
    return True


class StartQuorum:
    """Decides when to begin with the actors that run, and when to give up where none does.

    start_timeout_s: how long to wait where none runs.
    """

    def __init__(self, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._is_over = False
        self._first_at: float | None = None
        self._none_since: float | None = None
        self._asked_at = -math.inf
        self._is_told = False

    def has_begun(self, now: float, num_ready: int, num_actors: int) -> bool:
        """Whether to read with these: all run, or the first has waited long enough for the others; then ever after."""
        self._none_since = None
        self._first_at = now if self._first_at is None else self._first_at
        self._is_over = self._is_over or num_ready == num_actors or now - self._first_at >= GATHER_S
        return self._is_over

    def waited(self, now: float) -> tuple[float, Literal["tell", "end"]] | None:
        """Event: none runs. How long that has been so, once it is worth a word ("tell"), and once it is too long
        ("end"); who asks again after that waits again.
        """
        if self._none_since is None or now - self._asked_at > GATHER_S:  # nobody waited meanwhile
            self._none_since, self._is_told = now, False
        self._asked_at = now
        waited_s = now - self._none_since
        if waited_s > self._start_timeout_s:
            self._none_since = None
            return waited_s, "end"
        if self._is_told or waited_s < min(_TELL_S, self._start_timeout_s / 2):
            return None
        self._is_told = True
        return waited_s, "tell"
