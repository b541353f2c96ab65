"""Arguments that Python would take for something else."""

import numpy as np
import pytest

from datarax_ray import (
    ConcatThenSplit,
    CSVSourceConfig,
    DecodeFields,
    DecodeRaw,
    MixtureSource,
    PadTo,
    Pipeline,
    RandomAccessSource,
    RandomAccessSourceConfig,
    load,
)
from datarax_ray.plan.arguments import flag, whole


def source(**options):
    return RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), {"x": np.arange(4)}, **options)


@pytest.mark.parametrize("value", ["no", "False", "", None, 1000, 0.0, []])
def test_only_true_and_false_are_claims(value):
    with pytest.raises(TypeError, match=r"shuffle is True or False, got "):
        flag("shuffle", value)


@pytest.mark.parametrize("value", [True, np.True_, 1])
def test_a_claim_becomes_a_plain_bool(value):
    assert flag("shuffle", value) is True


@pytest.mark.parametrize("value", [1.0, "1", None])
def test_only_integers_are_whole_numbers(value):
    with pytest.raises(TypeError, match=r"num_epochs is a whole number, got .*; -1 for endless"):
        whole("num_epochs", value, "; -1 for endless")


def test_a_number_of_numpy_becomes_a_plain_one():
    assert type(whole("batch_size", np.int64(3))) is int


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("paths", lambda: load({"a.csv", "b.csv"})),
        ("column_names", lambda: CSVSourceConfig(column_names={"a", "b"})),
        ("fields", lambda: DecodeFields({("a", ("int8", ())), ("b", ("int8", ()))})),
        ("shape", lambda: DecodeRaw("int8", {2, 3})),
        ("shape", lambda: PadTo({"x": frozenset({2, 3})})),
        ("transforms", lambda: source(transforms={np.abs, np.negative})),
        ("stages", lambda: Pipeline(source=source(), stages={np.abs, np.negative}, batch_size=2)),
        ("fields", lambda: ConcatThenSplit(8, {"a", "b"}, bos_token_id=1)),
        ("sources", lambda: MixtureSource({source(), source()})),
        ("weights", lambda: MixtureSource([source(), source()], {0.3, 0.7})),
    ],
)
def test_what_has_an_order_is_no_set_which_is_another_in_every_process(name, make):
    with pytest.raises(TypeError, match=rf"{name} is a (frozen)?set, which has no order; give a list"):
        make()


def test_weights_by_source_are_refused_as_their_keys_may_be_numbers():
    with pytest.raises(TypeError, match=r"weights is a list of numbers, one for each source .*got \{0: 0.3, 1: 0.7\}"):
        MixtureSource([source(), source()], {0: 0.3, 1: 0.7})
