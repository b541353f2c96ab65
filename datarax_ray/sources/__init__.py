"""The in-process sources, as Flax NNX modules with datarax's names and signatures: faces over plan, read and feed."""

from datarax_ray.sources.array_record_source import ArrayRecordSourceConfig, ArrayRecordSourceModule

__all__ = ["ArrayRecordSourceConfig", "ArrayRecordSourceModule"]
