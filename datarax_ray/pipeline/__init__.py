"""The driver's side next to the trainer: batches onto the device, stages, position, checkpoint."""

from datarax_ray.pipeline.pipeline import Pipeline
from datarax_ray.pipeline.prefetch import prefetch_to_device

__all__ = ["Pipeline", "prefetch_to_device"]
