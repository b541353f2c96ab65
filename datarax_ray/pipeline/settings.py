"""JAX's settings that hold in one thread: `with jax.enable_x64(True):` around a loop must reach the thread that works
ahead for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import jax

# Those that decide what a transfer or a stage gives; each is jax.NAME as a context manager, jax.config.jax_NAME as a
# value. A release that has not all of them has no such context to lose.
_NAMES = tuple(
    name
    for name in (
        "enable_x64",
        "default_device",
        "default_matmul_precision",
        "default_prng_impl",
        "numpy_dtype_promotion",
        "numpy_rank_promotion",
        "debug_nans",
        "debug_infs",
    )
    if hasattr(jax, name)
)


@dataclass(frozen=True)
class JaxSettings:
    """The settings of one thread at one time, equal where the same work would give the same."""

    values: tuple[Any, ...]

    @classmethod
    def of_this_thread(cls) -> Self:
        return cls(tuple(getattr(jax.config, f"jax_{name}") for name in _NAMES))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """These settings, in the thread that asks, for a while. Nothing of it may be left open over a yield."""
        with contextlib.ExitStack() as stack:
            for name, here, value in zip(_NAMES, self.of_this_thread().values, self.values, strict=True):
                if here != value:
                    stack.enter_context(getattr(jax, name)(value))
            yield
