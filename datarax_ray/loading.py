"""load: chooses the source that reads some data, in one call."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

from datarax_ray import sources
from datarax_ray.plan.arguments import named_arguments, nearest
from datarax_ray.read.elements.transforms import OnError, listed
from datarax_ray.read.files import sniff
from datarax_ray.read.files.filesystems import find_on
from datarax_ray.read.files.paths import are_told, for_people, kept
from datarax_ray.read.files.shards import MissingShards
from datarax_ray.read.files.sniff import IMAGES, OF_TEXT, PACKED, READ, UNSURE
from datarax_ray.read.formats.hugging_face.load import is_saved, only_split
from datarax_ray.read.formats.image_folder import ImageFolder
from datarax_ray.read.formats.inspecting import FINISHED, UNFINISHED, not_finished
from datarax_ray.read.formats.materialized.records import DecodeMaterialized, is_materialized
from datarax_ray.read.formats.random_access import remedy_for
from datarax_ray.read.formats.remote.clients import filesystem_of, scheme_of
from datarax_ray.read.formats.remote.ranges import by_client
from datarax_ray.read.formats.text.shards import CODECS, head_of
from datarax_ray.read.formats.text.syntax import CSV, Lines
from datarax_ray.read.formats.webdataset.reader import named_by
from datarax_ray.read.retry import retried
from datarax_ray.read.skipped_records import MAX_SHARE
from datarax_ray.read.stream import whole_epochs
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig, from_hf
from datarax_ray.sources.base.indexed import IndexedSourceModule
from datarax_ray.sources.base.stream import StreamSourceModule

if TYPE_CHECKING:
    from datarax_ray.actors.source import RaySource

logger = logging.getLogger("datarax_ray")


# TFDS puts these beside the files of a dataset; Hugging Face puts the first of them.
_TFDS = ("dataset_info.json", "features.json")

# Data that is read by its name, and not by the first bytes of its files.
KINDS = ("hf", "imagefolder")

# Settings of tables, as the sources of Hugging Face datasets call these.
_HF_KEYS = {"columns": "include_keys", "exclude_columns": "exclude_keys"}
_HF_KEYS |= {name: name for name in ("on_null", "missing_shards")}

Loaded: TypeAlias = IndexedSourceModule | StreamSourceModule[Any]  # both bases are in the reference


class _Settings(TypedDict, total=False):
    """The arguments of `load` beside paths and num_actors, for type checkers."""

    shuffle: bool
    seed: int
    num_epochs: int
    transforms: Any
    split: str | None
    columns: Iterable[str] | None
    exclude_columns: Iterable[str] | None
    column_types: Mapping[str, Any] | None
    on_null: Any
    schema: Literal["widen", "strict"] | None
    fields: Iterable[str] | None
    missing: Literal["error", "skip", "none"] | None
    missing_shards: MissingShards | None
    on_error: OnError
    max_skipped: float | None
    skipped_path: str | None
    shuffle_block_size: Any


@overload
def load(paths: Any, *, num_actors: None = None, **settings: Unpack[_Settings]) -> Loaded: ...
@overload
def load(paths: Any, *, num_actors: int | tuple[int, int], **settings: Unpack[_Settings]) -> RaySource: ...
@named_arguments
def load(
    paths: Any,
    *,
    shuffle: bool = False,
    seed: int = 42,
    num_epochs: int = 1,
    transforms: Any = (),
    num_actors: int | tuple[int, int] | None = None,
    split: str | None = None,
    columns: Iterable[str] | None = None,
    exclude_columns: Iterable[str] | None = None,
    column_types: Mapping[str, Any] | None = None,
    on_null: Any = None,
    schema: Literal["widen", "strict"] | None = None,
    fields: Iterable[str] | None = None,
    missing: Literal["error", "skip", "none"] | None = None,
    missing_shards: MissingShards | None = None,
    on_error: OnError = "raise",
    max_skipped: float | None = MAX_SHARE,
    skipped_path: str | None = None,
    shuffle_block_size: Any = None,
) -> Loaded | RaySource:
    """The source for some data, chosen by the first bytes of its files; the log names it in one line.

    paths: one of these.
        - a file, glob, directory or URL, "path@6" for six shards (path-00000-of-00006 and on), or a list of
          these, of ArrayRecord, Parquet, TFRecord, tar, CSV, JSON lines, JSON arrays or lines of text,
          of text also compressed (gzip, zstd, bzip2, xz). In a directory the source reads the files with its format's
          suffixes, and warns of others that look like them; ArrayRecord files only in the directory
          itself. URLs and slices with an ArrayRecord name ("s3://b/x.array_record", "x.array_record[:9]") are not
          opened to choose the source;
        - a folder of MDS shards with their index.json, or of a Lance dataset;
        - a folder that `materialize` wrote;
        - "hf:NAME", a dataset of the Hugging Face hub; `split` chooses its split ("train" by default);
        - a folder of `save_to_disk`, with or without "hf:";
        - "imagefolder:DIR", a folder of images for each class (ImageFolder has their names).
    shuffle: a new order in every epoch; False for the order of the files.
    seed: of the order and of random transforms, 32 bits.
    num_epochs: passes over the data, -1 for endless.
    transforms: one or a list, applied to each element on the host, in this order: functions, or objects with map,
        random_map, filter or flat_map.
    num_actors: None to read in this process, a number for a RaySource with that many actors, (least, most) for a
        RaySource that finds a number between them.
    split: of "hf:NAME"; None for "train", or the only split that was saved.
    columns: fields to read, of Parquet, Lance, MDS and Hugging Face; None for all.
    exclude_columns: fields to skip, of Parquet and Hugging Face; not together with columns.
    column_types: Arrow types, or their names ("float32"), of fields of Parquet and text (CSV, JSON lines).
    on_null: a value in place of nulls, "host" or "error", for all fields or by field, of Parquet, Lance, text and
        Hugging Face; see RowGroupsConfig.
    schema: of Parquet, "widen" to read a field of several types as one that holds all, "strict" for an error.
    fields: of tar files, the members, and fields of JSON members ("json.width"), that every sample has.
    missing: of tar files, for samples that lack a member: "error", "skip" to leave them out, "none" to give None.
    missing_shards: "error" for shards that names promise and that are not there, "warn" to go on without; None is
        "error".
    on_error: "raise" at a broken record, "skip" to count and list it, or a function of the RecordError, True to skip.
    max_skipped: skipped records that end the run: a number, a share of any 10,000 positions, or None for no limit.
    skipped_path: a JSON-lines file, or a URL, that lists each skipped record once a pass; None for none.
    shuffle_block_size: of files, with shuffle: permute blocks of this many neighbouring records, then the records of 64
        blocks; "auto" for the stored groups of ArrayRecord; None for the config's default.

    For all other settings, use the source's own config class. The result is a source of the class for its format:
    ArrayRecordSourceModule, ParquetSource, WebDatasetSource (tar), CSVSource and so on; its repr begins with the name.

    Raises: ValueError for files of several formats, or of an unknown one, with their names; TypeError for data in place
    of its paths, and for a setting that the format has not; errors of the source.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a.csv").write_text("x,y\\n1,2\\n3,4\\n")
    ...     load(folder).get_batch(2)
    {'x': array([1, 3]), 'y': array([2, 4])}
    """
    _check(paths)
    if num_actors is not None:
        from datarax_ray.actors.source import RaySource, limits  # to import Ray takes 0.7 s

        limits(num_actors, of_none="reading in this process")
    # None is one pass in datarax, of Hugging Face data alone
    order: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "num_epochs": whole_epochs(num_epochs)}
    given = {"columns": columns, "exclude_columns": exclude_columns, "column_types": column_types, "on_null": on_null}
    given |= {"schema": schema, "fields": fields, "missing": missing, "missing_shards": missing_shards}
    of_format = {name: value for name, value in given.items() if value is not None}
    order |= {"on_error": on_error, "max_skipped": max_skipped, "skipped_path": skipped_path}
    kind, name = kind_of(paths, split)
    if kind is not None and shuffle_block_size is not None:
        raise ValueError(
            f"shuffle_block_size={shuffle_block_size!r} is of files in blocks, and {paths!r} has none; leave it out"
        )
    if kind == "hf":
        _check_taken(of_format, _HF_KEYS, "a Hugging Face dataset")
        keys = {_HF_KEYS[name]: value for name, value in of_format.items()}
        source = from_hf(name, split_of(name, split), transforms=transforms, **order, **keys)
    elif kind == "imagefolder":
        _check_taken(of_format, (), "a folder of images")
        source = RandomAccessSource(RandomAccessSourceConfig(**order), ImageFolder(name), transforms=transforms)
    else:
        order |= {} if shuffle_block_size is None else {"shuffle_block_size": shuffle_block_size}
        source = source_of_files(paths, order, transforms, of_format=of_format)
    logger.info("load chose %r", source)
    return source if num_actors is None else RaySource(source, num_actors=num_actors)


def source_of_files(
    paths: Any, config: dict[str, Any], transforms: Any = (), of_format: Mapping[str, Any] | None = None, **also: Any
) -> Loaded:
    """The source for files, by their first bytes. also: more of its config, for a format with these settings.
    of_format: more settings, which are an error for a format without them.
    """
    paths = kept(paths)
    # not looked at: ArrayRecord files behind URLs are read by another client than other formats
    format_name, head = ("ArrayRecord", b"") if are_told(paths) else _found(paths)
    source_type = getattr(sources, READ[format_name].source)
    of_config, of_source = _settings(format_name)
    config = config | {name: value for name, value in also.items() if name in of_config}
    _check_taken(of_format or {}, of_config | of_source, format_name)
    config |= {name: value for name, value in (of_format or {}).items() if name in of_config}
    beside = {name: value for name, value in (of_format or {}).items() if name not in of_config}
    if format_name == "ArrayRecord" and is_materialized(paths):
        transforms = (DecodeMaterialized(), *listed(transforms))
    if format_name == "CSV":
        try:
            config["delimiter"] = sniff.delimiter(head)
        except ValueError as error:
            first = paths if isinstance(paths, str | os.PathLike) else paths[0]
            raise ValueError(f"{for_people(os.fspath(first))}: {error}") from None
    source: Loaded = source_type(source_type.config_type(**config), paths, transforms=transforms, **beside)
    if format_name == PACKED:
        logger.info(
            "compressed text is read forwards, file by file. For a shuffle of all rows, and any row by its number, "
            "write it once: datarax-ray convert %s FOLDER",
            for_people(paths),
        )
    return source


def _settings(format_name: str) -> tuple[set[str], set[str]]:
    source_type = getattr(sources, READ[format_name].source)
    return {each.name for each in fields(source_type.config_type)}, {*inspect.signature(source_type).parameters}


def _check_taken(given: Iterable[str], taken: Container[str], what: str) -> None:
    """Raise TypeError for a setting that does not exist for this data; names the formats that take it."""
    for name in given:
        if name not in taken:
            those = [each for each in READ if name in set().union(*_settings(each))]
            those += ["Hugging Face"] if name in _HF_KEYS else []
            raise TypeError(
                f"{name} is for {', '.join(those)}, and load found {what}, which has no such setting. Leave it out, or "
                "change the elements by transforms=[...]"
            )


def kind_of(paths: Any, split: str | None) -> tuple[str | None, str]:
    """The kind of KIND:NAME, one of KINDS, and the name; None and "" for paths.

    Raises: ValueError for a mistyped kind, and for a split of data that has none.
    """
    kind, name = _named(paths)
    if split is not None and kind != "hf":
        where = f"{paths}/{split}" if kind == "imagefolder" else "the paths of its files, or hold out some by a filter"
        raise ValueError(f"split={split!r} is of a dataset of the hub, and {paths!r} is none; give {where}")
    return kind, name


def split_of(name: str, split: str | None) -> str:
    """The named split; without a name the only saved split, or "train"."""
    return split or only_split(name) or "train"


def _named(paths: Any) -> tuple[str | None, str]:
    if isinstance(paths, str | os.PathLike) and is_saved(paths):
        return "hf", os.fspath(paths)
    named = re.fullmatch(r"(\w+):(?!//)(.*)", paths) if isinstance(paths, str) else None
    if named is None or os.path.exists(paths):
        return None, ""
    if named[1] in KINDS and not named[2]:
        raise ValueError(f"{paths!r} names nothing: it is {named[1]}:NAME")
    if named[1] not in KINDS and (hint := nearest([named[1]], KINDS)):
        raise ValueError(f"{named[1]!r} names no kind of data; those are {', '.join(KINDS)}.{hint}")
    return (named[1], named[2]) if named[1] in KINDS else (None, "")


def _check(paths: Any) -> None:
    """Raise TypeError for data or another object in place of paths, with the source for it."""
    if isinstance(paths, str | os.PathLike) or inspect.isclass(paths) or callable(getattr(paths, "get_state", None)):
        return  # `kept` raises for the latter two
    first = paths[0] if isinstance(paths, list | tuple) and paths else None
    said = type(paths).__name__ if first is None else f"{type(paths).__name__} of {type(first).__name__}"
    is_data = isinstance(first, Mapping | int | float) or hasattr(first, "__array__")
    is_table = not isinstance(paths, Sequence) and hasattr(paths, "__getitem__")
    is_table = is_table or type(paths).__module__.startswith("ray.data.")  # whose rows would be read
    if is_data or is_table or not isinstance(paths, Iterable):
        raise TypeError(f"load takes paths, and a {said} is none{remedy_for(paths)}")


def _found(paths: Any) -> tuple[str, bytes]:
    """The format of the files, and the first bytes of one of them; found by the client that will read them."""
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    if isinstance(named, Iterable) and not isinstance(named, Set):
        named = [found for path in named for found in (named_by(path) if isinstance(path, str) else [path])]
    url = next((path for path in named if isinstance(path, str) and scheme_of(path).is_pyarrows), None)
    if url is None:
        return _looked_at(named, None)
    try:
        client = filesystem_of(url)  # fsspec's client, which reads ArrayRecord there
        return by_client(url, "listing it", lambda: _looked_at(map(client._strip_protocol, named), client))
    except Exception as failed:  # other formats are read by pyarrow's client
        try:
            return _looked_at(named, None)
        except Exception as error:
            error.add_note(f"the client that reads ArrayRecord there: {failed}")
            raise


def _ends(filesystem: Any, path: str) -> tuple[bytes, bytes]:
    with filesystem.open_input_file(path) as file:
        return sniff.ends(file)


def _looked_at(named: Any, filesystem: Any) -> tuple[str, bytes]:
    """The same by one client, None for pyarrow's. One file of each suffix is opened."""
    named = [*named] if isinstance(named, Iterable) and not isinstance(named, Set) else named  # may be asked again
    filesystem, files = find_on(named, filesystem, ("",))
    for notes in [path for path in files if os.path.basename(path) == UNFINISHED]:
        folder = os.path.dirname(notes)
        if os.path.join(folder, FINISHED) not in files:
            raise not_finished(for_people(folder))
        files = tuple(path for path in files if path != notes)
    for notes in [path for path in files if os.path.basename(path) == _TFDS[0]]:
        if os.path.join(folder := os.path.dirname(notes), _TFDS[1]) in files:
            raise ValueError(
                f"TFDS prepared {for_people(folder)}: TFDSSource(TFDSSourceConfig(), {for_people(folder)!r}, 'train') "
                "reads one of its splits, by its features; of other files give a glob"
            )
    # notes on the others
    files = tuple(path for path in files if os.path.basename(path) not in (FINISHED, _TFDS[0])) or files
    found: dict[str | None, tuple[str, bytes]] = {}
    looked_at: set[str] = set()  # suffixes
    for path in files:
        suffix = os.path.splitext(path)[1]
        if suffix in looked_at:
            continue
        head, tail = retried(partial(_ends, filesystem, path), f"{for_people(path)} while it was looked at")
        if head.strip(b"\0"):  # else another one may tell: an empty file, a tar file without members
            looked_at.add(suffix)
        name = sniff.file_format(head, tail)
        if name in CODECS and head_of(filesystem, [path])[0] in OF_TEXT:
            name = PACKED
        # one column, a newline in quotes: the first lines tell of a text, and the name of which
        name = "CSV" if name == "text" and suffix.lower() in CSV.suffixes else name
        found.setdefault(name, (path, head))
    if "text" in found and not found["text"][0].lower().endswith(Lines.suffixes):  # a note, or a program
        found[None] = found.pop("text")
    image = next((found[name][0] for name in IMAGES if name in found), None)
    known = [name for name in found if name in READ and name not in (*UNSURE, PACKED)]
    if not known and (PACKED in found or image is None):  # beside others these may be notes
        known = [PACKED] if PACKED in found else [name for name in found if name in READ]
    if len(known) == 1:
        assert known[0] is not None
        if image is not None:
            logger.warning(
                "%s and other images there are not read: load chose %s. load('imagefolder:DIR') reads folders of them",
                image,
                known[0],
            )
        path, head = found[known[0]]
        if known[0] == "CSV" and not path.lower().endswith(CSV.suffixes):
            logger.warning(
                "%s is read as CSV by how its first lines look, of which the first names the columns. Where it is "
                "text, TextLinesSource(TextLinesSourceConfig(num_epochs=1), paths) reads its lines",
                for_people(path),
            )
        return known[0], head
    said = ", ".join(
        f"{path} ({name or ('of no known format' if head else 'empty')})"
        for name, (path, head) in sorted(found.items(), key=str)
    )
    if known:
        raise ValueError(f"there are files of several formats: {said}. Give a glob of those that are meant")
    name, (path, _) = next((each for each in found.items() if each[0] in IMAGES), next(iter(found.items())))
    suffix = os.path.splitext(path)[1]
    if any(other != path and os.path.splitext(other)[1] == suffix for other in files):
        path = f"{os.path.dirname(path)}/*{suffix}"
    known_names = f"{', '.join([*READ][:-1])} or {[*READ][-1]}"
    raise ValueError(f"nothing there is {known_names}: {said}.{sniff.how_to_read(name, path)}")
