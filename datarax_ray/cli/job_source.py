"""`datarax-ray cluster init DIR DATA`: source.py of the job, written for the data that is found."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from datarax_ray import ImageFolder, load
from datarax_ray.checking import decoder_of
from datarax_ray.cli.inspect import is_picture, type_of
from datarax_ray.loading import kind_of
from datarax_ray.read.files.listing import SPLITS
from datarax_ray.read.files.sniff import picture_in

_NUM_LOOKED_AT = 256  # elements, by a shuffle where the source has one: enough for most labels and lengths
_SIDE, _LENGTH = 64, 512  # pixels and tokens: small enough for a first run without an accelerator
_MIN_CLASSES = 16
_LABELS = ("label", "labels", "cls", "class", "target", "y", "fine_label", "coarse_label")  # as datasets name these
_TOKENS, _TEXTS = ("tokens", "input_ids"), ("text", "content", "document")
_FUNCTIONS = "\n\n\ndef make_source("  # where the part that is the same for all data begins

_HEAD = '''"""Your data: the records to train on and to evaluate with, and the stages on the device. Edit this file.

`datarax-ray cluster init` wrote this file for elements with {fields}.
Functions of this file travel to the actors by value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
{imports}
TRAIN: dict[str, Any] = {train}
EVALUATION: dict[str, Any] | None = {evaluation}
NUM_CLASSES = {num_classes}{constants}


def example(element: Any) -> Any:
    """The fields that learner.py learns from."""
    return {example}


TRANSFORMS: list[Any] = [{transforms}]
PACKING: Any = {packing}'''
_NEEDED = "learner.py needs image and label, or tokens: return them by these names from `example` of source.py"


def source_for(data: str, template: str) -> tuple[str, dict[str, Any]]:
    """The text of source.py for this data, and the facts for people. template: the packaged source.py.

    Raises: as `load` for data that it does not read; ValueError for data without elements, and for image folders whose
    classes differ.
    """
    train, evaluation, elements = _looked_at(data)
    decoder = decoder_of(elements[0])
    elements = elements if decoder is None else [decoder.map(element) for element in elements]
    fields = elements[0] if isinstance(elements[0], Mapping) else {}
    parts = {"num_classes": f"{_MIN_CLASSES}", "constants": "", "example": "element", "packing": "None"}
    parts |= {"imports": "", "transforms": "", "advice": _NEEDED} | _parts(fields, elements)
    if train["paths"].startswith("imagefolder:"):
        parts["num_classes"] = _num_classes(train, evaluation or train)
    decoders = [] if decoder is None else [f"{type(decoder).__name__}()"]
    transforms = ", ".join([*decoders, *filter(None, [parts["transforms"]]), "example"])
    ours = {"load", *re.findall(r"\b(?:Decode|Concat)\w+", f"{transforms} {parts['packing']}")}
    imports = f"\n{parts['imports']}from datarax_ray import {', '.join(sorted(ours))}\n"
    types = {name: type_of([value]) for name, value in fields.items()} or {"no fields": type(elements[0]).__name__}
    said = ", ".join(f"{name} ({kind})" for name, kind in types.items())
    given = ["None" if each is None else json.dumps(each) for each in (train, evaluation)]
    parts |= {"fields": said, "train": given[0], "evaluation": given[1], "transforms": transforms, "imports": imports}
    facts = {"train": train, "evaluation": evaluation or "none: name other data in EVALUATION of source.py"}
    facts |= {"fields": types, "advice": parts["advice"]}
    return _HEAD.format_map(parts) + _FUNCTIONS + template.partition(_FUNCTIONS)[2], facts


def _num_classes(train: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    names, others = (ImageFolder(each["paths"].partition(":")[2]).class_names for each in (train, evaluation))
    if names != others:
        raise ValueError(
            f"{train['paths']} has the classes {', '.join(names)}, and {evaluation['paths']} has {', '.join(others)}. "
            "Classes are numbered by name, so one number would mean two of them; give both the same folders"
        )
    return f"{len(names)}  # {', '.join(names)}"[:110]


def _looked_at(data: str) -> tuple[dict[str, Any], dict[str, Any] | None, list[Any]]:
    """The arguments of `load` for the data to train on and to evaluate with, and the first elements."""
    train, evaluation = _splits(data)
    try:
        source = load(**train, shuffle=True)
    except ValueError:
        if not os.path.isdir(data):
            raise
        with suppress(ValueError):
            return _looked_at(f"imagefolder:{data}")
        raise
    with source:
        elements = list(islice(iter(source), _NUM_LOOKED_AT))
    if evaluation is not None:
        load(**evaluation).close()  # what is missing or empty is said now, not by the job
    if not elements:
        raise ValueError(f"{data} has no elements, so nothing can be told of its fields")
    return train, evaluation, elements


def _splits(data: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The same arguments: what a folder, or the dataset, calls train, and validation or else test."""
    kind, name = kind_of(data, None)
    if kind == "hf":
        is_here = os.path.isdir(name)
        paths = os.path.abspath(name) if is_here else data
        names: list[str] = os.listdir(name) if is_here else []
        if not is_here:
            from datasets import get_dataset_split_names  # in here: it takes a second

            names = get_dataset_split_names(name)
        found = {split: {"paths": paths, "split": split} for split in names if split in SPLITS.values()}
        alone = {"paths": paths}
    else:
        prefix, path = ("imagefolder:", name) if kind else ("", data)
        path = path if "://" in path else os.path.abspath(os.path.expanduser(path))
        alone, found = {"paths": prefix + path}, {}
        for entry in sorted(os.listdir(path)) if os.path.isdir(path) else []:
            word = re.match("[A-Za-z]*", entry)[0]  # type: ignore[index]
            if word.lower() in SPLITS:
                one = os.path.join(path, entry if os.path.isdir(os.path.join(path, entry)) else f"{word}*")
                found[SPLITS[word.lower()]] = {"paths": prefix + one}
    if "train" not in found:
        return alone, None
    return found["train"], found.get("validation") or found.get("test")


def _parts(fields: Mapping[str, Any], elements: list[Any]) -> dict[str, str]:
    """What source.py has for these fields, of the first element; {} where learner.py has no model for any."""
    arrays = {name: np.asarray(value) for name, value in fields.items() if not isinstance(value, Mapping | bytes | str)}
    ints = {name: array.ndim for name, array in arrays.items() if array.dtype.kind in "iu"}
    labels = [name for name, ndim in ints.items() if ndim == 0 and name in _LABELS]
    pictures = [name for name, value in fields.items() if picture_in(value) is not None or _is_decoded(value)]
    lines = sorted((name for name, ndim in ints.items() if ndim == 1), key=lambda name: name not in _TOKENS)
    texts = [name for name, value in fields.items() if isinstance(value, str) and name in _TEXTS]
    if pictures and labels:
        image, label = json.dumps(pictures[0]), json.dumps(labels[0])
        value, parts = f"element[{image}]", {"num_classes": f"{_above(elements, labels[0])}  # more than any label"}
        parts |= {"constants": f"\nSIDE = {_SIDE}  # each picture becomes a square of so many pixels", "advice": ""}
        if picture_in(fields[pictures[0]]) is not None:
            parts["transforms"] = f"DecodeImage((SIDE, SIDE, 3), field={image})"
        else:
            parts["imports"], value = (
                "import cv2\n",
                f"cv2.resize({value}, (SIDE, SIDE), interpolation=cv2.INTER_AREA)",
            )
        lines = [f'"image": {value}', f'"label": element[{label}]']
        return parts | {"example": "{" + "".join(f"\n        {line}," for line in lines) + "\n    }"}
    if not lines and not texts:
        return {}
    parts = {"imports": "import numpy as np\n", "packing": 'ConcatThenSplit(LENGTH, "tokens")', "advice": ""}
    parts["constants"] = f"\nLENGTH = {_LENGTH}  # of a row of tokens: documents are put end to end, and cut"
    name = json.dumps([*lines, *texts][0])
    if lines:
        parts["num_classes"] = f"{_above(elements, lines[0])}  # more than any token"
        return parts | {"example": f'{{"tokens": np.array(element[{name}], np.int32)}}'}
    parts |= {"num_classes": "256", "advice": f"tokens are the bytes of {name}: put your tokenizer into `example`"}
    return parts | {"example": f'{{"tokens": np.frombuffer(element[{name}].encode(), np.uint8).astype(np.int32)}}'}


def _above(elements: list[Any], name: str) -> int:
    """A power of two above the integers of this field: other elements may have larger ones."""
    largest = max((int(np.max(element[name], initial=0)) for element in elements), default=0)
    return max(_MIN_CLASSES, 1 << largest.bit_length())


def _is_decoded(value: Any) -> bool:
    return is_picture(value if np.ndim(value) != 2 else np.asarray(value)[..., None])
