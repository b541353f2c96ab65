"""The tree of iterables inside a datasets.IterableDataset, from readers of files up to map and interleave.

`datasets` has no public names for it. This module relies on the attributes `_ex_iterable`, `ex_iterable`,
`ex_iterables`, `kwargs`, `is_typed` and `decoding_pool` of its iterable_dataset module, and on its class names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from datarax_ray.plan.plain_values import digest
from datarax_ray.read.file_contents import head_and_content
from datarax_ray.read.formats.inspecting import inspect_all

_JOINED = "VerticallyConcatenatedMultiSourcesExamplesIterable"
# Iterables whose state_dict is exact behind every batch and every element, with datasets 5.2: a run from it gives the
# rest, in plain reading and under map, filter and interleave (tests/read/test_hf_shards.py).
_EXACT = {
    "ExamplesIterable",
    "ArrowExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable",
    "CyclingMultiSourcesExamplesIterable",
    _JOINED,
    "RandomlyCyclingMultiSourcesExamplesIterable",
    "MappedExamplesIterable",
    "FilteredExamplesIterable",
    "SkipExamplesIterable",
    "TakeExamplesIterable",
    "RepeatExamplesIterable",
    "FormattedExamplesIterable",
}
_SHUFFLING = {"BufferShuffledExamplesIterable", "InterleavedShardsExamplesIterable"}
# Iterables that count elements: `datasets` applies them to each shard alone, with n divided among the shards, as for
# the workers of a DataLoader.
_BY_SHARD = {
    "SkipExamplesIterable": "skip",
    "TakeExamplesIterable": "take",
    "CyclingMultiSourcesExamplesIterable": "interleave_datasets",
    "RandomlyCyclingMultiSourcesExamplesIterable": "interleave_datasets",
}
# Attributes that change what is read; the rest are functions, children, formats and states.
_SETTINGS = (
    *("with_indices", "input_columns", "batched", "batch_size", "drop_last_batch", "remove_columns"),
    *("fn_kwargs", "column_names", "n", "num_times", "probabilities", "stopping_strategy"),
)


def nodes(dataset: Any) -> Iterator[Any]:
    """Every iterable in the tree, from the top down."""
    todo = [dataset._ex_iterable]
    while todo:
        node = todo.pop(0)
        yield node
        todo += [node.ex_iterable] if hasattr(node, "ex_iterable") else getattr(node, "ex_iterables", [])


def check_resumable(dataset: Any) -> None:
    """Raise ValueError unless the dataset can be resumed exactly from its own state."""
    if dataset._distributed is not None:
        raise ValueError(
            "the dataset was cut by split_dataset_by_node, so each process would see another one; give the whole "
            "dataset: RaySource and the Pipeline distribute it"
        )
    for node in nodes(dataset):
        kind = type(node).__name__
        if kind in _SHUFFLING:
            raise ValueError(
                "the dataset was shuffled by its own shuffle(), whose buffer is lost when it is resumed: elements "
                "would be skipped or come twice. Give the unshuffled dataset, and set shuffle=True here."
            )
        if kind not in _EXACT:
            raise ValueError(
                f"the dataset holds a {kind}, of which it is not known that its state is exact, so a resumed stream "
                "might skip or repeat elements; build the dataset without it (as a transform, for example)"
            )
        # Seen with datasets 5.2: what counts elements above it takes the state of a table for one of an element,
        # and a shard goes on at its end.
        is_below = kind == _JOINED and node is not dataset._ex_iterable
        if is_below and len({each.iter_arrow is None for each in node.ex_iterables}) > 1:
            raise ValueError(
                "the dataset joins (concatenate_datasets) some that are read as tables and some that are not, as of a "
                "generator, and what is done behind that would skip elements where it is resumed; do it to each of "
                "them before they are joined"
            )


def done_by_shard(dataset: Any) -> list[str]:
    """The steps that count elements: read shard by shard, they give other elements than a plain loop."""
    found: dict[str, None] = {}
    for node in nodes(dataset) if dataset.num_shards > 1 else ():
        if node.num_shards == 1:
            continue
        if name := _BY_SHARD.get(type(node).__name__):
            found[f"{name}({node.n})" if hasattr(node, "n") else name] = None
        for name in ("with_indices", "drop_last_batch"):
            if getattr(node, name, False):
                found[f"{name}=True"] = None
    return list(found)


def has_arrow(dataset: Any) -> bool:
    """Whether the dataset reads whole Arrow tables rather than single elements."""
    return dataset._ex_iterable.iter_arrow is not None


def decodes_last(dataset: Any) -> bool:
    """Whether files in columns (images, audio) are decoded after all other steps, by the dataset's features."""
    return decoding_pool(dataset) is not None or not dataset._ex_iterable.is_typed


def decoding_pool(dataset: Any) -> Any:
    """The threads that decode files (IterableDataset.decode); None without them."""
    return getattr(dataset._ex_iterable, "decoding_pool", None)


def tree_fingerprint(dataset: Any) -> dict[str, Any]:
    """A digest of the files, by name and size, and of the settings of every step.

    "seeds": of interleave_datasets. "content": of some bytes of local files, without .arrow files, which `datasets`
    prepares differently on each machine. Functions have no digest: a checkpoint compares their rows (plan.evidence).
    """
    parts: list[Any] = []
    drawn = [str(each.bit_generator.state) for node in nodes(dataset) if (each := getattr(node, "generator", None))]
    for node in nodes(dataset):
        settings = {name: _plain(getattr(node, name)) for name in _SETTINGS if hasattr(node, name)}
        parts.append([type(node).__name__, _plain(getattr(node, "kwargs", None)), settings])
    files = [path for path in files_of(dataset) if os.path.isfile(path) and not path.endswith(".arrow")]
    contents = [content for _, content in inspect_all(head_and_content, files)] if files else []
    digests = {"digest": digest(parts)} | ({"content": digest(contents)} if contents else {})
    return digests | ({"seeds": digest(drawn)} if drawn else {})


def files_of(dataset: Any) -> list[str]:
    """The paths and URLs that the dataset reads, each once."""
    return list(dict.fromkeys(path for node in nodes(dataset) for path in _paths(getattr(node, "kwargs", {}))))


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, str) and (os.path.isfile(value) or "://" in value):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _paths(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item)


def _plain(value: Any) -> Any:
    """A plain value for an argument of a reader: the same after the data moved to another folder."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return [os.path.basename(value), os.path.getsize(value)] if os.path.isfile(value) else value
    if isinstance(value, Mapping):
        return [[str(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if type(value).__name__ == "Dataset":
        ends = [_plain(_stored(value, index)) for index in (0, len(value) - 1)] if len(value) else []
        return [len(value), str(value.features), ends]
    return type(value).__qualname__


def _stored(dataset: Any, index: int) -> Any:
    return repr(dataset.with_format("arrow")[index].to_pylist())[:4096]
