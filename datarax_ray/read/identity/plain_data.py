"""Plain data: what a fingerprint tells by value, and what is as plain as that."""

from __future__ import annotations

import array
import collections
import contextlib
import copyreg
import functools
import gc
import inspect
import io
import itertools
import operator
import os
import re
import socket
import struct
import sys
import types
import zlib
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from time import time as time_now
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np

from datarax_ray.read.identity.users_code import asked, is_users

# A longer table is data, which a fingerprint of code need not read in full: its length counts, and some of it.
_MAX_ITEMS, _MAX_LOOKED_AT, _MAX_SUMMED = 10_000, 1000, 200_000
_SINGLE = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.ndarray, np.generic)
PLAIN = (*_SINGLE, tuple, list, dict, set, frozenset)
_TABLES = (Mapping, tuple, list, set, frozenset)
# As plain as these, of types that fingerprints of earlier releases do not tell; see Used.
SETTINGS = (re.Pattern, Decimal, Fraction, date, time, timedelta, Enum, PurePath)
# Of these, those that say where and when a program runs rather than what it makes.
PLACES = (date, time, PurePath)
# Of what `unsaid` looks at: what cmp_to_key makes, and what the labels of a library's tables are called.
_KEY = type(functools.cmp_to_key(lambda a, b: 0))
_LABELS = {
    "pandas": ("index", "columns", "name", "names", "categories", "ordered"),
    "pyarrow": ("column_names",),
    "polars": ("columns", "name"),
}
_PATTERNS = ("_regex", "regex")  # libraries with patterns of their own
_ARRAYS = (*_LABELS, "torch", "tensorflow")  # those whose arrays lie in memory: h5py's would be read from the file
_CONFIGS = ("omegaconf", "ml_collections", "absl", "configparser")  # libraries of settings, by name
_CONTAINERS = (Mapping, list, tuple, set, frozenset, str, bytes, int, float)


_BEGAN = time_now() - 60.0  # this process, or a little before
# A UUID of version 4: RFC 9562.
_RANDOM_ID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}")


class LongTable(list[Any]):
    """What stands for a long table: its type and length. some: entries spread over one of Python's own, for a digest;
    of a set of text or numbers the sum of what these are; () where looking takes long, or runs code of others.
    """

    def __init__(self, table: Any) -> None:
        super().__init__([type(table).__name__, len(table)])
        self._table = table

    @property
    def some(self) -> Any:
        table, step = self._table, -(-len(self._table) // _MAX_LOOKED_AT)
        if type(table) in (list, tuple):
            return table[::step]
        with contextlib.suppress(RuntimeError):  # another thread adds to it
            if type(table) is dict:
                return [*itertools.islice(table.items(), 0, None, step)]
            is_short = type(table) in (set, frozenset) and len(table) <= _MAX_SUMMED
            if is_short and {str, bytes, int, float}.issuperset(map(type, table)):
                return sum(zlib.crc32(repr(entry).encode()) for entry in table)
        return ()


def shortened(value: Any) -> Any:
    """The value; of a long table what stands for it."""
    is_table = isinstance(value, Mapping | Sequence | Set) and not isinstance(value, str | bytes)
    return LongTable(value) if is_table and len(value) > _MAX_ITEMS else value


def is_of_process(name: str, value: Any) -> bool:
    """Whether a plain value is another one in another process, by what it looks like: a time since this one began, its
    id or host, a random UUID.

    >>> import uuid
    >>> is_of_process("RUN", uuid.uuid4().hex), is_of_process("PID", os.getpid()), is_of_process("SCALE", 2.0)
    (True, True, False)
    """
    if isinstance(value, str):
        return value == socket.gethostname() or _RANDOM_ID.search(value) is not None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    is_time = any(_BEGAN * unit <= value <= time_now() * unit for unit in (1, 1000, 1e9))
    return is_time or (value == os.getpid() and "pid" in name.lower())


def bound_to(value: Any) -> Any:
    """The plain data or pattern that a method of Python's own is bound to, as in `{...}.get`; None for all others."""
    is_method = isinstance(value, types.BuiltinMethodType | types.MethodWrapperType)
    owner = asked(value, "__self__") if is_method else None
    return owner if isinstance(owner, (*PLAIN, re.Pattern)) else None


def is_data(value: Any) -> bool:
    """Whether it is plain data, or as plain as that."""
    return isinstance(value, (*PLAIN, *SETTINGS))


def holds_code(value: Any) -> bool:
    """Whether a container holds more than plain data: classes that were registered, say."""
    if not isinstance(value, PLAIN):  # of a user's own, which may be long in coming
        value = shortened(value)
    if not isinstance(value, _TABLES):
        return False
    for parts in (value.keys(), value.values()) if isinstance(value, Mapping) else (value,):
        kinds = set(map(type, parts))  # a tenth of looking at each
        tables = tuple(kind for kind in kinds if issubclass(kind, _TABLES))
        if not all(issubclass(kind, PLAIN) for kind in kinds):
            return True
        if tables and any(isinstance(part, tables) and holds_code(part) for part in parts):
            return True
    return False


def holds_objects(value: Any) -> bool:
    """Whether there is more than plain data in a container, and data as plain as that, however deep."""
    seen = set[int]()
    waiting = [value]
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if kind in (list, tuple, set, frozenset, dict):
            if id(part) in seen:
                continue
            seen.add(id(part))
            waiting += [*part, *(part.values() if kind is dict else ())]
        elif kind not in _SINGLE and not isinstance(part, (*SETTINGS, np.generic)):
            return True
        elif kind is np.ndarray and part.dtype.hasobject:
            waiting.append(part.tolist())
    return False


def plainly(value: Any) -> Any:
    """Plain data of the same meaning, of types that are nearly plain data; None for all others."""
    if isinstance(value, slice | range | operator.itemgetter | operator.attrgetter | operator.methodcaller | UUID):
        return repr(value)
    if isinstance(value, collections.deque):
        return shortened([*value])
    if isinstance(value, collections.ChainMap | types.MappingProxyType):
        return shortened(dict(value))
    if isinstance(value, array.array | bytearray | memoryview):
        return np.asarray(value)
    if type(value).__module__.partition(".")[0] == "jaxlib" and hasattr(value, "__array__"):  # no key of JAX is data
        with contextlib.suppress(Exception):  # of a trace, or of a device that is gone
            return np.asarray(value)
    if isinstance(value, struct.Struct | ZoneInfo):
        return value.format if isinstance(value, struct.Struct) else str(value)
    return None


def data_of_library(value: Any) -> Any:
    """What an array or a table of a library holds, a compiled pattern of one, or whose method this is, a type, scalar
    or schema of Arrow, a list of a config, a flag of absl: plain data. None for all else.
    """
    owner = asked(value, "__self__") if isinstance(value, types.BuiltinMethodType) else value
    kind = type(owner)
    library = kind.__module__.partition(".")[0]
    if library in _PATTERNS and kind.__name__ == "Pattern":
        return [owner.pattern, int(owner.flags)]
    if owner is value and library in _CONFIGS and (kind.__name__ == "FlagHolder" or isinstance(value, Sequence)):
        with contextlib.suppress(Exception):  # of a flag before they are parsed, and of what is no setting
            return [kind.__qualname__, _config_part(value.value if kind.__name__ == "FlagHolder" else value)]
    if owner is value and library == "pyarrow" and kind.__name__.endswith(("Type", "Field", "Schema")):
        return [kind.__qualname__, str(value)]
    if owner is value and library == "pyarrow" and callable(asked(value, "as_py")):
        return [kind.__qualname__, str(value.type), repr(value.as_py())]
    if owner is value and library in _ARRAYS and callable(asked(kind, "__array__")):
        with contextlib.suppress(Exception):
            held = tensor_bytes(value)
            return [kind.__qualname__, *([held] if held else map(_looked_at, (value, *unsaid(value))))]
    return None


def tensor_bytes(value: Any) -> list[Any] | None:
    """The type, shape and bytes of a tensor of torch that NumPy does not take: of bfloat16 or float8, one that is
    trained, or on a device. None for all else.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    with contextlib.suppress(Exception):
        value.numpy()
        return None
    with contextlib.suppress(Exception):  # of a layout without bytes
        held = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return [str(held.dtype), list(held.shape), held.reshape(-1).view(torch.uint8).numpy()]
    return None


def _looked_at(value: Any) -> Any:
    """An array with its shape; of many objects some that are spread over it."""
    held = np.asarray(value)
    step = max(1, -(-held.size // _MAX_LOOKED_AT)) if held.dtype.hasobject else 1
    return [list(held.shape), held.reshape(-1)[::step]]


def config_of(value: Any) -> dict[Any, Any] | None:
    """What a mapping of a library's holds, as a config of OmegaConf, ml_collections or ConfigParser does: plain values,
    and mappings and lists of such. None for what is none, or holds more; for one of users', in whose code looking would
    run; for the environment.
    """
    looking = [asked(type(value), name) for name in ("__getitem__", "__iter__")]
    if any(map(is_users, looking)) or isinstance(value, (*PLAIN, os._Environ, np.lib.npyio.NpzFile)):
        return None
    try:
        return _items_of(value)
    except Exception:  # it is none, or a part of it is more
        return None


def parts_of_config(value: Any) -> dict[str, Any] | None:
    """The settings in a config of a library, or in absl's flags, by name, configs inside it as they are; None for what
    is none.
    """
    if type(value).__module__.partition(".")[0] not in _CONFIGS or not callable(asked(type(value), "__getitem__")):
        return None
    found: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # of what is a list
        for name in filter(lambda name: isinstance(name, str), value):
            try:
                part = value[name]
                found[name] = part.value if type(value).__name__ == "FlagValues" else part
            except Exception as error:  # OmegaConf's "???"
                found[name] = type(error).__name__
        return found
    return None


def _items_of(value: Any) -> dict[Any, Any]:
    is_like = all(callable(asked(value, name)) for name in ("keys", "__getitem__", "__iter__"))
    if not is_like or hasattr(value, "__array__") or len(value) > _MAX_ITEMS:  # a table of data has some of these, too
        raise TypeError(f"a {type(value).__name__} is no config")
    found = {}
    for key in value:
        try:
            part = value[key]
        except Exception as error:  # OmegaConf's "???"
            part = type(error).__name__
        found[key] = _config_part(part)
    return found


def _config_part(part: Any) -> Any:
    if isinstance(part, (type(None), bool, int, float, complex, str, bytes, *SETTINGS)):
        return part
    if isinstance(part, Sequence) and len(part) <= _MAX_ITEMS:
        return [_config_part(each) for each in part]
    return _items_of(part)


def unsaid(value: Any) -> list[Any]:
    """Parts of a value that decide what code makes of it, beside what it holds; [] of most.

    The labels of a table of pandas, Arrow or Polars; the mask of a masked array; the function in np.vectorize,
    np.frompyfunc and functools.cmp_to_key; the ufunc of a method; what a defaultdict makes; the attributes of users'
    containers, texts and numbers; the name of an enum's member; the format of a Struct.
    """
    kind = type(value)
    if isinstance(value, collections.defaultdict):
        return [value.default_factory, *_attributes(value)]
    if isinstance(value, Enum):
        return [value.name]
    if isinstance(value, (*_CONTAINERS, np.ndarray)):
        masks = [np.ma.getmaskarray(value), value.fill_value] if isinstance(value, np.ma.MaskedArray) else []
        return masks + _attributes(value)
    if isinstance(value, np.vectorize):
        return [value.pyfunc, value.otypes, value.signature, sorted(map(str, value.excluded)), value.cache]
    if isinstance(value, _KEY) or (isinstance(value, np.ufunc) and value.__name__.endswith(" (vectorized)")):
        return [part for part in gc.get_referents(value) if inspect.isfunction(part)]
    if isinstance(value, types.BuiltinMethodType) and isinstance(asked(value, "__self__"), np.ufunc):
        return [value.__self__.__name__]  # type: ignore[attr-defined]
    if isinstance(value, struct.Struct):
        return [value.format]
    if isinstance(value, memoryview):
        return [value.tobytes()]
    if isinstance(value, KeysView | ValuesView | ItemsView):
        return [] if is_users(kind) else list(value)
    labels = [asked(value, name) for name in _LABELS.get(kind.__module__.partition(".")[0], ())]
    return [each if each is None or isinstance(each, str | int | float) else np.asarray(each) for each in labels]


def _attributes(value: Any) -> list[Any]:
    """Of an object of a user's class."""
    held = asked(value, "__dict__") if is_users(type(value)) else None
    return [dict(held)] if isinstance(held, dict) and held else []


def state_of(value: Any) -> list[Any]:
    """What pickle would save of an object beside its class: for a pattern, a deque or a Decimal that is all of it."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        saved = reduce(value) if reduce else value.__reduce_ex__(2)
    except Exception:
        # A lock, an open file: nothing in it is a setting. What refuses by its own code still has its attributes.
        own = (getattr(type(value), name, None) for name in ("__getstate__", "__reduce__", "__reduce_ex__"))
        return [dict(vars(value))] if any(map(inspect.isfunction, own)) and hasattr(value, "__dict__") else []
    if isinstance(saved, str):
        return [saved]
    _, arguments, *rest = saved
    if isinstance(own := asked(value, "__dict__"), dict) and "_pytree__state" in own and rest and rest[0] is not None:
        rest[0] = dict(sorted(own.items()))  # nnx.jit gives modules their attributes back in that order
    if rest and isinstance(rest[0], dict):  # without addresses of what it holds, as scikit-learn's vectorizers have
        ids = {*map(id, rest[0].values())}
        if any(type(part) is int and part in ids for part in rest[0].values()):
            rest[0] = {name: part for name, part in rest[0].items() if type(part) is not int or part not in ids}
    if isinstance(value, io.BytesIO | io.StringIO) and rest[0] is not None:
        # its __dict__ is made as it is looked for
        rest[0] = tuple(part or None if isinstance(part, dict) else part for part in rest[0])
    return [[a for a in arguments if a is not type(value)], *(list(r) if isinstance(r, Iterator) else r for r in rest)]
