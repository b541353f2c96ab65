"""What every source is. Source: datarax.core.structural."""

from datarax_ray.sources.base.module import SourceModule

StructuralModule = SourceModule

__all__ = ["StructuralModule"]
