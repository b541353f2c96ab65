"""`datarax-ray locate` and `datarax-ray replay`: the records of a batch, and its rows once more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
from rich import box
from rich.table import Table

from datarax_ray.cli.arguments import pipeline_of
from datarax_ray.cli.checkpoint import STEP, Saved, amendments_in, find
from datarax_ray.cli.inspect import caption_of, is_picture, line_of, png_of
from datarax_ray.cli.screen import Screen
from datarax_ray.feed.origins import NoBatchError, Origin
from datarax_ray.read.elements.columns import leaves
from datarax_ray.read.lines import written_whole
from datarax_ray.write.arrow import schema_of, table_of

if TYPE_CHECKING:
    from datarax_ray.pipeline import Pipeline

logger = logging.getLogger("datarax_ray")

Batches = Iterator[tuple[int, Any, list[Origin]]]  # each with its step, and the origins of its rows


def locate(
    target: str,
    step: int,
    screen: Screen,
    *,
    row: int | None = None,
    checkpoint: str | None = None,
    run: str | None = None,
) -> None:
    with pipeline_of(target) as pipeline:
        state = _counted_from(pipeline, checkpoint, run)
        try:
            found = [origin for origin in pipeline.locate(step, state) if row in (None, origin.row)]
        except NoBatchError as error:
            raise ValueError(str(error)) from None
    if not found:
        raise ValueError(f"batch {step} has no row {row}")
    is_packed, has_offsets = found[0].places is not None, any(origin.offset for origin in found)
    table = Table("row", *["places"] * is_packed, "record", "position", *["behind"] * has_offsets, box=box.SIMPLE)
    for origin in found:
        places = ["-".join(map(str, origin.places))] if origin.places else []
        table.add_row(
            str(origin.row), *places, origin.record, str(origin.position), *[str(origin.offset)] * has_offsets
        )
    screen.answer([origin._asdict() for origin in found], [table])


def replay(
    target: str,
    steps: tuple[int, int],
    output: Path,
    screen: Screen,
    *,
    checkpoint: str | None = None,
    run: str | None = None,
) -> None:
    first, stop = steps
    write = _WRITERS.get(output.suffix)
    if write is None:
        raise ValueError(f"{output} ends with none of {', '.join(_WRITERS)}, which choose the format")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {output.parent} to write {output.name} to; create it first")
    try:
        with pipeline_of(target) as pipeline, written_whole(output) as part:
            state = _counted_from(pipeline, checkpoint, run)
            found: Iterator[tuple[Any, list[Origin]]]
            if write is _write_parquet:  # the others hold no names, which a merged mixture is read again for
                found = pipeline.replay_with_origins(first, stop, state)
            else:
                found = ((batch, []) for batch in pipeline.replay(first, stop, state))
            count = write(part, ((step, *each) for step, each in enumerate(found, first)))
    except NoBatchError as error:
        raise ValueError(str(error)) from None
    end = "" if first + count == stop else f"; the stream ended at {first + count}, before {stop}"
    screen.answer(
        {"output": str(output), "num_batches": count, "steps": [first, first + count]},
        [f"wrote {count} batches to {output}{end}"],
    )


def _counted_from(pipeline: Pipeline, checkpoint: str | None, run: str | None) -> Mapping[str, Any] | None:
    """The state from which batches are counted; None for the beginning of the stream.

    checkpoint: the folder of that state. run: a folder whose latest state has the amendments of the stream.
    """
    if run is None and checkpoint is None:
        return None
    if run is None:
        saved = find(str(checkpoint))
        later = _latest_beside(saved)
        if later is not None and amendments_in(later.state) != amendments_in(saved.state):
            logger.warning(
                "%s knows amendments that %s does not: %s. Batches of the amended stream are counted by --run %s",
                *(later.directory, saved.directory, "; ".join(map(str, amendments_in(later.state)))),
                later.directory,
            )
        return saved.state
    if checkpoint is not None:
        raise ValueError("--run counts from the beginning of the stream, and --checkpoint from a state; give one")
    # without its digest: batches that are looked at again go on with none
    pipeline.set_state({name: value for name, value in find(run).state.items() if name != "digest"})
    return None


def _latest_beside(saved: Saved) -> Saved | None:
    """The latest state of the same run; None where the folder does not tell."""
    step = next((at for at in (saved.directory, saved.directory.parent) if STEP.fullmatch(at.name)), None)
    name = "" if step in (None, saved.directory) else f"/*/{saved.directory.name}"
    try:
        return None if step is None else find(f"{step.parent}{name}")
    except (OSError, ValueError):  # what is asked for is the other one
        return None


def _columns(batch: Any) -> dict[str, np.ndarray]:
    return {".".join(path) or "element": column for path, column in leaves(batch)}


def _write_npz(path: Path, batches: Batches) -> int:
    arrays: dict[str, Any] = {}
    count = 0
    for step, batch, _ in batches:
        columns = _columns(batch)
        if objects := [name for name, column in columns.items() if column.dtype == object]:
            raise ValueError(f"an .npz holds numbers, and {', '.join(objects)} are none; write a .parquet")
        arrays |= {f"{step}/{name}": column for name, column in columns.items()}
        count += 1
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return count


def _write_parquet(path: Path, batches: Batches) -> int:
    """Write each row with its step and number, and the record it was made of; of a packed row a list of records."""
    writer: Any = None
    count = 0
    try:
        for step, batch, origins in batches:
            columns = _columns(batch)
            if taken := {"step", "row", "record"} & columns.keys():
                raise ValueError(
                    f"a .parquet has columns step, row and record of its own, and so have the batches: {taken}; "
                    "write an .npz"
                )
            rows = len(next(iter(columns.values())))
            records = np.empty(rows, object)
            for origin in origins:
                if origin.places is None:
                    records[origin.row] = origin.record
                else:
                    records[origin.row] = [*(records[origin.row] or ()), origin.record]
            columns = {"step": np.full(rows, step), "row": np.arange(rows), "record": records} | columns
            writer = writer or pq.ParquetWriter(path, schema_of(columns))
            writer.write_table(table_of(columns, writer.schema))
            count += 1
    finally:
        if writer is not None:
            writer.close()
    return count


def _write_sheet(path: Path, batches: Batches) -> int:
    """Write the first field of pictures, uint8 (rows, height, width, 1 or 3): a line for each batch, with captions."""
    lines = []
    for step, batch, _ in batches:
        columns = _columns(batch)
        pictures = next((column for column in columns.values() if len(column) and is_picture(column[0])), None)
        if pictures is None:
            shapes = {name: (column.dtype.name, column.shape[1:]) for name, column in columns.items()}
            raise ValueError(
                f"no field holds pictures, uint8 (height, width, 1 or 3): {shapes}; write .npz or .parquet"
            )
        captions = (caption_of(row, {name: columns[name][row] for name in columns}) for row in range(len(pictures)))
        blank = np.full((1, 1, 3), 255, np.uint8)
        lines.append(line_of([blank, *pictures], [f"step {step}", *captions]))
    path.write_bytes(png_of(lines))
    return len(lines)


_WRITERS: Mapping[str, Callable[[Path, Batches], int]] = {
    ".npz": _write_npz,
    ".parquet": _write_parquet,
    ".png": _write_sheet,
}
