"""What every source is. Source: datarax.core.module."""

from datarax_ray.sources.base.module import SourceModule

DataraxModule = SourceModule

__all__ = ["DataraxModule"]
