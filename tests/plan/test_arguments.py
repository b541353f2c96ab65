"""Arguments that Python would take for something else."""

import numpy as np
import pytest

from datarax_ray.plan.arguments import flag, whole


@pytest.mark.parametrize("value", ["no", "False", "", None, 1000, 0.0, []])
def test_only_true_and_false_are_claims(value: object) -> None:
    with pytest.raises(TypeError, match=r"shuffle is True or False, got "):
        flag("shuffle", value)


@pytest.mark.parametrize("value", [True, np.True_, 1])
def test_a_claim_becomes_a_plain_bool(value: object) -> None:
    assert flag("shuffle", value) is True


@pytest.mark.parametrize("value", [1.0, "1", None])
def test_only_integers_are_whole_numbers(value: object) -> None:
    with pytest.raises(TypeError, match=r"num_epochs is a whole number, got .*; -1 for endless"):
        whole("num_epochs", value, "; -1 for endless")


def test_a_number_of_numpy_becomes_a_plain_one() -> None:
    assert type(whole("batch_size", np.int64(3))) is int
