"""The weights of a mixture: whole numbers in proportion, constant or a pure function of the position."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational
from typing import Any, TypeAlias

from datarax_ray.plan.arguments import NamedArguments, ordered, whole
from datarax_ray.plan.plain_values import shown
from datarax_ray.plan.position import is_count

# Weights sum to at most 2**31, so that the product of two numbers below the sum fits in int64.
_MAX_WEIGHT_SUM = 2**31
# Floats mean decimals or simple fractions: 0.1 is 1/10, and 1/3 is a third.
_MAX_DENOMINATOR = 10**6
# Between two points of a schedule shares are rounded to this. A constant of the format: states hold only the points.
_SHARE_UNITS = 2**20
# Each piece costs a search in every read, and a few numbers in every request.
_MAX_PIECES = 1024

Weights: TypeAlias = "tuple[int, ...] | WeightSchedule"


@dataclass(frozen=True)
class WeightSchedule(NamedArguments):
    """Weights that change along a stream: a curriculum, as a pure function of the position.

    points: (position, weights) pairs, ascending from position 0, where it begins. The last weights hold for ever.
    num_steps: equal steps from one point to the next; with 1 step, weights change at the points alone. In step j of n
        a component has (n - j) / n of its share at the one point, and j / n of its share at the next. In every step it
        has its share to less than 4 records.

    Raises: TypeError, ValueError for other points.

    >>> WeightSchedule([(0, [3, 1]), (1000, [1, 3])], num_steps=2).pieces
    ((0, (3, 1)), (500, (1, 1)), (1000, (1, 3)))
    """

    points: Sequence[tuple[int, Sequence[float]]]
    num_steps: int = 1

    def __post_init__(self) -> None:
        ordered("points", self.points)
        try:
            points = tuple((whole("a position", at), whole_weights(tuple(weights))) for at, weights in self.points)
        except TypeError as error:
            error.add_note(f"points are (position, weights) of each, got {shown(self.points)}")
            raise
        starts = [at for at, _ in points]
        if starts[:1] != [0] or starts != sorted(set(starts)):
            raise ValueError(f"the positions of a schedule begin at 0 and ascend, got {shown(starts)}")
        if not is_count(starts[-1]):
            raise ValueError(f"a position is at most 2**62, got {shown(starts[-1])}")
        if len({len(weights) for _, weights in points}) > 1:
            raise ValueError(f"each point of a schedule has as many weights, got {shown([w for _, w in points])}")
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "num_steps", whole("num_steps", self.num_steps, least=1))
        if len(points) * self.num_steps > _MAX_PIECES:
            raise ValueError(
                f"{len(points)} points with {self.num_steps} steps between them are more than {_MAX_PIECES} changes of "
                "weights; take fewer steps"
            )

    @property
    def pieces(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(position, weights) pairs: the weights hold from the position up to the next pair's."""
        found: dict[int, tuple[int, ...]] = {}
        points: Any = self.points
        for (start, one), (stop, other) in itertools.pairwise(points):
            for step in range(self.num_steps):  # of several at one position the last holds
                part = Fraction(step, self.num_steps)
                found[start + step * (stop - start) // self.num_steps] = _between(one, other, part)
        return (*found.items(), points[-1])

    @property
    def num_components(self) -> int:
        return len(self.points[0][1])

    def plain(self) -> dict[str, Any]:
        return {"points": [[at, list(weights)] for at, weights in self.points], "num_steps": self.num_steps}


def weights_given(weights: Any) -> Weights:
    """A person's weights: a schedule as it is, numbers as whole_weights. Raises: TypeError, ValueError."""
    if isinstance(weights, WeightSchedule):
        return weights
    ordered("weights", weights)
    if isinstance(weights, Mapping):  # its keys may be numbers, too
        raise TypeError(f"weights is a list of numbers, one for each source in their order, got {weights!r}")
    return whole_weights(tuple(weights))


def plain_weights(weights: Weights) -> Any:
    """Weights as plain values, for a state."""
    return weights.plain() if isinstance(weights, WeightSchedule) else list(weights)


def pieces_of(weights: Weights) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return weights.pieces if isinstance(weights, WeightSchedule) else ((0, weights),)


def num_weights(weights: Weights) -> int:
    return weights.num_components if isinstance(weights, WeightSchedule) else len(weights)


def saved_weights(plain: Any) -> Weights:
    """The weights that plain_weights wrote. Raises: TypeError, ValueError for anything else."""
    return WeightSchedule(**plain) if isinstance(plain, Mapping) else whole_weights(plain)


def _between(one: tuple[int, ...], other: tuple[int, ...], part: Fraction) -> tuple[int, ...]:
    """The weights at this fraction of the way from one to the other, along which shares change evenly.

    >>> _between((1, 0), (0, 1), Fraction(1, 4))
    (3, 1)
    """
    shares = [
        Fraction(a, sum(one)) * (1 - part) + Fraction(b, sum(other)) * part for a, b in zip(one, other, strict=True)
    ]
    exact = whole_weights(shares) if math.lcm(*(share.denominator for share in shares)) <= _SHARE_UNITS else None
    return exact or whole_weights([share and max(1, round(share * _SHARE_UNITS)) for share in shares])


def whole_weights(weights: Sequence[Any]) -> tuple[int, ...]:
    """Weights as whole numbers in the same proportion, without a common divisor.

    Raises: TypeError for values that are no numbers; ValueError for negative weights, for weights that are all 0, or
    without a common denominator in reach.

    >>> whole_weights([0.7, 0.2, 0.1])
    (7, 2, 1)
    """
    weights = [_plain(weight) for weight in weights]
    if any(not math.isfinite(w) or w < 0 for w in weights) or not any(weights):
        raise ValueError(f"weights must be at least 0, and one of them more, got {weights}")
    exact = [Fraction(w).limit_denominator(_MAX_DENOMINATOR) if isinstance(w, float) else Fraction(w) for w in weights]
    if vanished := [w for w, found in zip(weights, exact, strict=True) if w and not found]:
        raise ValueError(f"weights {vanished} are too small beside the others; give whole numbers")
    common = math.lcm(*(w.denominator for w in exact))
    whole = [int(w * common) for w in exact]
    divisor = math.gcd(*whole)
    if sum(whole) // divisor > _MAX_WEIGHT_SUM:
        raise ValueError(
            f"the weights {list(weights)} are {[w // divisor for w in whole]} as whole numbers, whose sum exceeds "
            "2**31; round them"
        )
    return tuple(w // divisor for w in whole)


def _plain(weight: Any) -> Rational | float:
    """A Python number, also of NumPy's float32 and JAX's arrays of one number."""
    if isinstance(weight, Rational):
        return weight
    try:
        if not isinstance(weight, str | bytes):  # which float() would take
            return float(weight)
    except TypeError:
        pass  # reported below
    raise TypeError(f"weights are numbers, one for each source, got {shown(weight)}")
