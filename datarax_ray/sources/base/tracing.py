"""NNX modules that run on the host: under JAX's traces, and where NNX copies their graph."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from flax.nnx.tracers import current_jax_trace  # it stands elsewhere in every other release of JAX

from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.read.closing import Uncopied

# Of a thread that has just begun: this module may be imported under a trace.
with ThreadPoolExecutor(1) as _executor:
    _OUTSIDE = _executor.submit(current_jax_trace).result()


def is_traced() -> bool:
    """Whether JAX traces the caller: the host's work is then done once, and not when the program runs."""
    return bool(current_jax_trace() != _OUTSIDE)


class _SignatureOfInit:
    """The arguments of a class, for help(), notebooks and editors: NNX's metaclass answers (*args, **kwargs)."""

    def __get__(self, instance: Any, owner: type[Any]) -> inspect.Signature:
        if instance is not None:  # a call of an instance has other arguments
            raise AttributeError("__signature__")
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class HostModule(NamedArguments, Uncopied):
    """The base, before nnx.Module, of a module that holds files, threads and a position.

    NNX takes modules apart and puts them together again at the border of nnx.jit, where the parts are of the same
    module; to do so elsewhere, as nnx.clone and nnx.merge do, makes another one, and is refused.
    """

    __signature__ = _SignatureOfInit()

    def __str__(self) -> str:
        return repr(self)  # print() of an NNX module shows all of its variables, in dozens of lines

    @classmethod
    def _graph_node_create_empty(cls, node_type: Any) -> Any:
        if not is_traced() and not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            raise node_type._refusal("made by nnx.clone or nnx.merge")
        return object.__new__(node_type)
