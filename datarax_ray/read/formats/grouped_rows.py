"""The base of readers whose rows are decoded in groups: row groups of Parquet, blocks of text."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.arrow.columns import ColumnTypes, UnlikeError
from datarax_ray.read.formats.decoded_groups import (
    BrokenRowGroupError,
    DecodedGroups,
    UnlikeRowsError,
    read_together,
)
from datarax_ray.read.stream import Reader, ReaderTraits


class GroupedRows(Reader):
    """The rows of many files under one index, [0, num_records), in the order of the files.

    given: to the constructor of the reader, by name; it alone is pickled, so that only the first reader looks at all
        files.
    rows: in each group of each file.
    nbytes: of each group.
    schema: of the columns that are read, as Arrow has it. Several threads may read, and close.
    """

    instead = ""  # of a field whose values have no place, beside on_null
    breaks_whole = True  # one that does not decode has no row that can be read

    def __init__(
        self,
        given: dict[str, Any],
        rows: Sequence[Sequence[int]],
        nbytes: Sequence[Sequence[int]],
        schema: Any,
        types: ColumnTypes,
    ) -> None:
        self.schema = schema
        self._given = given
        self._rows_of_files = rows
        self._types = types
        # those without rows have no index
        self._places = [(file, index) for file, counts in enumerate(rows) for index, n in enumerate(counts) if n]
        self._groups = RecordGroups(rows[file][index] for file, index in self._places)
        self.name_firsts = self._groups.starts[:-1]
        self._group_nbytes = [nbytes[file][index] for file, index in self._places]
        self._decoded = DecodedGroups(self._groups, given["max_nbytes"], given["keep_nbytes"])
        self._lock = ThreadLock()  # pipelines over one source read in threads of their own

    @property
    def num_records(self) -> int:
        return self._groups.num_records

    @property
    def mean_nbytes(self) -> int:
        """About the bytes of a decoded row, of the columns that are read."""
        return sum(self._group_nbytes) // self.num_records

    @property
    def moved(self) -> Mapping[str, str]:
        return self._types.moved

    @property
    def groups(self) -> RecordGroups:
        """Groups of rows to read together: small groups are merged with the groups behind them."""
        return read_together(self._groups, self._group_nbytes)

    @property
    def traits(self) -> ReaderTraits:
        return ReaderTraits(
            BrokenRowGroupError,
            keeps_groups=True,
            keeps_records=bool(self._given["keep_nbytes"]),
            caches_itself=True,
        )

    def cached(self, max_nbytes: int = sys.maxsize) -> Self:
        return type(self)(**self._given | {"keep_nbytes": max_nbytes})

    def counts(self) -> dict[str, int]:
        return self._decoded.counts()

    def with_room_for(self, nbytes: int) -> Self:
        """A reader of the same rows with room for at least nbytes of decoded groups."""
        return type(self)(**self._given | {"max_nbytes": max(self._given["max_nbytes"], nbytes)})

    def clear(self) -> None:
        with self._lock:
            self._decoded.clear()

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The rows [start, stop), cut where groups end, as `table` takes them."""
        if start >= stop:
            return []
        ends = self._groups.starts[self._group_of(start) + 1 : self._group_of(stop - 1) + 1].tolist()
        return list(itertools.pairwise([start, *ends, stop]))

    def table(self, start: int, stop: int) -> Any:
        """The rows [start, stop) of one group, as a pyarrow.Table: as they are stored, with their nulls.

        Raises: as read.
        """
        group = self._group_of(start)
        with self._lock:
            return self._table_of(group).slice(start - int(self._groups.starts[group]), stop - start)

    def locate(self, record: int) -> str:
        raise NotImplementedError

    def _table_of(self, group: int) -> Any:
        raise NotImplementedError

    def _columns_of(self, table: Any, where: str, typed: Callable[[Any], Any] = lambda table: table) -> Columns:
        """The columns of stored rows. where: the place of the rows, which begins the error; "" for a row alone, which
        the caller names. typed: the table with the types of all files.
        """
        return columns_of(lambda: self._types.columns(typed(table)), where, self.instead)

    def _group_of(self, record: int) -> int:
        return int(self._groups.of(np.array([record]))[0])

    def _place(self, record: int) -> tuple[int, int, int]:
        """The file of a row, its group in the file, and its number in the file."""
        group = self._group_of(record)
        file, index = self._places[group]
        return file, index, record - int(self._groups.starts[group]) + sum(self._rows_of_files[file][:index])

    def _on_null(self) -> dict[str, str]:
        """The values in place of nulls, for the fingerprint; {} without any."""
        return self._types.on_null.identity()

    def __getstate__(self) -> dict[str, Any]:
        return self._given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def columns_of(columns: Callable[[], Columns], where: str, instead: str = "") -> Columns:
    """What `columns` gives. where: see GroupedRows._columns_of. instead: a remedy beside on_null."""
    try:
        return columns()
    except UnlikeError as error:
        raise UnlikeRowsError(f"{where}{error}; {error.remedy}{instead}") from None
