"""Rows of a Lance dataset by index, at one version. Source: lancedb.github.io/lance (format, and the Python API).

A dataset is a folder, or a URL, of fragments and of a manifest for each version. Appending, deleting and compacting
write a new version, in which a row may have another index; the files of the old one stay until they are cleaned up.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.forked import OneProcess
from datarax_ray.read.formats.arrow.columns import ColumnTypes, UnlikeError
from datarax_ray.read.formats.file_spans import BrokenRecordError
from datarax_ray.read.formats.remote.clients import redacted
from datarax_ray.read.retry import retried
from datarax_ray.read.stream import Reader, ReaderTraits

logger = logging.getLogger("datarax_ray")

_FIRST_ROWS = 4096  # tell the size of a row, and decide the types of columns where there is more than:
_WHOLE_NBYTES = 256 * 2**20  # of rows, which are read in some tenths of a second
_ONE_PROCESS = OneProcess("what reads Lance datasets")  # its threads do not survive a fork


class LanceReader(Reader):
    """The rows of one version of a dataset, as columns. Several threads may read.

    given: version, columns, types and what identifies the version; a reader pickles as it, and opens the dataset when
    it first reads.
    """

    traits = ReaderTraits(BrokenRecordError)
    num_records = mean_nbytes = 0

    def __init__(self, uri: str, given: Mapping[str, Any], storage_options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self.version: int = given["version"]
        self.num_records, self.mean_nbytes = given["num_records"], given["mean_nbytes"]
        self._given = given
        self._storage_options = storage_options
        self._dataset: Any = None

    @classmethod
    def of(
        cls,
        uri: str | os.PathLike[str],
        version: int | None = None,
        columns: Sequence[str] | None = None,
        on_null: Any = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> LanceReader:
        """Open a version of the dataset, None for the latest one.

        Raises: ImportError without pylance; ValueError for what is no dataset, or has no such version, column or row.
        """
        uri = os.fspath(uri)
        if "://" not in uri:
            uri = os.path.abspath(os.path.expanduser(uri))
        dataset = _opened(uri, version, storage_options)
        names = list(dataset.schema.names) if columns is None else list(columns)
        if unknown := [name for name in names if name not in dataset.schema.names]:
            there = dataset.schema.names
            raise ValueError(f"columns names {unknown}, and {redacted(uri)} has {there}.{nearest(unknown, there)}")
        num_records = dataset.count_rows()
        if not num_records:
            raise ValueError(f"there are 0 records in {redacted(uri)}; a stream needs at least one")
        first = rows = dataset.take(list(range(min(num_records, _FIRST_ROWS))), columns=names)
        mean_nbytes = first.nbytes // len(first)
        if num_records * mean_nbytes <= _WHOLE_NBYTES:
            rows = dataset.to_table(columns=names)
        elif num_records > len(first):
            logger.info(
                "%s: the first %s of %s rows decide which columns have nulls and lists of many lengths, since Lance "
                "counts neither. A later one breaks its row, unless on_null={column: 'host'} is set. `datarax-ray "
                "check` reads all rows",
                redacted(uri),
                f"{len(first):,}",
                f"{num_records:,}",
            )
        fragments = [
            [[os.path.basename(file.path) for file in fragment.data_files()], str(fragment.deletion_file())]
            for fragment in dataset.get_fragments()
        ]
        given = {
            "version": dataset.version,
            "num_records": num_records,
            "mean_nbytes": mean_nbytes,
            "columns": names,
            "types": ColumnTypes.of(rows, on_null=on_null),
            "digest": digest(fragments),
            "schema": digest([[name, str(first.schema.field(name).type)] for name in sorted(names)]),
        }
        return cls(uri, given, storage_options)

    @property
    def column_types(self) -> ColumnTypes:
        types: ColumnTypes = self._given["types"]
        return types

    def read(self, records: Indices) -> Columns:
        """The columns of these rows, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        Raises: BrokenRecordError for a null, or a list of another length, that has no place; OSError where the files of
        the version were cleaned up or their storage fails.
        """
        _ONE_PROCESS.check()
        table = retried(lambda: self._taken(records), redacted(self.uri))
        try:
            return self._given["types"].columns(table)
        except UnlikeError as error:
            raise BrokenRecordError(f"{error}; {error.remedy}") from None

    def locate(self, record: int) -> str:
        return f"{redacted(self.uri)}@{self.version}[{record}]"

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the version, wherever the dataset lies: its number, rows, files, and columns."""
        found = {name: self._given[name] for name in ("num_records", "version", "digest", "schema")}
        types: ColumnTypes = self._given["types"]
        return found | {"columns": digest(types.described())} | types.on_null.identity()

    def close(self) -> None:
        self._dataset = None

    def _taken(self, records: Indices) -> Any:
        if (dataset := self._dataset) is None:
            dataset = self._dataset = _opened(self.uri, self.version, self._storage_options)
        return dataset.take(records.tolist(), columns=self._given["columns"])

    def __reduce__(self) -> tuple[Any, ...]:
        return LanceReader, (self.uri, self._given, self._storage_options)


def _opened(uri: str, version: int | None, storage_options: Mapping[str, str] | None) -> Any:
    """The dataset at a version. Raises: ValueError with the versions that are there."""
    _ONE_PROCESS.check()
    try:
        import lance
    except ImportError as error:
        raise ImportError("Lance datasets need pylance: pip install 'datarax-ray[lance]'") from error
    options = None if storage_options is None else dict(storage_options)
    try:
        latest = lance.dataset(uri, storage_options=options)
    except ValueError as error:
        raise ValueError(
            f"{redacted(uri)} is no Lance dataset, a folder NAME.lance or the URL of one: {error}"
        ) from error
    if version is None or version == latest.version:
        return latest
    try:
        return latest.checkout_version(version)
    except (ValueError, OSError) as error:
        there = [each["version"] for each in latest.versions()]
        raise ValueError(
            f"{redacted(uri)} has no version {version} any more, only {there[-8:]}: it was cleaned up. Restore it, or "
            "start a new run on one of these"
        ) from error
