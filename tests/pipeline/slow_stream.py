"""A stream whose elements take long: every chunk is being read when something happens.

SLOW_STREAM names a file: once it is there, elements take so long that who waits for a chunk waits for minutes.
Imports no jax: what it does runs in actors.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tests.data import decode


def slowly(stored: bytes) -> dict[str, Any]:
    if "SLOW_STREAM" in os.environ:  # not where the same stream is only compared
        time.sleep(2.0 if os.path.exists(os.environ["SLOW_STREAM"]) else 0.1)
    return {"index": decode(stored)["index"]}


def make(paths: Any) -> Any:
    from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule

    return ArrayRecordSourceModule(ArrayRecordSourceConfig(shuffle_files=True), paths, transforms=[slowly])
