"""The order of a merged mixture: of streams whose elements have no number before they are read.

A position of a merged mixture counts elements, and holds the k-th element of a component. plan.orders.mixture gives
component and k; only reading finds the place of this element in the component. So a position alone determines the
stream, and states of the components save reading them from their beginnings.

Where weights share out sizes (tokens, say), the next element is of the component that gave least for its weight: the
smallest given / weight, of equals the first one. Elements stay whole, so a component is ahead of its share by less than
one of its elements, and behind by less than its share of one element of each other component. Nothing but the sizes of
earlier elements decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from datarax_ray.plan.amendments import Amendments
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.mixture import Mixture, WeightedOrder
from datarax_ray.plan.position import reading
from datarax_ray.plan.state import BEGIN, Stateful, StatefulOrder, StreamState, Unit, check_rest, refuse_records


class Component(Stateful, Protocol):
    """A component, as reading a state needs it."""

    def settings(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class ComponentState:
    """The state of a component after `count` of its elements. given: see plan.orders.merged; 0 without weights_by."""

    count: int = 0
    state: StreamState = BEGIN
    given: int = 0

    def plain(self) -> dict[str, Any]:
        position, offset, extra = self.state.position, self.state.offset, self.state.extra
        rest = ({"offset": offset} if offset else {}) | ({} if extra is None else {"rest": extra.plain()})
        given = {"given": self.given} if self.given else {}
        return {"count": self.count, "position": position, **rest, **given}


@dataclass(frozen=True)
class ComponentStates:
    """The states of all components, for the elements from a position on."""

    position: int
    components: tuple[ComponentState, ...]

    def plain(self) -> dict[str, Any]:
        return {"components": [each.plain() for each in self.components]}

    def at(self, position: int) -> ComponentStates | None:
        """Itself; None for an earlier position, which is read from the beginnings of the components. See Extra."""
        return self if position >= self.position else None


@dataclass(frozen=True)
class MergedOrder(WeightedOrder, StatefulOrder):
    """The component and element at each position. The components are streams; otherwise as a MixtureOrder.

    weights_by: the field whose sizes are shared out by weight; None to share out elements.
    """

    mixture: Mixture
    components: tuple[Component, ...]
    weights_by: str | None = None

    def earlier(self, state: StreamState, position: int) -> StreamState | None:
        """None: earlier places of the components are not known."""
        return None

    @property
    def num_records(self) -> int:
        raise TypeError(
            "a mixture with a stream in it, or with weights_by, has no length before it is read to its end, so no len()"
        )

    @property
    def seed(self) -> int:
        return self.mixture.seed

    def settings(self) -> dict[str, Any]:
        by = {} if self.weights_by is None else {"weights_by": self.weights_by}
        return super().settings() | {"counts": "elements"} | by

    def extra_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> ComponentStates | None:
        """The saved states of the components; None for their beginnings. See StatefulOrder."""
        check_rest(rest, "components")
        if "components" not in rest:
            return None
        with reading("components", plain := rest["components"]):
            pairs = zip(plain, self.components, strict=True)
            return ComponentStates(state.position, tuple(_component(*pair, state.unit) for pair in pairs))

    def check(self, amendments: Amendments) -> None:
        super().check(amendments)
        refuse_records(amendments)


def _component(plain: Mapping[str, Any], component: Component, unit: Unit) -> ComponentState:
    position, offset = plain["position"], plain.get("offset", 0)
    extra = component.order.extra_in(plain.get("rest", {}), StreamState(position, offset, unit), component.settings())
    return ComponentState(plain["count"], StreamState(position, offset, extra=extra), plain.get("given", 0))


# Of products in int64; where they may be larger, Python's integers take ten times as long.
_MAX_INT64 = 2**62


def next_components(weights: Sequence[int], given: Sequence[int], sizes: Sequence[Indices]) -> tuple[Indices, int]:
    """The components of the next elements, int64 (k,), and the component that is due behind them and has no element.

    sizes: int64 (n,), of the elements of each component that are there, in order.

    >>> next_components((2, 1), (0, 0), [np.array([3, 3, 3]), np.array([4])])
    (array([0, 1, 0, 0]), 1)
    """
    begins = {c: _begins(weights, given, c, sizes[c]) for c, weight in enumerate(weights) if weight}
    end, last = min((int(each[-1]), c) for c, each in begins.items())
    keys = {c: each[: np.searchsorted(each[:-1], end, "right" if c <= last else "left")] for c, each in begins.items()}
    components = np.concatenate([np.full(len(each), c) for c, each in keys.items()])
    return components[np.argsort(np.concatenate(list(keys.values())), kind="stable")], last


def given_then(weights: Sequence[int], given: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    """What each gave, with so much more, less whole rounds (of `weight` each), which change no turn and keep it small.

    >>> given_then((3, 1), (1, 0), (9, 5))
    (1, 2)
    """
    total = [a + b for a, b in zip(given, more, strict=True)]
    rounds = min(each // weight for each, weight in zip(total, weights, strict=True) if weight)
    return tuple(each - rounds * weight if weight else 0 for each, weight in zip(total, weights, strict=True))


def _begins(weights: Sequence[int], given: Sequence[int], index: int, sizes: Indices) -> Any:
    """given / weight, scaled, before each element of a component and behind the last: integers (n + 1,)."""
    scale = math.lcm(*filter(None, weights)) // weights[index]  # given times this compares as given / weight does
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]) + given[index]
    return (before if int(before[-1]) * scale < _MAX_INT64 else before.astype(object)) * scale
