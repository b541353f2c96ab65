"""What a stage holds is in the fingerprint of its state, as the same value in every process."""

from __future__ import annotations

import argparse
import enum
import functools
import json
import operator
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.sources import MixtureSource, RandomAccessSource, RandomAccessSourceConfig


class Mode(enum.Enum):
    TRAIN = "train"
    EVAL = "eval"


class Scale:
    def __init__(self, by: Any) -> None:
        self.by = by

    def of(self, x: Any) -> Any:
        return x * self.by


class Shift(Scale):
    def of(self, x: Any) -> Any:
        return x + self.by


def double(x: Any) -> Any:
    return 2 * x


def triple(x: Any) -> Any:
    return 3 * x


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by: int) -> None:
        self.by = by


class Table(dict[str, Any]):
    def __init__(self, by: int) -> None:
        super().__init__(a=1)
        self.by = by


class Repeated:
    """A decorator with a setting."""

    def __init__(self, function: Callable[[Any], Any], count: int) -> None:
        functools.update_wrapper(self, function)
        self.count = count

    def __call__(self, x: Any) -> Any:
        return self.count * x


def scaled(by: int) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def decorate(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        def scale(x: Any) -> Any:
            return by * function(x)

        return scale

    return decorate


class Peer:
    """Holds all others of its kind, in a list and in a set."""

    def __init__(self, name: str) -> None:
        self.name = name


def peers(count: int, last: str) -> Any:
    made = [Peer(str(number)) for number in range(count - 1)] + [Peer(last)]
    for peer in made:
        peer.others = [other for other in made if other is not peer]
    made[0].all = set(made[:3])
    return made[0]


class Holds(nnx.Module):
    """A stage with one attribute."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, batch: Any) -> Any:
        return batch


class Cyclic(nnx.Module):
    def __init__(self) -> None:
        self.method = self.apply
        self.items: list[Any] = [1]
        self.items.append(self.items)

    def apply(self, batch: Any) -> Any:
        return batch

    def __call__(self, batch: Any) -> Any:
        return self.method(batch)


# Makers, of values that are made anew each time, so that none is the same by its address.
CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "class of a library": (lambda: jnp.float32, lambda: jnp.bfloat16),
    "class of NumPy": (lambda: np.int32, lambda: np.int64),
    "class of one's own": (lambda: Scale, lambda: Shift),
    "Enum": (lambda: Mode.TRAIN, lambda: Mode.EVAL),
    "list": (lambda: [1, 2], lambda: [1, 3]),
    "list of classes": (lambda: [jnp.float32], lambda: [jnp.bfloat16]),
    "tuple of Enums": (lambda: (Mode.TRAIN,), lambda: (Mode.EVAL,)),
    "dict": (lambda: {"a": [0.5]}, lambda: {"a": [0.25]}),
    "order of a dict": (lambda: {"flip": double, "crop": triple}, lambda: {"crop": triple, "flip": double}),
    "set": (lambda: {"a", "b"}, lambda: {"a", "c"}),
    "frozenset": (lambda: frozenset({(1, "a")}), lambda: frozenset({(2, "a")})),
    "set of functions": (lambda: {double, jnp.tanh}, lambda: {triple, jnp.tanh}),
    "slice": (lambda: slice(0, 4), lambda: slice(1, 4)),
    "range": (lambda: range(4), lambda: range(5)),
    "complex number": (lambda: 1j, lambda: 2j),
    "NumPy array": (lambda: np.arange(3), lambda: np.arange(3) + 1),
    "NumPy array's dtype": (lambda: np.arange(3, dtype=np.int32), lambda: np.arange(3, dtype=np.uint32)),
    "array of objects": (lambda: np.array([Scale(1)], object), lambda: np.array([Scale(2)], object)),
    "NumPy scalar": (lambda: np.float32(0.5), lambda: np.float32(0.25)),
    "JAX array": (lambda: jnp.arange(3), lambda: jnp.arange(3) + 1),
    "library's jitted function": (lambda: jnp.tanh, lambda: jnp.sin),
    "library's function": (lambda: nnx.initializers.zeros, lambda: nnx.initializers.ones),
    "ufunc": (lambda: np.add, lambda: np.multiply),
    "JAX's ufunc": (lambda: jnp.add, lambda: jnp.multiply),
    "builtin": (lambda: max, lambda: min),
    "partial of a library's function": (
        lambda: functools.partial(jnp.clip, min=0),
        lambda: functools.partial(jnp.clip, min=1),
    ),
    "operator object": (lambda: operator.itemgetter("a"), lambda: operator.attrgetter("a")),
    "jitted function of one's own": (lambda: jax.jit(double), lambda: jax.jit(triple)),
    "object of one's own": (lambda: Scale(1), lambda: Scale(2)),
    "object with slots": (lambda: Slotted(1), lambda: Slotted(2)),
    "dict of one's own with an attribute": (lambda: Table(1), lambda: Table(2)),
    "object around a function": (lambda: Repeated(double, 2), lambda: Repeated(double, 3)),
    "function around a function": (lambda: scaled(2)(double), lambda: scaled(3)(double)),
    "jitted function around a function": (lambda: jax.jit(scaled(2)(double)), lambda: jax.jit(scaled(3)(double))),
    "jitted partial": (
        lambda: jax.jit(functools.partial(jnp.clip, min=0)),
        lambda: jax.jit(functools.partial(jnp.clip, min=1)),
    ),
    "namespace": (lambda: types.SimpleNamespace(by=1), lambda: types.SimpleNamespace(by=2)),
    "parsed arguments": (lambda: argparse.Namespace(by=1), lambda: argparse.Namespace(by=2)),
    "pattern": (lambda: re.compile("a.*"), lambda: re.compile("b.*")),
    "bytearray": (lambda: bytearray(b"a"), lambda: bytearray(b"b")),
    "Fraction": (lambda: Fraction(1, 3), lambda: Fraction(2, 3)),
    "objects that hold one another": (lambda: peers(40, "a"), lambda: peers(40, "b")),
    "bound method": (lambda: Scale(1).of, lambda: Scale(2).of),
    "in a module in it": (lambda: Holds(jnp.float32), lambda: Holds(jnp.bfloat16)),
    "in a list of modules": (lambda: nnx.List([Holds([1])]), lambda: nnx.List([Holds([2])])),
    "in a dict of modules": (lambda: nnx.Dict(a=Holds([1])), lambda: nnx.Dict(a=Holds([2]))),
    "in a library's module": (lambda: nnx.Sequential(Holds([1])), lambda: nnx.Sequential(Holds([2]))),
    "dtype of a library's module": (
        lambda: nnx.Linear(1, 1, dtype=jnp.float32, rngs=nnx.Rngs(0)),
        lambda: nnx.Linear(1, 1, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)),
    ),
}


def pipeline(stage: Any) -> Pipeline:
    source = RandomAccessSource(RandomAccessSourceConfig(), np.arange(6.0))
    return Pipeline(source=source, batch_size=2, rngs=nnx.Rngs(0), stages=[stage])


def settings(stage: Any) -> Any:
    return pipeline(stage).get_state()["settings"]["stages"]


@pytest.mark.parametrize("kind", CHANGES)
def test_another_value_of_a_stages_attribute_is_refused_unless_it_is_meant(kind: str) -> None:
    old, new = CHANGES[kind]
    state = json.loads(json.dumps(pipeline(Holds(old())).get_state()))
    pipeline(Holds(old())).set_state(state)
    changed = pipeline(Holds(new()))
    with pytest.raises(DriftError, match="allow_drift=\\('stages',\\)"):
        changed.set_state(state)
    changed.set_state(state, allow_drift=["stages"])


def test_a_state_of_a_release_that_said_nothing_of_them_loads() -> None:
    state = pipeline(Holds(jnp.float32)).get_state()
    del state["settings"]["stages"]["attributes"], state["settings"]["stages"]["held"]
    pipeline(Holds(jnp.bfloat16)).set_state(state)
    with pytest.raises(DriftError, match=r"stages\.names"):
        pipeline(Cyclic()).set_state(state)


class Remembering(nnx.Module):
    """Fills a cache when it is called."""

    def __init__(self, scale: int = 2) -> None:
        self.scale = scale
        self.cache: Any = nnx.static({})

    def __call__(self, batch: Any) -> Any:
        self.cache[str(batch.shape)] = len(self.cache)
        return self.scale * batch


class PlainRemembering:
    def __init__(self, scale: int = 2) -> None:
        self.scale = scale
        self.cache: dict[str, int] = {}

    def __call__(self, batch: Any) -> Any:
        self.cache[str(batch.shape)] = len(self.cache)
        return self.scale * batch


class Saying(Remembering):
    def fingerprint(self) -> str:
        return str(self.scale)


class PlainSaying(PlainRemembering):
    def fingerprint(self) -> str:
        return str(self.scale)


@pytest.mark.parametrize("kind", [Remembering, PlainRemembering])
def test_a_cache_that_a_stage_filled_is_refused_by_its_name_with_the_remedy(kind: Any) -> None:
    stage = kind()
    old = pipeline(stage)
    old.step()
    state = json.loads(json.dumps(old.get_state()))
    new = pipeline(stage)
    with pytest.raises(DriftError) as raised:
        new.set_state(state)
    lines = str(raised.value).splitlines()
    held = f"  stages.held.0 {kind.__name__}"
    assert [line.split(":")[0] for line in lines if "held" in line] == [f"{held}.cache"]
    assert "a method fingerprint() -> str" in lines[-1]
    new.set_state(state, allow_drift=("stages",))
    pipeline(kind()).set_state(state)  # the remedy for one that is made anew
    with pytest.raises(DriftError, match=rf"{held}\.scale"):
        pipeline(kind(3)).set_state(state)
    del state["settings"]["stages"]["held"]
    pipeline(kind()).set_state(state)


@pytest.mark.parametrize("kind", [Saying, PlainSaying])
def test_a_stage_that_says_its_fingerprint_may_fill_a_cache(kind: Any) -> None:
    stage = kind()
    old = pipeline(stage)
    old.step()
    pipeline(stage).set_state(old.get_state())
    with pytest.raises(DriftError, match="stages"):
        pipeline(kind(3)).set_state(old.get_state())


def test_the_names_of_what_is_held_are_few() -> None:
    state = pipeline(Wide()).get_state()
    assert len(json.dumps(state)) < 4096
    assert len(state["settings"]["stages"]["held"]) == 16


class Wide:
    def __init__(self) -> None:
        for number in range(100):
            setattr(self, f"a{number:03}" * 20, number)

    def __call__(self, batch: Any) -> Any:
        return batch


def doubling(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def around(batch: Any) -> Any:
        return 2 * function(batch)

    return around


def trebling(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def around(batch: Any) -> Any:
        return 3 * function(batch)

    return around


def test_another_decorator_is_refused_where_a_state_says_what_it_had() -> None:
    state = json.loads(json.dumps(pipeline(doubling(double)).get_state()))
    pipeline(doubling(double)).set_state(state)
    with pytest.raises(DriftError, match=r"stages\.wrappers: .*Restore the old code"):
        pipeline(trebling(double)).set_state(state)
    del state["settings"]["stages"]["wrappers"]
    with pytest.raises(DriftError, match=r"stages\.wrappers: the checkpoint was written with None"):
        pipeline(trebling(double)).set_state(state)
    del state["settings"]["stages"]["told"]
    pipeline(trebling(double)).set_state(state)  # of a release that did not see it


def test_trained_variables_and_attributes_of_a_librarys_module_count_as_little_as_before() -> None:
    def stage(value: float) -> Any:
        linear = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
        linear.kernel[...] = jnp.full((1, 1), value)
        return Holds(nnx.List([linear, nnx.Param(jnp.full(2, value))]))

    assert settings(stage(1)) == settings(stage(2))


def test_stages_that_hold_themselves_have_a_fingerprint() -> None:
    assert settings(Cyclic()) == settings(Cyclic())


def test_in_another_process_the_same_stages_have_the_same_settings() -> None:
    """Whatever the addresses and the order of sets there."""
    root = Path(__file__).parents[2]
    program = (
        "import json; from tests.pipeline.test_stage_settings import CHANGES, Cyclic, Holds, settings\n"
        "made = {kind: settings(Holds(old())) for kind, (old, _) in CHANGES.items()}\n"
        "print(json.dumps(made | {'itself': settings(Cyclic())}))"
    )
    want = {kind: settings(Holds(old())) for kind, (old, _) in CHANGES.items()} | {"itself": settings(Cyclic())}
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    out = subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, capture_output=True, check=True)
    assert json.loads(out.stdout.splitlines()[-1]) == want


def made_by(add: int) -> Any:
    def transform(element: Any) -> Any:
        return {"x": element["x"] + add}

    return transform


def as_it_is(element: Any) -> Any:
    return element


def test_drift_names_the_transform_and_the_component_that_changed() -> None:
    def source(*transforms: Any, size: int = 8) -> RandomAccessSource:
        return RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(size)}, transforms=transforms)

    def refusal(before: Any, after: Any) -> str:
        state = Pipeline(source=before, batch_size=4).get_state()
        with pytest.raises(DriftError) as caught:
            Pipeline(source=after, batch_size=4).set_state(state)
        return str(caught.value)

    said = refusal(source(as_it_is, made_by(1)), source(as_it_is, made_by(2)))
    assert (
        "transforms.digest: number 1 (made_by.<locals>.transform): the checkpoint was written with other code" in said
    )
    assert "number 0 (made_by.<locals>.transform)" in refusal(source(made_by(1)), source(made_by(2)))
    said = refusal(source(as_it_is, made_by(1)), source(as_it_is))
    assert "transforms.names: the checkpoint was written with ['as_it_is', 'made_by.<locals>.transform']" in said
    assert "digest" not in said

    def mixed(*components: Any) -> MixtureSource:
        return MixtureSource(list(components), weights=[1] * len(components))

    said = refusal(mixed(source(), source(made_by(1))), mixed(source(), source(made_by(2))))
    assert "components.1.transforms.digest: number 0 (made_by.<locals>.transform)" in said
    said = refusal(mixed(*[source()] * 5, source(made_by(1))), mixed(*[source()] * 5, source(made_by(2))))
    assert [line.split(":")[0].strip() for line in said.splitlines()[1:]] == ["components.5"]

    other = RandomAccessSource(RandomAccessSourceConfig(), {"y": np.arange(8)})
    with pytest.raises(ValueError, match="make every element alike") as caught:
        Pipeline(source=mixed(source(), other), batch_size=4).step()
    assert re.fullmatch(r"so far component \d of the mixture, then component \d", caught.value.__notes__[0])


class Weighted(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.rngs, self.by, self.weight = rngs, 2, nnx.Param(jnp.ones(()))

    def __call__(self, batch: Any) -> Any:
        return jax.tree.map(lambda x: x * self.by * self.weight[...], batch)


weigh = Weighted(nnx.Rngs(0))


def weighed(batch: Any) -> Any:
    return weigh(batch)


def test_a_module_that_a_stage_calls_by_name_counts_as_a_stage_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings(weighed)
    weigh.weight[...] = jnp.full((), 3.0)
    assert settings(weighed) == before
    monkeypatch.setattr(weigh, "by", 3)
    assert settings(weighed) != before
