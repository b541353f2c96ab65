"""The weights of a mixture: whole numbers in proportion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Rational
from typing import Any

from datarax_ray.plan.fingerprint import shown
from datarax_ray.plan.position import is_count

# Weights sum to at most 2**31, so that the product of two numbers below the sum fits in int64.
_MAX_WEIGHT_SUM = 2**31
# Floats are meant as decimals or simple fractions: 0.1 is 1/10, and 1/3 is a third.
_MAX_DENOMINATOR = 10**6


def whole_weights(weights: Sequence[Any]) -> tuple[int, ...]:
    """Weights as whole numbers in the same proportion, without a common divisor.

    Raises: TypeError for what is no number; ValueError for negative weights, weights that are all 0, or ones without a
    common denominator in reach.

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
    """A number of Python's, of NumPy's float32 and JAX's arrays of one number too."""
    if isinstance(weight, Rational):
        return weight
    try:
        if not isinstance(weight, str | bytes):  # which float() would take
            return float(weight)
    except TypeError:
        pass  # told below
    raise TypeError(f"weights are numbers, one for each source, got {shown(weight)}")


def weights_of(plain: Any, num_components: int) -> tuple[int, ...]:
    """The weights that a saved state has. Raises: ValueError for what are none of so many components."""
    if not isinstance(plain, list) or len(plain) != num_components or not all(map(is_count, plain)):
        raise ValueError(
            f"the state's mixture.weights must be {num_components} whole numbers, got {shown(plain)}; the state is "
            "damaged, restore an earlier one"
        )
    return whole_weights(plain)
