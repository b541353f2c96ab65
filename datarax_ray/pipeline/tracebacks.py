"""Tracebacks that lead from the line that asks for a batch to the user's own that failed, not through this package."""

from __future__ import annotations

import jax

from datarax_ray.read.errors import RecordError, users_traceback


def begin_at_users_line(error: Exception) -> None:
    """Cut off the frames of this package and JAX that lead to a user's, as to those of a stage.

    Of a RecordError all are cut off: a note has the traceback of the transform. Of an error that no user's line led to
    none, and none where JAX cuts off none of its own (JAX_TRACEBACK_FILTERING=off).
    """
    begin = users_traceback(error)
    is_cut = getattr(jax.config, "jax_traceback_filtering", None) != "off"
    if is_cut and (begin is not None or isinstance(error, RecordError)):
        error.__traceback__ = begin
