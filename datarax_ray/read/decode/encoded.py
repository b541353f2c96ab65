"""The bytes of a picture, sound or video, in a record or in a field of an element."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from datarax_ray.read.decode.dense import missing_field

MAX_NBYTES = 2**31  # of a decoded sound or video: more is a header that says more than is there, or a slip
_NAMES = {"cv2": "OpenCV", "av": "PyAV"}


def needed(module: str, user: str, extra: str) -> Any:
    """A module of an extra, imported when it is first needed. Raises: ImportError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = _NAMES.get(module, module)
        raise ImportError(f"{user} needs {name}: pip install 'datarax-ray[{extra}]'") from error


def unreadable(encoded: bytes, cause: str) -> ValueError:
    return ValueError(f"{len(encoded)} bytes that begin {encoded[:8]!r} are {cause}")


def encoded_in(record_or_element: Any, field: str, user: Any, kind: str) -> tuple[dict[str, Any], bytes]:
    """The fields, and the bytes: the record itself, or the value of `field`, which may be a dict as Hugging Face's.

    user: the decoder. kind: of what. Raises: ValueError where the element lacks the field, or it holds no bytes.
    """
    name, element, encoded = type(user).__name__, {}, record_or_element
    if isinstance(record_or_element, Mapping):
        if field not in record_or_element:
            files = [each for each, value in record_or_element.items() if isinstance(value, bytes)]
            remedy = f"; say which one is the {kind}: {name}(field={files[0]!r})" if files else ""
            raise ValueError(f"{missing_field(field, record_or_element)}{remedy}")
        element, encoded = {**record_or_element}, record_or_element[field]
    if isinstance(encoded, Mapping) and encoded.keys() == {"bytes", "path"}:
        if encoded["bytes"] is None:
            opens = f"`datasets` opens paths: from_hf('parquet', data_files=...), without {name}"
            remedy = opens if kind == "image" else "write the bytes of the file there, in dataset.map"
            raise ValueError(f"the {kind} has no bytes, and its path is {encoded['path']!r}; {remedy}")
        encoded = encoded["bytes"]
    if not isinstance(encoded, bytes | bytearray | memoryview):
        raise ValueError(
            f"an encoded {kind} is bytes, and this one is a {type(encoded).__name__}; leave {name} out where {kind}s "
            "are decoded already, as an ImageFolder's are"
        )
    return element, bytes(encoded)
