"""Your data: the records to train on and to evaluate with, and the stages on the device. Edit this file.

`datarax-ray cluster init DIR DATA` writes this file for your data. Its functions travel to the actors by value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from datarax_ray import DecodeFields, load

# Images of 8 x 8 pixels in ArrayRecord files, which --data of job.py names.
TRAIN: dict[str, Any] = {}
EVALUATION: dict[str, Any] | None = None
NUM_CLASSES = 10  # more than the largest label, or token
TRANSFORMS: list[Any] = [DecodeFields({"image": ("uint8", (8, 8)), "label": ("uint8", ())})]
PACKING: Any = None


def make_source(data: Sequence[str] | None, seed: int, num_epochs: int) -> Any:
    """The source to train on. data: --data of job.py, in place of TRAIN. num_epochs: -1 for endless."""
    given = TRAIN if data is None else {"paths": data}
    return load(**given, shuffle=True, seed=seed, num_epochs=num_epochs, transforms=TRANSFORMS)


def make_evaluation() -> Any:
    """One pass over the evaluation data; None for no evaluation. The actors of the training read it too."""
    return None if EVALUATION is None else load(**EVALUATION, transforms=TRANSFORMS)


def stages() -> list[Callable[[Any], Any]]:
    """The stages on the device, batch -> batch: functions or NNX modules."""
    return []
