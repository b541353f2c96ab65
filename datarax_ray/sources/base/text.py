"""The settings that all sources of text share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datarax_ray.plan.arguments import mapping, whole
from datarax_ray.read.formats.text.syntax import check_errors
from datarax_ray.sources.base.config import SourceConfig


@dataclass(frozen=True, kw_only=True)
class TextConfig(SourceConfig):
    """How text is decoded, and its columns typed; see SourceConfig for the other fields.

    column_types: Arrow types, or their names ("float32", "string"), of columns that pyarrow should not infer:
        in CSV, "01234" would be the number 1234. "json" for values of any kind, as Python's json has them, on the host.
    errors: "strict" if a row with text that is not UTF-8, or half a surrogate pair, is broken; "replace" to read it,
        with U+FFFD in place of such text.
    schema_rows: rows of each file that decide the types of columns; None for a share of all blocks, -1 for all rows.
    """

    column_types: Mapping[str, Any] | None = None
    errors: str = "strict"
    schema_rows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column_types is not None:
            mapping("column_types", self.column_types, "field")
        check_errors(self.errors)
        if self.schema_rows is not None:
            object.__setattr__(self, "schema_rows", whole("schema_rows", self.schema_rows, least=-1))
            if not self.schema_rows:
                raise ValueError("schema_rows=0 leaves no row to decide the types of columns; -1 is all rows")
