"""What a type checker knows of the public names: mypy reads this, and tells of an ignore that hides nothing."""

from typing import Any, assert_type

from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, Batch, Pipeline, RaySource, load
from datarax_ray.sources.base.indexed import IndexedSourceModule
from datarax_ray.sources.base.stream import StreamSourceModule


def never_run() -> None:
    source = ArrayRecordSourceModule(ArrayRecordSourceConfig(num_epochs=1), "x")
    Pipeline(source=RaySource(source, num_actors=2), batchsize=8)  # type: ignore[call-arg]
    ArrayRecordSourceModule({"num_epochs": 1}, "x")  # type: ignore[arg-type]
    assert_type(next(iter(Pipeline(source=source, batch_size=8))), Batch)
    loaded = load("x")
    assert_type(loaded, IndexedSourceModule | StreamSourceModule[Any])
    assert_type(len(loaded), int)
    loaded[0]
    assert_type(load("x", num_actors=2), RaySource)
    some: int | None = int(input()) or None
    assert_type(load("x", num_actors=some), IndexedSourceModule | StreamSourceModule[Any] | RaySource)
