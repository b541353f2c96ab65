"""The configs that every source's is derived from. Source: datarax.core.config."""

from dataclasses import FrozenInstanceError

from datarax_ray.sources.base.config import SourceConfig

# datarax's two differ in what only operators lack; sources have all of it.
DataraxModuleConfig = SourceConfig
StructuralConfig = SourceConfig

__all__ = ["DataraxModuleConfig", "FrozenInstanceError", "StructuralConfig"]
