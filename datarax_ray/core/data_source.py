"""What every source is. Source: datarax.core.data_source."""

from datarax_ray.sources.base.module import SourceModule

DataSourceModule = SourceModule

__all__ = ["DataSourceModule"]
