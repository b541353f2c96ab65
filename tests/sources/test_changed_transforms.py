"""What decides the elements, set anew once a source is made: its state says what it was, so it is an error."""

from __future__ import annotations

import argparse
import collections
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic
import pytest

from datarax_ray import MixtureSource, RandomAccessSource, RandomAccessSourceConfig, RaySource

SCALE = 2
TABLE = {"scale": 2}
COUNTS = {"calls": 0}


def scale_of(held: Any) -> int:
    while not hasattr(held, "scale"):
        held = held["each"] if isinstance(held, dict) else held.by if isinstance(held, Times) else held[0]
    return int(held.scale)


class Times:
    def __init__(self, by: Any) -> None:
        self.by = by
        self.last: Any = None

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        self.last = element  # its own doing
        return {"id": element["id"] * (self.by if isinstance(self.by, int) else scale_of(self.by))}


class Tells:
    """Says itself what decides its elements."""

    def __init__(self) -> None:
        self.note = 0

    def fingerprint(self) -> str:
        return "tells"

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return element


class Base:
    def __init__(self) -> None:
        self.loaded: Any = None

    def load(self) -> None:
        self.loaded = 1


class Lazy(Base):
    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        self.load()
        return element


class Private:
    def __init__(self) -> None:
        self.__loaded = False

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        self.__loaded = not self.__loaded or True
        return element


def fill(owner: Any) -> None:
    owner.filled = True


class Later:
    filled = False

    def __init__(self) -> None:
        self.filled = False

    @property
    def there(self) -> bool:
        return self.filled

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        fill(self)
        return element


class Named:
    def __init__(self) -> None:
        self.named = 0

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        setattr(self, "na" + "med", 1)
        return element


class Settings(dict):  # type: ignore[type-arg]
    """Holds itself, and has another error than others for names that it has not."""

    __getattr__ = dict.__getitem__


class Held:
    def __init__(self) -> None:
        self.settings = Settings(by=1)
        self.settings["me"] = [self.settings]

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return element


def typed() -> Any:
    """A transform of a prompt: there is no text of it."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(
        """
class Typed:
    def __init__(self):
        self.loaded = None
    def map(self, element):
        self.loaded = 1
        return element
""",
        names,
    )
    return names["Typed"]()


def by_scale(element: dict[str, Any]) -> dict[str, Any]:
    return {"id": element["id"] * SCALE}


def doubled(x: Any) -> Any:
    return x * 2


def tripled(x: Any) -> Any:
    return x * 3


@dataclass(slots=True)
class Slotted:
    scale: int = 2


class Configured:
    """Its own code writes to one attribute, and the program to another by a method, and by a property."""

    def __init__(self) -> None:
        self.scale, self._shift, self.last = 2, 0, 0

    def set_scale(self, scale: int) -> None:
        self.scale = scale

    @property
    def shift(self) -> int:
        return self._shift

    @shift.setter
    def shift(self, shift: int) -> None:
        self._shift = shift

    def remember(self, index: int) -> int:
        self.last = index
        return index

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return {"id": self.remember(element["id"]) * self.scale + self.shift}


class Handed:
    """Whose methods a library may call."""

    def __init__(self) -> None:
        self.size = 0

    def grow(self) -> None:
        self.size += 1


class Defaults:
    scale = 2
    num_made = 0

    def __init__(self) -> None:
        Defaults.num_made += 1


class Model(pydantic.BaseModel):
    scale: int = 2


class Adds:
    def __init__(self, x: Any) -> None:
        self.sum = x + 1


def by_helpers(element: dict[str, Any]) -> dict[str, Any]:
    return {"id": Adds(doubled(element["id"])).sum}


def by_table(element: dict[str, Any]) -> dict[str, Any]:
    return {"id": element["id"] * TABLE["scale"]}


def counted(element: dict[str, Any]) -> dict[str, Any]:
    COUNTS["calls"] += 1
    return element


def times(by: int, element: dict[str, Any]) -> dict[str, Any]:
    return {"id": element["id"] * by}


def source(*transforms: Any) -> RandomAccessSource:
    return RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), {"id": np.arange(40)}, transforms=transforms)


def mixture(*transforms: Any) -> MixtureSource:
    return MixtureSource([source(*transforms), source()])


@pytest.mark.parametrize("make", [source, mixture])
def test_an_attribute_is_told_at_the_first_batch(make: Callable[..., Any]) -> None:
    changed = Times(2)
    stream = make(changed)
    changed.by = 3
    with pytest.raises(ValueError, match="by of a Times was 2 when the source was made, .* it is 3 now"):
        stream.get_batch(4)
    changed.by = 2
    assert len(stream.get_batch(4)["id"]) == 4


@pytest.mark.parametrize("make", [Slotted, Defaults, Model, argparse.Namespace, types.SimpleNamespace])
@pytest.mark.parametrize("around", [lambda each: each, lambda each: [{"each": (each,)}], lambda each: Times(each)])
def test_so_is_one_of_what_holds_settings(make: Callable[..., Any], around: Callable[[Any], Any]) -> None:
    settings = make() if hasattr(make, "scale") else make(scale=2)
    streams = [source(Times(around(settings)), by_scale) for _ in range(2)]
    make(scale=3) if make is not Defaults else Defaults()  # another's settings, or count, are none of its own
    assert len(streams[0].get_batch(4)) == 1
    settings.scale = 3
    with pytest.raises(ValueError, match=rf"scale of a {make.__name__} was 2 when the source was made, .* it is 3 now"):
        streams[1].get_batch(4)


@pytest.mark.parametrize("change", [lambda each: each.set_scale(3), lambda each: setattr(each, "shift", 3)])
def test_so_is_what_a_method_sets_that_no_element_is_made_by(change: Callable[[Any], None]) -> None:
    changed = Configured()
    streams = [source(changed) for _ in range(2)]
    streams[0].get_batch(4)
    change(changed)
    with pytest.raises(ValueError, match="(scale|_shift) of a Configured was"):
        streams[1].get_batch(4)


def test_what_a_library_may_call_or_read_is_told_alone(caplog: pytest.LogCaptureFixture) -> None:
    handed = Handed()
    stream = source(lambda element: (handed, element)[1])
    handed.grow()
    stream.get_batch(4)
    (said,) = [each for each in caplog.messages if "when the source was made" in each]
    assert said.startswith("size of a Handed was 0")


class Trainer:
    """The program itself, of which one method is a transform."""

    def __init__(self) -> None:
        self.by, self.best = 2, None

    def preprocess(self, element: dict[str, Any]) -> dict[str, Any]:
        return {"id": element["id"] * self.by}


def test_what_is_set_where_an_object_is_made_alone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer()
    stream = source(trainer.preprocess)
    trainer.best = 0.5
    stream.get_batch(4)
    (said,) = [each for each in caplog.messages if "when the source was made" in each]
    assert said.startswith("best of a Trainer was None")  # a library may read it


def test_what_no_code_reads_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    args = argparse.Namespace(scale=2, out="runs")
    stream = source(lambda element: (args, element)[1])
    args.out = "runs/7"
    stream.get_batch(4)
    assert not [each for each in caplog.messages if "when the source was made" in each]


class Hooked:
    """Whose elements are made by what it holds; and it counts them."""

    def __init__(self) -> None:
        self.hooks, self.hook, self.count, self.kinds = [Frozen(2)], None, 0, collections.deque([2])

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        self.count = self.count + 1
        by = self.hooks[-1].scale * self.kinds[0] * getattr(self, "by", 1)
        return {"id": (self.hook or int)(element["id"]) * by}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda each: each.hooks.__setitem__(0, Frozen(3)), "hooks"),
        (lambda each: each.hooks.append(Frozen(3)), "hooks"),
        (lambda each: setattr(each, "hook", abs), "hook"),
        (lambda each: setattr(each, "by", 3), "by"),
        (lambda each: each.kinds.append(3), "kinds"),
    ],
)
def test_whatever_else_is_set_anew_is_told(
    change: Callable[[Any], None], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    hooked = Hooked()
    stream = source(hooked)
    hooked.map({"id": 1})  # it counts, as it would by itself
    change(hooked)
    stream.get_batch(4)
    assert [each.split(" is ")[0] for each in caplog.messages if "when the source was made" in each] == [
        f"Hooked.{name}"
    ]


def test_what_another_stream_may_have_changed_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """Train and evaluation share a transform: what it holds of a library's may fill a cache."""
    hooked = Hooked()
    streams = [source(hooked), source(hooked)]
    streams[0].get_batch(4)
    hooked.kinds.append(1)
    streams[1].get_batch(4)
    assert "when the source was made" not in caplog.text


@pytest.mark.parametrize("read", [lambda each: each.element_spec(), lambda each: each[0]])
def test_nor_is_what_a_single_read_may_have_filled(
    read: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    hooked = Hooked()
    stream = source(hooked)
    read(stream)
    hooked.kinds.append(1)  # as a cache of a library's does
    stream.get_batch(4)
    assert "when the source was made" not in caplog.text


class Program:
    """Of which a transform holds all, with the source that is made of it."""

    def __init__(self) -> None:
        self.by = 2
        self.source = source(Holds(self))
        self.best = 0


@dataclass
class Holds:
    program: Any

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return {"id": element["id"] * self.program.by}


def test_of_a_program_and_its_arguments_nothing_else_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Program().source.get_batch(4)
    stream = source(Holds(args := types.SimpleNamespace(by=2)))
    args.total_steps = 100
    stream.get_batch(4)
    assert "when the source was made" not in caplog.text


class Lookup:
    def __init__(self, around: Callable[[Any], Any]) -> None:
        self.held = source()
        self.tables = around(self.held)

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return element


@pytest.mark.parametrize("around", [lambda each: each, lambda each: [[[[[each]]]]]])
def test_a_source_that_a_transform_holds_is_the_same_whatever_has_begun(around: Callable[[Any], Any]) -> None:
    lookup = Lookup(around)
    first = source(lookup).get_state()
    source().get_batch(4)
    lookup.held.get_batch_at(3, 1)
    for each in (lookup, Lookup(around)):
        again = source(each)
        again.set_state(first)
        assert again.get_state() == first


def replaced(each: Any) -> None:
    each.by = Frozen(3)


def put(each: Any) -> None:
    each.function = tripled


@dataclass(frozen=True)
class Frozen:
    scale: int


@pytest.mark.parametrize(("change", "name"), [(replaced, "by"), (put, "function")])
def test_so_is_another_object_or_function_in_the_place_of_one(change: Callable[[Any], None], name: str) -> None:
    class Replaced:
        def __init__(self) -> None:
            self.by: Any = Frozen(2)
            self.function: Any = doubled
            self.lazy: Any = Frozen(2)

        def map(self, element: dict[str, Any]) -> dict[str, Any]:
            self.lazy = Frozen(int(element["id"]))
            return {"id": self.function(element["id"]) * self.by.scale}

    held = Replaced()
    streams = [source(held) for _ in range(3)]
    streams[0].get_batch(4)
    held.by, held.function = Frozen(2), types.FunctionType(doubled.__code__, globals())
    assert streams[1].get_batch(4)["id"].tolist() == [0, 4, 8, 12], "which are as those before"
    change(held)
    with pytest.raises(ValueError, match=rf"{name} of a \S*Replaced was another .* when the source"):
        streams[2].get_batch(4)


def _go(self: Any, x: Any) -> Any:
    return x * 3


@pytest.mark.parametrize("how", ["set", "static", "property", "code", "base"])
def test_so_is_a_method_that_is_set_on_a_class(how: str) -> None:
    class Under:
        @property
        def size(self) -> int:
            return 2

        def under(self, x: Any) -> Any:
            return x

    class Goes(Under):
        def go(self, x: Any) -> Any:
            return x * self.size

        def map(self, element: dict[str, Any]) -> dict[str, Any]:
            return {"id": self.under(self.go(element["id"]))}

    streams = [source(Goes()) for _ in range(2)]
    assert streams[0].get_batch(4)["id"].tolist() == [0, 2, 4, 6]
    changes: dict[str, tuple[type, str, Any]] = {
        "set": (Goes, "go", _go),
        "static": (Goes, "go", staticmethod(tripled)),
        "property": (Under, "size", property(lambda self: 3)),
        "base": (Under, "under", _go),
    }
    if how == "code":
        Goes.go.__code__ = _go.__code__
    else:
        setattr(*changes[how])
    with pytest.raises(ValueError, match=r"(go|size|under) of a \S*(Goes|Under) was another"):
        streams[1].get_batch(4)


def test_it_is_told_by_who_sends_it_to_actors() -> None:
    changed = Times(2)
    stream = source(changed)
    changed.by = 3
    with pytest.raises(ValueError, match="by of a Times"):
        RaySource(stream, num_actors=1)


def test_so_is_what_functions_read_and_hold(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    stream, tabled = source(by_scale), source(by_table)
    monkeypatch.setattr(f"{__name__}.SCALE", 3)
    monkeypatch.setitem(TABLE, "scale", 3)
    with pytest.raises(ValueError, match=r"test_changed_transforms\.SCALE was 2"):
        stream.get_batch(4)
    tabled.get_batch(4)  # the code might have filled it
    assert "test_changed_transforms.TABLE was {'scale': 2}" in caplog.text


@pytest.mark.parametrize("name", ["doubled", "Adds"])
@pytest.mark.parametrize("other", [tripled, Times, functools.partial(tripled)])
def test_so_is_a_function_or_class_that_is_called(monkeypatch: pytest.MonkeyPatch, name: str, other: Any) -> None:
    stream = source(by_helpers)
    monkeypatch.setattr(f"{__name__}.{name}", other)
    with pytest.raises(
        ValueError, match=rf"test_changed_transforms\.{name} was code of digest \w+ when the source was"
    ):
        stream.get_batch(4)


def test_the_same_code_is_no_other(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As of a notebook's cell that is run again, and of a module that is loaded again."""
    streams = [source(by_helpers) for _ in range(3)]
    again = types.FunctionType(doubled.__code__, globals())
    for stream, each in zip(streams, (again, functools.cache(again), doubled), strict=True):
        monkeypatch.setattr(f"{__name__}.doubled", each)
        assert stream.get_batch(3)["id"].tolist() == [1, 3, 5]
    assert not caplog.messages


def test_so_is_what_a_bound_method_and_a_partial_hold() -> None:
    one, other = Times(2), Times(2)
    streams = [source(functools.partial(times, 2), one.map), source(functools.partial(other.map))]
    one.by = other.by = 3
    for stream in streams:
        with pytest.raises(ValueError, match="by of a Times was 2"):
            stream.get_batch(4)


def test_what_the_code_does_itself_or_answers_for_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    tells = Tells()
    transforms = [Times(2), counted, tells, Lazy(), Private(), Later(), Named(), Held(), typed()]
    streams = [source(*transforms) for _ in range(2)]
    tells.note = 1
    for stream in streams:  # what the first did is there when the second begins
        for _ in range(3):
            stream.get_batch(4)
            stream.get_state()
    said = [each for each in caplog.messages if "when the source was made" in each]
    assert [each.partition(" was ")[0] for each in said] == ["named of a Named"], "which may be anything's doing"
