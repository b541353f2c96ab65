"""What a type checker knows of the public names: mypy reads this, and tells of an ignore that hides nothing."""

from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, Pipeline, RaySource


def never_run() -> None:
    source = ArrayRecordSourceModule(ArrayRecordSourceConfig(num_epochs=1), "x")
    Pipeline(source=RaySource(source, num_actors=2), batchsize=8)  # type: ignore[call-arg]
    ArrayRecordSourceModule({"num_epochs": 1}, "x")  # type: ignore[arg-type]
