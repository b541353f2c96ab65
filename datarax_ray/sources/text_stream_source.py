"""Compressed text, and other text that is read forwards, as an NNX source: a stream of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flax import nnx

from datarax_ray.plan.arguments import names, ordered
from datarax_ray.plan.plain_values import shown
from datarax_ray.read.files import sniff
from datarax_ray.read.files.filesystems import find_on
from datarax_ray.read.files.paths import for_people, kept
from datarax_ray.read.formats.arrow.nulls import OnNull
from datarax_ray.read.formats.text.json_syntax import JSONLines
from datarax_ray.read.formats.text.reader import TextReader
from datarax_ray.read.formats.text.shards import SUFFIXES_OF_TEXT, TextShards, head_of
from datarax_ray.read.formats.text.syntax import CSV, Lines, Syntax
from datarax_ray.sources.base.stream import StreamConfig, StreamSourceModule
from datarax_ray.sources.base.text import TextConfig

FORMATS = ("jsonl", "csv", "text")


@dataclass(frozen=True, kw_only=True)
class TextStreamSourceConfig(StreamConfig, TextConfig):
    """How compressed text is read; endless unless num_epochs is given. See StreamConfig and TextConfig for the
    other fields.

    format: "jsonl" (or one array of objects), "csv" or "text", a text on each line; None to tell by the first file.
    delimiter: of CSV; None to tell by the first file.
    column_names: of CSV without a header: the first row is data. None if the first row names the columns.
    on_null: what becomes of nulls; see RowGroupsConfig.
    schema_rows: rows of each file that decide the types of columns; None for its first 256 KiB, -1 for all rows.

    >>> TextStreamSourceConfig(shuffle=True, column_types={"zip": "string"}).turn_size
    16
    """

    format: str | None = None
    delimiter: str | None = None
    column_names: tuple[str, ...] | None = None
    on_null: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        OnNull.of(self.on_null)
        if self.column_names is not None:
            ordered("column_names", self.column_names)
            object.__setattr__(self, "column_names", names("column_names", self.column_names))
        if self.format not in (None, *FORMATS):
            raise ValueError(f"format is one of {FORMATS}, or None to tell by the first file; got {self.format!r}")
        self.syntax("CSV", b"")

    def syntax(self, found: str | None, head: bytes) -> Syntax:
        """The syntax of files that look like this format, and begin so. Raises: ValueError for no format of text."""
        of_kinds = {"CSV": "csv", "JSON lines": "jsonl", "JSON array": "jsonl", "text": "text"}
        kind = self.format or of_kinds.get(found or "")
        if kind == "jsonl":
            return JSONLines(errors=self.errors)
        if kind == "csv":
            delimiter = self.delimiter or (sniff.delimiter(head) if head else ",")
            return CSV(delimiter, self.column_names, errors=self.errors)
        if kind == "text":
            return Lines(errors=self.errors)
        raise ValueError(f"in it is {found or 'no text'}, and format= of the source's config is one of {FORMATS}")


class TextStreamSource(StreamSourceModule[TextStreamSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The rows of text files, compressed (gzip, zstd, bzip2, xz) or not; each file is a shard that is read forwards.

    Files take turns, and the stream is the same in one process and under RaySource. A state holds for each file the
    bytes of text before its next row; resuming unpacks the file up to there. For a shuffle of all rows, and any row by
    its number, write the files as Parquet or ArrayRecord once: `datarax-ray convert`.

    paths, filesystem: as of ParquetSource. transforms: of single elements or whole columns.

    Rows, types and broken rows are those of JSONLinesSource and CSVSource; a line of text is {"text": line}. The first
    256 KiB of every file decide the types of columns. A later row that does not fit is broken.

    Raises: FileNotFoundError, ValueError at construction for paths without files, files with different columns, or
    first rows that mostly do not parse; RecordError from reading, for a row that does not parse, and, whatever on_error
    says, for a file that was cut short.
    """

    config_type = TextStreamSourceConfig
    instead_of_stream = "write it as Parquet or ArrayRecord by `datarax-ray convert`"

    def __init__(
        self,
        config: TextStreamSourceConfig,
        paths: Any,
        *,
        transforms: Any = (),
        filesystem: Any = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        self.paths = kept(paths)
        self.filesystem = filesystem
        client, found = find_on(self.paths, filesystem, SUFFIXES_OF_TEXT)
        self._found = found, config.syntax(*head_of(client, found))
        self._options = {
            "filesystem": client,
            "column_types": config.column_types,
            "on_null": config.on_null,
            "schema_rows": config.schema_rows,
        }
        self._reader = TextShards.of(*self._found, **self._options)
        given = {"paths": self.paths, "filesystem": filesystem}
        super().__init__(config, self._reader, given, transforms, rngs=rngs, name=name)

    def indexed(self) -> TextReader:
        """A reader of the rows by number, in the order of the files. Each jump back unpacks a file again."""
        return TextReader.of(*self._found, **self._options, unpack=True)

    def __repr__(self) -> str:
        paths, syntax = shown(for_people(self.paths)), self._reader.parser.decided.syntax
        return (
            f"TextStreamSource(paths={paths}, {syntax.name}, {self.describe()}, seed={self.config.seed}, "
            f"{self.config.shown_epochs})"
        )
