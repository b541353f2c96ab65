"""The driver's side next to the trainer: batches onto the device, stages, position, checkpoint."""

from datarax_ray.pipeline.pipeline import Pipeline

__all__ = ["Pipeline"]
