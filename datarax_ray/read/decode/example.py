"""The row decoder for tf.train.Example, without TensorFlow.

Source: tensorflow/core/example/example.proto and feature.proto; FixedLen and VarLen follow tf.io.FixedLenFeature and
tf.io.VarLenFeature.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.read.decode.dense import exact_array, missing_field, no_record, real_dtype_name, shape_of
from datarax_ray.read.files.sniff import how_to_decode

_LIST_DTYPES = {"int64_list": "int64", "float_list": "float32"}

# The messages of tf.train.Example in protobuf's text format, where a map is a list of entries.
_FIELD = "field {{ name: '{}' number: {} label: LABEL_{} type: TYPE_{} {} }}"
_LIST = "message_type {{ name: '{}List' field {{ name: 'value' number: 1 label: LABEL_REPEATED type: TYPE_{} }} }}"


def _message(name: str, number: int, kind: str, label: str = "OPTIONAL", more: str = "") -> str:
    return _FIELD.format(name, number, label, "MESSAGE", f"type_name: '.tensorflow.{kind}' {more}")


_PROTO = f"""
name: 'datarax_ray/example.proto' package: 'tensorflow' syntax: 'proto3'
{_LIST.format("Bytes", "BYTES")} {_LIST.format("Float", "FLOAT")} {_LIST.format("Int64", "INT64")}
message_type {{
  name: 'Feature' oneof_decl {{ name: 'kind' }}
  {_message("bytes_list", 1, "BytesList", more="oneof_index: 0")}
  {_message("float_list", 2, "FloatList", more="oneof_index: 0")}
  {_message("int64_list", 3, "Int64List", more="oneof_index: 0")}
}}
message_type {{
  name: 'Features' {_message("feature", 1, "Features.FeatureEntry", "REPEATED")}
  nested_type {{
    name: 'FeatureEntry' options {{ map_entry: true }}
    {_FIELD.format("key", 1, "OPTIONAL", "STRING", "")} {_message("value", 2, "Feature")}
  }}
}}
message_type {{ name: 'Example' {_message("features", 1, "Features")} }}
"""


@final
@dataclass(frozen=True)
class FixedLen(NamedArguments):
    """A feature that holds the same number of values in every record, and so makes a dense column.

    dtype: of the result: bool, int, uint or float, or `bytes`; held as its name.
    shape: of one record; () for a scalar. Byte strings are () for one or (n,) for a list of n.
    default: the number or byte string that fills `shape` where a record lacks the feature; None refuses such a record.

    Raises: ValueError when the default does not fit the dtype, or byte strings have more than one axis.

    >>> FixedLen(np.float32, [2, 2], default=0)
    FixedLen(dtype='float32', shape=(2, 2), default=0.0)
    """

    dtype: npt.DTypeLike
    shape: int | Iterable[int] = ()
    default: float | bytes | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _feature_dtype(self.dtype))
        object.__setattr__(self, "shape", shape_of(self.shape))
        if self.dtype == "bytes" and len(shape_of(self.shape)) > 1:
            raise ValueError(f"byte strings are one (shape ()) or a list (shape (n,)), not {self.shape}")
        if self.default is not None:
            if not isinstance(self.default, bytes if self.dtype == "bytes" else int | float | np.generic):
                raise ValueError(f"default {self.default!r} is not one value of {self.dtype}")
            if not isinstance(self.default, bytes):
                # As a number of the dtype, so that default=0 and default=0.0 have one repr and one fingerprint.
                object.__setattr__(self, "default", exact_array(self.default, self.dtype, "default").item())


@final
@dataclass(frozen=True)
class VarLen(NamedArguments):
    """A feature that holds any number of values, as a list kept on the host; empty where a record lacks it.

    dtype: that every value must fit: bool, int, uint or float, or `bytes`; held as its name.
    """

    dtype: npt.DTypeLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _feature_dtype(self.dtype))


@final
@dataclass(frozen=True)
class DecodeExample(NamedArguments):
    """Read every record as one serialized tf.train.Example.

    features: name to FixedLen or VarLen; other features of a record are skipped. None takes every feature as it is
        stored: an int64_list as int64 (n,), a float_list as float32 (n,), a bytes_list as a list of bytes.

    >>> record = bytes.fromhex("0a0f0a0d0a01781208" "1a060a0401020304")
    >>> DecodeExample().map(record)
    {'x': array([1, 2, 3, 4])}
    >>> DecodeExample({"x": FixedLen("uint8", (2, 2)), "y": FixedLen("float32", default=0.5)}).map(record)
    {'x': array([[1, 2],
           [3, 4]], dtype=uint8), 'y': np.float32(0.5)}
    """

    features: Mapping[str, FixedLen | VarLen] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if self.features is not None and not isinstance(self.features, Mapping):
            raise TypeError(f"features is a dict of name to FixedLen or VarLen, got {self.features!r}")
        for name, spec in (self.features or {}).items():
            if not isinstance(spec, FixedLen | VarLen):
                raise ValueError(f"feature {name!r} is described by {spec!r}; use FixedLen(...) or VarLen(...)")
        if self.features is not None:
            object.__setattr__(self, "features", dict(sorted(self.features.items())))

    def map(self, record: bytes) -> dict[str, Any]:
        """The element that the record holds: one entry per feature, as its description says.

        A feature with no list of values counts as missing, as it does in TensorFlow.

        Raises: ValueError when the record is no Example; when it holds no feature, since protobuf reads an empty record
        as an empty Example; or when a described feature is missing, or has another kind, another number of values or a
        value that its dtype cannot hold.
        """
        stored = _stored_features(record)
        if self.features is None:
            # Sorted, since a protobuf map keeps no order.
            return {name: _values(feature) for name, feature in sorted(stored.items())}
        return {name: _described(name, spec, stored) for name, spec in self.features.items()}


@functools.cache
def example_class() -> Any:
    """The message class of tf.train.Example, in a pool of its own.

    TensorFlow registers the same names in the default pool, where a second registration is an error. The class is made
    on first use, because workers start lean, and is no field of a decoder, because it would not pickle.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def _feature_dtype(dtype: npt.DTypeLike) -> str:
    is_bytes = dtype is bytes or (isinstance(dtype, str) and dtype == "bytes")
    return "bytes" if is_bytes else real_dtype_name(dtype)


def _stored_features(record: bytes) -> dict[str, Any]:
    from google.protobuf.message import DecodeError

    try:
        features = example_class().FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(
            f"a record of {len(record)} bytes is not a tf.train.Example: {error}.{how_to_decode(record)}"
        ) from error
    except TypeError as error:
        raise no_record(record) from error
    stored = {name: feature for name, feature in features.items() if feature.WhichOneof("kind")}
    if not stored:
        raise ValueError(
            f"a record of {len(record)} bytes holds no feature of a tf.train.Example; "
            "it is empty or was written as something else"
        )
    return stored


def _values(feature: Any) -> npt.NDArray[Any] | list[bytes]:
    """A feature as it is stored: an array of its numbers, or its byte strings."""
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value
    # With the dtype given, recent protobuf copies the numbers without making Python objects of them.
    return list(values) if kind == "bytes_list" else np.asarray(values, dtype=_LIST_DTYPES[kind])


def _described(name: str, spec: FixedLen | VarLen, stored: Mapping[str, Any]) -> Any:
    if name not in stored:
        if isinstance(spec, VarLen):
            return []
        if spec.default is None:
            raise missing_field(name, stored)
        shape = shape_of(spec.shape)
        if isinstance(spec.default, bytes):
            return [spec.default] * shape[0] if shape else spec.default
        return np.full(shape, spec.default, dtype=spec.dtype)[()]
    values = _values(stored[name])
    if isinstance(values, list) != (spec.dtype == "bytes"):
        held = "byte strings" if isinstance(values, list) else "numbers"
        raise ValueError(f"feature {name!r} holds {held} and is described as {spec.dtype}; describe what is stored")
    if not isinstance(values, list):
        values = exact_array(values, spec.dtype, name)
    if isinstance(spec, VarLen):
        return values if isinstance(values, list) else values.tolist()
    shape = shape_of(spec.shape)
    if len(values) != math.prod(shape):
        raise ValueError(
            f"feature {name!r} holds {len(values)} values, and FixedLen of shape {shape} takes "
            f"{math.prod(shape)}; give the shape that was stored, or VarLen where records differ"
        )
    if isinstance(values, list):
        return values if shape else values[0]
    return values.reshape(shape)[()]
