"""Settings of libraries that the program makes and that change what transforms give: other processes have them too.

JAX's travel as the environment that it reads when it is imported, which nothing here does. Other libraries' settings do
not travel.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from datarax_ray.plan.fingerprint import shown

# As a process has them that sets nothing: JAX's by their names in jax.config, others by module and attribute.
_DEFAULTS: dict[str, Any] = {
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "PIL.Image.MAX_IMAGE_PIXELS": 2**30 // 4 // 3,
    "PIL.ImageFile.LOAD_TRUNCATED_IMAGES": False,
}
_TRUE = ("y", "yes", "t", "true", "on", "1")  # in JAX's environment


def library_settings() -> dict[str, Any]:
    """Those that are not the defaults; of JAX, where that is not imported yet, as it will have them.

    What a `with jax.enable_x64():` sets holds in its own thread, which runs no transform; so another one looks.
    """
    with ThreadPoolExecutor(1) as thread:
        found = zip(_DEFAULTS, thread.map(_here, _DEFAULTS), strict=True)
    return {name: here for name, here in found if here != _DEFAULTS[name]}


def changed_settings(was: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Those that are others now: the name, and how it looked and looks."""
    before, now = _DEFAULTS | {**was}, _DEFAULTS | library_settings()
    return ((name, shown(before[name]), shown(now[name])) for name in now if now[name] != before[name])


def set_library_settings(settings: Mapping[str, Any]) -> None:
    """Set them in this process, and of JAX the others as they are by default, whatever the environment says here; those
    of a library that it does not have, it cannot use either.
    """
    for name, default in _DEFAULTS.items():
        module, _, attribute = name.rpartition(".")
        value = settings.get(name, default)
        if module:
            with contextlib.suppress(ImportError):
                if name in settings:
                    setattr(importlib.import_module(module), attribute, value)
            continue
        os.environ.pop(name.upper(), None)
        if value != default:
            os.environ[name.upper()] = str(value)
        if (jax := sys.modules.get("jax")) is not None and _here(name) != value:  # a task ran in this process before
            jax.config.update(name, value)


def _here(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    default = _DEFAULTS[name]
    if module:
        return getattr(sys.modules.get(module), attribute, default)
    if (jax := sys.modules.get("jax")) is not None:
        value = getattr(getattr(jax, "config", None), name, default)
        return value if isinstance(value, int | None) else str(value)  # of an enum, which is JAX's
    text = os.environ.get(name.upper())
    if text is None:
        return default
    if isinstance(default, bool):
        return text.lower() in _TRUE
    return int(text) if isinstance(default, int) and text.isdecimal() else text
