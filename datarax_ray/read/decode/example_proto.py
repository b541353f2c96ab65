"""The message class of tf.train.Example, described to protobuf without TensorFlow.

Source: tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

import functools
from typing import Any

# Labels and types as google/protobuf/descriptor.proto numbers them.
_OPTIONAL, _REPEATED = 1, 3
_FLOAT, _INT64, _STRING, _MESSAGE, _BYTES = 2, 3, 9, 11, 12


def _field(name: str, number: int, kind: int | str, label: int = _OPTIONAL, **more: int) -> dict[str, Any]:
    is_message = isinstance(kind, str)
    typed = {"type": _MESSAGE, "type_name": f".tensorflow.{kind}"} if is_message else {"type": kind}
    return {"name": name, "number": number, "label": label, **typed, **more}


_MESSAGES: list[dict[str, Any]] = [
    {"name": "BytesList", "field": [_field("value", 1, _BYTES, _REPEATED)]},
    {"name": "FloatList", "field": [_field("value", 1, _FLOAT, _REPEATED)]},
    {"name": "Int64List", "field": [_field("value", 1, _INT64, _REPEATED)]},
    {
        "name": "Feature",
        "oneof_decl": [{"name": "kind"}],
        "field": [
            _field("bytes_list", 1, "BytesList", oneof_index=0),
            _field("float_list", 2, "FloatList", oneof_index=0),
            _field("int64_list", 3, "Int64List", oneof_index=0),
        ],
    },
    {
        "name": "Features",
        "field": [_field("feature", 1, "Features.FeatureEntry", _REPEATED)],
        "nested_type": [
            {
                "name": "FeatureEntry",  # what map<string, Feature> stands for
                "options": {"map_entry": True},
                "field": [_field("key", 1, _STRING), _field("value", 2, "Feature")],
            }
        ],
    },
    {"name": "Example", "field": [_field("features", 1, "Features")]},
]


@functools.cache
def example_class() -> Any:
    """The message class of tf.train.Example, from a pool of its own.

    The default pool is shared by the process, and TensorFlow registers the same names there: a second
    registration is an error. The class is made on first use, because workers start lean, and cached here,
    because in a decoder's fields it would not pickle.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="datarax_ray/example.proto", package="tensorflow", syntax="proto3", message_type=_MESSAGES
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
