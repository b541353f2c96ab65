"""Saving and restoring a Pipeline with Orbax."""

from datarax_ray.pipeline.checkpoint import PipelineRestore, PipelineSave, restore_pipeline, save_pipeline

__all__ = ["PipelineRestore", "PipelineSave", "restore_pipeline", "save_pipeline"]
