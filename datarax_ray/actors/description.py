"""How a description travels to the actors: in every request where it is small, else as one object by reference."""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import ray
from ray.exceptions import ObjectLostError, RaySystemError

from datarax_ray.read.files.mapped_arrays import MappedArray
from datarax_ray.read.stream import Stream, transforms_of

# In every request, which has some KB of its own: less than 1 % of the cost of sending a block.
_MAX_INLINE_NBYTES = 16 * 2**10
# Up to here every actor has a description of its own, so that transforms may write to the arrays that they hold, as in
# one process; the arrays of a larger one are shared by the actors of a node, who can only read them.
_MAX_OWN_NBYTES = 16 * 2**20

# A pickled description, or a reference to one or to the description itself.
Boxed: TypeAlias = "ray.ObjectRef | bytes"


class DescriptionLostError(RuntimeError):
    """The description of the stream did not reach this actor; never raised by the user's code."""


def boxed(description: Stream) -> Boxed:
    """The description as requests carry it: inline if small, for a new actor may look long for a lost object."""
    try:
        found, is_own = _pickled(description)
        if len(found) <= _MAX_INLINE_NBYTES:
            return found
        return ray.put(found if is_own or len(found) <= _MAX_OWN_NBYTES else description)
    except (TypeError, AttributeError, RecursionError, pickle.PicklingError) as error:
        named = "".join(f" It is in transform {name}, or in a value of it." for name in _unpicklable(description))
        error.add_note(
            "The source and its transforms travel to the actors by pickle. Open files, locks and connections cannot: "
            f"make them at their first use, in the transform's call.{named}"
        )
        raise


def shareable(value: Any) -> ray.ObjectRef:
    """The value in the object store, or its pickled bytes where only these have all of it; see _pickled."""
    found, is_own = _pickled(value)
    return ray.put(found if is_own else value)


def _unpicklable(description: Stream) -> Iterator[str]:
    """The names of transforms that do not pickle."""
    for transform in transforms_of(description):
        try:
            _pickled(transform)
        except Exception:
            yield getattr(transform, "__qualname__", type(transform).__qualname__)


def unboxed(box: Boxed) -> Any:
    """The description. Raises: DescriptionLostError; what unpickling raises, with what to do."""
    found: Any = None
    try:
        found = _brought(box)
        return pickle.loads(found) if isinstance(found, bytes) else found
    except (ModuleNotFoundError, AttributeError) as error:  # or another module of that name
        error.add_note(
            "The program imports it, and the actors do not find it: install it on all nodes, or send it with "
            "ray.init(runtime_env={'working_dir': '...'}) or py_modules. A relative folder in sys.path is a different "
            "folder on the actors, and a folder of the same name may come first there; use absolute folders, and names "
            "of your own"
        )
        raise
    except DescriptionLostError:
        raise
    except Exception as error:
        error.add_note(
            "A transform, or data that it holds, was pickled in the program and could not be unpickled in an actor. "
            "Make such an object at its first use, in the transform's call, or write __getstate__ and __setstate__ for "
            "its class"
        )
        raise


def _brought(box: Boxed) -> Any:
    """The content of the box: a description, or the bytes of one."""
    try:
        return box if isinstance(box, bytes) else ray.get(box)
    except ObjectLostError as error:
        raise DescriptionLostError(str(error)) from None
    except RaySystemError as error:
        if isinstance(error.client_exc, Exception):  # what unpickling raised
            raise error.client_exc from None
        raise


def pickled(box: Boxed) -> bytes:
    """The description as it came, pickled for a new process here; one that has read may hold open files."""
    found = _brought(box)
    return found if isinstance(found, bytes) else ray.cloudpickle.dumps(found)


def _pickled(value: Any) -> tuple[bytes, bool]:
    """The pickled value, and whether Ray's own pickler would lack some: mapped arrays, functions with a cache."""
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        pickler.dump(value)
        return file.getvalue(), pickler.is_own


def _cached(function: types.FunctionType, parameters: dict[str, Any]) -> Any:
    """The function with a cache of its own, as functools.lru_cache and functools.cache make it."""
    return functools.lru_cache(**parameters)(function)


class _Pickler(ray.cloudpickle.CloudPickler):
    """Ray's pickler, which also pickles functions and properties with a cache by value, where a script defines them,
    and arrays that map files by their place there, wherever an object holds one.

    is_own: whether any were met.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.is_own = False

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and (place := MappedArray.of(value)) is not None:
            self.is_own = True
            return place.mapped, ()
        found = super().reducer_override(value)
        if isinstance(value, functools._lru_cache_wrapper):  # pickle takes its name alone, which actors do not have
            inside = value.__wrapped__
            if isinstance(inside, types.FunctionType) and super().reducer_override(inside) is not NotImplemented:
                self.is_own = True
                return _cached, (inside, value.cache_parameters())
        if type(value) is functools.cached_property:  # with a lock in Python 3.11
            self.is_own = True
            return functools.cached_property, (value.func,), {"attrname": value.attrname}
        return found
